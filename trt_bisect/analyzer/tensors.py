"""Statistics of tensors, added sample by sample: moments, differences between two runs, rounding errors of INT8.

Blocks are ``[groups, values]``: a group is a tensor or a channel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from trt_bisect.analyzer.classes import kl_of_any_rows
from trt_bisect.analyzer.histograms import GrowingHistogram, TensorHistogram
from trt_bisect.analyzer.metrics import RunningSums, cosine, decibels, l1, least_divisor, mse, sqnr
from trt_bisect.data.statistics import Moments
from trt_bisect.model.quantizer import Quantizer, round_trips
from trt_bisect.support.codec import NanForNull, Real
from trt_bisect.support.memory import channel_parts, parts
from trt_bisect.support.table import DECIBELS, PERCENT, Column

NEAR_ZERO = 2
"""A value within this many steps of zero can have a relative rounding error of a fifth or more."""
MOST = 0.9
_FEWEST_CHANNELS = 4


@dataclass(frozen=True)
class PairFigures(NanForNull):
    """Differences of a tensor between two runs; NaN if nothing could be compared.

    Attributes:
        kl: KL(reference || output) in nats, the mean over rows. Rows that are not probabilities go through a softmax.
        sqnr: the SQNR in dB.
        max_rel: the largest relative error; the divisor is at least a millionth of the sample's largest magnitude.
    """

    cosine: Annotated[Real, Column("Cosine", "{low} against {high}, before its own rounding", PERCENT, rank=0)]
    mse: Annotated[Real, Column("MSE", "Mean squared error", rank=1)]
    l1: Annotated[Real, Column("L1", "Mean absolute error", rank=12)]
    kl: Annotated[Real, Column("KL", "KL divergence, in nats", rank=11)]
    sqnr: Annotated[Real, Column("SQNR", "dB", DECIBELS, rank=0)]
    max_abs: Annotated[Real, Column("Max abs", "Largest absolute error", rank=10)]
    max_rel: Annotated[Real, Column("Max rel", "Largest relative error", rank=13)]


@dataclass(frozen=True)
class RoundingFigures(NanForNull):
    """The effect of rounding a tensor of the FP32 run to eight bits.

    Attributes:
        near_zero: the share of the non-zero values in the five levels around zero.
        levels: the number of levels of the type.
        levels_90: the fewest levels that hold 90 % of the non-zero values.
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
        channel: the index of the channel.
        peak: its largest magnitude.
        times: ``peak`` over the median of the other channels' largest magnitudes.
    """

    channel: Annotated[int, Column("Channel")]
    peak: Real
    times: Annotated[Real, Column("Times", key="channel_times")]


class PairStatistics:
    """Statistics of a tensor in two runs. Values that are not finite in a run do not count as errors."""

    def __init__(self, groups: int = 1) -> None:
        self.reference, self.output = Moments(groups), Moments(groups)
        self._sums = RunningSums(groups)
        self._kl, self._rows = np.zeros(groups), np.zeros(groups, np.int64)

    def add(self, reference: np.ndarray, output: np.ndarray, *, row: int, largest: float | None = None) -> RunningSums:
        """Adds values of both runs, float64 ``[groups, values]``; returns the sums of these values alone.

        Args:
            row: the number of neighbouring values that form a distribution for KL.
            largest: the largest magnitude of FP32's whole tensor on this sample; default: of each group.
        """
        self.reference.add(reference)
        self.output.add(output)
        added = RunningSums(len(reference))
        if not reference.size:
            return added
        kept = np.isfinite(reference) & np.isfinite(output)
        r, o = (reference, output) if kept.all() else (np.where(kept, run, 0.0) for run in (reference, output))
        peak = np.max(np.abs(r), axis=1, keepdims=True) if largest is None else largest
        added.add(r, o, least_divisor(peak), np.count_nonzero(kept, axis=1))
        self._sums.merge(added)
        whole_rows = kept.reshape(-1, row).all(axis=1).reshape(len(r), -1)
        kl = kl_of_any_rows(r.reshape(-1, row), o.reshape(-1, row)).reshape(len(r), -1)
        self._kl += np.sum(kl, axis=1, where=whole_rows)
        self._rows += np.count_nonzero(whole_rows, axis=1)
        return added

    def figures(self, group: int = 0) -> PairFigures:
        """Returns the differences between the runs in the group of index ``group``."""
        sums, rows = self._sums.of(group), int(self._rows[group])
        if not sums.size:
            return PairFigures(*[math.nan] * 7)
        kl = max(0.0, float(self._kl[group]) / rows) if rows else math.nan
        return PairFigures(cosine(sums), mse(sums), l1(sums), kl, sqnr(sums), sums.largest, sums.relative)


class RoundingStatistics:
    """The rounding errors of a tensor's quantizers, and the levels that its values use."""

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
        """Adds ``values[part]`` (default: all) of a whole tensor. NaN and infinity count as 0."""
        values = values[part]
        values = np.where(np.isfinite(values), values, 0).astype(np.float32)
        quantizers = [quantizer.of_part(part) for quantizer in self._quantizers]
        first = quantizers[0]
        levels = first.levels(values)
        np.nan_to_num(levels, copy=False)  # A scale that is NaN has no levels.
        clipped, rounded = (levels < self._least) | (levels > self._largest), first.round_trip(values)
        for quantizer in quantizers[1:]:
            reached = quantizer.levels(rounded)
            clipped |= (reached < self._least) | (reached > self._largest)
            rounded = quantizer.round_trip(rounded)
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
        """Returns the rounding figures of all values added."""
        nonzero = max(self._nonzero, 1)
        fullest = np.cumsum(np.sort(self._counts)[::-1])
        return RoundingFigures(
            sqnr=decibels(self._signal, self._noise),
            clipped=self._clipped / max(self._values, 1),
            clipped_noise=self._clipped_noise / (self._noise or 1.0),
            near_zero=self._near_zero / nonzero,
            to_zero=self._to_zero / nonzero,
            levels=self._counts.size - self._symmetric,
            levels_90=int(np.searchsorted(fullest, MOST * self._nonzero)) + 1 if self._nonzero else 0,
        )


