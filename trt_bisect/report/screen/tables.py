"""The tables of ``compare``, ``profile`` and ``sensitivity`` on the screen. Names are printed as they are."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trt_bisect.analyzer.advisor import LEAST_COSINE, LOW_SIMILARITY
from trt_bisect.analyzer.compared import ComparedTensor
from trt_bisect.report.comparison import INDEX, Comparison
from trt_bisect.report.losses import SensitiveOp, Sensitivity
from trt_bisect.report.profile import Profile, ProfiledTensor
from trt_bisect.report.screen.layout import fitted
from trt_bisect.support.figures import counted

ADVICE_UP_TO = 20


def print_comparison(
    found: Comparison, console: Console, *, sort: str = INDEX, top: int = 0, columns: Sequence[str] = ()
) -> None:
    """Prints tensors, weights, advice and notes; ``top`` rows of each table, all for 0.

    Args:
        found: the comparison.
        console: to print on; tables have the columns that fit.
        sort: the column to sort by.
        top: the number of rows of each table.
        columns: the columns of the CSV files, to show instead of the usual ones.

    Raises:
        BadInput: rows cannot be sorted by ``sort``, or there is no such column.
    """
    tensors = found.sorted_by(sort)
    both = f"'{found.other}' against '{found.model}'" if found.other else f"{found.low.upper()} against FP32"
    tensors_of = both if found.other else f"{found.low.upper()} ({found.arithmetic}) against FP32"
    console.print(Text(f"Tensors of {tensors_of}, {counted(found.samples, 'sample')}:"))
    console.print(_compared(_first(tensors, top), found, columns, console))
    _print_hidden(console, len(tensors), top)
    if found.weights:
        weights = found.sorted_by(sort, weights=True)
        console.print()
        console.print(Text(f"Weights, {both}:"))
        console.print(_compared(_first(weights, top), found, columns, console))
        _print_hidden(console, len(weights), top)
    console.print()
    if not found.advice:
        console.print(Text("No layer is abnormal.", style="bold green"))
    causes_first = sorted(found.advice, key=lambda advice: advice.reason == LOW_SIMILARITY)
    for advice in causes_first[:ADVICE_UP_TO]:
        place = ", ".join(f"'{name}'" for name in advice.layers) or "The network"
        console.print(Text(f"{place}: {advice.reason} ({advice.kind} '{advice.tensor}'): {advice.words}"))
    if len(found.advice) > ADVICE_UP_TO:
        more = len(found.advice) - ADVICE_UP_TO
        console.print(Text(f"{more} more findings; --output FOLDER writes all.", style="dim"))
    _print_notes(console, found.notes)


def print_profile(found: Profile, console: Console, *, top: int = 0, columns: Sequence[str] = ()) -> None:
    """Prints the tensors of the selected layers, and the notes; ``top`` rows, all for 0.

    Raises:
        BadInput: there is no such column as one of ``columns``.
    """
    if found.samples:
        console.print(Text(f"{counted(found.samples, 'sample')} of {found.source}:"))
    console.print(fitted(ProfiledTensor, found.tensors[:top] if top else found.tensors, console, only=columns))
    _print_hidden(console, len(found.tensors), top)
    _print_notes(console, found.notes)


def print_sensitivity(
    found: Sensitivity, console: Console, *, rows: Sequence[SensitiveOp], sort: str, top: int = 0
) -> None:
    """Prints rows, of which the column ``sort`` is among the last to be left out; ``top`` rows, all for 0."""
    shown = rows[:top] if top else rows
    console.print(fitted(SensitiveOp, shown, console, names=found.names, raised=(found.metric, sort)))
    full = "not measured" if found.full is None else f"{found.full:.6g}"
    loss = f"Loss of full {found.low.upper()}: {full} ({found.metric}, {found.arithmetic})."
    console.print(Text(f"\n{len(shown)} of {len(rows)} rows. {loss}"))


def _compared(rows: Sequence[ComparedTensor], found: Comparison, columns: Sequence[str], console: Console) -> Table:
    """The table of tensors or weights, those of a low cosine in red."""

    def style(row: ComparedTensor) -> str:
        return "bold red" if row.figures.cosine < LEAST_COSINE else ""

    return fitted(ComparedTensor, rows, console, names=found.names, only=columns, style=style)


def _first(rows: Sequence[ComparedTensor], top: int) -> Sequence[ComparedTensor]:
    return rows[:top] if top else rows


def _print_hidden(console: Console, count: int, top: int) -> None:
    if top and count > top:
        console.print(Text(f"{count - top} more rows; --top 0 prints all, --output FOLDER writes all.", style="dim"))


def _print_notes(console: Console, notes: Sequence[str]) -> None:
    for note in notes:
        console.print(Text(f"Note: {note}", style="yellow"))
