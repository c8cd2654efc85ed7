"""Interfaces of builders and engines, the options of a build, and the latency of an engine."""

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
    """The time of a layer of an engine.

    Attributes:
        name: the name in the engine, such as ``conv1 + relu1``.
        layers: the network's layers that it computes; empty for a change of format.
        milliseconds: the mean; the profiler makes the layers run one after another.
    """

    name: str
    layers: tuple[str, ...]
    milliseconds: float


@dataclass(frozen=True)
class Latency:
    """The time of an inference on the GPU between two CUDA events, without copies from and to the host.

    Attributes:
        mean_ms: the mean, in milliseconds.
        median_ms: the median.
        p99_ms: the 99th percentile.
        runs: the number of inferences timed.
        layers: the layers in the engine's order, if it names them.
        computed: the precision in which the kernel of each quantizable layer computes, or one of ``UNPROVEN``; by the
            layer's name, as far as the engine reports it.
    """

    mean_ms: float
    median_ms: float
    p99_ms: float
    runs: int
    layers: tuple[LayerTime, ...] = ()
    computed: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, times: Sequence[float], layers: tuple[LayerTime, ...] = (), computed: Mapping[str, str] | None = None
    ) -> Latency:
        """Returns the statistics of the times of single inferences, in milliseconds."""
        array = np.asarray(times, np.float64)
        mean, median, p99 = float(array.mean()), float(np.median(array)), float(np.percentile(array, 99))
        return cls(mean, median, p99, len(times), layers, dict(computed or {}))


Outputs = dict[str, np.ndarray]
"""The final outputs of an inference, by name."""

ProfileShapes = Mapping[str, Span]
"""The smallest, the usual and the largest shape of each dynamic input."""

EMULATED = "emulated"
MEASURED = "measured"

IN_REGION = "region"
"""In place of a precision: the layer ran in a region that TensorRT compiled as one."""

ON_DLA = "dla"
"""In place of a precision: the layer ran in a region on the DLA, in INT8 or FP16."""

UNPROVEN = frozenset({IN_REGION, ON_DLA})
"""The values of ``ran`` for layers whose precision an engine does not tell."""

DEFAULT_TIMEOUT = 3600.0
"""Seconds for a build, or an inference, in a run."""

_RAN_FOLLOWING = {kind: str(kind if kind in (Precision.FP16, Precision.BF16) else Precision.FP32) for kind in Precision}


@dataclass(frozen=True)
class BuildOptions:
    """The options of a build; None is the engine's default.

    Attributes:
        high: the precision of layers that are not in INT8.
        workspace_bytes: TensorRT's workspace limit.
        optimization_level: TensorRT's, 0..5.
        force_int8: weak typing only: constrain the INT8 layers to INT8 instead of leaving the choice to TensorRT.
        timing_cache: a file that all builds of a run share.
        tactic_sources: the only TensorRT tactic sources allowed.
        threads: of ONNX Runtime in an inference.
        unquantized_round: ONNX Runtime only: tensors of unquantized layers are rounded too.
        plugins: TensorRT only: libraries with plugins.
        operators: ONNX Runtime only: libraries with the user's operators.
        sizes: TensorRT only: by input that may be a shape tensor, the smallest, the usual and the largest values.
        dla: TensorRT only: the DLA core that runs what it can, with the GPU for the rest.
        debug_tensors: ``infer`` also gives the tensors that the engine did not fuse, by their names in the graph:
            TensorRT 10.8 and later with strong typing.
        timeout: seconds for a build, or an inference, in its worker process; None for no limit.
        device: ``cpu`` or ``cuda:0``.
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
    """A built network.

    Attributes:
        ran: the precision of each layer by its index, or one of ``UNPROVEN``. If pairs and Casts in the graph set it,
            it is the plan's; with weak typing it is that of the engine's kernels, as far as reported.
        messages: the builder's warnings.
    """

    ran: Mapping[int, str]
    messages: tuple[str, ...]

    def infer(self, feeds: Feeds) -> Outputs:
        """Returns the outputs for one sample; raises TrialFailed if the inference failed."""
        ...

    def latency(self, feeds: Feeds) -> Latency | None:
        """Measures the time of an inference; None if emulated; raises as ``infer``."""
        ...

    def __enter__(self) -> Engine: ...

    def __exit__(self, *_: object) -> None: ...


class Builder(Protocol):
    """Makes engines of one network with one set of scales.

    Attributes:
        engine: ``onnxruntime``, ``tensorrt`` or ``tensorrt-rtx``.
        typing: ``weak`` or ``strong``.
        arithmetic: ``emulated`` or ``measured``.
        versions: of all software that the figures depend on, and the device.
    """

    engine: str
    typing: str
    arithmetic: str
    versions: Mapping[str, str]

    def build(self, plan: PrecisionPlan) -> Engine:
        """Builds the engine of a plan; raises TrialFailed if that fails."""
        ...

    def reference(self) -> Engine:
        """Builds the engine with every layer in FP32; raises as ``build``."""
        ...


def precisions_in(network: Network, plan: PrecisionPlan) -> dict[int, str]:
    """Returns by index the precision of each layer in a written plan: only quantizable layers are low."""
    ran = dict(enumerate(map(_RAN_FOLLOWING.__getitem__, plan.precisions)))
    return ran | {k: WORDS[plan.precisions[k]] for k in network.quantizable}
