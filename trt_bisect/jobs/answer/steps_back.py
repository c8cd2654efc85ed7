"""The last steps to a recipe, on whole engines: more layers are kept high, and layers are taken back."""

from __future__ import annotations

import math
from dataclasses import replace

from trt_bisect.driver.recipes.cheapest import Cheapest
from trt_bisect.driver.recipes.search_space import Space
from trt_bisect.driver.suspects.search import Loss
from trt_bisect.jobs.answer.plans import AnswerPlans
from trt_bisect.jobs.answer.target import Target
from trt_bisect.jobs.answer.validation import Checked
from trt_bisect.jobs.experiment import Experiment
from trt_bisect.precision import PrecisionPlan


def with_more_high(
    target: Target, space: Space, found: Cheapest, experiment: Experiment, dearest: float = math.inf
) -> tuple[Cheapest, Checked]:
    """Keeps more units high until the recipe holds in all settings: the cheapest first, twice as many each time.

    It is for a recipe that holds in the search and misses in another setting, where the search cannot tell why: a
    figure that jumps, such as the number of detections, says nothing before it jumps.

    Args:
        target: judges plans.
        space: the units to choose from.
        found: the set; it misses in some setting.
        experiment: the experiment with its ranges.
        dearest: the largest cost.

    Returns:
        The larger set and its check; it misses too if a larger one would cost more than ``dearest``.
    """
    others = sorted(space.all - found.kept, key=lambda unit: (space.costs[unit], unit))
    count = 1
    while True:
        kept = found.kept.union(others[:count])
        checked = target.check(experiment, space.plan(kept))
        if checked.meets(target.budget) or kept == space.all or space.cost(kept) > dearest:
            return replace(found, kept=kept, equals=()), checked
        count *= 2


def minimal(
    plans: AnswerPlans, target: Target, space: Space, found: Cheapest, experiment: Experiment, checked: Checked
) -> tuple[Cheapest, Checked, dict[int, Loss]]:
    """Takes back each unit of a set, the dearest first; a unit that is not needed goes to the low precision.

    This is repeated until every unit is needed beside the others.

    Args:
        plans: measures plans on the inputs given.
        target: judges plans.
        space: the units to choose from.
        found: the set.
        experiment: the experiment with its ranges.
        checked: the check of the set.

    Returns:
        The set, its check, and by unit the loss without it; None if that plan cannot be run.
    """
    kept, before, taken_back = found.kept, None, dict[int, Loss]()
    while kept != before:
        before, taken_back = kept, {}
        for unit in sorted(before, key=lambda unit: -space.costs[unit]):
            plan = space.plan(kept - {unit})
            (loss,) = target.losses([plan], experiment.ranges, to_the_end=True)
            if loss is not None and loss <= space.budget:
                other = target.check(experiment, plan)
                if other.meets(space.budget):
                    kept, checked = kept - {unit}, other
                    continue
                taken_back[unit] = max(other.losses.values())
            else:
                taken_back[unit] = _shown(plans, plan, experiment, loss)
    return replace(found, kept=kept, meets=checked.meets(space.budget)), checked, taken_back


def _shown(plans: AnswerPlans, plan: PrecisionPlan, experiment: Experiment, loss: Loss) -> Loss:
    """Returns the loss of a plan as it was measured, without the margin that it is judged with."""
    if loss is None or not plans.margin.share:
        return loss
    return plans.each(experiment.ranges).without_margin(plan)
