"""Comparison of inner tensors of two runs, sample by sample, and of weights before and after rounding."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import median_low
from typing import Annotated, Any

import numpy as np

from trt_bisect.analyzer.compare_output import FAINT_OCTAVES, octave
from trt_bisect.analyzer.histograms import ChannelMap, TensorHistogram, channel_map
from trt_bisect.analyzer.metrics import RunningSums, cosine
from trt_bisect.analyzer.origins import LayerTensor, Origin, Tensors
from trt_bisect.analyzer.tensors import (
    ChannelPeaks,
    LoudChannel,
    PairFigures,
    PairStatistics,
    RoundedValues,
    RoundingFigures,
    as_block,
    channels_first,
    row_length,
)
from trt_bisect.data.statistics import Moments, Spread
from trt_bisect.model.network import Network
from trt_bisect.model.quantizer import round_trips
from trt_bisect.support.machine import ThreadsIfLong, cores
from trt_bisect.support.memory import channel_parts, largest_magnitude, parts
from trt_bisect.support.table import PERCENT, Column, NestedColumns
from trt_bisect.support.text import listed, number, percent, together


@dataclass(frozen=True)
class ComparedPart:
    """A tensor, or a channel of a weight, in both runs.

    Attributes:
        origin: the tensor and its layer.
        shape: the shape in the first sample.
        dtype: the dtype in the FP32 run.
        quantized_dtype: the type that it is rounded to, such as ``int8``; empty if not rounded.
        scale: the INT8 scale, the largest if each channel has its own; None if not rounded.
        figures: INT8 against FP32, before the tensor's own rounding; for a weight, after rounding against before.
        fp32: the statistics in FP32.
        int8: the statistics in INT8.
    """

    origin: Annotated[LayerTensor, NestedColumns()]
    shape: Annotated[tuple[int, ...], Column("Shape", "On the first sample; sorted by the number of values", rank=5)]
    dtype: str
    quantized_dtype: Annotated[str, Column("Rounded to", rank=2)]
    scale: Annotated[float | None, Column("Scale", "The largest one if each channel has its own", rank=6)]
    figures: Annotated[PairFigures, NestedColumns()]
    fp32: Annotated[Spread, NestedColumns("fp32_", "{high}", rank=4, shown=("min", "max"))]
    int8: Annotated[Spread, NestedColumns("int8_", "{low}", rank=4, shown=("min", "max"))]

    @property
    def range_difference(
        self,
    ) -> Annotated[float, Column("Range difference", "Width of the range, {low} minus {high}")]:
        """The width of the range in INT8 minus its width in FP32."""
        return (self.int8.max - self.int8.min) - (self.fp32.max - self.fp32.min)


@dataclass(frozen=True)
class ComparedChannel(ComparedPart):
    """One channel of a weight in both runs."""

    channel: Annotated[int, Column("Channel", "Channel of the weight", rank=0)]


@dataclass(frozen=True)
class ComparedTensor(ComparedPart):
    """The comparison of a whole tensor.

    Attributes:
        rounding: the error if only this tensor is rounded; None if it is not.
        loud: the channel with the largest magnitude.
        loud_input: the input channel of a weight with the largest magnitude.
        worst_cosine: the lowest cosine of a sample on which the FP32 tensor is not almost zero; None for a weight.
        note: remarks on samples that were left out, and on several Q/DQ pairs.
        histogram: counts of the values in FP32, and of those that the INT8 layers read.
        map: a histogram of each channel of a weight in FP32.
    """

    rounding: Annotated[RoundingFigures | None, NestedColumns("rounding_")] = None
    loud: Annotated[LoudChannel | None, NestedColumns("loud_", "Loud")] = None
    loud_input: Annotated[LoudChannel | None, NestedColumns("loud_input_", "Loud input")] = None
    worst_cosine: Annotated[float | None, Column("Worst cosine", "Lowest cosine of a sample", PERCENT)] = None
    worst_sample: Annotated[int | None, Column("Worst sample", "Index of the sample with the lowest cosine")] = None
    note: Annotated[str, Column("Note")] = ""
    observer: Annotated[str, Column("Scale by", "The calibrator that chose the scale, or where it is from")] = ""
    axis: Annotated[int | None, Column("Axis", "Axis of the scales, where there are several")] = None
    scales: Annotated[int | None, Column("Scales", "Number of scales")] = None
    least_scale: Annotated[float | None, Column("Least scale", "The smallest one")] = None
    histogram: TensorHistogram | None = None
    map: ChannelMap | None = None


@dataclass(frozen=True)
class Compared(ComparedTensor):
    """A compared tensor whose origin includes the quantizers that round it."""

    origin: Origin

    def row_by(self, observer: str) -> ComparedTensor:
        """Returns the comparison as a table row; ``observer`` names the calibrator or other source of the scale."""
        quantizers, facts = self.origin.quantizers, {**vars(self), "origin": self.origin.named}
        if quantizers:
            scale = quantizers[0].scale
            axes = (quantizer.axis for quantizer in quantizers if np.size(quantizer.scale) > 1)
            facts |= {"observer": observer, "axis": next(axes, None)}
            facts |= {"scales": int(np.size(scale)), "least_scale": float(np.min(scale))}
        return ComparedTensor(**facts)


class _RoundedTensor:
    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.values = RoundedValues(origin.quantizers)

    def add(self, reference: np.ndarray, output: np.ndarray) -> None:
        by_channel = any(quantizer.axis is not None for quantizer in self.origin.quantizers)
        pieces = [(reference, output)] if by_channel else zip(*map(_in_parts, (reference, output)), strict=True)
        for in_fp32, in_int8 in pieces:
            self.values.add(in_fp32, self.origin.rounded(in_int8))

    def sqnr(self) -> float:
        rounding = self.values.rounding
        return math.inf if rounding is None else rounding.sqnr

    def in_short(self) -> str:
        rounding = self.values.rounding
        clipped = "" if rounding is None else f" clips {percent(rounding.clipped)}"
        return f"scale {number(self.origin.scale)} for {listed(self.origin.readers, 3) or 'the output'}{clipped}"


class _TensorComparison:
    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._roundings = [_RoundedTensor(each) for each in (origin, *origin.beside)]
        self._statistics = PairStatistics()
        self._peaks = ChannelPeaks(origin.channel_axis)
        self._shape: tuple[int, ...] | None = None
        self._dtype = ""
        self._differing = 0
        # By octave of the sample's norm: the worst cosine, and its sample.
        self._worst_of: dict[int, tuple[float, int]] = {}
        self._octaves: Counter[int] = Counter()
        self._samples = 0

    def add(self, reference: np.ndarray, output: np.ndarray) -> None:
        if self._shape is None:
            self._shape, self._dtype = reference.shape, str(reference.dtype)
        self._samples += 1
        if reference.shape != output.shape:
            self._differing += 1
            return
        sample, row, largest = RunningSums(), row_length(reference.shape), largest_magnitude(reference)
        flat = reference.reshape(-1), output.reshape(-1)
        for part in parts(reference.size, row):
            sample.merge(self._statistics.add(*(as_block(run[part]) for run in flat), row=row, largest=largest))
        sums = sample.of()
        if sums.size:
            loudness = octave(math.sqrt(sums.signal))
            worst = (cosine(sums), self._samples - 1)
            self._worst_of[loudness] = min(worst, self._worst_of.get(loudness, worst))
            self._octaves[loudness] += 1
        for rounded in self._roundings:
            rounded.add(reference, output)
        self._peaks.add(reference)

    def done(self) -> Compared | None:
        if self._shape is None:
            return None
        worst_cosine, worst_sample = self._worst()
        worst = min(self._roundings, key=_RoundedTensor.sqnr)
        others = tuple(rounded.origin for rounded in self._roundings if rounded is not worst)
        notes = [f"another shape in INT8 on {self._differing} samples, left out"] if self._differing else []
        if len(self._roundings) > 1:
            each = together([rounded.in_short() for rounded in self._roundings])
            notes.append(f"it has {len(self._roundings)} pairs, {each}, and the worse one is judged")
        return Compared(
            **_facts(replace(worst.origin, beside=others), self._statistics, worst.values),
            shape=self._shape,
            dtype=self._dtype,
            loud=self._peaks.loudest(),
            note="; ".join(notes),
            worst_cosine=worst_cosine,
            worst_sample=worst_sample,
        )

    def _worst(self) -> tuple[float | None, int | None]:
        if not self._octaves:
            return None, None
        least = median_low(self._octaves.elements()) - FAINT_OCTAVES
        return min(worst for loudness, worst in self._worst_of.items() if loudness >= least)


def _facts(origin: Origin, statistics: PairStatistics, values: RoundedValues) -> dict[str, Any]:
    return {
        "origin": origin,
        "quantized_dtype": origin.quantized_dtype,
        "scale": origin.scale,
        "figures": statistics.figures(),
        "fp32": statistics.reference.spread(),
        "int8": statistics.output.spread(),
        "rounding": values.rounding,
        "histogram": values.histogram,
    }


def _in_parts(values: np.ndarray) -> Iterator[np.ndarray]:
    flat = values.reshape(-1)
    return (flat[part] for part in parts(flat.size))


def compare_tensors(
    samples: Iterable[tuple[Tensors, Tensors]],
    origins: Mapping[str, Origin],
    on_sample: Callable[[], None] = lambda: None,
) -> tuple[Compared, ...]:
    """Compares every float tensor of ``origins`` that both runs have, over all samples.

    Args:
        samples: for each sample, the tensors of the FP32 run and of the INT8 run.
        origins: the tensors by name; the result is in this order.
    """
    comparisons = {name: _TensorComparison(origin) for name, origin in origins.items()}
    with ThreadsIfLong(cores()) as pool:
        for reference, output in samples:
            floats = [{name for name, values in run.items() if values.dtype.kind == "f"} for run in (reference, output)]
            names = [name for name in comparisons if name in floats[0] & floats[1]]
            list(pool.map(lambda name, r=reference, o=output: comparisons[name].add(r[name], o[name]), names))
            del reference, output
            on_sample()
    return tuple(filter(None, (comparison.done() for comparison in comparisons.values())))


ComparedWeights = tuple[tuple[Compared, ...], tuple[ComparedChannel, ...]]


def compare_weights(network: Network, origins: Iterable[Origin]) -> ComparedWeights:
    """Returns the comparisons of weights (``origins``) before and after rounding: of whole weights, and of their
    channels.
    """
    values = ((origin, network.constant(origin.tensor)) for origin in origins)
    return compare_weight_pairs((origin, array, rounded_weight(array, origin)) for origin, array in values)


def compare_weight_pairs(weights: Iterable[tuple[Origin, np.ndarray, np.ndarray]]) -> ComparedWeights:
    """Returns the comparisons of ``weights``, each (origin, values in FP32, values in the low run): of whole weights,
    and of their channels.
    """
    tensors: list[Compared] = []
    channels: list[ComparedChannel] = []
    for origin, values, rounded in weights:
        tensors.append(compare_weight(values, rounded, origin))
        channels += _compare_channels(values, rounded, tensors[-1])
    return tuple(tensors), tuple(channels)


def rounded_weight(values: np.ndarray, origin: Origin) -> np.ndarray:
    """Returns a weight after rounding, as its layers read it."""
    if origin.float_type is not None or not origin.quantizers:
        return origin.rounded(values)
    rounded = np.empty(values.shape, origin.quantizers[-1].dtype)
    for part in channel_parts(values.shape, origin.channel_axis):
        rounded[part] = round_trips(values[part], [quantizer.of_part(part) for quantizer in origin.quantizers])
    return rounded


def compare_weight(values: np.ndarray, rounded: np.ndarray, origin: Origin) -> Compared:
    """Returns the comparison of a whole weight before and after rounding."""
    axis, statistics, largest = origin.channel_axis, PairStatistics(), largest_magnitude(values)
    both = RoundedValues(origin.quantizers)
    for part in channel_parts(values.shape, axis):
        both.add(values, rounded[part], part=part)
        blocks = [channels_first(array[part], axis) for array in (values, rounded)]
        flat = [as_block(block) for block in blocks]
        statistics.add(*flat, row=max(blocks[0].shape[1], 1), largest=largest)
    return Compared(
        **_facts(origin, statistics, both),
        shape=values.shape,
        dtype=str(values.dtype),
        loud=_loudest(values, axis),
        loud_input=_loudest(values, input_axis(axis)),
        map=channel_map(values, axis),
    )


def input_axis(axis: int | None) -> int | None:
    """Returns the axis of a weight's input channels, given that of its output channels; None for None."""
    if axis is None:
        return None
    return axis - 1 if axis else 1


