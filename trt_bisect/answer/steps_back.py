"""The last steps to a recipe: other sets are checked, more layers are kept high, and layers are taken back."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from trt_bisect.answer.plans import AnswerPlans
from trt_bisect.answer.validation import Checked, Target
from trt_bisect.driver.cheapest import Cheapest, cheaper_few, lowered
from trt_bisect.driver.search import Loss, drive
from trt_bisect.driver.search_space import Kept, MeasuredSets, Sensitivities, Space
from trt_bisect.precision import PrecisionPlan
from trt_bisect.preparation.experiment import Experiment
from trt_bisect.report.answer import NUDGED, OWN

_GROUPS = 64
"""A larger set of many units is first taken back in groups: so many, each of which may stay high as a whole."""
_STEPS = 256
"""So many times one of many units is taken back alone."""
_ENGINE = 8
"""Such a step counts as so many more if the plan's own engine is built."""
_ALL = 1
"""A step back may take a plan on all inputs."""
_EACH, _CHECK = 2, 4
"""The inferences that a step back takes as a rule, and the plans on all inputs that a check takes: so many have to be
left for a unit to go."""
_OTHERS = 4
"""Of the sets that cost little more, so many are checked: a check takes a small part of the time of a search."""


def another_that_holds(
    target: Target, space: Space, high_set: Cheapest, experiment: Experiment, aim: float, dearest: float = math.inf
) -> tuple[Cheapest, Checked] | None:
    """Checks a few other sets that the search measured; returns the first one that holds in all settings.

    Args:
        high_set: the set; it misses in some setting. The others cost little more.
        aim: the cheapest set that lost no more than this comes first, then the others by their losses.

    Returns:
        The set and its check; None if none holds.
    """
    allowed = [kept for kept in high_set.near if space.cost(kept) <= dearest]
    for kept in sorted(allowed, key=lambda kept: (max(high_set.near[kept], aim), space.price(kept)))[:_OTHERS]:
        checked = target.check(experiment, space.plan(kept))
        if checked.meets(target.budget):
            return replace(high_set, kept=kept, equals=(), near={}), checked
    return None


def one_or_two(
    target: Target, space: Space, high_set: Cheapest, experiment: Experiment, alone: Sensitivities | None
) -> tuple[Cheapest, Checked] | None:
    """Returns the cheapest single unit or pair that holds in all settings and costs less than a set that holds.

    None without one.
    """
    if len(high_set.kept) < 2 and space.cost(high_set.kept) <= min(space.costs):
        return None
    for kept in drive(cheaper_few(space, high_set.kept, alone), partial(target.losses, ranges=experiment.ranges)):
        checked = target.check(experiment, space.plan(kept))
        if checked.meets(target.budget):
            return replace(high_set, kept=kept, equals=(), near={}), checked
    return None


def with_more_high(
    target: Target, space: Space, high_set: Cheapest, experiment: Experiment, dearest: float = math.inf
) -> tuple[Cheapest, Checked]:
    """Keeps more units high until the recipe holds in all settings: the cheapest first, twice as many each time.

    It is for a recipe that holds in the search and misses in another setting, where the search cannot tell why: a
    figure that jumps, such as the number of detections, says nothing before it jumps.

    Returns:
        The larger set and its check; it misses too if a larger one would cost more than ``dearest``.
    """
    others = sorted(space.all - high_set.kept, key=lambda unit: (space.costs[unit], unit))
    count = 1
    while True:
        kept = high_set.kept.union(others[:count])
        checked = target.check(experiment, space.plan(kept))
        if checked.meets(target.budget) or kept == space.all or space.cost(kept) > dearest:
            return replace(high_set, kept=kept, equals=()), checked
        count *= 2


