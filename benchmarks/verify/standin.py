"""Stand-ins for engines, by code other than the emulation's: ONNX Runtime node by node, with NumPy between.

TensorRT's fusions guide where tensors are rounded: what a convolution makes for an activation is not stored.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper, shape_inference

from benchmarks.answer.judge import infer
from tests.support.quantized import plain_session
from trt_bisect.model.file import refill

Tensors = dict[str, np.ndarray]
PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
FUSED = ("Relu", "Clip", "Add", "BatchNormalization")
OWN_IN_INT8 = ("AveragePool", "Concat", "GlobalAveragePool", "MaxPool", "Resize")
ELEMENTWISE = {*FUSED, *"LeakyRelu HardSwish HardSigmoid Mul Sub Div Sigmoid Tanh Erf Pow Sqrt Exp".split()}


def outputs_of(model: onnx.ModelProto | Path, samples: Sequence[Tensors], **options: Any) -> list[Tensors]:
    """Returns the outputs of a file for each sample, on one thread; ``options`` as of ``plain_session``."""
    session = plain_session(model, **{"threads": 1, **options})
    return [infer(session, sample) for sample in samples]


class NodeByNode:
    """Runs a file node by node.

    Args:
        read: changes what a node reads: node, values.
        made: changes what a node makes: node, values.
        constants: changes the matrices and kernels among the constants.

    Attributes:
        tensors: all tensors of the last sample.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        read: Callable[[onnx.NodeProto, list[np.ndarray]], list[np.ndarray]] | None = None,
        made: Callable[[onnx.NodeProto, list[np.ndarray]], list[np.ndarray]] | None = None,
        constants: Callable[[np.ndarray], np.ndarray] | None = None,
    ) -> None:
        self._model, self._read, self._made = model, read, made
        self._constants = _constants(model)
        for name, values in self._constants.items():
            if constants is not None and values.dtype == np.float32 and values.ndim > 1:
                self._constants[name] = constants(values)
        self._sessions: dict[tuple[Any, ...], ort.InferenceSession] = {}
        self.tensors: Tensors = {}

    def run(self, samples: Sequence[Tensors]) -> list[Tensors]:
        """Returns the outputs for each sample."""
        return [self._run(sample) for sample in samples]

    def _run(self, sample: Tensors) -> Tensors:
        values: Tensors = {**self._constants, **sample}
        for place, node in enumerate(self._model.graph.node):
            if node.op_type == "Constant":
                continue
            names = [name for name in node.input if name]
            given = [values[name] for name in names]
            if self._read is not None:
                given = self._read(node, given)
            feeds = dict(zip(names, given, strict=True))
            bodies = [inner for attribute in node.attribute for inner in attribute.g.node]
            feeds |= {name: values[name] for inner in bodies for name in inner.input if name in values}
            key = (place, *((array.dtype.str, array.ndim) for array in feeds.values()))
            if key not in self._sessions:
                self._sessions[key] = self._session(node, feeds)
            found = self._sessions[key].run([name for name in node.output if name], feeds)
            if self._made is not None:
                found = self._made(node, found)
            values.update(zip([name for name in node.output if name], found, strict=True))
        self.tensors = values
        return {output.name: values[output.name] for output in self._model.graph.output}

    def _session(self, node: onnx.NodeProto, given: Tensors) -> ort.InferenceSession:
        infos = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), [None] * x.ndim)
            for name, x in given.items()
        ]
        outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        graph = helper.make_graph([node], "one", infos, outputs)
        model = helper.make_model(graph, opset_imports=self._model.opset_import, ir_version=self._model.ir_version)
        return plain_session(model, threads=1)


