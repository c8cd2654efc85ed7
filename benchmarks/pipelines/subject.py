"""A pipeline with a planted culprit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from benchmarks.answer.judge import Outputs

Nets = Mapping[str, Callable[[Outputs], Outputs]]


def pictures() -> list[np.ndarray]:
    """Returns eight random pictures."""
    random = np.random.default_rng(4)
    return [random.normal(size=(1, 3, 16, 16)).astype(np.float32) for _ in range(8)]


@dataclass(frozen=True)
class Subject:
    """A pipeline.

    Attributes:
        function: the code that calls the networks.
        networks: by name.
        culprit: the planted layer.
        threshold: the cosine asked for: the rest of a residual block hides a culprit in its branch.
        samples: returns what the function runs on.
        high: layers that are kept high, as ``--high`` names them.
        calibrator: that of all networks.
    """

    name: str
    function: Callable[[Nets, np.ndarray], Outputs]
    networks: Mapping[str, onnx.ModelProto]
    culprit: str
    threshold: float = 0.99
    samples: Callable[[], Sequence[np.ndarray]] = pictures
    high: tuple[str, ...] = ()
    calibrator: str = "entropy"
