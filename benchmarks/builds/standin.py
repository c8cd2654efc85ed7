"""A stand-in for TensorRT: ONNX Runtime runs the file that TensorRT would be given, changed as the stand-in differs.

    from benchmarks.builds.standin import Difference, StandIn

    standin = StandIn(Difference(disobeys=("ip2",)))
    with standin.installed():
        report = trt_bisect.run("network.onnx", "calibration.npz", engine="tensorrt")
    for build in standin.builds:
        print(build.text)

Each build is a session of its own, which cannot switch between plans. What a stand-in computes is a function of the
file alone, so a recipe that a run wrote can be judged without the run.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, shape_inference

from benchmarks.verify.standin import in_float32, rescaled
from trt_bisect.builder import engines
from trt_bisect.builder.base import MEASURED, Builder, BuildOptions, Latency, precisions_in
from trt_bisect.builder.engines import ONNXRUNTIME, EngineStatus
from trt_bisect.builder.onnxruntime import OnnxRuntimeEngine
from trt_bisect.data.feeds import Feeds
from trt_bisect.errors import TrialFailed
from trt_bisect.model.file import Written, refill, weights_digest
from trt_bisect.model.network import Network
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.model.quantizer import Scales
from trt_bisect.model.session import make_session
from trt_bisect.precision import Precision, PrecisionPlan

VERSION = "11.4.1"


@dataclass(frozen=True)
class Difference:
    """The differences of an engine from the emulation.

    Attributes:
        jitter: the relative standard deviation of every activation's scale, drawn anew for each file.
        scales: the least and the largest factor of an activation's scale, drawn evenly in the logarithm from ``seed``
            and the tensor; None for the scales of the file.
        seed: draws the factors.
        base16: float tensors and weights outside INT8 are rounded to FP16, whatever is asked.
        disobeys: the layers that are computed in FP32 whatever is asked.
        tells: the engine says that it ran these in FP32, and names the layer that it does not build. Else it says what
            was asked, its timing leaves them out, and a failed build names no layer.
        wrong: the layers whose INT8 kernel is wrong: y becomes y + factor * abs(y).
        refuses: the layers that no engine builds in INT8.
    """

    jitter: float = 0.0
    scales: tuple[float, float] | None = None
    seed: int = 0
    base16: bool = False
    disobeys: tuple[str, ...] = ()
    tells: bool = False
    wrong: Mapping[str, float] = field(default_factory=dict)
    refuses: tuple[str, ...] = ()


@dataclass(frozen=True)
class Build:
    """An engine that was asked for.

    Attributes:
        key: a digest of the file that the engine is built from. It is equal in every process.
        text: the plan, as a person reads it.
        refused: the build failed.
    """

    key: str
    text: str
    refused: bool = False


def compiled(written: Written, difference: Difference) -> Written:
    """Returns the file that a stand-in runs in place of ``written``, which stays as it is.

    Raises:
        TrialFailed: a layer that it refuses is in INT8.
    """
    model = copy.deepcopy(written.model)
    dequantized = {output for node in model.graph.node if node.op_type == "DequantizeLinear" for output in node.output}
    low = {node.name for node in model.graph.node if dequantized.intersection(node.input)}
    for layer in difference.refuses:
        if layer in low:
            node = layer if difference.tells else "{ForeignNode[...]}"
            raise TrialFailed("build failed", f"Could not find any implementation for node {node}.")
    for layer, factor in difference.wrong.items():
        if layer in low:
            _spoil(model.graph, layer, factor)
    model = in_float32(model, low.intersection(difference.disobeys))
    if difference.scales is not None:
        least, most = np.log(difference.scales)
        model = rescaled(model, lambda name: np.exp(_drawn(str(difference.seed), name).uniform(least, most)))
    if difference.jitter:
        digest = _digest_of(written)
        model = rescaled(model, lambda name: 1.0 + difference.jitter * _drawn(digest, name).standard_normal())
    if difference.base16:
        _in_fp16(model)
    return Written(model, written.weights)


def _drawn(seed: str, name: str) -> np.random.Generator:
    """Returns the generator of a scale."""
    return np.random.default_rng(int(hashlib.sha256(f"{seed} {name}".encode()).hexdigest()[:8], 16))


class StandIn:
    """An engine that a process uses in place of TensorRT while it is ``installed``.

    Args:
        difference: how it differs from the emulation.
        before_build: called with each build before the session is made; may raise, or end the process. None for
            nothing.

    Attributes:
        builds: all builds so far, in their order.
    """

    def __init__(
        self, difference: Difference = Difference(), before_build: Callable[[Build], object] | None = None
    ) -> None:
        self.difference = difference
        self.before_build = before_build
        self.builds: list[Build] = []

    @property
    def distinct(self) -> int:
        """The number of distinct files among the builds."""
        return len({build.key for build in self.builds})

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Makes this process use the stand-in wherever it opens an engine other than ONNX Runtime."""
        make_builder, engine_status, version = engines.make_builder, engines.engine_status, engines.engine_version

        def make(
            engine: str, typing: str, network: Network, scales: Scales, options: BuildOptions, *shapes: Any
        ) -> Builder:
            if engine == ONNXRUNTIME:
                return make_builder(engine, typing, network, scales, options, *shapes)
            return StandInBuilder(self, engine, network, scales, options)

        def status(name: str) -> EngineStatus:
            return engine_status(name) if name == ONNXRUNTIME else EngineStatus(name, VERSION, ("strong",), "stand-in")

        # The names that the module's own functions look up: those functions may have been imported anywhere.
        with mock.patch.multiple(
            engines,
            make_builder=make,
            engine_status=status,
            engine_version=lambda name: version(name) if name == ONNXRUNTIME else VERSION,
            IsolatedBuilder=lambda make, *_: make(),
        ):
            yield


