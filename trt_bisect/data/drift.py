"""The drift of data from the calibration data: values beyond its range, and the distance of the distributions.

Samples are independent of each other, the values within a sample are not. So whole samples are exchanged between the
two data sets to see how far apart chance alone brings them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from trt_bisect.data.datasets import Dataset

_VALUES, _SAMPLES = 256, 512
"""The most values of a sample, and the most samples of a data set, that are kept."""
_POINTS = 64
"""The points at which distributions are compared: quantiles of all values."""
_DIVISIONS = 2000


@dataclass(frozen=True)
class Drift:
    """The distance of an input's values from those of the calibration data.

    Attributes:
        outside: the share of values below the least or above the largest value of the calibration data.
        distance: the largest distance of the two distributions (Kolmogorov and Smirnov), from 0 to 1.
        chance: the share of random divisions of all samples into two such sets that are as far apart.
        least, most: the range of the calibration data.
    """

    outside: float
    distance: float
    chance: float
    least: float
    most: float


@dataclass
class Sketch:
    """A few values of every sample of a data set, or of every second, fourth and so on of a large one.

    Attributes:
        values: by input of floating-point numbers, an array a sample, sorted; empty until all samples were read.
        reach: by input, the least and the largest value.
    """

    values: dict[str, list[np.ndarray]] = field(default_factory=dict)
    reach: dict[str, tuple[float, float]] = field(default_factory=dict)

    def watching(self, data: Dataset) -> Dataset:
        """Returns the data set; whoever first reads it to its end fills the sketch."""

        def samples() -> Iterator[Mapping[str, np.ndarray]]:
            seen, stride = Sketch(), 1
            for position, sample in enumerate(data.samples()):
                if not self.values:
                    stride = seen._with(sample, position, stride)
                yield sample
            self.values, self.reach = self.values or seen.values, self.reach or seen.reach

        return replace(data, samples=samples)

    def _with(self, sample: Mapping[str, np.ndarray], position: int, stride: int) -> int:
        """Adds a sample; returns the stride from then on."""
        for name, given in sample.items():
            array = np.asarray(given)
            if array.dtype.kind != "f" or not array.size:
                continue
            least, most = self.reach.get(name, (np.inf, -np.inf))
            self.reach[name] = min(least, float(array.min())), max(most, float(array.max()))
            if position % stride == 0:
                self.values.setdefault(name, []).append(_some(array.ravel()))
        if max(map(len, self.values.values()), default=0) <= _SAMPLES:
            return stride
        self.values = {name: each[::2] for name, each in self.values.items()}
        return 2 * stride


def _some(values: np.ndarray) -> np.ndarray:
    """Values at places that depend on the number of values alone."""
    if values.size > _VALUES:
        values = values[np.random.default_rng(values.size).integers(0, values.size, _VALUES)]
    return np.sort(values.astype(np.float64))


def drift(before: Sketch, now: Sketch) -> dict[str, Drift]:
    """Returns by input the drift of data from the calibration data; nothing for inputs that one of them lacks."""
    return {
        name: _drift(before.values[name], samples, *before.reach[name])
        for name, samples in now.values.items()
        if name in before.values
    }


def _drift(before: list[np.ndarray], now: list[np.ndarray], least: float, most: float) -> Drift:
    beyond = [np.mean((sample < least) | (sample > most)) for sample in now]
    points = np.unique(np.quantile(np.concatenate([*before, *now]), np.linspace(0.0, 1.0, _POINTS)))
    table = np.stack([np.searchsorted(one, points, "right") / one.size for one in (*before, *now)])
    count, total = len(now), table.sum(axis=0)

    def distance(sums: np.ndarray) -> np.ndarray:
        apart: np.ndarray = np.abs(sums / count - (total - sums) / len(before)).max(axis=-1)
        return apart

    found = float(distance(table[len(before) :].sum(axis=0)))
    random = np.random.default_rng(0)
    chosen = random.random((_DIVISIONS, len(table))).argpartition(count - 1, axis=1)[:, :count]
    divisions = np.zeros((_DIVISIONS, len(table)))
    np.put_along_axis(divisions, chosen, 1.0, axis=1)
    as_far = int(np.count_nonzero(distance(divisions @ table) >= found - 1e-12))
    return Drift(float(np.mean(beyond)), found, (as_far + 1) / (_DIVISIONS + 1), least, most)
