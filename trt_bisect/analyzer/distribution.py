"""The distribution of a metric over a data set: it shows whether a few inputs are bad or all of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

STANDS_OUT = 5.0
"""An input stands out if its loss is more than this many times the median loss."""

FEW, MOST = 0.1, 0.5
PERCENTILES = (90, 95, 99)
_BINS = 12


@dataclass(frozen=True)
class Bin:
    """A bar of the histogram: the number of values from ``low`` to below ``high``; the last bar includes ``high``."""

    low: float
    high: float
    count: int


@dataclass(frozen=True)
class Distribution:
    """A metric over the samples of a data set.

    Attributes:
        count: the number of samples.
        not_finite: the number of samples on which INT8 gave NaN or infinite values, or nothing that can be compared.
        best: the metric on the best sample; None if it has no value.
        median: the middle one of the samples in order of their loss; of two, the worse.
        percentiles: by p, the value such that p % of the samples are as good or better.
        worst: the metric on the worst sample.
        bins: the histogram of the values.
        standing_out: the number of samples with more than ``STANDS_OUT`` times the median loss.
        bad: the number of samples that miss the threshold; None without a threshold.
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


def distribution_of(values: Sequence[float], losses: Sequence[float], allowed: float | None) -> Distribution:
    """Returns the distribution of a metric's values. Percentiles are values that occur, without interpolation.

    Args:
        values: the metric on each sample, NaN where it has no value; at least one.
        losses: the loss of each sample; infinite where the metric has no value.
        allowed: the loss that the threshold allows; None without a threshold.
    """
    by_loss = [values[place] for place in sorted(range(len(values)), key=lambda place: (losses[place], place))]

    def at(rank: int) -> float | None:
        return None if math.isnan(by_loss[rank]) else by_loss[rank]

    count = len(values)
    middle = sorted(losses)[count // 2]
    return Distribution(
        count=count,
        not_finite=sum(map(math.isnan, values)),
        best=at(0),
        median=at(count // 2),
        percentiles={p: at((p * count + 99) // 100 - 1) for p in PERCENTILES},
        worst=at(-1),
        bins=_histogram(values),
        standing_out=sum(loss > STANDS_OUT * max(middle, 0.0) for loss in losses),
        bad=None if allowed is None else sum(loss > allowed for loss in losses),
    )


def _histogram(values: Sequence[float]) -> tuple[Bin, ...]:
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return ()
    low, high = min(known), max(known)
    width = (high - low) / _BINS
    if not (low < low + width < high and math.isfinite(width)):
        return (Bin(low, high, len(known)),)
    counts = Counter(min(int((value - low) / width), _BINS - 1) for value in known)
    edges = [*(low + place * width for place in range(_BINS)), high]
    return tuple(Bin(edges[place], edges[place + 1], counts[place]) for place in range(_BINS))


def verdict(found: Distribution) -> str:
    """Returns a sentence that says if the data or the network is the problem, and what to do."""
    total = "the one input" if found.count == 1 else f"{found.count} inputs"
    if found.bad is None:
        return _without_threshold(found, total)
    if found.bad == 0:
        spread = f" {_standing_out(found)}, and still meets the threshold." if found.standing_out else ""
        return f"No input is bad: {total} {'meets' if found.count == 1 else 'all meet'} the threshold.{spread}"
    if found.count == 1:
        return "The one input misses the threshold. More inputs tell whether it is the input or the network."
    misses = f"{found.bad} of {total} {'misses' if found.bad == 1 else 'miss'} the threshold"
    if found.bad <= max(1.0, FEW * found.count):
        return (
            f"A few bad inputs: {misses}, and the rest is good. Before you blame a layer, look for what these inputs "
            "have in common, and check that the calibration data has similar ones."
        )
    if found.bad >= MOST * found.count:
        return f"A bad network, not a bad input: {misses}. 'trt-bisect run' with any of these inputs names the layers."
    return (
        f"A part of the data is bad: {misses}. Look for what the bad inputs have in common; 'trt-bisect run --input' "
        "with the worst ones names the layers."
    )


def _without_threshold(found: Distribution, total: str) -> str:
    limit = "Give --threshold to see if that is good enough."
    if found.count == 1:
        return f"There is only one input. {limit}"
    if found.standing_out == 0:
        return f"No input stands out: {total} lose about the same, so it is the network, not an input. {limit}"
    few = found.standing_out <= max(1.0, FEW * found.count)
    meaning = "a few inputs differ from the rest" if few else "the data is of two kinds"
    return f"{_standing_out(found)}: {meaning}. {limit}"


def _standing_out(found: Distribution) -> str:
    verb = "stands" if found.standing_out == 1 else "stand"
    return f"{found.standing_out} of {found.count} {verb} out with more than {STANDS_OUT:g} times the median loss"