def minimal(
    plans: AnswerPlans,
    target: Target,
    space: Space,
    high_set: Cheapest,
    experiment: Experiment,
    checked: Checked,
    cheaper: Callable[[Kept, Checked], None] = lambda *_: None,
) -> tuple[Cheapest, Checked, dict[int, Loss]]:
    """Takes back each unit of a set, the dearest first; a unit that is not needed goes to the low precision.

    It stays if the plan costs more without it, where a price is no sum over units. This is repeated until every unit is
    needed beside the others. With many units, a large set is taken back in groups first, and the number of steps is
    limited; so is the number of inferences of most runs. As soon as those left only suffice to take back each unit once
    more, the set stays as it is; a unit that stays alone is still taken back, as full INT8 is known. ``cheaper`` is
    called with each smaller set and its check.

    Returns:
        The set with ``unmoved`` and ``faster``, its check, and by unit the loss without it; None if that plan cannot be
        run. With many units some have none: they stay high, and no step back that was left showed that they must.
    """
    kept, steps = high_set.kept, float(_STEPS) if space.has_many else math.inf
    if space.has_many and len(kept) > _GROUPS:
        kept, checked = _without_groups(target, space, kept, experiment)
    order = sorted(kept, key=lambda unit: -space.costs[unit])
    waiting, taken_back, in_check, unmoved = deque(order), dict[int, Loss](), set[int](), dict[int, float]()
    faster = set[int]()
    while waiting and steps > 0 and (len(kept) == 1 or plans.affords(given=_ALL)):
        unit, steps = waiting.popleft(), steps - 1
        plan = space.plan(kept - {unit})
        (loss,) = target.losses([plan], experiment.ranges)
        if loss is None or loss > space.budget:
            taken_back[unit] = loss
            continue
        may_go = steps >= len(kept) + _ENGINE and plans.affords(_EACH * len(kept), given=_CHECK)
        again = target.check(experiment, plan, own_engine=may_go)
        if not again.meets(space.budget):
            taken_back[unit] = max(again.losses.values())
            in_check.add(unit)
            if [*again.losses][-1] == NUDGED and len(again.losses) > 1:
                unmoved[unit] = max(loss for setting, loss in again.losses.items() if setting != NUDGED)
        elif space.cost(kept - {unit}) > space.cost(kept):
            taken_back[unit] = max(again.losses.values())
            in_check.add(unit)
            faster.add(unit)
        elif may_go:
            kept, checked = kept - {unit}, again
            cheaper(kept, checked)
            waiting.extend(taken_back)
            taken_back, in_check, unmoved, faster = {}, set(), {}, set()
        steps -= _ENGINE * (OWN in again.losses)
    in_search = [unit for unit in taken_back if unit not in in_check]
    candidates = [space.plan(kept - {unit}) for unit in in_search]
    losses = target.losses(candidates, experiment.ranges, to_the_end=plans.affords(judged=len(candidates)))
    for unit, plan, loss in zip(in_search, candidates, losses, strict=True):
        taken_back[unit] = _shown(plans, plan, experiment, loss)
    measured = {unit: taken_back[unit] for unit in order if unit in taken_back}
    met, few = checked.meets(space.budget), frozenset(faster)
    return replace(high_set, kept=kept, meets=met, unmoved=unmoved, faster=few), checked, measured


def with_faster(
    target: Target, space: Space, high_set: Cheapest, experiment: Experiment, checked: Checked
) -> tuple[Cheapest, Checked]:
    """Keeps more units high where that makes the plan cheaper: neighbours that share changes of type.

    With the sum of prices there is no such unit. ``high_set`` holds, as ``checked`` says.

    Returns:
        The larger set and its check; the set itself if the larger one misses in some setting.
    """
    kept, before = high_set.kept, None
    while space.price_of is not None and kept != before:
        before = kept
        for unit in sorted(space.all - kept, key=lambda unit: (space.costs[unit], unit)):
            if space.cost(kept | {unit}) < space.cost(kept):
                kept |= {unit}
    if kept == high_set.kept:
        return high_set, checked
    again = target.check(experiment, space.plan(kept))
    return (replace(high_set, kept=kept, equals=()), again) if again.meets(space.budget) else (high_set, checked)


def free_units(space: Space) -> Kept:
    """Returns units that are high in a plan that costs nothing, the cheapest first: none with the sum of prices."""
    kept = frozenset[int]()
    for unit in sorted(space.all, key=lambda unit: (space.costs[unit], unit)) if space.price_of is not None else ():
        if space.cost(kept | {unit}) <= 0.0:
            kept |= {unit}
    return kept


def _without_groups(target: Target, space: Space, kept: Kept, experiment: Experiment) -> tuple[Kept, Checked]:
    """Returns a set that holds without groups of its units, those first that joined it last; and its check.

    This gives one set after another, each a part of the one before. Engines are built for the last one, and if that
    misses, for the one before it, then two before that, and so on.
    """

    def measure(batch: Sequence[PrecisionPlan]) -> list[Loss]:
        return [target.check(experiment, plan, own_engine=False).worst for plan in batch]

    measured, order = MeasuredSets(space), sorted(kept, key=lambda unit: (space.costs[unit], -unit))
    drive(lowered(measured, kept, order, smallest=math.ceil(len(kept) / _GROUPS)), measure)
    sets, last = [kept, *filter(measured.meets, measured.losses)], 1
    while True:
        kept = sets[max(len(sets) - last, 0)]
        checked = target.check(experiment, space.plan(kept))
        if checked.meets(space.budget) or kept == sets[0]:
            return kept, checked
        last *= 2


def _shown(plans: AnswerPlans, plan: PrecisionPlan, experiment: Experiment, loss: Loss) -> Loss:
    """Returns the loss of a plan as it was measured, without the margin that it is judged with."""
    if loss is None or not plans.margin.share:
        return loss
    return plans.each(experiment.ranges).without_margin(plan)
