"""The advice on the screen: the causes with what was measured against each; in full, each culprit and its remedies."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rich.console import Console, Group
from rich.padding import Padding
from rich.text import Text

from trt_bisect.report.explanation import EXPLANATION, Cause, CulpritAdvice, Explanation, Remedy, Tried
from trt_bisect.report.figure_text import figure_text
from trt_bisect.support.figures import counted, percent

CULPRITS_UP_TO = 5
_CAUSES_UP_TO = _MEETING_UP_TO = _MISSING_UP_TO = 3


def print_advice(explanation: Explanation, metric: str, console: Console) -> None:
    """Prints the advice in full: the causes, and for each culprit the evidence and the remedies.

    Names are printed as they are, never as markup.

    Args:
        explanation: the run's.
        metric: its name, for the figures of the remedies that were measured.
        console: to print on.
    """
    for cause in explanation.causes:
        console.print(Text(_title(cause, explanation), style="bold"))
        for line in _measured(cause.measured, metric):
            console.print(line)
        if cause.remedies:
            names = ", ".join(remedy.remedy for remedy in cause.remedies)
            console.print(_indented(Text(f"Not measured: {names}", style="dim")))
    console.print()
    for advice in explanation.advice[:CULPRITS_UP_TO]:
        _print_culprit(advice, metric, console)
    more = len(explanation.advice) - CULPRITS_UP_TO
    if more > 0:
        console.print(Text(f"{more} more culprits are in {EXPLANATION}.", style="dim"))
    if explanation.advice:
        console.print(Text(f"{EXPLANATION} has the commands for every tool.", style="dim"))
    whole = [each for each in explanation.tried if not each.culprits]
    if whole:
        console.print(Text("Measured on all inputs, for the whole network:", style="bold"))
    for each in whole:
        console.print(Text(f"  {_sentence(each, metric)}.", style="green" if each.meets else ""))


def causes_in_short(explanation: Explanation, metric: str) -> Group | None:
    """Returns the causes, a line each, and the cheapest remedy measured to be cheaper than the recipe; or None.

    The arguments are those of ``print_advice``.
    """
    if not explanation.causes:
        return None
    causes = [Text(_title(cause, explanation)) for cause in explanation.causes[:_CAUSES_UP_TO]]
    recipe = next((each.cost for each in explanation.tried if each.own and each.meets), math.inf)
    cheaper = [each for each in explanation.tried if each.meets and each.cost < recipe]
    return Group(*causes, *_measured(sorted(cheaper, key=lambda each: each.cost)[:1], metric))


def _title(cause: Cause, explanation: Explanation) -> str:
    total = sum(len(each.culprits) for each in explanation.causes)
    who = f"'{cause.culprits[0]}'" if total == 1 else f"{len(cause.culprits)} of {total} culprits"
    return f"{who}: {cause.words}."


def _measured(measured: Sequence[Tried], metric: str) -> Iterator[Padding]:
    """Yields lines on remedies that were measured: those that meet the threshold, then those that miss it."""
    for each in [each for each in measured if each.meets][:_MEETING_UP_TO]:
        yield _indented(Text(f"{_sentence(each, metric)} (measured)", style="green"))
    missing = [each for each in measured if not each.meets][:_MISSING_UP_TO]
    if missing:
        figures = "; ".join(f"{each.title} {figure_text(metric, each.similarity)}" for each in missing)
        yield _indented(Text(f"Measured, misses the threshold: {figures}", style="yellow"))


def _print_culprit(advice: CulpritAdvice, metric: str, console: Console) -> None:
    console.print(Text(advice.evidence))
    for number, remedy in enumerate(advice.remedies, start=1):
        console.print(_indented(_remedy_text(number, remedy, metric)))
        if number == 1 and remedy.commands:
            console.print(Text(f"     {remedy.commands[0].text}", style="dim"), soft_wrap=True)
    console.print()


def _remedy_text(number: int, remedy: Remedy, metric: str) -> Text:
    text = Text.assemble(f"{number}. ", (remedy.remedy, "bold"), f" (cost in speed: {remedy.speed}). {remedy.why}")
    if remedy.tried is None:
        return text.append(" Not measured.", style="dim")
    return text.append(
        f" Measured: {_sentence(remedy.tried, metric)}.", style="green" if remedy.tried.meets else "yellow"
    )


def _sentence(tried: Tried, metric: str) -> str:
    """Returns the measured result of a remedy in words, without a full stop."""
    if tried.similarity is None:
        return f"{tried.title}: no figure (not finite or not measured)"
    meets = "meets the threshold" if tried.meets else "misses the threshold"
    high = (
        f" with {counted(tried.high, 'layer')} in high precision ({percent(tried.cost)} of INT8's gain in speed)"
        if tried.high
        else ""
    )
    return f"{tried.title} gives {figure_text(metric, tried.similarity)}{high}, which {meets}"


def _indented(text: Text) -> Padding:
    return Padding(text, (0, 0, 0, 2))
