"""The histogram of a tensor in one run, or in two runs with the same bins, made sample by sample."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trt_bisect.analyzer.growing_histogram import GrowingHistogram

BINS = 64


@dataclass(frozen=True)
class TensorHistogram:
    """Counts of the finite values of a tensor in at most ``BINS`` equal bins from ``low`` to ``high``.

    Attributes:
        low: the left edge of the first bin.
        high: the right edge of the last bin.
        fp32: the counts in the FP32 run.
        int8: the counts in the INT8 run, as the INT8 layers read the tensor: after its own rounding if it has one;
            empty where there is one run only.
    """

    low: float
    high: float
    fp32: tuple[int, ...]
    int8: tuple[int, ...]


class GrowingTensorHistogram:
    """The histogram of the samples added so far; its bins grow with the values, so that one pass is enough.

    Args:
        runs: 2 for FP32 and INT8, or 1.
    """

    def __init__(self, runs: int = 2) -> None:
        self._counts = GrowingHistogram(runs)

    def add(self, *runs: np.ndarray) -> None:
        """Adds the same values in each run, of any shape and float dtype."""
        if runs[0].size:
            self._counts.add(np.stack([run.reshape(-1) for run in runs]))

    def done(self) -> TensorHistogram | None:
        """Returns the histogram; None without a finite value."""
        low, high, counts = self._counts.together(BINS)
        if not counts.size:
            return None
        if counts.shape[1] == 1:
            middle = (low + high) / 2.0 if high - low > 1e-30 else 0.0
            low, high = middle - 0.5, middle + 0.5
        fp32, *others = (tuple(each.tolist()) for each in counts)
        return TensorHistogram(low, high, fp32, others[0] if others else ())
