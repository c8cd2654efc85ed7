"""The inputs of a data set on which INT8 and FP32 differ most."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import and_

import numpy as np

from trt_bisect.analyzer.classes import classes_of
from trt_bisect.analyzer.compare_output import are_single_scores, faint_places, is_broken, judged_norm, octave
from trt_bisect.analyzer.integers import PLAIN, Integers
from trt_bisect.analyzer.judge import Comparer, Rule, numeric_outputs
from trt_bisect.analyzer.metrics import RELATIVE
from trt_bisect.analyzer.slices import Slices
from trt_bisect.analyzer.tasks.task import Task, finds_nothing
from trt_bisect.builder.base import Engine, Outputs
from trt_bisect.data.feeds import Feeds
from trt_bisect.errors import BadInput, TrialFailed
from trt_bisect.evaluator.trial import MEASURED, Trial

# The loss of a sample on which FP32 gives nothing to compare: the worst only if all samples are like this.
_BROKEN = -math.inf


@dataclass(frozen=True)
class WorstInputs:
    """The worst inputs of a data set, and the figures of all.

    Attributes:
        inputs: the worst first.
        places: the indices of ``inputs`` in the data set.
        similarities: the metric on each sample; NaN without a value.
        losses: the loss of each sample; infinity if INT8's output is not finite, minus infinity if FP32's is not.
        faint: the indices of samples with an almost zero FP32 output, which do not count.
        first_broken: the first sample with a loss of minus infinity; None without one.
        stopped: true after Ctrl-C.
    """

    inputs: tuple[Feeds, ...]
    places: tuple[int, ...]
    similarities: tuple[float, ...]
    losses: tuple[float, ...]
    faint: tuple[int, ...]
    first_broken: Feeds | None
    rule: Rule
    stopped: bool = False

    @property
    def broken(self) -> tuple[int, ...]:
        """The indices of samples that do not count, since FP32's output has NaN, or no finite value."""
        return tuple(place for place, loss in enumerate(self.losses) if loss == _BROKEN)

    @property
    def median(self) -> float:
        """The median of the metric over the samples; NaN without any."""
        values = [value for value in self.similarities if not math.isnan(value)]
        return float(np.median(values)) if values else math.nan


@dataclass
class _Candidate:
    place: int
    loss: tuple[bool, float, float]  # False ranks after all others; the loss; larger for the worse of equal losses.
    octaves: tuple[int, ...]
    feeds: Feeds
    beaten: int = 0  # The number of samples that are at least as bad and have no fainter output.


@dataclass(frozen=True)
class SampleFigures:
    """The figures of a sample.

    Attributes:
        norms: the norms of the FP32 outputs; empty unless the metric is relative.
        tie: larger for the worse of two samples with equal losses.
        scores: by output, true for a single number from 0 to 1.
        is_empty: true if the task finds nothing in FP32.
    """

    loss: float
    similarity: float
    norms: tuple[float, ...]
    tie: float = 0.0
    scores: tuple[bool, ...] = ()
    is_empty: bool = False


