"""The report on the screen: the table of layers and a paragraph."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trt_bisect.analyzer.metrics import AGREEMENT, FRACTIONS
from trt_bisect.results.figure_text import figure_text
from trt_bisect.results.run_report import FOLLOWS, NOT_TRIED, LayerRow, Report

ALL_ROWS_UP_TO = 60
NOTES_UP_TO = 10


def print_report(report: Report, console: Console, *, every_layer: bool = False) -> None:
    """Prints the table of layers, the summary and the notes. Names are printed as they are, never as markup."""
    rows = rows_to_print(report, every_layer=every_layer)
    console.print(layer_table(report, rows))
    hidden = len(report.layers) - len(rows)
    if hidden:
        console.print(
            Text(f"{hidden} layers that follow or were not tried are not shown; they are in layers.csv.", style="dim")
        )
    console.print()
    if any(len(figures) > 1 for figures in report.outputs.values()):
        console.print(output_table(report))
        console.print()
    style = {0: "bold green", 1: "bold red"}.get(report.exit_code, "bold yellow")
    console.print(Text(report.summary, style=style))
    for line in latency_lines(report):
        console.print(Text(line))
    for note in report.notes[:NOTES_UP_TO]:
        console.print(Text(f"Note: {note}", style="yellow"))
    if len(report.notes) > NOTES_UP_TO:
        console.print(Text(f"{len(report.notes) - NOTES_UP_TO} more notes are in report.json.", style="yellow"))


def rows_to_print(report: Report, *, every_layer: bool = False) -> list[LayerRow]:
    """Returns all layers of a network of up to 60 layers; of a larger one those that were tried."""
    if every_layer or len(report.layers) <= ALL_ROWS_UP_TO:
        return list(report.layers)
    return [row for row in report.layers if row.quantizable and row.outcome != NOT_TRIED]


def layer_table(report: Report, rows: Iterable[LayerRow]) -> Table:
    """Returns the table of layers: name, shape, similarity, drop and SQNR.

    The name ``prob_ip2`` is the output ``prob`` with ip2 and all layers before it in INT8.
    """
    similarity_title = "Similarity%" if report.metric in FRACTIONS else report.metric
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("LayerName", justify="right", overflow="fold", ratio=3)
    table.add_column("LayerShape", justify="right", overflow="fold", ratio=2)
    table.add_column(similarity_title, justify="right", no_wrap=True)
    table.add_column("Drop", justify="right", no_wrap=True)
    if report.metric != "sqnr":
        table.add_column("SQNR", justify="right", no_wrap=True)
    table.add_column("", overflow="fold", ratio=2)
    for row in rows:
        table.add_row(*_cells(report, row), style=_style(row))
    return table


def output_table(report: Report) -> Table:
    """Returns the metric and the SQNR of every final output, in full INT8 and in the recipe.

    With a task, it has the agreement, the cosine of the outputs beside it, and what the task counted.
    """
    of_task = report.metric == AGREEMENT.name
    metrics = (AGREEMENT.name, "cosine", "sqnr") if of_task else tuple(dict.fromkeys((report.metric, "sqnr")))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("Output", "Plan", *metrics, *(("counted",) if of_task else ())):
        table.add_column(title, overflow="fold")
    for plan, outputs in report.outputs.items():
        for name, values in outputs.items():
            is_task = AGREEMENT.name in values
            known = {AGREEMENT.name: values[AGREEMENT.name]} if is_task else values
            figures = [figure_text(metric, known.get(metric)) for metric in metrics]
            counted = [f"{key} {value:.6g}" for key, value in values.items() if is_task and key != AGREEMENT.name]
            table.add_row(Text(name), Text(plan), *map(Text, figures), *([Text(", ".join(counted))] if of_task else []))
    return table


def latency_lines(report: Report) -> list[str]:
    """Returns lines with the latency of each plan and of each layer left high; empty if no engine was timed."""
    timed = {plan: found for plan, found in (report.latency or {}).items() if found}
    if not timed:
        return []
    plans = (f"{plan} {found['mean_ms']:.3f} ms (p99 {found['p99_ms']:.3f})" for plan, found in timed.items())
    lines = [f"Latency, mean: {', '.join(plans)}"]
    for name in report.recipe["high"][:NOTES_UP_TO]:
        int8, high = (report.layer_milliseconds(plan, name) for plan in ("int8", "recipe"))
        if int8 is not None and high is not None:
            lines.append(f"'{name}' and what is fused with it: {int8:.4f} ms in INT8, {high:.4f} ms in the recipe")
    return lines


def _cells(report: Report, row: LayerRow) -> list[Text]:
    name = f"{row.output}_{row.name}" if row.output else row.name
    shape = "?" if row.shape is None else str([d if d is not None else "?" for d in row.shape]).replace("'", "")
    drop = "" if row.drop is None else drop_text(report.metric, row.drop)
    remark = "culprit" if row.culprit else "" if row.outcome in ("measured", FOLLOWS) else row.outcome
    if row.obeyed is False:
        remark = f"{remark} ran in {row.ran}".strip()
    cells = [name, shape, figure_text(report.metric, row.similarity), "" if row.outcome == FOLLOWS else drop]
    if report.metric != "sqnr":
        cells.append("" if row.sqnr is None else f"{row.sqnr:.1f} dB")
    return [Text(cell) for cell in (*cells, remark)]


def _style(row: LayerRow) -> str:
    if row.culprit:
        return "bold red"
    if row.outcome in (FOLLOWS, NOT_TRIED):
        return "dim"
    return "" if row.outcome == "measured" else "yellow"


def drop_text(metric: str, drop: float) -> str:
    """Returns a drop as text, in the units of the metric's loss."""
    return f"{100 * drop:.4f}%" if metric in FRACTIONS else f"{drop:.3g}"
