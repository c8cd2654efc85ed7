"""Large arrays in parts, to limit the memory for temporary arrays."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

_PART = 1 << 17


def parts(size: int, row: int = 1) -> Iterator[slice]:
    """Splits a flat tensor of ``size`` values into slices of whole rows."""
    step = max(_PART // row, 1) * row
    return (slice(begin, begin + step) for begin in range(0, size, step))


def float_parts(*arrays: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
    """Yields the same part of each array, as flat float64, part after part. The arrays have the same size."""
    flat = [array.reshape(-1) for array in arrays]
    for part in parts(flat[0].size):
        yield tuple(np.asarray(array[part], np.float64) for array in flat)
