"""A precision plan written into the ONNX graph: Q/DQ pairs for INT8 layers, casts for FP16 ones.

The pairs stand on the inputs of each INT8 layer: activations per tensor, weights per output channel, biases not at all,
each tensor once for all its INT8 consumers with the same scale. A layer that stays high therefore reads unrounded
tensors, and an INT8 layer all of whose consumers are high has a float output: a boundary adds no rounding of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from trt_bisect.model.file import DETACH_FROM_BYTES, Weights, detached_tensor
from trt_bisect.model.layers import Layer, Rounding, TensorTypes, tensors_read
from trt_bisect.model.network import Network
from trt_bisect.model.quantizer import Quantizer, symmetric, weight_quantizer
from trt_bisect.precision import PrecisionPlan

Scales = Mapping[str, np.float32]
"""The INT8 scale of each activation tensor, by name."""

_FP16_OPS = frozenset(
    "Conv ConvTranspose Gemm MatMul MaxPool AveragePool GlobalAveragePool Add Concat Sub Mul Div Relu LeakyRelu PRelu "
    "Clip Sigmoid HardSigmoid HardSwish Tanh Elu Softmax Gelu Erf Sqrt Pow Reshape Flatten Transpose Squeeze Unsqueeze "
    "Slice Split BatchNormalization ReduceMean".split()
)
"""Layers all of whose float inputs and outputs have one type, so that casts around them are all that FP16 needs."""


class Target(Enum):
    """For whom a graph is written.

    ``ONNXRUNTIME``: what is constant is rounded already, FP16 layers compute in float32 between roundings to FP16, so
    that the arithmetic is the same on every CPU. ``TENSORRT``: weights keep their pairs, FP16 layers are FP16.
    """

    ONNXRUNTIME = "onnxruntime"
    TENSORRT = "tensorrt"


@dataclass
class Written:
    """A graph with its weights apart.

    Attributes:
        weights: those of the network that it uses, and the rounded ones.
        pairs: by layer index, the tensors that are rounded for it.
    """

    model: onnx.ModelProto
    weights: Weights
    pairs: dict[int, tuple[str, ...]] = field(default_factory=dict)


class PlanWriter:
    """Writes plans of one network with one set of scales; rounded weights are computed once and shared."""

    def __init__(self, network: Network, scales: Scales, target: Target) -> None:
        self.network = network
        self.target = target
        self._scales = scales
        self._quantizers: dict[tuple[int, int, bool], tuple[Quantizer, ...]] = {}
        self._constants = {tensor.name for tensor in network.skeleton.graph.initializer}
        self.tag = _unused_tag(network)
        graph = network.skeleton.graph
        self.shapes = {value.name: value for value in (*graph.value_info, *graph.input, *graph.output)}
        dtypes = TensorTypes.of(network.skeleton.graph).dtypes
        self.float_tensors = frozenset(name for name, dtype in dtypes.items() if dtype == np.float32)
        self._rounded: dict[tuple[object, ...], np.ndarray] = {}

    def quantizers(self, layer: Layer, rounding: Rounding) -> tuple[Quantizer, ...]:
        """The quantizers of one rounding, first applied first.

        Raises:
            KeyError: the scales lack the rounded tensor.
        """
        key = (layer.index, rounding.slot, rounding.at_output)
        if key not in self._quantizers:
            self._quantizers[key] = rounding.fixed or (_made(self.network, rounding, self._scales),)
        return self._quantizers[key]

    def write(self, plan: PrecisionPlan) -> Written:
        """The network in the precisions of ``plan``.

        Raises:
            ValueError: the plan is of another number of layers.
        """
        if len(plan) != len(self.network.layers):
            raise ValueError(f"a plan of {len(plan)} layers for a network of {len(self.network.layers)}")
        return _PlanWriting(self, plan).written()

    def rounded_constant(self, name: str, quantizers: tuple[Quantizer, ...]) -> np.ndarray:
        """A constant after its quantizers, float32; kept for the next plan."""
        key = (name, *(quantizer.key() for quantizer in quantizers))
        if key not in self._rounded:
            values = self.network.constant(name)
            for quantizer in quantizers:
                values = quantizer.round_trip(values)
            self._rounded[key] = values
        return self._rounded[key]

    def is_constant(self, name: str) -> bool:
        """Whether a tensor is a constant of the network."""
        return name in self._constants


def _unused_tag(network: Network) -> str:
    """Two or more underscores that stand in no tensor's name before a word of ours, so that new names are new."""
    taken = [*network.producers, *(tensor.name for tensor in network.skeleton.graph.initializer)]
    taken += [spec.name for spec in network.inputs]
    tag = "__"
    while any(f"{tag}{word}" in name for name in taken for word in ("int8", "half", "fp16", "unrounded")):
        tag += "_"
    return tag


