"""The last steps to a recipe: other sets are checked, more layers are kept high, and layers are put back."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from trt_bisect.answer.validation import Recipe, Target
from trt_bisect.driver.cheapest import lowered
from trt_bisect.driver.search import Loss, drive
from trt_bisect.driver.search_space import MeasuredSets
from trt_bisect.precision import PrecisionPlan
from trt_bisect.report.answer import OFF, OWN

_GROUPS = 64
"""The number of groups in which a larger set of many units is first put back; a group may stay high as a whole."""
_STEPS = 256
"""In networks with many units: the most times that a unit is put back alone."""
_ENGINE = 8
"""A put-back that builds an engine counts as this many extra trials."""


def with_more_high(
    target: Target, recipe: Recipe, limit: float = math.inf, alone: Mapping[int, float] = MappingProxyType({})
) -> Recipe:
    """Keeps more units high until the recipe holds in all settings: the cheapest first, twice as many each time.

    Units whose losses alone are known come first, by loss for their cost; all but one are tried before all. It is for a
    recipe that misses only in another setting, where the search cannot tell why: a figure that jumps, such as the
    number of detections, says nothing before it jumps.

    Returns:
        The larger recipe; it misses too if a larger one would cost more than ``limit``.
    """
    space = recipe.space
    helps = {unit: alone.get(unit, 0.0) / space.costs[unit] for unit in space.all - recipe.kept}
    others = sorted(helps, key=lambda unit: (-helps[unit], space.costs[unit], unit))
    count = 1
    while True:
        larger = replace(recipe, kept=recipe.kept.union(others[:count]), equals=()).checked_by(target)
        if larger.holds or larger.kept == space.all or larger.cost > limit:
            return larger
        is_last = count < len(others) - 1 <= 2 * count
        count = len(others) - 1 if is_last else 2 * count


def minimal(
    target: Target, recipe: Recipe, cheaper: Callable[[Recipe], None] = lambda _: None, *, switches: bool
) -> Recipe:
    """Puts back each unit of a recipe, the most expensive first; a unit that is not needed goes to the low precision.

    A unit also stays if the plan costs more without it. This is repeated until every unit is needed. With many units, a
    large set is put back in groups first, and the steps are limited: when those left only suffice to put back each unit
    once more, the set stays. ``cheaper`` is called with each smaller recipe.

    Returns:
        The recipe with ``put_back`` and ``faster``; the remaining steps are run on all inputs given as far as the
        inferences left suffice. With many units some may be untested.
    """
    space, ranges = recipe.space, recipe.experiment.ranges
    steps = float(_STEPS) if space.has_many else math.inf
    if space.has_many and len(recipe.kept) > _GROUPS:
        recipe = _without_groups(target, recipe)
    kept = recipe.kept
    order = sorted(kept, key=lambda unit: -space.costs[unit])
    waiting, missed_in, faster = deque(order), dict[int, str](), set[int]()
    while waiting and steps > 0:
        unit, steps = waiting.popleft(), steps - 1
        plan = space.plan(kept - {unit})
        (loss,) = target.losses([plan], ranges)
        if loss is None or loss > space.budget:
            missed_in[unit] = OFF if switches else OWN
            continue
        may_go = steps >= len(kept) + _ENGINE
        again = target.check(recipe.experiment, plan, own_engine=may_go)
        if not again.meets(space.budget):
            missed_in[unit] = [*again.losses][-1]
        elif space.cost(kept - {unit}) > space.cost(kept):
            missed_in[unit] = next(iter(again.losses))
            faster.add(unit)
        elif may_go:
            kept = kept - {unit}
            recipe = replace(recipe, kept=kept, checked=again, equals=())
            cheaper(recipe)
            waiting.extend(missed_in)
            missed_in, faster = {}, set()
        steps -= _ENGINE * (OWN in again.losses)
    put_back = {
        unit: target.put_back(space.plan(kept - {unit}), recipe.experiment, missed_in[unit])
        for unit in order
        if unit in missed_in
    }
    return replace(recipe, meets=recipe.holds, put_back=put_back, faster=frozenset(faster))


def with_faster(target: Target, recipe: Recipe) -> Recipe:
    """Keeps more units high where that makes the plan cheaper: neighbours that share changes of type.

    Returns:
        The larger recipe; the recipe itself, which holds, if the larger one misses in some setting, or the price is a
        sum.
    """
    space, kept, before = recipe.space, recipe.kept, None
    while space.price_of is not None and kept != before:
        before = kept
        for unit in sorted(space.all - kept, key=lambda unit: (space.costs[unit], unit)):
            if space.cost(kept | {unit}) < space.cost(kept):
                kept |= {unit}
    if kept == recipe.kept:
        return recipe
    larger = replace(recipe, kept=kept, equals=()).checked_by(target)
    return larger if larger.holds else recipe


def _without_groups(target: Target, recipe: Recipe) -> Recipe:
    """Returns a recipe that holds without groups of its units, the last joined first.

    Each set is a part of the one before. Engines are built for the last set, and if that misses, for the one before it,
    then two before that, and so on.
    """

    def measure(batch: Sequence[PrecisionPlan]) -> list[Loss]:
        return [target.check(recipe.experiment, plan, own_engine=False).worst for plan in batch]

    space, kept = recipe.space, recipe.kept
    measured, order = MeasuredSets(space), sorted(kept, key=lambda unit: (space.costs[unit], -unit))
    drive(lowered(measured, kept, order, smallest=math.ceil(len(kept) / _GROUPS)), measure)
    sets, last = [kept, *filter(measured.meets, measured.losses)], 1
    while True:
        smaller = replace(recipe, kept=sets[max(len(sets) - last, 0)]).checked_by(target)
        if smaller.holds or smaller.kept == recipe.kept:
            return smaller
        last *= 2
