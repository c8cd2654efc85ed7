"""Feeds, the arrays of one inference, and the inputs and outputs of a network that they are for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Feeds = dict[str, np.ndarray]
"""The arrays of one inference, by the name of the network's input."""


@dataclass(frozen=True)
class TensorSpec:
    """An input or output of a network: name, NumPy dtype, shape (``None`` for a dynamic axis)."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]

    def __str__(self) -> str:
        return f"'{self.name}' {self.dtype}[{', '.join('?' if d is None else str(d) for d in self.shape)}]"


def size_remedy(shapes: Iterable[Sequence[int | None]], otherwise: str) -> str:
    """Returns the remedy for a sample that a network refuses: one size, if an input takes pictures of any size.

    Such a network may take many sizes, and not all: where it concatenates, those that its strides divide.

    Args:
        shapes: those of the network's inputs, None or 0 for a dynamic axis.
        otherwise: the remedy of a network with no such input.
    """
    free = any(len(shape) == 4 and (not any(shape[1:3]) or not any(shape[2:])) for shape in shapes)
    return "The pictures differ in size: give them one size with --resize 320x320 --letterbox." if free else otherwise
