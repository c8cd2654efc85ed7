"""The history on the screen. Names are printed as they are, never as markup."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trt_bisect.analyzer.metrics import figure_text
from trt_bisect.history.queries import HistoryEntry, HistoryFilter, Trend, engine_text, milliseconds, spark_text, trends
from trt_bisect.history.store import History
from trt_bisect.report.model import STYLES, Report, spoken
from trt_bisect.report.screen.layout import titled, with_columns_that_fit
from trt_bisect.runs.progress_file import FINISHED
from trt_bisect.support.text import listed

RUNS_DRAWN = 40
"""The most runs in a sparkline, the last ones."""


def print_history(history: History, selection: HistoryFilter, console: Console, *, top: int) -> None:
    """Prints a row for each trend, or for each run of the network that is selected; at most ``top`` rows, all for 0."""
    entries = history.past(selection)
    groups, by_run = trends(entries), selection.label is not None
    rows = len(entries) if by_run else len(groups)
    if not rows:
        console.print(f"The history {history.path} has no such run.", markup=False, soft_wrap=True)
        return
    console.print(run_table(groups, top, console) if by_run else trend_table(groups[: top or None], console))
    if top and rows > top:
        console.print(f"{top} of {rows} rows; --top 0 shows all.", markup=False)


def trend_table(groups: Sequence[Trend], console: Console) -> Table:
    """Returns one row for each trend: the last figures, and sparklines of full INT8 and its latency.

    Columns that do not fit on the console are left out, here and in ``run_table``.
    """
    timed = any(milliseconds(entry.report, "int8") is not None for trend in groups for entry in trend.entries)
    figures = ("INT8>", "over runs", "Recipe>", "Culprits>", *(("INT8 ms>", "over runs") if timed else ()))
    table = titled("Label", "Engine", "Metric", "Runs>", "Last, UTC", "Verdict", *figures, "Changed last")
    for trend in groups:
        finished = [entry.report for entry in trend.finished]
        last, drawn = finished[-1] if finished else None, finished[-RUNS_DRAWN:]
        int8, recipe = (
            figure_text(trend.metric, getattr(last.similarity, plan)) if last else "-" for plan in ("int8", "recipe")
        )
        times = [_milliseconds(last), spark_text([milliseconds(report, "int8") for report in drawn])] if timed else []
        table.add_row(
            *map(Text, (trend.label, trend.engine, trend.metric, str(len(trend.entries)), _when(trend.entries[-1]))),
            _verdict(last.verdict if last else "-"),
            *map(Text, (int8, spark_text([report.similarity.int8 for report in drawn]), recipe)),
            *map(Text, (str(len(last.culprits)) if last else "-", *times)),
            Text(trend.last_change or ("-" if len(finished) < 2 else "nothing")),
        )
    dropped = ("over runs", "Metric", "Runs", "INT8 ms", "Changed last", "Engine")
    return with_columns_that_fit(table, console, dropped, prose=("Changed last", "Engine"))


def run_table(groups: Sequence[Trend], top: int, console: Console) -> Table:
    """Returns one row for each of the last ``top`` runs, all for 0, in the order of recording."""
    rows = sorted((row for trend in groups for row in trend.compared()), key=lambda row: row[0].id)
    timed = any(milliseconds(entry.report, "int8") is not None for entry, _ in rows)
    figures = ("INT8>", "Recipe>", "Culprits", *(("INT8 ms>",) if timed else ()), "s>")
    table = titled("Began, UTC", "Engine", "Metric", "Verdict", *figures, "Differs from the run before", "Folder")
    for entry, differences in rows[-top:]:
        report, finished = entry.report, entry.report.state == FINISHED
        culprits = (report.answer.ranked if report.answer is not None else ()) or report.culprits
        table.add_row(
            *map(Text, (_when(entry), engine_text(report), report.metric)),
            _verdict(report.verdict if finished else ""),
            *(Text(figure_text(report.metric, value)) for _, value in report.similarity.items()),
            Text(listed(culprits, 3) if culprits else "none" if finished else ""),
            *([Text(_milliseconds(report))] if timed else []),
            Text(f"{report.seconds.total:.1f}" if finished else ""),
            *map(Text, (", ".join(differences) if finished else report.state, Path(entry.folder).name)),
            style="" if finished else "dim",
        )
    dropped = ("s", "Metric", "Folder", "Engine", "INT8 ms")
    return with_columns_that_fit(table, console, dropped, prose=("Differs from the run before", "Culprits"))


def _verdict(verdict: str) -> Text:
    return Text(spoken(verdict), style=STYLES.get(verdict, ""))


def _when(entry: HistoryEntry) -> str:
    return f"{entry.started:%Y-%m-%d %H:%M}"


def _milliseconds(report: Report | None) -> str:
    mean = None if report is None else milliseconds(report, "int8")
    return "" if mean is None else f"{mean:.3f}"
