"""The culprits grouped by their cause, each group with its figures and its remedies: first what was measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from trt_bisect.analyzer import advisor
from trt_bisect.analyzer.blame import Evidence
from trt_bisect.analyzer.compared import Compared
from trt_bisect.analyzer.origins import WEIGHT
from trt_bisect.report.advice import CulpritAdvice, Remedy, Tried
from trt_bisect.support.figures import number, percent

SPREAD_OUT = "no abnormal tensor"
"""The cause of culprits whose tensors are all normal: many small roundings add up."""


@dataclass(frozen=True)
class Group:
    """The culprits of one cause.

    Attributes:
        cause: the most important reason of each of them, or ``SPREAD_OUT``.
        culprits: their names, in the report's order.
        words: the figures of the cause, a clause.
    """

    cause: str
    culprits: tuple[str, ...]
    words: str


@dataclass(frozen=True)
class Cause(Group):
    """The culprits of one cause, and what to do about it.

    Attributes:
        measured: the remedies that were measured: those that meet the threshold first, the cheapest of them first.
        remedies: those that were not measured.
    """

    measured: tuple[Tried, ...] = ()
    remedies: tuple[Remedy, ...] = ()


def grouped(
    evidence: Sequence[Evidence], rounded: Mapping[str, Sequence[Compared]], calibrator: str, low: str = "INT8"
) -> list[Group]:
    """Returns the culprits grouped by cause, the largest group first.

    Args:
        evidence: the evidence on each culprit.
        rounded: by culprit, the tensors and weights that it rounds.
        calibrator: the calibrator of the ranges.
        low: the name of the low precision in texts.
    """
    by_cause: dict[str, list[str]] = {}
    for each in evidence:
        by_cause.setdefault(each.reasons[0] if each.reasons else SPREAD_OUT, []).append(each.layer.name)
    ranked = sorted(by_cause.items(), key=lambda item: -len(item[1]))
    return [
        Group(cause, tuple(names), _words(cause, [one for name in names for one in rounded[name]], calibrator, low))
        for cause, names in ranked
    ]


def cause_with_remedies(group: Group, advice: Iterable[CulpritAdvice], tried: Iterable[Tried]) -> Cause:
    """Returns a group with its remedies.

    Args:
        group: the culprits.
        advice: the advice on every culprit.
        tried: the remedies that were measured, for any of them or for the whole network.
    """
    own = [each for each in tried if set(each.culprits) <= set(group.culprits)]
    measured = sorted(own, key=lambda each: (not each.meets, each.cost if each.meets else 0.0, _loss(each)))
    known = {each.remedy for each in measured}
    unmeasured: dict[str, Remedy] = {}
    for each in advice:
        if each.culprit in group.culprits:
            for remedy in each.remedies:
                if remedy.tried is None and remedy.remedy not in known:
                    unmeasured.setdefault(remedy.remedy, remedy)
    return Cause(group.cause, group.culprits, group.words, tuple(measured), tuple(unmeasured.values()))


def _loss(tried: Tried) -> float:
    return math.inf if tried.loss is None else tried.loss


def _words(cause: str, rounded: Sequence[Compared], calibrator: str, low: str) -> str:
    """The figures of a cause over the tensors that its culprits round."""
    if cause == advisor.SATURATION:
        found = [(one.rounding.clipped, one) for one in rounded if one.rounding and one.rounding.clipped > 0.0]
        return f"{calibrator} clips {_from_to(found, _percent)} of the {_sides(found)}" if found else cause
    if cause == advisor.STARVED:
        near = [(one.rounding.near_zero, one) for one in rounded if one.rounding and one.rounding.near_zero >= 0.5]
        if near:
            return f"the range is too wide: {_from_to(near, _percent)} of the {_sides(near)} falls into few levels"
    if cause == advisor.ONE_CHANNEL:
        loud = [
            (each.times, one) for one in rounded for each in (one.loud, one.loud_input) if each and each.times >= 20
        ]
        if loud:
            return f"one channel of the {_sides(loud)} reaches {_from_to(loud, number)} times the others"
    return {
        advisor.OVERFLOW: f"values are too large for {low} and become infinite",
        advisor.UNDERFLOW: f"values are too small for {low} and become zero",
        advisor.NOT_FINITE: f"{low} makes values that are not finite",
        advisor.NOT_NORMALISED: "the input is not scaled like the data that the network was trained on",
        advisor.RESULT_QUANTIZED: "an output of the network is rounded",
        SPREAD_OUT: "ordinary values, whose roundings cost this much",
    }.get(cause, cause)


def _sides(found: Sequence[tuple[float, Compared]]) -> str:
    sides = {"weight" if one.origin.kind == WEIGHT else "activation" for _, one in found}
    return " and ".join(sorted(sides))


def _from_to(found: Sequence[tuple[float, Compared]], text: Callable[[float], str]) -> str:
    """The least and the largest of the figures."""
    least, largest = (text(pick(value for value, _ in found)) for pick in (min, max))
    return least if least == largest else f"{least.removesuffix(' %')} to {largest}"


def _percent(share: float) -> str:
    return f"{percent(share)} %"
