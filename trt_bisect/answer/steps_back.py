"""The last steps to a recipe: other sets are checked, more layers are kept high, and layers are taken back."""

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
"""A larger set of many units is first taken back in groups: so many, each of which may stay high as a whole."""
_STEPS = 256
"""So many times one of many units is taken back alone."""
_ENGINE = 8
"""Such a step counts as so many more if the plan's own engine is built."""


def with_more_high(
    target: Target, recipe: Recipe, dearest: float = math.inf, alone: Mapping[int, float] = MappingProxyType({})
) -> Recipe:
    """Keeps more units high until the recipe holds in all settings: the cheapest first, twice as many each time.

    Units whose losses alone in the low precision are known come first, those that lose most for their cost. All but one
    are tried before all of them.

    It is for a recipe that holds in the search and misses in another setting, where the search cannot tell why: a
    figure that jumps, such as the number of detections, says nothing before it jumps.

    Returns:
        The larger recipe; it misses too if a larger one would cost more than ``dearest``.
    """
    space = recipe.space
    helps = {unit: alone.get(unit, 0.0) / space.costs[unit] for unit in space.all - recipe.kept}
    others = sorted(helps, key=lambda unit: (-helps[unit], space.costs[unit], unit))
    count = 1
    while True:
        larger = replace(recipe, kept=recipe.kept.union(others[:count]), equals=()).checked_by(target)
        if larger.holds or larger.kept == space.all or larger.cost > dearest:
            return larger
        is_last = count < len(others) - 1 <= 2 * count
        count = len(others) - 1 if is_last else 2 * count


def minimal(
    target: Target, recipe: Recipe, cheaper: Callable[[Recipe], None] = lambda _: None, *, switches: bool
) -> Recipe:
    """Takes back each unit of a recipe, the dearest first; a unit that is not needed goes to the low precision.

    It stays if the plan costs more without it, where a price is no sum over units. This is repeated until every unit is
    needed beside the others. With many units, a large set is taken back in groups first, and the number of steps is
    limited: as soon as those left only suffice to take back each unit once more, the set stays as it is. ``cheaper`` is
    called with each smaller recipe.

    Returns:
        The recipe with ``taken_back`` and ``faster``. With many units some were not taken back: they stay high, and no
        step back that was left showed that they must. The steps back that remain are run on all inputs given, as far as
        the inferences left suffice.
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
    taken_back = {
        unit: target.put_back(space.plan(kept - {unit}), recipe.experiment, missed_in[unit])
        for unit in order
        if unit in missed_in
    }
    return replace(recipe, meets=recipe.holds, taken_back=taken_back, faster=frozenset(faster))


def with_faster(target: Target, recipe: Recipe) -> Recipe:
    """Keeps more units high where that makes the plan cheaper: neighbours that share changes of type.

    With the sum of prices there is no such unit.

    Returns:
        The larger recipe; the recipe itself, which holds, if the larger one misses in some setting.
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
    """Returns a recipe that holds without groups of its units, those first that joined it last.

    This gives one set after another, each a part of the one before. Engines are built for the last one, and if that
    misses, for the one before it, then two before that, and so on.
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
