"""From the history's tables to objects, and to pandas tables."""

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
_REPORTS = (
    f"SELECT {', '.join(_ELSEWHERE.get(each.name, each.name) for each in fields(PastReport))} "
    "FROM (SELECT id AS run, folder FROM runs) AS runs JOIN reports USING (run) "
    "JOIN (SELECT id AS fingerprint, digest, made_of FROM fingerprints) USING (fingerprint)"
)
_LABEL = """coalesce(nullif(runs.label, ''), (
    SELECT reports.label FROM reports WHERE reports.run = runs.id ORDER BY reports.id DESC LIMIT 1), '')"""
_TRIALS = """SELECT run, digest, place, plan, outcome, metric, figure, build_seconds, infer_seconds, message
    FROM trials JOIN fingerprints ON fingerprints.id = fingerprint"""
_DIGITS_END = "g"
"""Comes behind every digit of a fingerprint."""


@dataclass(frozen=True)
class Wanted:
    """Which reports and trials are wanted, by all that is given.

    Attributes:
        label: of the network.
        model: its path, file name or stem.
        since: began at that time or later; a time without a zone is in UTC.
        fingerprint: or the beginning of it.
    """

    label: str | None = None
    model: str | None = None
    since: datetime | None = None
    fingerprint: str | None = None


EVERYTHING = Wanted()


def read_reports(base: sqlite3.Connection, wanted: Wanted) -> list[PastReport]:
    """Reports in the order of recording."""
    wheres, values = _fingerprints(wanted)
    if wanted.label is not None:
        wheres.append("label = ?")
        values.append(text(wanted.label))
    if wanted.since is not None:
        wheres.append("started >= ?")
        values.append(_seconds(wanted.since))
    parsed: dict[str, Mapping[str, Any]] = {}
    rows = base.execute(f"{_REPORTS} {_where(wheres)} ORDER BY id", values)
    with _sound():
        found = [_report(row, parsed) for row in rows]
    return [report for report in found if wanted.model is None or report.is_of(wanted.model)]


@contextmanager
def _sound() -> Iterator[None]:
    """A row that this program cannot have written is damage, as SQLite tells it."""
    try:
        yield
    except (TypeError, ValueError, OverflowError, OSError, RecursionError) as error:
        raise sqlite3.DatabaseError(first_line(error)) from error


def read_trials(base: sqlite3.Connection, wanted: Wanted) -> list[PastTrial]:
    """Trials, run by run in the order of their journals; they are as old as the newest report of their run."""
    wheres, values = _fingerprints(wanted)
    if wanted.label is not None:
        wheres.append(f"run IN (SELECT id FROM runs WHERE {_LABEL} = ?)")
        values.append(text(wanted.label))
    if wanted.since is not None:
        wheres.append("run IN (SELECT run FROM reports WHERE started >= ?)")
        values.append(_seconds(wanted.since))
    runs = {run: names for run, *names in base.execute(f"SELECT id, {_LABEL}, folder FROM runs")}
    if wanted.model is not None:
        runs = {report.run: runs[report.run] for report in read_reports(base, Wanted(model=wanted.model))}
    rows = base.execute(f"{_TRIALS} {_where(wheres)} ORDER BY run, place", values)
    with _sound():
        return [checked(PastTrial(run, *runs[run], *row)) for run, *row in rows if run in runs]


def read_layers(base: sqlite3.Connection, report: int) -> list[PastLayer]:
    """The quantizable layers of a report, in execution order."""
    columns = 'report, layer, name, outcome, similarity, "drop", culprit, ran'
    rows = base.execute(f"SELECT {columns} FROM layers WHERE report = ? ORDER BY layer", [report])
    found = (PastLayer(*row) for row in rows)
    with _sound():
        return [checked(replace(layer, culprit=bool(layer.culprit))) for layer in found]


def table(kind: type[PastReport] | type[PastTrial], rows: Iterable[PastReport | PastTrial]) -> pd.DataFrame:
    """A row an object; numbers that are not there are NaN or NA, whole columns of them too."""
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


def _fingerprints(wanted: Wanted) -> tuple[list[str], list[Any]]:
    if not wanted.fingerprint:
        return [], []
    first = wanted.fingerprint.lower()
    return ["digest >= ?", "digest < ?"], [first, first + _DIGITS_END]


def _where(wheres: list[str]) -> str:
    return f"WHERE {' AND '.join(wheres)}" if wheres else ""


def _seconds(when: datetime) -> float:
    return (when if when.tzinfo else when.replace(tzinfo=timezone.utc)).timestamp()


def _report(row: tuple[Any, ...], parsed: dict[str, Mapping[str, Any]]) -> PastReport:
    """One row as an object; ``parsed`` keeps what fingerprints are made of, most reports share theirs."""
    values = dict(zip((each.name for each in fields(PastReport)), row, strict=True))
    for name in ("started", "recorded"):
        values[name] = datetime.fromtimestamp(values[name], timezone.utc)
    for name in ("culprits", "high"):
        values[name] = tuple(json.loads(values[name]))
    values["meets"] = None if values["meets"] is None else bool(values["meets"])
    made_of = parsed.get(values["fingerprint"])
    if made_of is None:
        made_of = parsed[values["fingerprint"]] = json.loads(values["made_of"])
    return checked(PastReport(**{**values, "made_of": made_of}))
