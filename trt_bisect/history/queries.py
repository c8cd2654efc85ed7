"""The entries of a history, their table for pandas, CSV and Parquet, and their trends."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import inspect as kinds
from rich.console import Console
from rich.table import Table
from rich.text import Text

from trt_bisect.analyzer.metrics import figure_text
from trt_bisect.errors import BadInput, install
from trt_bisect.report.changes import MODEL_OR_OPSET, differences
from trt_bisect.report.model import Report
from trt_bisect.report.parts import STYLES, spoken, with_low
from trt_bisect.report.screen.layout import titled, with_columns_that_fit
from trt_bisect.runs.progress_file import FINISHED
from trt_bisect.support.files import whole_file
from trt_bisect.support.text import listed

if TYPE_CHECKING:
    import pandas as pd

# pandas types of columns; other columns are objects
_DTYPES: Mapping[type[kinds.Type], str] = {
    kinds.FloatType: "float64",
    kinds.IntType: "Int64",
    kinds.BoolType: "boolean",
    kinds.DateTimeType: "datetime64[us, UTC]",
}
_NO_COLUMNS = ("layers",)
_BY_PLAN, _PLANS = ("latency",), ("fp32", "fp16", "int8", "recipe")


@dataclass(frozen=True)
class HistoryEntry:
    """A report in the history.

    Attributes:
        id: number in the order of recording; 0 before the recording.
        run: id of the run's journal, which stays the same when the folder is moved or copied.
        folder: absolute path of the run folder when last recorded.
        label: the network's name in a suite, else the model file's stem.
        started, recorded: times, in UTC, of the run's start and its recording.
        report: report without its layers.
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

    @property
    def is_finished(self) -> bool:
        """True if the run came to its end."""
        return self.report.state == FINISHED

    @property
    def engine(self) -> str:
        """The engine's name, with TensorRT's typing."""
        report = self.report
        return f"{report.engine} {report.typing}" if report.engine == "tensorrt" else report.engine

    def continues(self, before: HistoryEntry) -> bool:
        """Returns true if this entry replaces ``before``: fingerprint, metric, threshold and strategy are the same.

        The start time must be the same too, unless ``before`` is unfinished.
        """
        question = ("fingerprint", "metric", "threshold", "share", "strategy")
        is_same = all(getattr(self.report, name) == getattr(before.report, name) for name in question)
        return is_same and (before.started == self.started or not before.is_finished)


@cache
def _columns() -> dict[str, tuple[tuple[str, ...], kinds.Type]]:
    # by column the path to its value in an entry, and the type
    columns: dict[str, tuple[tuple[str, ...], kinds.Type]] = {}
    for path, leaf in _leaves(kinds.type_info(HistoryEntry)):
        columns.setdefault("_".join(path).removeprefix("report_"), (path, leaf))
    return columns


def _leaves(kind: kinds.Type, name: str = "") -> Iterator[tuple[tuple[str, ...], kinds.Type]]:
    choices = kind.types if isinstance(kind, kinds.UnionType) else (kind,)
    inner = next((choice for choice in choices if not isinstance(choice, kinds.NoneType)), kind)
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
    """Returns a table with a row for each entry, a column for each field; missing numbers are NaN or NA."""
    import pandas as pd

    columns = _columns()
    rows = [[_value_at(entry, path) for path, _ in columns.values()] for entry in entries]
    table: pd.DataFrame = pd.DataFrame(rows, columns=list(columns))
    typed: pd.DataFrame = table.astype({name: _DTYPES.get(type(leaf), "object") for name, (_, leaf) in columns.items()})
    return typed


def _value_at(entry: HistoryEntry, path: tuple[str, ...]) -> object:
    value: Any = entry
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
    return msgspec.to_builtins(value) if isinstance(value, (tuple, Mapping)) else value


