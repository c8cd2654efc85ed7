"""Writes the content of a run folder into the history's tables, in one transaction."""

from __future__ import annotations

import json
import math
import sqlite3
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trt_bisect.history.run_folder_reader import StoredReport, StoredRun, StoredTrial
from trt_bisect.report.model import Report
from trt_bisect.runs.progress_file import FINISHED
from trt_bisect.support.plain_json import plain

_SAME_QUESTION = "run = ? AND fingerprint = ? AND metric = ? AND threshold IS ? AND share IS ? AND strategy = ?"


def write(base: sqlite3.Connection, stored: StoredRun, label: str) -> None:
    """Adds new reports and trials of a run and replaces changed ones.

    Args:
        base: the history's file, in a transaction.
        stored: the content of the run folder.
        label: given by the user; empty for the one given before, or else the names of the models.
    """
    run, given = _run(base, stored, label)
    fingerprints = {digest: _fingerprint(base, digest, parts) for digest, parts in stored.made_of.items()}
    for each in stored.reports:
        row = _report_row(each)
        row |= {"run": run, "fingerprint": fingerprints[each.report.fingerprint]}
        row["label"] = given or text(Path(each.report.model).stem)
        _write_report(base, row, each.report)
    trials = (_trial_row(run, fingerprints[each.fingerprint], each) for each in stored.trials)
    base.executemany("INSERT OR REPLACE INTO trials VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", trials)


def text(value: object) -> str:
    """Returns ``value`` as text for SQLite. Bytes of a file name that are not Unicode are escaped."""
    return str(value).encode("utf-8", "backslashreplace").decode()


def number(value: object) -> float | None:
    """Returns ``value`` if it is a finite number, else None."""
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def _run(base: sqlite3.Connection, stored: StoredRun, label: str) -> tuple[int, str]:
    """Adds or updates the row of the run; returns its number and the label that the user gave it."""
    known = base.execute("SELECT id, label FROM runs WHERE journal = ?", [text(stored.journal)]).fetchone()
    given = text(label) or (known[1] if known else "")
    folder = text(stored.folder)
    if known is None:
        values = [text(stored.journal), folder, given]
        return _inserted(base.execute("INSERT INTO runs (journal, folder, label) VALUES (?, ?, ?)", values)), given
    base.execute("UPDATE runs SET folder = ?, label = ? WHERE id = ?", [folder, given, known[0]])
    if label:
        base.execute("UPDATE reports SET label = ? WHERE run = ?", [given, known[0]])
    return known[0], given


def _fingerprint(base: sqlite3.Connection, digest: str, parts: Mapping[str, Any]) -> int:
    """Adds a fingerprint and returns its number. Its parts are replaced only by a longer record of them."""
    base.execute(
        "INSERT INTO fingerprints (digest, made_of) VALUES (?, ?) ON CONFLICT (digest) DO UPDATE "
        "SET made_of = excluded.made_of WHERE length(excluded.made_of) > length(made_of)",
        [text(digest), json.dumps(plain(parts), sort_keys=True)],
    )
    (found,) = base.execute("SELECT id FROM fingerprints WHERE digest = ?", [text(digest)]).fetchone()
    return int(found)


def _write_report(base: sqlite3.Connection, row: dict[str, Any], report: Report) -> None:
    """Replaces the same report, or an unfinished one with the same fingerprint and options, or adds a new one."""
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


def _report_row(stored: StoredReport) -> dict[str, Any]:
    """Returns the columns of a report, except ``run``, ``fingerprint``, ``label`` and ``recorded``."""
    report, finished = stored.report, stored.state == FINISHED
    texts = ("model", "engine", "typing", "strategy", "arithmetic", "metric", "precision", "command")
    return {
        "state": stored.state,
        "started": stored.started,
        **{name: text(getattr(report, name)) for name in texts},
        "threshold": number(report.threshold),
        "share": number(report.share),
        **{name: number(getattr(report.similarity, name)) for name in ("int8", "recipe")},
        "meets": report.recipe.meets if finished else None,
        "culprits": _names(report.culprits),
        "high": _names(report.recipe.high),
        **{f"{plan}_ms": _milliseconds(report, plan) for plan in ("fp32", "fp16", "int8", "recipe")},
        **{name: int(number(getattr(report, name)) or 0) for name in ("plans", "builds", "inferences", "peak_bytes")},
        **{
            f"{stage}_seconds": number(getattr(report.seconds, stage))
            for stage in ("calibrate", "build", "infer", "total")
        },
        "exit_code": report.exit_code if finished else None,
        "schema": report.schema,
    }


def _milliseconds(report: Report, plan: str) -> float | None:
    return number(timed.mean_ms if (timed := (report.latency or {}).get(plan)) else None)


def _names(names: Iterable[object]) -> str:
    return json.dumps([text(name) for name in names])


def _trial_row(run: int, fingerprint: int, stored: StoredTrial) -> tuple[object, ...]:
    trial = stored.trial
    seconds = (number(each) or 0.0 for each in (trial.build_seconds, trial.infer_seconds))
    judged = (stored.metric, number(stored.figure))
    return run, fingerprint, text(trial.plan), stored.place, text(trial.outcome), *judged, *seconds, text(trial.message)


def _layer_rows(report: int, of: Report) -> Iterable[tuple[object, ...]]:
    for row in of.layers:
        if row.quantizable:
            figures = (number(row.similarity), number(row.drop))
            yield report, row.index, text(row.name), text(row.outcome), *figures, bool(row.culprit), text(row.ran)


def _inserted(cursor: sqlite3.Cursor) -> int:
    assert cursor.lastrowid is not None
    return cursor.lastrowid
