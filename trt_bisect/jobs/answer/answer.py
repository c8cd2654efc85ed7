"""The answer: from an experiment to a recipe that holds on all inputs given, every member of it measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from trt_bisect.driver.culprits.search import Findings, Loss
from trt_bisect.driver.recipes.cheapest import Cheapest
from trt_bisect.driver.recipes.search_space import Sensitivities, Space
from trt_bisect.evaluator.given_inputs import GivenInputs
from trt_bisect.evaluator.trial import Trial
from trt_bisect.jobs.answer.inputs import answer_inputs, unseen_inputs
from trt_bisect.jobs.answer.plans import AnswerPlans
from trt_bisect.jobs.answer.search import (
    AUTO,
    IMPROVEMENTS,
    CalibratorTried,
    choose_ranges,
    find_set,
    gains_and_losses,
    make_space,
    retuned,
)
from trt_bisect.jobs.answer.validation import Checked, check
from trt_bisect.jobs.experiment import Experiment
from trt_bisect.jobs.preparation import Preparation
from trt_bisect.precision import PrecisionPlan

_JUDGED_AT_FIRST = 8
"""The number of inputs that the search judges on at first: the worst ones in full INT8."""
_ROUNDS = 5
_SAFETY = 0.95
"""The search aims at so much of the budget, so that the noise of kernels does not make its recipe miss."""


@dataclass(frozen=True)
class Answer:
    """The answer.

    Attributes:
        experiment: with the ranges of the answer.
        space: the plans, with the budget of the threshold.
        kept: the units that stay high.
        meets: the plan holds on all inputs given.
        full: the trial of full INT8 on all inputs, on a whole engine.
        restored: the same for the recipe.
        taken_back: by unit of ``kept``, the loss with that unit in INT8 as well; None if that plan cannot be run.
        alone: the loss and the gain of each unit alone; None where they were not measured.
        tried: the calibrators.
        given: all inputs.
        judged: the number of inputs that the search judged on.
        checked: the recipe in other settings.
        aim: the loss that the search aimed at.
        equals: other sets of units that cost the same.
        unseen: the recipe on unseen inputs; None without such inputs.
        unseen_inputs: these.
    """

    experiment: Experiment
    space: Space
    kept: frozenset[int]
    meets: bool
    full: Trial
    restored: Trial
    taken_back: Mapping[int, Loss]
    alone: Sensitivities | None
    tried: tuple[CalibratorTried, ...]
    given: GivenInputs
    counting: tuple[int, ...]
    judged: int
    checked: Checked
    aim: float
    equals: tuple[frozenset[int], ...] = ()
    unseen: Trial | None = None
    unseen_inputs: GivenInputs | None = None

    @property
    def plan(self) -> PrecisionPlan:
        """The recipe's plan."""
        return self.space.plan(self.kept)

    @property
    def members(self) -> tuple[int, ...]:
        """The layers that were measured to break the target when they are taken back, ascending."""
        return tuple(sorted(self.space.units[unit][0] for unit, loss in self.taken_back.items() if loss is not None))

    @property
    def high(self) -> tuple[int, ...]:
        """The layers that stay high, ascending."""
        return tuple(sorted(self.space.layers(self.kept)))


