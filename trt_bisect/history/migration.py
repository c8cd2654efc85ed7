"""Histories of versions 1 to 3, which had a column for each figure."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from trt_bisect.history.queries import HistoryEntry, entry_of
from trt_bisect.report.older import report_of

OLD_TABLES = ("layers", "trials", "reports", "runs", "fingerprints")
_INDEX = ("id", "journal", "folder", "label", "started", "recorded")
_SAME = ("model", "engine", "typing", "strategy", "arithmetic", "metric", "precision", "exit_code")
_COUNTS = ("plans", "builds", "inferences", "peak_bytes", "command", "started")


def converted(base: sqlite3.Connection) -> Iterator[HistoryEntry]:
    """Yields the entries of an old file, their reports with the figures that it holds.

    Raises:
        sqlite3.Error, KeyError, TypeError, ValueError: the file is damaged.
    """
    has_layers = base.execute("SELECT 1 FROM sqlite_master WHERE name = 'layers'").fetchone()
    found = base.execute(
        "SELECT reports.*, journal, folder, digest, made_of FROM reports JOIN runs ON runs.id = run "
        "JOIN fingerprints ON fingerprints.id = fingerprint ORDER BY reports.id"
    )
    names = [name for name, *_ in found.description]
    for values in found:
        row = dict(zip(names, values, strict=True))
        layers = base.execute("SELECT * FROM layers WHERE report = ? ORDER BY layer", [row["id"]]) if has_layers else ()
        report = report_of(json.dumps({**_record(row), "layers": list(map(_layer, layers))}))
        yield entry_of([row[name] for name in _INDEX], replace(report, state=row["state"]))


def _record(row: dict[str, Any]) -> dict[str, Any]:
    """Returns the content of a ``report.json``, without the layers."""
    made_of = json.loads(row["made_of"])
    timed = {plan: row[f"{plan}_ms"] for plan in ("fp32", "fp16", "int8", "recipe")}
    latency = {
        plan: ms and {"mean_ms": ms, "median_ms": ms, "p99_ms": ms, "runs": 0, "layers": [], "computed": {}}
        for plan, ms in timed.items()
    }
    seconds = {stage: row[f"{stage}_seconds"] for stage in ("calibrate", "build", "infer", "total")}
    return {
        **{name: row[name] for name in (*_SAME, *_COUNTS)},
        **{name: row[name] or 0.0 for name in ("threshold", "share")},
        "schema": row.get("schema", 1),
        "versions": made_of.get("versions", {}),
        "culprits": json.loads(row["culprits"]),
        "similarity": {"int8": row["int8"], "recipe": row["recipe"]},
        "outputs": {"int8": {}, "recipe": {}},
        "recipe": {"high": json.loads(row["high"]), "added": [], "meets": bool(row["meets"])},
        "ranges": {},
        "inputs": {},
        "notes": [],
        "summary": "",
        "seconds": {stage: value for stage, value in seconds.items() if value is not None},
        "fingerprint": row["digest"],
        "made_of": made_of,
        "latency": latency if any(timed.values()) else None,
    }


def _layer(row: tuple[Any, ...]) -> dict[str, Any]:
    """Returns one of the ``layers`` of ``report.json``; the file holds those that are quantizable."""
    _, index, name, outcome, similarity, drop, culprit, ran = row
    record = {"index": index, "name": name, "op_type": "", "shape": None, "quantizable": True, "similarity": similarity}
    return {**record, "drop": drop, "culprit": bool(culprit), "outcome": outcome, "asked": "", "ran": ran, "rounds": []}
