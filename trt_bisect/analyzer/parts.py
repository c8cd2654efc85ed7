"""Large arrays in parts, to limit the memory for temporary arrays."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

_PART = 1 << 17


def parts(size: int, row: int = 1, most: int = _PART) -> Iterator[slice]:
    """Splits a flat tensor of ``size`` values into slices of whole rows, with about ``most`` values each."""
    step = max(most // row, 1) * row
    return (slice(begin, begin + step) for begin in range(0, size, step))


def channel_parts(shape: Sequence[int], axis: int | None) -> Iterator[tuple[slice, ...]]:
    """Splits a tensor into parts of whole channels; each is a slice along every axis.

    Args:
        shape: the shape of the tensor.
        axis: the axis of its channels; None if it has none, and is one part.
    """
    everything = [slice(None)] * len(shape)
    if axis is None:
        yield tuple(everything)
        return
    channel = math.prod(shape) // max(shape[axis], 1)
    for channels in parts(shape[axis], 1, max(_PART // max(channel, 1), 1)):
        everything[axis] = channels
        yield tuple(everything)


def float_parts(*arrays: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
    """Yields the same part of each array, as flat float64, part after part. The arrays have the same size."""
    flat = [array.reshape(-1) for array in arrays]
    for part in parts(flat[0].size):
        yield tuple(np.asarray(array[part], np.float64) for array in flat)


def largest_magnitude(*arrays: np.ndarray) -> float:
    """Returns the largest magnitude of the finite values of arrays; 0 if there are none."""
    largest = 0.0
    for array in arrays:
        flat = array.reshape(-1)
        for part in parts(flat.size):
            values = flat[part]
            peak = max(abs(float(values.max())), abs(float(values.min())))
            if not math.isfinite(peak):
                peak = float(np.abs(values[np.isfinite(values)]).max(initial=0.0))
            largest = max(largest, peak)
    return largest
