"""A precision plan written into the ONNX graph: Q/DQ pairs for layers in INT8 or FP8, Casts for FP16 and BF16 ones.

The pairs are on the inputs of each INT8 layer: activations per tensor, weights per output channel, biases not at all,
each tensor once for all its INT8 consumers with the same scale. A residual sum that TensorRT fuses with a convolution
has one on its skip input only (see ``model.residual``). A layer that stays high therefore reads unrounded tensors, and
an INT8 layer whose consumers are all high has a float output: a boundary adds no rounding of its own. On request
tensors that layers which only follow make or read are rounded too (see ``model.followers``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

import onnx

from trt_bisect.model.file import Weights
from trt_bisect.model.layers import Layer, Rounding
from trt_bisect.model.network import Network
from trt_bisect.model.pieces import Piece
from trt_bisect.model.quantizer import Quantizer, Scales
from trt_bisect.model.writing import GraphWriting, Names, renamed
from trt_bisect.model.writing_context import WritingContext
from trt_bisect.precision import PrecisionPlan


class GraphTarget(Enum):
    """The engine that a graph is written for.

    ``ONNXRUNTIME``: weights are rounded in advance, and layers in FP16 or BF16 compute in float32 between roundings to
    that type, so that the arithmetic is the same on every CPU. ``TENSORRT``: weights keep their pairs, and such layers
    have the type.
    """

    ONNXRUNTIME = "onnxruntime"
    TENSORRT = "tensorrt"


@dataclass
class Written:
    """A graph without its weights, and the weights.

    Attributes:
        weights: those of the network that the graph uses, and the rounded ones.
        pairs: by layer index, the tensors that are rounded for the layer.
    """

    model: onnx.ModelProto
    weights: Weights
    pairs: dict[int, tuple[str, ...]] = field(default_factory=dict)


@dataclass
class WrittenPiece(Written):
    """The graph of a piece without its weights, and the weights.

    Attributes:
        leaves: for the trunk, the graph's output that holds each leaf of the piece.
        branch_leaves: the same for each branch.
    """

    leaves: Mapping[str, str] = field(default_factory=dict)
    branch_leaves: tuple[Mapping[str, str], ...] = ()


class PlanWriter:
    """Writes plans of one network with one set of scales. All its graphs share the rounded weights.

    Attributes:
        network: the network.
        context: the facts that its graphs share.
    """

    def __init__(self, network: Network, scales: Scales, target: GraphTarget, *, followers_round: bool = False) -> None:
        self.network = network
        emulates = target is GraphTarget.ONNXRUNTIME
        self.context = WritingContext.of(network, scales, emulates=emulates, followers_round=followers_round)

    @property
    def tag(self) -> str:
        """The underscores that make the names of new tensors new."""
        return self.context.tag

    def quantizers(self, layer: Layer, rounding: Rounding) -> tuple[Quantizer, ...]:
        """The quantizers of one rounding, first applied first.

        Raises:
            KeyError: the scales lack the rounded tensor.
        """
        return self.context.roundings.quantizers(layer, rounding)

    def is_constant(self, name: str) -> bool:
        """Returns true if a tensor is a constant of the network."""
        return self.context.is_constant(name)

    def followed(self, int8: Collection[int]) -> frozenset[str]:
        """Returns the tensors that are rounded where they are made, with the layers ``int8`` in INT8."""
        return self.context.followed(int8)

    def write(self, plan: PrecisionPlan) -> Written:
        """Writes the network in the precisions of ``plan``.

        Raises:
            ValueError: the plan has another number of layers.
        """
        self._check(plan)
        writing, graph = GraphWriting(self.context), self.network.skeleton.graph
        pairs = self._write_layers(writing, plan, range(len(plan)), Names())
        model, weights = writing.assemble(graph.input, graph.output)
        return Written(model, weights, pairs)

    def write_piece(self, piece: Piece, trunk: PrecisionPlan, branches: Sequence[PrecisionPlan] = ()) -> WrittenPiece:
        """Writes one graph with a piece in the precisions of ``trunk`` and, from the same inputs, of each branch.

        A branch reads the trunk's tensors up to its first layer whose precision differs. From there on it has layers
        of its own.

        Raises:
            ValueError: a plan has another number of layers.
        """
        for plan in (trunk, *branches):
            self._check(plan)
        writing, trunk_names = GraphWriting(self.context), Names()
        starts = [_first_difference(piece, trunk, plan) for plan in branches]
        own_names: dict[int, Names] = {}
        pairs: dict[int, tuple[str, ...]] = {}
        for k in piece.layers:
            for branch in (branch for branch, start in enumerate(starts) if start == k):
                own_names[branch] = trunk_names.copy(f"{self.tag}branch{branch}")
            pairs.update(self._write_layers(writing, trunk, [k], trunk_names))
        for branch, names in own_names.items():
            self._write_layers(writing, branches[branch], range(starts[branch], piece.stop), names)
        branch_names = [own_names.get(branch, trunk_names) for branch in range(len(branches))]
        return self._written_piece(writing, piece, pairs, [trunk_names, *branch_names])

    def _written_piece(
        self, writing: GraphWriting, piece: Piece, pairs: dict[int, tuple[str, ...]], copies: Sequence[Names]
    ) -> WrittenPiece:
        """The graph of a piece whose nodes are written; ``copies`` are the names of the trunk, then of each branch."""
        leaves = [{leaf: names.final.get(leaf, leaf) for leaf in piece.leaves} for names in copies]
        leaf_of = {output: leaf for each in leaves for leaf, output in each.items()}
        inputs = [self.value_info(name, name) for name in piece.reads]
        outputs = [self.value_info(leaf, output) for output, leaf in leaf_of.items()]
        model, weights = writing.assemble(inputs, outputs)
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


def _first_difference(piece: Piece, trunk: PrecisionPlan, plan: PrecisionPlan) -> int:
    """The first layer of a piece whose precision differs between two plans; the piece's end if there is none."""
    differ = (k for k in piece.layers if trunk.precisions[k] is not plan.precisions[k])
    return next(differ, piece.stop)
