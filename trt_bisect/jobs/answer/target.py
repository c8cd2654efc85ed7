"""The judge of plans in the search of the answer: the similarity on all inputs, or another figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from trt_bisect.calibration.ranges import Ranges
from trt_bisect.driver.suspects.search import Loss
from trt_bisect.jobs.answer.plans import AnswerPlans
from trt_bisect.jobs.answer.validation import Checked, check
from trt_bisect.jobs.experiment import Experiment
from trt_bisect.precision import PrecisionPlan


class Target(Protocol):
    """Judges plans.

    Attributes:
        budget: the largest loss that is good.
    """

    budget: float

    def losses(self, asked: Sequence[PrecisionPlan], ranges: Ranges, *, to_the_end: bool = False) -> list[Loss]:
        """Returns the losses of plans, to choose among them; unless ``to_the_end``, a miss ends the run of a plan."""
        ...

    def check(self, experiment: Experiment, plan: PrecisionPlan, *, own_engine: bool = True) -> Checked:
        """Measures a plan in the form in which it will be used; ``own_engine`` false may leave out its own engine."""
        ...

    def worse(self, plan: PrecisionPlan, ranges: Ranges) -> tuple[int, ...]:
        """Returns the places of inputs not judged on which a plan is worse than on the judged ones, the worst first."""
        ...


class SimilarityTarget:
    """The similarity of the outputs on the worst of all inputs.

    Args:
        plans: measures plans on the inputs given.
    """

    def __init__(self, plans: AnswerPlans) -> None:
        self.budget = plans.experiment.rule.budget
        self._plans = plans

    def losses(self, asked: Sequence[PrecisionPlan], ranges: Ranges, *, to_the_end: bool = False) -> list[Loss]:
        """Returns the losses of plans on the judged inputs."""
        return self._plans.losses(asked, ranges, to_the_end=to_the_end)

    def check(self, experiment: Experiment, plan: PrecisionPlan, *, own_engine: bool = True) -> Checked:
        """Measures a plan on all inputs and in all settings."""
        return check(self._plans, experiment, plan, own_engine=own_engine)

    def worse(self, plan: PrecisionPlan, ranges: Ranges) -> tuple[int, ...]:
        """Returns the places of inputs not judged on which a plan is worse than on the judged ones, the worst first."""
        losses, judged = self._plans.on_all(plan, ranges), self._plans.judged
        most = max((losses[place] for place in judged if place in losses), default=0.0)
        others = [place for place, loss in losses.items() if place not in judged and loss > most]
        return tuple(sorted(others, key=lambda place: -losses[place]))
