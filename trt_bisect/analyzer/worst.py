"""The worst inputs of a data set: those on which INT8 and FP32 differ most."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from trt_bisect.analyzer.judge import Rule, comparison
from trt_bisect.builder.base import Engine, Outputs
from trt_bisect.data import Feeds
from trt_bisect.errors import BadInput
from trt_bisect.evaluator.trial import MEASURED, Trial

FAINT = 1e-3
"""An output whose norm is below this share of the data set's median norm says nothing by a relative metric."""
_RELATIVE = ("cosine", "sqnr", "centered_sqnr", "max_rel")


@dataclass(frozen=True)
class WorstInputs:
    """What a search over a data set found.

    Attributes:
        inputs: the worst, worst first.
        places: their numbers in the data set, from 0.
        similarities: the metric on each sample of the whole data set; NaN where there is none.
        faint: samples passed over because FP32's output is almost zero, so that float noise alone decides.
    """

    inputs: tuple[Feeds, ...]
    places: tuple[int, ...]
    similarities: tuple[float, ...]
    faint: tuple[int, ...] = ()

    @property
    def median(self) -> float:
        """Of the similarities, those that could not be measured left out."""
        known = [value for value in self.similarities if not math.isnan(value)]
        return float(np.median(known)) if known else math.nan


@dataclass(frozen=True)
class _Sample:
    loss: float
    similarity: float
    norms: tuple[float, ...]


def worst_inputs(
    samples: Iterable[Feeds],
    fp32: Engine,
    int8: Engine,
    rule: Rule,
    count: int = 1,
    on_sample: Callable[[int], None] | None = None,
) -> WorstInputs:
    """Runs every sample through both engines and takes the ``count`` with the largest loss.

    Ties are won by the earlier sample. The samples are gone through twice, and no more than ``count`` are held.

    Raises:
        BadInput: ``count`` is below 1, or there are no samples.
        TrialFailed: an inference failed.
    """
    if count < 1:
        raise BadInput(f"{count} worst inputs cannot be kept.", "Give --samples 1 or more.")
    seen: list[_Sample] = []
    for feeds in samples:
        seen.append(_judge(fp32.infer(feeds), int8.infer(feeds), rule))
        if on_sample is not None:
            on_sample(len(seen))
    if not seen:
        raise BadInput("There are no samples to search for the worst input.", "Give --dataset, or --input.")
    faint = _faint(seen) if rule.metric.name in _RELATIVE else frozenset[int]()
    telling = [place for place in range(len(seen)) if place not in faint] or list(range(len(seen)))
    chosen = sorted(telling, key=lambda place: (-seen[place].loss, place))[:count]
    kept = {place: feeds for place, feeds in enumerate(samples) if place in chosen}
    if len(kept) < len(chosen):
        raise BadInput(
            f"The data set gave {len(seen)} samples and fewer when it was gone through again.",
            "Its function must give the same samples, in the same order, at every call.",
        )
    return WorstInputs(
        tuple(kept[place] for place in chosen),
        tuple(chosen),
        tuple(sample.similarity for sample in seen),
        tuple(sorted(faint)),
    )


def _judge(reference: Outputs, output: Outputs, rule: Rule) -> _Sample:
    trial = Trial("", MEASURED, comparison([reference], rule.metric)([output]))
    loss, similarity = rule.loss(trial), rule.similarity(trial)
    return _Sample(
        math.inf if loss is None else loss,
        math.nan if similarity is None else similarity,
        tuple(_finite_norm(reference[name]) for name in rule.judged(trial)),
    )


def _finite_norm(array: np.ndarray) -> float:
    values = np.asarray(array, np.float64)
    return float(np.linalg.norm(values[np.isfinite(values)]))


def _faint(seen: list[_Sample]) -> frozenset[int]:
    medians = np.median([sample.norms for sample in seen], axis=0)
    return frozenset(place for place, sample in enumerate(seen) if np.any(np.array(sample.norms) < FAINT * medians))
