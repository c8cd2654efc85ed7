"""The worst inputs on the screen: the distribution over the data set, the worst inputs and the verdict."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trt_bisect.report.figure_text import figure_text
from trt_bisect.report.screen.layout import fitted
from trt_bisect.report.screen.run import NOTES_UP_TO
from trt_bisect.report.worst import JudgedSample, WorstReport, description

_BAR = 40


def print_worst(report: WorstReport, console: Console) -> None:
    """Prints the data, the distribution with its histogram, the worst inputs and the verdict."""
    for title, text in description(report).items():
        console.print(Text(f"{title + ':':8}{text}"))
    console.print()
    console.print(spread_table(report))
    console.print()
    for line in histogram_lines(report):
        console.print(Text(line))
    console.print()
    worst = [report.samples[place] for place in report.places]
    console.print(fitted(JudgedSample, worst, console, names=report.names, only=("rank", "sample", "value")))
    console.print()
    console.print(Text(report.verdict, style="bold green" if report.distribution.bad == 0 else "bold yellow"))
    for note in remarks(report)[:NOTES_UP_TO]:
        console.print(Text(f"Note: {note}", style="yellow"))


def spread_table(report: WorstReport) -> Table:
    """Returns the best value, the median, the percentiles and the worst value."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for title in report.quantiles:
        table.add_column(title, justify="right", no_wrap=True)
    table.add_row(Text(report.metric), *map(Text, report.quantiles.values()))
    return table


def histogram_lines(report: WorstReport) -> list[str]:
    """Returns one line for each bar; a bar that is not empty has at least one block."""
    bins = report.distribution.bins
    most = max((bar.count for bar in bins), default=0)
    edges = [[figure_text(report.metric, edge) for edge in (bar.low, bar.high)] for bar in bins]
    width = max((len(edge) for pair in edges for edge in pair), default=0)
    lines = []
    for bar, (low, high) in zip(bins, edges, strict=True):
        blocks = max(round(_BAR * bar.count / most), int(bar.count > 0))
        lines.append(f"{low:>{width}} to {high:>{width}}  {'█' * blocks:<{_BAR}} {bar.count}".rstrip())
    if report.distribution.not_finite:
        lines.append(f"{'not finite':>{2 * width + 4}}  {report.distribution.not_finite}")
    return lines


def remarks(report: WorstReport) -> list[str]:
    """Returns the notes beside the verdict, a sentence each."""
    notes = []
    if report.stopped:
        notes.append(f"the search was stopped: only the first {len(report.values)} samples were seen")
    if report.faint:
        notes.append(
            f"{len(report.faint)} of {len(report.values)} samples were left out, the first is number "
            f"{report.faint[0]}: FP32's output on them is almost zero, so that float noise decides"
        )
    return [*notes, *report.notes]
