"""The result of a search, and its trials."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from trt_bisect.driver.suspects.search import Findings, Step
from trt_bisect.evaluator.trial import Trial, of_a_pass
from trt_bisect.evaluator.trial_key import WHOLE, TrialKey
from trt_bisect.precision import PrecisionPlan


@dataclass(frozen=True)
class Curve:
    """The curve of a search, and the suspects that it shows.

    Attributes:
        findings: decided on whole engines; the curve beside the suspects may come from pieces.
        nothing: the trial of the plan without INT8.
        measured_in: the engines of the passes: ``PIECES`` if pieces are other engines than the whole network.
        in_pieces: the findings of such pieces before whole engines decided; None without them.
        sides: the plans without and with each layer that such pieces, or whole engines after them, blamed.
    """

    findings: Findings
    nothing: Trial
    measured_in: str = WHOLE
    in_pieces: Findings | None = None
    sides: Mapping[int, tuple[PrecisionPlan, PrecisionPlan]] = field(default_factory=dict)


@dataclass(frozen=True)
class Recipe:
    """The plan that a search ends with.

    Attributes:
        plan: the plan; it was measured.
        kept: the layers left high, ascending.
        culprits: those of them without which the plan was measured to miss. The others could not be measured in INT8,
            or are ``untested``.
        meets: the plan meets the threshold on all inputs.
        taken_back: by culprit, the similarity with that layer in INT8 as well; None if the output has no figure then.
        gains: by layer, the loss that full INT8 sheds when the layer alone stays high; empty if not measured.
        reasons: by suspect, a layer with a large drop that is no culprit, the reason why it is none.
        untested: the layers of ``kept`` that were not shown to be needed: steps back are limited in large networks.
    """

    plan: PrecisionPlan
    kept: tuple[int, ...]
    culprits: tuple[int, ...]
    meets: bool
    taken_back: Mapping[int, float | None] = field(default_factory=dict)
    gains: Mapping[int, float] = field(default_factory=dict)
    reasons: Mapping[int, str] = field(default_factory=dict)
    untested: tuple[int, ...] = ()


@dataclass(frozen=True)
class Measured:
    """The curve, the recipe, and the trials behind them.

    Attributes:
        curve: with the suspects.
        recipe: with the culprits.
        full: the trial of full INT8 on all inputs.
        restored: the trial of the recipe on all inputs.
        trials: the trials by plan key.
        canonical: returns the plan under which a plan's trial is stored.
    """

    curve: Curve
    recipe: Recipe
    full: Trial
    restored: Trial
    trials: Mapping[str, Trial] = field(default_factory=dict)
    canonical: Callable[[PrecisionPlan], PrecisionPlan] = lambda plan: plan

    @property
    def findings(self) -> Findings:
        """The findings of the curve."""
        return self.curve.findings

    def trial_of_step(self, step: Step) -> Trial | None:
        """Returns the trial of a step, None if there is none: of a whole engine where the step blames or sets aside."""
        whole = self.whole_trial_of(step.plan)
        in_pieces = of_a_pass(self.trials, TrialKey(self.canonical(step.plan).key(), self.curve.measured_in))
        return (whole or in_pieces) if step.suspect or step.loss is None else (in_pieces or whole)

    def taking_back(self, layer: int) -> Trial | None:
        """Returns a trial of the recipe with one more layer low, which says what ran; None if there is none."""
        plan = self.canonical(self.recipe.plan.keeping({layer}, self.recipe.plan.low)).key()
        found = (trial for key, trial in self.trials.items() if TrialKey.from_text(key).plan == plan and trial.ran)
        return next(found, None)

    def whole_trial_of(self, plan: PrecisionPlan) -> Trial | None:
        """Returns the trial of a plan on a whole engine, None if there is none."""
        return self.trials.get(self.canonical(plan).key())
