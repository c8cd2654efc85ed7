"""A histogram of signed values with exact counts and constant memory; its range grows with the values added."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

BINS = 1024
_LEAST_EXPONENT = -1000
"""The least exponent of a bin's width: the width is a normal number, and a value divided by it is finite."""


@dataclass(frozen=True)
class Histogram:
    """Counts of values between edges.

    Attributes:
        edges: float64 ``[bins + 1]``; the first is the least value, the last the largest. Empty without values.
        counts: int64 ``[bins]``; a bin includes its left edge, and the last bin its right edge too.
        sum: the sum of the values.
        squares: the sum of their squares.
    """

    edges: np.ndarray
    counts: np.ndarray
    sum: float
    squares: float


class GrowingHistogram:
    """Counts of values in equal bins around zero, in groups (one for a tensor, or one for each channel).

    The width of a bin is a power of two, so that the edges and the bin of a value are exact. A value beyond the last
    bin doubles the width until it fits; neighbouring bins are merged then. Values that are not finite are left out and
    counted in ``nonfinite``.

    Args:
        groups: the number of groups.
        bins: the number of bins of each group; even.
    """

    def __init__(self, groups: int = 1, bins: int = BINS) -> None:
        self._half = bins // 2
        self._counts = np.zeros((groups, bins), np.int64)
        self._exponents = np.full(groups, _LEAST_EXPONENT)
        self._least, self._largest = np.full(groups, np.inf), np.full(groups, -np.inf)
        self._sum, self._squares = np.zeros(groups), np.zeros(groups)
        self.nonfinite = 0

    def add(self, block: np.ndarray) -> None:
        """Adds values, ``[groups, values]`` of any float dtype."""
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
        """Widens the bins until they cover all magnitudes up to each group's peak; ``peaks`` is ``[groups]``."""
        wanted = np.maximum(np.where(peaks > 0, np.frexp(peaks / self._half)[1], self._exponents), self._exponents)
        places = np.arange(-self._half, self._half)
        for group in np.flatnonzero(wanted > self._exponents):
            merged = (places >> min(int(wanted[group] - self._exponents[group]), 62)) + self._half
            before = self._counts[group].copy()
            self._counts[group] = 0
            np.add.at(self._counts[group], merged, before)
        self._exponents = wanted

    def seen(self, group: int = 0, most: int = 128) -> Histogram:
        """Returns the histogram of a group. Bins are merged in pairs until there are at most ``most``."""
        used = np.flatnonzero(self._counts[group])
        least, largest = float(self._least[group]), float(self._largest[group])
        counts = self._counts[group][used]
        sums = float(self._sum[group]), float(self._squares[group])
        if not used.size:
            return Histogram(np.zeros(0), counts, *sums)
        if least == largest:
            return Histogram(np.array([least, largest]), counts, *sums)
        first, last, shift = used[0] - self._half, used[-1] - self._half, 0
        while (last >> shift) - (first >> shift) >= most:
            shift += 1
        places = np.arange(first >> shift, (last >> shift) + 2)
        merged = np.zeros(places.size - 1, np.int64)
        np.add.at(merged, ((used - self._half) >> shift) - places[0], counts)
        with np.errstate(over="ignore"):
            edges = np.ldexp(places.astype(np.float64), self._exponents[group] + shift)
        edges[0], edges[-1] = least, largest
        return Histogram(edges, merged, *sums)

    def together(self, most: int = 64) -> tuple[float, float, np.ndarray]:
        """Returns all groups in the same equal bins: the first edge, the last edge, and int64 ``[groups, bins]``.

        There are at most ``most`` bins, and none without a value.
        """
        exponent = int(self._exponents.max())
        merged = np.zeros_like(self._counts)
        places = np.arange(-self._half, self._half)
        for group, own in enumerate(self._exponents):
            np.add.at(merged[group], (places >> min(exponent - int(own), 62)) + self._half, self._counts[group])
        used = np.flatnonzero(merged.any(axis=0))
        if not used.size:
            return 0.0, 0.0, np.zeros((len(merged), 0), np.int64)
        first, last, shift = int(used[0]) - self._half, int(used[-1]) - self._half, 0
        while (last >> shift) - (first >> shift) >= most:
            shift += 1
        counts = np.zeros(((last >> shift) - (first >> shift) + 1, len(merged)), np.int64)
        np.add.at(counts, ((used - self._half) >> shift) - (first >> shift), merged[:, used].T)
        width = float(np.ldexp(1.0, exponent + shift))
        return (first >> shift) * width, ((last >> shift) + 1) * width, counts.T
