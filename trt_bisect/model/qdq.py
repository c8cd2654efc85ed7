"""A precision plan written into the ONNX graph: Q/DQ pairs for layers in INT8 or FP8, Casts for FP16 and BF16 ones.

The pairs are on the inputs of each INT8 layer: activations per tensor, weights per output channel, biases not at all,
each tensor once for all its INT8 consumers with the same scale. A residual sum that TensorRT fuses with a convolution
has one on its skip input only (see ``model.layers``). A layer that stays high therefore reads unrounded tensors, and
an INT8 layer whose consumers are all high has a float output: a boundary adds no rounding of its own. On request
tensors that layers which only follow make or read are rounded too (see ``model.layers``).

A switch is one graph that runs any plan with any scales. An If for each quantizable layer holds the layer in low and in
high precision. The conditions of all Ifs are one input of the graph, and the scales of all activations another: the
time in which ONNX Runtime checks the names of inputs grows with the square of their number. With 2,000 layers it was 82
of the 144 ms of an inference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np
import onnx
from onnx import TensorProto, helper

from trt_bisect.model.file import Written
from trt_bisect.model.layers import Layer, Rounding, TensorFacts
from trt_bisect.model.network import Network, spec_of
from trt_bisect.model.pieces import Piece
from trt_bisect.model.quantizer import Quantizer, Scales
from trt_bisect.model.writing import GraphWriting, Names, WritingContext, renamed
from trt_bisect.precision import Precision, PrecisionPlan


class GraphTarget(Enum):
    """The engine that a graph is written for.

    ``ONNXRUNTIME``: weights are rounded in advance, and layers in FP16 or BF16 compute in float32 between roundings to
    that type, so that the arithmetic is the same on every CPU. ``TENSORRT``: weights keep their pairs, and such layers
    have the type.
    """

    ONNXRUNTIME = "onnxruntime"
    TENSORRT = "tensorrt"


@dataclass
class WrittenPiece(Written):
    """The graph of a piece; ``leaves`` has for the trunk the output of each leaf, ``branch_leaves`` for each branch."""

    leaves: Mapping[str, str] = field(default_factory=dict)
    branch_leaves: tuple[Mapping[str, str], ...] = ()


class PlanWriter:
    """Writes plans of one network with one set of scales. All its graphs share the rounded weights."""

    def __init__(
        self,
        network: Network,
        scales: Scales,
        target: GraphTarget,
        *,
        followers_round: bool = False,
        held: frozenset[str] | None = None,
    ) -> None:
        self.network = network
        emulates = target is GraphTarget.ONNXRUNTIME
        self.context = WritingContext(network, scales, emulates=emulates, followers_round=followers_round, held=held)

    def quantizers(self, layer: Layer, rounding: Rounding) -> tuple[Quantizer, ...]:
        """The quantizers of one rounding, first applied first; raises KeyError if the scales lack the tensor."""
        return self.context.quantizers(layer, rounding)

    def write(self, plan: PrecisionPlan) -> Written:
        """Writes the network in the precisions of ``plan``; raises ValueError if that has another number of layers."""
        self._check(plan)
        writing, graph = GraphWriting(self.context), self.network.skeleton.graph
        pairs = self._write_layers(writing, plan, range(len(plan)), Names())
        model, weights = writing.assemble(graph.input, graph.output)
        return Written(model, weights, pairs)

    def write_piece(self, piece: Piece, trunk: PrecisionPlan, branches: Sequence[PrecisionPlan] = ()) -> WrittenPiece:
        """Writes one graph with a piece in the precisions of ``trunk`` and, from the same inputs, of each branch.

        A branch reads the trunk's tensors up to its first layer whose precision differs. From there on it has layers
        of its own. Raises ValueError if a plan has another number of layers.
        """
        for plan in (trunk, *branches):
            self._check(plan)
        writing, trunk_names = GraphWriting(self.context), Names()
        starts = [
            next((k for k in piece.layers if trunk.precisions[k] is not plan.precisions[k]), piece.stop)
            for plan in branches
        ]
        branch_names: dict[int, Names] = {}
        pairs: dict[int, tuple[str, ...]] = {}
        for k in piece.layers:
            for branch in (branch for branch, start in enumerate(starts) if start == k):
                branch_names[branch] = trunk_names.copy(f"{self.context.tag}branch{branch}")
            pairs.update(self._write_layers(writing, trunk, [k], trunk_names))
        for branch, names in branch_names.items():
            self._write_layers(writing, branches[branch], range(starts[branch], piece.stop), names)
        copies = [trunk_names, *(branch_names.get(branch, trunk_names) for branch in range(len(branches)))]
        leaves = [{leaf: names.final.get(leaf, leaf) for leaf in piece.leaves} for names in copies]
        leaf_of = {output: leaf for outputs in leaves for leaf, output in outputs.items()}
        inputs = [self.value_info(name, name) for name in piece.reads]
        infos = [self.value_info(leaf, output) for output, leaf in leaf_of.items()]
        model, weights = writing.assemble(inputs, infos)
        return WrittenPiece(model, weights, pairs, leaves[0], tuple(leaves[1:]))

    def _check(self, plan: PrecisionPlan) -> None:
        if len(plan) != len(self.network.layers):
            raise ValueError(f"a plan of {len(plan)} layers for a network of {len(self.network.layers)}")

    def _write_layers(
        self, writing: GraphWriting, plan: PrecisionPlan, layers: Iterable[int], names: Names
    ) -> dict[int, tuple[str, ...]]:
        """Writes layers in the precisions of a plan; returns the tensors rounded for those that are low."""
        followed = self.context.followed(plan.lowered)
        rounded = {k: writing.layer(self.network.layers[k], plan.precisions[k], names, followed) for k in layers}
        return {k: tensors for k, tensors in rounded.items() if tensors}

    def value_info(self, tensor: str, name: str | None = None) -> onnx.ValueInfoProto:
        """Returns the type and shape of a tensor, under another name if it is given; without either where not known."""
        return renamed(self.context.types.get(tensor, onnx.ValueInfoProto(name=tensor)), name or tensor)


def sub_network(network: Network, piece: Piece, facts: TensorFacts) -> Network:
    """Returns the layers of a piece as a network. Names are kept, weights are shared, layers are numbered from 0.

    The piece's ``reads`` become the inputs, with the shapes of ``facts`` if the network gives none, its ``leaves`` the
    outputs.
    """
    writer = PlanWriter(network, {}, GraphTarget.ONNXRUNTIME)
    written = writer.write_piece(piece, network.free_plan())
    for value in written.model.graph.input:
        if not value.type.tensor_type.HasField("shape"):
            dtype = helper.np_dtype_to_tensor_dtype(facts.dtypes[value.name])
            value.CopyFrom(helper.make_tensor_value_info(value.name, dtype, facts.shapes[value.name]))
    return Network(
        source=network.source,
        skeleton=written.model,
        weights=written.weights,
        layers=tuple(replace(network.layers[k], index=k - piece.start) for k in piece.layers),
        inputs=tuple(spec_of(value) for value in written.model.graph.input),
        outputs=tuple(spec_of(value) for value in written.model.graph.output),
        has_pairs=network.has_pairs,
        low=network.low,
        on_grid=network.on_grid,
    )


def sub_plan(plan: PrecisionPlan, piece: Piece) -> PrecisionPlan:
    """Returns the part of a plan of the whole network that applies to a piece."""
    return PrecisionPlan(plan.precisions[piece.start : piece.stop], plan.low)


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

    No leaf of ``piece`` has two versions (see ``model.pieces``); None for all layers.
    """
    writing, names, tag = GraphWriting(writer.context, scales_are_inputs=True), Names(), writer.context.tag
    graph = writer.network.skeleton.graph
    layers = writer.network.layers if piece is None else writer.network.layers[piece.start : piece.stop]
    gates: dict[int, str] = {}
    may_follow, followed = writer.context.followed(writer.network.quantizable), dict[str, str]()
    for layer in layers:
        if layer.quantizable:
            gates[layer.index] = f"gate{tag}switch{layer.index}"
            precisions = writer.network.low.precision, high
            writing.nodes.append(_choice(writing, layer, precisions, names, gates[layer.index], tag))
        else:
            writing.layer(layer, writer.network.base or high, names)
        for tensor in (tensor for tensor in layer.outputs if tensor in may_follow):
            followed[tensor] = f"gate{tag}held{len(followed)}"
            writing.nodes.append(_held(writing, layer, tensor, names, followed[tensor], tag))
    inputs = [*graph.input] if piece is None else [writer.value_info(name) for name in piece.reads]
    outputs = [*graph.output] if piece is None else [writer.value_info(name) for name in piece.leaves]
    of_gates, of_scales = [*gates.values(), *followed.values()], list(writing.scale_inputs.values())
    gates_input = _split(writing, inputs, of_gates, TensorProto.BOOL, f"gates{tag}switch")
    scales_input = _split(writing, inputs, of_scales, TensorProto.FLOAT, f"scales{tag}switch")
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
    sizes = writing.small_constant(f"{name}sizes", np.ones(len(parts), np.int64))
    writing.nodes.insert(0, helper.make_node("Split", [name, sizes], parts, name=name, axis=0))
    return name


