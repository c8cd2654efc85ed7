"""How a metric is spread over a data set: one bad input of a thousand, or a thousand bad ones."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

STANDS_OUT = 5.0
"""An input stands out whose loss is more than so many times the median's."""

FEW, MOST = 0.1, 0.5
PERCENTILES = (90, 95, 99)
_BINS = 12


@dataclass(frozen=True)
class Bin:
    """A bar of the histogram: how many values lie in ``low`` to ``high``; the last bar's upper end is in it."""

    low: float
    high: float
    count: int


@dataclass(frozen=True)
class Distribution:
    """A metric over the samples of a data set.

    Attributes:
        count: samples.
        not_finite: those of them on which INT8 gave NaN or infinite values, or nothing that can be compared.
        best: the metric on the best sample; None where it has no value.
        median: of the samples in order of their loss; the worse of the middle two.
        percentiles: by p, the value that p % of the samples are at least as good as.
        worst: the metric on the worst sample.
        bins: the histogram of the values.
        standing_out: samples with more than ``STANDS_OUT`` times the median's loss.
        bad: samples that miss the threshold; None without one.
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
    """The distribution of a metric's values, none of it lost: percentiles are values that occur.

    Args:
        values: the metric on each sample, NaN where there is none; at least one.
        losses: how far each is from perfect; infinite where there is no value.
        allowed: the loss that the threshold allows, None without a threshold.
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
    """In words, which of the two problems it is, and what to do about it."""
    total = "the one input" if found.count == 1 else f"{found.count} inputs"
    if found.bad is None:
        return _without_threshold(found, total)
    if found.bad == 0:
        spread = f" {_standing_out(found)}; it is good all the same." if found.standing_out else ""
        return f"No input is bad: {total} {'meets' if found.count == 1 else 'all meet'} the threshold.{spread}"
    if found.count == 1:
        return "The one input misses the threshold. More inputs tell whether it is the input or the network."
    said = f"{found.bad} of {total} {'misses' if found.bad == 1 else 'miss'} the threshold"
    if found.bad <= max(1.0, FEW * found.count):
        return (
            f"A few bad inputs: {said}, and the rest is good. Look at what these have that the others have not, and "
            "whether the calibration data has their like, before any layer is blamed."
        )
    if found.bad >= MOST * found.count:
        return (
            f"A bad network, not a bad input: {said}. 'trt-bisect run' names the layers; any of these inputs will do."
        )
    return (
        f"A part of the data is bad: {said}. See what the bad ones have in common; 'trt-bisect run --input' with the "
        "worst names the layers."
    )


def _without_threshold(found: Distribution, total: str) -> str:
    limit = "Whether that is good enough, only a threshold can say (--threshold)."
    if found.count == 1:
        return f"There is only one input. {limit}"
    if found.standing_out == 0:
        return f"No input stands out: {total} lose about the same, so it is the network, not an input. {limit}"
    few = found.standing_out <= max(1.0, FEW * found.count)
    meaning = "a few inputs are another matter than the rest" if few else "the data is of two kinds"
    return f"{_standing_out(found)}: {meaning}. {limit}"


def _standing_out(found: Distribution) -> str:
    verb = "stands" if found.standing_out == 1 else "stand"
    return f"{found.standing_out} of {found.count} {verb} out with more than {STANDS_OUT:g} times the median's loss"
