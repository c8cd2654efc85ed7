"""The causes on the screen: for each group of culprits what was measured, then the advice that was not measured."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rich.console import Console, Group
from rich.padding import Padding
from rich.text import Text

from trt_bisect.report.advice import OWN_RECIPE, Tried
from trt_bisect.report.causes import Cause
from trt_bisect.report.explanation import Explanation
from trt_bisect.report.figure_text import figure_text
from trt_bisect.report.tried_text import tried_text

MEETING_UP_TO = 3
MISSING_UP_TO = 3


def print_causes(explanation: Explanation, metric: str, console: Console) -> None:
    """Prints the culprits grouped by cause. Names are printed as they are, never as markup.

    Args:
        explanation: the run's.
        metric: its name, for the figures of the remedies that were measured.
        console: to print on.
    """
    total = sum(len(cause.culprits) for cause in explanation.causes)
    for cause in explanation.causes:
        console.print(Text(f"{_who(cause, total)}: {cause.words}.", style="bold"))
        for line in _measured(cause.measured, metric):
            console.print(line)
        if cause.remedies:
            names = ", ".join(remedy.remedy for remedy in cause.remedies)
            console.print(_indented(f"Not measured: {names}", "dim"))


def causes_in_short(explanation: Explanation, metric: str) -> Group | None:
    """Returns the causes, a line each, and the cheapest remedy measured to be cheaper than the recipe; or None.

    The arguments are those of ``print_causes``.
    """
    total = sum(len(cause.culprits) for cause in explanation.causes)
    if not total:
        return None
    causes = [Text(f"{_who(cause, total)}: {cause.words}.") for cause in explanation.causes[:MEETING_UP_TO]]
    recipe = next((each.cost for each in explanation.tried if each.what == OWN_RECIPE and each.meets), math.inf)
    cheaper = [each for each in explanation.tried if each.meets and each.cost < recipe]
    return Group(*causes, *_measured(sorted(cheaper, key=lambda each: each.cost)[:1], metric))


def _measured(measured: Sequence[Tried], metric: str) -> Iterator[Padding]:
    """Yields lines on remedies that were measured: those that meet the threshold, then those that miss it."""
    for each in [each for each in measured if each.meets][:MEETING_UP_TO]:
        yield _indented(f"{tried_text(each, metric)} (measured)", "green")
    missing = [each for each in measured if not each.meets][:MISSING_UP_TO]
    if missing:
        figures = "; ".join(f"{each.what} {figure_text(metric, each.similarity)}" for each in missing)
        yield _indented(f"Measured, misses the threshold: {figures}", "yellow")


def _indented(text: str, style: str) -> Padding:
    return Padding(Text(text, style=style), (0, 0, 0, 2))


def _who(cause: Cause, total: int) -> str:
    if total == 1:
        return f"'{cause.culprits[0]}'"
    return f"{len(cause.culprits)} of {total} culprits"
