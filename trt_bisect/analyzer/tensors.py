"""Statistics of tensors, added a sample at a time: moments, differences between two runs, rounding errors of INT8.

Memory does not grow with the samples. Moments and errors are kept in groups: one for a whole tensor, or one for each
channel of a weight. Blocks are ``[groups, values]``; sums are float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from trt_bisect.analyzer.classes import kl_of_any_rows
from trt_bisect.analyzer.metrics import cosine_of_sums, decibels
from trt_bisect.analyzer.parts import parts
from trt_bisect.model.quantizer import Quantizer, round_trips
from trt_bisect.support.codec import NanForNull, Real
from trt_bisect.support.table import DECIBELS, PERCENT, Column

NEAR_ZERO = 2
"""The relative error of a value that is rounded to this many steps or fewer can be a fifth or more."""
MOST = 0.9
_FEWEST_CHANNELS = 4


@dataclass(frozen=True)
class Spread(NanForNull):
    """Moments of the finite values of a tensor; NaN if there are none. Variance and deviation are the population's."""

    count: int
    nonfinite: Annotated[int, Column("Not finite", "Values that are NaN or infinite")]
    min: Annotated[Real, Column("Min", rank=0)]
    max: Annotated[Real, Column("Max", rank=0)]
    mean: Annotated[Real, Column("Mean", rank=2)]
    std: Annotated[Real, Column("Std", "Standard deviation", rank=2)]
    variance: Annotated[Real, Column("Variance", rank=5)]


@dataclass(frozen=True)
class Figures(NanForNull):
    """Differences between a tensor in two runs; NaN if nothing could be compared.

    Attributes:
        cosine: the cosine similarity.
        mse: the mean squared error.
        l1: the mean absolute error.
        kl: KL(reference || output) in nats, the mean over rows. Rows that are not probabilities go through a softmax.
        sqnr: the SQNR in dB.
        atol: the largest absolute error.
        rtol: the largest relative error. A reference below a millionth of its sample's largest magnitude counts as
            that.
    """

    cosine: Annotated[Real, Column("Cosine", "{low} against {high}, before its own rounding", PERCENT, rank=0)]
    mse: Annotated[Real, Column("MSE", "Mean squared error", rank=1)]
    l1: Annotated[Real, Column("L1", "Mean absolute error", rank=12)]
    kl: Annotated[Real, Column("KL", "KL divergence, in nats", rank=11)]
    sqnr: Annotated[Real, Column("SQNR", "dB", DECIBELS, rank=0)]
    atol: Annotated[Real, Column("Atol", "Largest absolute error", rank=10)]
    rtol: Annotated[Real, Column("Rtol", "Largest relative error", rank=13)]


@dataclass(frozen=True)
class RoundingFigures(NanForNull):
    """The effect of rounding to eight bits alone on a tensor of the FP32 run. Shares are from 0 to 1.

    Attributes:
        sqnr: the SQNR in dB.
        clipped: the share of values beyond the range.
        clipped_noise: their share of the rounding noise.
        near_zero: the share of the non-zero values that fall into the ``2 NEAR_ZERO + 1`` levels around zero.
        to_zero: the share of the non-zero values that become zero.
        levels: the number of levels.
        levels_90: the least number of levels that hold 90 % of the non-zero values.
    """

    sqnr: Annotated[Real, Column("Own rounding", "SQNR of the tensor's own rounding alone, dB", DECIBELS, rank=8)]
    clipped: Annotated[Real, Column("Clipped", "Saturation: share of values beyond the range", PERCENT, rank=7)]
    clipped_noise: Annotated[Real, Column("Clipped noise", "Their share of the rounding noise", PERCENT)]
    near_zero: Annotated[Real, Column("Near zero", "Share of values in the 5 levels around zero", PERCENT)]
    to_zero: Annotated[Real, Column("To zero", "Share of the non-zero values that become zero", PERCENT)]
    levels: int
    levels_90: Annotated[int, Column("Levels for 90%", "That hold 90% of the non-zero values")]


@dataclass(frozen=True)
class LoudChannel(NanForNull):
    """The channel with the largest magnitude.

    Attributes:
        channel: its index.
        peak: its largest magnitude.
        times: ``peak`` over the median of the other channels' largest magnitudes.
    """

    channel: Annotated[int, Column("Channel")]
    peak: Real
    times: Annotated[Real, Column("Times", key="channel_times")]


