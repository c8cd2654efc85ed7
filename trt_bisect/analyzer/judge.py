"""Comparison of final outputs with FP32's, and of the figures with the threshold."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trt_bisect.analyzer.classes import Classes, find_classes
from trt_bisect.analyzer.compare_output import OutputJudge
from trt_bisect.analyzer.integers import CLASSES, CLASSES_MISSED, FEW_ELEMENTS, LABELS, PLAIN, IntegerJudge, Integers
from trt_bisect.analyzer.metrics import (
    AGREEMENT,
    BUILT_IN,
    EQUAL,
    FRACTIONS,
    Metric,
    default_threshold,
    figure_text,
    loss_text,
)
from trt_bisect.analyzer.rows import ROWS, ROWS_MISSED, rows_missed
from trt_bisect.analyzer.slices import Slices, output_of
from trt_bisect.analyzer.tasks.task import FOUND, Judge, Task
from trt_bisect.analyzer.variation import VARIATION, VARIATION_MISSED, inputs_vary
from trt_bisect.builder.base import Outputs
from trt_bisect.data.feeds import Feeds
from trt_bisect.errors import BadInput
from trt_bisect.evaluator.trial import OutputFigures, Trial
from trt_bisect.precision import Precision

DEFAULT_SHARE = 0.5
# By key of OutputFigures.pooled, the share above which the figure is a miss.
_MISSED = {ROWS: ROWS_MISSED, CLASSES: CLASSES_MISSED, VARIATION: VARIATION_MISSED}


@dataclass(frozen=True)
class Rule:
    """A metric and its threshold, by which measured plans (trials) are judged.

    Attributes:
        threshold: the worst value that is still good.
        share: a layer is a suspect if it loses at least this share of the loss that the threshold allows.
        outputs: the judged outputs, or parts such as ``output0[:, 4:84]``; empty for all. The worst of them decides.
        reads: the outputs that the task reads; empty without a task.
    """

    metric: Metric
    threshold: float
    share: float = DEFAULT_SHARE
    outputs: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()

    @property
    def budget(self) -> float:
        """The loss that the threshold allows."""
        return self.metric.loss(self.threshold)

    @property
    def step(self) -> float:
        """The smallest loss that makes a layer a suspect."""
        return self.share * self.budget

    def text(self, value: float) -> str:
        """Returns a value of the metric as text; rounding never moves it across the threshold."""
        return figure_text(self.metric.name, value, self.threshold)

    def loss_text(self, loss: float) -> str:
        """Returns a loss as text."""
        return loss_text(self.metric.name, loss)

    def judged(self, trial: Trial) -> Mapping[str, OutputFigures]:
        """Returns a trial's figures of the judged outputs."""
        return self.judged_of(trial.outputs)

    def judged_of(self, outputs: Mapping[str, OutputFigures]) -> Mapping[str, OutputFigures]:
        """Returns the entries of ``outputs`` that are judged."""
        return {name: figures for name, figures in outputs.items() if not self.outputs or name in self.outputs}

    def loss(self, trial: Trial) -> float | None:
        """Returns the loss of a trial's worst output; None if the trial failed, infinity if an output is not finite."""
        if trial.failed:
            return None
        return max((self.output_loss(figures) for figures in self.judged(trial).values()), default=math.inf)

    def output_loss(self, figures: OutputFigures) -> float:
        """Returns the largest loss of an output, on its worst input or over all inputs together; infinity if it is not
        finite, or nothing could be compared.
        """
        own = self.own_loss(figures)
        pooled = [self.pooled_loss(kind, *counts) for kind, counts in self.pools(figures).items()]
        losses = pooled if own is None else [*pooled, own]
        return max(losses, default=math.inf)

    def own_loss(self, figures: OutputFigures) -> float | None:
        """Returns the loss of an output on its worst input; None if it is judged only over all inputs together."""
        if not figures.finite:
            return math.inf
        if self.metric is EQUAL and LABELS in figures.pooled:
            return None
        value = figures.values.get(self.metric.name)
        return None if value is None else self.metric.loss(value)

    def pools(self, figures: OutputFigures) -> Mapping[str, tuple[float, float]]:
        """Returns the counts over all inputs by which an output is judged besides its metric: by kind, (differing,
        all).

        The kinds are ``rows``; ``labels`` if the metric is ``equal``, else ``classes``; and ``variation``, if the
        metric's own value meets the threshold.
        """
        # Labels decide if all judged outputs are integers: next to floats, a strict share of equal elements would fail
        # good plans.
        kinds = [ROWS, LABELS if self.metric is EQUAL else CLASSES]
        own = self.own_loss(figures)
        if own is not None and own <= self.budget:
            kinds.append(VARIATION)
        return {name: counts for name, counts in figures.pooled.items() if name in kinds}

    def missed(self, kind: str) -> float:
        """Returns the share above which an output misses the threshold: for ``kind`` rows or classes, the share that
        differs; for variation, the share that is lost.
        """
        # If the user accepts a cosine below 0.5, as little of the variation may be left.
        accepted = 1.0 - self.threshold**2 if kind == VARIATION and self.metric.name == "cosine" else 0.0
        return max(_MISSED[kind], accepted)

    def pooled_loss(self, kind: str, differ: float, of_all: float, *, alone: bool = False) -> float:
        """Returns the loss if ``differ`` of ``of_all`` rows, labels or classes (``kind``) differ over all inputs or, if
        ``alone``, on one.

        For labels the loss is this share; for other kinds it is 0 unless the share is a miss.
        """
        share = min(1.0, differ / of_all) if of_all else 0.0
        if kind == LABELS:
            return share
        limit = self.missed(kind)
        missed = share > limit
        if kind == ROWS and not alone:
            missed = rows_missed(differ, of_all)
        elif kind == CLASSES and not alone:
            missed = missed and of_all >= FEW_ELEMENTS
        if not missed:
            return 0.0
        beyond = self.budget * share / limit
        return max(share, beyond) if self.metric.name in FRACTIONS else beyond

    def similarity(self, trial: Trial | None) -> float | None:
        """Returns the metric's value for the worst output on its worst input; None if the trial failed or an output is
        not finite.

        If a share over all inputs decides, such as that of lost rows, returns the metric's value of the same loss.
        """
        judged = {} if trial is None else self.judged(trial)
        if not judged or any(self.output_loss(figures) == math.inf for figures in judged.values()):
            return None
        worst = judged[self.worst_of(judged)]
        loss, value = self.output_loss(worst), worst.values.get(self.metric.name)
        if value is not None and self.own_loss(worst) == loss:
            return value
        return self.metric.value(loss)

    def by_input(self, trial: Trial | None) -> ByInput | None:
        """Returns a trial's figures by input: on each input, those of the output that is worst there; None if the trial
        failed or had one input.
        """
        judged = [] if trial is None else list(self.judged(trial).values())
        own = [figures for figures in judged if self.own_loss(figures) is not None]
        by_output = [figures.inputs[self.metric.name] for figures in own if self.metric.name in figures.inputs]
        if len(by_output) < len(own):
            return None
        by_output += [values for figures in judged for values in self._pooled_by_input(figures, always=not own)]
        if not by_output:
            return None
        by_place = [[value for value in values if value is not None] for values in zip(*by_output, strict=True)]
        worst = {place: self.metric.worst(values) for place, values in enumerate(by_place) if values}
        losses = {place: self.metric.loss(value) for place, value in worst.items()}
        empty = {
            place
            for figures in own
            for place, found in enumerate(figures.inputs.get(FOUND, ()))
            if found == 0.0 and self.metric is AGREEMENT
        }
        losses_found = {place: loss for place, loss in losses.items() if place not in empty}
        finite = {place: value for place, value in worst.items() if math.isfinite(value)}
        counting = losses_found or losses
        mean = fifth = None
        if figures_found := [value for place, value in finite.items() if place in counting]:
            mean = sum(figures_found) / len(figures_found)
            fifth = float(np.percentile(figures_found, 5 if self.metric.higher else 95))
        return ByInput(
            inputs=len(losses_found),
            misses=sum(loss > self.budget for loss in losses_found.values()),
            mean=mean,
            fifth=fifth,
            worst=max(counting, key=lambda place: losses[place], default=None),
            values=tuple(map(finite.get, range(len(by_place)))),
            faint=tuple(place for place, values in enumerate(by_place) if not values),
            together=self.metric is AGREEMENT or not own,
            invented=len(losses) - len(losses_found),
        )

    def worst_of(self, judged: Mapping[str, OutputFigures]) -> str:
        """Returns the name of the worst of the outputs; empty without any."""
        return max(judged, key=lambda name: self.output_loss(judged[name]), default="")

    def deciding(self, trial: Trial) -> tuple[str, str]:
        """Returns the name of the worst output; and ``rows``, ``labels``, ``classes`` or ``variation`` if a share of
        these decides, else empty. Both are empty if the trial failed.
        """
        judged = self.judged(trial)
        name = self.worst_of(judged)
        if not name:
            return "", ""
        loss, own = self.output_loss(judged[name]), self.own_loss(judged[name])
        pools = self.pools(judged[name]).items() if loss > (own or 0.0) else ()
        return name, next((kind for kind, counts in pools if self.pooled_loss(kind, *counts) == loss), "")

    def only_varies_less(self, trial: Trial) -> bool:
        """Returns true if a trial misses only because its worst output varies too little."""
        return self.deciding(trial)[1] == VARIATION

    def _pooled_by_input(self, figures: OutputFigures, *, always: bool) -> Iterator[tuple[float | None, ...]]:
        for kind, counts in self.pools(figures).items():
            shares = figures.inputs.get(kind, ())
            if shares and (always or self.pooled_loss(kind, *counts) > self.budget):
                losses = [None if share is None else self.pooled_loss(kind, share, 1.0, alone=True) for share in shares]
                yield tuple(None if loss is None else self.metric.value(loss) for loss in losses)

    def meets(self, trial: Trial | None) -> bool:
        """Returns true if a trial was measured and meets the threshold."""
        loss = None if trial is None else self.loss(trial)
        return loss is not None and loss <= self.budget