class RoundedValues:
    """Adds up a tensor's rounding errors, and counts its values in FP32 and, as layers read them, in the other run.

    Args:
        quantizers: the tensor's, in the order of application; empty if not rounded.
        runs: 2, or 1 without the other run.
    """

    def __init__(self, quantizers: Sequence[Quantizer], runs: int = 2) -> None:
        has_steps = bool(quantizers) and not any(quantizer.in_fp8 for quantizer in quantizers)
        self._rounding = RoundingStatistics(quantizers) if has_steps else None
        self._histogram = GrowingHistogram(runs)

    def add(self, values: np.ndarray, *read: np.ndarray, part: tuple[slice, ...] = ()) -> None:
        """Adds ``values[part]`` (default: all) and, with two runs, ``read``: the same part as read in the other run."""
        if self._rounding is not None:
            self._rounding.add(values, part)
        flat = [run.reshape(-1) for run in (values[part], *read)]
        for piece in parts(flat[0].size):
            block = np.stack([run[piece] for run in flat])
            self._histogram.add(block if block.dtype.kind == "f" else block.astype(np.float64))

    @property
    def rounding(self) -> RoundingFigures | None:
        """The rounding errors; None if the tensor is not rounded, or rounded to FP8."""
        return None if self._rounding is None else self._rounding.figures()

    @property
    def histogram(self) -> TensorHistogram | None:
        """The histogram of the finite values; None without any."""
        return self._histogram.together()


class ChannelPeaks:
    """Finds the largest magnitude of each channel along an axis, over all samples."""

    def __init__(self, axis: int | None) -> None:
        self._axis = axis
        self._peaks: np.ndarray | None = None
        self._steady = True

    def add(self, values: np.ndarray) -> None:
        """Adds a tensor's finite values."""
        if self._axis is None or not values.size or values.ndim < 2:
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
        """Returns the channel with the largest magnitude; None if fewer than four channels have values other than zero,
        or the number of channels varies.
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
    """Returns the length of the rows that KL takes as distributions: the last size above 1."""
    return next((size for size in reversed(shape) if size > 1), 1)


def channels_first(values: np.ndarray, axis: int | None) -> np.ndarray:
    """Returns a tensor as ``[channels, values]``; as one row if ``axis`` is None."""
    if axis is None:
        return values.reshape(1, -1)
    return np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)


def as_block(values: np.ndarray) -> np.ndarray:
    """Returns a tensor as one group, float64 ``[1, values]``."""
    return np.asarray(values, np.float64).reshape(1, -1)


class TensorStatistics:
    """Adds up the statistics of a tensor over samples; ``quantizers`` round the tensor, in this order."""

    def __init__(self, quantizers: Sequence[Quantizer] = ()) -> None:
        self._quantizers = tuple(quantizers)
        self._values = RoundedValues(quantizers, 2 if quantizers else 1)
        self._spread, self._rounded = Moments(), Moments()

    def add(self, values: np.ndarray) -> None:
        """Adds a sample's whole tensor."""
        axis = next((quantizer.axis for quantizer in self._quantizers if quantizer.axis is not None), None)
        if axis is None:
            values, axis = values.reshape(-1), 0
        for part in channel_parts(values.shape, axis):
            self._spread.add(as_block(values[part]))
            read = []
            if self._quantizers:
                quantizers = [quantizer.of_part(part) for quantizer in self._quantizers]
                read.append(round_trips(np.asarray(values[part], np.float32), quantizers))
                self._rounded.add(as_block(read[0]))
            self._values.add(values, *read, part=part)

    def figures(self) -> dict[str, Any]:
        """Returns, over all samples, the values' ``spread``, their spread after rounding (``rounded``), the errors of
        ``rounding`` and a ``histogram``; ``rounded`` and ``rounding`` are None without quantizers.
        """
        return {
            "spread": self._spread.spread(),
            "rounded": self._rounded.spread() if self._quantizers else None,
            "rounding": self._values.rounding,
            "histogram": self._values.histogram,
        }
