"""The calibrators: they choose the largest magnitude that INT8 represents from the magnitudes of a tensor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trt_bisect.calibration.histogram import (
    AbsHistogram,
    entropy_threshold,
    minmax_threshold,
    mse_thresholds,
    percentile_threshold,
)
from trt_bisect.errors import BadInput
from trt_bisect.support.machine import cores
from trt_bisect.support.threads import ThreadsIfLong

METHODS = ("entropy", "minmax", "percentile", "mse")
_PERCENTILE = 99.99


@dataclass(frozen=True)
class Calibrator:
    """A calibration method and its parameter.

    Attributes:
        method: ``entropy`` (TensorRT's, 2048 bins and 128 levels), ``minmax``, ``percentile``, or ``mse`` (the least
            mean squared error).
        percentile: the percentile of |x|, in percent; the default for another method, which does not use it.

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
        """Returns ``entropy``, ``minmax``, ``mse`` or, for example, ``percentile 99.99``."""
        return f"percentile {self.percentile:g}" if self.method == "percentile" else self.method

    def thresholds(self, histograms: Sequence[AbsHistogram]) -> list[float]:
        """Returns for each histogram the largest magnitude that the range represents."""
        if self.method == "entropy":
            with ThreadsIfLong(cores()) as pool:
                return list(pool.map(entropy_threshold, histograms))
        if self.method == "mse":
            return mse_thresholds(histograms)
        if self.method == "minmax":
            return list(map(minmax_threshold, histograms))
        return [percentile_threshold(histogram, self.percentile) for histogram in histograms]


def calibrators(percentiles: Iterable[float]) -> tuple[Calibrator, ...]:
    """Returns min-max, entropy and a calibrator for each of the percentiles, in this order."""
    by_percentile = (Calibrator("percentile", percentile) for percentile in percentiles)
    return (Calibrator("minmax"), Calibrator("entropy"), *by_percentile)