@dataclass(frozen=True)
class ByInput:
    """The figures of a trial by input.

    With a task, an input on which FP32 finds nothing does not count.

    Attributes:
        inputs: the number of inputs that count.
        misses: the number of these that miss.
        mean: the mean of the finite ``values`` on the inputs that count; on all inputs if none counts.
        fifth: the 5th percentile (``numpy.percentile``) of the values of ``mean``; the 95th if lower is better.
        worst: the index of the worst of the inputs that count; of all inputs if none counts.
        values: the metric on each input; None if it is not finite, or the input has no value.
        faint: the indices of the inputs without a value.
        together: true if the threshold is for all inputs together, not for each.
        invented: the number of further inputs on which only the plan finds something.
    """

    inputs: int
    misses: int
    mean: float | None
    worst: int | None
    fifth: float | None = None
    values: tuple[float | None, ...] = ()
    faint: tuple[int, ...] = ()
    together: bool = False
    invented: int = 0


def make_rule(
    metric: Metric,
    threshold: float | None,
    share: float = DEFAULT_SHARE,
    outputs: Sequence[str] = (),
    low: Precision = Precision.INT8,
) -> Rule:
    """Returns a ``Rule`` with these values; ``threshold`` None: the metric's default for the ``low`` precision.

    Raises:
        BadInput: the metric has no default threshold, a value is out of range, or the threshold allows no loss.
    """
    if threshold is None:
        threshold = default_threshold(metric.name, low)
    if threshold is None or not math.isfinite(threshold):
        raise BadInput(f"Metric '{metric.name}' needs a threshold.", "Give --threshold, the worst acceptable value.")
    if share <= 0.0:
        raise BadInput(f"The share {share} is out of range.", "Give a share above 0, such as 0.5.")
    rule = Rule(metric, threshold, share, tuple(outputs))
    refuse_per_cent(metric, threshold, "--threshold")
    if metric.name in FRACTIONS and threshold <= 0.0:
        raise BadInput(
            f"Threshold {threshold:g} of '{metric.name}' accepts outputs that have nothing in common.",
            "Give --threshold between 0 and 1, such as 0.99.",
        )
    refuse_no_loss(rule)
    return rule


