"""What a search found, and the trials behind it."""

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
    """What the search found, and the trials behind it.

    Attributes:
        findings: as whole engines have them; the curve beside the culprits may come from pieces.
        full: full INT8's trial; ``restored`` the recipe's; ``nothing`` that of no layer in INT8.
        measured_in: the engines that passes ran on: ``PIECES`` where pieces are other engines than the whole.
        in_pieces: what such pieces found before whole engines decided; None where there were none.
        sides: by layer that such pieces or then whole engines blamed, the plans without and with it.
        trials: by plan key.
        canonical: the plan that a plan's trial is kept under.
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
        """The trial behind a step, None if it was not tried; what it blames or sets aside, whole engines decided."""
        whole = self.whole_trial_of(step.plan)
        in_pieces = of_a_pass(self.trials, TrialKey(self.canonical(step.plan).key(), self.measured_in))
        return (whole or in_pieces) if step.culprit or step.loss is None else (in_pieces or whole)

    def whole_trial_of(self, plan: PrecisionPlan) -> Trial | None:
        """The trial of a plan on a whole engine, None if it was not tried."""
        return self.trials.get(self.canonical(plan).key())
