"""The history on the screen. Names are printed as they are, never as markup."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trt_bisect.history.rows import PastReport, PastTrial
from trt_bisect.history.sparkline import spark_text
from trt_bisect.history.trends import Trend, engine_text
from trt_bisect.report.figure_text import figure_text
from trt_bisect.report.screen.layout import with_columns_that_fit
from trt_bisect.report.verdict import STYLES
from trt_bisect.runs.progress_file import FINISHED
from trt_bisect.support.figures import listed

RUNS_DRAWN = 40
"""The most runs in a sparkline, the last ones."""


def trend_table(trends: Sequence[Trend], console: Console) -> Table:
    """Returns one row for each trend: the last figures, and sparklines of full INT8 and its latency.

    Columns that do not fit on the console are left out, here and in the other tables.
    """
    timed = any(report.int8_ms is not None for trend in trends for report in trend.reports)
    table = _table(("Label", ""), ("Engine", ""), ("Metric", ""), ("Runs", "right"), ("Last, UTC", ""))
    _add(table, ("Verdict", ""), ("INT8", "right"), ("over runs", ""), ("Recipe", "right"), ("Culprits", "right"))
    _add(table, *((("INT8 ms", "right"), ("over runs", "")) if timed else ()), ("Changed last", ""))
    for trend in trends:
        finished = trend.finished
        last = finished[-1] if finished else None
        drawn = finished[-RUNS_DRAWN:]
        cells: list[str | Text] = [trend.label, trend.engine, trend.metric, str(len(trend.reports))]
        cells.append(_when(trend.reports[-1]))
        verdict = "" if last is None else last.verdict
        cells += [
            Text(verdict or "-", style=STYLES.get(verdict, "")),
            "-" if last is None else figure_text(trend.metric, last.int8),
            spark_text([report.int8 for report in drawn]),
            "-" if last is None else figure_text(trend.metric, last.recipe),
            "-" if last is None else str(len(last.culprits)),
        ]
        if timed:
            cells += [_milliseconds(last), spark_text([report.int8_ms for report in drawn])]
        table.add_row(*map(_cell, [*cells, trend.last_change or ("-" if len(finished) < 2 else "nothing")]))
    dropped = ("over runs", "Metric", "Runs", "INT8 ms", "Changed last", "Engine")
    return with_columns_that_fit(table, console, dropped, prose=("Changed last", "Engine"))


def run_table(trends: Sequence[Trend], top: int, console: Console) -> Table:
    """Returns one row for each of the last ``top`` runs, all for 0, in the order of recording."""
    rows = sorted((row for trend in trends for row in trend.compared()), key=lambda row: row[0].id)
    timed = any(report.int8_ms is not None for report, _ in rows)
    table = _table(("Began, UTC", ""), ("Engine", ""), ("Metric", ""), ("Verdict", ""), ("INT8", "right"))
    _add(table, ("Recipe", "right"), ("Culprits", ""), *((("INT8 ms", "right"),) if timed else ()), ("s", "right"))
    _add(table, ("Differs from the one before", ""), ("Folder", ""))
    for report, differences in rows[-top:]:
        finished = report.state == FINISHED
        figures = [figure_text(report.metric, value) for value in (report.int8, report.recipe)]
        verdict = Text(report.verdict, style=STYLES.get(report.verdict, ""))
        cells: list[str | Text] = [_when(report), engine_text(report), report.metric, verdict, *figures]
        cells.append(listed(report.culprits, 3) if report.culprits else "none" if finished else "")
        if timed:
            cells.append(_milliseconds(report))
        cells.append("" if report.total_seconds is None else f"{report.total_seconds:.1f}")
        cells += [", ".join(differences) if finished else report.state, Path(report.folder).name]
        table.add_row(*map(_cell, cells), style="" if finished else "dim")
    dropped = ("s", "Metric", "Folder", "Engine", "INT8 ms")
    return with_columns_that_fit(table, console, dropped, prose=("Differs from the one before", "Culprits"))


def trial_table(trials: Sequence[PastTrial], console: Console) -> Table:
    """Returns one row for each trial."""
    table = _table(("Label", ""), ("Run", "right"), ("Plan", ""), ("Outcome", ""), ("Metric", ""), ("Figure", "right"))
    _add(table, ("Build s", "right"), ("Infer s", "right"), ("Message", ""))
    for trial in trials:
        figure = figure_text(trial.metric or "", trial.figure)
        cells = [trial.label, str(trial.run), trial.plan, trial.outcome, trial.metric or "", figure]
        message = trial.message.splitlines()[0] if trial.message else ""
        cells += [f"{trial.build_seconds:.3f}", f"{trial.infer_seconds:.3f}", message]
        table.add_row(*map(Text, cells))
    dropped = ("Build s", "Infer s", "Metric", "Run")
    return with_columns_that_fit(table, console, dropped, prose=("Plan", "Message"))


def _table(*columns: tuple[str, str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    _add(table, *columns)
    return table


def _add(table: Table, *columns: tuple[str, str]) -> None:
    for title, justify in columns:
        table.add_column(title, justify="right" if justify else "left", overflow="fold", no_wrap=bool(justify))


def _cell(text: str | Text) -> Text:
    return text if isinstance(text, Text) else Text(text)


def _when(report: PastReport) -> str:
    return f"{report.started:%Y-%m-%d %H:%M}"


def _milliseconds(report: PastReport | None) -> str:
    return "" if report is None or report.int8_ms is None else f"{report.int8_ms:.3f}"
