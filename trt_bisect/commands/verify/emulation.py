"""Emulations of an engine: a network under a plan, on samples, with changes; and the distance of outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from trt_bisect.builder.base import Outputs
from trt_bisect.builder.onnxruntime import OnnxRuntimeEngine
from trt_bisect.data.feeds import Feeds
from trt_bisect.model.cost import PRODUCTS
from trt_bisect.model.file import Written, refill
from trt_bisect.model.layers import POINTWISE
from trt_bisect.model.network import Network
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.model.quantizer import FloatType, Scales
from trt_bisect.model.session import integer_sums_are_exact, make_session
from trt_bisect.precision import Precision, PrecisionPlan

Edit = Callable[[Written], Written]
After = Callable[[list[Outputs]], list[Outputs]]
JITTER = 3e-6
"""The relative noise of weights and inputs that stands for other kernels: ten to a hundred times what another order of
sums makes, as Winograd's convolutions need it."""
_DRAWS, _TIMES = 3, 2.5
"""The noisy emulations, and the largest distance among them that still counts as noise, over the largest seen."""
_LEAST = 1e-5
"""The least floor: the six digits of trtexec's JSON."""
_FAR = 1e3
"""Stands for NaN and infinite values, in units of an output's own magnitude."""
_LEAST_CHANNEL = 1e-2
_SPLITTER = np.float32(2**13 + 1)
"""Veltkamp's: with c = (2^13 + 1) x, c - (c - x) has the eleven significant bits of TF32."""


@dataclass(frozen=True)
class Emulation:
    """A network under a plan on samples.

    Attributes:
        scales: of the activations, as ``writer`` has them.
        feeds: the samples.
        edits: changes of the graph that is run, in their order.
        after: changes of the outputs of all samples.
    """

    writer: PlanWriter
    scales: Scales
    plan: PrecisionPlan
    feeds: tuple[Feeds, ...]
    edits: tuple[Edit, ...] = ()
    after: tuple[After, ...] = ()

    def outputs(self) -> list[Outputs]:
        """Returns the outputs for each sample; raises TrialFailed if ONNX Runtime fails."""
        found = _run(session_of(self.writer, self.plan, self.edits), self.feeds)
        for change in self.after:
            found = change(found)
        return found

    def in_floats(self) -> Emulation:
        """Returns this emulation with all layers in FP32."""
        return replace(self, plan=self.writer.network.free_plan())


def of_network(
    network: Network, scales: Scales, plan: PrecisionPlan | None = None, *, unquantized: bool = False
) -> Callable[[Emulation], Emulation]:
    """Returns the change to another form of the network, with these scales, and under another plan if one is given."""
    writer = PlanWriter(network, scales, GraphTarget.ONNXRUNTIME, unquantized_round=unquantized)
    return lambda e: replace(e, writer=writer, scales=scales, plan=plan or e.plan)


@lru_cache(maxsize=3)
def session_of(writer: PlanWriter, plan: PrecisionPlan, edits: tuple[Edit, ...]) -> ort.InferenceSession:
    """Returns the session of a plan with edits; the last few are kept."""
    written = writer.write(plan)
    for edit in edits:
        written = edit(written)
    return make_session(written)


def _run(session: ort.InferenceSession, samples: Sequence[Feeds]) -> list[Outputs]:
    engine = OnnxRuntimeEngine(session, {})
    return [engine.infer(feeds) for feeds in samples]


def _with_noise(random: np.random.Generator, values: np.ndarray) -> np.ndarray:
    if values.dtype != np.float32:
        return values
    noise = np.float32(JITTER) * random.standard_normal(values.shape, np.float32)
    return np.asarray(values * (1 + noise), np.float32)


def _with_constants(
    change: Callable[[np.ndarray], np.ndarray], names: Collection[str] | None, written: Written
) -> Written:
    """Returns a graph with its float32 constants of two axes or more changed; ``names`` are those, or None for all."""
    model = onnx.ModelProto()
    model.CopyFrom(written.model)
    weights = dict(written.weights)
    for tensor in model.graph.initializer:
        chosen = names is None or tensor.name in names
        if not chosen or tensor.data_type != TensorProto.FLOAT or len(tensor.dims) < 2:
            continue
        if tensor.name in weights:
            weights[tensor.name] = change(weights[tensor.name])
        else:
            tensor.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(tensor)), tensor.name))
    return Written(model, weights)


def computing_in(kind: FloatType | None, floats: Collection[str], written: Written) -> Written:
    """Returns a graph that computes in FP16 or BF16 where it has FP32, or in TF32 for None.

    Weights of float products are rounded. In TF32 so is what they read; in the others, what fused layers give, of the
    tensors ``floats``.
    """
    model = onnx.ModelProto()
    model.CopyFrom(written.model)
    graph = model.graph
    constants = {tensor.name for tensor in graph.initializer}
    makers = {name: node.op_type for node in graph.node for name in node.output}
    readers = dict[str, list[str]]()
    read = set[str]()
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node.op_type)
        if node.op_type in PRODUCTS and makers.get(node.input[0]) != "DequantizeLinear":
            read.update(node.input[:2])
    nodes, rounded = list[onnx.NodeProto](), dict[str, str]()
    for node in graph.node:
        for slot, name in enumerate(node.input):
            inside = len(readers[name]) == 1 and node.op_type in {*POINTWISE, "QuantizeLinear"}
            chosen = name in read if kind is None else name in floats and not inside
            if name in constants or not chosen:
                continue
            if name not in rounded:
                rounded[name] = f"{name}__rounded"
                nodes += _rounding(name, rounded[name], kind)
            node.input[slot] = rounded[name]
        nodes.append(node)
    refill(graph.node, nodes)
    graph.initializer.append(numpy_helper.from_array(_SPLITTER, "__splitter"))
    return _with_constants(
        _in_tf32 if kind is None else kind.rounded, read & constants, Written(model, written.weights)
    )


