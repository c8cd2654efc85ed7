"""Comparison of weights before and after rounding, whole and by channel.

A weight can have as many bytes as all other tensors together. So it is compared in parts of some channels each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from trt_bisect.analyzer.channel_map import channel_map
from trt_bisect.analyzer.compared import Compared, ComparedChannel
from trt_bisect.analyzer.origins import Origin
from trt_bisect.analyzer.parts import channel_parts
from trt_bisect.analyzer.tensor_histogram import GrowingTensorHistogram
from trt_bisect.analyzer.tensors import (
    ChannelPeaks,
    LoudChannel,
    Moments,
    PairStatistics,
    RoundingStatistics,
    Spread,
    channels_first,
    largest_magnitude,
)
from trt_bisect.model.network import Network
from trt_bisect.model.quantizer import round_trips


def compare_weights(
    network: Network, origins: Iterable[Origin]
) -> tuple[tuple[Compared, ...], tuple[ComparedChannel, ...]]:
    """Compares weights after rounding with the weights before.

    Returns:
        The whole weights, and all their channels. A weight that is not rounded equals itself.
    """
    values = ((origin, network.constant(origin.tensor)) for origin in origins)
    return compare_arrays((origin, array, rounded_weight(array, origin)) for origin, array in values)


def compare_arrays(
    weights: Iterable[tuple[Origin, np.ndarray, np.ndarray]],
) -> tuple[tuple[Compared, ...], tuple[ComparedChannel, ...]]:
    """Compares weights that are given twice: as they are, and as the low run has them, of the same shape.

    Returns:
        The whole weights, and all their channels.
    """
    tensors: list[Compared] = []
    channels: list[ComparedChannel] = []
    for origin, values, rounded in weights:
        tensors.append(compare_weight(values, rounded, origin))
        channels += _compare_channels(values, rounded, tensors[-1])
    return tuple(tensors), tuple(channels)


def rounded_weight(values: np.ndarray, origin: Origin) -> np.ndarray:
    """Returns a weight as its layers read it."""
    if origin.float_type is not None or not origin.quantizers:
        return origin.rounded(values)
    rounded = np.empty(values.shape, origin.quantizers[-1].dtype)
    for part in channel_parts(values.shape, origin.channel_axis):
        rounded[part] = round_trips(values[part], [quantizer.of_part(part) for quantizer in origin.quantizers])
    return rounded


def compare_weight(values: np.ndarray, rounded: np.ndarray, origin: Origin) -> Compared:
    """Compares a whole weight after rounding with the weight before."""
    rounding = RoundingStatistics(origin.quantizers) if origin.has_steps else None
    axis, whole, largest = origin.channel_axis, PairStatistics(), largest_magnitude(values)
    histogram = GrowingTensorHistogram()
    for part in channel_parts(values.shape, axis):
        if rounding is not None:
            rounding.add(values, part)
        blocks = [channels_first(array[part], axis) for array in (values, rounded)]
        histogram.add(*blocks)
        row = max(blocks[0].shape[1], 1)
        whole.add(*(block.astype(np.float64).reshape(1, -1) for block in blocks), row=row, largest=largest)
    return Compared(
        origin=origin,
        shape=values.shape,
        dtype=str(values.dtype),
        quantized_dtype=origin.quantized_dtype,
        scale=origin.scale,
        figures=whole.figures(),
        fp32=whole.reference.spread(),
        int8=whole.output.spread(),
        rounding=rounding.figures() if rounding else None,
        loud=_loudest(values, axis),
        loud_input=_loudest(values, input_axis(axis)),
        histogram=histogram.done(),
        map=channel_map(values, axis),
    )


def input_axis(axis: int | None) -> int | None:
    """Returns the axis of a weight's input channels, given the axis of its output channels."""
    return None if axis is None else axis - 1 if axis else 1


def channel_spreads(values: np.ndarray, axis: int) -> list[Spread]:
    """Returns the moments of each channel along an axis."""
    found: list[Spread] = []
    for part in channel_parts(values.shape, axis):
        block = channels_first(values[part], axis).astype(np.float64)
        moments = Moments(len(block))
        moments.add(block)
        found += [moments.spread(channel) for channel in range(len(block))]
    return found


def _compare_channels(values: np.ndarray, rounded: np.ndarray, whole: Compared) -> list[ComparedChannel]:
    axis = whole.origin.channel_axis
    if axis is None:
        return []
    each = _channels(values, rounded, axis)
    scales, named = _scales(whole.origin, values.shape[axis]), whole.origin.named
    return [
        ComparedChannel(
            origin=named,
            shape=whole.shape,
            dtype=whole.dtype,
            quantized_dtype=whole.quantized_dtype,
            scale=scale,
            figures=statistics.figures(group),
            fp32=statistics.reference.spread(group),
            int8=statistics.output.spread(group),
            channel=channel,
        )
        for channel, (scale, (statistics, group)) in enumerate(zip(scales, each, strict=True))
    ]


def _channels(values: np.ndarray, rounded: np.ndarray, axis: int) -> Iterator[tuple[PairStatistics, int]]:
    """Yields for each channel the statistics of its part, and its group there."""
    for part in channel_parts(values.shape, axis):
        blocks = [channels_first(array[part], axis).astype(np.float64) for array in (values, rounded)]
        statistics = PairStatistics(len(blocks[0]))
        statistics.add(*blocks, row=max(blocks[0].shape[1], 1))
        yield from ((statistics, group) for group in range(len(blocks[0])))


def _loudest(values: np.ndarray, axis: int | None) -> LoudChannel | None:
    if axis is None:
        return None
    peaks = ChannelPeaks(axis)
    peaks.add(values)
    return peaks.loudest()


def _scales(origin: Origin, channels: int) -> list[float | None]:
    if not origin.quantizers:
        return [None] * channels
    scale = origin.quantizers[0].scale
    return [float(each) for each in (scale.reshape(-1) if scale.size > 1 else np.full(channels, scale))]