@dataclass
class AnswerSearch:
    """The search of the answer, a stage at a time: ``choose_ranges``, then the curve, then ``finish``.

    Attributes:
        plans: measures.
        experiment: with the chosen ranges.
        tried: the calibrators.
    """

    plans: AnswerPlans
    experiment: Experiment
    improvements: int = IMPROVEMENTS
    tried: tuple[CalibratorTried, ...] = field(default=(), init=False)

    def choose_ranges(self) -> Experiment:
        """Chooses the ranges; returns the experiment with them."""
        plans, own = self.plans, self.experiment.ranges
        self.space = make_space(plans)
        plans.judged = self._first_judged()
        others = [ranges for ranges in plans.preparation.candidates if ranges.origin != own.origin]
        ranges, self.tried = choose_ranges(plans, self.space, [own, *others], self.named)
        if ranges.digest() != self.experiment.ranges.digest():
            changed = plans.preparation.with_ranges(self.experiment, ranges)
            self.experiment = plans.preparation.in_pieces(changed)
        return self.experiment

    def _first_judged(self) -> list[int]:
        counting = self.plans.inputs.counting
        if len(counting) <= _JUDGED_AT_FIRST:
            return list(counting)
        return sorted(self.plans.worst(self.plans.full, self.experiment.ranges)[:_JUDGED_AT_FIRST])

    def finish(self, findings: Findings) -> Answer:
        """Finds the set of layers that stay high, checks it on all inputs, and measures each step back from it.

        Args:
            findings: of the curve.
        """
        ranges, budget = self.experiment.ranges, self.experiment.rule.budget
        checked = check(self.plans, self.experiment, self.plans.full)
        if checked.meets(budget):
            return self._answer(Cheapest(frozenset(), True, {}), self.experiment, None, checked, budget, {})
        plans, space = self.plans, self.space
        plans.join(checked.missed)
        alone = gains_and_losses(plans, space, ranges) if plans.switches else None
        found, experiment, checked, aim = self._held(findings, alone)
        if not found.meets:
            return self._answer(found, experiment, alone, checked, aim, {})
        found, checked, taken_back = self._minimal(found, experiment, checked)
        return self._answer(found, experiment, alone, checked, aim, taken_back)

    def _held(self, findings: Findings, alone: Sensitivities | None) -> tuple[Cheapest, Experiment, Checked, float]:
        """Searches until a recipe holds on all inputs in all settings.

        Inputs on which it misses join the judged ones. If there are no such inputs, the next search aims higher.
        """
        plans, budget = self.plans, self.experiment.rule.budget
        aim, before = budget * _SAFETY, frozenset[int]()
        for _ in range(_ROUNDS):
            space = replace(self.space, budget=aim)
            found = find_set(plans, space, self.experiment.ranges, findings, alone, self.improvements, before)
            before |= found.kept
            experiment = self.experiment
            if found.meets and found.kept and plans.switches and len(self.tried) > 1 and not self.named:
                kept, ranges = retuned(plans, space, found, experiment.ranges, [one.ranges for one in self.tried])
                if kept != found.kept:
                    found = replace(found, kept=kept, equals=())
                    experiment = plans.preparation.with_ranges(experiment, ranges)
            checked = check(plans, experiment, space.plan(found.kept))
            if checked.meets(budget) or not found.meets:
                break
            if not plans.join(checked.missed):
                aim *= min(budget / checked.worst, 1.0) * _SAFETY
                if plans.switches:
                    plans.join(plans.missed(space.plan(found.kept), experiment.ranges, aim))
        return found, experiment, checked, aim

    @property
    def named(self) -> bool:
        """True if the user named the ranges: they stay."""
        preparation = self.plans.preparation
        return preparation.options.calibrator != AUTO or not preparation.candidates

    def _minimal(
        self, found: Cheapest, experiment: Experiment, checked: Checked
    ) -> tuple[Cheapest, Checked, dict[int, Loss]]:
        """Takes back each member, the dearest first; one that is not needed after all goes to INT8."""
        plans, space = self.plans, self.space
        kept, taken_back = found.kept, dict[int, Loss]()
        waiting = sorted(kept, key=lambda unit: -space.costs[unit])
        while waiting:
            unit = waiting.pop(0)
            plan = space.plan(kept - {unit})
            (loss,) = plans.losses([plan], experiment.ranges)
            if loss is not None and loss <= space.budget:
                other = check(plans, experiment, plan)
                if other.meets(space.budget):
                    kept, checked, taken_back = kept - {unit}, other, {}
                    waiting = sorted(kept, key=lambda unit: -space.costs[unit])
                    continue
                loss = other.worst
            taken_back[unit] = loss
        return replace(found, kept=kept, meets=checked.meets(space.budget)), checked, taken_back

    def _answer(
        self,
        found: Cheapest,
        experiment: Experiment,
        alone: Sensitivities | None,
        checked: Checked,
        aim: float,
        taken_back: Mapping[int, Loss],
    ) -> Answer:
        plans = self.plans
        given, plan = plans.inputs.given, self.space.plan(found.kept)
        full = plans.whole(plans.full, experiment, given, "all inputs")
        restored = plans.whole(plan, experiment, given, "all inputs")
        unseen, unseen_given = None, None
        if plans.preparation.unseen is not None:
            unseen_given = unseen_inputs(plans.preparation, experiment, plans.preparation.unseen, plans.inputs.spill)
            unseen = plans.whole(plan, experiment, unseen_given, "unseen inputs")
        return Answer(
            experiment=experiment,
            space=self.space,
            kept=found.kept,
            meets=found.meets and checked.meets(self.space.budget),
            full=full,
            restored=restored,
            taken_back=taken_back,
            alone=alone,
            tried=self.tried,
            given=given,
            counting=plans.inputs.counting,
            judged=len(plans.judged),
            checked=checked,
            aim=aim,
            equals=found.equals,
            unseen=unseen,
            unseen_inputs=unseen_given,
        )


@contextmanager
def answer_search(preparation: Preparation, experiment: Experiment) -> Iterator[AnswerSearch]:
    """Prepares the search of the answer: FP32's outputs for all inputs given.

    Args:
        preparation: that ``experiment`` belongs to.
        experiment: with the first ranges.
    """
    with answer_inputs(preparation, experiment) as inputs:
        yield AnswerSearch(AnswerPlans(preparation, experiment, inputs), experiment)
