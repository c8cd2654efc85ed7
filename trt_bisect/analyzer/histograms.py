"""Histograms of a tensor in FP32 and in INT8 with the same bins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from trt_bisect.analyzer.compared import Compared, Tensors, add_samples
from trt_bisect.analyzer.parts import parts
from trt_bisect.analyzer.tensor_histogram import BINS, TensorHistogram
from trt_bisect.model.quantizer import Quantizer, round_trips


class HistogramCounts:
    """The histogram of one tensor over the samples added so far. Its ends come from an earlier comparison.

    Args:
        compared: the comparison of the tensor on the same samples.
        quantizers: are applied to the INT8 values before counting; each has one scale.
    """

    def __init__(self, compared: Compared, quantizers: tuple[Quantizer, ...]) -> None:
        self._quantizers = quantizers
        ends = np.array([compared.int8.min, compared.int8.max], np.float32)
        low, high = (float(end) for end in np.nan_to_num(round_trips(ends, self._quantizers)))
        self._low, self._high = min(compared.fp32.min, low), max(compared.fp32.max, high)
        if self._low == self._high:
            self._low, self._high = self._low - 0.5, self._high + 0.5
        self._fp32 = np.zeros(BINS, np.int64)
        self._int8 = np.zeros(BINS, np.int64)

    def add(self, reference: np.ndarray, output: np.ndarray) -> None:
        """Adds the tensor of both runs on the next sample; does nothing if the shapes differ."""
        if reference.shape != output.shape:
            return
        flat = reference.reshape(-1), output.reshape(-1)
        for part in parts(reference.size):
            self._fp32 += self._counted(flat[0][part])
            self._int8 += self._counted(round_trips(flat[1][part], self._quantizers))

    def _counted(self, values: np.ndarray) -> np.ndarray:
        """Counts in float64, since the edges of the bins can be equal in float16 or float32."""
        counted = values[np.isfinite(values)].astype(np.float64)
        return np.histogram(counted, BINS, (self._low, self._high))[0]

    def done(self) -> TensorHistogram:
        """Returns the histogram."""
        return TensorHistogram(self._low, self._high, tuple(self._fp32.tolist()), tuple(self._int8.tolist()))


def _monotone(compared: Compared) -> tuple[Quantizer, ...]:
    """Returns the tensor's own quantizers; none if they have a scale for each channel, since the ends are unknown."""
    quantizers = compared.origin.quantizers
    return () if any(quantizer.axis is not None for quantizer in quantizers) else quantizers


def tensor_histograms(
    samples: Iterable[tuple[Tensors, Tensors]],
    tensors: Sequence[Compared],
    on_sample: Callable[[], None] = lambda: None,
) -> Mapping[str, TensorHistogram]:
    """Returns the histograms of tensors by name. A tensor without a finite value has none.

    Args:
        samples: the samples of the comparison.
        tensors: the results of the comparison.
        on_sample: called after each sample.
    """
    counts = {
        each.origin.tensor: HistogramCounts(each, _monotone(each))
        for each in tensors
        if each.fp32.count and each.int8.count
    }
    add_samples(samples, counts, on_sample)
    return {name: each.done() for name, each in counts.items()}
