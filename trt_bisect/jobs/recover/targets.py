"""The target of a recipe: a similarity, or the user's accuracy on labelled data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from trt_bisect.driver.culprits.search import Loss
from trt_bisect.errors import BadInput, NothingMeasured, TrialFailed
from trt_bisect.evaluator.accuracy import AccuracyEvaluator, accuracy_in
from trt_bisect.evaluator.branch import BranchEvaluator
from trt_bisect.jobs.experiment import Experiment
from trt_bisect.precision import PrecisionPlan

OnPlan = Callable[[PrecisionPlan], None]
_TIE = 1e-6
"""The weight of the similarity beside an accuracy: it decides between plans of the same accuracy."""


class Target(Protocol):
    """Judges plans.

    Attributes:
        budget: the largest loss that is good.
        cheap: many plans can be tried.
    """

    budget: float
    cheap: bool

    def choose(self, plans: Sequence[PrecisionPlan], on_plan: OnPlan) -> list[Loss]:
        """The losses, good enough to choose by."""
        ...

    def exact(self, plans: Sequence[PrecisionPlan], on_plan: OnPlan) -> list[Loss]:
        """The losses on whole engines."""
        ...

    def figure(self, plan: PrecisionPlan) -> float | None:
        """The figure of a measured plan that is shown: its similarity, or its accuracy."""
        ...


class SimilarityTarget:
    """The similarity of the final outputs on the inputs that are judged."""

    cheap = True

    def __init__(self, experiment: Experiment) -> None:
        assert isinstance(experiment.evaluator, BranchEvaluator)
        self.budget = experiment.rule.budget
        self._evaluator = experiment.evaluator
        self._whole = experiment.whole
        self._rule = experiment.rule

    def choose(self, plans: Sequence[PrecisionPlan], on_plan: OnPlan) -> list[Loss]:
        """The losses by passes and by a switch, see ``BranchEvaluator``."""
        return [self._rule.loss(trial) for trial in self._evaluator.choose_all(plans, on_plan)]

    def exact(self, plans: Sequence[PrecisionPlan], on_plan: OnPlan) -> list[Loss]:
        """The losses on whole engines."""
        return [self._rule.loss(trial) for trial in self._whole.measure_all(plans, on_plan)]

    def figure(self, plan: PrecisionPlan) -> float | None:
        """The metric on the worst output."""
        return self._rule.similarity(self._whole.measure(plan))


class AccuracyTarget:
    """The user's accuracy, and beside it a little of the similarity.

    Attributes:
        reference: FP32's accuracy.
        least: the accuracy that is still good.
    """

    cheap = False

    def __init__(
        self,
        evaluator: AccuracyEvaluator,
        similarity: Target,
        least: float | None,
        drop: float = 0.0,
        *,
        relative: bool = False,
    ) -> None:
        """Measures FP32.

        Args:
            evaluator: measures the accuracy.
            similarity: tells equal accuracies apart.
            least: the accuracy that is still good, or None.
            drop: or else how much of FP32's may be lost.
            relative: the drop is a share of FP32's.

        Raises:
            BadInput: FP32 itself is below ``least``.
            NothingMeasured: FP32 does not run.
        """
        self._evaluator = evaluator
        self._similarity = similarity
        try:
            self.reference = evaluator.reference()
        except TrialFailed as failure:
            raise NothingMeasured(
                f"The accuracy of the FP32 network cannot be measured: {failure.message}", "Check the data set."
            ) from failure
        allowed = drop * self.reference if relative else drop
        self.least = self.reference - allowed if least is None else least
        if self.least > self.reference:
            raise BadInput(
                f"FP32 itself has an accuracy of {self.reference:g}, below the target of {self.least:g}.",
                "Give a lower --target, or --drop.",
            )
        self.budget = self.reference - self.least + _TIE

    def choose(self, plans: Sequence[PrecisionPlan], on_plan: OnPlan) -> list[Loss]:
        """The losses: what is lost of FP32's accuracy."""
        similar = self._similarity.choose(plans, lambda _: None)
        losses = []
        for plan, tie in zip(plans, similar, strict=True):
            on_plan(plan)
            figure = accuracy_in(self._evaluator.measure(plan))
            lost = None if figure is None or tie is None else self.reference - figure + _TIE * min(tie, 1.0)
            losses.append(lost)
        return losses

    def exact(self, plans: Sequence[PrecisionPlan], on_plan: OnPlan) -> list[Loss]:
        """The same: accuracies are measured on whole engines."""
        return self.choose(plans, on_plan)

    def figure(self, plan: PrecisionPlan) -> float | None:
        """The accuracy."""
        return accuracy_in(self._evaluator.measure(plan))
