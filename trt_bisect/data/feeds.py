"""Feeds, the arrays of one inference, and the inputs and outputs of a network that they are for."""

from __future__ import annotations

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
