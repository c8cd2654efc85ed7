"""The target that judges plans in the search, and the check of a recipe on all inputs in all settings."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from trt_bisect.analyzer.judge import Rule
from trt_bisect.answer.plans import AnswerPlans
from trt_bisect.builder.base import Builder
from trt_bisect.builder.engines import ONNXRUNTIME, open_builder
from trt_bisect.calibration.ranges import Ranges
from trt_bisect.driver.search import Loss
from trt_bisect.driver.search_space import Kept, Space
from trt_bisect.evaluator.trial import Trial
from trt_bisect.model.network import followed_tensors
from trt_bisect.options.concerns import MeasuringOptions
from trt_bisect.precision import PrecisionPlan
from trt_bisect.preparation.experiment import Experiment
from trt_bisect.report.answer import FUSED, NUDGED, OWN


@dataclass(frozen=True)
class Checked:
    """The result of checking a plan on all inputs.

    Attributes:
        losses: by setting, the largest loss, infinite if the plan cannot run; no settings after the first miss.
        missed: indices of inputs on which the plan misses, the worst first.
    """

    losses: Mapping[str, float]
    missed: tuple[int, ...] = ()

    @property
    def worst(self) -> float:
        """The largest loss in any setting."""
        return max(self.losses.values())

    def meets(self, budget: float) -> bool:
        """Returns true if the plan's loss is at most ``budget`` in all settings."""
        return self.worst <= budget

    def then(self, setting: str, loss: float, plans: AnswerPlans, by_place: Mapping[int, float]) -> Checked:
        """Returns this check with one more setting.

        Args:
            loss: largest loss in this setting.
            by_place: loss in this setting on each input, by index.
        """
        return Checked({**self.losses, setting: loss}, tuple(plans.exceeding(by_place)))


NOT_CHECKED = Checked({OWN: math.inf})


@dataclass(frozen=True)
class PutBack:
    """The measurement of a recipe with one of its units in low precision.

    Attributes:
        loss: largest loss on the inputs that were run; None if the plan cannot run.
        setting: setting of the loss: usually the plan's own scales, another one if the plan misses only there.
        inputs: the number of inputs that were run (the loss on all is at least as large); None if an accuracy decides.
    """

    loss: Loss
    setting: str
    inputs: int | None


@dataclass(frozen=True)
class Recipe:
    """A set of units in high precision, and its check on all inputs in all settings that decide.

    Attributes:
        aim: largest loss that the search accepted: the threshold's, or less to leave ``reserve``.
        checked: the check; before it is made, the recipe does not pass.
        meets: the search found a set that meets ``aim``; else ``kept`` is the set with the smallest loss.
        equals: other sets that cost the same and pass.
        put_back: by unit of ``kept``, the measurement with this unit in low precision.
        faster: units of ``kept`` that only make the plan faster: without them it meets the threshold, but costs
            more.
        reserve: share of the allowed loss that the recipe must leave unused on the given inputs (``--margin``).
        cheapest: cheapest recipe, if this recipe costs slightly more to be likelier to pass on other inputs; else
            None.
    """

    space: Space
    kept: Kept
    experiment: Experiment
    aim: float
    checked: Checked = NOT_CHECKED
    meets: bool = True
    equals: tuple[Kept, ...] = ()
    put_back: Mapping[int, PutBack] = field(default_factory=dict)
    faster: Kept = frozenset()
    reserve: float = 0.0
    cheapest: Recipe | None = None

    @property
    def plan(self) -> PrecisionPlan:
        """The plan with the recipe's units in high precision."""
        return self.space.plan(self.kept)

    @property
    def cost(self) -> float:
        """The recipe's cost."""
        return self.space.cost(self.kept)

    @property
    def high(self) -> tuple[int, ...]:
        """The indices of the layers in high precision, ascending."""
        return tuple(sorted(self.space.layers(self.kept)))

    @property
    def holds(self) -> bool:
        """True if the check was made, and the recipe meets the threshold in all settings."""
        return self.checked.meets(self.space.budget)

    def checked_by(self, target: Target) -> Recipe:
        """Returns the recipe with the check that ``target`` makes."""
        return replace(self, checked=target.check(self.experiment, self.plan))


