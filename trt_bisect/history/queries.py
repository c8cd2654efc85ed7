"""The entries of a history, the filter that selects them, and their table for pandas, CSV and Parquet."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import inspect as kinds

from trt_bisect.errors import BadInput, install
from trt_bisect.report.model import Report
from trt_bisect.runs.progress_file import FINISHED
from trt_bisect.support.files import whole_file

if TYPE_CHECKING:
    import pandas as pd

_DTYPES: Mapping[type[kinds.Type], str] = {
    kinds.FloatType: "float64",
    kinds.IntType: "Int64",
    kinds.BoolType: "boolean",
    kinds.DateTimeType: "datetime64[us, UTC]",
}
"""The pandas types of columns; others are objects."""
_NO_COLUMNS = ("layers",)
_BY_PLAN, _PLANS = ("latency",), ("fp32", "fp16", "int8", "recipe")
"""Fields that are a mapping by the name of a plan, and these names."""


@dataclass(frozen=True)
class HistoryEntry:
    """A report in the history.

    Attributes:
        id: in the order of recording, independent of the clock; 0 before the recording.
        run: the id of the run's journal, which stays the same when the folder is moved or copied.
        folder: the absolute path of the run folder when it was last recorded.
        label: the network's name in a suite, else the model file's stem.
        started: the time of the run's start, in UTC.
        recorded: the time of the recording, in UTC.
        report: the report; in entries from ``History.past`` without its layers, see ``History.report``.
    """

    id: int
    run: str
    folder: str
    label: str
    started: datetime
    recorded: datetime
    report: Report

    def is_of(self, model: str) -> bool:
        """Returns true if ``model`` is the path, the file name or the stem of the report's model."""
        path = Path(self.report.model)
        return model in (self.report.model, path.name, path.stem)

    def continues(self, before: HistoryEntry) -> bool:
        """Returns true if the entry takes the place of one of the same run: that, or unfinished with its question."""
        asked = ("fingerprint", "metric", "threshold", "share", "strategy")
        same = all(getattr(self.report, name) == getattr(before.report, name) for name in asked)
        return same and (before.started == self.started or before.report.state != FINISHED)


def entry_of(index: Sequence[Any], report: Report) -> HistoryEntry:
    """Returns the entry of a report and of values in a file, which may have other types than this program writes.

    Args:
        index: from ``id`` to ``recorded``, the times in seconds since the epoch.
        report: the report.

    Raises:
        TypeError, ValueError, OverflowError, OSError: a value cannot be converted.
    """
    number, run, folder, label, *times = index
    started, recorded = (datetime.fromtimestamp(seconds, timezone.utc) for seconds in times)
    return HistoryEntry(int(number), str(run), str(folder), str(label), started, recorded, report)


@dataclass(frozen=True)
class HistoryFilter:
    """A filter for reports: all conditions given must hold.

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


@cache
def _columns() -> dict[str, tuple[tuple[str, ...], kinds.Type]]:
    """Returns the columns of a table of entries: by name, the path to the value and its type.

    Fields of an inner dataclass are columns of their own, such as ``similarity_int8``; those of the report come last.
    """
    found: dict[str, tuple[tuple[str, ...], kinds.Type]] = {}
    for path, leaf in _leaves(kinds.type_info(HistoryEntry)):
        found.setdefault("_".join(path).removeprefix("report_"), (path, leaf))
    return found


def _leaves(kind: kinds.Type, name: str = "") -> Iterator[tuple[tuple[str, ...], kinds.Type]]:
    choices = kind.types if isinstance(kind, kinds.UnionType) else (kind,)
    inner = next((each for each in choices if not isinstance(each, kinds.NoneType)), kind)
    if isinstance(inner, kinds.DataclassType):
        parts = [(field.name, field.type) for field in inner.fields if field.name not in _NO_COLUMNS]
    elif isinstance(inner, kinds.DictType) and name in _BY_PLAN:
        parts = [(plan, inner.value_type) for plan in _PLANS]
    else:
        yield (), inner
        return
    for part, part_kind in parts:
        yield from (((part, *path), leaf) for path, leaf in _leaves(part_kind, part))


def table_of(entries: Iterable[HistoryEntry]) -> pd.DataFrame:
    """Returns one row for each entry. Missing numbers are NaN or NA, also if a whole column is missing."""
    import pandas as pd

    columns = _columns()
    rows = [[_cell(entry, path) for path, _ in columns.values()] for entry in entries]
    found: pd.DataFrame = pd.DataFrame(rows, columns=list(columns))
    typed: pd.DataFrame = found.astype({name: _DTYPES.get(type(leaf), "object") for name, (_, leaf) in columns.items()})
    return typed


def _cell(entry: HistoryEntry, path: tuple[str, ...]) -> object:
    """Returns the value at a path; dataclasses in a tuple or a mapping as dictionaries."""
    value: Any = entry
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
    return msgspec.to_builtins(value) if isinstance(value, (tuple, Mapping)) else value


def write_table(table: pd.DataFrame, path: Path, option: str) -> None:
    """Writes a table as CSV or Parquet: times in UTC, tuples and dictionaries as JSON, but names in Parquet as lists.

    Args:
        table: the table.
        path: the path of the file.
        option: ``--csv`` or ``--parquet``.

    Raises:
        BadInput: PyArrow is not installed, or the file cannot be written.
    """
    texts = table.copy()
    for name in table.select_dtypes(object):
        if option == "--csv" or not all(map(_is_names, table[name])):
            texts[name] = [json.dumps(cell) if isinstance(cell, (tuple, dict)) else cell for cell in table[name]]
    try:
        with whole_file(path) as file:
            if option == "--csv":
                texts.to_csv(file, index=False, date_format="%Y-%m-%dT%H:%M:%S.%f%z")
            else:
                texts.to_parquet(file, engine="pyarrow", index=False)
    except ImportError as error:
        raise BadInput("The package 'pyarrow' is not installed.", install("history")) from error
    except BadInput as error:
        raise BadInput(error.problem, f"Choose another with {option}.") from error


def _is_names(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(each, str) for each in value)
