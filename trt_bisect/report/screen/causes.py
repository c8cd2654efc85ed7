"""The causes on the screen: for each group of culprits what was measured, then the advice that was not measured."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from trt_bisect.results.advice import Tried
from trt_bisect.results.causes import Cause
from trt_bisect.results.explanation import Explanation
from trt_bisect.results.figure_text import figure_text
from trt_bisect.results.tried_text import tried_text

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
        _print_measured(cause.measured, metric, console)
        if cause.remedies:
            names = ", ".join(remedy.remedy for remedy in cause.remedies)
            console.print(Padding(Text(f"Not measured: {names}", style="dim"), (0, 0, 0, 2)))


def print_causes_in_short(explanation: Explanation, metric: str, console: Console) -> None:
    """Prints the causes, a line each, and once the best of the remedies that were measured.

    The arguments are those of ``print_causes``.
    """
    total = sum(len(cause.culprits) for cause in explanation.causes)
    for cause in explanation.causes[:MEETING_UP_TO]:
        console.print(Text(f"{_who(cause, total)}: {cause.words}."))
    measured = {each.what: each for cause in explanation.causes for each in cause.measured if each.meets}
    best = sorted(measured.values(), key=lambda each: 0.0 if each.cost is None else each.cost)[:1]
    _print_measured(best, metric, console)


def _print_measured(measured: Sequence[Tried], metric: str, console: Console) -> None:
    meeting = [each for each in measured if each.meets]
    for each in meeting[:MEETING_UP_TO]:
        console.print(Padding(Text(f"{tried_text(each, metric)} (measured)", style="green"), (0, 0, 0, 2)))
    missing = [each for each in measured if not each.meets][:MISSING_UP_TO]
    if missing:
        figures = "; ".join(f"{each.what} {figure_text(metric, each.similarity)}" for each in missing)
        console.print(Padding(Text(f"Measured, misses the threshold: {figures}", style="yellow"), (0, 0, 0, 2)))


def _who(cause: Cause, total: int) -> str:
    if total == 1:
        return f"'{cause.culprits[0]}'"
    return f"{len(cause.culprits)} of {total} culprits"
