"""The verdict of ``recover`` in sentences."""

from __future__ import annotations

from trt_bisect.report.recovery import Recovery
from trt_bisect.report.summary import doubt_lines, holds_on, over_inputs, with_ranges
from trt_bisect.support.figures import listed
from trt_bisect.support.notes import Line

NAMED = 12
"""The most layers or tensors that are named."""


def recovery_lines(found: Recovery) -> list[Line]:
    """Returns the verdict on a recovery in lines: doubts; all layers low, the recipe, its cost, where it holds."""
    answer = found.answer
    ranges = with_ranges(answer) if answer else ""
    parts = [f"Full {found.low.upper()}{ranges} measures {_measured(found, 'int8')} ({found.figure}).", _recipe(found)]
    parts += [*_target(found), *(holds_on(answer, found.text, "The recipe") if answer else ())]
    doubted = doubt_lines(answer) if answer else []
    return [*doubted, Line(found.verdict, f"{found.verdict.upper()}: {' '.join(parts)}")]


def _figure(found: Recovery, value: float | None) -> str:
    return "no figure" if value is None else found.text(value)


def _measured(found: Recovery, plan: str) -> str:
    return _figure(found, getattr(found.measured, plan)) + over_inputs(getattr(found.by_input, plan), found.text)


def _recipe(found: Recovery) -> str:
    """Returns the sentence on the recipe's changes, its figure and its cost."""
    scales = listed([move.tensor for move in found.moves], NAMED) if found.moves else ""
    changed = f"other scales for {scales} (at no cost in speed) and " if scales else ""
    left = (
        f"{listed([row.layer for row in found.high], NAMED)} left high"
        if found.high
        else f"all layers in {found.low.upper()}"
    )
    return (
        f"With {changed}{left}, the network measures {_measured(found, 'recipe')} and gives up "
        f"{found.cost:.2%} of {found.low.upper()}'s gain in speed by {_costs(found)}."
    )


def _target(found: Recovery) -> list[str]:
    """Returns the sentences on the target."""
    least = _figure(found, found.target.least)
    if found.target.most is not None:
        return [
            f"No plan that was tried within {found.target.most:.2%} is more accurate.",
            f"The target is {least}: {'met' if found.meets else 'missed'}.",
        ]
    if not found.meets:
        high = found.measured.high
        all_high = "" if high is None else f"; all layers high measure {_figure(found, high)}"
        return [f"That misses the target of {least}{all_high}."]
    margin = found.answer.margin if found.answer else 0.0
    met = [f"That meets the target of {least}{f' with a margin of {margin:.0%}' if margin else ''}."]
    if found.high and found.minimal:
        back = f"Each of them alone back in {found.low.upper()} was measured, and misses it"
        met.append(f"{back}{' or its margin' if margin else ''}.")
    return met


def _costs(found: Recovery) -> str:
    return {"macs": "multiply-adds", "measured": "the times measured"}.get(found.costs, f"'{found.costs}'")