def _made(network: Network, rounding: Rounding, scales: Scales) -> Quantizer:
    if rounding.is_weight:
        return weight_quantizer(network.constant(rounding.tensor), rounding.axis)
    return symmetric(scales[rounding.tensor])


class _PlanWriting:
    """The state of writing one plan: the nodes so far, and the versions of each tensor that they made."""

    def __init__(self, writer: PlanWriter, plan: PrecisionPlan) -> None:
        self.writer = writer
        self.network = writer.network
        self.plan = plan
        self.nodes: list[onnx.NodeProto] = []
        self.small: list[onnx.TensorProto] = []
        self.large: Weights = {}
        self.pairs: dict[int, tuple[str, ...]] = {}
        self.versions: dict[tuple[object, ...], str] = {}
        self.outputs = {spec.name for spec in self.network.outputs}
        self.rounded: set[str] = set()
        self.half: dict[str, str] = {}
        self.shapes: list[onnx.ValueInfoProto] = []
        self.renamed: dict[str, str] = {}

    def written(self) -> Written:
        int8, fp16 = self.plan.int8, self.plan.fp16
        for layer, original in zip(self.network.layers, self.network.skeleton.graph.node, strict=True):
            node = onnx.NodeProto()
            node.CopyFrom(original)
            for slot, name in enumerate(node.input):
                node.input[slot] = self.renamed.get(name, name)
            if layer.index in int8 and layer.quantizable:
                self._write_int8(layer, node)
            elif layer.index in fp16 and layer.op_type in _FP16_OPS and layer.dtype == np.float32:
                self._write_fp16(node)
            else:
                self.nodes.append(node)
        model = self._model()
        used = {tensor.name for tensor in model.graph.initializer}
        weights = {name: array for name, array in self.network.weights.items() if name in used}
        return Written(model, {**weights, **self.large}, self.pairs)

    def _write_int8(self, layer: Layer, node: onnx.NodeProto) -> None:
        rounded = []
        after: list[tuple[str, str, tuple[Quantizer, ...]]] = []
        for rounding in layer.roundings:
            quantizers = self.writer.quantizers(layer, rounding)
            rounded.append(rounding.tensor)
            if rounding.at_output:
                raw = self._new(rounding.tensor, "unrounded")
                node.output[rounding.slot] = raw
                self.renamed[rounding.tensor] = raw
                after.append((raw, rounding.tensor, quantizers))
            else:
                node.input[rounding.slot] = self._rounded(node.input[rounding.slot], rounding, quantizers)
        self.nodes.append(node)
        for raw, final, quantizers in after:
            self._chain(raw, quantizers, final)
        self.pairs[layer.index] = tuple(rounded)

    def _new(self, name: str, what: str) -> str:
        """The name of a version of a tensor; no tensor of the network has it."""
        return f"{name}{self.writer.tag}{what}"

    def _rounded(self, name: str, rounding: Rounding, quantizers: tuple[Quantizer, ...]) -> str:
        """The version of a tensor after its quantizers, made at its first use."""
        key = (name, *(quantizer.key() for quantizer in quantizers))
        if key not in self.versions:
            fold = self.writer.target is Target.ONNXRUNTIME and self.writer.is_constant(name)
            final = self._new(name, "int8" if name not in self.rounded else f"int8_{len(self.versions)}")
            self.rounded.add(name)
            self.versions[key] = final
            if fold:
                self._add_constant(final, self.writer.rounded_constant(rounding.tensor, quantizers))
            else:
                self._chain(name, quantizers, final)
        return self.versions[key]

    def _give_shape(self, name: str, dtype: int, like: str) -> None:
        """Tells the shape of a new tensor: ONNX Runtime makes a session twice as fast if it need not infer them."""
        known = self.writer.shapes.get(like)
        if known is not None:
            shape = onnx.ValueInfoProto()
            shape.CopyFrom(known)
            shape.name, shape.type.tensor_type.elem_type = name, dtype
            self.shapes.append(shape)

    def _chain(self, name: str, quantizers: tuple[Quantizer, ...], final: str) -> None:
        source = name
        for step, quantizer in enumerate(quantizers):
            last = step == len(quantizers) - 1
            out = final if last else f"{final}_step{step}"
            parameters = [f"{out}_scale", f"{out}_zero_point"]
            self.small.append(numpy_helper.from_array(quantizer.scale, parameters[0]))
            self.small.append(numpy_helper.from_array(quantizer.zero_point, parameters[1]))
            axis = {} if quantizer.axis is None else {"axis": quantizer.axis}
            self._add("QuantizeLinear", [name, *parameters], f"{out}_q", **axis)
            self._add("DequantizeLinear", [f"{out}_q", *parameters], out, **axis)
            if not last or out not in self.writer.shapes:
                self._give_shape(out, TensorProto.FLOAT, like=source)
            self._give_shape(f"{out}_q", helper.np_dtype_to_tensor_dtype(quantizer.zero_point.dtype), like=source)
            name = out

    def _write_fp16(self, node: onnx.NodeProto) -> None:
        for slot, name in enumerate(node.input):
            if name in self.writer.float_tensors:
                node.input[slot] = self._to_half(name)
        finals = [name for name in node.output if name in self.writer.float_tensors]
        for slot, name in enumerate(node.output):
            if name in finals:
                node.output[slot] = self._new(name, "half")
        self.nodes.append(node)
        for name in finals:
            raw = self._new(name, "half")
            if self.writer.target is Target.TENSORRT:
                self.half[name] = raw
                self._add("Cast", [raw], name, to=TensorProto.FLOAT)
            else:
                self._add("Cast", [raw], self._new(name, "halved"), to=TensorProto.FLOAT16)
                self._add("Cast", [self._new(name, "halved")], name, to=TensorProto.FLOAT)
                self.half[name] = name

    def _to_half(self, name: str) -> str:
        if name not in self.half:
            exact = self.writer.target is Target.TENSORRT
            if self.writer.is_constant(name):
                with np.errstate(over="ignore"):
                    values = self.network.constant(name).astype(np.float16)
                self._add_constant(self._new(name, "fp16"), values if exact else values.astype(np.float32))
            else:
                halved = self._new(name, "fp16" if exact else "halved")
                self._add("Cast", [name], halved, to=TensorProto.FLOAT16)
                if not exact:
                    self._add("Cast", [halved], self._new(name, "fp16"), to=TensorProto.FLOAT)
            self.half[name] = self._new(name, "fp16")
        return self.half[name]

    def _add(self, op: str, inputs: list[str], output: str, **attributes: int) -> None:
        node = helper.make_node(op, inputs, [output], f"{output}_{op}")
        node.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
        self.nodes.append(node)

    def _add_constant(self, name: str, values: np.ndarray) -> None:
        if values.nbytes >= DETACH_FROM_BYTES:
            self.large[name] = values
            self.small.append(detached_tensor(name, values))
        else:
            self.small.append(numpy_helper.from_array(values, name))

    def _model(self) -> onnx.ModelProto:
        model = onnx.ModelProto()
        model.CopyFrom(self.network.skeleton)
        del model.graph.node[:], model.graph.initializer[:]
        model.graph.value_info.extend(self.shapes)
        model.graph.node.extend(self.nodes)
        used = {name for node in self.nodes for name in tensors_read(node)} | set(self.outputs)
        constants = (*self.network.skeleton.graph.initializer, *self.small)
        model.graph.initializer.extend(tensor for tensor in constants if tensor.name in used)
        return model
