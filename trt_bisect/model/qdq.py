"""A precision plan written into the ONNX graph: Q/DQ pairs for layers in INT8 or FP8, Casts for FP16 and BF16.

The pairs are on the inputs of each INT8 layer: activations per tensor, weights per output channel, biases not at all. A
tensor is rounded once for all its INT8 readers; of a residual sum that TensorRT fuses with a convolution, only the skip
input.

A *switch* is one graph for all plans and scales: an If for each quantizable layer holds the layer in every precision.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper

from trt_bisect.model.file import Written
from trt_bisect.model.layers import Layer
from trt_bisect.model.network import Network
from trt_bisect.model.pieces import Piece
from trt_bisect.model.writing import GraphTarget as GraphTarget, GraphWriting, Names, WritingContext
from trt_bisect.precision import Precision, PrecisionPlan


class PlanWriter(WritingContext):
    """Writes a network's plans as ONNX graphs with one set of scales."""

    def write(self, plan: PrecisionPlan, piece: Piece | None = None) -> Written:
        """Writes a piece (None: the network) in the precisions of ``plan``, a plan of the whole network.

        Raises ValueError for a plan with another number of layers.
        """
        layers = self.network.layers
        if len(plan) != len(layers):
            raise ValueError(f"a plan of {len(plan)} layers for a network of {len(layers)}")
        writing, names, followed = GraphWriting(self), Names(), self.followed(plan.lowered)
        pairs = {}
        for k in range(len(layers)) if piece is None else piece.layers:
            rounded = writing.layer(layers[k], plan.precisions[k], names, followed)
            if rounded:
                pairs[k] = rounded
        model, weights = writing.assemble(*self.ends(piece))
        return Written(model, weights, pairs)

    def ends(self, piece: Piece | None) -> list[list[onnx.ValueInfoProto]]:
        """Returns the inputs and the outputs of a piece (None: the network), with known types and shapes."""
        graph = self.network.skeleton.graph
        if piece is None:
            return [[*graph.input], [*graph.output]]
        ends = piece.reads, piece.leaves
        return [[self.types.get(name, onnx.ValueInfoProto(name=name)) for name in names] for names in ends]


@dataclass
class WrittenSwitch(Written):
    """A graph for all plans: an input of booleans, the gates, selects each layer's precision.

    Attributes:
        gates: for each gate, the layer's index and the precision that a true value gives it. A layer without a true
            gate has the last of its precisions.
        followed: the tensors that some plans round where they are made; the input has a gate for each after those in
            ``gates``.
        scales: the rounded activations, in the order of the input of scales (float32).
        gates_input, scales_input: the names of both inputs; empty if the graph has none.
    """

    gates: Sequence[tuple[int, Precision]] = ()
    followed: Sequence[str] = ()
    scales: Sequence[str] = ()
    gates_input: str = ""
    scales_input: str = ""


Choices = Sequence[tuple[Precision, ...]]
"""The precisions that plans can give to each layer."""


def choices_of(network: Network, high: Precision, more: Iterable[Precision] = ()) -> Choices:
    """Returns for each layer the precisions that the plans of a search may give it, the base last.

    A quantizable layer is in the low precision, one of ``more``, ``high`` or the base; a fixed layer has one precision.
    """
    base, choices = network.base or high, list[tuple[Precision, ...]]()
    for layer in network.layers:
        # INT16 is no choice: its scale is no input of the graph.
        if layer.fixed not in (None, Precision.INT16):
            choices.append((layer.fixed,))
        elif layer.quantizable:
            choices.append(tuple(dict.fromkeys((network.low.precision, *more, high, base))))
        else:
            choices.append((base,))
    return choices


