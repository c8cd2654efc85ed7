"""Statistics of a network's inputs, and the drift of new data from the calibration data."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from trt_bisect.data.datasets import Dataset
from trt_bisect.data.feeds import Feeds
from trt_bisect.support.codec import NanForNull, Real
from trt_bisect.support.table import Column

MOST_SAMPLES = 100  # the number of samples, the first ones, that statistics are computed from
_PIXELS_FROM = 100.0


@dataclass(frozen=True)
class Spread(NanForNull):
    """Moments of a tensor's finite values; NaN without any. Variance and deviation are the population's."""

    count: int
    nonfinite: Annotated[int, Column("Not finite", "Values that are NaN or infinite")]
    min: Annotated[Real, Column("Min", rank=0)]
    max: Annotated[Real, Column("Max", rank=0)]
    mean: Annotated[Real, Column("Mean", rank=2)]
    std: Annotated[Real, Column("Std", "Standard deviation", rank=2)]
    variance: Annotated[Real, Column("Variance", rank=5)]


class Moments:
    """Accumulates count, mean, squared deviations, smallest and largest value of tensors or channels (groups)."""

    def __init__(self, groups: int = 1) -> None:
        self._count = np.zeros(groups, np.int64)
        self._nonfinite = np.zeros(groups, np.int64)
        self._mean = np.zeros(groups)
        self._squares = np.zeros(groups)
        self._least = np.full(groups, np.inf)
        self._largest = np.full(groups, -np.inf)

    def add(self, block: np.ndarray) -> None:
        """Adds values, float64 ``[groups, values]``, to the moments."""
        finite = np.isfinite(block)
        count = np.count_nonzero(finite, axis=1)
        self._nonfinite += block.shape[1] - count
        mean = np.sum(block, axis=1, where=finite) / np.maximum(count, 1)
        deviations = np.where(finite, block, mean[:, np.newaxis]) - mean[:, np.newaxis]
        total = self._count + count
        # Chan, Golub and LeVeque (1979)
        apart = mean - self._mean
        self._squares += np.sum(deviations**2, axis=1) + apart**2 * self._count * count / np.maximum(total, 1)
        self._mean += apart * count / np.maximum(total, 1)
        self._count = total
        self._least = np.minimum(self._least, np.min(block, axis=1, where=finite, initial=np.inf))
        self._largest = np.maximum(self._largest, np.max(block, axis=1, where=finite, initial=-np.inf))

    def spread(self, group: int = 0) -> Spread:
        """Returns the moments of the group with this index."""
        count, nonfinite = int(self._count[group]), int(self._nonfinite[group])
        if not count:
            return Spread(0, nonfinite, *[math.nan] * 5)
        variance = float(self._squares[group]) / count
        least, largest, mean = (float(values[group]) for values in (self._least, self._largest, self._mean))
        return Spread(count, nonfinite, least, largest, mean, math.sqrt(variance), variance)


@dataclass(frozen=True)
class FedInput:
    """The values of an input over some samples.

    Attributes:
        least: the smallest value.
        most: the largest value.
        mean: the mean of all values.
        std: the standard deviation of all values.
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
        """The largest magnitude of the input."""
        return max(abs(self.least), abs(self.most))

    @property
    def looks_like_pixels(self) -> bool:
        """True for values from 0 to at most 255 that reach 100."""
        return self.least >= 0.0 and _PIXELS_FROM <= self.most <= 255.0

    def __str__(self) -> str:
        return f"{self.least:.4g} to {self.most:.4g}, mean {self.mean:.4g}, std {self.std:.4g}"


def statistics(samples: Iterable[Feeds]) -> tuple[FedInput, ...]:
    """Returns the statistics of every float input over all samples."""
    moments: dict[str, Moments] = {}
    counts: Counter[str] = Counter()
    for feeds in samples:
        for name, array in feeds.items():
            if array.dtype.kind == "f" and array.size:
                moments.setdefault(name, Moments()).add(array.reshape(1, -1).astype(np.float64))
                counts[name] += 1
    spreads = [(name, sums.spread()) for name, sums in moments.items()]
    return tuple(FedInput(name, s.min, s.max, s.mean, s.std, counts[name]) for name, s in spreads)


