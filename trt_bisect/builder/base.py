"""Interfaces of builders and engines, build options, and the latency of an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from trt_bisect.data.datasets import Span
from trt_bisect.data.feeds import Feeds
from trt_bisect.model.network import Network
from trt_bisect.precision import WORDS, Precision, PrecisionPlan


@dataclass(frozen=True)
class LayerTime:
    """The measured time of one layer of an engine.

    Attributes:
        name: the layer's name in the engine, such as ``conv1 + relu1``.
        layers: the names of the network's layers that it computes; empty if it only changes a tensor's format.
        milliseconds: the mean time in one inference, with the profiler running layers one after another.
    """

    name: str
    layers: tuple[str, ...]
    milliseconds: float


@dataclass(frozen=True)
class Latency:
    """The time of an inference on the GPU between two CUDA events, without copies from and to the host.

    Attributes:
        mean_ms: the mean, in milliseconds.
        median_ms: the median; for a pipeline the sum of its networks' medians.
        p99_ms: the 99th percentile; None for a pipeline, whose networks are timed one by one.
        runs: the number of inferences timed.
        layers: the engine's layers in execution order, if it names them.
        computed: by name, the precision in which each quantizable layer's kernel computes, if the engine reports the
            layer; ``region`` (fused by TensorRT's compiler) or ``dla`` if it reports no precision.
    """

    mean_ms: float
    median_ms: float
    p99_ms: float | None
    runs: int
    layers: tuple[LayerTime, ...] = ()
    computed: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, times: Sequence[float], layers: tuple[LayerTime, ...] = (), computed: Mapping[str, str] | None = None
    ) -> Latency:
        """Returns the statistics of ``times``: milliseconds of single inferences."""
        array = np.asarray(times, np.float64)
        mean, median, p99 = float(array.mean()), float(np.median(array)), float(np.percentile(array, 99))
        return cls(mean, median, p99, len(times), layers, dict(computed or {}))


Outputs = dict[str, np.ndarray]  # the final outputs of an inference, by name

ProfileShapes = Mapping[str, Span]  # the smallest, the usual and the largest shape of each dynamic input

EMULATED = "emulated"
MEASURED = "measured"

IN_REGION = "region"  # instead of a precision: the layer ran in a region that TensorRT compiled as a whole

ON_DLA = "dla"  # instead of a precision: the layer ran on the DLA, in INT8 or FP16

UNPROVEN = frozenset({IN_REGION, ON_DLA})  # the values of ``ran`` for layers whose precision the engine does not report

DEFAULT_TIMEOUT = 3600.0  # seconds for a build or an inference

_FP32 = str(Precision.FP32)
_RAN_FOLLOWING = dict.fromkeys(Precision, _FP32) | {kind: str(kind) for kind in (Precision.FP16, Precision.BF16)}


@dataclass(frozen=True)
class BuildOptions:
    """The options of a build; None means the engine's default.

    Attributes:
        high: the precision of layers that are not in INT8.
        optimization_level: TensorRT's builder optimization level, 0 to 5.
        force_int8: weak typing only: force the plan's INT8 layers to INT8, instead of leaving the choice to TensorRT.
        timing_cache: a TensorRT timing cache file that all builds of a run share.
        tactic_sources: the only TensorRT tactic sources allowed.
        unquantized_round: ONNX Runtime only: also round the outputs of unquantized layers to INT8.
        plugins: TensorRT's plugin libraries.
        operators: ONNX Runtime's operator libraries.
        sizes: TensorRT only: by name, the smallest, usual and largest values of each input that may be a shape tensor.
        dla: the DLA core to use; layers that it cannot run go to the GPU.
        debug_tensors: TensorRT 10.8 and later, strong typing: ``infer`` also returns tensors that the engine did not
            fuse.
        timeout: seconds for a build or an inference in its worker process; None: no limit.
    """

    high: Precision = Precision.FP32
    workspace_bytes: int | None = None
    optimization_level: int | None = None
    force_int8: bool = False
    timing_cache: Path | None = None
    tactic_sources: tuple[str, ...] | None = None
    threads: int | None = None
    unquantized_round: bool = False
    plugins: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    sizes: ProfileShapes = field(default_factory=dict)
    dla: int | None = None
    debug_tensors: bool = False
    timeout: float | None = None
    device: str | None = None


class Engine(Protocol):
    """A network that was built under a plan; a ``with`` block releases it.

    Attributes:
        messages: the builder's warnings.
    """

    messages: tuple[str, ...]

    @property
    def ran(self) -> Mapping[int, str]:
        """By layer index, the precision that ran: the plan's if the graph's Q/DQ pairs and Casts set it, else the one
        that the engine reports, or ``region`` (fused by TensorRT's compiler) or ``dla`` if it reports none.
        """
        ...

    def infer(self, feeds: Feeds) -> Outputs:
        """Returns the outputs for one sample, by name; raises TrialFailed if the inference fails."""
        ...

    def latency(self, feeds: Feeds) -> Latency | None:
        """Returns the measured time of an inference on a sample, None if emulated; raises TrialFailed if it fails."""
        ...

    def __enter__(self) -> Engine: ...

    def __exit__(self, *_: object) -> None: ...


class Builder(Protocol):
    """Makes engines of one network with one set of scales.

    Attributes:
        engine: ``onnxruntime``, ``tensorrt`` or ``tensorrt-rtx``.
        typing: ``weak`` or ``strong``.
        arithmetic: ``emulated`` or ``measured``.
        versions: the device, and the version of each software that the figures depend on.
    """

    engine: str
    typing: str
    arithmetic: str
    versions: Mapping[str, str]

    def build(self, plan: PrecisionPlan) -> Engine:
        """Builds the engine of a plan; raises TrialFailed if the build fails."""
        ...

    def reference(self) -> Engine:
        """Builds the engine with every layer in FP32; raises TrialFailed if the build fails."""
        ...


def precisions_in(network: Network, plan: PrecisionPlan) -> dict[int, str]:
    """Returns the precision of each layer in a plan's Q/DQ graph, by layer index; unquantized layers have a float
    type.
    """
    ran = dict(enumerate(map(_RAN_FOLLOWING.__getitem__, plan.precisions)))
    return ran | {k: WORDS[plan.precisions[k]] for k in network.quantizable}
