"""Histograms of a tensor in FP32 and in INT8 over the same bins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from trt_bisect.analyzer.compared import Compared, Tensors
from trt_bisect.analyzer.tensors import parts
from trt_bisect.machine import cores
from trt_bisect.model.quantizer import Quantizer, round_trips

BINS = 64


@dataclass(frozen=True)
class Histogram:
    """Counts of the finite values in ``BINS`` equal bins from ``low`` to ``high``, as ``numpy.histogram`` has them.

    Attributes:
        fp32: of the FP32 run.
        int8: of the INT8 run as the INT8 layers read it: after the tensor's own rounding, if it has one.
    """

    low: float
    high: float
    fp32: tuple[int, ...]
    int8: tuple[int, ...]


class HistogramCounts:
    """The histogram of one tensor while the samples pass by; both ranges are known before.

    Args:
        compared: the tensor.
        quantizers: what its INT8 values are still to go through, each with one scale.
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
        """Takes in a sample of both runs, as it was made; one of another shape in INT8 is left out."""
        if reference.shape != output.shape:
            return
        flat = reference.reshape(-1), output.reshape(-1)
        for part in parts(reference.size):
            self._fp32 += self._counted(flat[0][part])
            self._int8 += self._counted(round_trips(flat[1][part], self._quantizers))

    def _counted(self, values: np.ndarray) -> np.ndarray:
        return np.histogram(values[np.isfinite(values)], BINS, (self._low, self._high))[0]

    def done(self) -> Histogram:
        """What was counted."""
        return Histogram(self._low, self._high, tuple(self._fp32.tolist()), tuple(self._int8.tolist()))


def _monotone(compared: Compared) -> tuple[Quantizer, ...]:
    """The tensor's own quantizers, none where they have a scale for each channel: only then are the ends known."""
    quantizers = compared.origin.quantizers
    return () if any(quantizer.axis is not None for quantizer in quantizers) else quantizers


def tensor_histograms(
    samples: Iterable[tuple[Tensors, Tensors]],
    tensors: Sequence[Compared],
    on_sample: Callable[[], None] = lambda: None,
) -> Mapping[str, Histogram]:
    """The histograms of tensors that were compared, by name; those without a finite value have none.

    Args:
        samples: the same as they were compared on.
        tensors: what the comparison found.
        on_sample: called after each.
    """
    counts = {
        each.origin.tensor: HistogramCounts(each, _monotone(each))
        for each in tensors
        if each.fp32.count and each.int8.count
    }
    with ThreadPoolExecutor(cores()) as pool:
        for reference, output in samples:
            both = [name for name in counts if name in reference and name in output]
            list(pool.map(lambda name, r=reference, o=output: counts[name].add(r[name], o[name]), both))
            del reference, output
            on_sample()
    return {name: each.done() for name, each in counts.items()}
