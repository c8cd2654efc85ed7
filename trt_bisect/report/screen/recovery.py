"""What ``recover`` found, in words and on the screen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trt_bisect.results.recovery import Recovery
from trt_bisect.results.summary import listed, over_inputs

_ROWS = 40
_NAMED = 12


def recovery_summary(found: Recovery, text: Callable[[float], str]) -> Recovery:
    """``found`` with a paragraph on it.

    Args:
        text: of the similarity's figures.
    """
    say = figure_text(found) if found.figure == "accuracy" else text

    def figure(value: float | None) -> str:
        return "no figure" if value is None else say(value)

    def measured(plan: str) -> str:
        return figure(found.measured[plan]) + over_inputs(found.by_input.get(plan), say)

    parts = [f"Full INT8 measures {measured('int8')} ({found.figure})."]
    with_moves, left = "", "All layers in INT8"
    if found.moves:
        with_moves = (
            f"With other scales for {listed([move.tensor for move in found.moves], _NAMED)}, at no cost in speed, "
        )
        left = "all layers in INT8"
    if found.high:
        left = f"{listed([row.layer for row in found.high], _NAMED)} left high"
        left = left if with_moves else f"With {left}"
    gives_up = f"gives up {found.cost:.2%} of INT8's gain in speed by {_costs(found)}"
    parts.append(f"{with_moves}{left} the network measures {measured('recipe')} and {gives_up}.")
    least = figure(found.target["least"])
    if "most" in found.target:
        parts.append(f"No plan that was tried within {found.target['most']:.2%} is more accurate.")
        parts.append(f"The target is {least}: {'met' if found.meets else 'missed'}.")
    elif not found.meets:
        high = found.measured["high"]
        all_high = "" if high is None else f"; all layers high measure {figure(high)}"
        parts.append(f"That misses the target of {least}{all_high}.")
    else:
        parts.append(f"That meets the target of {least}.")
        if found.high and found.minimal:
            parts.append("Each of them alone back in INT8 was measured, and misses it.")
    return replace(found, summary=" ".join(parts))


def _costs(found: Recovery) -> str:
    return {"macs": "multiply-adds", "measured": "the times measured"}.get(found.costs, f"'{found.costs}'")


def figure_text(found: Recovery) -> Callable[[float], str]:
    """How a figure is written: accuracies and cosines in per cent."""
    return (lambda value: f"{value:.4%}") if found.figure in ("accuracy", "cosine", "top1") else (lambda v: f"{v:.6g}")


def print_recovery(found: Recovery, console: Console) -> None:
    """The layers left high, the front, the summary and the notes. Names are printed as they are, never as markup."""
    text = figure_text(found)
    if found.moves:
        console.print(_moves(found))
        console.print()
    if found.high:
        console.print(_left_high(found, text))
        console.print()
    console.print(_front(found, text))
    console.print()
    console.print(Text(found.summary, style="bold green" if found.meets else "bold red"))
    for note in found.notes:
        console.print(Text(f"Note: {note}", style="yellow"))


def _moves(found: Recovery) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("Tensor with another scale", overflow="fold")
    table.add_column("by")
    for title in ("scale before", "scale"):
        table.add_column(title, justify="right")
    if len(found.moves) > _NAMED:
        table.caption = f"and {len(found.moves) - _NAMED} more"
    for move in found.moves[:_NAMED]:
        table.add_row(Text(move.tensor), move.calibrator, f"{move.scale_before:.4g}", f"{move.scale:.4g}")
    return table


def _left_high(found: Recovery, text: Callable[[float], str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("Left high", overflow="fold")
    table.add_column("op")
    table.add_column("in")
    table.add_column("cost", justify="right")
    table.add_column(f"{found.figure} with it in INT8", justify="right")
    for row in found.high[:_ROWS]:
        back = "" if row.back is None else text(row.back)
        table.add_row(Text(row.layer), Text(row.op_type), row.precision, f"{row.cost:.2%}", back)
    return table


def _front(found: Recovery, text: Callable[[float], str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("cost", found.figure, "layers high"):
        table.add_column(title, justify="right")
    table.add_column("")
    for point in found.front:
        value = "" if point.figure is None else text(point.figure)
        table.add_row(f"{point.cost:.2%}", value, str(len(point.high)), ", ".join(point.names))
    return table
