"""What a search found, and the trials behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from trt_bisect.driver.recipe import Recipe
from trt_bisect.driver.search import Findings
from trt_bisect.evaluator.trial import Trial
from trt_bisect.precision import PrecisionPlan


@dataclass(frozen=True)
class Measured:
    """What the search found, and the trials behind it.

    Attributes:
        full: full INT8's trial; ``restored`` the recipe's; ``nothing`` that of no layer in INT8.
        mark: before the plan's key of trials that were measured in pieces which are other engines than the whole.
        confirmed: by culprit, the plans without and with it that were measured on whole engines as well.
        trials: by plan key.
        canonical: the plan that a plan's trial is kept under.
    """

    findings: Findings
    recipe: Recipe
    full: Trial
    restored: Trial
    nothing: Trial
    mark: str = ""
    confirmed: Mapping[int, tuple[PrecisionPlan, PrecisionPlan]] = field(default_factory=dict)
    trials: Mapping[str, Trial] = field(default_factory=dict)
    canonical: Callable[[PrecisionPlan], PrecisionPlan] = lambda plan: plan

    def trial_of(self, plan: PrecisionPlan) -> Trial | None:
        """The trial of a plan that the search went by, None if it was not tried."""
        return self.trials.get(self.mark + self.canonical(plan).key()) or self.whole_trial_of(plan)

    def whole_trial_of(self, plan: PrecisionPlan) -> Trial | None:
        """The trial of a plan on a whole engine, None if it was not tried."""
        return self.trials.get(self.canonical(plan).key())
