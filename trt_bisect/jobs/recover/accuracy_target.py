"""The target of a recipe that is the user's accuracy on labelled data."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from trt_bisect.calibration.ranges import Ranges
from trt_bisect.driver.suspects.search import Loss
from trt_bisect.errors import BadInput
from trt_bisect.evaluator.accuracy import Accuracy, AccuracyEvaluator, accuracy_in
from trt_bisect.jobs.accuracy import fp32_accuracy
from trt_bisect.jobs.answer.plans import AnswerPlans
from trt_bisect.jobs.answer.validation import Checked
from trt_bisect.jobs.experiment import Experiment
from trt_bisect.precision import PrecisionPlan
from trt_bisect.report.model import OWN

_TIE = 1e-6
"""The weight of the similarity beside an accuracy: it decides between plans of the same accuracy."""


class AccuracyTarget:
    """The user's accuracy, and beside it a little of the similarity.

    Attributes:
        reference: FP32's accuracy.
        least: the accuracy that is still good.
        budget: the largest loss of accuracy that is good.
    """

    def __init__(
        self,
        plans: AnswerPlans,
        accuracy: Accuracy,
        least: float | None,
        drop: float = 0.0,
        *,
        relative: bool = False,
    ) -> None:
        """Measures FP32.

        Args:
            plans: measures the similarity.
            accuracy: the user's.
            least: the accuracy that is still good, or None.
            drop: or else how much of FP32's may be lost.
            relative: the drop is a share of FP32's.

        Raises:
            BadInput: FP32 itself is below ``least``.
            NothingMeasured: FP32 does not run.
        """
        self._plans = plans
        self._accuracy = accuracy
        self._by_ranges: dict[str, AccuracyEvaluator] = {}
        self.reference = fp32_accuracy(accuracy, plans.experiment)
        allowed = drop * self.reference if relative else drop
        self.least = self.reference - allowed if least is None else least
        if self.least > self.reference:
            raise BadInput(
                f"FP32 itself has an accuracy of {self.reference:g}, below the target of {self.least:g}.",
                "Give a lower --target, or --drop.",
            )
        self.budget = self.reference - self.least + _TIE

    def losses(self, asked: Sequence[PrecisionPlan], ranges: Ranges, *, to_the_end: bool = False) -> list[Loss]:
        """Returns the losses of plans: the part of FP32's accuracy that is lost."""
        similar = self._plans.losses(asked, ranges, self._plans.inputs.first, to_the_end=to_the_end)
        losses: list[Loss] = []
        for plan, tie in zip(asked, similar, strict=True):
            figure = self.figure(plan, ranges)
            lost = None if figure is None or tie is None else self.reference - figure + _TIE * min(tie, 1.0)
            losses.append(lost)
        return losses

    def check(self, experiment: Experiment, plan: PrecisionPlan, **_: object) -> Checked:
        """Measures a plan: accuracies are measured on its own engine, always."""
        (loss,) = self.losses([plan], experiment.ranges)
        return Checked({OWN: inf if loss is None else loss})

    def worse(self, *_: object) -> tuple[int, ...]:
        """Returns no input: all of the data set count together."""
        return ()

    def figure(self, plan: PrecisionPlan, ranges: Ranges) -> float | None:
        """Returns the accuracy of a plan; None if it cannot be run."""
        return accuracy_in(self._evaluator(ranges).measure(plan))

    def _evaluator(self, ranges: Ranges) -> AccuracyEvaluator:
        key = ranges.digest()
        if key not in self._by_ranges:
            experiment = self._plans.with_ranges(ranges)
            self._by_ranges[key] = AccuracyEvaluator(self._accuracy, experiment.whole, experiment.store)
        return self._by_ranges[key]
