"""The latency of an engine: the time of one inference, and of each of its layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np


@dataclass(frozen=True)
class LayerTime:
    """The time of one layer of an engine.

    Attributes:
        name: the name in the engine, such as ``conv1 + relu1``.
        layers: the network's layers that it computes; empty for a change of format between layers.
        milliseconds: the mean; the profiler makes the layers run one after another.
    """

    name: str
    layers: tuple[str, ...]
    milliseconds: float


@dataclass(frozen=True)
class Latency:
    """The time of one inference on the GPU between two CUDA events, copies from and to the host not counted.

    Attributes:
        mean_ms: the mean, in milliseconds.
        median_ms: the median.
        p99_ms: the 99th percentile.
        runs: the number of inferences timed.
        layers: the layers in the engine's order; empty if the engine names none.
        computed: by the name of a quantizable layer, the precision in which its kernel computes, or one of
            ``UNPROVEN``; without the layers that the engine does not tell of.
    """

    mean_ms: float
    median_ms: float
    p99_ms: float
    runs: int
    layers: tuple[LayerTime, ...] = ()
    computed: Mapping[str, str] = field(default_factory=dict)


def latency_of(
    milliseconds: Sequence[float], layers: tuple[LayerTime, ...] = (), computed: Mapping[str, str] | None = None
) -> Latency:
    """Returns the statistics of the times of single inferences, in milliseconds.

    >>> latency_of([1.0, 2.0, 6.0]).mean_ms
    3.0
    """
    times = np.asarray(milliseconds, np.float64)
    return Latency(
        mean_ms=float(times.mean()),
        median_ms=float(np.median(times)),
        p99_ms=float(np.percentile(times, 99)),
        runs=len(times),
        layers=layers,
        computed=dict(computed or {}),
    )


def adding_profiler(trt: ModuleType) -> Any:
    """Makes a TensorRT profiler that adds up the milliseconds of each engine layer in ``totals``, by name, in order."""

    class AddingProfiler(trt.IProfiler):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            trt.IProfiler.__init__(self)
            self.totals: dict[str, float] = {}

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            self.totals[layer_name] = self.totals.get(layer_name, 0.0) + ms

    return AddingProfiler()