def channel_spreads(values: np.ndarray, axis: int) -> list[Spread]:
    """Returns the statistics of each channel along an axis."""
    spreads: list[Spread] = []
    for part in channel_parts(values.shape, axis):
        block = channels_first(values[part], axis).astype(np.float64)
        moments = Moments(len(block))
        moments.add(block)
        spreads += map(moments.spread, range(len(block)))
    return spreads


def _compare_channels(values: np.ndarray, rounded: np.ndarray, whole: Compared) -> list[ComparedChannel]:
    axis = whole.origin.channel_axis
    if axis is None:
        return []
    scale = whole.origin.quantizers[0].scale.reshape(-1) if whole.origin.quantizers else np.array([None])
    scales, channels = np.broadcast_to(scale, values.shape[axis]).tolist(), list[ComparedChannel]()
    named = whole.origin.named
    for part in channel_parts(values.shape, axis):
        blocks = [channels_first(array[part], axis).astype(np.float64) for array in (values, rounded)]
        statistics = PairStatistics(len(blocks[0]))
        statistics.add(*blocks, row=max(blocks[0].shape[1], 1))
        channels += [
            ComparedChannel(
                origin=named,
                shape=whole.shape,
                dtype=whole.dtype,
                scale=scales[channel],
                figures=statistics.figures(group),
                fp32=statistics.reference.spread(group),
                int8=statistics.output.spread(group),
                channel=channel,
                quantized_dtype=whole.quantized_dtype,
            )
            for group, channel in enumerate(range(len(channels), len(channels) + len(blocks[0])))
        ]
    return channels


def _loudest(values: np.ndarray, axis: int | None) -> LoudChannel | None:
    peaks = ChannelPeaks(axis)
    peaks.add(values)
    return peaks.loudest()