class Moments:
    """Count, mean, squared deviations, least and largest value of each group.

    Blocks are merged by the parallel formula of Chan, Golub and LeVeque (1979), which has no cancellation for any mean.
    """

    def __init__(self, groups: int = 1) -> None:
        self._count = np.zeros(groups, np.int64)
        self._nonfinite = np.zeros(groups, np.int64)
        self._mean = np.zeros(groups)
        self._squares = np.zeros(groups)
        self._least = np.full(groups, np.inf)
        self._largest = np.full(groups, -np.inf)

    def add(self, block: np.ndarray) -> None:
        """Adds values, float64 ``[groups, values]``."""
        finite = np.isfinite(block)
        count = np.count_nonzero(finite, axis=1)
        self._nonfinite += block.shape[1] - count
        mean = np.sum(block, axis=1, where=finite) / np.maximum(count, 1)
        deviations = np.where(finite, block, mean[:, np.newaxis]) - mean[:, np.newaxis]
        total = self._count + count
        apart = mean - self._mean
        self._squares += np.sum(deviations**2, axis=1) + apart**2 * self._count * count / np.maximum(total, 1)
        self._mean += apart * count / np.maximum(total, 1)
        self._count = total
        self._least = np.minimum(self._least, np.min(block, axis=1, where=finite, initial=np.inf))
        self._largest = np.maximum(self._largest, np.max(block, axis=1, where=finite, initial=-np.inf))

    def spread(self, group: int = 0) -> Spread:
        """Returns the moments of a group."""
        count, nonfinite = int(self._count[group]), int(self._nonfinite[group])
        if not count:
            return Spread(0, nonfinite, *[math.nan] * 5)
        variance = float(self._squares[group]) / count
        least, largest, mean = (float(values[group]) for values in (self._least, self._largest, self._mean))
        return Spread(count, nonfinite, least, largest, mean, math.sqrt(variance), variance)


class PairStatistics:
    """Statistics of a tensor in two runs. A value that is not finite in one of the runs does not count as an error.

    Attributes:
        reference: the moments in the FP32 run.
        output: the moments in the other run.
    """

    def __init__(self, groups: int = 1) -> None:
        self.reference, self.output = Moments(groups), Moments(groups)
        self._count = np.zeros(groups, np.int64)
        self._signal, self._power, self._product = np.zeros(groups), np.zeros(groups), np.zeros(groups)
        self._noise, self._distance = np.zeros(groups), np.zeros(groups)
        self._largest, self._largest_relative = np.zeros(groups), np.zeros(groups)
        self._kl, self._rows = np.zeros(groups), np.zeros(groups, np.int64)

    def add(self, reference: np.ndarray, output: np.ndarray, *, row: int, largest: float | None = None) -> None:
        """Adds the same values of both runs, float64 ``[groups, values]``.

        Args:
            reference: the output of the FP32 run.
            output: the output of the other run.
            row: the number of neighbouring values that are one distribution for KL.
            largest: the largest magnitude of the whole reference on this sample; by default that of each group.
        """
        self.reference.add(reference)
        self.output.add(output)
        if not reference.size:
            return
        kept = np.isfinite(reference) & np.isfinite(output)
        r, o = (reference, output) if kept.all() else (np.where(kept, run, 0.0) for run in (reference, output))
        error, magnitude = np.abs(r - o), np.abs(r)
        self._count += np.count_nonzero(kept, axis=1)
        self._signal += np.sum(r * r, axis=1)
        self._power += np.sum(o * o, axis=1)
        self._product += np.sum(r * o, axis=1)
        self._noise += np.sum(error * error, axis=1)
        self._distance += np.sum(error, axis=1)
        self._largest = np.maximum(self._largest, error.max(axis=1))
        top = magnitude.max(axis=1, keepdims=True) if largest is None else largest
        floor = np.maximum(1e-6 * top, float(np.finfo(np.float32).tiny))
        self._largest_relative = np.maximum(self._largest_relative, (error / np.maximum(magnitude, floor)).max(axis=1))
        self._add_rows(r, o, kept, row)

    def _add_rows(self, reference: np.ndarray, output: np.ndarray, kept: np.ndarray, row: int) -> None:
        groups = len(reference)
        whole = kept.reshape(-1, row).all(axis=1).reshape(groups, -1)
        rows = kl_of_any_rows(reference.reshape(-1, row), output.reshape(-1, row)).reshape(groups, -1)
        self._kl += np.sum(rows, axis=1, where=whole)
        self._rows += np.count_nonzero(whole, axis=1)

    def figures(self, group: int = 0) -> Figures:
        """Returns the differences of a group."""
        count, rows = int(self._count[group]), int(self._rows[group])
        if not count:
            return Figures(*[math.nan] * 7)
        noise, signal = float(self._noise[group]), float(self._signal[group])
        return Figures(
            cosine=cosine_of_sums(*map(float, self.sums(group))),
            mse=noise / count,
            l1=float(self._distance[group]) / count,
            kl=max(0.0, float(self._kl[group]) / rows) if rows else math.nan,
            sqnr=decibels(signal, noise),
            atol=float(self._largest[group]),
            rtol=float(self._largest_relative[group]),
        )

    def sums(self, group: int = 0) -> np.ndarray:
        """Returns the arguments of ``cosine_of_sums`` for a group, float64 ``[5]``."""
        sums = (self._count, self._signal, self._power, self._product, self._noise)
        return np.array([values[group] for values in sums], np.float64)