def write_switch(writer: PlanWriter, choices: Choices, piece: Piece | None) -> WrittenSwitch:
    """Writes one graph that runs every plan: it has each layer in all its ``choices``, and inputs that select one.

    Args:
        piece: the layers to write; None: all. No tensor that leaves the piece may be read both rounded and unrounded.
    """
    # All gates are one input, and all scales another: ONNX Runtime's check of input names is quadratic in their number.
    writing, names, tag = GraphWriting(writer, scales_are_inputs=True), Names(), writer.tag
    layers = writer.network.layers if piece is None else writer.network.layers[piece.start : piece.stop]
    gates: dict[tuple[int, Precision], str] = {}
    may_follow, followed = writer.followed(writer.network.quantizable), dict[str, str]()
    for layer in layers:
        *gated, last = choices[layer.index]
        if gated:
            of_layer = {precision: f"gate{tag}switch{layer.index}{number}" for number, precision in enumerate(gated)}
            writing.nodes.append(_choice(writing, layer, of_layer, last, names, tag))
            gates.update({(layer.index, precision): gate for precision, gate in of_layer.items()})
        else:
            writing.layer(layer, last, names)
        for tensor in (tensor for tensor in layer.outputs if tensor in may_follow):
            followed[tensor] = f"gate{tag}held{len(followed)}"
            writing.nodes.append(_held(writing, layer, tensor, names, followed[tensor], tag))
    inputs, outputs = writer.ends(piece)
    of_gates, of_scales = [*gates.values(), *followed.values()], list(writing.scale_inputs.values())
    gates_input = _split(writing, inputs, of_gates, TensorProto.BOOL, f"gates{tag}switch")
    scales_input = _split(writing, inputs, of_scales, TensorProto.FLOAT, f"scales{tag}switch")
    model, weights = writing.assemble(inputs, outputs)
    order = list(gates), list(followed), list(writing.scale_inputs)
    return WrittenSwitch(model, weights, {}, *order, gates_input, scales_input)


def _split(
    writing: GraphWriting, inputs: list[onnx.ValueInfoProto], parts: Sequence[str], dtype: int, name: str
) -> str:
    if not parts:
        return ""
    inputs.append(helper.make_tensor_value_info(name, dtype, [len(parts)]))
    sizes = writing.small_constant(f"{name}sizes", np.ones(len(parts), np.int64))
    writing.nodes.insert(0, helper.make_node("Split", [name, sizes], parts, name=name, axis=0))
    return name


def _choice(
    writing: GraphWriting, layer: Layer, gates: Mapping[Precision, str], last: Precision, names: Names, tag: str
) -> onnx.NodeProto:
    # Several gates are nested Ifs. A tensor rounded only as an output of the network has two outputs: both versions.
    rounded = {rounding.tensor for rounding in layer.roundings if rounding.at_output}
    otherwise = _body(writing, layer, last, names, f"{tag}switch{layer.index}e", rounded)
    for number, (precision, gate) in reversed([*enumerate(gates.items())]):
        then = _body(writing, layer, precision, names, f"{tag}switch{layer.index}t{number}", rounded)
        inner = [f"{output.name}{tag}inner{number}" for output in then.output]
        name = f"{layer.name}{tag}switch{number}"
        node = helper.make_node("If", [gate], inner, name=name, then_branch=then, else_branch=otherwise)
        outputs = [onnx.ValueInfoProto(name=output) for output in inner]
        otherwise = onnx.GraphProto(name=f"otherwise{number}", node=[node], output=outputs)
    outside = []
    for tensor in layer.outputs:
        outside.append(tensor)
        if tensor in rounded:
            names.read[tensor] = f"{tensor}{tag}switch"
            outside.append(names.read[tensor])
    del node.output[:]
    node.output.extend(outside)
    return node


def _body(
    writing: GraphWriting, layer: Layer, precision: Precision, names: Names, suffix: str, rounded: Collection[str]
) -> onnx.GraphProto:
    inside, results = names.copy(suffix), list[str]()
    with writing.body() as nodes:
        writing.layer(layer, precision, inside)
    for tensor in layer.outputs:
        results.append(inside.final[tensor])
        if tensor in rounded:
            results.append(f"{inside.final[tensor]}_read")
            nodes.append(helper.make_node("Identity", [inside.read[tensor]], [results[-1]]))
    outputs = [onnx.ValueInfoProto(name=result) for result in results]
    return onnx.GraphProto(name=f"{precision}{suffix}", node=nodes, output=outputs)


def _held(writing: GraphWriting, layer: Layer, tensor: str, names: Names, gate: str, tag: str) -> onnx.NodeProto:
    name, outside, unrounded = names.read.get(tensor, tensor), f"{tensor}{tag}heldswitch", f"{tensor}{tag}heldleft"
    with writing.body() as nodes:
        rounded = writing.rounded_where_made(layer, tensor, name)
    then = onnx.GraphProto(name="then", node=nodes, output=[onnx.ValueInfoProto(name=rounded)])
    identity, output = helper.make_node("Identity", [name], [unrounded]), onnx.ValueInfoProto(name=unrounded)
    otherwise = onnx.GraphProto(name="else", node=[identity], output=[output])
    names.read[tensor] = outside
    return helper.make_node("If", [gate], [outside], name=outside, then_branch=then, else_branch=otherwise)
