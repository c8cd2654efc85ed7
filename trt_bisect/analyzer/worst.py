"""The worst inputs of a data set: those on which INT8 and FP32 differ most."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from trt_bisect.analyzer.judge import Rule, comparison
from trt_bisect.builder.base import Engine
from trt_bisect.data import Feeds
from trt_bisect.errors import BadInput
from trt_bisect.evaluator.trial import MEASURED, Trial


@dataclass(frozen=True)
class WorstInputs:
    """What a search over a data set found.

    Attributes:
        inputs: the worst, worst first.
        places: their numbers in the data set, from 0.
        similarities: the metric on each sample of the whole data set; NaN where there is none.
    """

    inputs: tuple[Feeds, ...]
    places: tuple[int, ...]
    similarities: tuple[float, ...]

    @property
    def median(self) -> float:
        """Of the similarities, those that could not be measured left out."""
        known = [value for value in self.similarities if not math.isnan(value)]
        return float(np.median(known)) if known else math.nan


def worst_inputs(
    samples: Iterable[Feeds],
    fp32: Engine,
    int8: Engine,
    rule: Rule,
    count: int = 1,
    on_sample: Callable[[int], None] | None = None,
) -> WorstInputs:
    """Runs every sample through both engines and keeps the ``count`` with the largest loss.

    Ties are won by the earlier sample. No more than ``count`` samples are held.

    Raises:
        BadInput: ``count`` is below 1, or there are no samples.
        TrialFailed: an inference failed.
    """
    if count < 1:
        raise BadInput(f"{count} worst inputs cannot be kept.", "Give --samples 1 or more.")
    heap: list[tuple[float, int, Feeds]] = []
    similarities: list[float] = []
    for place, feeds in enumerate(samples):
        reference = fp32.infer(feeds)
        figures = comparison([reference], rule.metric)([int8.infer(feeds)])
        trial = Trial("", MEASURED, figures)
        loss = rule.loss(trial)
        similarity = rule.similarity(trial)
        similarities.append(math.nan if similarity is None else similarity)
        heapq.heappush(heap, (math.inf if loss is None else loss, -place, feeds))
        if len(heap) > count:
            heapq.heappop(heap)
        if on_sample is not None:
            on_sample(place + 1)
    if not heap:
        raise BadInput("There are no samples to search for the worst input.", "Give --dataset, or --input.")
    ordered = sorted(heap, key=lambda entry: (-entry[0], -entry[1]))
    return WorstInputs(
        tuple(feeds for _, _, feeds in ordered), tuple(-place for _, place, _ in ordered), tuple(similarities)
    )
