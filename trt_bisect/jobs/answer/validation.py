"""The check of a recipe: on all inputs, on its own engine, and in settings that a user takes for the same."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from trt_bisect.analyzer.judge import Rule
from trt_bisect.evaluator.trial import Trial
from trt_bisect.jobs.answer.plans import AnswerPlans
from trt_bisect.jobs.experiment import Experiment
from trt_bisect.precision import PrecisionPlan
from trt_bisect.results.answer import NUDGED, OFF, OWN


@dataclass(frozen=True)
class Checked:
    """A plan on all inputs.

    Attributes:
        losses: the largest loss by setting; infinite if the plan cannot be run. After a setting in which it misses, no
            other is measured.
        missed: the places of inputs on which it misses or uses the margin, the worst first.
        with_margin: the largest loss of all settings as it is judged with a margin, see ``Margin.loss``.
    """

    losses: Mapping[str, float]
    missed: tuple[int, ...] = ()
    with_margin: float = 0.0

    @property
    def worst(self) -> float:
        """The largest loss of all settings, or as it is judged with a margin."""
        return max(*self.losses.values(), self.with_margin)

    def meets(self, budget: float) -> bool:
        """Returns true if the plan meets a budget in all settings."""
        return self.worst <= budget


def check(plans: AnswerPlans, experiment: Experiment, plan: PrecisionPlan) -> Checked:
    """Measures a plan on all inputs: with optimisations off, on its own engine, and with scales moved a little.

    Args:
        plans: measures plans on the inputs given.
        experiment: the experiment with the ranges.
        plan: the plan to check.
    """
    rule, losses, with_margin = experiment.rule, dict[str, float](), 0.0
    if plans.switches:
        (with_margin,) = map(_or_infinite, plans.losses([plan], experiment.ranges, plans.inputs.counting))
        by_place = plans.each(experiment.ranges).by_place(plan)
        losses[OFF] = plans.each(experiment.ranges).without_margin(plan)
        if with_margin > rule.budget:
            return Checked(losses, tuple(plans.exceeding(by_place)), with_margin)
    trial = plans.whole(plan, experiment, plans.inputs.given, "all inputs")
    by_place = losses_by_place(rule, trial, plans.inputs.counting)
    losses[OWN] = _or_infinite(rule.loss(trial))
    if plans.margin.share:
        with_margin = max(with_margin, plans.margin.loss(by_place.values()))
    if max(losses[OWN], with_margin) <= rule.budget and plans.switches and experiment.ranges.scales:
        losses[NUDGED], by_place = plans.nudged(plan, experiment.ranges)
        with_margin = max(with_margin, plans.margin.loss(by_place.values()))
    return Checked(losses, tuple(plans.exceeding(by_place)), with_margin)


def losses_by_place(rule: Rule, trial: Trial, counting: tuple[int, ...]) -> dict[int, float]:
    """Returns the loss of a trial on each input that counts, by its place; empty if the trial failed.

    With a task, an input on which there is nothing to compare does not count.
    """
    if trial.failed:
        return {}
    found = rule.by_input(trial)
    if found is None:
        return {place: _or_infinite(rule.loss(trial)) for place in counting}
    return {
        place: math.inf if math.isnan(value) else rule.metric.loss(value)
        for place, value in enumerate(found.values)
        if place in counting and value is not None
    }


def _or_infinite(loss: float | None) -> float:
    return math.inf if loss is None else loss
