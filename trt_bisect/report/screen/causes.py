"""The causes on the screen: for each group of culprits what was measured, then the advice that was not measured."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

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
        meeting = [each for each in cause.measured if each.meets]
        for each in meeting[:MEETING_UP_TO]:
            console.print(Padding(Text(f"{tried_text(each, metric)} (measured)", style="green"), (0, 0, 0, 2)))
        missing = [each for each in cause.measured if not each.meets][:MISSING_UP_TO]
        if missing:
            figures = "; ".join(f"{each.what} {figure_text(metric, each.similarity)}" for each in missing)
            console.print(Padding(Text(f"Measured, misses the threshold: {figures}", style="yellow"), (0, 0, 0, 2)))
        if cause.remedies:
            names = ", ".join(remedy.remedy for remedy in cause.remedies)
            console.print(Padding(Text(f"Not measured: {names}", style="dim"), (0, 0, 0, 2)))


def _who(cause: Cause, total: int) -> str:
    if total == 1:
        return f"'{cause.culprits[0]}'"
    return f"{len(cause.culprits)} of {total} culprits"
