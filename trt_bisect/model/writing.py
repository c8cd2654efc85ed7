"""Writes layers into an ONNX graph, each in its precision, with the Q/DQ pairs or Casts it needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from trt_bisect.model.file import Weights, bodies_of, constant_tensor, tensors_read
from trt_bisect.model.layers import MULTIPLYING, Layer, Rounding, carries, typed_slots
from trt_bisect.model.network import Network, followed_tensors
from trt_bisect.model.quantizer import (
    FLOAT_TYPES,
    W8A16,
    FloatType,
    LowPrecision,
    Quantizer,
    Scales,
    activation_quantizer,
    round_trips,
    scale_in,
    weight_quantizer,
)
from trt_bisect.precision import Precision
from trt_bisect.support.memory import are_large, file_of, mapped

_SUM, _SQUARE = "ReduceSum", "Mul"
# Operators that TensorRT's parser writes as several layers, each of which rounds in FP16 and BF16. Source: networks
# that TensorRT-RTX 1.7 parses. Softmax and ONNX's normalizations stay one layer; ReduceLogSumExp subtracts its maximum
# first, so that nothing overflows.
_PARTS = {
    "ReduceL2": (_SQUARE, _SUM, "Sqrt"),
    "ReduceSumSquare": (_SQUARE, _SUM),
    "ReduceLogSum": (_SUM, "Log"),
    "ReduceL1": ("Abs", _SUM),
}


def parts_of(node: onnx.NodeProto) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """Returns the nodes that TensorRT's parser makes of a node (often itself), and new constants that they read.

    Names of new tensors begin with the node's output.
    """
    if node.op_type not in _PARTS or node.domain:
        return [node], []
    final = node.output[0]
    parts, attributes = _PARTS[node.op_type], {attribute.name: attribute for attribute in node.attribute}
    axes, constants = list(node.input[1:]), list[onnx.TensorProto]()
    if "axes" in attributes:  # ReduceSum has its axes as an input since opset 13, the others since opset 18
        axes = [f"{final}_axes"]
        constants.append(numpy_helper.from_array(np.asarray(attributes.pop("axes").ints, np.int64), axes[0]))
    names = [node.input[0], *(f"{final}_part{index}" for index in range(len(parts) - 1)), final]
    nodes = []
    for index, op in enumerate(parts):
        others = {_SQUARE: [names[index]], _SUM: axes}.get(op, [])
        part = helper.make_node(op, [names[index], *others], [names[index + 1]], f"{node.name}_part{index}")
        if op == _SUM:
            part.attribute.extend(attributes.values())
        nodes.append(part)
    return nodes, constants


class GraphTarget(Enum):
    """The engine that a graph is written for.

    ``ONNXRUNTIME``: weights are rounded in advance; FP16 and BF16 layers compute in float32 between roundings.
    ``TENSORRT``: weights keep their Q/DQ pairs; FP16 and BF16 layers have that type.
    """

    ONNXRUNTIME = "onnxruntime"
    TENSORRT = "tensorrt"


_OWN_WORDS = "int8 fp8 fp16 bf16 fp32 typed rounded unrounded branch scale held given int16".split()


class WritingContext:
    """The facts, quantizers and rounded weights that all graphs of a network with one set of scales share.

    Args:
        scales: the INT8 scales of activations without quantizers in the file.
        unquantized_round: also round tensors of unquantized layers that an engine may hold in INT8.
        held: exactly the tensors to round where they are made; None: ``unquantized_round`` decides.

    Attributes:
        emulates: true for ONNX Runtime, not for TensorRT.
        tag: underscores that make new names unique.
        initializers: the constants of the graph; large ones have no values.
        base_slots: by quantizable layer, the positions of inputs in the base's type if the layer is in low precision.
    """

    def __init__(
        self,
        network: Network,
        scales: Scales,
        target: GraphTarget,
        *,
        unquantized_round: bool = False,
        held: frozenset[str] | None = None,
    ) -> None:
        graph, kind = network.skeleton.graph, network.base_type
        self.network, self.emulates, self.held = network, target is GraphTarget.ONNXRUNTIME, held
        self._unquantized_round = unquantized_round
        self.float_tensors = network.types.float32
        self.base_slots: dict[int, tuple[int, ...]] = {}
        for layer in network.layers:
            if kind is not None and layer.quantizable:
                slots = typed_slots(graph.node[layer.index], self.float_tensors, kind)
                self.base_slots |= {} if slots is None else {layer.index: slots}
        self._scales, self._large = scales, are_large(network.weights)
        self._quantizers: dict[tuple[int, int, bool], tuple[Quantizer, ...]] = {}
        self._constants: dict[tuple[object, ...], np.ndarray] = {}
        self.initializers = {tensor.name: tensor for tensor in graph.initializer}
        self.types = {value.name: value for value in (*graph.value_info, *graph.input, *graph.output)}
        self.tag = _unused_tag(network)

    def quantizers(self, layer: Layer, rounding: Rounding) -> tuple[Quantizer, ...]:
        """Returns the quantizers of a rounding, first applied first; raises KeyError without a scale."""
        key = (layer.index, rounding.slot, rounding.at_output)
        if key not in self._quantizers:
            low, kind = self.network.low, self.network.base_type
            quantizers = rounding.fixed or (self._new_quantizers(rounding, low) if low.needs_ranges else ())
            if kind is not None and layer.index in self.base_slots and not rounding.at_output:
                quantizers = tuple(
                    replace(q, scale=kind.positive(q.scale), dtype=q.dtype if self.emulates else kind.dtype)
                    for q in quantizers
                )
            self._quantizers[key] = quantizers
        return self._quantizers[key]

    def _new_quantizers(self, rounding: Rounding, low: LowPrecision) -> tuple[Quantizer, ...]:
        if not rounding.is_weight:
            return (activation_quantizer(low, self._scales[rounding.tensor]),)
        quantizers, key = self.network.rounded.quantizers, (rounding.tensor, rounding.axis, low)
        if key not in quantizers:
            quantizers[key] = weight_quantizer(self.network.constant(rounding.tensor), rounding.axis, low)
        return (quantizers[key],)

    def rounded(self, name: str, quantizers: tuple[Quantizer, ...], kind: FloatType | None = None) -> np.ndarray:
        """Returns a constant rounded to the type ``kind``, if given, then by ``quantizers``."""
        key = (name, kind, *(quantizer.key() for quantizer in quantizers))
        if key not in self._constants:
            rounded = self.network.rounded.get(key)
            if rounded is None:
                values = self.network.on_grid.get(name)
                values = self.network.constant(name) if values is None else values
                if kind is not None:
                    values = kind.rounded(values)
                rounded = round_trips(values, quantizers)
                if self._large:
                    rounded = mapped(rounded)
                self.network.rounded[key] = rounded
            if self._large and file_of(rounded) is None:
                return rounded
            self._constants[key] = rounded
        return self._constants[key]

    def followed(self, int8: Collection[int]) -> frozenset[str]:
        """Returns the tensors of unquantized layers to round where they are made if the layers ``int8`` are in INT8."""
        if self.held is not None:
            return self.held
        if not self._unquantized_round or self.network.low.precision is not Precision.INT8:
            return frozenset()
        tensors = followed_tensors(self.network, int8)
        return frozenset(name for name in tensors & self.float_tensors if name in self._scales)

    def typed_slots(self, layer: Layer, precision: Precision) -> tuple[int, ...] | None:
        """Returns the positions of a layer's inputs in FP16 or BF16 (``precision``); None if the layer must stay
        float32.
        """
        kind = FLOAT_TYPES.get(precision)
        node = self.network.skeleton.graph.node[layer.index]
        return None if kind is None else typed_slots(node, self.float_tensors, kind)

    def carries(self, layer: Layer, precision: Precision, slots: Sequence[int]) -> bool:
        """Returns true if a layer rounds nothing once its inputs ``slots`` have the float type of ``precision``."""
        node = self.network.skeleton.graph.node[layer.index]
        return carries(node, slots, FLOAT_TYPES[precision], self.network.constants)


def _unused_tag(network: Network) -> str:
    taken = [*network.producers, *(tensor.name for tensor in network.skeleton.graph.initializer)]
    taken += [spec.name for spec in network.inputs]
    tag = "__"
    while any(f"{tag}{word}" in name for name in taken for word in _OWN_WORDS):
        tag += "_"
    return tag


_WORDS = {kind.name: str(precision) for precision, kind in FLOAT_TYPES.items()}


class Names:
    """The names of tensors in a copy of the network's layers; tensors not listed keep their own.

    Attributes:
        suffix: of every tensor that the copy makes; empty for the network's own names.
        read: by tensor, the name under which layers of the copy read it.
        final: by tensor, its name as an output of the graph.
    """

    def __init__(self, suffix: str = "", read: Mapping[str, str] = {}, final: Mapping[str, str] = {}) -> None:
        self.suffix, self.read, self.final = suffix, dict(read), dict(final)

    def copy(self, suffix: str) -> Names:
        """Returns the same names for another copy of the layers, with its ``suffix``."""
        return Names(suffix, self.read, self.final)

    def make(self, tensor: str) -> str:
        """Returns the name of a tensor that the copy makes, and records it in ``read`` and ``final``."""
        if self.suffix:
            self.read[tensor] = self.final[tensor] = f"{tensor}{self.suffix}"
        return self.final.get(tensor, tensor)


class GraphWriting:
    """A graph that is being written.

    Args:
        scales_are_inputs: make the scales of activations inputs of the graph, except those of the file.

    Attributes:
        scale_inputs: by rounded tensor, the name of the input for its scale, float32 with one element.
    """

    def __init__(self, context: WritingContext, *, scales_are_inputs: bool = False) -> None:
        self._context, self._network, self._scales_are_inputs = context, context.network, scales_are_inputs
        self.scale_inputs: dict[str, str] = {}
        self.nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []
        self._large: Weights = {}
        self._shapes: list[onnx.ValueInfoProto] = []
        self._rounded_names: dict[tuple[object, ...], str] = {}
        self._times_rounded: Counter[tuple[str, str]] = Counter()
        # By tensor and type, its name in that type if a layer has made or moved it in that type.
        self._typed_names: dict[tuple[str, str], str] = {}
        self._cast_names: dict[tuple[str, str], str] = {}  # the same for tensors that were rounded for a reader
        self._spare: set[str] = set()  # float32 copies of tensors of another type; dropped if unread

    def layer(
        self, layer: Layer, precision: Precision, names: Names, followed: Collection[str] = ()
    ) -> tuple[str, ...]:
        """Writes a layer with its pairs or Casts, and a pair after each output in ``followed``.

        Returns the network's tensors that are rounded for the layer. ``names`` gains the outputs' names in the graph.
        """
        node = onnx.NodeProto()  # deepcopy takes three times as long
        node.CopyFrom(self._network.skeleton.graph.node[layer.index])
        rename_reads(node, names)
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
        """Writes a Q/DQ pair at a layer's output ``tensor``, whose name is now ``name``; returns the rounded tensor's
        name.
        """
        rounding = Rounding(layer.outputs.index(tensor), tensor, at_output=True)
        held = self._new(name, "held")
        self._chain(name, self._context.quantizers(layer, rounding), held, rounding)
        return held

    def _write(self, layer: Layer, precision: Precision, node: onnx.NodeProto, names: Names) -> tuple[str, ...]:
        slots = self._context.typed_slots(layer, precision)
        if slots is not None:
            carries = self._context.carries(layer, precision, slots)
            self._write_typed(layer, FLOAT_TYPES[precision], slots, node, carries)
            is_low = precision is self._network.low.precision
            return tuple(rounding.tensor for rounding in layer.roundings) if is_low else ()
        if precision is Precision.INT16 and (self._network.low.wide or not self._context.emulates):
            precision = Precision.INT8 if self._network.low.wide else Precision.INT8_WEIGHT
        rounded = [rounding for rounding in layer.roundings if layer.quantizable and _rounds(precision, rounding)]
        if rounded:
            return self._write_quantized(layer, rounded, node, names, wide=precision is Precision.INT16)
        if not self._write_carrying(layer, node):
            if layer.op_type in MULTIPLYING:
                self._add_zeros(node)
            self.nodes.append(node)
        return ()

    @contextmanager
    def body(self) -> Iterator[list[onnx.NodeProto]]:
        """A context that collects the nodes of an If's body, which shares no rounded tensor with the graph outside."""
        outside = self.nodes, self._rounded_names, self._typed_names, self._cast_names
        self.nodes, self._rounded_names, self._typed_names, self._cast_names = [], {}, {}, {}
        yield self.nodes
        self.nodes, self._rounded_names, self._typed_names, self._cast_names = outside

    def _write_quantized(
        self, layer: Layer, roundings: list[Rounding], node: onnx.NodeProto, names: Names, *, wide: bool
    ) -> tuple[str, ...]:
        after: list[tuple[str, str, Rounding, tuple[Quantizer, ...]]] = []
        kind, slots = self._network.base_type, self._context.base_slots.get(layer.index)
        for rounding in roundings:
            quantizers = self._context.quantizers(layer, rounding)
            slot = rounding.slot
            if rounding.at_output:
                final, raw = node.output[slot], self._new(node.output[slot], "unrounded")
                node.output[slot] = names.read[rounding.tensor] = raw
                after.append((raw, final, rounding, quantizers))
            elif wide and not rounding.is_weight:
                node.input[slot] = self._rounded_wide(node.input[slot], rounding, quantizers[0])
            else:
                kind_read = None if slots is None else kind
                node.input[slot] = self._rounded(node.input[slot], rounding, quantizers, kind_read)
        if kind is None or slots is None:
            self.nodes.append(node)
        else:
            done = {rounding.slot for rounding in roundings if not rounding.at_output}
            self._write_typed(layer, kind, [slot for slot in slots if slot not in done], node)
        for raw, final, rounding, quantizers in after:
            self._chain(raw, quantizers, final, rounding)
        return tuple(rounding.tensor for rounding in roundings)

    def _new(self, name: str, word: str) -> str:
        return f"{name}{self._context.tag}{word}"

    def _rounded(
        self, name: str, rounding: Rounding, quantizers: tuple[Quantizer, ...], kind: FloatType | None = None
    ) -> str:
        key = (name, kind, *(quantizer.key() for quantizer in quantizers))
        if key not in self._rounded_names:
            final = self._rounded_names[key] = self._numbered(name, "fp8" if quantizers[-1].in_fp8 else "int8")
            if self._context.emulates and self._network.has_constant(name):
                self._constant(final, self._context.rounded(rounding.tensor, quantizers, kind))
            else:
                if rounding.is_weight and name in self._network.on_grid:
                    name = self._constant(f"{final}_on_grid", self._network.on_grid[name])
                source = name if kind is None else self._typed(name, kind, rounding.tensor)
                self._chain(source, quantizers, final, rounding)
        return self._rounded_names[key]

    def _give_shape(self, name: str, dtype: int | None, like: str) -> None:
        # ONNX Runtime makes a session twice as fast if new tensors have shapes.
        if like in self._context.types:
            shape = renamed(self._context.types[like], name)
            if dtype is not None:
                shape.type.tensor_type.elem_type = dtype
            self._shapes.append(shape)

    def _chain(self, name: str, quantizers: tuple[Quantizer, ...], final: str, rounding: Rounding) -> None:
        like = rounding.tensor
        steps = [*(f"{final}_step{step}" for step in range(len(quantizers) - 1)), final]
        for quantizer, out in zip(quantizers, steps, strict=False):
            scale = self._scale(quantizer, rounding, out)
            parameters = [scale, self.small_constant(f"{out}_zero_point", quantizer.zero_point)]
            axis = {} if quantizer.axis is None else {"axis": quantizer.axis}
            self._add("QuantizeLinear", [name, *parameters], f"{out}_q", **axis)
            self._add("DequantizeLinear", [f"{out}_q", *parameters], out, **axis)
            if out != final or out not in self._context.types:
                self._give_shape(out, helper.np_dtype_to_tensor_dtype(quantizer.dtype), like)
            self._give_shape(f"{out}_q", helper.np_dtype_to_tensor_dtype(quantizer.zero_point.dtype), like)
            name = out

    def _rounded_wide(self, name: str, rounding: Rounding, quantizer: Quantizer) -> str:
        # In floats: ONNX has 16-bit pairs only from opset 21 on.
        key = (name, None, "int16", *quantizer.key())
        if key in self._rounded_names:
            return self._rounded_names[key]
        out = self._rounded_names[key] = self._numbered(name, "int16")
        ends = [self.small_constant(f"{out}_{level}", np.float32(level)) for level in (-(2**15), 2**15 - 1)]
        step = self.small_constant(f"{out}_scale", np.asarray(scale_in(W8A16, np.float32(np.max(quantizer.scale)))))
        self._add("Div", [name, step], f"{out}_steps")
        self._add("Round", [f"{out}_steps"], f"{out}_rounded")
        self._add("Clip", [f"{out}_rounded", *ends], f"{out}_levels")
        self._add("Mul", [f"{out}_levels", step], out)
        for tensor in (f"{out}_steps", f"{out}_rounded", f"{out}_levels", out):
            if tensor not in self._context.types:
                self._give_shape(tensor, TensorProto.FLOAT, rounding.tensor)
        return out

    def _scale(self, quantizer: Quantizer, rounding: Rounding, out: str) -> str:
        if self._scales_are_inputs and not rounding.fixed and not rounding.is_weight:
            return self.scale_inputs.setdefault(rounding.tensor, self._new(rounding.tensor, "scale"))
        return self.small_constant(f"{out}_scale", quantizer.scale.astype(quantizer.dtype))

    def _write_typed(
        self, layer: Layer, kind: FloatType, slots: Sequence[int], node: onnx.NodeProto, carries: bool = False
    ) -> None:
        # In the emulation in float32, with rounded inputs and outputs; outputs only if the layer rounds.
        original = self._network.skeleton.graph.node[layer.index]
        for slot in slots:
            node.input[slot] = self._typed(node.input[slot], kind, original.input[slot])
        if carries and self._context.emulates:
            self._add_carrying(layer, node, kind)
            return
        emulates, renamed_outputs = self._context.emulates, []
        word, dtype = ("unrounded", TensorProto.FLOAT) if emulates else ("typed", kind.onnx)
        for slot, name in enumerate(original.output):
            if name not in self._context.float_tensors:
                continue
            final, raw = node.output[slot], self._new(node.output[slot], word)
            node.output[slot] = raw
            self._give_shape(raw, dtype, name)
            renamed_outputs.append((final, raw))
        self._add_rounded_parts(node, kind)
        for final, raw in renamed_outputs:
            if emulates:
                self._round_trip(raw, kind, final)
                self._typed_names[final, kind.name] = final
            else:
                self._typed_names[final, kind.name] = raw
                self._spare.add(final)
                self._add("Cast", [raw], final, to=TensorProto.FLOAT)

    def _add_carrying(self, layer: Layer, node: onnx.NodeProto, kind: FloatType) -> None:
        for name, out in zip(self._network.skeleton.graph.node[layer.index].output, node.output, strict=True):
            if name in self._context.float_tensors:
                self._typed_names[out, kind.name] = out
        self.nodes.append(node)

    def _add_rounded_parts(self, node: onnx.NodeProto, kind: FloatType) -> None:
        # In the emulation TensorRT's layers, each rounded but the last, which the caller rounds.
        parts, constants = parts_of(node) if self._context.emulates else ([node], [])
        self._constants += constants
        for part in parts[:-1]:
            final = part.output[0]
            part.output[0] = f"{final}_unrounded"
            self.nodes.append(part)
            self._round_trip(part.output[0], kind, final)
        self.nodes.append(parts[-1])

    def _add_zeros(self, node: onnx.NodeProto) -> None:
        # To inputs that come from a Cast: TensorRT-RTX 1.7 runs a product alone in FP32 between Casts in 16 bits, and
        # does not build an LSTM there.
        for slot, name in enumerate(node.input):
            if name not in self._spare:
                continue
            key = (name, "float32")
            if key not in self._cast_names:
                final = self._cast_names[key] = self._numbered(name, "fp32")
                self._add("Add", [name, self.small_constant(f"{final}_zero", np.float32(0))], final)
            node.input[slot] = self._cast_names[key]

    def _write_carrying(self, layer: Layer, node: onnx.NodeProto) -> bool:
        # A layer that only moves data is written in its inputs' type.
        low = self._network.low
        kind, slots = low.float_type, self._context.typed_slots(layer, low.precision)
        if kind is None or slots is None or layer.quantizable or not self._context.carries(layer, low.precision, slots):
            return False
        read = [node.input[slot] for slot in slots if not self._network.has_constant(node.input[slot])]
        if not read or any((name, kind.name) not in self._typed_names for name in read):
            return False
        if self._context.emulates:
            self._add_carrying(layer, node, kind)
        else:
            self._write_typed(layer, kind, slots, node)
        return True

    def _typed(self, name: str, kind: FloatType, like: str) -> str:
        typed_name = self._typed_names.get((name, kind.name)) or self._cast_names.get((name, kind.name))
        if typed_name is not None:
            return typed_name
        emulated = self._context.emulates
        final = self._cast_names[name, kind.name] = self._numbered(name, _WORDS[kind.name])
        if self._network.has_constant(name):
            rounded = kind.rounded(self._network.constant(name))
            self._constant(final, rounded if emulated else rounded.astype(kind.dtype))
        elif emulated:
            self._round_trip(name, kind, final)
            self._give_shape(final, TensorProto.FLOAT, like)
        else:
            self._add("Cast", [name], final, to=kind.onnx)
            self._give_shape(final, kind.onnx, like)
        return final

    def _round_trip(self, name: str, kind: FloatType, final: str) -> None:
        self._add("Cast", [name], f"{final}_{kind.name}", to=kind.onnx)
        self._add("Cast", [f"{final}_{kind.name}"], final, to=TensorProto.FLOAT)

    def _numbered(self, name: str, word: str) -> str:
        again = self._times_rounded[name, word]
        self._times_rounded[name, word] += 1
        return self._new(name, f"{word}_{again}" if again else word)

    def _add(self, op: str, inputs: list[str], output: str, **attributes: int) -> None:
        node = helper.make_node(op, inputs, [output], f"{output}_{op}")
        node.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
        self.nodes.append(node)

    def small_constant(self, name: str, values: np.ndarray) -> str:
        """Adds a constant to the graph; returns its name."""
        self._constants.append(numpy_helper.from_array(values, name))
        return name

    def _constant(self, name: str, values: np.ndarray) -> str:
        self._constants.append(constant_tensor(name, values, self._large))
        return name

    def assemble(
        self, inputs: Iterable[onnx.ValueInfoProto], outputs: Iterable[onnx.ValueInfoProto]
    ) -> tuple[onnx.ModelProto, Weights]:
        """Returns the model of the nodes written so far, without its large weights, and these weights by name."""
        skeleton = self._network.skeleton
        model = onnx.ModelProto(ir_version=skeleton.ir_version, producer_name=skeleton.producer_name)
        model.opset_import.extend(skeleton.opset_import)
        model.graph.name = skeleton.graph.name or "network"
        model.graph.input.extend(inputs)
        model.graph.output.extend(outputs)
        results = [value.name for value in model.graph.output]
        if self._spare:
            read = {*(name for node in self.nodes for name in tensors_read(node)), *results}
            self.nodes = [node for node in self.nodes if not (node.output and node.output[0] in self._spare - read)]
        model.graph.node.extend(self.nodes)
        used = dict.fromkeys([*(name for node in self.nodes for name in tensors_read(node)), *results])
        constants = {tensor.name: tensor for tensor in self._constants} | self._context.initializers
        model.graph.initializer.extend(constants[name] for name in used if name in constants)
        inner = dict.fromkeys(name for node in self.nodes for name in node.output if name not in results)
        types = self._context.types
        model.graph.value_info.extend(types[name] for name in inner if name in types)
        model.graph.value_info.extend(value for value in self._shapes if value.name in inner)
        detached = {**self._network.weights, **self._large}
        return model, {name: detached[name] for name in used if name in detached}


def renamed(value: onnx.ValueInfoProto, name: str) -> onnx.ValueInfoProto:
    """Returns a copy named ``name``; under a new name without names of axes, which declare equal sizes."""
    copied = onnx.ValueInfoProto()
    copied.CopyFrom(value)
    copied.name = name
    for dim in copied.type.tensor_type.shape.dim if value.name != name else ():
        dim.ClearField("dim_param")
    return copied


def _rounds(precision: Precision, rounding: Rounding) -> bool:
    if precision in (Precision.INT8_WEIGHT, Precision.INT8_ACTIVATION):
        return rounding.is_weight == (precision is Precision.INT8_WEIGHT)
    return precision in (Precision.INT8, Precision.FP8, Precision.INT16)


def rename_reads(node: onnx.NodeProto, names: Names) -> None:
    """Renames the inputs of a node and of graphs inside it, in place."""
    if not names.read:
        return
    for slot, name in enumerate(node.input):
        node.input[slot] = names.read.get(name, name)
    for body in bodies_of(node):
        for inner in body.node:
            rename_reads(inner, names)
        for value in body.output:
            value.name = names.read.get(value.name, value.name)