class WorstSamples:
    """Keeps the worst ``count`` of the samples added so far."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._held: list[_Candidate] = []
        self._octaves: list[tuple[int, ...]] = []
        self._scores: tuple[bool, ...] = ()
        self.first_broken: Feeds | None = None

    @property
    def held(self) -> int:
        """The number of samples in memory."""
        return len(self._held)

    def offer(self, feeds: Feeds, figures: SampleFigures, *, judgeable: bool = True) -> None:
        """Adds the next sample; if not ``judgeable``, it ranks after all others."""
        if figures.loss == _BROKEN and self.first_broken is None:
            self.first_broken = feeds
        loss = judgeable, figures.loss, figures.tie
        new = _Candidate(len(self._octaves), loss, tuple(map(octave, figures.norms)), feeds)
        self._octaves.append(new.octaves)
        self._scores = tuple(map(and_, self._scores or figures.scores, figures.scores))
        for held in self._held:
            if held.loss >= new.loss:
                new.beaten += _nowhere_fainter(held.octaves, new.octaves)
            else:
                held.beaten += _nowhere_fainter(new.octaves, held.octaves)
        # Faint samples are known only at the end, with the median norm. So a sample is dropped only once count others
        # are worse and have no fainter output.
        self._held = [sample for sample in (*self._held, new) if sample.beaten < self._count]

    def faint(self) -> tuple[int, ...]:
        """Returns the indices of samples with an almost zero FP32 output."""
        if not any(self._scores):
            return faint_places(self._octaves)
        compared = [k for k, is_score in enumerate(self._scores) if not is_score]
        return faint_places([tuple(octaves[k] for k in compared) for octaves in self._octaves])

    def worst(self) -> list[tuple[int, Feeds]]:
        """Returns the worst samples with their indices, the worst first; of equal ones the earlier first."""
        faint = frozenset(self.faint())
        counting = [sample for sample in self._held if sample.place not in faint] or self._held
        chosen = sorted(counting, key=lambda sample: sample.loss, reverse=True)[: self._count]
        return [(sample.place, sample.feeds) for sample in chosen]


def worst_inputs(
    samples: Iterable[Feeds],
    fp32: Engine,
    int8: Engine,
    rule: Rule | Callable[[Outputs], Rule],
    count: int = 1,
    on_sample: Callable[[int], None] = lambda _: None,
    *,
    keep_when_stopped: bool = False,
    class_axis: int | None = None,
    slices: Callable[[Outputs], Slices] | None = None,
    task: Callable[[Sequence[Outputs]], Task | None] = lambda _: None,
    integers: Integers = PLAIN,
    found_first: bool = False,
) -> WorstInputs:
    """Runs every sample through both engines once and returns the ``count`` samples with the largest loss.

    Args:
        rule: the rule, or a function that makes it from FP32's outputs for the first sample.
        on_sample: called with the number of samples begun.
        keep_when_stopped: after Ctrl-C, return the result so far.
        class_axis: the axis of the classes; default: found from the first sample.
        slices: returns the parts of a sample's FP32 outputs; the first sample with parts decides; default: no parts.
        task: returns the task to judge, or None, from a list with FP32's outputs for the first sample.
        found_first: rank samples on which the task finds nothing in FP32 last.

    Raises:
        BadInput: ``count`` is below 1, there are no samples, or the metric needs an unknown class axis.
        TrialFailed: an engine does not run on a sample; the message has its number.
    """
    if count < 1:
        raise BadInput(f"{count} worst inputs cannot be kept.", "Keep 1 or more.")
    search, stopped = WorstSamples(count), False
    judged: list[SampleFigures] = []
    judge: _SampleJudge | None = None
    try:
        for feeds in samples:
            on_sample(len(judged) + 1)
            reference = _ran(fp32, feeds, len(judged))
            judge = judge or _SampleJudge(rule, reference, class_axis, task, integers)
            if slices is not None and not judge.slices.by_output:
                judge.slices = slices(reference)
            judged.append(figures := judge.figures(reference, _ran(int8, feeds, len(judged))))
            search.offer(feeds, figures, judgeable=not (found_first and figures.is_empty))
    except KeyboardInterrupt:
        if not (keep_when_stopped and search.held):
            raise
        stopped = True
    if judge is None or not search.held:
        raise BadInput("There are no samples to search for the worst input.", "Give --dataset, or --input.")
    places, inputs = zip(*search.worst(), strict=True)
    losses, similarities = zip(*((sample.loss, sample.similarity) for sample in judged), strict=True)
    return WorstInputs(inputs, places, similarities, losses, search.faint(), search.first_broken, judge.rule, stopped)


def _ran(engine: Engine, feeds: Feeds, number: int) -> Outputs:
    try:
        return engine.infer(feeds)
    except TrialFailed as failure:
        raise TrialFailed(failure.outcome, f"sample {number}: {failure.message}") from failure


class _SampleJudge:
    def __init__(
        self,
        rule: Rule | Callable[[Outputs], Rule],
        reference: Outputs,
        class_axis: int | None,
        task: Callable[[Sequence[Outputs]], Task | None],
        integers: Integers,
    ) -> None:
        self.rule = rule if isinstance(rule, Rule) else rule(reference)
        self.slices = Slices()
        equality = integers.of(reference)
        judged = [name for name in self.rule.outputs or reference if name not in equality]
        self._classes, _ = classes_of([reference], judged, self.rule.metric.name, class_axis)
        self._integers = integers
        self._task = task([reference])
        self._judged = self.rule.outputs or numeric_outputs(reference)

    def figures(self, reference: Outputs, output: Outputs) -> SampleFigures:
        relative = self.rule.metric.name in RELATIVE
        scores = tuple(are_single_scores([reference[name]]) for name in self._judged) if relative else ()
        if any(is_broken(reference[name]) for name in self._judged if name in reference):
            norms = (math.inf,) * len(self._judged) if relative else ()
            return SampleFigures(_BROKEN, math.nan, norms, scores=(True,) * len(norms))
        parts = self._classes, self.slices, self._task, self._integers
        compare = Comparer([reference], self.rule.metric, *parts, with_facts=False)
        trial, rule = Trial("", MEASURED, compare([output])), self._rule_on(reference)
        loss, similarity = rule.loss(trial), rule.similarity(trial)
        assert loss is not None
        cosines = [figures.values["cosine"] for figures in trial.outputs.values() if "cosine" in figures.values]
        task = self._task
        return SampleFigures(
            loss=loss,
            similarity=math.nan if similarity is None else similarity,
            norms=tuple(judged_norm(reference[name]) for name in self._judged) if relative else (),
            tie=-min(cosines, default=0.0) if task is not None else 0.0,
            scores=scores,
            is_empty=task is not None and finds_nothing(trial.outputs[task.entry].values),
        )

    def _rule_on(self, reference: Outputs) -> Rule:
        parts = self.slices.with_groups(reference)
        outputs = self.slices.names(self.rule.outputs or numeric_outputs(reference))
        groups = {name: self.slices.group(name) for name in outputs}
        counting = [name for name, group in groups.items() if not (group and group.faint_inputs([parts[name]]))]
        return replace(self.rule, outputs=tuple(counting))


def _nowhere_fainter(octaves: tuple[int, ...], others: tuple[int, ...]) -> bool:
    return all(a >= b for a, b in zip(octaves, others, strict=True))


STANDS_OUT = 5.0

FEW, MOST = 0.1, 0.5
PERCENTILES = (90, 95, 99)
_BINS = 12


@dataclass(frozen=True)
class Bin:
    """A bar of a histogram, from ``low`` to below ``high``; the last bar includes ``high``."""

    low: float
    high: float
    count: int


@dataclass(frozen=True)
class MetricDistribution:
    """A metric over the samples of a data set.

    Attributes:
        count: the number of samples.
        not_finite: the number of samples on which INT8 gave NaN, infinity, or nothing comparable.
        best: the metric on the best sample.
        median: the metric on the middle sample by loss; of two, on the worse.
        percentiles: by p, the worst value of the best p % of the samples.
        worst: the metric on the worst sample.
        bins: the histogram of the values.
        standing_out: the number of samples with more than 5 times the median loss.
        bad: the number of samples that miss the threshold; None without one.
    """

    count: int
    not_finite: int
    best: float | None
    median: float | None
    percentiles: dict[int, float | None]
    worst: float | None
    bins: tuple[Bin, ...]
    standing_out: int
    bad: int | None


def distribution_of(
    values: Sequence[float], losses: Sequence[float], allowed: float | None, faint: Collection[int] = ()
) -> MetricDistribution:
    """Returns the distribution of a metric's values.

    Args:
        values: the metric on each sample; NaN without a value.
        losses: the loss of each sample; infinity without a value.
        allowed: the loss that the threshold allows; None without a threshold.
        faint: the indices of samples that do not count, unless all are faint.
    """
    counting = sorted(set(range(len(values))) - set(faint)) or range(len(values))
    values, losses = [values[index] for index in counting], [losses[index] for index in counting]
    by_loss = [values[index] for index in sorted(range(len(values)), key=lambda index: (losses[index], index))]

    def at(rank: int) -> float | None:
        return by_loss[rank] if math.isfinite(by_loss[rank]) else None

    count = len(values)
    middle = sorted(losses)[count // 2]
    return MetricDistribution(
        count=count,
        not_finite=sum(not math.isfinite(value) for value in values),
        best=at(0),
        median=at(count // 2),
        percentiles={p: at((p * count + 99) // 100 - 1) for p in PERCENTILES},
        worst=at(-1),
        bins=_histogram(values),
        standing_out=sum(loss > STANDS_OUT * max(middle, 0.0) for loss in losses),
        bad=None if allowed is None else sum(loss > allowed for loss in losses),
    )


def _histogram(values: Sequence[float]) -> tuple[Bin, ...]:
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ()
    low, high = min(finite), max(finite)
    width = (high - low) / _BINS
    if not (low < low + width < high and math.isfinite(width)):
        return (Bin(low, high, len(finite)),)
    counts, edges = np.histogram(finite, _BINS)
    return tuple(Bin(*ends, count) for ends, count in zip(pairwise(edges.tolist()), counts.tolist(), strict=True))


def verdict(losses: MetricDistribution) -> str:
    """Returns a sentence on the cause of the losses, bad inputs or a bad network, with the next step."""
    total = "the one input" if losses.count == 1 else f"{losses.count} inputs"
    if losses.bad is None:
        return _without_threshold(losses, total)
    if losses.bad == 0:
        meet = "meets" if losses.standing_out == 1 else "meet"
        spread = f" {_standing_out(losses)}, and still {meet} the threshold." if losses.standing_out else ""
        return f"No input is bad: {total} {'meets' if losses.count == 1 else 'all meet'} the threshold.{spread}"
    if losses.count == 1:
        return "The only input misses the threshold. Give more inputs to see if the input or the network is to blame."
    misses = f"{losses.bad} of {total} {'misses' if losses.bad == 1 else 'miss'} the threshold"
    if losses.bad <= max(1.0, FEW * losses.count):
        return (
            f"A few bad inputs: {misses}, and the others pass. Before you blame a layer, find what these inputs have "
            "in common, and check that the calibration data has similar inputs."
        )
    if losses.bad >= MOST * losses.count:
        return f"A bad network, not a bad input: {misses}. 'trt-bisect run' with any of these inputs names the layers."
    return (
        f"A part of the data is bad: {misses}. Find what the bad inputs have in common; 'trt-bisect run --input' with "
        "the worst inputs names the layers."
    )


def _without_threshold(losses: MetricDistribution, total: str) -> str:
    limit = "Give --threshold to judge the loss."
    if losses.count == 1:
        return f"There is only one input. {limit}"
    if losses.standing_out == 0:
        return f"No input stands out: {total} lose about the same, so the cause is the network, not an input. {limit}"
    few = losses.standing_out <= max(1.0, FEW * losses.count)
    meaning = "a few inputs differ from the rest" if few else "the data is of two kinds"
    return f"{_standing_out(losses)}: {meaning}. {limit}"


def _standing_out(losses: MetricDistribution) -> str:
    verb = "stands" if losses.standing_out == 1 else "stand"
    return f"{losses.standing_out} of {losses.count} {verb} out with more than {STANDS_OUT:g} times the median loss"
