"""Histograms of a tensor's magnitudes, and the calibrators that choose scales from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from threading import local

import numpy as np

from trt_bisect.errors import BadInput
from trt_bisect.support.machine import ThreadsIfLong, cores

BINS = 2048  # the number of bins, as in TensorRT's entropy calibrator
LEVELS = 128  # the number of INT8 magnitudes: 0 to 127
ENOUGH_VALUES = 4 * BINS  # the fewest values for the entropy search
# Increase it when the rules for thresholds or usable ranges change: ranges cached with other rules are computed again.
THRESHOLDS = 4
_PART = 1 << 16  # the number of values counted at a time
# Neighbouring values go to different tables: in one, equal values, such as a Relu's zeros, wait for one another.
_TABLES = 4
_WIDEST = BINS // LEVELS
_EMPTY_LEVEL = 1e-4  # the value of a level without counts that outliers were added to
METHODS = ("entropy", "minmax", "percentile", "mse")
_PERCENTILE = 99.99


@dataclass
class AbsHistogram:
    """Counts of |x| in 2048 equal bins from 0 on, which widen to hold every value.

    Attributes:
        absmax: the largest finite |x|.
        nonfinite: the number of NaN and infinite values, which count nowhere else.
        counts: int64; None before the first value other than 0.
    """

    absmax: float = 0.0
    width: float = 0.0
    nonfinite: int = 0
    values: int = 0
    counts: np.ndarray | None = None

    def add(self, array: np.ndarray, *, histogram: bool = True) -> None:
        """Counts the values of a float array; with ``histogram=False`` only records their largest magnitude."""
        if not array.size:
            return
        values = array.reshape(-1)
        least = float(values.min())
        largest = max(float(values.max()), -least)
        parts = _parts
        if not np.isfinite(largest):
            parts = _finite_parts
            largest = max(float(np.abs(part).max(initial=0.0)) for part in parts(values))
        self.absmax = max(self.absmax, largest)
        counts = self._widened_to(largest) if histogram and largest > 0.0 else None
        finite = 0
        for part in parts(values):
            finite += part.size
            if counts is not None:
                places = _places(part, 1.0 / self.width, signed=not least >= 0.0)
                counted = np.bincount(places, minlength=_TABLES * (BINS + 1)).reshape(_TABLES, -1).sum(axis=0)
                counted[BINS - 1] += counted[BINS]
                counts += counted[:BINS]
        self.values += finite
        self.nonfinite += values.size - finite

    def _widened_to(self, largest: float) -> np.ndarray:
        if self.counts is None:
            self.counts = np.zeros(BINS, np.int64)
            self.width = max(largest / BINS, float(np.finfo(np.float32).tiny))
        while largest > self.width * BINS:
            merged = self.counts.reshape(-1, 2).sum(axis=1)
            self.counts = np.concatenate([merged, np.zeros(BINS // 2, np.int64)])
            self.width *= 2.0
        return self.counts

    def used(self) -> np.ndarray:
        """Returns the counts up to the last nonempty bin."""
        return np.zeros(0, np.int64) if self.counts is None else np.trim_zeros(self.counts, "b")


# Work arrays of each thread: allocating them takes longer than counting, and two quick conversions (int32, int64) less
# than one.
_ROOMS = local()


def _places(values: np.ndarray, factor: float, *, signed: bool) -> np.ndarray:
    # The index in all tables of counts: t * (BINS + 1) + floor(|x| * factor), with t = 0, 1 .. _TABLES - 1, 0, 1 .. A
    # value on the upper edge of the last bin has BINS. The thread's next call overwrites the array.
    dtype = np.result_type(values.dtype, np.float32).str
    if dtype not in _ROOMS.__dict__:
        _ROOMS.__dict__[dtype] = tuple(np.empty(_PART, kind) for kind in (dtype, np.int32, np.int64))
    rooms: tuple[np.ndarray, ...] = _ROOMS.__dict__[dtype]
    scaled, short, places = (room[: values.size] for room in rooms)
    if signed:
        values = np.abs(values, out=scaled)
    np.multiply(values, factor, out=scaled, dtype=scaled.dtype)
    np.copyto(short, scaled, casting="unsafe")
    np.add(short, _first_places()[: values.size], out=short)
    places[...] = short
    return places


@cache
def _first_places() -> np.ndarray:
    return np.tile(np.arange(_TABLES, dtype=np.int32) * np.int32(BINS + 1), _PART // _TABLES)


def _parts(values: np.ndarray) -> Iterator[np.ndarray]:
    return (values[begin : begin + _PART] for begin in range(0, values.size, _PART))


def _finite_parts(values: np.ndarray) -> Iterator[np.ndarray]:
    return (part[np.isfinite(part)] for part in _parts(values))


def percentile_threshold(histogram: AbsHistogram, percentile: float) -> float:
    """Returns the upper edge of the bin up to which ``percentile`` percent of the values lie, at most ``absmax``."""
    counts = histogram.used()
    if not counts.size:
        return histogram.absmax
    last = int(np.searchsorted(np.cumsum(counts) / counts.sum(), percentile / 100.0))
    return float(min((last + 1) * histogram.width, histogram.absmax))


def entropy_threshold(histogram: AbsHistogram) -> float:
    """Returns the clipping threshold with the least KL divergence between the values and their 128 INT8 magnitudes.

    For every i from 128 bins on, P is the first i bins, with outliers added to the last. Q is the same bins merged to
    128 levels and spread again over the nonempty bins. The threshold is the middle of the last bin for the i with the
    least KL(P, Q); with fewer than 8192 values, or up to 128 bins in use, it is the largest magnitude. Source: S.
    Migacz, "8-bit Inference with TensorRT", GTC 2017, slides 38-39.
    """
    counts = histogram.used().astype(np.float64)
    if counts.size <= LEVELS or histogram.values < ENOUGH_VALUES:
        return histogram.absmax
    counts[0] = counts[1]  # as in TensorRT: exact zeros do not inform about the range
    best = LEVELS + int(np.argmin(_divergences(counts)))
    return float(min((best - 0.5) * histogram.width, histogram.absmax)) if best < counts.size else histogram.absmax


def _divergences(counts: np.ndarray) -> np.ndarray:
    # Q is the same for all occupied bins of a level, so a level adds mass * log(mass / occupied bins), computed once
    # for its first bin and number of bins. The last level takes the outliers too.
    sizes = np.arange(LEVELS, counts.size + 1)
    running, occupied = _running(counts), _running(counts > 0)
    last, outside = counts[sizes - 1], counts.sum() - running[sizes]
    begin = sizes * (LEVELS - 1) // LEVELS
    mass = running[sizes] - running[begin]
    bins = occupied[sizes] - occupied[begin] + ((last == 0) & (outside > 0))
    level = np.where(mass > 0, mass / np.maximum(bins, 1.0), _EMPTY_LEVEL)
    shared = _level_terms(running, occupied)[_places_of_levels()[: sizes.size]]
    terms = np.sum(shared, axis=1) + (mass + outside) * np.log(level)
    entropy = _running(_times_log(counts))[sizes - 1] + _times_log(last + outside)
    normal, total = running[begin] + level * bins, counts.sum()
    divergences = (entropy - terms) / total - np.log(total) + np.log(normal)
    # The first 127 levels must hold at least as many values as lie outside. Otherwise the last level can hold nearly
    # all the rest, as in a mask, and KL is close to 0 however much is clipped, since Q is divided by its own sum.
    return np.where(outside <= running[begin], divergences, np.inf)


def _level_terms(running: np.ndarray, occupied: np.ndarray) -> np.ndarray:
    # mass * log(mass / occupied bins) of the bins b to b + w, at index w * (BINS + 1) + b
    padded = [np.pad(sums, (0, BINS + 1 + _WIDEST - sums.size), "edge") for sums in (running, occupied)]
    ends = np.arange(_WIDEST + 1)[:, np.newaxis] + np.arange(BINS + 1)
    mass, bins = (sums[ends] - sums[: BINS + 1] for sums in padded)
    return np.asarray(mass * np.log(np.maximum(mass, 1.0) / np.maximum(bins, 1.0))).reshape(-1)


@cache
def _places_of_levels() -> np.ndarray:
    # a row for each number of bins, 128 to 2048: the first 127 levels' indices in _level_terms
    bounds = np.arange(LEVELS, BINS + 1)[:, np.newaxis] * np.arange(LEVELS) // LEVELS
    return np.asarray(np.diff(bounds, axis=1) * (BINS + 1) + bounds[:, :-1])


def mse_thresholds(histograms: Sequence[AbsHistogram]) -> list[float]:
    """Returns for each histogram the clipping threshold with the least mean squared error of rounding and clipping.

    Without counts the threshold is the largest magnitude.
    """
    all_counts = [np.zeros(BINS) if histogram.counts is None else histogram.counts for histogram in histograms]
    counts = np.array(all_counts, np.float64).reshape(-1, BINS)
    counts[:, 0] = np.minimum(counts[:, 0], counts[:, 1])  # zeros are rounded without error
    sizes = 1 + np.argmin(counts.astype(np.float32) @ _squared_errors().T, axis=1)
    return [
        histogram.absmax if histogram.counts is None else float(min(size * histogram.width, histogram.absmax))
        for size, histogram in zip(sizes, histograms, strict=True)
    ]


@cache
def _squared_errors() -> np.ndarray:
    # [threshold in bins - 1, bin]. With the step s = threshold / 127 and the level k = round(x / s), at most 127, the
    # integral of the squared error from 0 to x is k * s**3 / 12 + (x - k * s)**3 / 3.
    errors = np.empty((BINS, BINS), np.float32)
    edges = np.arange(BINS + 1.0)
    for size in range(1, BINS + 1):
        step = size / (LEVELS - 1)
        level = np.minimum(np.rint(edges / step), LEVELS - 1)
        away = edges - level * step
        errors[size - 1] = np.diff(level * (step**3 / 12) + away * away * away / 3)
    return errors


def _running(values: np.ndarray) -> np.ndarray:
    return np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])


def _times_log(values: np.ndarray) -> np.ndarray:
    return np.asarray(values * np.log(np.maximum(values, 1.0)))


@dataclass(frozen=True)
class Calibrator:
    """A calibration method and its parameter.

    Attributes:
        method: ``entropy`` (TensorRT's), ``minmax``, ``percentile``, or ``mse`` (least mean squared error).
        percentile: of |x|, in percent; 99.99 for other methods, which do not use it.

    Raises:
        BadInput: the method is unknown, or the percentile is outside (0, 100].
    """

    method: str = "entropy"
    percentile: float = _PERCENTILE

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise BadInput(f"There is no calibration method '{self.method}'.", f"Use one of {', '.join(METHODS)}.")
        if not 0 < self.percentile <= 100:
            raise BadInput(f"Percentile {self.percentile} is out of range.", "Give a value above 0, at most 100.")
        if self.method != "percentile":
            object.__setattr__(self, "percentile", _PERCENTILE)

    def __str__(self) -> str:
        return f"percentile {self.percentile:g}" if self.method == "percentile" else self.method

    def thresholds(self, histograms: Sequence[AbsHistogram]) -> list[float]:
        """Returns for each histogram the largest magnitude in this calibrator's range."""
        if self.method == "entropy":
            with ThreadsIfLong(cores()) as pool:
                return list(pool.map(entropy_threshold, histograms))
        if self.method == "mse":
            return mse_thresholds(histograms)
        if self.method == "minmax":
            return [histogram.absmax for histogram in histograms]
        return [percentile_threshold(histogram, self.percentile) for histogram in histograms]