def _in_tf32(values: np.ndarray) -> np.ndarray:
    large = values * _SPLITTER
    return np.asarray(large - (large - values))


def _rounding(name: str, result: str, kind: FloatType | None) -> list[onnx.NodeProto]:
    large, rest = f"{result}0", f"{result}1"
    if kind is not None:
        narrow = helper.make_node("Cast", [name], [large], to=kind.onnx)
        return [narrow, helper.make_node("Cast", [large], [result], to=TensorProto.FLOAT)]
    parts = (("Mul", name, "__splitter", large), ("Sub", large, name, rest), ("Sub", large, rest, result))
    return [helper.make_node(op, [first, second], [out]) for op, first, second, out in parts]


class Yardstick:
    """Distances of outputs, relative to those of the file on the same samples.

    Each place counts in units of its channel's root mean square (axis 1), so that scores count as much as boxes. NaN
    and infinite values are far from all finite ones.

    Args:
        reference: the outputs of the file.
        names: the outputs that count.
    """

    def __init__(self, reference: Sequence[Outputs], names: Sequence[str]) -> None:
        self._names, self._shapes = names, [{name: np.shape(each[name]) for name in names} for each in reference]
        self._units = {name: _unit([np.asarray(each[name], np.float64) for each in reference]) for name in names}

    def vector(self, outputs: Sequence[Outputs]) -> np.ndarray:
        """Returns the outputs of the samples as a vector, whose length for those of the file is about 1."""
        parts = []
        for each, shapes in zip(outputs, self._shapes, strict=False):
            for name in self._names:
                values = _fitted(np.asarray(each[name], np.float64), shapes[name]) / self._units[name]
                values = np.nan_to_num(values, nan=_FAR, posinf=2 * _FAR, neginf=-2 * _FAR).clip(-2 * _FAR, 2 * _FAR)
                parts.append(values.ravel() / math.sqrt(max(values.size, 1)))
        return np.concatenate(parts) / math.sqrt(len(parts))

    def apart(self, first: Sequence[Outputs], second: Sequence[Outputs]) -> float:
        """Returns the distance of two outputs."""
        return float(np.linalg.norm(self.vector(first) - self.vector(second)))

    def floor(self, emulation: Emulation, there: Sequence[Outputs]) -> float:
        """Returns the distance from ``there``, the outputs of an emulation, that other kernels explain."""
        noise = (partial(_noisy, emulation, seed) for seed in range(_DRAWS))
        seen = [self.apart(each().outputs(), there) for each in noise]
        kinds = {*emulation.plan.precisions}
        if kinds == {Precision.FP32, Precision.INT8} and not emulation.edits and integer_sums_are_exact():
            writer = PlanWriter(emulation.writer.network, emulation.scales, GraphTarget.TENSORRT)
            session = make_session(writer.write(emulation.plan), integers=True)
            seen.append(self.apart(_run(session, emulation.feeds), there))
        return max(_LEAST * float(np.linalg.norm(self.vector(there))), _TIMES * max(seen))


def _noisy(emulation: Emulation, seed: int) -> Emulation:
    """Returns an emulation with relative noise on weights and inputs."""
    noise = partial(_with_noise, np.random.default_rng(seed))
    feeds = tuple({name: noise(values) for name, values in sample.items()} for sample in emulation.feeds)
    return replace(emulation, feeds=feeds, edits=(*emulation.edits, partial(_with_constants, noise, None)))


def _unit(samples: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the root mean square of each channel over samples, at least a hundredth of that of all values."""
    samples = [np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0) for values in samples]
    total = math.sqrt(np.mean([np.mean(values**2) if values.size else 0.0 for values in samples])) or 1.0
    ranks, channels = {values.ndim for values in samples}, {values.shape[1:2] for values in samples}
    if len(ranks | channels) > 2 or ranks <= {0, 1} or not samples[0].size:
        return np.array(total)
    axes = tuple(axis for axis in range(samples[0].ndim) if axis != 1)
    squares = np.mean([np.mean(values**2, axis=axes, keepdims=True) for values in samples], axis=0)
    return np.asarray(np.maximum(np.sqrt(squares), _LEAST_CHANNEL * total))


def _fitted(values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Returns values in a shape: the first ones where there are more, with NaN where there are fewer."""
    flat = np.full(math.prod(shape), np.nan)
    flat[: values.size] = values.ravel()[: flat.size]
    return flat.reshape(shape)
