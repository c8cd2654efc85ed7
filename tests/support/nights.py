"""Run folders of invented nights: those of a finished run, with other figures and another time."""

from __future__ import annotations

import json
import shutil
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from uuid import uuid4

from trt_bisect.history.store import History

JOURNAL = "journal.jsonl"
FILES = ("run.json", "report.json", JOURNAL)


def at(text: str) -> float:
    """Seconds since the epoch of a time in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=timezone.utc).timestamp()


def trials_in(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Returns the newest record of every trial in a run folder, in the journal's order, by fingerprint and plan."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for line in (folder / JOURNAL).read_text().splitlines():
        record = json.loads(line)
        if "trial" in record:
            key = record["run"], record["trial"]["plan"]
            found.pop(key, None)
            found[key] = record["trial"]
    return found


def trial_keys(kept: History) -> list[tuple[str, str]]:
    """Returns the fingerprint and the plan of all trials in a history."""
    trials = kept.trials()
    return list(zip(trials["fingerprint"], trials["plan"], strict=True))


def night(
    finished: Path, folder: Path, started: float, *, answered: bool = True, again: bool = False, **changed
) -> Path:
    """Copies a finished run folder to one of a run that began at another time.

    Args:
        finished: the folder of a real run.
        folder: where to.
        started: seconds since the epoch.
        answered: the report was written.
        again: in a folder that is there, with its journal.
        changed: other values of the report; ``versions`` go into ``made_of`` too, ``int8`` into ``similarity``.
    """
    folder.mkdir(parents=True, exist_ok=again)
    asked = json.loads((finished / "run.json").read_text())
    report = json.loads((finished / "report.json").read_text())
    if "int8" in changed:
        changed["similarity"] = {**report["similarity"], "int8": changed.pop("int8")}
    if "versions" in changed:
        changed["made_of"] = {**report["made_of"], "versions": changed["versions"]}
    same = {name: value for name, value in changed.items() if name not in ("similarity", "culprits", "latency")}
    asked |= {"started": started, "report": {**asked["report"], **same, "started": started}}
    (folder / "run.json").write_text(json.dumps(asked))
    if answered:
        (folder / "report.json").write_text(json.dumps({**report, **changed, "started": started}))
    if not again:
        shutil.copy(finished / JOURNAL, folder)
        lines = (folder / JOURNAL).read_text().splitlines()
        records = [json.loads(line) for line in lines]
        records[0]["id"] = uuid4().hex
        for record in records:
            record["run"] = changed.get("fingerprint", record["run"])
        (folder / JOURNAL).write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder
