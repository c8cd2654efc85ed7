"""Queries of the history: reports, trials and layers as objects and as pandas tables."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from trt_bisect.errors import first_line
from trt_bisect.history.rows import PastLayer, PastReport, PastTrial
from trt_bisect.history.writer import text
from trt_bisect.support.type_checks import checked

if TYPE_CHECKING:
    import pandas as pd

_ELSEWHERE = {"folder": "runs.folder", "fingerprint": "digest"}
_NAMES = tuple(each.name for each in fields(PastReport))
_REPORTS = (
    f"SELECT {', '.join(_ELSEWHERE.get(name, name) for name in _NAMES)} "
    "FROM (SELECT id AS run, folder FROM runs) AS runs JOIN reports USING (run) "
    "JOIN (SELECT id AS fingerprint, digest, made_of FROM fingerprints) USING (fingerprint)"
)
_LABEL = """coalesce(nullif(runs.label, ''), (
    SELECT reports.label FROM reports WHERE reports.run = runs.id ORDER BY reports.id DESC LIMIT 1), '')"""
_TRIALS = """SELECT run, digest, place, plan, outcome, metric, figure, build_seconds, infer_seconds, message
    FROM trials JOIN fingerprints ON fingerprints.id = fingerprint"""
_DIGITS_END = "g"
"""A character that sorts after every digit of a fingerprint."""


@dataclass(frozen=True)
class HistoryFilter:
    """A filter for reports and trials: all conditions given must hold.

    Attributes:
        label: the label of the network.
        model: path, file name or stem of the model.
        since: the run began at this time or later; a time without a zone is in UTC.
        fingerprint: the whole fingerprint or its beginning.
    """

    label: str | None = None
    model: str | None = None
    since: datetime | None = None
    fingerprint: str | None = None


EVERYTHING = HistoryFilter()


def read_reports(base: sqlite3.Connection, selection: HistoryFilter) -> list[PastReport]:
    """Returns the reports in the order of recording."""
    wheres, values = _fingerprints(selection)
    if selection.label is not None:
        wheres.append("label = ?")
        values.append(text(selection.label))
    if selection.since is not None:
        wheres.append("started >= ?")
        values.append(_seconds(selection.since))
    parsed: dict[str, Mapping[str, Any]] = {}
    rows = base.execute(f"{_REPORTS} {_where(wheres)} ORDER BY id", values)
    with _sound():
        found = [_report(row, parsed) for row in rows]
    return [report for report in found if selection.model is None or report.is_of(selection.model)]


@contextmanager
def _sound() -> Iterator[None]:
    """Raises sqlite3.DatabaseError for a row that this program cannot have written."""
    try:
        yield
    except (TypeError, ValueError, OverflowError, OSError, RecursionError) as error:
        raise sqlite3.DatabaseError(first_line(error)) from error


def read_trials(base: sqlite3.Connection, selection: HistoryFilter) -> list[PastTrial]:
    """Returns the trials run by run, in the order of the journal. A trial has the date of its run's newest report."""
    wheres, values = _fingerprints(selection)
    if selection.label is not None:
        wheres.append(f"run IN (SELECT id FROM runs WHERE {_LABEL} = ?)")
        values.append(text(selection.label))
    if selection.since is not None:
        wheres.append("run IN (SELECT run FROM reports WHERE started >= ?)")
        values.append(_seconds(selection.since))
    runs = {run: names for run, *names in base.execute(f"SELECT id, {_LABEL}, folder FROM runs")}
    if selection.model is not None:
        runs = {report.run: runs[report.run] for report in read_reports(base, HistoryFilter(model=selection.model))}
    rows = base.execute(f"{_TRIALS} {_where(wheres)} ORDER BY run, place", values)
    with _sound():
        return [checked(PastTrial(run, *runs[run], *row)) for run, *row in rows if run in runs]


def read_layers(base: sqlite3.Connection, report: int) -> list[PastLayer]:
    """Returns the quantizable layers of a report, in execution order."""
    columns = 'report, layer, name, outcome, similarity, "drop", culprit, ran'
    rows = base.execute(f"SELECT {columns} FROM layers WHERE report = ? ORDER BY layer", [report])
    found = (PastLayer(*row) for row in rows)
    with _sound():
        return [checked(replace(layer, culprit=bool(layer.culprit))) for layer in found]


def table(kind: type[PastReport] | type[PastTrial], rows: Iterable[PastReport | PastTrial]) -> pd.DataFrame:
    """Returns a table with a row for each object. Missing numbers are NaN or NA, also if a whole column is missing."""
    import pandas as pd

    found: pd.DataFrame = pd.DataFrame([vars(row) for row in rows], columns=[each.name for each in fields(kind)])
    types = {each.name: _TYPES[str(each.type)] for each in fields(kind) if str(each.type) in _TYPES}
    typed: pd.DataFrame = found.astype(types)
    return typed


_TYPES = {
    "float": "float64",
    "float | None": "float64",
    "int": "int64",
    "int | None": "Int64",
    "bool | None": "boolean",
    "datetime": "datetime64[us, UTC]",
}


def _fingerprints(selection: HistoryFilter) -> tuple[list[str], list[Any]]:
    if not selection.fingerprint:
        return [], []
    first = selection.fingerprint.lower()
    return ["digest >= ?", "digest < ?"], [first, first + _DIGITS_END]


def _where(wheres: list[str]) -> str:
    return f"WHERE {' AND '.join(wheres)}" if wheres else ""


def _seconds(when: datetime) -> float:
    return (when if when.tzinfo else when.replace(tzinfo=timezone.utc)).timestamp()


def _report(row: tuple[Any, ...], parsed: dict[str, Mapping[str, Any]]) -> PastReport:
    """Returns a row as an object. ``parsed`` caches the parts of fingerprints, which most reports share."""
    values = dict(zip(_NAMES, row, strict=True))
    for name in ("started", "recorded"):
        values[name] = datetime.fromtimestamp(values[name], timezone.utc)
    for name in ("culprits", "high"):
        values[name] = tuple(json.loads(values[name]))
    values["meets"] = None if values["meets"] is None else bool(values["meets"])
    made_of = parsed.get(values["fingerprint"])
    if made_of is None:
        made_of = parsed[values["fingerprint"]] = json.loads(values["made_of"])
    return checked(PastReport(**{**values, "made_of": made_of}))
