"""The plans that a search measured, in their order, as TensorBoard shows them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trt_bisect.analyzer.judge import Rule
from trt_bisect.evaluator.accuracy import ACCURACY, accuracy_in
from trt_bisect.evaluator.each_input import INPUTS, OF_METRIC
from trt_bisect.evaluator.trial import WHOLE, Trial, TrialKey
from trt_bisect.precision import PrecisionPlan
from trt_bisect.report.tensorboard.board import LogRun


@dataclass(frozen=True)
class MeasuredPlan:
    """One plan that was measured.

    Attributes:
        similarity: by the metric of the run, on the worst input; None where it was not measured or is not finite.
        accuracy: the accuracy on labelled data; None where it was not measured.
        latency: the mean time of an inference, in milliseconds; None where it was not measured.
    """

    plan: PrecisionPlan
    similarity: float | None = None
    accuracy: float | None = None
    latency: float | None = None

    def figures(self) -> dict[str, float]:
        """Returns what is known, by name, with the number of layers in the low precision."""
        known = {"similarity": self.similarity, "accuracy": self.accuracy, "latency in ms": self.latency}
        return {
            "layers in low precision": float(len(self.plan.lowered)),
            **{name: value for name, value in known.items() if value is not None and math.isfinite(value)},
        }


def steps_of(own: Mapping[str, Trial], shared: Mapping[str, Trial], rule: Rule, ranges: str) -> list[MeasuredPlan]:
    """Returns each plan that was measured with some ranges once, in the order in which they were measured first.

    Its similarity is the one on most inputs: of all of them on whole engines, else in the search, else of the judged
    ones. Trials that failed, and those in another setting, are left out.

    Args:
        own: the trials of the ranges' own store.
        shared: the trials of the store that has those on each input, with any ranges.
        rule: the rule that judged them.
        ranges: the digest of the ranges (``Ranges.digest``).
    """
    on_inputs = {key: trial for key, trial in shared.items() if key.startswith(INPUTS)}
    plans: dict[str, PrecisionPlan] = {}
    best: dict[str, tuple[int, Trial]] = {}
    accuracies: dict[str, float | None] = {}
    for trial in {**on_inputs, **own}.values():
        key = TrialKey.from_text(trial.plan)
        if trial.failed or not key.has_plan:
            continue
        if ACCURACY in trial.outputs and key.measured_in.startswith(ACCURACY):
            accuracies[key.plan] = accuracy_in(trial)
        else:
            rank = _rank(key, ranges, rule.metric.name)
            if rank is None:
                continue
            if key.plan not in best or rank < best[key.plan][0]:
                best[key.plan] = rank, trial
        plans.setdefault(key.plan, PrecisionPlan.from_key(key.plan))
    return [
        MeasuredPlan(plan, _similarity(best[key][1], rule) if key in best else None, accuracies.get(key))
        for key, plan in plans.items()
    ]


def _rank(key: TrialKey, ranges: str, metric: str) -> int | None:
    """The place of a trial among those of the same plan, the best first; None for one that does not count."""
    if key.measured_in.split(" ")[0] != INPUTS:
        return 2 if key.measured_in == WHOLE else 3
    found = re.fullmatch(rf"{INPUTS} \w+ {ranges[:12]} (whole|{OF_METRIC}{re.escape(metric)})", key.measured_in)
    return None if found is None else 0 if found[1] == "whole" else 1


def _similarity(trial: Trial, rule: Rule) -> float | None:
    """The metric on the worst input, of a trial of all inputs together or of one input after another."""
    if trial.outputs:
        return rule.similarity(trial)
    worst = max(trial.losses.values(), default=math.inf)
    return rule.metric.value(worst) if math.isfinite(worst) else None


def spread_over_front(
    steps: Iterable[MeasuredPlan], cost: Callable[[PrecisionPlan], float], most: int
) -> list[MeasuredPlan]:
    """Returns at most so many plans, in order of cost: evenly of those that no other beats in cost and similarity.

    If these are fewer, then evenly of the others too.
    """
    by_cost = sorted(steps, key=lambda step: (cost(step.plan), -_known(step)))
    front: list[MeasuredPlan] = []
    for step in by_cost:
        if not front or _known(step) > _known(front[-1]):
            front.append(step)
    others = [step for step in by_cost if step not in front]
    chosen = _evenly(front, most)
    chosen += _evenly(others, most - len(chosen))
    return [step for step in by_cost if step in chosen]


def _known(step: MeasuredPlan) -> float:
    return -math.inf if step.similarity is None else step.similarity


def _evenly(steps: Sequence[MeasuredPlan], most: int) -> list[MeasuredPlan]:
    places = np.unique(np.linspace(0, len(steps) - 1, min(most, len(steps))).round().astype(int))
    return [steps[place] for place in places]


def write_steps(run: LogRun, steps: Iterable[MeasuredPlan]) -> None:
    """Writes the figures of all plans as scalars; the step is the plan's number, from 1 on."""
    for number, step in enumerate(steps, 1):
        for name, value in step.figures().items():
            run.scalar(name, value, number)
