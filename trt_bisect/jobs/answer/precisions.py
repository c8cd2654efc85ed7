"""Units of a recipe in a precision between INT8 and the highest."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from trt_bisect.driver.recipes.cheapest import cheapest, orders
from trt_bisect.driver.recipes.search_space import Kept, Space
from trt_bisect.driver.suspects.search import drive
from trt_bisect.jobs.answer.plans import AnswerPlans
from trt_bisect.jobs.answer.search import Costs, costs_of
from trt_bisect.jobs.answer.target import Target
from trt_bisect.jobs.answer.validation import Checked
from trt_bisect.jobs.experiment import Experiment
from trt_bisect.precision import Precision

_ROUNDS = 3
_LEAST = 1e-9


def in_fp16(
    plans: AnswerPlans, target: Target, space: Space, kept: Kept, experiment: Experiment, costs: Costs
) -> tuple[Space, Checked | None]:
    """Puts as many units of a recipe into FP16 as are good enough there.

    Args:
        plans: measures plans on the inputs given.
        target: judges plans.
        space: the units to choose from, with FP32 as the high precision.
        kept: the units of the recipe, which meets the budget with all of them in FP32.
        experiment: the experiment with the ranges.
        costs: the costs of the layers.

    Returns:
        ``space`` with these units in FP16, and the check of the recipe; ``space`` itself and None if all need FP32.
    """
    units, chosen = tuple(sorted(kept)), tuple(space.units[unit] for unit in sorted(kept))
    highest, lower = (costs_of(chosen, costs, precision) for precision in (Precision.FP32, Precision.FP16))
    saved = tuple(max(most - less, _LEAST) for most, less in zip(highest, lower, strict=True))
    middle = Space(space.plan(kept), chosen, saved, space.budget, Precision.FP16, Precision.FP32)
    for _ in range(_ROUNDS):
        found = drive(cheapest(middle, orders(middle), 0), partial(target.losses, ranges=experiment.ranges))
        lowered = {place for place in range(len(units)) if place not in found.kept} if found.meets else set()
        if not lowered:
            break
        by_unit = dict(enumerate(space.costs)) | {units[place]: lower[place] for place in lowered}
        others = {units[place]: Precision.FP16 for place in lowered}
        changed = replace(space, costs=tuple(by_unit[unit] for unit in sorted(by_unit)), others=others)
        checked = target.check(experiment, changed.plan(kept))
        if checked.meets(space.budget):
            return changed, checked
        new = [place for place in checked.missed if place not in plans.judged]
        if not new:
            break
        plans.judged += new
    return space, None
