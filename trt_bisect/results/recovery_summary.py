"""The verdict of `recover` in sentences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from trt_bisect.results.recovery import Recovery
from trt_bisect.results.summary import listed, over_inputs

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
