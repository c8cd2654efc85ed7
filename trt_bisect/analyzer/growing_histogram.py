"""A histogram of signed values that pass by a block at a time: memory stays the same, counts stay exact."""

from __future__ import annotations

from typing import Any

import numpy as np

BINS = 1024
_LEAST_EXPONENT = -1000
"""So that a bin's width is no denormal, nor is a value divided by it infinite."""


class GrowingHistogram:
    """Counts of values in equal bins around zero, in *groups* (one for a tensor, or one a channel).

    The width of a bin is a power of two, so that which bin a value falls into is exact, as are the edges. A value
    beyond the last bin doubles the width as often as need be: neighbouring bins become one. Values that are not finite
    are left out, and counted in ``nonfinite``.

    Args:
        groups: how many.
        bins: of each; even.
    """

    def __init__(self, groups: int = 1, bins: int = BINS) -> None:
        self._half = bins // 2
        self._counts = np.zeros((groups, bins), np.int64)
        self._exponents = np.full(groups, _LEAST_EXPONENT)
        self._least, self._largest = np.full(groups, np.inf), np.full(groups, -np.inf)
        self.nonfinite = 0

    def add(self, block: np.ndarray) -> None:
        """Takes in values, ``[groups, values]`` of any float dtype."""
        finite = np.isfinite(block)
        everywhere = bool(finite.all())
        kept: Any = True if everywhere else finite
        least = np.min(block, axis=1, where=kept, initial=np.inf).astype(np.float64)
        largest = np.max(block, axis=1, where=kept, initial=-np.inf).astype(np.float64)
        self._widen(np.maximum(np.maximum(-least, largest), 0.0))
        self._least, self._largest = np.minimum(self._least, least), np.maximum(self._largest, largest)
        groups, bins = self._counts.shape
        first = bins * np.arange(groups)[:, np.newaxis] + self._half
        with np.errstate(invalid="ignore"):
            places = np.floor(block * np.ldexp(1.0, -self._exponents)[:, np.newaxis]) + first
        places = places.reshape(-1) if everywhere else places[finite]
        self.nonfinite += block.size - places.size
        counted = np.bincount(places.astype(np.int64), minlength=groups * bins)
        self._counts += counted.reshape(groups, bins)

    def _widen(self, peaks: np.ndarray) -> None:
        """Makes every magnitude up to its group's peak fall into a bin."""
        wanted = np.maximum(np.frexp(peaks / self._half)[1], self._exponents)
        places = np.arange(-self._half, self._half)
        for group in np.flatnonzero(wanted > self._exponents):
            merged = (places >> min(int(wanted[group] - self._exponents[group]), 62)) + self._half
            before = self._counts[group].copy()
            self._counts[group] = 0
            np.add.at(self._counts[group], merged, before)
        self._exponents = wanted

    def buckets(self, group: int = 0, most: int = 128) -> np.ndarray:
        """What was seen of a group: float64 ``[buckets, 3]``, each a left edge, a right edge and a count.

        The first begins at the least value, the last ends at the largest, which is in it; of the others the right edge
        is outside. Values that are all the same have one bucket of width one around them. Empty if nothing was seen.

        Args:
            group: which.
            most: how many buckets there may be; bins are merged in pairs until they fit.
        """
        used = np.flatnonzero(self._counts[group])
        if not used.size:
            return np.zeros((0, 3))
        least, largest = self._least[group], self._largest[group]
        if least == largest:
            return np.array([[least - 0.5, largest + 0.5, self._counts[group].sum()]])
        first, last, shift = used[0] - self._half, used[-1] - self._half, 0
        while (last >> shift) - (first >> shift) >= most:
            shift += 1
        places = np.arange(first >> shift, (last >> shift) + 2)
        counts = np.zeros(places.size - 1, np.int64)
        np.add.at(counts, ((used - self._half) >> shift) - places[0], self._counts[group][used])
        edges = np.ldexp(places.astype(np.float64), self._exponents[group] + shift)
        edges[0] = least
        if largest > edges[-2]:
            edges[-1] = largest
        return np.stack([edges[:-1], edges[1:], counts], axis=1)
