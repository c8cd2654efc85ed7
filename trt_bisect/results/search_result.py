"""The result of a search, and its trials."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from trt_bisect.driver.culprits.repair import Recipe
from trt_bisect.driver.culprits.search import Findings, Step
from trt_bisect.evaluator.trial import Trial, of_a_pass
from trt_bisect.evaluator.trial_key import WHOLE, TrialKey
from trt_bisect.precision import PrecisionPlan


@dataclass(frozen=True)
class Measured:
    """The findings of a search, and its trials.

    Attributes:
        findings: decided on whole engines; the curve beside the culprits may come from pieces.
        full: the trial of full INT8.
        restored: the trial of the recipe.
        nothing: the trial of the plan without INT8.
        measured_in: the engines of the passes: ``PIECES`` if pieces are other engines than the whole network.
        in_pieces: the findings of such pieces before whole engines decided; None without them.
        sides: the plans without and with each layer that such pieces, or whole engines after them, blamed.
        trials: by plan key.
        canonical: returns the plan under which a plan's trial is stored.
    """

    findings: Findings
    recipe: Recipe
    full: Trial
    restored: Trial
    nothing: Trial
    measured_in: str = WHOLE
    in_pieces: Findings | None = None
    sides: Mapping[int, tuple[PrecisionPlan, PrecisionPlan]] = field(default_factory=dict)
    trials: Mapping[str, Trial] = field(default_factory=dict)
    canonical: Callable[[PrecisionPlan], PrecisionPlan] = lambda plan: plan

    def trial_of_step(self, step: Step) -> Trial | None:
        """Returns the trial of a step, None if there is none: of a whole engine where the step blames or sets aside."""
        whole = self.whole_trial_of(step.plan)
        in_pieces = of_a_pass(self.trials, TrialKey(self.canonical(step.plan).key(), self.measured_in))
        return (whole or in_pieces) if step.culprit or step.loss is None else (in_pieces or whole)

    def whole_trial_of(self, plan: PrecisionPlan) -> Trial | None:
        """Returns the trial of a plan on a whole engine, None if there is none."""
        return self.trials.get(self.canonical(plan).key())