_VALUES, _SAMPLES = 256, 512  # the most values kept of a sample, and the most samples of a data set
_POINTS = 64  # the quantiles of all values at which distributions are compared
_DIVISIONS = 2000


@dataclass(frozen=True)
class Drift:
    """The distance of an input's values from those of the calibration data.

    Attributes:
        outside: the share of values outside the calibration data's range.
        distance: the largest distance of the two distributions (Kolmogorov and Smirnov), from 0 to 1.
        chance: the share of random divisions of all samples into two sets of the same sizes that are as far apart or
            more.
        least: the smallest value of the calibration data.
        most: the largest value of the calibration data.
    """

    outside: float
    distance: float
    chance: float
    least: float
    most: float


class Sketch:
    """A few values of every sample of a data set or, of over 512 samples, of every second, fourth and so on.

    Attributes:
        values: by float input, one sorted array for each sample read; empty until all samples were read.
        reach: by float input, the smallest and the largest value.
    """

    def __init__(self) -> None:
        self.values: dict[str, list[np.ndarray]] = {}
        self.reach: dict[str, tuple[float, float]] = {}

    def watching(self, data: Dataset) -> Dataset:
        """Returns ``data`` as a data set whose first complete reading fills this sketch."""

        def samples() -> Iterator[Mapping[str, np.ndarray]]:
            seen, stride = Sketch(), 1
            for position, sample in enumerate(data.samples()):
                if not self.values:
                    stride = seen._with(sample, position, stride)
                yield sample
            self.values, self.reach = self.values or seen.values, self.reach or seen.reach

        return replace(data, samples=samples)

    def _with(self, sample: Mapping[str, np.ndarray], position: int, stride: int) -> int:
        for name, tensor in sample.items():
            array = np.asarray(tensor)
            if array.dtype.kind != "f" or not array.size:
                continue
            least, most = self.reach.get(name, (np.inf, -np.inf))
            self.reach[name] = min(least, float(array.min())), max(most, float(array.max()))
            if position % stride == 0:
                values = array.ravel()
                if values.size > _VALUES:  # at places that depend on the number of values alone
                    values = values[np.random.default_rng(values.size).integers(0, values.size, _VALUES)]
                self.values.setdefault(name, []).append(np.sort(values.astype(np.float64)))
        if max(map(len, self.values.values()), default=0) <= _SAMPLES:
            return stride
        self.values = {name: arrays[::2] for name, arrays in self.values.items()}
        return 2 * stride


def drift(before: Sketch, now: Sketch) -> dict[str, Drift]:
    """Returns, by float input of both, the drift of ``now`` from ``before`` (the calibration data)."""
    return {
        name: _drift(before.values[name], samples, *before.reach[name])
        for name, samples in now.values.items()
        if name in before.values
    }


def _drift(before: list[np.ndarray], now: list[np.ndarray], least: float, most: float) -> Drift:
    beyond = [np.mean((sample < least) | (sample > most)) for sample in now]
    points = np.unique(np.quantile(np.concatenate([*before, *now]), np.linspace(0.0, 1.0, _POINTS)))
    table = np.stack([np.searchsorted(sample, points, "right") / sample.size for sample in (*before, *now)])
    count, total = len(now), table.sum(axis=0)

    def distance(sums: np.ndarray) -> np.ndarray:
        apart: np.ndarray = np.abs(sums / count - (total - sums) / len(before)).max(axis=-1)
        return apart

    observed = float(distance(table[len(before) :].sum(axis=0)))
    # Values within a sample depend on each other, samples do not: whole samples are exchanged between the data sets.
    random = np.random.default_rng(0)
    chosen = random.random((_DIVISIONS, len(table))).argpartition(count - 1, axis=1)[:, :count]
    divisions = np.zeros((_DIVISIONS, len(table)))
    np.put_along_axis(divisions, chosen, 1.0, axis=1)
    as_far = int(np.count_nonzero(distance(divisions @ table) >= observed - 1e-12))
    return Drift(float(np.mean(beyond)), observed, (as_far + 1) / (_DIVISIONS + 1), least, most)
