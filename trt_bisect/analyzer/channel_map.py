"""The values of each channel of a weight as counts in equal bins, small enough for a page."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

BINS = 24
MOST_ROWS = 256
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class ChannelMap:
    """Counts of a weight's finite values by channel, in ``BINS`` equal bins from ``low`` to ``high``.

    Attributes:
        axis: the axis of the channels.
        low: the left edge of the first bin.
        high: the right edge of the last bin.
        step: the number of neighbouring channels that one row holds; 1 up to ``MOST_ROWS`` channels.
        rows: one text a row, one character a bin: ``0`` for no value, else the number of bits of the count, as a digit
            or a letter from ``a`` (10) on. So ``1`` is 1 value, ``2`` are 2 or 3, ``3`` are 4 to 7.
    """

    axis: int
    low: float
    high: float
    step: int
    rows: tuple[str, ...]


def channel_map(values: np.ndarray, axis: int | None) -> ChannelMap | None:
    """Returns the counts by channel; None without several channels or without a finite value.

    Args:
        values: the weight, float, of any shape.
        axis: the axis of its channels.
    """
    if axis is None or values.ndim < 2 or values.shape[axis] < 2 or not values.size:
        return None
    finite = np.isfinite(values)
    if not finite.any():
        return None
    low = float(np.min(values, where=finite, initial=np.inf))
    high = float(np.max(values, where=finite, initial=-np.inf))
    if low == high:
        low, high = low - 0.5, high + 0.5
    channels = np.moveaxis(values, axis, 0)
    step = -(-len(channels) // MOST_ROWS)
    rows = tuple(
        _digits(_counted(channels[first : first + step], low, high)) for first in range(0, len(channels), step)
    )
    return ChannelMap(axis % values.ndim, low, high, step, rows)


def _counted(values: np.ndarray, low: float, high: float) -> np.ndarray:
    return np.histogram(values[np.isfinite(values)].astype(np.float64), BINS, (low, high))[0]


def _digits(counts: np.ndarray) -> str:
    return "".join(_DIGITS[int(count).bit_length()] for count in counts)
