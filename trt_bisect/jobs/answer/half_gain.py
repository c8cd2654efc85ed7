"""A plan that keeps half of the low precision's gain in speed, for a network whose recipe does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from trt_bisect.driver.recipes.search_space import Kept, Sensitivities, Space
from trt_bisect.driver.suspects.search import Loss
from trt_bisect.evaluator.trial import Trial
from trt_bisect.jobs.answer.plans import AnswerPlans
from trt_bisect.jobs.experiment import Experiment
from trt_bisect.report.summary import TOO_DEAR


@dataclass(frozen=True)
class HalfGain:
    """A plan that gives up at most half of the gain.

    Attributes:
        kept: the units that stay high.
        trial: the plan on all inputs, on a whole engine.
    """

    kept: Kept
    trial: Trial


def half_gain(
    plans: AnswerPlans,
    space: Space,
    taken_back: Mapping[int, Loss],
    sensitivities: Callable[[], Sensitivities | None],
    experiment: Experiment,
) -> HalfGain | None:
    """Returns the best plan among a few that keep high the units with the most effect for their cost.

    Args:
        plans: measures plans on the inputs given.
        space: the units to choose from.
        taken_back: by unit of the recipe, the loss with that unit low.
        sensitivities: returns the loss and the gain of each unit; None where they are not measured.
        experiment: the experiment with the ranges of the recipe.

    Returns:
        None if the recipe itself keeps half of the gain, if no unit can be paid for beside the layers that the user
        fixed, or if an engine would have to be built for each plan.
    """
    if not plans.switches or space.cost(taken_back) <= TOO_DEAR:
        return None
    rankings = [{unit: loss for unit, loss in taken_back.items() if loss is not None}]
    alone = sensitivities()
    if alone is not None:
        rankings += [dict(enumerate(alone.gains)), dict(enumerate(alone.losses))]
    sets = list(dict.fromkeys(kept for ranking in rankings if (kept := _payable(space, ranking))))
    losses = plans.to_the_end([space.plan(kept) for kept in sets], experiment.ranges, plans.judged)
    measured = [(loss, kept) for loss, kept in zip(losses, sets, strict=True) if loss is not None]
    if not measured:
        return None
    _, best = min(measured, key=lambda one: one[0])
    return HalfGain(best, plans.whole(space.plan(best), experiment, plans.inputs.given, "all inputs"))


def _payable(space: Space, ranking: Mapping[int, float]) -> Kept:
    """The units with the largest figures for their cost, as many as half of the gain pays for."""
    kept: Kept = frozenset()
    for unit in sorted(ranking, key=lambda unit: (-ranking[unit] / space.costs[unit], unit)):
        if space.cost(kept | {unit}) <= TOO_DEAR:
            kept |= {unit}
    return kept
