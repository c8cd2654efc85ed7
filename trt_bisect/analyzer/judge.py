"""The judge: final outputs against the FP32 reference's, figures against the threshold."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trt_bisect.analyzer.classes import Classes, find_classes
from trt_bisect.analyzer.compare_output import OutputJudge
from trt_bisect.analyzer.metrics import BUILT_IN, DEFAULT_THRESHOLDS, EXACT_SQNR, Metric
from trt_bisect.builder.base import Outputs
from trt_bisect.errors import BadInput
from trt_bisect.evaluator.trial import OutputFigures, Trial

DEFAULT_SHARE = 0.5


@dataclass(frozen=True)
class Rule:
    """What is tolerated.

    Attributes:
        metric: the one that decides.
        threshold: the worst value of it that is still good.
        share: a culprit costs at least this share of what the threshold allows.
        outputs: the final outputs that count; empty for all. The worst decides.
    """

    metric: Metric
    threshold: float
    share: float = DEFAULT_SHARE
    outputs: tuple[str, ...] = ()

    @property
    def budget(self) -> float:
        """The loss that the threshold allows."""
        return self.metric.loss(self.threshold)

    @property
    def step(self) -> float:
        """The least loss that makes a layer a culprit."""
        return self.share * self.budget

    def judged(self, trial: Trial) -> Mapping[str, OutputFigures]:
        """The figures of the outputs that count."""
        return {name: figures for name, figures in trial.outputs.items() if not self.outputs or name in self.outputs}

    def loss(self, trial: Trial) -> float | None:
        """The loss of the worst output on the worst input; infinite where that is not finite, None where it failed."""
        if trial.failed:
            return None
        return max((self.output_loss(figures) for figures in self.judged(trial).values()), default=math.inf)

    def output_loss(self, figures: OutputFigures) -> float:
        """The loss of one output; infinite where it is not finite or nothing could be compared."""
        value = figures.values.get(self.metric.name)
        return math.inf if value is None or not figures.finite else self.metric.loss(value)

    def similarity(self, trial: Trial | None) -> float | None:
        """The metric's value for the worst output on the worst input, None where there is none."""
        if trial is None or trial.failed:
            return None
        judged = self.judged(trial)
        if not judged or any(self.output_loss(figures) == math.inf for figures in judged.values()):
            return None
        worst = max(judged.values(), key=self.output_loss)
        return worst.values[self.metric.name]

    def by_input(self, trial: Trial | None) -> ByInput | None:
        """The metric's value for the worst output on each input; None where the trial failed, or had a single input."""
        judged = [] if trial is None or trial.failed else list(self.judged(trial).values())
        known = [figures.inputs[self.metric.name] for figures in judged if self.metric.name in figures.inputs]
        if not known or len(known) < len(judged):
            return None
        places = list(zip(*known, strict=True))
        counting = [[value for value in values if value is not None] for values in places]
        worst = [self.metric.worst(values) if values else None for values in counting]
        misses = [value is not None and self.metric.loss(value) > self.budget for value in worst]
        return ByInput(tuple(worst), sum(misses), self.metric)

    def meets(self, trial: Trial | None) -> bool:
        """Whether a trial was measured and is at or above the threshold."""
        loss = None if trial is None else self.loss(trial)
        return loss is not None and loss <= self.budget


@dataclass(frozen=True)
class ByInput:
    """A trial's figures, input by input.

    Attributes:
        values: NaN where there is none, None where the input does not count because FP32's output is almost zero.
        misses: how many miss the threshold.
        metric: that they are of.
    """

    values: tuple[float | None, ...]
    misses: int
    metric: Metric

    def facts(self) -> dict[str, Any]:
        """What a report says of it: ``inputs``, how many count; ``misses``; ``mean`` of those with a figure.

        ``worst`` is the place of the worst, from 0; ``values`` and ``faint``, the places of those that do not count.
        """
        counting = {place: value for place, value in enumerate(self.values) if value is not None}
        known = [value for value in counting.values() if math.isfinite(value)]
        return {
            "inputs": len(counting),
            "misses": self.misses,
            "mean": sum(known) / len(known) if known else None,
            "worst": max(counting, key=lambda place: self.metric.loss(counting[place]), default=None),
            "values": list(self.values),
            "faint": [place for place, value in enumerate(self.values) if value is None],
        }


def make_rule(
    metric: Metric, threshold: float | None, share: float = DEFAULT_SHARE, outputs: Sequence[str] = ()
) -> Rule:
    """A rule with the metric's own threshold where none is given.

    Raises:
        BadInput: the metric has no threshold of its own, a value is out of range, or nothing is allowed to be lost.
    """
    if threshold is None:
        threshold = DEFAULT_THRESHOLDS.get(metric.name)
    if threshold is None or not math.isfinite(threshold):
        raise BadInput(
            f"Metric '{metric.name}' needs a threshold.", "Give --threshold, the worst value that is still good."
        )
    if share <= 0.0:
        raise BadInput(f"The culprit's share {share} is out of range.", "Give a value above 0, such as 0.5.")
    rule = Rule(metric, threshold, share, tuple(outputs))
    if metric.perfect is not None and rule.budget <= 0.0:
        raise BadInput(
            f"Threshold {threshold:g} leaves '{metric.name}' nothing to lose: equal outputs give {metric.perfect:g}.",
            "Give a value that is worse than that.",
        )
    return rule


