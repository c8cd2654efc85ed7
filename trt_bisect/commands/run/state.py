from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from math import nan

from trt_bisect.answer.result import Answer
from trt_bisect.commands.run.search import Curve
from trt_bisect.driver.curves import CULPRITS, search_for
from trt_bisect.driver.search import Findings, Loss, Search, Step
from trt_bisect.evaluator.trial import SWITCH, UNTRIED, Trial, TrialKey
from trt_bisect.options.concerns import RunOptions
from trt_bisect.precision import PrecisionPlan
from trt_bisect.preparation.experiment import Experiment, Setup
from trt_bisect.report.model import Report


class Phase(IntEnum):
    """The phases of a run, in their order."""

    SEARCH = 0
    CHANGES = 1  # a changed network, which loses less, is being searched
    VERDICT = 2  # the answer is final; curve and causes are being measured
    COMPLETE = 3


@dataclass(frozen=True)
class RunState:
    """The results of a run so far.

    Attributes:
        known: report without the answer.
        setup, first, of_curve: facts that all experiments share, the first experiment, and that of the curve; None
            before data and engine are ready.
        curve: None until it is measured completely.
        answer: cheapest recipe so far, with the trials of full INT8 and the recipe; None before full INT8 is
            measured on all inputs.
        alone: by layer index, the loss of full INT8 that is gone if only this layer is in high precision.
    """

    known: Report
    options: RunOptions
    setup: Setup | None = None
    first: Experiment | None = None
    of_curve: Experiment | None = None
    curve: Curve | None = None
    answer: Answer | None = None
    alone: Mapping[int, float] = field(default_factory=dict)
    phase: Phase = Phase.SEARCH

    @property
    def found(self) -> Answer:
        """The answer; there must be one."""
        assert self.answer is not None
        return self.answer

    @property
    def suspects(self) -> tuple[int, ...]:
        """The indices of the curve's suspects; empty until the curve is measured."""
        return self.curve.findings.suspects if self.curve else ()

    @property
    def experiments(self) -> tuple[Experiment, ...]:
        """The experiments whose trials the report counts."""
        experiments = [experiment for experiment in (self.first, self.of_curve) if experiment is not None]
        if self.answer is not None:
            answers = (self.answer.of_user, self.answer, self.answer.emulated.of_user)
            experiments += [answer.experiment for answer in answers]
        return tuple(experiments)

    def trials(self) -> int:
        """Returns the number of trials so far."""
        return sum(len(store.trials) for store in {experiment.store for experiment in self.experiments})


@dataclass(frozen=True)
class RunTrials:
    """The trials of a run by plan key, and the ``experiment`` (network, ranges, inputs) that measured the curve."""

    trials: Mapping[str, Trial]
    experiment: Experiment

    def of_plan(self, plan: PrecisionPlan) -> Trial | None:
        """Returns the trial of a plan, preferably on the ONNX Runtime session that runs all plans and measures the
        curve; None without one.
        """
        plan_key = self._canonical(plan)
        return self.trials.get(TrialKey(plan_key, SWITCH).text) or self.trials.get(plan_key)

    def whole(self, plan: PrecisionPlan) -> Trial | None:
        """Returns the trial of a plan on an engine built only for this plan; None without one."""
        return self.trials.get(self._canonical(plan))

    def that_ran(self, plan: PrecisionPlan) -> Trial | None:
        """Returns a trial of a plan, on any engine, that tells in which precisions the layers ran; None if there is
        none.
        """
        key = self._canonical(plan)
        return next(
            (trial for text, trial in self.trials.items() if TrialKey.from_text(text).plan == key and trial.ran), None
        )

    def _canonical(self, plan: PrecisionPlan) -> str:
        return self.experiment.whole.canonical(plan).key()

    def curve(self) -> Curve:
        """Returns the curve as far as its plans are measured; measures nothing."""
        question, rule, curve = self.experiment.question, self.experiment.rule, self.experiment.curve
        full, steps = self.of_plan(question.all_but(())), list[Step]()
        losses, ended = self._driven(search_for(curve, question, steps), rule.loss)
        findings = ended or Findings.so_far(rule.loss(full or UNTRIED), steps)
        if ended is None and curve == CULPRITS:
            settled = {*findings.suspects, *findings.set_aside}
            unsettled = [  # the plans measured that are not yet part of a step, and leave the suspects high
                Step((max(plan.lowered),), nan, loss, plan)
                for plan, loss in losses.items()
                if plan.lowered and not plan.lowered & settled
            ]
            findings = replace(findings, steps=(*unsettled, *findings.steps))
        return Curve(findings, self.of_plan(question.prefix(-1)) or UNTRIED)

    def _driven(
        self, search: Search[Findings], loss: Callable[[Trial], Loss]
    ) -> tuple[dict[PrecisionPlan, Loss], Findings | None]:
        losses: dict[PrecisionPlan, Loss] = {}
        plan = next(search)
        try:
            while (trial := self.of_plan(plan)) is not None:
                losses[plan] = loss(trial)
                plan = search.send(losses[plan])
        except StopIteration as end:
            return losses, end.value
        return losses, None