def _choice(
    writing: GraphWriting, layer: Layer, precisions: tuple[Precision, Precision], names: Names, gate: str, tag: str
) -> onnx.NodeProto:
    """The If of one layer, in its low precision or in the high one.

    A tensor that is rounded only as an output of the network has two outputs: both versions.
    """
    rounded = {rounding.tensor for rounding in layer.roundings if rounding.at_output}
    bodies = []
    for name, precision in zip(("then_branch", "else_branch"), precisions, strict=True):
        inside = names.copy(f"{tag}switch{layer.index}{name[0]}")
        with writing.body() as nodes:
            writing.layer(layer, precision, inside)
        results = []
        for tensor in layer.outputs:
            results.append(inside.final[tensor])
            if tensor in rounded:
                results.append(f"{inside.final[tensor]}_read")
                nodes.append(helper.make_node("Identity", [inside.read[tensor]], [results[-1]]))
        outputs = [onnx.ValueInfoProto(name=result) for result in results]
        bodies.append(onnx.GraphProto(name=name, node=nodes, output=outputs))
    outside = []
    for tensor in layer.outputs:
        outside.append(tensor)
        if tensor in rounded:
            names.read[tensor] = f"{tensor}{tag}switch"
            outside.append(names.read[tensor])
    name = f"{layer.name}{tag}switch"
    return helper.make_node("If", [gate], outside, name=name, then_branch=bodies[0], else_branch=bodies[1])


def _held(writing: GraphWriting, layer: Layer, tensor: str, names: Names, gate: str, tag: str) -> onnx.NodeProto:
    """The If that rounds a tensor where it is made, or leaves it; layers read its output from there on."""
    name, outside, unrounded = names.read.get(tensor, tensor), f"{tensor}{tag}heldswitch", f"{tensor}{tag}heldleft"
    with writing.body() as nodes:
        rounded = writing.rounded_where_made(layer, tensor, name)
    then = onnx.GraphProto(name="then", node=nodes, output=[onnx.ValueInfoProto(name=rounded)])
    identity, output = helper.make_node("Identity", [name], [unrounded]), onnx.ValueInfoProto(name=unrounded)
    otherwise = onnx.GraphProto(name="else", node=[identity], output=[output])
    names.read[tensor] = outside
    return helper.make_node("If", [gate], [outside], name=outside, then_branch=then, else_branch=otherwise)
