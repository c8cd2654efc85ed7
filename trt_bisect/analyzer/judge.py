"""The judge: compares final outputs with the FP32 outputs, and their figures with the threshold."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trt_bisect.analyzer.classes import Classes, find_classes
from trt_bisect.analyzer.compare_output import OutputJudge
from trt_bisect.analyzer.metrics import AGREEMENT, BUILT_IN, DEFAULT_THRESHOLDS, EXACT_SQNR, Metric
from trt_bisect.analyzer.tasks.task import Task
from trt_bisect.builder.base import Outputs
from trt_bisect.errors import BadInput
from trt_bisect.evaluator.trial import OutputFigures, Trial

DEFAULT_SHARE = 0.5


@dataclass(frozen=True)
class Rule:
    """The rule by which trials are judged.

    Attributes:
        metric: the deciding metric.
        threshold: the worst value of the metric that is still good.
        share: a culprit loses at least this share of the loss that the threshold allows.
        outputs: the final outputs that count; empty for all. The worst output decides.
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
        """The smallest loss that makes a layer a culprit."""
        return self.share * self.budget

    def judged(self, trial: Trial) -> Mapping[str, OutputFigures]:
        """Returns the figures of the outputs that count, by name."""
        return {name: figures for name, figures in trial.outputs.items() if not self.outputs or name in self.outputs}

    def loss(self, trial: Trial) -> float | None:
        """Returns the loss of the worst output on the worst input.

        It is infinite if an output is not finite, and None if the trial failed.
        """
        if trial.failed:
            return None
        return max((self.output_loss(figures) for figures in self.judged(trial).values()), default=math.inf)

    def output_loss(self, figures: OutputFigures) -> float:
        """Returns the loss of one output; infinite if it is not finite or nothing could be compared."""
        value = figures.values.get(self.metric.name)
        return math.inf if value is None or not figures.finite else self.metric.loss(value)

    def similarity(self, trial: Trial | None) -> float | None:
        """Returns the metric's value for the worst output on the worst input; None if there is no such value."""
        if trial is None or trial.failed:
            return None
        judged = self.judged(trial)
        if not judged or any(self.output_loss(figures) == math.inf for figures in judged.values()):
            return None
        worst = max(judged.values(), key=self.output_loss)
        return worst.values[self.metric.name]

    def by_input(self, trial: Trial | None) -> ByInput | None:
        """Returns the metric's value for the worst output on each input; None if the trial failed or had one input."""
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
        """Returns true if a trial was measured and is as good as the threshold or better."""
        loss = None if trial is None else self.loss(trial)
        return loss is not None and loss <= self.budget


@dataclass(frozen=True)
class ByInput:
    """The figures of a trial for each input.

    Attributes:
        values: the metric; NaN if it has no value, None if the input does not count since the FP32 output is almost
            zero.
        misses: the number of inputs that miss the threshold.
        metric: the metric of the values.

    With a task, whose agreement is judged over all inputs together, an input on which there is nothing to compare does
    not count.
    """

    values: tuple[float | None, ...]
    misses: int
    metric: Metric

    def facts(self) -> dict[str, Any]:
        """Returns the record for a report.

        Its keys: ``inputs``, the number of inputs that count; ``misses``; ``mean``, of the finite values; ``worst``,
        the index of the worst input; ``values``; ``faint``, the indices of the inputs that do not count; ``together``,
        true if the threshold is for all inputs together and not for the worst one.
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
            "together": self.metric is AGREEMENT,
        }


def make_rule(
    metric: Metric, threshold: float | None, share: float = DEFAULT_SHARE, outputs: Sequence[str] = ()
) -> Rule:
    """Returns a rule, by default with the metric's own threshold.

    Raises:
        BadInput: the metric has no threshold of its own, a value is out of range, or the threshold allows no loss.
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
            f"Threshold {threshold:g} of '{metric.name}' allows no loss: equal outputs give {metric.perfect:g}.",
            f"Give a threshold that is worse than {metric.perfect:g}.",
        )
    return rule


Comparison = Callable[[Sequence[Outputs]], Mapping[str, OutputFigures]]


