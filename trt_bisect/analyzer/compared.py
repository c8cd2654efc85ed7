"""Comparison of inner tensors of two runs, sample by sample."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import median_low
from typing import Annotated

import numpy as np

from trt_bisect.analyzer.channel_map import ChannelMap
from trt_bisect.analyzer.compare_output import FAINT_OCTAVES, octave
from trt_bisect.analyzer.metrics import cosine_of_sums
from trt_bisect.analyzer.origins import LayerTensor, Origin
from trt_bisect.analyzer.parts import parts
from trt_bisect.analyzer.tensor_histogram import GrowingTensorHistogram, TensorHistogram
from trt_bisect.analyzer.tensors import (
    ChannelPeaks,
    Figures,
    LoudChannel,
    PairStatistics,
    RoundingFigures,
    RoundingStatistics,
    Spread,
    as_block,
    largest_magnitude,
    row_length,
)
from trt_bisect.support.machine import cores
from trt_bisect.support.table import PERCENT, Column, Part
from trt_bisect.support.threads import ThreadsIfLong

Tensors = Mapping[str, np.ndarray]
"""The tensors of one run on one sample, by name."""


@dataclass(frozen=True)
class ComparedPart:
    """The comparison of a tensor, or of a channel of a weight, in both runs.

    Attributes:
        origin: the tensor.
        shape: the shape on the first sample.
        dtype: the dtype in the FP32 run.
        quantized_dtype: the type that it is rounded to, such as ``int8``; empty if it is not rounded.
        scale: the scale of INT8; the largest one if each channel has its own; None if the tensor is not rounded.
        figures: INT8 against FP32, with the tensor as its layer makes it, before its own rounding. For a weight: after
            rounding against before.
        fp32: the values in FP32.
        int8: the values in INT8.
    """

    origin: Annotated[LayerTensor, Part()]
    shape: Annotated[tuple[int, ...], Column("Shape", "On the first sample; sorted by the number of values", rank=5)]
    dtype: str
    quantized_dtype: Annotated[str, Column("Rounded to", rank=2)]
    scale: Annotated[float | None, Column("Scale", "The largest one if each channel has its own", rank=6)]
    figures: Annotated[Figures, Part()]
    fp32: Annotated[Spread, Part("fp32_", "{high}", rank=4, shown=("min", "max"))]
    int8: Annotated[Spread, Part("int8_", "{low}", rank=4, shown=("min", "max"))]

    @property
    def range_difference(
        self,
    ) -> Annotated[float, Column("Range difference", "Width of the range, {low} minus {high}")]:
        """The width of the range in INT8 minus that in FP32."""
        return (self.int8.max - self.int8.min) - (self.fp32.max - self.fp32.min)


@dataclass(frozen=True)
class ComparedChannel(ComparedPart):
    """The comparison of one channel of a weight.

    Attributes:
        channel: its index.
    """

    channel: Annotated[int, Column("Channel", "Of the weight", rank=0)]


@dataclass(frozen=True)
class ComparedTensor(ComparedPart):
    """The comparison of one tensor in both runs.

    Attributes:
        rounding: the error of the tensor's own rounding alone.
        loud: the channel with the largest magnitude.
        loud_input: the input channel of a weight with the largest magnitude.
        worst_cosine: the worst cosine of one sample. Samples on which the FP32 tensor is almost zero do not count.
            None for a weight.
        worst_sample: the index of that sample.
        note: the part that could not be compared.
        histogram: the histogram of the values in FP32, and of those that the INT8 layers read; None where no value is
            finite.
        map: the channels of a weight in FP32; None where there are none.
    """

    rounding: Annotated[RoundingFigures | None, Part("rounding_")] = None
    loud: Annotated[LoudChannel | None, Part("loud_", "Loud")] = None
    loud_input: Annotated[LoudChannel | None, Part("loud_input_", "Loud input")] = None
    worst_cosine: Annotated[float | None, Column("Worst cosine", "Of one sample", PERCENT)] = None
    worst_sample: Annotated[int | None, Column("Worst sample", "Its index")] = None
    note: Annotated[str, Column("Note")] = ""
    histogram: TensorHistogram | None = None
    map: ChannelMap | None = None


@dataclass(frozen=True)
class Compared(ComparedTensor):
    """The comparison of one tensor, with what rounds it."""

    origin: Origin

    @property
    def row(self) -> ComparedTensor:
        """The comparison alone."""
        return ComparedTensor(**{**vars(self), "origin": self.origin.named})


class _TensorComparison:
    """The statistics of one tensor in both runs over the samples added so far."""

    def __init__(self, origin: Origin, *, histogram: bool = False) -> None:
        self._origin = origin
        self._histogram = GrowingTensorHistogram() if histogram else None
        self._statistics = PairStatistics()
        self._rounding = RoundingStatistics(origin.quantizers) if origin.has_steps else None
        self._peaks = ChannelPeaks(origin.channel_axis) if origin.channel_axis is not None else None
        self._shape: tuple[int, ...] | None = None
        self._dtype = ""
        self._differing = 0
        self._worst_of: dict[int, tuple[float, int]] = {}
        self._octaves: Counter[int] = Counter()
        self._samples = 0

    def add(self, reference: np.ndarray, output: np.ndarray) -> None:
        """Adds the tensor of both runs on the next sample. If the shapes differ, it is counted and left out."""
        if self._shape is None:
            self._shape, self._dtype = reference.shape, str(reference.dtype)
        if reference.shape != output.shape:
            self._differing += 1
            self._samples += 1
            return
        before = self._statistics.sums()
        row, largest = row_length(reference.shape), largest_magnitude(reference)
        flat = reference.reshape(-1), output.reshape(-1)
        for part in parts(reference.size, row):
            self._statistics.add(*(as_block(run[part]) for run in flat), row=row, largest=largest)
        self._add_sample(self._statistics.sums() - before)
        if self._rounding is not None:
            self._add_rounding(reference)
        if self._histogram is not None:
            self._add_histogram(self._histogram, reference, output)
        if self._peaks is not None:
            self._peaks.add(reference)

    @property
    def _has_channel_scales(self) -> bool:
        """True if the tensor is rounded with a scale for each channel, so that it cannot be rounded in parts."""
        return any(quantizer.axis is not None for quantizer in self._origin.quantizers)

    def _add_histogram(self, histogram: GrowingTensorHistogram, reference: np.ndarray, output: np.ndarray) -> None:
        read = self._origin.rounded(output) if self._has_channel_scales else output
        flat = reference.reshape(-1), read.reshape(-1)
        for part in parts(reference.size):
            rounded = flat[1][part] if self._has_channel_scales else self._origin.rounded(flat[1][part])
            histogram.add(flat[0][part], rounded)

    def _add_rounding(self, reference: np.ndarray) -> None:
        assert self._rounding is not None
        if self._has_channel_scales:
            self._rounding.add(reference)
            return
        for part in parts(reference.size):
            self._rounding.add(reference.reshape(-1)[part])

    def done(self) -> Compared | None:
        """Returns the comparison over all samples; None if no sample has the tensor."""
        if self._shape is None:
            return None
        worst_cosine, worst_sample = self._worst()
        return Compared(
            origin=self._origin,
            shape=self._shape,
            dtype=self._dtype,
            quantized_dtype=self._origin.quantized_dtype,
            scale=self._origin.scale,
            figures=self._statistics.figures(),
            fp32=self._statistics.reference.spread(),
            int8=self._statistics.output.spread(),
            rounding=self._rounding.figures() if self._rounding else None,
            loud=self._peaks.loudest() if self._peaks else None,
            note=f"another shape in INT8 on {self._differing} samples, left out" if self._differing else "",
            worst_cosine=worst_cosine,
            worst_sample=worst_sample,
            histogram=self._histogram.done() if self._histogram else None,
        )

    def _add_sample(self, sums: np.ndarray) -> None:
        """Keeps the worst cosine by octave of the sample's norm. The faint octaves are known only at the end."""
        if sums[0]:
            loudness = octave(math.sqrt(max(sums[1], 0.0)))
            found = (cosine_of_sums(*map(float, sums)), self._samples)
            self._worst_of[loudness] = min(found, self._worst_of.get(loudness, found))
            self._octaves[loudness] += 1
        self._samples += 1

    def _worst(self) -> tuple[float | None, int | None]:
        """Returns the worst cosine of a sample that is not faint, and the index of that sample."""
        if not self._octaves:
            return None, None
        middle = median_low(self._octaves.elements())
        return min(found for loudness, found in self._worst_of.items() if loudness >= middle - FAINT_OCTAVES)


def compare_tensors(
    samples: Iterable[tuple[Tensors, Tensors]],
    origins: Mapping[str, Origin],
    on_sample: Callable[[], None] = lambda: None,
    *,
    histograms: bool = False,
) -> tuple[Compared, ...]:
    """Compares every floating-point tensor of ``origins`` that both runs have, over all samples together.

    The tensors of only one sample are in memory at a time; they are compared in parallel.

    Args:
        samples: for each sample the tensors of the FP32 run and of the INT8 run, by the same names.
        origins: the origins by tensor; the result has their order.
        on_sample: called after each sample.
        histograms: true to make those of each tensor too.
    """
    comparisons = {name: _TensorComparison(origin, histogram=histograms) for name, origin in origins.items()}
    with ThreadsIfLong(cores()) as pool:
        for reference, output in samples:
            both = [name for name in comparisons if _is_float(reference.get(name)) and _is_float(output.get(name))]
            list(pool.map(lambda name, r=reference, o=output: comparisons[name].add(r[name], o[name]), both))
            del reference, output
            on_sample()
    return tuple(compared for each in comparisons.values() if (compared := each.done()) is not None)


def _is_float(values: np.ndarray | None) -> bool:
    return values is not None and values.dtype.kind == "f"