def deciding_settings(plans: AnswerPlans, experiment: Experiment) -> tuple[str, ...]:
    """Returns the names of the settings in which a passing plan is measured. In the emulation these are its own scales,
    moved scales, and its file in ONNX Runtime with optimisations; on an engine only its own scales.
    """
    if not plans.switches:
        return (OWN,)
    return (OWN, NUDGED, FUSED) if experiment.ranges.scales else (OWN, FUSED)


def check(plans: AnswerPlans, experiment: Experiment, plan: PrecisionPlan, *, jointly: bool = True) -> Checked:
    """Measures a plan on all inputs in the settings that decide, up to the first in which it misses.

    Args:
        jointly: run all inputs once more, for figures over all inputs together (such as the variation of the outputs)
            and for the setting of ONNX Runtime's optimisations.
    """
    checked, rule, ranges, counting = Checked({}), experiment.rule, experiment.ranges, plans.inputs.counting
    if plans.switches:
        (loss,) = plans.losses([plan], ranges, counting)
        checked = checked.then(OWN, _or_infinite(loss), plans, plans.each(ranges).by_place(plan))
        if checked.meets(rule.budget) and ranges.scales:
            moved, by_place = plans.nudged(plan, ranges)
            checked = checked.then(NUDGED, moved, plans, by_place)
        if not checked.meets(rule.budget) or not jointly:
            return checked
    trial = plans.whole(plan, experiment)
    checked = checked.then(OWN, _or_infinite(rule.loss(trial)), plans, losses_by_place(rule, trial, counting))
    if checked.meets(rule.budget) and plans.switches:
        # Sums in another order, and fewer roundings in FP16, move values of later tensors to other INT8 levels.
        trial = plans.as_file(plan, experiment)
        if trial.failed:  # ONNX Runtime refuses some files
            return checked
        checked = checked.then(FUSED, _or_infinite(rule.loss(trial)), plans, losses_by_place(rule, trial, counting))
    return checked


def losses_by_place(rule: Rule, trial: Trial, counting: Collection[int]) -> dict[int, float]:
    """Returns a trial's loss on each input of ``counting``, by index; empty if the trial failed.

    The loss is infinite if the figure is not finite. Inputs on which a task finds nothing to compare are left out.
    """
    if trial.failed:
        return {}
    by_input = rule.by_input(trial)
    if by_input is None:
        return {input_index: _or_infinite(rule.loss(trial)) for input_index in counting}
    return {
        input_index: math.inf if value is None else rule.metric.loss(value)
        for input_index, value in enumerate(by_input.values)
        if input_index in counting and input_index not in by_input.faint
    }


def _or_infinite(loss: float | None) -> float:
    return math.inf if loss is None else loss


class Target(Protocol):
    """The goal of a search: measures and judges plans by similarity, or by the user's accuracy.

    Attributes:
        budget: largest loss that still meets the goal.
    """

    budget: float

    def losses(self, plans: Sequence[PrecisionPlan], ranges: Ranges, *, to_the_end: bool = False) -> list[Loss]:
        """Returns the loss of each plan, None for a plan that cannot run. ``to_the_end``: run all inputs, also after a
        miss.
        """

    def check(self, experiment: Experiment, plan: PrecisionPlan, *, jointly: bool = True) -> Checked:
        """Checks a plan on all inputs in all settings; if ``jointly`` is false, figures over all inputs together may be
        left out.
        """

    def put_back(
        self, plan: PrecisionPlan, experiment: Experiment, setting: str = OWN, *, to_the_end: bool = True
    ) -> PutBack:
        """Measures ``plan``, a recipe with one unit back in low precision, in a setting. ``to_the_end``: run all
        inputs, also after a miss; else take what was run before.
        """

    def known(self, experiment: Experiment, plan: PrecisionPlan) -> Checked | None:
        """Returns a plan's check in the settings that were measured before on all inputs; None without any."""

    def worse(self, plan: PrecisionPlan, ranges: Ranges) -> tuple[int, ...]:
        """Returns the indices of inputs outside the search on which a plan loses more than inside it, worst first."""

    def figure(self, plan: PrecisionPlan, loss: Loss, ranges: Ranges, /) -> float | None:
        """Returns the similarity or accuracy of a plan whose measured loss is ``loss``; None if the plan cannot run."""


