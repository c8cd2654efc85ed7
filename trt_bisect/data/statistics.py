"""Statistics of what a network is fed: the least and the largest value, mean and standard deviation of each input."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from trt_bisect.data.feeds import Feeds

MOST_SAMPLES = 100
"""Statistics are of so many samples, the first ones."""
_PIXELS_FROM = 100.0
"""Pixels of 0 to 255 reach at least this value; values of 0 to 1 never do."""


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
    """Returns the statistics of every input of floating-point numbers.

    Args:
        samples: the samples of one network.
    """
    sums: dict[str, _Sums] = {}
    for feeds in samples:
        for name, array in feeds.items():
            if array.dtype.kind == "f" and array.size:
                sums.setdefault(name, _Sums()).add(array)
    return tuple(each.of(name) for name, each in sums.items())


@dataclass
class _Sums:
    """Running sums of one input."""

    least: float = math.inf
    most: float = -math.inf
    total: float = 0.0
    squares: float = 0.0
    values: int = 0
    samples: int = 0

    def add(self, array: np.ndarray) -> None:
        wide = array.astype(np.float64)
        self.least = min(self.least, float(wide.min()))
        self.most = max(self.most, float(wide.max()))
        self.total += float(wide.sum())
        self.squares += float(np.square(wide).sum())
        self.values += wide.size
        self.samples += 1

    def of(self, name: str) -> FedInput:
        mean = self.total / self.values
        variance = max(self.squares / self.values - mean * mean, 0.0)
        return FedInput(name, self.least, self.most, mean, math.sqrt(variance), self.samples)
