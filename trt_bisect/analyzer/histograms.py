"""Histograms of tensors and of the channels of a weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

TENSOR_BINS = 64
_LEAST_EXPONENT = -1000  # Of a bin's width, so that no quotient overflows.


@dataclass(frozen=True)
class Histogram:
    """Counts of values between edges.

    Attributes:
        edges: float64 ``[bins + 1]``, from the least to the largest value; empty without values.
        counts: int64 ``[bins]``; a bin includes its left edge, and the last bin its right edge too.
        squares: the sum of the values' squares.
    """

    edges: np.ndarray
    counts: np.ndarray
    sum: float
    squares: float


@dataclass(frozen=True)
class TensorHistogram:
    """Counts of the finite values of a tensor in at most 64 equal bins from ``low`` to ``high``.

    Attributes:
        low: the lowest edge.
        high: the highest edge.
        fp32: the counts in the FP32 run.
        int8: the counts of the values that the INT8 layers read; empty without an INT8 run.
    """

    low: float
    high: float
    fp32: tuple[int, ...]
    int8: tuple[int, ...]


class GrowingHistogram:
    """Counts of values in equal bins around zero, for each of several groups: tensors, runs or channels.

    Values that are not finite are only counted, in ``nonfinite``.
    """

    def __init__(self, groups: int = 1, bins: int = 1024) -> None:
        self._half = bins // 2
        self._counts = np.zeros((groups, bins), np.int64)
        # The width of a bin is a power of two, so that edges are exact.
        self._exponents = np.full(groups, _LEAST_EXPONENT)
        self._least, self._largest = np.full(groups, np.inf), np.full(groups, -np.inf)
        self._sum, self._squares = np.zeros(groups), np.zeros(groups)
        self.nonfinite = 0

    def add(self, block: np.ndarray) -> None:
        """Counts more values, ``[groups, values]`` of any float dtype."""
        if not block.size:
            return
        finite = np.isfinite(block)
        everywhere = bool(finite.all())
        kept: Any = True if everywhere else finite
        least = np.min(block, axis=1, where=kept, initial=np.inf).astype(np.float64)
        largest = np.max(block, axis=1, where=kept, initial=-np.inf).astype(np.float64)
        self._widen(np.maximum(np.maximum(-least, largest), 0.0))
        self._least, self._largest = np.minimum(self._least, least), np.maximum(self._largest, largest)
        groups, bins = self._counts.shape
        first = bins * np.arange(groups)[:, np.newaxis] + self._half
        with np.errstate(invalid="ignore", over="ignore"):
            self._sum += np.sum(block, axis=1, where=kept, dtype=np.float64)
            self._squares += np.sum(np.square(block, dtype=np.float64), axis=1, where=kept)
            places = np.floor(block * np.ldexp(1.0, -self._exponents)[:, np.newaxis]) + first
        places = places.reshape(-1) if everywhere else places[finite]
        self.nonfinite += block.size - places.size
        counted = np.bincount(places.astype(np.int64), minlength=groups * bins)
        self._counts += counted.reshape(groups, bins)

    def _widen(self, peaks: np.ndarray) -> None:
        exponents = np.maximum(np.where(peaks > 0, np.frexp(peaks / self._half)[1], self._exponents), self._exponents)
        for group in np.flatnonzero(exponents > self._exponents).tolist():
            self._counts[group] = self._widened(group, int(exponents[group]))
        self._exponents = exponents

    def _widened(self, group: int, exponent: int) -> np.ndarray:
        counts = np.zeros(2 * self._half, np.int64)
        places = np.arange(-self._half, self._half) >> min(int(exponent - self._exponents[group]), 62)
        np.add.at(counts, places + self._half, self._counts[group])
        return counts

    def seen(self, group: int = 0, most: int = 128) -> Histogram:
        """Returns the histogram of the group with index ``group``; bins are merged in pairs until at most ``most`` are
        left.
        """
        counts = self._counts[[group]]
        least, largest = float(self._least[group]), float(self._largest[group])
        sums = float(self._sum[group]), float(self._squares[group])
        if not counts.any():
            return Histogram(np.zeros(0), np.zeros(0, np.int64), *sums)
        if least == largest:
            return Histogram(np.array([least, largest]), counts[counts > 0], *sums)
        first, shift, (merged,) = self._narrowed(counts, most)
        with np.errstate(over="ignore"):
            edges = np.ldexp(
                np.arange(first, first + merged.size + 1, dtype=np.float64), self._exponents[group] + shift
            )
        edges[0], edges[-1] = least, largest
        return Histogram(edges, merged, *sums)

    def together(self) -> TensorHistogram | None:
        """Returns the counts of the first group as FP32's and of the second, if any, as INT8's, in the same bins; None
        if there is no finite value.
        """
        exponent = int(self._exponents.max())
        counts = np.array([self._widened(group, exponent) for group in range(len(self._counts))])
        if not counts.any():
            return None
        first, shift, merged = self._narrowed(counts, TENSOR_BINS)
        width = float(np.ldexp(1.0, exponent + shift))
        low, high = first * width, (first + merged.shape[1]) * width
        if merged.shape[1] == 1:
            middle = (low + high) / 2.0 if high - low > 1e-30 else 0.0
            low, high = middle - 0.5, middle + 0.5
        fp32, *others = map(tuple, merged.tolist())
        return TensorHistogram(low, high, fp32, others[0] if others else ())

    def _narrowed(self, counts: np.ndarray, most: int) -> tuple[int, int, np.ndarray]:
        # Merges bins in pairs. Returns the first merged bin's index, from zero; the number of mergers; the counts.
        used = np.flatnonzero(counts.any(axis=0))
        places, shift = used - self._half, 0
        while places[-1] - places[0] >= most:
            places, shift = places >> 1, shift + 1
        merged = np.zeros((len(counts), places[-1] - places[0] + 1), np.int64)
        np.add.at(merged.T, places - places[0], counts[:, used].T)
        return int(places[0]), shift, merged


CHANNEL_BINS = 24
MOST_ROWS = 256
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class ChannelMap:
    """Counts of a weight's finite values by channel, in 24 equal bins from ``low`` to ``high``.

    Attributes:
        axis: the axis of the channels.
        low: the lowest edge.
        high: the highest edge.
        step: the number of channels that share a row; 1 for at most 256 channels.
        rows: a text for each row, with a character for each bin: the number of binary digits of its count, from 10 on
            as a letter. ``1`` is 1 value, ``3`` 4 to 7, ``a`` 512 to 1023.
    """

    axis: int
    low: float
    high: float
    step: int
    rows: tuple[str, ...]


def channel_map(values: np.ndarray, axis: int | None) -> ChannelMap | None:
    """Returns the histogram of each channel of a weight; None without several channels or a finite value."""
    if axis is None or values.ndim < 2 or values.shape[axis] < 2 or not values.size:
        return None
    finite = np.isfinite(values)
    if not finite.any():
        return None
    low = float(np.min(values, where=finite, initial=np.inf))
    high = float(np.max(values, where=finite, initial=-np.inf))
    if low == high:
        low, high = low - 0.5, high + 0.5
    channels = np.moveaxis(values, axis, 0)
    step = -(-len(channels) // MOST_ROWS)
    rows = []
    for first in range(0, len(channels), step):
        row = channels[first : first + step]
        counts, _ = np.histogram(row[np.isfinite(row)].astype(np.float64), CHANNEL_BINS, (low, high))
        rows.append("".join(_DIGITS[int(count).bit_length()] for count in counts))
    return ChannelMap(axis % values.ndim, low, high, step, tuple(rows))