class SimilarityTarget:
    """The similarity of the outputs on the worst of all inputs, as the goal of a search."""

    def __init__(self, plans: AnswerPlans) -> None:
        self.budget = plans.experiment.rule.budget
        self._plans = plans

    def losses(self, plans: Sequence[PrecisionPlan], ranges: Ranges, *, to_the_end: bool = False) -> list[Loss]:
        """Returns each plan's loss on the inputs of the search, None for a plan that cannot run. ``to_the_end``: run
        all inputs of the search, also after a miss.
        """
        return self._plans.losses(plans, ranges, to_the_end=to_the_end)

    def check(self, experiment: Experiment, plan: PrecisionPlan, *, jointly: bool = True) -> Checked:
        """Measures a plan on all inputs in all settings. ``jointly``: also judge figures over all inputs together."""
        return check(self._plans, experiment, plan, jointly=jointly)

    def put_back(
        self, plan: PrecisionPlan, experiment: Experiment, setting: str = OWN, *, to_the_end: bool = True
    ) -> PutBack:
        """Measures ``plan``, a recipe with one unit back in low precision, in a setting. ``to_the_end``: run all
        inputs, also after a miss; else, in the setting ``OWN``, take what was run before.
        """
        plans, ranges, counting = self._plans, experiment.ranges, self._plans.inputs.counting
        if setting == NUDGED:
            loss, _ = plans.nudged(plan, ranges, to_the_end=True)
            return PutBack(loss, NUDGED, len(counting))
        if setting == FUSED:
            return PutBack(experiment.rule.loss(plans.as_file(plan, experiment)), FUSED, len(counting))
        if plans.varying and plans.switches:
            return PutBack(experiment.rule.loss(plans.whole(plan, experiment)), OWN, len(counting))
        evaluator = plans.each(ranges)
        if to_the_end:
            plans.to_the_end([plan], ranges, counting)
        run = evaluator.by_place(plan).keys() & set(counting)
        failed = evaluator.least_loss(plan, counting) is None
        return PutBack(None if failed else evaluator.loss(plan), setting, len(run))

    def known(self, experiment: Experiment, plan: PrecisionPlan) -> Checked | None:
        """Returns the check of a plan with its own scales; None if it was not run on all inputs."""
        trial = self._plans.known(plan, experiment)
        if trial is None:
            return None
        return Checked({OWN: _or_infinite(experiment.rule.loss(trial))})

    def worse(self, plan: PrecisionPlan, ranges: Ranges) -> tuple[int, ...]:
        """Returns the indices of inputs outside the search on which a plan loses more than inside it, worst first."""
        losses, judged = self._plans.on_all(plan, ranges), self._plans.judged
        most = max((losses[input_index] for input_index in judged if input_index in losses), default=0.0)
        others = [input_index for input_index, loss in losses.items() if input_index not in judged and loss > most]
        return tuple(sorted(others, key=lambda input_index: -losses[input_index]))

    def figure(self, _plan: PrecisionPlan, loss: Loss, _ranges: Ranges, /) -> float | None:
        """Returns the similarity that corresponds to ``loss``; None for a loss that is None or infinite."""
        return None if loss is None or math.isinf(loss) else self._plans.experiment.rule.metric.value(loss)


def with_unquantized_rounded(options: MeasuringOptions, experiment: Experiment, plan: PrecisionPlan) -> Builder | None:
    """Returns a builder like the experiment's with which unquantized layers round their inputs too; None if that
    changes nothing (they do so already, or no such input has a scale) or an NVIDIA engine decides.
    """
    build = options.build_options()
    if experiment.builder.engine != ONNXRUNTIME or build.unquantized_round:
        return None
    network, scales = experiment.network, experiment.ranges.scales
    if followed_tensors(network, plan.int8).isdisjoint(scales):
        return None
    typing = experiment.builder.typing
    return open_builder(ONNXRUNTIME, typing, network, scales, replace(build, unquantized_round=True))
