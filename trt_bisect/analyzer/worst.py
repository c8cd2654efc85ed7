"""The worst inputs of a data set: those on which INT8 and FP32 differ most. One pass, and few samples held."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from trt_bisect.analyzer.classes import Classes, classes_of
from trt_bisect.analyzer.compare_output import faint_places, finite_norm, octave
from trt_bisect.analyzer.judge import Rule, comparison
from trt_bisect.analyzer.metrics import RELATIVE
from trt_bisect.builder.base import Engine, Outputs
from trt_bisect.data.datasets import Feeds
from trt_bisect.errors import BadInput
from trt_bisect.evaluator.trial import MEASURED, Trial


@dataclass(frozen=True)
class WorstInputs:
    """What a search over a data set found.

    Attributes:
        inputs: the worst, worst first.
        places: their numbers in the data set, from 0.
        similarities: the metric on each sample of the whole data set; NaN where there is none.
        losses: how far each sample is from perfect; infinite where INT8 gave no finite output.
        faint: samples passed over because FP32's output is almost zero, so that float noise alone decides.
        rule: what was judged by.
        stopped: the user stopped the search before the end of the data set.
    """

    inputs: tuple[Feeds, ...]
    places: tuple[int, ...]
    similarities: tuple[float, ...]
    losses: tuple[float, ...]
    faint: tuple[int, ...]
    rule: Rule
    stopped: bool = False

    @property
    def median(self) -> float:
        """Of the similarities, those that could not be measured left out."""
        known = [value for value in self.similarities if not math.isnan(value)]
        return float(np.median(known)) if known else math.nan


@dataclass
class _Held:
    """A sample that may be among the worst, and how many others are worse whatever turns out to be faint."""

    place: int
    loss: float
    octaves: tuple[int, ...]
    feeds: Feeds
    beaten: int = 0

    def beats(self, later: _Held) -> bool:
        """Whether this one is worse than a later sample, and passed over as faint only where the other is too."""
        return self.loss >= later.loss and _nowhere_fainter(self.octaves, later.octaves)

    def is_beaten_by(self, later: _Held) -> bool:
        """Whether a later sample is worse than this one, and passed over as faint only where this one is too."""
        return later.loss > self.loss and _nowhere_fainter(later.octaves, self.octaves)


class WorstSearch:
    """The worst ``count`` of the samples offered so far.

    Which samples are faint is known only at the end, when the median is. So a sample is held as long as fewer than
    ``count`` others are worse and nowhere fainter: that bounds the samples held by the octaves that occur, not by the
    length of the data set.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._held: list[_Held] = []
        self._losses: list[float] = []
        self._octaves: list[tuple[int, ...]] = []

    @property
    def held(self) -> int:
        """How many samples are held."""
        return len(self._held)

    def offer(self, feeds: Feeds, loss: float, norms: Iterable[float]) -> None:
        """Takes the next sample.

        Args:
            feeds: the sample.
            loss: how far INT8 is from FP32 on it.
            norms: of FP32's outputs; none where the metric is not relative.
        """
        new = _Held(len(self._losses), loss, tuple(map(octave, norms)), feeds)
        self._losses.append(new.loss)
        self._octaves.append(new.octaves)
        for other in self._held:
            new.beaten += other.beats(new)
            other.beaten += other.is_beaten_by(new)
        self._held = [sample for sample in (*self._held, new) if sample.beaten < self._count]

    def faint(self) -> tuple[int, ...]:
        """The places of the samples with an output almost zero."""
        return faint_places(self._octaves)

    def worst(self) -> list[tuple[int, Feeds]]:
        """The worst samples with their places, worst first; ties are won by the earlier."""
        passed_over = frozenset(self.faint())
        telling = [sample for sample in self._held if sample.place not in passed_over] or self._held
        chosen = sorted(telling, key=lambda sample: (-sample.loss, sample.place))[: self._count]
        return [(sample.place, sample.feeds) for sample in chosen]


def worst_inputs(
    samples: Iterable[Feeds],
    fp32: Engine,
    int8: Engine,
    rule: Rule | Callable[[Outputs], Rule],
    count: int = 1,
    on_sample: Callable[[int], None] | None = None,
    *,
    keep_when_stopped: bool = False,
    class_axis: int | None = None,
) -> WorstInputs:
    """Runs every sample through both engines, once, and takes the ``count`` with the largest loss.

    Ties are won by the earlier sample. About ``count`` samples are held (see ``WorstSearch``), and some numbers.

    Args:
        samples: gone through once.
        fp32: the reference.
        int8: what is compared with it.
        rule: what a loss is, or a function from the first sample's reference to it.
        count: how many are kept.
        on_sample: told the number of samples begun.
        keep_when_stopped: Ctrl-C ends the search with what was found until then.
        class_axis: see ``find_classes``, which the first sample decides.

    Raises:
        BadInput: ``count`` is below 1, there are no samples, or the metric needs a class axis that cannot be told.
        TrialFailed: an inference failed.
    """
    if count < 1:
        raise BadInput(f"{count} worst inputs cannot be kept.", "Keep 1 or more.")
    search = WorstSearch(count)
    judged: list[tuple[float, float]] = []
    judging: Rule | None = None
    classes: dict[str, Classes] = {}
    stopped = False
    try:
        for feeds in samples:
            if on_sample is not None:
                on_sample(len(judged) + 1)
            reference = fp32.infer(feeds)
            if judging is None:
                judging = rule if isinstance(rule, Rule) else rule(reference)
                judged_outputs = judging.outputs or reference
                classes, _ = classes_of([reference], judged_outputs, judging.metric.name, class_axis)
            loss, similarity, norms = _judge(reference, int8.infer(feeds), judging, classes)
            judged.append((loss, similarity))
            search.offer(feeds, loss, norms)
    except KeyboardInterrupt:
        if not (keep_when_stopped and search.held):
            raise
        stopped = True
    if judging is None or not search.held:
        raise BadInput("There are no samples to search for the worst input.", "Give --dataset, or --input.")
    places, inputs = zip(*search.worst(), strict=True)
    losses, similarities = zip(*judged, strict=True)
    return WorstInputs(inputs, places, similarities, losses, search.faint(), judging, stopped)


def _judge(
    reference: Outputs, output: Outputs, rule: Rule, classes: dict[str, Classes]
) -> tuple[float, float, tuple[float, ...]]:
    """Loss, similarity, and, where the metric is relative, the norms of the reference's outputs."""
    trial = Trial("", MEASURED, comparison([reference], rule.metric, classes)([output]))
    loss, similarity = rule.loss(trial), rule.similarity(trial)
    relative = rule.metric.name in RELATIVE
    return (
        math.inf if loss is None else loss,
        math.nan if similarity is None else similarity,
        tuple(finite_norm(reference[name]) for name in rule.judged(trial)) if relative else (),
    )


def _nowhere_fainter(octaves: tuple[int, ...], others: tuple[int, ...]) -> bool:
    return all(own >= other for own, other in zip(octaves, others, strict=True))