def refuse_no_loss(rule: Rule) -> None:
    """Raises BadInput for a threshold that allows no loss."""
    perfect = rule.metric.perfect
    if perfect is not None and rule.budget <= 0.0:
        raise BadInput(
            f"Threshold {rule.threshold:g} of '{rule.metric.name}' allows no loss: equal outputs give {perfect:g}.",
            f"Give a threshold that is worse than {perfect:g}.",
        )


def refuse_per_cent(metric: Metric, value: float, name: str) -> None:
    """Raises BadInput if ``value`` of a metric of fractions is above 1, probably in percent; ``name`` is the option."""
    if metric.name not in FRACTIONS or value <= 1.0:
        return
    if value > 100.0:
        raise BadInput(f"{name} cannot be {value:g}: equal outputs give 1 for '{metric.name}'.", f"Give {name} 0.99.")
    raise BadInput(
        f"{name} {value:g} of '{metric.name}' is in percent; equal outputs give 1.", f"Give {name} {value / 100.0:g}."
    )


class Comparer:
    """Compares final outputs, and parts of them, with ``reference``, FP32's outputs for each input.

    Args:
        extra: the user's own metric.
        classes: the classes by name of output or part; default: found from ``reference``.
        slices: the parts to compare besides whole outputs.
        task: the task whose agreement is measured too.
        integers: the way to compare integer outputs, unless ``extra`` judges them.
        only: compute only this metric; default: all built-in ones and ``extra``.
        with_facts: also look for clipping and vanished classes.
        inputs: the feeds by input; if given, the outputs' variation over them is compared too.
    """

    def __init__(
        self,
        reference: Sequence[Outputs],
        extra: Metric | None = None,
        classes: Mapping[str, Classes] | None = None,
        slices: Slices | None = None,
        task: Task | None = None,
        integers: Integers = PLAIN,
        *,
        only: Metric | None = None,
        with_facts: bool = True,
        inputs: Sequence[Feeds] = (),
    ) -> None:
        classes, slices = classes or {}, slices or Slices()
        self._reference, self._with_groups, self._task = reference, slices.with_groups, task
        unlike = inputs_vary(inputs) if inputs else None
        self._judge: Judge | None = None
        chosen = [only] if only is not None else [*BUILT_IN.values(), extra]
        metrics = {metric.name: metric for metric in chosen if metric not in (None, AGREEMENT, EQUAL)}
        parts = [self._with_groups(outputs) for outputs in reference]
        self._judges: dict[str, OutputJudge | IntegerJudge] = {}
        by_equality = set() if extra is not None and extra.code else set(integers.of(reference[0]))
        for name in numeric_outputs(parts[0]) if only is not AGREEMENT else ():
            arrays, group = [part[name] for part in parts], slices.group(name)
            if name in by_equality:
                rows = integers.selections.get(name)
                self._judges[name] = IntegerJudge(arrays, integers.sets.get(name), rows=rows)
                continue
            if not metrics:
                continue
            faint = group.faint_inputs(arrays) if group else ()
            if len(faint) < len(arrays):
                predicted = group.classes if group else None
                self._judges[name] = OutputJudge(
                    arrays,
                    metrics,
                    classes.get(name),
                    predicted=predicted,
                    faint=faint,
                    with_facts=with_facts,
                    unlike=unlike,
                )

    def __call__(self, outputs: Sequence[Outputs]) -> dict[str, OutputFigures]:
        """Returns the figures by name of output, part and task, from the outputs for each input. Parts whose scores are
        below 0.05 in FP32 on all inputs are left out.
        """
        parts = [self._with_groups(of_input) for of_input in outputs]
        figures = {name: judge.figures([part[name] for part in parts]) for name, judge in self._judges.items()}
        if self._task is not None:
            figures[self._task.entry] = self._of_task(self._task, dict(enumerate(outputs)))
        return figures

    def at(self, place: int, outputs: Outputs) -> dict[str, OutputFigures]:
        """Returns the figures by output for the input of index ``place``, without outputs that are almost zero in FP32
        there.
        """
        part = self._with_groups(outputs)
        figures = {name: judge.at(place, np.asarray(part[name])) for name, judge in self._judges.items()}
        if self._task is not None:
            figures[self._task.entry] = self._of_task(self._task, {place: outputs})
        return {name: of_output for name, of_output in figures.items() if of_output is not None}

    def _of_task(self, task: Task, outputs: Mapping[int, Outputs]) -> OutputFigures:
        self._judge = self._judge or task.judge(self._reference)
        return self._judge(outputs)


