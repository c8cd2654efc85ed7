"""Writes layers into an ONNX graph one after another, each in its precision, with the Q/DQ pairs or casts it needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from trt_bisect.model.file import DETACH_FROM_BYTES, Weights, detached_tensor, subgraphs_of_attribute, tensors_read
from trt_bisect.model.layers import Layer, Rounding
from trt_bisect.model.quantizer import Quantizer
from trt_bisect.model.writing_context import WritingContext
from trt_bisect.precision import Precision

_FP16_OPS = frozenset(
    "Conv ConvTranspose Gemm MatMul MaxPool AveragePool GlobalAveragePool Add Concat Sub Mul Div Relu LeakyRelu PRelu "
    "Clip Sigmoid HardSigmoid HardSwish Tanh Elu Softmax Gelu Erf Sqrt Pow Reshape Flatten Transpose Squeeze Unsqueeze "
    "Slice Split BatchNormalization ReduceMean".split()
)
"""Operators whose float inputs and outputs all have the same type: casts around them are enough for FP16."""


class Names:
    """The names of the network's tensors in one copy of its layers. Tensors not listed keep their own names.

    Attributes:
        suffix: added to the name of every tensor that the copy makes; empty for the network's own names.
        read: by tensor, the name under which layers of the copy read it.
        final: by tensor, the name that it has as an output of the graph.
    """

    def __init__(self, suffix: str = "") -> None:
        self.suffix = suffix
        self.read: dict[str, str] = {}
        self.final: dict[str, str] = {}

    def copy(self, suffix: str) -> Names:
        """The same names for another copy of the layers, whose new tensors get ``suffix``."""
        other = Names(suffix)
        other.read.update(self.read)
        other.final.update(self.final)
        return other

    def make(self, tensor: str) -> str:
        """Returns the name of a tensor that the copy makes, and notes it."""
        if self.suffix:
            self.read[tensor] = self.final[tensor] = f"{tensor}{self.suffix}"
        return self.final.get(tensor, tensor)


class GraphWriting:
    """A graph that is being written: its nodes so far, and the rounded and FP16 copies of tensors that they make.

    Args:
        context: the network, its scales, and the facts that its graphs share.
        scales_are_inputs: the scales of activations are inputs of the graph, not constants. Those of pairs that the
            network's own file holds stay constants.

    Attributes:
        nodes: written so far.
        scale_inputs: by rounded tensor, the graph's input with its scale, float32 scalar.
    """

    def __init__(self, context: WritingContext, *, scales_are_inputs: bool = False) -> None:
        self._context = context
        self._network = context.network
        self._scales_are_inputs = scales_are_inputs
        self.scale_inputs: dict[str, str] = {}
        self.nodes: list[onnx.NodeProto] = []
        self._small: list[onnx.TensorProto] = []
        self._large: Weights = {}
        self._shapes: list[onnx.ValueInfoProto] = []
        self._rounded_names: dict[tuple[object, ...], str] = {}
        self._times_rounded: Counter[str] = Counter()
        self._times_halved: Counter[str] = Counter()
        self._half_names: dict[str, str] = {}

    def layer(
        self, layer: Layer, precision: Precision, names: Names, followed: Collection[str] = ()
    ) -> tuple[str, ...]:
        """Writes one layer; returns the names of the tensors that are rounded for it.

        Args:
            layer: to write.
            precision: that it gets.
            names: of the tensors.
            followed: the tensors that are rounded where they are made.
        """
        node = onnx.NodeProto()
        node.CopyFrom(self._network.skeleton.graph.node[layer.index])
        _rename_reads(node, names)
        for slot, tensor in enumerate(node.output):
            node.output[slot] = names.make(tensor) if tensor else ""
            if names.suffix and tensor:
                self._give_shape(node.output[slot], None, like=tensor)
        node.name += names.suffix
        rounded = self._write(layer, precision, node, names)
        for tensor in layer.outputs:
            if tensor in followed:
                names.read[tensor] = self.rounded_where_made(layer, tensor, names.read.get(tensor, tensor))
        return rounded

    def rounded_where_made(self, layer: Layer, tensor: str, name: str) -> str:
        """Writes the Q/DQ pair of a tensor that a layer makes under ``name``; returns the name of the rounded one."""
        rounding = Rounding(layer.outputs.index(tensor), tensor, at_output=True)
        held = self._new(name, "held")
        self._chain(name, self._context.roundings.quantizers(layer, rounding), held, rounding)
        return held

    def _write(self, layer: Layer, precision: Precision, node: onnx.NodeProto, names: Names) -> tuple[str, ...]:
        rounded = [rounding for rounding in layer.roundings if layer.quantizable and _rounds(precision, rounding)]
        if rounded:
            return self._write_int8(layer, rounded, node, names)
        if precision is Precision.FP16 and layer.op_type in _FP16_OPS and layer.dtype == np.float32:
            self._write_fp16(layer, node)
        else:
            self.nodes.append(node)
        return ()

    def body(self, layer: Layer, precision: Precision, names: Names) -> list[onnx.NodeProto]:
        """Returns the nodes of one layer for the body of an If; they share no rounded tensor with other layers."""
        outside = self.nodes, self._rounded_names, self._half_names
        self.nodes, self._rounded_names, self._half_names = [], {}, {}
        self.layer(layer, precision, names)
        inside = self.nodes
        self.nodes, self._rounded_names, self._half_names = outside
        return inside

    def _write_int8(
        self, layer: Layer, roundings: list[Rounding], node: onnx.NodeProto, names: Names
    ) -> tuple[str, ...]:
        after: list[tuple[str, str, Rounding, tuple[Quantizer, ...]]] = []
        for rounding in roundings:
            quantizers = self._context.roundings.quantizers(layer, rounding)
            if rounding.at_output:
                final = node.output[rounding.slot]
                raw = self._new(final, "unrounded")
                node.output[rounding.slot] = raw
                names.read[rounding.tensor] = raw
                after.append((raw, final, rounding, quantizers))
            else:
                node.input[rounding.slot] = self._rounded(node.input[rounding.slot], rounding, quantizers)
        self.nodes.append(node)
        for raw, final, rounding, quantizers in after:
            self._chain(raw, quantizers, final, rounding)
        return tuple(rounding.tensor for rounding in roundings)

    def _new(self, name: str, word: str) -> str:
        """A new name for a rounded, FP16 or unrounded copy of a tensor; no tensor of the network has it."""
        return f"{name}{self._context.tag}{word}"

    def _rounded(self, name: str, rounding: Rounding, quantizers: tuple[Quantizer, ...]) -> str:
        """The name of a tensor after its quantizers. It is written at the first use."""
        key = (name, *(quantizer.key() for quantizer in quantizers))
        if key not in self._rounded_names:
            again = self._times_rounded[name]
            final = self._new(name, f"int8_{again}" if again else "int8")
            self._times_rounded[name] += 1
            self._rounded_names[key] = final
            if self._context.emulates and self._context.is_constant(name):
                self._add_constant(final, self._context.roundings.constant(rounding.tensor, quantizers))
            else:
                self._chain(name, quantizers, final, rounding)
        return self._rounded_names[key]

    def _give_shape(self, name: str, dtype: int | None, like: str) -> None:
        """Adds the shape of a new tensor. ONNX Runtime makes a session twice as fast if it need not infer shapes."""
        known = self._context.types.get(like)
        if known is not None:
            shape = renamed(known, name)
            if dtype is not None:
                shape.type.tensor_type.elem_type = dtype
            self._shapes.append(shape)

    def _chain(self, name: str, quantizers: tuple[Quantizer, ...], final: str, rounding: Rounding) -> None:
        """Writes a Q/DQ pair for each quantizer of a rounding between tensors ``name`` and ``final``."""
        like = rounding.tensor
        for step, quantizer in enumerate(quantizers):
            last = step == len(quantizers) - 1
            out = final if last else f"{final}_step{step}"
            parameters = [self._scale(quantizer, rounding, out), f"{out}_zero_point"]
            self._small.append(numpy_helper.from_array(quantizer.zero_point, parameters[1]))
            axis = {} if quantizer.axis is None else {"axis": quantizer.axis}
            self._add("QuantizeLinear", [name, *parameters], f"{out}_q", **axis)
            self._add("DequantizeLinear", [f"{out}_q", *parameters], out, **axis)
            if not last or out not in self._context.types:
                self._give_shape(out, helper.np_dtype_to_tensor_dtype(quantizer.dtype), like)
            self._give_shape(f"{out}_q", helper.np_dtype_to_tensor_dtype(quantizer.zero_point.dtype), like)
            name = out

    def _scale(self, quantizer: Quantizer, rounding: Rounding, out: str) -> str:
        """The name of a quantizer's scale: an input of the graph, or a constant for the pair that makes ``out``."""
        if self._scales_are_inputs and not rounding.fixed and not rounding.is_weight:
            return self.scale_inputs.setdefault(rounding.tensor, self._new(rounding.tensor, "scale"))
        self._small.append(numpy_helper.from_array(quantizer.scale.astype(quantizer.dtype), f"{out}_scale"))
        return f"{out}_scale"

    def _write_fp16(self, layer: Layer, node: onnx.NodeProto) -> None:
        original = self._network.skeleton.graph.node[layer.index]
        for slot, tensor in enumerate(original.input):
            if tensor in self._context.float_tensors:
                node.input[slot] = self._to_half(node.input[slot])
        finals = {slot: node.output[slot] for slot, t in enumerate(original.output) if t in self._context.float_tensors}
        for slot, final in finals.items():
            node.output[slot] = self._new(final, "half")
        self.nodes.append(node)
        for final in finals.values():
            raw = self._new(final, "half")
            if self._context.emulates:
                self._add("Cast", [raw], self._new(final, "halved"), to=TensorProto.FLOAT16)
                self._add("Cast", [self._new(final, "halved")], final, to=TensorProto.FLOAT)
                self._half_names[final] = final
            else:
                self._half_names[final] = raw
                self._add("Cast", [raw], final, to=TensorProto.FLOAT)

    def _to_half(self, name: str) -> str:
        """The name of a tensor in FP16, or rounded to FP16 if emulated. It is written at the first use."""
        if name not in self._half_names:
            emulated = self._context.emulates
            again = self._times_halved[name]
            self._times_halved[name] += 1
            final = self._half_names[name] = self._new(name, f"fp16_{again}" if again else "fp16")
            if self._context.is_constant(name):
                with np.errstate(over="ignore"):
                    values = self._network.constant(name).astype(np.float16)
                self._add_constant(final, values.astype(np.float32) if emulated else values)
            elif emulated:
                self._add("Cast", [name], f"{final}_halved", to=TensorProto.FLOAT16)
                self._add("Cast", [f"{final}_halved"], final, to=TensorProto.FLOAT)
            else:
                self._add("Cast", [name], final, to=TensorProto.FLOAT16)
        return self._half_names[name]

    def _add(self, op: str, inputs: list[str], output: str, **attributes: int) -> None:
        node = helper.make_node(op, inputs, [output], f"{output}_{op}")
        node.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
        self.nodes.append(node)

    def _add_constant(self, name: str, values: np.ndarray) -> None:
        if values.nbytes >= DETACH_FROM_BYTES:
            self._large[name] = values
            self._small.append(detached_tensor(name, values))
        else:
            self._small.append(numpy_helper.from_array(values, name))

    def assemble(
        self, inputs: Iterable[onnx.ValueInfoProto], outputs: Iterable[onnx.ValueInfoProto]
    ) -> tuple[onnx.ModelProto, Weights]:
        """Returns the model made of the nodes written so far, and the detached weights that it uses."""
        skeleton = self._network.skeleton
        model = onnx.ModelProto(ir_version=skeleton.ir_version, producer_name=skeleton.producer_name)
        model.opset_import.extend(skeleton.opset_import)
        model.graph.name = skeleton.graph.name or "network"
        model.graph.node.extend(self.nodes)
        model.graph.input.extend(inputs)
        model.graph.output.extend(outputs)
        results = [value.name for value in model.graph.output]
        constants, weights = self._used_constants(results)
        model.graph.initializer.extend(constants)
        inner = dict.fromkeys(name for node in self.nodes for name in node.output if name not in results)
        types = self._context.types
        model.graph.value_info.extend(types[name] for name in inner if name in types)
        model.graph.value_info.extend(value for value in self._shapes if value.name in inner)
        return model, weights

    def _used_constants(self, results: Iterable[str]) -> tuple[list[onnx.TensorProto], Weights]:
        """The constants that the nodes and ``results`` use: the graph's initializers, and the detached weights."""
        used = dict.fromkeys([*(name for node in self.nodes for name in tensors_read(node)), *results])
        known = {tensor.name: tensor for tensor in self._small} | dict(self._context.initializers)
        kept = [known[name] for name in used if name in known]
        weights = {name: self._network.weights[name] for name in used if name in self._network.weights}
        return kept, {**weights, **{name: array for name, array in self._large.items() if name in used}}


def renamed(known: onnx.ValueInfoProto, name: str) -> onnx.ValueInfoProto:
    """Returns a type and shape under another name. Names of axes are removed, as equal names would mean equal sizes."""
    info = onnx.ValueInfoProto()
    info.CopyFrom(known)
    info.name = name
    if known.name != name:
        for dim in info.type.tensor_type.shape.dim:
            dim.ClearField("dim_param")
    return info


def _rounds(precision: Precision, rounding: Rounding) -> bool:
    """Returns true if a layer in ``precision`` does this rounding."""
    if precision is Precision.INT8_WEIGHT:
        return rounding.is_weight
    return precision is Precision.INT8 or (precision is Precision.INT8_ACTIVATION and not rounding.is_weight)


def _rename_reads(node: onnx.NodeProto, names: Names) -> None:
    """Renames the inputs of a node and of its bodies, in place."""
    if not names.read:
        return
    for slot, name in enumerate(node.input):
        node.input[slot] = names.read.get(name, name)
    for attribute in node.attribute:
        for body in subgraphs_of_attribute(attribute):
            for inner in body.node:
                _rename_reads(inner, names)
            for value in body.output:
                value.name = names.read.get(value.name, value.name)
