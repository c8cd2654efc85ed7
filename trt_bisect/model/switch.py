"""One graph that runs any plan with any scales.

An If for each quantizable layer holds the layer in low and in high precision. Scales of activations are inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx
from onnx import TensorProto, helper

from trt_bisect.model.layers import Layer
from trt_bisect.model.qdq import PlanWriter, Written
from trt_bisect.model.writing import GraphWriting, Names
from trt_bisect.precision import Precision


@dataclass
class WrittenSwitch(Written):
    """A graph for all plans.

    Attributes:
        gates: by index of a quantizable layer, the graph's input, a bool scalar, that is true for the low precision.
        scales: by rounded activation, the graph's input with its scale, a float32 scalar.
        followed: by tensor that is rounded where it is made, in some plans, the graph's input, a bool scalar, that is
            true for that.
    """

    gates: Mapping[int, str] = field(default_factory=dict)
    scales: Mapping[str, str] = field(default_factory=dict)
    followed: Mapping[str, str] = field(default_factory=dict)


def write_switch(writer: PlanWriter, high: Precision) -> WrittenSwitch:
    """Writes the network of ``writer`` with both precisions of every quantizable layer, and the others in its base."""
    writing, names = GraphWriting(writer.context, scales_are_inputs=True), Names()
    graph = writer.network.skeleton.graph
    gates: dict[int, str] = {}
    may_follow, followed = writer.followed(writer.network.quantizable), dict[str, str]()
    for layer in writer.network.layers:
        if layer.quantizable:
            gates[layer.index] = f"gate{writer.tag}switch{layer.index}"
            precisions = writer.network.low.precision, high
            writing.nodes.append(_choice(writing, layer, precisions, names, gates[layer.index], writer.tag))
        else:
            writing.layer(layer, writer.network.base or high, names)
        for tensor in (tensor for tensor in layer.outputs if tensor in may_follow):
            followed[tensor] = f"gate{writer.tag}held{len(followed)}"
            writing.nodes.append(_held(writing, layer, tensor, names, followed[tensor], writer.tag))
    inputs = [
        *graph.input,
        *(helper.make_tensor_value_info(gate, TensorProto.BOOL, []) for gate in (*gates.values(), *followed.values())),
        *(helper.make_tensor_value_info(scale, TensorProto.FLOAT, []) for scale in writing.scale_inputs.values()),
    ]
    model, weights = writing.assemble(inputs, graph.output)
    return WrittenSwitch(model, weights, {}, gates, dict(writing.scale_inputs), followed)


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