class StandInBuilder:
    """Builds the engines of a stand-in."""

    typing = "strong"
    arithmetic = MEASURED

    def __init__(self, standin: StandIn, engine: str, network: Network, scales: Scales, options: BuildOptions) -> None:
        self.engine = engine
        self.versions: Mapping[str, str] = {
            engine: VERSION,
            "device": "stand-in",
            "difference": repr(standin.difference),
        }
        self._standin = standin
        self._network = network
        self._writer = PlanWriter(network, scales, GraphTarget.TENSORRT)
        self._threads = options.threads

    def build(self, plan: PrecisionPlan) -> StandInEngine:
        """Builds the engine of a plan; raises TrialFailed if the stand-in refuses one of its layers."""
        written = self._writer.write(plan)
        key, text = _digest_of(written), _text_of(plan, self._network)
        if self._standin.before_build is not None:
            self._standin.before_build(Build(key, text))
        difference, quantizable = self._standin.difference, self._network.quantizable
        try:
            changed = compiled(written, difference)
        except TrialFailed:
            self._standin.builds.append(Build(key, text, refused=True))
            raise
        self._standin.builds.append(Build(key, text))
        session = make_session(changed, threads=self._threads)
        ran = precisions_in(self._network, plan)
        told = {self._network.layers[k].name: ran[k] for k in quantizable}
        for name in told.keys() & set(difference.disobeys):
            index = self._network.layer_named(name).index
            if difference.tells:
                ran[index] = told[name] = str(Precision.FP32)
            elif index in plan.lowered:
                del told[name]
        in_floats = len(quantizable) - len(plan.lowered.intersection(quantizable))
        return StandInEngine(session, ran, 1.0 + in_floats / max(1, len(quantizable)), told)

    def reference(self) -> StandInEngine:
        """Builds the network in FP32."""
        return self.build(self._network.free_plan())


class StandInEngine(OnnxRuntimeEngine):
    """A session that also has a time."""

    def __init__(self, session: Any, ran: Mapping[int, str], milliseconds: float, computed: Mapping[str, str]) -> None:
        super().__init__(session, ran)
        self._latency = Latency.of([milliseconds], computed=computed)

    def latency(self, _: Feeds) -> Latency:  # type: ignore[override]
        """Returns 1 ms for full INT8, 2 ms without INT8, in between by the number of layers."""
        return self._latency


def _text_of(plan: PrecisionPlan, network: Network) -> str:
    quantizable = network.quantizable
    low = [network.layers[k].name for k in quantizable if k in plan.lowered]
    high = [network.layers[k].name for k in quantizable if k not in plan.lowered]
    floats = sorted({str(plan.precisions[k]) for k in range(len(plan)) if k not in plan.lowered})
    kinds = " and ".join(floats) or "floats"
    if not low:
        return f"all in {kinds}"
    if not high:
        return "full INT8"
    if len(high) <= len(low):
        return f"all in INT8 but {', '.join(high)} in {kinds}"
    return f"only {', '.join(low)} in INT8"


def _digest_of(written: Written) -> str:
    graph = written.model.SerializeToString(deterministic=True)
    used = {tensor.name for tensor in written.model.graph.initializer} & written.weights.keys()
    weights = weights_digest({name: written.weights[name] for name in used})
    return hashlib.sha256(graph + weights.encode()).hexdigest()


def _spoil(graph: onnx.GraphProto, layer: str, factor: float) -> None:
    """Adds ``factor`` times its magnitude to the output of a layer."""
    place = next(k for k, node in enumerate(graph.node) if node.name == layer)
    node = graph.node[place]
    final, right = node.output[0], f"{node.output[0]}__right"
    node.output[0] = right
    graph.initializer.append(numpy_helper.from_array(np.float32(factor), f"{final}__factor"))
    added = [
        helper.make_node("Abs", [right], [f"{final}__magnitude"]),
        helper.make_node("Mul", [f"{final}__magnitude", f"{final}__factor"], [f"{final}__error"]),
        helper.make_node("Add", [right, f"{final}__error"], [final]),
    ]
    for offset, each in enumerate(added, 1):
        graph.node.insert(place + offset, each)


def _in_fp16(model: onnx.ModelProto) -> None:
    """Rounds every float32 tensor and weight that nodes outside the pairs make or read to FP16."""
    graph = model.graph
    inferred = shape_inference.infer_shapes(model).graph
    kinds = {value.name: value.type.tensor_type.elem_type for value in [*inferred.value_info, *inferred.input]}
    kinds |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    dequantized = {output for node in graph.node if node.op_type == "DequantizeLinear" for output in node.output}
    outputs = {value.name for value in graph.output}
    rounded: dict[str, str] = {}
    nodes = list[onnx.NodeProto]()

    def round_once(tensor: str) -> None:
        if tensor in rounded or kinds.get(tensor) != TensorProto.FLOAT or tensor in outputs:
            return
        rounded[tensor] = f"{tensor}__in_fp16"
        nodes.append(helper.make_node("Cast", [tensor], [f"{tensor}__fp16"], to=TensorProto.FLOAT16))
        nodes.append(helper.make_node("Cast", [f"{tensor}__fp16"], [rounded[tensor]], to=TensorProto.FLOAT))

    for node in graph.node:
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear", "Cast"):
            for tensor in node.input:
                if tensor not in dequantized:
                    round_once(tensor)
            renamed = [rounded.get(tensor, tensor) for tensor in node.input]
            del node.input[:]
            node.input.extend(renamed)
        nodes.append(node)
    refill(graph.node, nodes)