class RoundingStatistics:
    """Statistics of the rounding errors of a tensor's quantizers, and of the levels that its values use."""

    def __init__(self, quantizers: Sequence[Quantizer]) -> None:
        self._quantizers = tuple(quantizers)
        zero_point = self._quantizers[0].zero_point
        limits = np.iinfo(zero_point.dtype)
        self._least, self._largest = limits.min, limits.max
        self._symmetric = zero_point.dtype == np.int8 and not zero_point.any()
        self._counts = np.zeros(limits.max - limits.min + 1, np.int64)
        self._values = self._nonzero = self._clipped = self._near_zero = self._to_zero = 0
        self._signal = self._noise = self._clipped_noise = 0.0

    def add(self, values: np.ndarray, part: tuple[slice, ...] = ()) -> None:
        """Adds values of any shape that has the quantizers' axis; values that are not finite count as zero.

        Args:
            values: the values.
            part: only ``values[part]`` are added, a slice along each axis.
        """
        values = values[part] if part else values
        values = np.where(np.isfinite(values), values, 0).astype(np.float32)
        quantizers = [quantizer.of_part(part) for quantizer in self._quantizers]
        first = quantizers[0]
        levels = first.levels(values)
        clipped = (levels < self._least) | (levels > self._largest)
        rounded = round_trips(values, quantizers)
        noise = (rounded.astype(np.float64) - values) ** 2
        nonzero = values != 0
        steps = np.abs(first.steps(levels, values))
        places = np.clip(levels, self._least, self._largest)[nonzero].astype(np.int64) - self._least
        self._counts += np.bincount(places, minlength=self._counts.size)
        self._values += values.size
        self._nonzero += int(np.count_nonzero(nonzero))
        self._clipped += int(np.count_nonzero(clipped))
        self._near_zero += int(np.count_nonzero(nonzero & (steps <= NEAR_ZERO)))
        self._to_zero += int(np.count_nonzero(nonzero & (rounded == 0)))
        self._signal += float(np.sum(values.astype(np.float64) ** 2))
        self._noise += float(np.sum(noise))
        self._clipped_noise += float(np.sum(noise, where=clipped))

    def figures(self) -> RoundingFigures:
        """Returns the figures of all values added."""
        nonzero = max(self._nonzero, 1)
        fullest = np.cumsum(np.sort(self._counts)[::-1])
        return RoundingFigures(
            sqnr=decibels(self._signal, self._noise),
            clipped=self._clipped / max(self._values, 1),
            clipped_noise=self._clipped_noise / self._noise if self._noise else 0.0,
            near_zero=self._near_zero / nonzero,
            to_zero=self._to_zero / nonzero,
            levels=self._counts.size - self._symmetric,
            levels_90=int(np.searchsorted(fullest, MOST * self._nonzero)) + 1 if self._nonzero else 0,
        )


class ChannelPeaks:
    """The largest magnitude of each channel along an axis. All samples must have the same number of channels."""

    def __init__(self, axis: int) -> None:
        self._axis = axis
        self._peaks: np.ndarray | None = None
        self._steady = True

    def add(self, values: np.ndarray) -> None:
        """Adds a tensor that has the axis; values that are not finite are left out."""
        if not values.size or values.ndim < 2:
            return
        others = tuple(axis for axis in range(values.ndim) if axis != self._axis % values.ndim)
        finite = np.isfinite(values)
        largest = np.max(values, axis=others, where=finite, initial=0.0)
        peaks = np.maximum(largest, -np.min(values, axis=others, where=finite, initial=0.0)).astype(np.float64)
        if self._peaks is None:
            self._peaks = peaks
        elif self._peaks.shape == peaks.shape:
            self._peaks = np.maximum(self._peaks, peaks)
        else:
            self._steady = False

    def loudest(self) -> LoudChannel | None:
        """Returns the channel with the largest magnitude; None if fewer than four channels, or if their number changed.

        Channels of zeros do not count.
        """
        if self._peaks is None or not self._steady:
            return None
        channel = int(np.argmax(self._peaks))
        others = np.delete(self._peaks, channel)
        others = others[others > 0]
        if others.size + 1 < _FEWEST_CHANNELS:
            return None
        peak = float(self._peaks[channel])
        return LoudChannel(channel, peak, peak / float(np.median(others)))


def row_length(shape: Sequence[int]) -> int:
    """Returns the length of the rows that are distributions for KL: the size of the last axis longer than 1."""
    return next((size for size in reversed(shape) if size > 1), 1)


def largest_magnitude(values: np.ndarray) -> float:
    """Returns the largest magnitude of the finite values; 0 if there are none."""
    flat = values.reshape(-1)
    largest = (np.max(np.abs(flat[part]), where=np.isfinite(flat[part]), initial=0.0) for part in parts(flat.size))
    return float(max(largest, default=0.0))


def channels_first(values: np.ndarray, axis: int | None) -> np.ndarray:
    """Returns a tensor as ``[channels, values]``; as one row if it has no channel axis."""
    if axis is None:
        return values.reshape(1, -1)
    return np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)


def as_block(values: np.ndarray) -> np.ndarray:
    """Returns a tensor as one group, float64 ``[1, values]``."""
    return np.asarray(values, np.float64).reshape(1, -1)
