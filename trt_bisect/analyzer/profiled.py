"""Figures of one tensor of one run: its values, and those after the Q/DQ pair that rounds it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trt_bisect.analyzer.parts import channel_parts
from trt_bisect.analyzer.tensor_histogram import GrowingTensorHistogram, TensorHistogram
from trt_bisect.analyzer.tensors import Moments, RoundingFigures, RoundingStatistics, Spread, as_block
from trt_bisect.model.quantizer import Quantizer, round_trips


@dataclass(frozen=True)
class TensorFigures:
    """The figures of one tensor.

    Attributes:
        spread: the spread of the values.
        histogram: the histogram of the values, and of those after the pair if there is one; None where no value is
            finite.
        rounded: the spread of the values after the pair; None without a pair.
        rounding: the error of the pair; None without one, and for FP8.
    """

    spread: Spread
    histogram: TensorHistogram | None
    rounded: Spread | None = None
    rounding: RoundingFigures | None = None


class TensorStatistics:
    """The statistics of one tensor, sample by sample.

    Args:
        quantizers: the quantizers of the pairs that round it, first applied first; empty if it is not rounded.
    """

    def __init__(self, quantizers: Sequence[Quantizer] = ()) -> None:
        self._quantizers = tuple(quantizers)
        self._histogram = GrowingTensorHistogram(2 if quantizers else 1)
        self._spread, self._rounded = Moments(), Moments()
        has_steps = bool(quantizers) and not any(each.in_fp8 for each in quantizers)
        self._rounding = RoundingStatistics(quantizers) if has_steps else None

    def add(self, values: np.ndarray) -> None:
        """Adds a sample's tensor, of any shape that has the quantizers' axis."""
        axis = next((each.axis for each in self._quantizers if each.axis is not None), None)
        if axis is None:
            values, axis = values.reshape(-1), 0
        for part in channel_parts(values.shape, axis):
            self._add(values, part)

    def _add(self, values: np.ndarray, part: tuple[slice, ...]) -> None:
        block = as_block(values[part])
        self._spread.add(block)
        if not self._quantizers:
            self._histogram.add(block)
            return
        quantizers = [quantizer.of_part(part) for quantizer in self._quantizers]
        after = as_block(round_trips(np.asarray(values[part], np.float32), quantizers))
        self._rounded.add(after)
        self._histogram.add(block, after)
        if self._rounding is not None:
            self._rounding.add(values, part)

    def figures(self) -> TensorFigures:
        """Returns the figures of all samples added."""
        return TensorFigures(
            self._spread.spread(),
            self._histogram.done(),
            self._rounded.spread() if self._quantizers else None,
            self._rounding.figures() if self._rounding else None,
        )
