"""The judge: final outputs against the FP32 reference's, figures against the threshold."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

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
        """The loss of the worst output; infinite where an output is not finite, None where the trial failed."""
        if trial.failed:
            return None
        return max((self.output_loss(figures) for figures in self.judged(trial).values()), default=math.inf)

    def output_loss(self, figures: OutputFigures) -> float:
        """The loss of one output; infinite where it is not finite or nothing could be compared."""
        value = figures.values.get(self.metric.name)
        return math.inf if value is None or not figures.finite else self.metric.loss(value)

    def similarity(self, trial: Trial | None) -> float | None:
        """The metric's value on the worst output, None where there is none."""
        if trial is None or trial.failed:
            return None
        judged = self.judged(trial)
        if not judged or any(self.output_loss(figures) == math.inf for figures in judged.values()):
            return None
        worst = max(judged.values(), key=self.output_loss)
        return worst.values[self.metric.name]

    def meets(self, trial: Trial | None) -> bool:
        """Whether a trial was measured and is at or above the threshold."""
        loss = None if trial is None else self.loss(trial)
        return loss is not None and loss <= self.budget


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


def comparison(reference: Sequence[Outputs], extra: Metric | None = None) -> Comparison:
    """From the outputs for every input to figures by all metrics, the user's ``extra`` one included.

    Args:
        reference: the FP32 outputs, one dictionary an input.
    """
    metrics = dict(BUILT_IN) if extra is None else {**BUILT_IN, extra.name: extra}
    names = numeric_outputs(reference[0])
    return lambda outputs: {
        name: compare_arrays([found[name] for found in reference], [found[name] for found in outputs], metrics)
        for name in names
    }


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
    reference: Sequence[np.ndarray], output: Sequence[np.ndarray], metrics: Mapping[str, Metric]
) -> OutputFigures:
    """The figures of one output over all inputs together.

    Shapes that differ are compared where both have values. Places where the reference is NaN or infinite are left out.
    """
    notes: dict[str, None] = {}
    pairs = [_comparable(r, o, notes) for r, o in zip(reference, output, strict=True)]
    finite = all(bool(np.isfinite(o[np.isfinite(r)]).all()) for r, o in pairs)
    if not finite:
        return OutputFigures({}, finite=False, note="; ".join([*notes, "NaN or infinite values"]))
    rows = [_rows(r, o) for r, o in pairs]
    if all(r.size == 0 for r, _ in rows):
        equal = all(r.shape == o.shape for r, o in zip(reference, output, strict=True))
        values = {m.name: m.perfect for m in metrics.values() if m.perfect is not None} if equal else {}
        return OutputFigures(values, note="; ".join([*notes, "no values to compare"]))
    if len({r.shape[-1] for r, _ in rows}) > 1:
        rows = [(r.reshape(-1, 1), o.reshape(-1, 1)) for r, o in rows]
        notes["inputs whose outputs differ in shape are compared value by value"] = None
    all_reference, all_output = (np.concatenate(arrays) for arrays in zip(*rows, strict=True))
    values = {metric.name: metric.function(all_reference, all_output) for metric in metrics.values()}
    return OutputFigures(values, note="; ".join(notes))


def _comparable(reference: np.ndarray, output: np.ndarray, notes: dict[str, None]) -> tuple[np.ndarray, np.ndarray]:
    """Both arrays as float64, cut to the region that both have."""
    r, o = np.asarray(reference).astype(np.float64), np.asarray(output).astype(np.float64)
    if r.shape == o.shape:
        return r, o
    notes[f"shape {list(o.shape)} instead of {list(r.shape)}, compared where both have values"] = None
    if r.ndim != o.ndim:
        return r.reshape(-1)[:0], o.reshape(-1)[:0]
    region = tuple(slice(0, min(sizes)) for sizes in zip(r.shape, o.shape, strict=True))
    return r[region], o[region]


def _rows(reference: np.ndarray, output: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``[rows, last axis]``; a value a row where some of the reference is not finite."""
    kept = np.isfinite(reference)
    if not kept.all():
        return reference[kept].reshape(-1, 1), output[kept].reshape(-1, 1)
    width = reference.shape[-1] if reference.ndim else 1
    return reference.reshape(-1, max(width, 1)), output.reshape(-1, max(width, 1))


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


def sqnr_disagreement(rule: Rule, trial: Trial) -> str:
    """A warning where cosine and SQNR disagree about whether there is a problem, else an empty text.

    For small errors without an offset, ``1 - cosine = noise / (2 signal)``, so the threshold T of cosine stands for an
    SQNR of ``-10 log10(2 (1 - T))``. The signal of the SQNR used has the mean taken out. 3 dB either way are allowed.
    """
    if rule.metric.name != "cosine" or rule.budget <= 0.0:
        return ""
    level = -10.0 * math.log10(2.0 * rule.budget)
    for name, figures in rule.judged(trial).items():
        found, value = figures.values.get("centered_sqnr"), figures.values.get("cosine")
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
