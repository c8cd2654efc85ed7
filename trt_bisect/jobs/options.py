"""What the user asks for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.engines import ONNXRUNTIME
from trt_bisect.calibration.cache import parse_version
from trt_bisect.calibration.calibrator import METHODS
from trt_bisect.cluster.settings import ClusterOptions
from trt_bisect.errors import BadInput
from trt_bisect.precision import Precision

EXPLAIN_NOTHING, EXPLAIN_TENSORS, EXPLAIN_FULL = "none", "tensors", "full"
EXPLAIN = (EXPLAIN_NOTHING, EXPLAIN_TENSORS, EXPLAIN_FULL)


@dataclass(frozen=True)
class RunOptions:
    """What the user asked for, beside network and data; ``trt_bisect.run`` says what each of it means.

    Raises:
        BadInput: something of it is out of range or unknown.
    """

    engine: str
    typing: str
    way: SearchOptions
    metric: str | Callable[..., Any]
    direction: str
    threshold: float | None
    share: float
    outputs: tuple[str, ...]
    samples: int | None
    calibrator: str
    percentile: float
    keep_mask_ranges: bool
    options: BuildOptions
    class_axis: int | None = None
    explain: str = EXPLAIN_NOTHING
    try_remedies: bool = False
    trt_version: str = ""
    cluster: ClusterOptions = field(default_factory=ClusterOptions)

    def __post_init__(self) -> None:
        one_of("strategy", self.way.strategy, STRATEGIES)
        one_of("curve", self.way.curve, CURVES)
        one_of("calibrator", self.calibrator, METHODS)
        one_of("explanation", self.explain, EXPLAIN)
        if self.try_remedies and self.explain == EXPLAIN_NOTHING:
            raise BadInput("Remedies are tried for what is explained.", "Leave out --explain none.")
        limit = self.options.timeout
        if limit is not None and not 0 < limit < math.inf:
            raise BadInput(f"A build cannot be given {limit:g} seconds.", "Give --build-timeout more than 0.")
        if self.trt_version:
            parse_version(self.trt_version)
        if self.samples is not None and self.samples < 1:
            raise BadInput(f"{self.samples} samples cannot be judged.", "Give --samples 1 or more.")
        if self.way.memory < 1:
            raise BadInput("No memory is left for the rows of a pass.", "Give --memory 1 or more, in MiB.")


def high_precision(name: str) -> Precision:
    """The precision of layers that are not in INT8, by its name; raises BadInput where it is none."""
    return Precision(one_of("precision", name, (Precision.FP32.value, Precision.FP16.value)))


def one_of(what: str, value: str, known: Sequence[str]) -> str:
    """``value``, where it is one of those known.

    Raises:
        BadInput: it is not.
    """
    if value not in known:
        raise BadInput(f"There is no {what} '{value}'.", f"Use one of {', '.join(known)}.")
    return value


AUTO, BRANCH, EXHAUSTIVE, BISECT = "auto", "branch", "exhaustive", "bisect"
STRATEGIES = (AUTO, BRANCH, EXHAUSTIVE, BISECT)
FULL, CULPRITS = "full", "culprits"
CURVES = (FULL, CULPRITS)
MEMORY = 512 << 20
"""Bytes of tensors that the rows of a pass hold together, unless the user says otherwise."""


@dataclass(frozen=True)
class SearchOptions:
    """How the plans are chosen and measured.

    Attributes:
        strategy: one of ``STRATEGIES``.
        curve: one of ``CURVES``; of the strategy ``branch``.
        memory: bytes of tensors that the rows of a pass hold together.
    """

    strategy: str
    curve: str
    memory: int

    def on(self, engine: str) -> SearchOptions:
        """The way on an engine: ``auto`` is ``branch`` where pieces do what the whole does, and else ``bisect``.

        An NVIDIA engine fuses and rounds a piece otherwise than the whole, by how much no run has measured yet.
        """
        if self.strategy != AUTO:
            return self
        return replace(self, strategy=BRANCH if engine == ONNXRUNTIME else BISECT)

    @property
    def every_boundary(self) -> bool:
        """Every boundary is measured, not only those that the verdict needs."""
        return self.strategy == EXHAUSTIVE or (self.strategy == BRANCH and self.curve == FULL)
