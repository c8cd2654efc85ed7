"""One graph that runs any plan with any scales.

An If for each quantizable layer holds the layer in low and in high precision. The conditions of all Ifs are one input
of the graph, and the scales of all activations another: the time in which ONNX Runtime checks the names of inputs grows
with the square of their number. With 2,000 layers it was 82 of the 144 ms of an inference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper

from trt_bisect.model.layers import Layer
from trt_bisect.model.pieces import Piece
from trt_bisect.model.qdq import PlanWriter, Written
from trt_bisect.model.writing import GraphWriting, Names
from trt_bisect.precision import Precision


@dataclass
class WrittenSwitch(Written):
    """A graph for all plans.

    Attributes:
        gates: the indices of the quantizable layers. The input ``gates_input``, bool ``[gates + followed]``, is true
            for those in the low precision.
        followed: the tensors that are rounded where they are made, in some plans. After the layers, ``gates_input`` is
            true for those that are rounded there.
        scales: the rounded activations; the input ``scales_input``, float32 ``[scales]``, has their scales.
        gates_input: its name; empty if there are no gates.
        scales_input: its name; empty if there are no scales.
    """

    gates: Sequence[int] = ()
    followed: Sequence[str] = ()
    scales: Sequence[str] = ()
    gates_input: str = ""
    scales_input: str = ""


def write_switch(writer: PlanWriter, high: Precision, piece: Piece | None = None) -> WrittenSwitch:
    """Writes the network of ``writer`` with both precisions of every quantizable layer, and the others in its base.

    Args:
        writer: writes the network.
        high: the high precision.
        piece: the layers to write, none of whose leaves has two versions (see ``model.pieces``); None for all.
    """
    writing, names = GraphWriting(writer.context, scales_are_inputs=True), Names()
    graph = writer.network.skeleton.graph
    layers = writer.network.layers if piece is None else writer.network.layers[piece.start : piece.stop]
    gates: dict[int, str] = {}
    may_follow, followed = writer.followed(writer.network.quantizable), dict[str, str]()
    for layer in layers:
        if layer.quantizable:
            gates[layer.index] = f"gate{writer.tag}switch{layer.index}"
            precisions = writer.network.low.precision, high
            writing.nodes.append(_choice(writing, layer, precisions, names, gates[layer.index], writer.tag))
        else:
            writing.layer(layer, writer.network.base or high, names)
        for tensor in (tensor for tensor in layer.outputs if tensor in may_follow):
            followed[tensor] = f"gate{writer.tag}held{len(followed)}"
            writing.nodes.append(_held(writing, layer, tensor, names, followed[tensor], writer.tag))
    inputs = [*graph.input] if piece is None else [writer.value_info(name) for name in piece.reads]
    outputs = [*graph.output] if piece is None else [writer.value_info(name) for name in piece.leaves]
    of_gates, of_scales = [*gates.values(), *followed.values()], list(writing.scale_inputs.values())
    gates_input = _split(writing, inputs, of_gates, TensorProto.BOOL, f"gates{writer.tag}switch")
    scales_input = _split(writing, inputs, of_scales, TensorProto.FLOAT, f"scales{writer.tag}switch")
    model, weights = writing.assemble(inputs, outputs)
    order = list(gates), list(followed), list(writing.scale_inputs)
    return WrittenSwitch(model, weights, {}, *order, gates_input, scales_input)


def _split(
    writing: GraphWriting, inputs: list[onnx.ValueInfoProto], parts: Sequence[str], dtype: int, name: str
) -> str:
    """Adds an input of the graph whose elements become tensors with one element each; returns its name, if any."""
    if not parts:
        return ""
    inputs.append(helper.make_tensor_value_info(name, dtype, [len(parts)]))
    node = helper.make_node(
        "Split", [name, writing.small_constant(f"{name}sizes", np.ones(len(parts), np.int64))], parts, name=name, axis=0
    )
    writing.nodes.insert(0, node)
    return name


def _choice(
    writing: GraphWriting, layer: Layer, precisions: tuple[Precision, Precision], names: Names, gate: str, tag: str
) -> onnx.NodeProto:
    """The If of one layer, in its low precision or in the high one.

    A tensor that is rounded only as an output of the network has two outputs: both versions.
    """
    rounded = {rounding.tensor for rounding in layer.roundings if rounding.at_output}
    bodies = {}
    for name, precision in zip(("then_branch", "else_branch"), precisions, strict=True):
        inside = names.copy(f"{tag}switch{layer.index}{name[0]}")
        nodes = writing.body(layer, precision, inside)
        results = []
        for tensor in layer.outputs:
            results.append(inside.final[tensor])
            if tensor in rounded:
                results.append(f"{inside.final[tensor]}_read")
                nodes.append(helper.make_node("Identity", [inside.read[tensor]], [results[-1]]))
        outputs = [onnx.ValueInfoProto(name=result) for result in results]
        bodies[name] = onnx.GraphProto(name=name, node=nodes, output=outputs)
    outside = []
    for tensor in layer.outputs:
        outside.append(tensor)
        if tensor in rounded:
            names.read[tensor] = f"{tensor}{tag}switch"
            outside.append(names.read[tensor])
    node = helper.make_node("If", [gate], outside, name=f"{layer.name}{tag}switch")
    node.attribute.extend(helper.make_attribute(name, body) for name, body in bodies.items())
    return node


def _held(writing: GraphWriting, layer: Layer, tensor: str, names: Names, gate: str, tag: str) -> onnx.NodeProto:
    """The If that rounds a tensor where it is made, or leaves it; layers read its output from there on."""
    name, outside, left = names.read.get(tensor, tensor), f"{tensor}{tag}heldswitch", f"{tensor}{tag}heldleft"
    around, writing.nodes = writing.nodes, []
    rounded = writing.rounded_where_made(layer, tensor, name)
    nodes, writing.nodes = writing.nodes, around
    bodies = {
        "then_branch": onnx.GraphProto(name="then", node=nodes, output=[onnx.ValueInfoProto(name=rounded)]),
        "else_branch": onnx.GraphProto(
            name="else", node=[helper.make_node("Identity", [name], [left])], output=[onnx.ValueInfoProto(name=left)]
        ),
    }
    node = helper.make_node("If", [gate], [outside], name=outside)
    node.attribute.extend(helper.make_attribute(key, body) for key, body in bodies.items())
    names.read[tensor] = outside
    return node
