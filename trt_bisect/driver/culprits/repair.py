"""Repair: from the findings to a measured plan that meets the threshold."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trt_bisect.driver.culprits.search import Findings, Loss, Question, Search
from trt_bisect.precision import PrecisionPlan


@dataclass(frozen=True)
class Recipe:
    """The plan that a search returns.

    Attributes:
        plan: the plan; it was measured.
        loss: its loss.
        kept: the layers left high, ascending: culprits, layers that could not be built, and ``added``.
        added: layers with the largest steps that are no culprits, left high because the culprits were not enough.
        meets: true if the loss is within the budget.
    """

    plan: PrecisionPlan
    loss: Loss
    kept: tuple[int, ...]
    added: tuple[int, ...]
    meets: bool


def repair(question: Question, findings: Findings) -> Search[Recipe]:
    """Leaves the culprits high, and if that is not enough as few as possible of the layers with the largest steps.

    The steps were measured one after another: with other layers high they may be larger. So the last layer that was
    needed is moved to the front, and the ranking before it is cut again, as long as that saves layers.
    """
    kept = findings.culprits
    loss = yield question.all_but(kept)
    if findings.set_aside and not question.meets(loss):
        kept = tuple(sorted({*findings.culprits, *findings.set_aside}))
        loss = yield question.all_but(kept)
    ranked = _largest_steps_first(question, findings, kept)
    tried: dict[int, Loss] = {0: loss}
    count = yield from _fewest(question, kept, ranked, tried)
    if not question.meets(tried[count]):
        best = min(tried, key=lambda added: (_or_infinite(tried[added]), added))
        return _recipe(question, kept, ranked[:best], tried[best])
    needed: tuple[int, ...] = ()
    while count > 1:
        last, before = ranked[count - 1], ranked[: count - 1]
        again: dict[int, Loss] = {len(before): tried[count]}
        fewer = yield from _fewest(question, (*kept, *needed, last), before, again)
        if fewer == len(before):
            break
        needed, ranked, tried, count = (*needed, last), before, again, fewer
    return _recipe(question, kept, (*needed, *ranked[:count]), tried[count])


def _fewest(question: Question, kept: tuple[int, ...], ranked: tuple[int, ...], tried: dict[int, Loss]) -> Search[int]:
    """Returns the number of first layers of a ranking that are enough beside those kept; all if no number is.

    It doubles the number until that is enough, and then bisects.

    Args:
        question: the losses that are tolerated.
        kept: layers that are high in any case.
        ranked: the other layers.
        tried: the known losses by that number; new ones are added.
    """
    count, too_few = 0, -1
    while True:
        if count not in tried:
            tried[count] = yield question.all_but((*kept, *ranked[:count]))
        if question.meets(tried[count]) or count == len(ranked):
            break
        count, too_few = min(max(1, 2 * count), len(ranked)), count
    if not question.meets(tried[count]):
        return count
    while count - too_few > 1:
        middle = (count + too_few) // 2
        tried[middle] = yield question.all_but((*kept, *ranked[:middle]))
        count, too_few = (middle, too_few) if question.meets(tried[middle]) else (count, middle)
    return count


def _recipe(question: Question, kept: tuple[int, ...], more: tuple[int, ...], loss: Loss) -> Recipe:
    out = tuple(sorted({*kept, *more}))
    return Recipe(question.all_but(out), loss, out, tuple(sorted(more)), question.meets(loss))


def _largest_steps_first(question: Question, findings: Findings, kept: tuple[int, ...]) -> tuple[int, ...]:
    """The layers that are not kept, those with the largest step first; the layers of one step share its loss."""
    cost = dict.fromkeys(question.quantizable, 0.0)
    for step in findings.steps:
        for layer in step.layers:
            cost[layer] = _or_infinite(None if math.isnan(step.drop) else step.drop) / len(step.layers)
    return tuple(sorted((k for k in question.quantizable if k not in kept), key=lambda k: (-cost[k], k)))


def _or_infinite(loss: Loss) -> float:
    return math.inf if loss is None else loss
