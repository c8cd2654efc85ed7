"""A histogram of absolute values of constant size, and the thresholds that calibrators choose from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

BINS = 2048
"""The number in TensorRT's entropy calibrator."""
LEVELS = 128
"""The number of magnitudes of INT8: 0 to 127."""
ENOUGH_VALUES = 4 * BINS
"""The fewest values for the entropy search: four for each bin."""
_PART = 1 << 17
"""The number of values that are counted at a time."""
_EMPTY_LEVEL = 1e-4
"""The value of a level without counts, to which outliers were added."""


@dataclass
class AbsHistogram:
    """Counts of |x| in ``BINS`` equal bins from 0 on.

    A value beyond the last bin doubles the width: neighbouring bins are merged, so memory is constant and the counts
    stay exact.

    Attributes:
        absmax: the largest finite |x|.
        width: of a bin.
        nonfinite: the number of NaN and infinite values, which all else leaves out.
        values: the number of finite values.
        counts: by bin, int64; None before the first value other than 0.
    """

    absmax: float = 0.0
    width: float = 0.0
    nonfinite: int = 0
    values: int = 0
    counts: np.ndarray | None = None

    def add(self, array: np.ndarray, *, histogram: bool = True) -> None:
        """Counts the values of a float array; with ``histogram=False`` records only their largest magnitude."""
        if not array.size:
            return
        values = array.reshape(-1)
        largest = max(float(values.max()), -float(values.min()))
        whole = bool(np.isfinite(largest))
        if not whole:
            largest = max(float(np.abs(part).max(initial=0.0)) for part in _finite_parts(values))
        self.absmax = max(self.absmax, largest)
        if histogram and largest > 0.0:
            self._widen_to(largest)
        counted = 0
        for part in _parts(values) if whole else _finite_parts(values):
            counted += part.size
            if histogram and largest > 0.0:
                self._count(np.abs(part))
        self.values += counted
        self.nonfinite += values.size - counted

    def _count(self, magnitudes: np.ndarray) -> None:
        assert self.counts is not None
        places = (magnitudes * (1.0 / self.width)).astype(np.int64)
        self.counts += np.bincount(np.minimum(places, BINS - 1), minlength=BINS)

    def _widen_to(self, largest: float) -> None:
        if self.counts is None:
            self.counts = np.zeros(BINS, np.int64)
            self.width = max(largest / BINS, float(np.finfo(np.float32).tiny))
        while largest > self.width * BINS:
            merged = self.counts.reshape(-1, 2).sum(axis=1)
            self.counts = np.concatenate([merged, np.zeros(BINS // 2, np.int64)])
            self.width *= 2.0

    def used(self) -> np.ndarray:
        """Returns the counts up to the last bin that is not empty."""
        if self.counts is None:
            return np.zeros(0, np.int64)
        return np.trim_zeros(self.counts, "b")


def _parts(values: np.ndarray) -> Iterator[np.ndarray]:
    """Splits a flat array into parts, to limit the memory for temporary arrays."""
    return (values[begin : begin + _PART] for begin in range(0, values.size, _PART))


def _finite_parts(values: np.ndarray) -> Iterator[np.ndarray]:
    return (part[np.isfinite(part)] for part in _parts(values))


def minmax_threshold(histogram: AbsHistogram) -> float:
    """Returns the largest magnitude."""
    return histogram.absmax


def percentile_threshold(histogram: AbsHistogram, percentile: float) -> float:
    """Returns the upper edge of the bin up to which ``percentile`` percent of all values lie, at most ``absmax``."""
    counts = histogram.used()
    if not counts.size:
        return histogram.absmax
    shares = np.cumsum(counts) / counts.sum()
    place = int(np.searchsorted(shares, percentile / 100.0))
    return float(min((place + 1) * histogram.width, histogram.absmax))


def entropy_threshold(histogram: AbsHistogram) -> float:
    """Returns the clipping threshold with the least KL divergence between the values and their 128 INT8 magnitudes.

    For every i from 128 bins on, P is the first i bins, outliers added to the last. Q is the same bins merged to 128
    levels and spread again over the bins that are not empty. The threshold is the middle of the last bin for the i with
    the least KL(P, Q). Source: S. Migacz, "8-bit Inference with TensorRT", GTC 2017, slides 38-39; bin 0 gets the count
    of bin 1, as in TensorRT, since exact zeros do not inform about the range.

    With fewer than ``ENOUGH_VALUES`` values it is the largest magnitude.
    """
    counts = histogram.used().astype(np.float64)
    if counts.size <= LEVELS or histogram.values < ENOUGH_VALUES:
        return histogram.absmax
    counts[0] = counts[1]
    best = LEVELS + int(np.argmin(_divergences(counts)))
    return float(min((best - 0.5) * histogram.width, histogram.absmax)) if best < counts.size else histogram.absmax


def _divergences(counts: np.ndarray) -> np.ndarray:
    """Returns KL(P, Q) for every number of bins from 128 to all of them.

    Q is the same for all occupied bins that are merged to one level, so that the sums over bins are differences of
    running sums at the levels' bounds.
    """
    sizes = np.arange(LEVELS, counts.size + 1)
    bounds = sizes[:, np.newaxis] * np.arange(LEVELS + 1) // LEVELS
    total, last = counts.sum(), counts[sizes - 1]
    outside = total - _running(counts)[sizes]
    mass = np.diff(_running(counts)[bounds], axis=1)
    occupied = np.diff(_running(counts > 0)[bounds], axis=1)
    occupied[:, -1] += (last == 0) & (outside > 0)
    level = np.where(mass > 0, mass / np.maximum(occupied, 1.0), _EMPTY_LEVEL)
    share = mass
    share[:, -1] += outside
    own = _running(_times_log(counts))[sizes - 1] + _times_log(last + outside)
    normal = np.sum(level * occupied, axis=1)
    return np.asarray((own - np.sum(share * np.log(level), axis=1)) / total - np.log(total) + np.log(normal))


def _running(values: np.ndarray) -> np.ndarray:
    return np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])


def _times_log(values: np.ndarray) -> np.ndarray:
    return np.asarray(values * np.log(np.maximum(values, 1.0)))
