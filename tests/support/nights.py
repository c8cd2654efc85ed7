"""Run folders of invented nights: those of a finished run, with other figures and another time."""

from __future__ import annotations

import json
import shutil
from datetime import datetime, timezone
from pathlib import Path
from uuid import uuid4

JOURNAL = "journal.jsonl"


def at(text: str) -> float:
    """Seconds since the epoch of a time in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=timezone.utc).timestamp()


def night(
    finished: Path, folder: Path, started: float, *, answered: bool = True, again: bool = False, **changed
) -> Path:
    """Copies a finished run folder to one of a run that began at another time.

    Args:
        finished: the folder of a real run.
        folder: where to.
        started: seconds since the epoch.
        answered: the run came to its end; else it was killed before it had a figure.
        again: in a folder that is there, with its journal.
        changed: other values of the report; ``versions`` go into ``made_of`` too, ``int8`` into ``similarity``.
    """
    folder.mkdir(parents=True, exist_ok=again)
    report = json.loads((finished / "report.json").read_text())
    if "int8" in changed:
        changed["similarity"] = {**report["similarity"], "int8": changed.pop("int8")}
    if "versions" in changed:
        changed["made_of"] = {**report["made_of"], "versions": changed["versions"]}
    report |= {**changed, "started": started}
    (folder / "run.json").unlink(missing_ok=True)
    if answered:
        (folder / "report.json").write_text(json.dumps(report))
    else:
        nothing = {"int8": None, "recipe": None}
        blank = {"state": "running", "verdict": "not measured", "similarity": nothing, "culprits": [], "latency": None}
        (folder / "run.json").write_text(json.dumps({**report, **blank}))
    if not again:
        shutil.copy(finished / JOURNAL, folder)
        lines = (folder / JOURNAL).read_text().splitlines()
        records = [json.loads(line) for line in lines]
        records[0]["id"] = uuid4().hex
        for record in records:
            record["run"] = changed.get("fingerprint", record["run"])
        (folder / JOURNAL).write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder
