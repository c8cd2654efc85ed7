"""The advice on the screen: the causes, then for each culprit a paragraph and the remedies, measured ones first."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from trt_bisect.report.advice import CulpritAdvice, Remedy, Tried
from trt_bisect.report.explanation import EXPLANATION, Explanation
from trt_bisect.report.screen.causes import print_causes
from trt_bisect.report.tried_text import tried_text

CULPRITS_UP_TO = 5


def print_advice(explanation: Explanation, metric: str, console: Console) -> None:
    """Prints the advice in full: the causes, and for each culprit the evidence and the remedies.

    Names are printed as they are, never as markup.

    Args:
        explanation: the run's.
        metric: its name, for the figures of the remedies that were measured.
        console: to print on.
    """
    print_causes(explanation, metric, console)
    console.print()
    for advice in explanation.advice[:CULPRITS_UP_TO]:
        _print_culprit(advice, metric, console)
    more = len(explanation.advice) - CULPRITS_UP_TO
    if more > 0:
        console.print(Text(f"{more} more culprits are explained in {EXPLANATION}.", style="dim"))
    if explanation.advice:
        console.print(Text(f"{EXPLANATION} has the commands for every tool.", style="dim"))
    _print_network(explanation.tried, metric, console)


def _print_culprit(advice: CulpritAdvice, metric: str, console: Console) -> None:
    console.print(Text(advice.evidence))
    for number, remedy in enumerate(advice.remedies, start=1):
        console.print(Padding(_remedy_text(number, remedy, metric), (0, 0, 0, 2)))
        if number == 1 and remedy.commands:
            console.print(Text(f"     {remedy.commands[0].text}", style="dim"), soft_wrap=True)
    console.print()


def _remedy_text(number: int, remedy: Remedy, metric: str) -> Text:
    text = Text(f"{number}. ")
    text.append(remedy.remedy, style="bold")
    text.append(f" (cost in speed: {remedy.speed}). {remedy.why}")
    if remedy.tried is None:
        text.append(" Not measured.", style="dim")
    else:
        text.append(
            f" Measured: {tried_text(remedy.tried, metric)}.", style="green" if remedy.tried.meets else "yellow"
        )
    return text


def _print_network(tried: Sequence[Tried], metric: str, console: Console) -> None:
    """Prints the figures of remedies for the whole network."""
    whole = [each for each in tried if not each.culprits]
    if not whole:
        return
    console.print(Text("Measured on all inputs, for the whole network:", style="bold"))
    for each in whole:
        console.print(Text(f"  {tried_text(each, metric)}.", style="green" if each.meets else ""))
