"""A precision plan written into the ONNX graph: Q/DQ pairs for INT8 layers, casts for FP16 ones.

The pairs stand on the inputs of each INT8 layer: activations per tensor, weights per output channel, biases not at all,
each tensor once for all its INT8 consumers with the same scale. A residual sum that TensorRT fuses with a convolution
has one on its skip alone (see ``model.residual``). A layer that stays high therefore reads unrounded
tensors, and an INT8 layer all of whose consumers are high has a float output: a boundary adds no rounding of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import onnx

from trt_bisect.model.file import Weights
from trt_bisect.model.layers import Layer, Rounding, TensorTypes
from trt_bisect.model.network import Network
from trt_bisect.model.pieces import Piece
from trt_bisect.model.quantizer import Quantizer, symmetric, weight_quantizer
from trt_bisect.model.writing import GraphWriting, Names, renamed
from trt_bisect.precision import PrecisionPlan

Scales = Mapping[str, np.float32]
"""The INT8 scale of each activation tensor, by name."""


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


@dataclass
class WrittenPiece(Written):
    """A piece with its weights apart.

    Attributes:
        leaves: by leaf of the piece, the graph's output that holds it; for the trunk, and for each branch.
    """

    leaves: Mapping[str, str] = field(default_factory=dict)
    branch_leaves: tuple[Mapping[str, str], ...] = ()


class PlanWriter:
    """Writes plans of one network with one set of scales; rounded weights are computed once and shared."""

    def __init__(self, network: Network, scales: Scales, target: Target) -> None:
        self.network = network
        self.folds = target is Target.ONNXRUNTIME
        self._scales = scales
        self._quantizers: dict[tuple[int, int, bool], tuple[Quantizer, ...]] = {}
        graph = network.skeleton.graph
        self.initializers = {tensor.name: tensor for tensor in graph.initializer}
        self.tag = _unused_tag(network)
        self.shapes = {value.name: value for value in (*graph.value_info, *graph.input, *graph.output)}
        dtypes = TensorTypes.of(graph).dtypes
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
        self._check(plan)
        writing, names, graph = GraphWriting(self), Names(), self.network.skeleton.graph
        pairs = self._write_layers(writing, plan, range(len(plan)), names)
        results = [value.name for value in graph.output]
        model, weights = self.assemble(writing, graph.input, graph.output, results)
        return Written(model, weights, pairs)

    def write_piece(self, piece: Piece, trunk: PrecisionPlan, branches: Sequence[PrecisionPlan] = ()) -> WrittenPiece:
        """A piece in the precisions of ``trunk``, and beside it, from the same inputs, in those of each branch.

        What a branch does as the trunk does, up to the first layer that differs, is computed once for both.

        Raises:
            ValueError: a plan is of another number of layers.
        """
        for plan in (trunk, *branches):
            self._check(plan)
        writing, names = GraphWriting(self), Names()
        partings = [self._parting(piece, trunk, plan) for plan in branches]
        copies: dict[int, Names] = {}
        pairs: dict[int, tuple[str, ...]] = {}
        for k in piece.layers:
            for place in (place for place, parting in enumerate(partings) if parting == k):
                copies[place] = Names(f"{self.tag}branch{place}", like=names)
            pairs.update(self._write_layers(writing, trunk, [k], names))
        for place, own in copies.items():
            self._write_layers(writing, branches[place], range(partings[place], piece.stop), own)
        everyone = [copies.get(place, names) for place in range(len(branches))]
        leaves = [{name: each.final.get(name, name) for name in piece.leaves} for each in (names, *everyone)]
        results = list(dict.fromkeys(final for each in leaves for final in each.values()))
        known = {final: leaf for each in leaves for leaf, final in each.items()}
        outputs = [self._value_info(known[final], final) for final in results]
        inputs = [self._value_info(name, name) for name in piece.reads]
        model, weights = self.assemble(writing, inputs, outputs, results)
        return WrittenPiece(model, weights, pairs, leaves[0], tuple(leaves[1:]))

    def _check(self, plan: PrecisionPlan) -> None:
        if len(plan) != len(self.network.layers):
            raise ValueError(f"a plan of {len(plan)} layers for a network of {len(self.network.layers)}")

    def _parting(self, piece: Piece, trunk: PrecisionPlan, plan: PrecisionPlan) -> int:
        """The first layer of a piece that two plans treat differently; the piece's end if there is none."""
        differ = (k for k in piece.layers if trunk.precisions[k] is not plan.precisions[k])
        return next(differ, piece.stop)

    def _write_layers(
        self, writing: GraphWriting, plan: PrecisionPlan, layers: Iterable[int], names: Names
    ) -> dict[int, tuple[str, ...]]:
        """Writes layers in the precisions of a plan; returns the tensors rounded for those in INT8."""
        rounded = {k: writing.layer(self.network.layers[k], plan.precisions[k], names) for k in layers}
        return {k: tensors for k, tensors in rounded.items() if tensors}

    def _value_info(self, tensor: str, name: str) -> onnx.ValueInfoProto:
        """The type and shape of a tensor, under a name."""
        return renamed(self.shapes.get(tensor, onnx.ValueInfoProto(name=tensor)), name)

    def assemble(
        self,
        writing: GraphWriting,
        inputs: Iterable[onnx.ValueInfoProto],
        outputs: Iterable[onnx.ValueInfoProto],
        results: Sequence[str],
    ) -> tuple[onnx.ModelProto, Weights]:
        """The model of what was written, and the detached weights that it uses."""
        skeleton = self.network.skeleton
        model = onnx.ModelProto(ir_version=skeleton.ir_version, producer_name=skeleton.producer_name)
        model.opset_import.extend(skeleton.opset_import)
        model.graph.name = skeleton.graph.name or "network"
        model.graph.node.extend(writing.nodes)
        model.graph.input.extend(inputs)
        model.graph.output.extend(outputs)
        constants, weights = writing.constants(results)
        model.graph.initializer.extend(constants)
        inner = dict.fromkeys(name for node in writing.nodes for name in node.output if name not in results)
        model.graph.value_info.extend(self.shapes[name] for name in inner if name in self.shapes)
        model.graph.value_info.extend(value for value in writing.shapes if value.name in inner)
        return model, weights

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
        return name in self.initializers


def _unused_tag(network: Network) -> str:
    """Two or more underscores that stand in no tensor's name before a word of ours, so that new names are new."""
    taken = [*network.producers, *(tensor.name for tensor in network.skeleton.graph.initializer)]
    taken += [spec.name for spec in network.inputs]
    tag = "__"
    while any(f"{tag}{word}" in name for name in taken for word in ("int8", "half", "fp16", "unrounded", "branch")):
        tag += "_"
    return tag


def _made(network: Network, rounding: Rounding, scales: Scales) -> Quantizer:
    if rounding.is_weight:
        return weight_quantizer(network.constant(rounding.tensor), rounding.axis)
    return symmetric(scales[rounding.tensor])