def _constants(model: onnx.ModelProto) -> Tensors:
    """Returns the values of initializers and Constant nodes by name."""
    found = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant":
            found[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
    return found


def tf32(values: np.ndarray) -> np.ndarray:
    """Returns float32 values rounded to ten bits of mantissa, ties away from zero, as ``cvt.rna.tf32`` does."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


def in_type(dtype: Any) -> Callable[[np.ndarray], np.ndarray]:
    """Returns what rounds float32 values to a type."""

    def rounded(values: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            return values.astype(dtype).astype(np.float32)

    return rounded


def in_tf32(model: onnx.ModelProto) -> NodeByNode:
    """Returns an engine whose products read TF32."""

    def read(node: onnx.NodeProto, given: list[np.ndarray]) -> list[np.ndarray]:
        if node.op_type not in PRODUCTS:
            return given
        return [tf32(x) if place < 2 and x.dtype == np.float32 else x for place, x in enumerate(given)]

    return NodeByNode(model, read=read)


def in_floats(model: onnx.ModelProto, dtype: Any = np.float16) -> NodeByNode:
    """Returns an engine in FP16 or BF16, with products summed in FP32, and each fused group rounded once."""
    rounded, uses = in_type(dtype), dict[str, list[str]]()
    for node in model.graph.node:
        for name in node.input:
            uses.setdefault(name, []).append(node.op_type)
    results = {output.name for output in model.graph.output}

    def made(node: onnx.NodeProto, found: list[np.ndarray]) -> list[np.ndarray]:
        readers = uses.get(node.output[0], [])
        inside = node.op_type in PRODUCTS and len(readers) == 1 and readers[0] in FUSED
        if inside and node.output[0] not in results:
            return found
        return [rounded(x) if x.dtype == np.float32 else x for x in found]

    return NodeByNode(model, made=made, constants=rounded)


def quantized(
    model: onnx.ModelProto,
    scales: Mapping[str, float],
    layers: Sequence[str] | None = None,
    *,
    per_tensor: bool = False,
    held: Sequence[str] = (),
) -> onnx.ModelProto:
    """Returns a file with Q/DQ pairs on what products read: activations by their scales, weights per output channel.

    Args:
        layers: the products; None for all.
        per_tensor: one scale for each weight.
        held: tensors that are rounded where they are made.
    """
    changed = copy.deepcopy(model)
    graph = changed.graph
    constants = _constants(model)
    nodes: list[onnx.NodeProto] = []
    rounded = set[str]()

    def pair(name: str, scale: np.ndarray, axis: int | None) -> str:
        key = f"{name}_{'' if axis is None else axis}_dq"
        if key in rounded:
            return key
        rounded.add(key)
        zero = np.zeros(scale.shape, np.int8)
        graph.initializer.append(numpy_helper.from_array(scale.astype(np.float32), f"{key}_scale"))
        graph.initializer.append(numpy_helper.from_array(zero, f"{key}_zero"))
        more: dict[str, Any] = {} if axis is None else {"axis": axis}
        parameters = [f"{key}_scale", f"{key}_zero"]
        nodes.append(helper.make_node("QuantizeLinear", [name, *parameters], [f"{key}_q"], f"{key}_Q", **more))
        nodes.append(helper.make_node("DequantizeLinear", [f"{key}_q", *parameters], [key], f"{key}_DQ", **more))
        return key

    for node in graph.node:
        if node.op_type in PRODUCTS and (layers is None or node.name in layers):
            for slot, name in enumerate(node.input[:2]):
                if name in constants:
                    values, axis, axes = constants[name], None, None
                    if values.ndim > 1 and not per_tensor:
                        axis = _channel_axis(node, values)
                        axes = tuple(k for k in range(values.ndim) if k != axis)
                    largest = np.abs(values).max(axis=axes)
                    node.input[slot] = pair(name, np.asarray(np.where(largest > 0, largest, 1.0) / 127.0), axis)
                elif name in scales:
                    node.input[slot] = pair(name, np.asarray(scales[name]), None)
        nodes.append(node)
        for slot, name in enumerate(node.output):
            if name in held:
                node.output[slot] = f"{name}_raw"
                key = pair(f"{name}_raw", np.asarray(scales[name]), None)
                nodes.append(helper.make_node("Identity", [key], [name], f"{name}_held"))
    refill(graph.node, nodes)
    for entry in changed.opset_import:
        entry.version = max(entry.version, 13)
    return changed


def _channel_axis(node: onnx.NodeProto, weight: np.ndarray) -> int:
    transposed = any(a.name == "transB" and a.i for a in node.attribute)
    return {"Conv": 0, "ConvTranspose": 1, "Gemm": 0 if transposed else 1}.get(node.op_type, weight.ndim - 1)


def ranges(model: onnx.ModelProto, samples: Sequence[Tensors], percentile: float = 100.0) -> dict[str, float]:
    """Returns the INT8 scale of every float tensor: a percentile of its magnitudes over samples, by 127."""
    observed = shape_inference.infer_shapes(model)
    results = {output.name for output in observed.graph.output}
    for value in observed.graph.value_info:
        if value.type.tensor_type.elem_type == TensorProto.FLOAT and value.name not in results:
            observed.graph.output.append(onnx.ValueInfoProto(name=value.name))
    largest: dict[str, float] = {}
    for found, sample in zip(outputs_of(observed, samples), samples, strict=True):
        for name, values in {**sample, **found}.items():
            if values.dtype == np.float32 and values.size:
                magnitude = float(np.percentile(np.abs(values), percentile)) / 127.0
                largest[name] = max(largest.get(name, 0.0), magnitude)
    return {name: float(np.float32(max(scale, 1e-8))) for name, scale in largest.items()}


def with_wrong(model: onnx.ModelProto, layer: str, wrong: Callable[[np.ndarray], np.ndarray]) -> NodeByNode:
    """Returns an engine whose kernel for a node gives another output."""

    def made(node: onnx.NodeProto, found: list[np.ndarray]) -> list[np.ndarray]:
        return [wrong(found[0]).astype(np.float32), *found[1:]] if node.name == layer else found

    return NodeByNode(model, made=made)


def without(model: onnx.ModelProto, layers: Sequence[str]) -> onnx.ModelProto:
    """Returns a file whose nodes of these names give what they read first."""
    changed = copy.deepcopy(model)
    for node in changed.graph.node:
        if node.name in layers:
            node.op_type = "Identity"
            del node.attribute[:]
            del node.input[1:]
    return changed


def in_float32(model: onnx.ModelProto, layers: Container[str]) -> onnx.ModelProto:
    """Returns a Q/DQ file in which some nodes read what their pairs read."""
    changed = copy.deepcopy(model)
    makers = {output: node for node in changed.graph.node for output in node.output}
    for node in changed.graph.node:
        if node.name not in layers:
            continue
        for slot, name in enumerate(node.input):
            if name in makers and makers[name].op_type == "DequantizeLinear":
                node.input[slot] = makers[makers[name].input[0]].input[0]
    return changed


def between(model: onnx.ModelProto, layers: Sequence[str]) -> list[str]:
    """Returns what TensorRT may store in INT8 between INT8 products beyond what these read.

    INT8 passes through nodes that are no layers of INT8 of their own. A tensor inside a kernel is not stored: between a
    product and its Relu, Clip or bias, and between two elementwise nodes.
    """
    graph, results = model.graph, {output.name for output in model.graph.output}
    constants = set(_constants(model))

    def sums_activations(node: onnx.NodeProto) -> bool:
        return node.op_type == "Add" and constants.isdisjoint(node.input)

    def passes(node: onnx.NodeProto) -> bool:
        return node.op_type not in (*PRODUCTS, *OWN_IN_INT8) and not sums_activations(node)

    fed, read, readers = set[str](), set[str](), dict[str, list[onnx.NodeProto]]()
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
        if node.name in layers or (passes(node) and not fed.isdisjoint(node.input)):
            fed.update(node.output)
    for node in reversed(graph.node):
        if node.name in layers or (passes(node) and not read.isdisjoint(node.output)):
            read.update(node.input)
    stored = []
    for node in graph.node:
        name, is_inside = node.output[0], False
        if len(readers.get(name, ())) == 1:
            (reader,) = readers[name]
            if node.op_type in PRODUCTS:
                is_inside = reader.op_type in FUSED and not sums_activations(reader)
            else:
                is_inside = {node.op_type, reader.op_type} <= ELEMENTWISE
        if name in fed & read and name not in results and not is_inside:
            stored.append(name)
    return stored


def rescaled(model: onnx.ModelProto, factor: Callable[[str], float]) -> onnx.ModelProto:
    """Returns a Q/DQ file with the scale of each activation times the factor of its name."""
    changed = copy.deepcopy(model)
    constants = {tensor.name: tensor for tensor in changed.graph.initializer}
    rounding = [node for node in changed.graph.node if node.op_type == "QuantizeLinear"]
    for name in {node.input[1] for node in rounding if node.input[0] not in constants} & constants.keys():
        values = numpy_helper.to_array(constants[name])
        scaled = np.asarray(values * factor(name)).astype(values.dtype)
        constants[name].CopyFrom(numpy_helper.from_array(scaled, name))
    return changed