Comparison = Callable[[Sequence[Outputs]], Mapping[str, OutputFigures]]


def comparison(
    reference: Sequence[Outputs], extra: Metric | None = None, classes: Mapping[str, Classes] | None = None
) -> Comparison:
    """From the outputs for every input to figures by all metrics, the user's ``extra`` one included.

    Args:
        reference: the FP32 outputs, one dictionary an input.
        extra: the metric that decides; a built-in one is there anyway.
        classes: how each output holds classes; found out where it is not given.
    """
    metrics = dict(BUILT_IN) if extra is None else {**BUILT_IN, extra.name: extra}
    judges = {
        name: OutputJudge([found[name] for found in reference], metrics, (classes or {}).get(name))
        for name in numeric_outputs(reference[0])
    }
    return lambda outputs: {name: judge.figures([found[name] for found in outputs]) for name, judge in judges.items()}


def numeric_outputs(outputs: Outputs) -> list[str]:
    """The outputs that are arrays of numbers, not texts, sequences or maps."""
    return [name for name, value in outputs.items() if isinstance(value, np.ndarray) and value.dtype.kind in "fiub"]


def outputs_to_judge(outputs: Outputs) -> list[str]:
    """The outputs that count where the user names none: the floating-point ones, or all that hold numbers.

    Labels and indices are no measure of accuracy by the cosine of their numbers.
    """
    numeric = numeric_outputs(outputs)
    return [name for name in numeric if outputs[name].dtype.kind == "f"] or numeric


def compare_arrays(
    reference: Sequence[np.ndarray],
    output: Sequence[np.ndarray],
    metrics: Mapping[str, Metric],
    class_axis: int | None = None,
) -> OutputFigures:
    """The figures of one output, each input by itself.

    Shapes that differ are compared where both have values. Places where the reference is NaN or infinite are left out.

    Args:
        reference: the FP32 output for each input.
        output: what is compared with it, likewise.
        metrics: by name.
        class_axis: see ``find_classes``.
    """
    return OutputJudge(reference, metrics, find_classes(reference, class_axis)).figures(output)


def nonfinite_in_reference(reference: Sequence[Outputs]) -> dict[str, str]:
    """What is to be said of reference outputs that hold NaN or infinite values themselves, by output."""
    said = {}
    for name in numeric_outputs(reference[0]):
        counts = [int(np.size(found[name]) - np.isfinite(_as_float(found[name])).sum()) for found in reference]
        if any(counts):
            inputs = sum(count > 0 for count in counts)
            said[name] = (
                f"the FP32 reference itself holds {sum(counts)} NaN or infinite values in output '{name}' "
                f"({inputs} of {len(counts)} inputs); they are left out of the comparison"
            )
    return said


def _as_float(array: np.ndarray) -> np.ndarray:
    return np.asarray(array).astype(np.float64)


def _on_worst_input(figures: OutputFigures) -> tuple[float | None, float | None]:
    """SQNR with the mean taken out, and cosine, on the input with the worst cosine."""
    values = figures.values
    if "cosine" in values and figures.inputs:
        place = figures.inputs["cosine"].index(values["cosine"])
        return figures.inputs["centered_sqnr"][place], values["cosine"]
    return values.get("centered_sqnr"), values.get("cosine")


def sqnr_disagreement(rule: Rule, trial: Trial) -> str:
    """A warning where cosine and SQNR disagree about whether there is a problem, else an empty text.

    For small errors without an offset, ``1 - cosine = noise / (2 signal)``, so the threshold T of cosine stands for an
    SQNR of ``-10 log10(2 (1 - T))``. The signal of the SQNR used has the mean taken out. 3 dB either way are allowed.
    """
    if rule.metric.name != "cosine" or rule.budget <= 0.0:
        return ""
    level = -10.0 * math.log10(2.0 * rule.budget)
    for name, figures in rule.judged(trial).items():
        found, value = _on_worst_input(figures)
        if found is None or value is None:
            continue
        if found <= -EXACT_SQNR:
            continue
        good = rule.metric.loss(value) <= rule.budget
        if good and found < level - 3.0:
            return (
                f"Output '{name}': cosine {100 * value:.3f}% meets the threshold, but SQNR with the mean taken out is "
                f"{found:.1f} dB where {level:.1f} dB would go with it. A common offset or a softmax flatters cosine; "
                "look at --metric centered_sqnr as well."
            )
        if not good and found > level + 3.0:
            return (
                f"Output '{name}': cosine {100 * value:.3f}% misses the threshold, but SQNR is {found:.1f} dB where "
                f"{level:.1f} dB would go with it; look at --metric sqnr as well."
            )
    return ""
