"""Moments of values that come block after block, and the statistics of what a network is fed, input by input."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from trt_bisect.data.feeds import Feeds
from trt_bisect.support.codec import NanForNull, Real
from trt_bisect.support.table import Column

MOST_SAMPLES = 100
"""Statistics are of so many samples, the first ones."""
_PIXELS_FROM = 100.0
"""Pixels of 0 to 255 reach at least this value; values of 0 to 1 never do."""


@dataclass(frozen=True)
class Spread(NanForNull):
    """Moments of the finite values of a tensor; NaN if there are none. Variance and deviation are the population's."""

    count: int
    nonfinite: Annotated[int, Column("Not finite", "Values that are NaN or infinite")]
    min: Annotated[Real, Column("Min", rank=0)]
    max: Annotated[Real, Column("Max", rank=0)]
    mean: Annotated[Real, Column("Mean", rank=2)]
    std: Annotated[Real, Column("Std", "Standard deviation", rank=2)]
    variance: Annotated[Real, Column("Variance", rank=5)]


class Moments:
    """Count, mean, squared deviations, least and largest value of each group.

    Blocks are merged by the parallel formula of Chan, Golub and LeVeque (1979), which has no cancellation for any mean.
    """

    def __init__(self, groups: int = 1) -> None:
        self._count = np.zeros(groups, np.int64)
        self._nonfinite = np.zeros(groups, np.int64)
        self._mean = np.zeros(groups)
        self._squares = np.zeros(groups)
        self._least = np.full(groups, np.inf)
        self._largest = np.full(groups, -np.inf)

    def add(self, block: np.ndarray) -> None:
        """Adds values, float64 ``[groups, values]``."""
        finite = np.isfinite(block)
        count = np.count_nonzero(finite, axis=1)
        self._nonfinite += block.shape[1] - count
        mean = np.sum(block, axis=1, where=finite) / np.maximum(count, 1)
        deviations = np.where(finite, block, mean[:, np.newaxis]) - mean[:, np.newaxis]
        total = self._count + count
        apart = mean - self._mean
        self._squares += np.sum(deviations**2, axis=1) + apart**2 * self._count * count / np.maximum(total, 1)
        self._mean += apart * count / np.maximum(total, 1)
        self._count = total
        self._least = np.minimum(self._least, np.min(block, axis=1, where=finite, initial=np.inf))
        self._largest = np.maximum(self._largest, np.max(block, axis=1, where=finite, initial=-np.inf))

    def spread(self, group: int = 0) -> Spread:
        """Returns the moments of a group."""
        count, nonfinite = int(self._count[group]), int(self._nonfinite[group])
        if not count:
            return Spread(0, nonfinite, *[math.nan] * 5)
        variance = float(self._squares[group]) / count
        least, largest, mean = (float(values[group]) for values in (self._least, self._largest, self._mean))
        return Spread(count, nonfinite, least, largest, mean, math.sqrt(variance), variance)


@dataclass(frozen=True)
class FedInput:
    """The values of one input over some samples.

    Attributes:
        name: the name of the input.
        least: the smallest value.
        most: the largest value.
        mean: the mean of all values.
        std: their standard deviation.
        samples: the number of samples.
    """

    name: str
    least: float
    most: float
    mean: float
    std: float
    samples: int

    @property
    def absmax(self) -> float:
        """The largest magnitude."""
        return max(abs(self.least), abs(self.most))

    @property
    def looks_like_pixels(self) -> bool:
        """True for values from 0 to at most 255 that reach 100 or more."""
        return self.least >= 0.0 and _PIXELS_FROM <= self.most <= 255.0

    def __str__(self) -> str:
        return f"{self.least:.4g} to {self.most:.4g}, mean {self.mean:.4g}, std {self.std:.4g}"


def statistics(samples: Iterable[Feeds]) -> tuple[FedInput, ...]:
    """Returns the statistics of every input of floating-point numbers."""
    moments: dict[str, Moments] = {}
    counts: Counter[str] = Counter()
    for feeds in samples:
        for name, array in feeds.items():
            if array.dtype.kind == "f" and array.size:
                moments.setdefault(name, Moments()).add(array.reshape(1, -1).astype(np.float64))
                counts[name] += 1
    spreads = {name: each.spread() for name, each in moments.items()}
    return tuple(
        FedInput(name, spread.min, spread.max, spread.mean, spread.std, counts[name])
        for name, spread in spreads.items()
    )
