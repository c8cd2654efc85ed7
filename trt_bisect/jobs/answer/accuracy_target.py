"""The user's accuracy on labelled data as the judge of plans."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from trt_bisect.calibration.ranges import Ranges
from trt_bisect.driver.suspects.search import Loss
from trt_bisect.evaluator.accuracy import Accuracy, AccuracyEvaluator, accuracy_in
from trt_bisect.jobs.answer.plans import AnswerPlans
from trt_bisect.jobs.answer.validation import Checked
from trt_bisect.jobs.experiment import Experiment
from trt_bisect.precision import PrecisionPlan
from trt_bisect.report.answer import OWN

TIE = 1e-6
"""The weight of the similarity beside an accuracy: it decides between plans of the same accuracy."""


class AccuracyTarget:
    """The accuracy of the data set, and beside it a little of the similarity.

    Args:
        plans: measures the similarity.
        accuracy: the user's function, or the share of samples with the right class.
        reference: FP32's accuracy.
        least: the lowest acceptable accuracy.
    """

    def __init__(self, plans: AnswerPlans, accuracy: Accuracy, reference: float, least: float) -> None:
        self._plans = plans
        self._accuracy = accuracy
        self._reference = reference
        self._by_ranges: dict[str, AccuracyEvaluator] = {}
        self.budget = reference - least + TIE

    def losses(self, asked: Sequence[PrecisionPlan], ranges: Ranges, *, to_the_end: bool = False) -> list[Loss]:
        """Returns the losses of plans: the part of FP32's accuracy that is lost."""
        similar = self._plans.losses(asked, ranges, self._plans.inputs.first, to_the_end=to_the_end)
        losses: list[Loss] = []
        for plan, tie in zip(asked, similar, strict=True):
            figure = self._measured(plan, ranges)
            losses.append(None if figure is None or tie is None else self._reference - figure + TIE * min(tie, 1.0))
        return losses

    def check(self, experiment: Experiment, plan: PrecisionPlan, **_: object) -> Checked:
        """Measures a plan: accuracies are measured on its own engine, always."""
        (loss,) = self.losses([plan], experiment.ranges)
        return Checked({OWN: inf if loss is None else loss})

    def known(self, experiment: Experiment, plan: PrecisionPlan) -> Checked | None:
        """Returns the check of a plan that was measured; None if its accuracy or its similarity is not known."""
        trial = self._evaluator(experiment.ranges).known(plan)
        if trial is None or self._plans.known(plan, experiment) is None:
            return None
        figure = accuracy_in(trial)
        return Checked({OWN: inf if figure is None else self._reference - figure})

    def worse(self, *_: object) -> tuple[int, ...]:
        """Returns no input: all of the data set count together."""
        return ()

    def figure(self, plan: PrecisionPlan, loss: Loss, ranges: Ranges, /) -> float | None:
        """Returns the accuracy of a plan; None if it cannot be run."""
        return None if loss is None or loss == inf else self._measured(plan, ranges)

    def _measured(self, plan: PrecisionPlan, ranges: Ranges) -> float | None:
        return accuracy_in(self._evaluator(ranges).measure(plan))

    def _evaluator(self, ranges: Ranges) -> AccuracyEvaluator:
        key = ranges.digest()
        if key not in self._by_ranges:
            experiment = self._plans.with_ranges(ranges)
            self._by_ranges[key] = AccuracyEvaluator(self._accuracy, experiment.whole, experiment.store)
        return self._by_ranges[key]