def write_table(table: pd.DataFrame, path: Path, option: str) -> None:
    """Writes a table as CSV or Parquet (``option``: ``--csv`` or ``--parquet``): times in UTC, other objects as JSON
    (in Parquet, tuples of names as lists).

    Raises BadInput if PyArrow is missing, or the file cannot be written.
    """
    texts = table.copy()
    for name in table.select_dtypes(object):
        lists = (isinstance(cell, tuple) and all(isinstance(part, str) for part in cell) for cell in table[name])
        if option == "--csv" or not all(lists):
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


LATENCY_MOVED = 0.05  # a latency has changed if it differs by more than this share
_NAMES_UP_TO = 3
_BARS = "▁▂▃▄▅▆▇█"
_PARTS = {
    "model": "another network",
    MODEL_OR_OPSET: "another network, or the same in another opset",
    "ranges": "other ranges",
    "data (the judged inputs)": "other data",
    "the metric's function": "another metric",
}


def trends(entries: Iterable[HistoryEntry]) -> list[list[HistoryEntry]]:
    """Groups entries by label, engine, metric and low precision, sorted by these; inside a group the order stays."""
    groups: dict[tuple[str, str, str, str], list[HistoryEntry]] = {}
    for entry in entries:
        groups.setdefault((entry.label, entry.engine, entry.report.metric, entry.report.low), []).append(entry)
    return [groups[key] for key in sorted(groups)]


def _finished(entries: Iterable[HistoryEntry]) -> list[HistoryEntry]:
    return [entry for entry in entries if entry.is_finished]


def _last_change(finished: Sequence[HistoryEntry]) -> str:
    for before, after in reversed(list(pairwise(finished))):
        if differing := changes(before.report, after.report):
            return f"{after.started:%Y-%m-%d}: {', '.join(differing)}"
    return ""


def changes(before: Report, after: Report) -> list[str]:
    """Returns the differences between two finished reports, a few words each: first the results, then the inputs."""
    words, titles = [], {"int8": after.low.upper(), "recipe": "recipe"}
    for plan, title in titles.items():
        old, new = (figure_text(report.metric, getattr(report.similarity, plan)) for report in (before, after))
        words += [f"{title} {old} → {new}"] if old != new else []
    words += _names("new culprit", [name for name in after.culprits if name not in before.culprits])
    words += _names("former culprit", [name for name in before.culprits if name not in after.culprits])
    for plan, title in titles.items():
        was, now = before.milliseconds(plan), after.milliseconds(plan)
        words += [f"{title} {was:.3f} → {now:.3f} ms"] if was and now and abs(now - was) > LATENCY_MOVED * was else []
    parts = differences(before, after) or ()
    return words + [_PARTS.get(part.what) or f"{part.what} {part.before} → {part.now}" for part in parts]


def _names(what: str, names: Sequence[str]) -> list[str]:
    return [f"{what}{'s' if len(names) > 1 else ''} {listed(names, _NAMES_UP_TO)}"] if names else []


