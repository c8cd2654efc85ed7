"""The values of tensors in the rows of a pass: a row is the run of one plan on one sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_FLOAT_NOISE = 1e-4


@dataclass
class Leaf:
    """One tensor in all rows: the first rows have values of their own, all others have the trunk's value.

    Attributes:
        axis: along which rows are stacked; None for a tensor that does not grow with the batch.
        rows: one value for each of the first rows; views of ``buffer`` if there is one.
        buffer: these rows stacked along the first axis.
        trunk: the value in the trunk; None if the trunk ends before this tensor.
    """

    axis: int | None
    rows: list[Any]
    buffer: np.ndarray | None = None
    trunk: Any = None

    def row(self, place: int) -> Any:
        """Returns the value in one row."""
        return self.rows[place] if place < len(self.rows) else self.trunk

    def tile(self, first: int, stop: int) -> Any:
        """Returns the values in rows ``first`` to ``stop - 1``, stacked."""
        if stop - first == 1 or self.axis is None:
            return self.row(first)
        if self.buffer is not None and stop <= len(self.rows):
            size = self.rows[0].shape[0]
            return self.buffer[first * size : stop * size]
        return np.concatenate([self.row(place) for place in range(first, stop)], axis=self.axis)

    def append(self, values: Sequence[Any]) -> None:
        """Adds rows, in the buffer if it has room for them."""
        for value in values:
            place = None if self.buffer is None else _place_for(self.buffer, len(self.rows), value)
            if place is None:
                self.buffer = None
                self.rows.append(value)
            else:
                place[...] = value
                self.rows.append(place)


def _place_for(buffer: np.ndarray, row: int, value: Any) -> np.ndarray | None:
    if not isinstance(value, np.ndarray) or value.ndim != buffer.ndim:
        return None
    place = buffer[row * value.shape[0] : (row + 1) * value.shape[0]]
    return place if place.shape == value.shape and place.dtype == value.dtype else None


def rows_of(buffer: np.ndarray, room: int, first: int, stop: int) -> np.ndarray:
    """Returns rows ``first`` to ``stop - 1`` of a buffer with room for ``room`` rows stacked along the first axis."""
    size = buffer.shape[0] // room
    return buffer[first * size : stop * size]


def equal(one: Any, other: Any) -> bool:
    """Returns true if two values are the same, bit for bit; NaN equals NaN."""
    if one is other:
        return True
    if not (isinstance(one, np.ndarray) and isinstance(other, np.ndarray)):
        return False
    return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def tile(leaves: Mapping[str, Leaf], reads: Sequence[str], first: int, stop: int) -> dict[str, Any]:
    """Returns the tensors that a piece reads in rows ``first`` to ``stop - 1``, stacked."""
    return {name: leaves[name].tile(first, stop) for name in reads}


def stackable(leaves: Mapping[str, Leaf], reads: Sequence[str], rows: int) -> bool:
    """Returns true if the inputs of a piece can be stacked: those that do not grow must be the same in every row."""
    return all(
        leaves[name].axis is not None or all(equal(leaves[name].row(0), leaves[name].row(r)) for r in range(1, rows))
        for name in reads
    )


def differ(leaves: Mapping[str, Leaf], reads: Sequence[str], one: int, other: int) -> bool:
    """Returns true if a piece reads different values in two rows."""
    return any(not equal(leaves[name].row(one), leaves[name].row(other)) for name in reads)


def stacked_axis(stacked: Any, single: Any, rows: int) -> tuple[int | None] | None:
    """Finds the axis along which ``stacked`` is a stack of ``rows`` rows, the last of which is ``single``.

    Returns:
        The axis in a tuple; ``(None,)`` if the tensor does not grow with the batch; None if it is no such stack.
    """
    if not (isinstance(stacked, np.ndarray) and isinstance(single, np.ndarray)):
        return None
    if stacked.ndim != single.ndim or stacked.dtype != single.dtype:
        return None
    if stacked.shape == single.shape:
        return (None,) if _close(stacked, single) else None
    grown = [axis for axis in range(single.ndim) if stacked.shape[axis] != single.shape[axis]]
    if len(grown) != 1 or stacked.shape[grown[0]] != rows * single.shape[grown[0]]:
        return None
    axis, size = grown[0], single.shape[grown[0]]
    last = np.take(stacked, range((rows - 1) * size, rows * size), axis=axis)
    return (axis,) if _close(last, single) else None


def _close(one: np.ndarray, other: np.ndarray) -> bool:
    if one.dtype.kind != "f":
        return np.array_equal(one, other)
    finite = np.isfinite(other)
    if not np.array_equal(one[~finite], other[~finite], equal_nan=True):
        return False
    largest = float(np.abs(other[finite]).max(initial=0.0))
    return bool(np.all(np.abs(one[finite] - other[finite]) <= _FLOAT_NOISE * largest))


def split(stacked: Any, axis: int | None, rows: int) -> list[Any]:
    """Returns the rows of a stack."""
    return [stacked] * rows if axis is None or rows == 1 else np.split(stacked, rows, axis=axis)
