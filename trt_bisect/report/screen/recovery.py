"""The result of ``recover`` on the screen."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trt_bisect.report.recovery import NAMED, Recovery
from trt_bisect.report.screen.run import verdict_lines
from trt_bisect.support.figures import percent

_ROWS = 40


def print_recovery(found: Recovery, console: Console) -> None:
    """Prints a recovery: other scales, layers left high, front, summary and notes. Names are never read as markup."""
    if found.moves:
        console.print(_moves(found))
        console.print()
    if found.high:
        console.print(_left_high(found))
        console.print()
    console.print(_front(found))
    console.print()
    console.print(verdict_lines(found.lines, found.verdict))
    for note in found.notes:
        console.print(Text(f"Note: {note.text}", style="yellow"))


def _moves(found: Recovery) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("Tensor with another scale", overflow="fold")
    table.add_column("by")
    for title in ("scale before", "scale"):
        table.add_column(title, justify="right")
    if len(found.moves) > NAMED:
        table.caption = f"and {len(found.moves) - NAMED} more"
    for move in found.moves[:NAMED]:
        table.add_row(Text(move.tensor), move.calibrator, f"{move.scale_before:.4g}", f"{move.scale:.4g}")
    return table


def _left_high(found: Recovery) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("In high precision", overflow="fold")
    table.add_column("op")
    table.add_column("in")
    table.add_column("cost", justify="right")
    table.add_column(f"if put back in {found.low.upper()}", justify="right")
    for row in found.high[:_ROWS]:
        back = "" if row.back is None else found.text(row.back)
        table.add_row(Text(row.layer), Text(row.op_type), row.precision, percent(row.cost), back)
    return table


def _front(found: Recovery) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("cost", found.figure, "layers high"):
        table.add_column(title, justify="right")
    table.add_column("")
    for point in found.front:
        value = "" if point.figure is None else found.text(point.figure)
        table.add_row(percent(point.cost), value, str(len(point.high)), ", ".join(point.names))
    return table
