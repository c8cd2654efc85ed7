"""From a run folder into the history's tables. All of it belongs into one transaction."""

from __future__ import annotations

import json
import math
import sqlite3
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trt_bisect.history.run_folder_reader import StoredReport, StoredRun, StoredTrial
from trt_bisect.results.run_report import Report
from trt_bisect.runs.progress_file import FINISHED
from trt_bisect.support.plain_json import plain

_SAME_QUESTION = "run = ? AND fingerprint = ? AND metric = ? AND threshold IS ? AND share IS ? AND strategy = ?"


def write(base: sqlite3.Connection, taken: StoredRun, label: str) -> None:
    """Adds what is new and replaces what changed.

    Args:
        base: in a transaction.
        taken: what the run folder holds.
        label: that the user gave; empty for that given before, or the models' names.
    """
    run, given = _run(base, taken, label)
    fingerprints = {digest: _fingerprint(base, digest, parts) for digest, parts in taken.made_of.items()}
    for each in taken.reports:
        row = _report_row(each)
        row |= {"run": run, "fingerprint": fingerprints[each.report.fingerprint]}
        row["label"] = given or text(Path(each.report.model).stem)
        _write_report(base, row, each.report)
    trials = (_trial_row(run, fingerprints[each.fingerprint], each) for each in taken.trials)
    base.executemany("INSERT OR REPLACE INTO trials VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", trials)


def text(value: object) -> str:
    """``value`` as text that SQLite takes: what is no Unicode in a file's name is escaped."""
    return str(value).encode("utf-8", "backslashreplace").decode()


def number(value: object) -> float | None:
    """``value`` where it is a finite number, else None."""
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def _run(base: sqlite3.Connection, taken: StoredRun, label: str) -> tuple[int, str]:
    """The number of the run whose journal this is, and the label that was given to it."""
    known = base.execute("SELECT id, label FROM runs WHERE journal = ?", [text(taken.journal)]).fetchone()
    given = text(label) or (known[1] if known else "")
    folder = text(taken.folder)
    if known is None:
        values = [text(taken.journal), folder, given]
        return _inserted(base.execute("INSERT INTO runs (journal, folder, label) VALUES (?, ?, ?)", values)), given
    base.execute("UPDATE runs SET folder = ?, label = ? WHERE id = ?", [folder, given, known[0]])
    if label:
        base.execute("UPDATE reports SET label = ? WHERE run = ?", [given, known[0]])
    return known[0], given


def _fingerprint(base: sqlite3.Connection, digest: str, parts: Mapping[str, Any]) -> int:
    """Its number; of its parts the fuller account is kept, where a journal or an old report knows less of them."""
    base.execute(
        "INSERT INTO fingerprints (digest, made_of) VALUES (?, ?) ON CONFLICT (digest) DO UPDATE "
        "SET made_of = excluded.made_of WHERE length(excluded.made_of) > length(made_of)",
        [text(digest), json.dumps(plain(parts), sort_keys=True)],
    )
    (found,) = base.execute("SELECT id FROM fingerprints WHERE digest = ?", [text(digest)]).fetchone()
    return int(found)


def _write_report(base: sqlite3.Connection, row: dict[str, Any], report: Report) -> None:
    """In the place of the same report, or of an unfinished one on the same question, else behind all others."""
    question = [row[name] for name in ("run", "fingerprint", "metric", "threshold", "share", "strategy")]
    known = base.execute(
        f"SELECT id, state, started FROM reports WHERE {_SAME_QUESTION} AND (started = ? OR state != ?) "
        "ORDER BY started = ? DESC, id DESC",
        [*question, row["started"], FINISHED, row["started"]],
    ).fetchone()
    if known is None:
        row["recorded"] = time.time()
        marks = ", ".join("?" * len(row))
        number_of = _inserted(base.execute(f"INSERT INTO reports ({', '.join(row)}) VALUES ({marks})", [*row.values()]))
    else:
        number_of, state, started = known
        if state == FINISHED and row["state"] != FINISHED:
            return
        if (state, started) != (row["state"], row["started"]):
            row["recorded"] = time.time()
        changes = ", ".join(f"{name} = ?" for name in row)
        base.execute(f"UPDATE reports SET {changes} WHERE id = ?", [*row.values(), number_of])
        base.execute("DELETE FROM layers WHERE report = ?", [number_of])
    if row["state"] == FINISHED:
        base.executemany("INSERT INTO layers VALUES (?, ?, ?, ?, ?, ?, ?, ?)", _layer_rows(number_of, report))


def _report_row(taken: StoredReport) -> dict[str, Any]:
    """The columns of a report but run, fingerprint, label and when it was recorded."""
    report, finished = taken.report, taken.state == FINISHED
    texts = ("model", "engine", "typing", "strategy", "arithmetic", "metric", "precision", "command")
    return {
        "state": taken.state,
        "started": taken.started,
        **{name: text(getattr(report, name)) for name in texts},
        "threshold": number(report.threshold),
        "share": number(report.share),
        **{name: number(report.similarity.get(name)) for name in ("int8", "recipe")},
        "meets": bool(report.recipe.get("meets")) if finished else None,
        "culprits": _names(report.culprits),
        "high": _names(report.recipe.get("high", ())),
        **{f"{plan}_ms": _milliseconds(report, plan) for plan in ("fp32", "fp16", "int8", "recipe")},
        **{name: int(number(getattr(report, name)) or 0) for name in ("plans", "builds", "inferences", "peak_bytes")},
        **{f"{stage}_seconds": number(report.seconds.get(stage)) for stage in ("calibrate", "build", "infer", "total")},
        "exit_code": report.exit_code if finished else None,
    }


def _milliseconds(report: Report, plan: str) -> float | None:
    return number(((report.latency or {}).get(plan) or {}).get("mean_ms"))


def _names(names: Iterable[object]) -> str:
    return json.dumps([text(name) for name in names])


def _trial_row(run: int, fingerprint: int, taken: StoredTrial) -> tuple[object, ...]:
    trial = taken.trial
    seconds = (number(each) or 0.0 for each in (trial.build_seconds, trial.infer_seconds))
    judged = (taken.metric, number(taken.figure))
    return run, fingerprint, text(trial.plan), taken.place, text(trial.outcome), *judged, *seconds, text(trial.message)


def _layer_rows(report: int, of: Report) -> Iterable[tuple[object, ...]]:
    for row in of.layers:
        if row.quantizable:
            figures = (number(row.similarity), number(row.drop))
            yield report, row.index, text(row.name), text(row.outcome), *figures, bool(row.culprit), text(row.ran)


def _inserted(cursor: sqlite3.Cursor) -> int:
    assert cursor.lastrowid is not None
    return cursor.lastrowid