def numeric_outputs(outputs: Outputs) -> list[str]:
    """Returns the names of the outputs that are arrays of numbers."""
    return [name for name, value in outputs.items() if isinstance(value, np.ndarray) and value.dtype.kind in "fiub"]


def outputs_to_judge(outputs: Outputs, integers: Integers = PLAIN, *, own_metric: bool = False) -> list[str]:
    """Returns the names of the outputs judged by default: all arrays of numbers. With a user's ``own_metric``, those
    that ``integers`` judges by equality are left out, unless all are such.
    """
    numeric = numeric_outputs(outputs)
    if not own_metric:
        return numeric
    # A user's own metric may mean nothing for labels.
    return [name for name in numeric if not integers.is_one(name, outputs[name])] or numeric


def judged_outputs(rule: Rule, outputs: Outputs) -> list[str]:
    """Returns the names of the outputs that a rule names, in whole or in part; if it names none, of all arrays of
    numbers.
    """
    numeric, named = numeric_outputs(outputs), {output_of(name) for name in rule.outputs}
    return [name for name in numeric if name in named] or numeric


def compare_arrays(
    reference: Sequence[np.ndarray],
    output: Sequence[np.ndarray],
    metrics: Mapping[str, Metric],
    class_axis: int | None = None,
) -> OutputFigures:
    """Returns the figures of ``output`` against ``reference``, both by input: the value of each of ``metrics`` on the
    worst input. ``class_axis`` None: the axis of the classes is found.
    """
    return OutputJudge(reference, metrics, find_classes(reference, class_axis)).figures(output)


def nonfinite_in_reference(reference: Sequence[Outputs]) -> dict[str, str]:
    """Returns, by output, a note on NaN or infinite values in FP32."""
    notes = {}
    for name in numeric_outputs(reference[0]):
        counts = [int(np.size(outputs[name]) - np.isfinite(outputs[name]).sum()) for outputs in reference]
        if any(counts):
            inputs = sum(count > 0 for count in counts)
            notes[name] = (
                f"the FP32 reference itself has {sum(counts)} NaN or infinite values in output '{name}' "
                f"({inputs} of {len(counts)} inputs); the comparison leaves them out"
            )
    return notes