def heights(values: Sequence[float]) -> list[float]:
    """Returns the values scaled from the smallest (0) to the largest (1); 0.5 each if all are equal."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    return [0.5 if high == low else (value - low) / (high - low) for value in values]


def spark_text(values: Sequence[float | None]) -> str:
    """Returns a sparkline of block characters, one for each value; a missing value is a space.

    >>> spark_text([0.0, None, 2.0])
    '▁ █'
    """
    drawn = iter(heights([value for value in values if value is not None]))
    return "".join(" " if value is None else _BARS[round(next(drawn) * (len(_BARS) - 1))] for value in values)


RUNS_DRAWN = 40


def print_entries(entries: Sequence[HistoryEntry], console: Console, path: Path, *, by_run: bool, top: int) -> None:
    """Prints a row for each group of ``trends``, or with ``by_run`` for each run: at most ``top`` rows, all for 0.

    ``path``: the history, for the message without entries.
    """
    if not entries:
        console.print(f"The history {path} has no such run.", markup=False, soft_wrap=True)
        return
    groups = trends(entries)
    rows = len(entries) if by_run else len(groups)
    console.print(run_table(groups, top, console) if by_run else trend_table(groups[: top or None], console))
    if top and rows > top:
        console.print(f"{top} of {rows} rows; --top 0 shows all.", markup=False)


def trend_table(groups: Sequence[Sequence[HistoryEntry]], console: Console) -> Table:
    """Returns a table with a row for each group of ``trends``: the last figures, and sparklines of full INT8."""
    timed = any(entry.report.milliseconds("int8") is not None for group in groups for entry in group)
    figures = ("INT8>", "over runs", "Recipe>", "Culprits>", *(("INT8 ms>", "over runs") if timed else ()))
    table = titled("Label", "Engine", "Metric", "Runs>", "Last, UTC", "Verdict", *figures, "Changed last")
    for group in groups:
        label, engine, metric = group[0].label, group[0].engine, group[0].report.metric
        finished = _finished(group)
        last, drawn = finished[-1].report if finished else None, [entry.report for entry in finished[-RUNS_DRAWN:]]
        int8, recipe = _figures(last) if last else ("-", "-")
        times = [_milliseconds(last), spark_text([report.milliseconds("int8") for report in drawn])] if timed else []
        table.add_row(
            *map(Text, (label, engine, metric, str(len(group)), _when(group[-1]))),
            _verdict(last.verdict if last else "-"),
            *map(Text, (int8, spark_text([report.similarity.int8 for report in drawn]), recipe)),
            *map(Text, (str(len(last.culprits)) if last else "-", *times)),
            Text(_last_change(finished) or ("-" if len(finished) < 2 else "nothing")),
        )
    dropped = ("over runs", "Metric", "Runs", "INT8 ms", "Changed last", "Engine")
    return with_columns_that_fit(table, console, dropped, prose=("Changed last", "Engine"))


def run_table(groups: Sequence[Sequence[HistoryEntry]], top: int, console: Console) -> Table:
    """Returns a table with a row for each of the last ``top`` runs, all for 0, in the order of recording."""
    rows = sorted((entry for group in groups for entry in group), key=lambda entry: entry.id)
    pairs = (pair for group in groups for pair in pairwise(_finished(group)))
    differing = {after.id: changes(before.report, after.report) for before, after in pairs}
    timed = any(entry.report.milliseconds("int8") is not None for entry in rows)
    figures = ("INT8>", "Recipe>", "Culprits", *(("INT8 ms>",) if timed else ()), "s>")
    table = titled("Began, UTC", "Engine", "Metric", "Verdict", *figures, "Differs from the run before", "Folder")
    for entry in rows[-top:]:
        report, finished = entry.report, entry.is_finished
        culprits = (report.answer.ranked if report.answer is not None else ()) or report.culprits
        verdict, named, seconds, differs = "", listed(culprits, 3), "", report.state
        if finished:
            verdict, named, seconds = report.verdict, named or "none", f"{report.seconds.total:.1f}"
            differs = ", ".join(differing.get(entry.id, ()))
        times = (_milliseconds(report),) if timed else ()
        table.add_row(
            *map(Text, (_when(entry), entry.engine, report.metric)),
            _verdict(verdict),
            *map(Text, _figures(report)),
            *map(Text, (named, *times, seconds, differs, Path(entry.folder).name)),
            style="" if finished else "dim",
        )
    dropped = ("s", "Metric", "Folder", "Engine", "INT8 ms")
    return with_columns_that_fit(table, console, dropped, prose=("Differs from the run before", "Culprits"))


def _figures(report: Report) -> tuple[str, str]:
    int8, recipe = (figure_text(report.metric, value) for _, value in report.similarity.items())
    return with_low(int8, report.low), recipe


def _verdict(verdict: str) -> Text:
    return Text(spoken(verdict), style=STYLES.get(verdict, ""))


def _when(entry: HistoryEntry) -> str:
    return f"{entry.started:%Y-%m-%d %H:%M}"


def _milliseconds(report: Report | None) -> str:
    mean = None if report is None else report.milliseconds("int8")
    return "" if mean is None else f"{mean:.3f}"