def comparison(
    reference: Sequence[Outputs],
    extra: Metric | None = None,
    classes: Mapping[str, Classes] | None = None,
    task: Task | None = None,
) -> Comparison:
    """Returns a function from the outputs for every input to their figures by all metrics.

    Args:
        reference: the FP32 outputs, one dictionary for each input.
        extra: the user's own metric, besides the built-in ones.
        classes: the classes of each output; found from ``reference`` by default.
        task: its agreement is one more entry among the figures.
    """
    metrics = dict(BUILT_IN) if extra is None or extra is AGREEMENT else {**BUILT_IN, extra.name: extra}
    judges = {
        name: OutputJudge([found[name] for found in reference], metrics, (classes or {}).get(name))
        for name in numeric_outputs(reference[0])
    }
    of_task = {} if task is None else {task.entry: task.judge(reference)}

    def compare(outputs: Sequence[Outputs]) -> dict[str, OutputFigures]:
        figures = {name: judge.figures([found[name] for found in outputs]) for name, judge in judges.items()}
        return figures | {entry: judge(outputs) for entry, judge in of_task.items()}

    return compare


def numeric_outputs(outputs: Outputs) -> list[str]:
    """Returns the names of the outputs that are arrays of numbers, not texts, sequences or maps."""
    return [name for name, value in outputs.items() if isinstance(value, np.ndarray) and value.dtype.kind in "fiub"]


def outputs_to_judge(outputs: Outputs) -> list[str]:
    """Returns the outputs that count if the user names none: the floating-point ones, or else all with numbers.

    The cosine of labels or indices is no measure of accuracy.
    """
    numeric = numeric_outputs(outputs)
    return [name for name in numeric if outputs[name].dtype.kind == "f"] or numeric


def compare_arrays(
    reference: Sequence[np.ndarray],
    output: Sequence[np.ndarray],
    metrics: Mapping[str, Metric],
    class_axis: int | None = None,
) -> OutputFigures:
    """Returns the figures of one output, each input by itself; see ``OutputJudge.figures``.

    Args:
        reference: the FP32 output for each input.
        output: the other output for each input.
        metrics: by name.
        class_axis: see ``find_classes``.
    """
    return OutputJudge(reference, metrics, find_classes(reference, class_axis)).figures(output)


def nonfinite_in_reference(reference: Sequence[Outputs]) -> dict[str, str]:
    """Returns a note by output for each reference output with NaN or infinite values."""
    notes = {}
    for name in numeric_outputs(reference[0]):
        counts = [int(np.size(found[name]) - np.isfinite(_as_float(found[name])).sum()) for found in reference]
        if any(counts):
            inputs = sum(count > 0 for count in counts)
            notes[name] = (
                f"the FP32 reference itself holds {sum(counts)} NaN or infinite values in output '{name}' "
                f"({inputs} of {len(counts)} inputs); they are left out of the comparison"
            )
    return notes


def _as_float(array: np.ndarray) -> np.ndarray:
    return np.asarray(array).astype(np.float64)


def _on_worst_input(figures: OutputFigures) -> tuple[float | None, float | None]:
    """Returns SQNR without the mean, and cosine, on the input with the worst cosine."""
    values = figures.values
    if "cosine" in values and figures.inputs:
        place = figures.inputs["cosine"].index(values["cosine"])
        return figures.inputs["centered_sqnr"][place], values["cosine"]
    return values.get("centered_sqnr"), values.get("cosine")


def sqnr_disagreement(rule: Rule, trial: Trial) -> str:
    """Returns a warning if cosine meets the threshold and SQNR does not, or the other way round; else an empty text.

    For small errors without an offset, ``1 - cosine = noise / (2 signal)``. So the threshold T of cosine corresponds to
    an SQNR of ``-10 log10(2 (1 - T))``, with the mean removed from the signal. A difference of 3 dB is allowed.
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
                f"Output '{name}': cosine {100 * value:.3f}% meets the threshold, but SQNR without the mean is "
                f"{found:.1f} dB, and the threshold corresponds to {level:.1f} dB. A common offset or a softmax makes "
                "cosine too high; look at --metric centered_sqnr as well."
            )
        if not good and found > level + 3.0:
            return (
                f"Output '{name}': cosine {100 * value:.3f}% misses the threshold, but SQNR is {found:.1f} dB, and the "
                f"threshold corresponds to {level:.1f} dB; look at --metric sqnr as well."
            )
    return ""
