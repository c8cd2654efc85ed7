"""The check of a recipe: on all inputs, on its own engine, and in settings that a user takes for the same."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trt_bisect.analyzer.judge import Rule
from trt_bisect.driver.recipes.search_space import are_many
from trt_bisect.evaluator.trial import Trial
from trt_bisect.jobs.answer.plans import AnswerPlans
from trt_bisect.jobs.experiment import Experiment
from trt_bisect.precision import PrecisionPlan
from trt_bisect.report.model import NUDGED, OFF, OWN


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

    def then(self, setting: str, loss: float, missed: Iterable[int], with_margin: float) -> Checked:
        """Returns the check with one more setting."""
        return Checked({**self.losses, setting: loss}, tuple(missed), max(self.with_margin, with_margin))


def check(plans: AnswerPlans, experiment: Experiment, plan: PrecisionPlan, *, own_engine: bool = True) -> Checked:
    """Measures a plan on all inputs: with optimisations off, on its own engine, and with scales moved a little.

    The engine of a network with many layers takes far longer to build than the other settings take: it comes last.

    Args:
        plans: measures plans on the inputs given.
        experiment: the experiment with the ranges.
        plan: the plan to check.
        own_engine: false leaves out the plan's own engine where one session runs all plans.
    """
    checked = _optimisations_off(plans, experiment, plan) if plans.switches else Checked({})
    settings = [_own_engine] if own_engine or not plans.switches else []
    settings += [_nudged] if plans.switches and experiment.ranges.scales else []
    if are_many(len(experiment.network.movable)):
        settings.reverse()
    for setting in settings:
        if checked.losses and not checked.meets(experiment.rule.budget):
            break
        checked = setting(plans, experiment, plan, checked)
    return checked


def _optimisations_off(plans: AnswerPlans, experiment: Experiment, plan: PrecisionPlan) -> Checked:
    (with_margin,) = map(_or_infinite, plans.losses([plan], experiment.ranges, plans.inputs.counting))
    each = plans.each(experiment.ranges)
    return Checked({OFF: each.without_margin(plan)}, tuple(plans.exceeding(each.by_place(plan))), with_margin)


def _own_engine(plans: AnswerPlans, experiment: Experiment, plan: PrecisionPlan, before: Checked) -> Checked:
    trial = plans.whole(plan, experiment, plans.inputs.given, "all inputs")
    by_place = losses_by_place(experiment.rule, trial, plans.inputs.counting)
    loss = _or_infinite(experiment.rule.loss(trial))
    return before.then(OWN, loss, plans.exceeding(by_place), _with_margin(plans, by_place))


def _nudged(plans: AnswerPlans, experiment: Experiment, plan: PrecisionPlan, before: Checked) -> Checked:
    loss, by_place = plans.nudged(plan, experiment.ranges)
    return before.then(NUDGED, loss, plans.exceeding(by_place), _with_margin(plans, by_place))


def _with_margin(plans: AnswerPlans, losses: Mapping[int, float]) -> float:
    """Returns the loss that a margin makes of those of the inputs; 0 without a margin, where inputs do not decide."""
    return plans.margin.loss(losses.values()) if plans.margin.share else 0.0


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
