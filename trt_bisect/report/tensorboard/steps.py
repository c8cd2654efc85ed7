"""The plans that a search measured, in their order, as TensorBoard shows them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from trt_bisect.analyzer.judge import Rule
from trt_bisect.evaluator.accuracy import ACCURACY, accuracy_in
from trt_bisect.evaluator.trial import Trial
from trt_bisect.evaluator.trial_key import TrialKey
from trt_bisect.precision import PrecisionPlan
from trt_bisect.report.tensorboard.tags import score_text
from trt_bisect.report.tensorboard.writer import LogRun


@dataclass(frozen=True)
class Step:
    """One plan that was measured.

    Attributes:
        similarity: by the metric of the run, on the worst input; None where it was not measured or is not finite.
        accuracy: on labelled data; None where it was not measured.
    """

    plan: PrecisionPlan
    similarity: float | None = None
    accuracy: float | None = None

    def figures(self) -> dict[str, float]:
        """Returns what is known, by name, with the number of layers in the low precision."""
        known = {"similarity": self.similarity, "accuracy": self.accuracy}
        return {
            "layers in low precision": float(len(self.plan.lowered)),
            **{name: value for name, value in known.items() if value is not None and math.isfinite(value)},
        }


def steps_of(trials: Iterable[Trial], rule: Rule) -> list[Step]:
    """Returns each plan of some trials once, in the order in which they were measured first.

    Args:
        trials: in the order of the journal; those that failed are left out.
        rule: the rule that judged them.
    """
    plans: dict[str, PrecisionPlan] = {}
    similarities: dict[str, float | None] = {}
    accuracies: dict[str, float | None] = {}
    for trial in trials:
        key = TrialKey.from_text(trial.plan)
        if trial.failed or not key.has_plan:
            continue
        plans.setdefault(key.plan, PrecisionPlan.from_key(key.plan))
        if ACCURACY in trial.outputs and key.measured_in.startswith(ACCURACY):
            accuracies[key.plan] = accuracy_in(trial)
        elif key.plan not in similarities or not key.measured_in:
            similarities[key.plan] = _similarity(trial, rule)
    return [Step(plan, similarities.get(key), accuracies.get(key)) for key, plan in plans.items()]


def _similarity(trial: Trial, rule: Rule) -> float | None:
    """The metric on the worst input, of a trial of all inputs together or of one input after another."""
    if trial.outputs:
        return rule.similarity(trial)
    worst = max(trial.losses.values(), default=math.inf)
    return rule.metric.value(worst) if math.isfinite(worst) else None


def write_steps(run: LogRun, steps: Iterable[Step]) -> None:
    """Writes the figures of all plans as scalars; the step is the plan's number, from 1 on."""
    for number, step in enumerate(steps, 1):
        for name, value in step.figures().items():
            run.scalar(name, value, number)


def step_name(number: int, metric: str, step: Step) -> str:
    """Returns the name of the run of a step of ``recover``; 0 is the baseline.

    It holds the accuracy where there is one, else the metric and its value, else neither.
    """
    name = f"tune_{number}" if number else "baseline"
    if step.accuracy is not None:
        return f"{name}_acc_{score_text(step.accuracy)}"
    word = re.sub(r"[^a-z0-9_]", "_", metric.lower())
    return name if step.similarity is None else f"{name}_{word}_{score_text(step.similarity)}"
