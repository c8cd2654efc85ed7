"""Boundaries and pieces: the network cut into groups of consecutive layers that are built and run one by one."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from trt_bisect.model.layers import Layer, TensorFacts
from trt_bisect.model.network import Network

PIECE_LAYERS = 4
"""The desired number of quantizable layers in a piece: with fewer, more sessions; with more, more layers run twice."""


@dataclass(frozen=True)
class Piece:
    """Layers ``start`` to ``stop - 1``.

    Attributes:
        reads: its inputs: tensors of earlier layers, or inputs of the network.
        makes: the tensors that its layers compute.
        leaves: its outputs: those of them that later layers read or that are outputs of the network.
    """

    start: int
    stop: int
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    leaves: tuple[str, ...]

    @property
    def layers(self) -> range:
        """The indices of its layers."""
        return range(self.start, self.stop)


@dataclass(frozen=True)
class Boundaries:
    """The layers between which each tensor is live.

    Attributes:
        made: by tensor, the layer that computes it; -1 for the network's inputs.
        last_read: by tensor, the last layer that reads it; the number of layers for an output of the network.
    """

    layers: tuple[Layer, ...]
    made: Mapping[str, int]
    last_read: Mapping[str, int]

    @classmethod
    def of(cls, network: Network) -> Boundaries:
        """Computes the boundaries of a network."""
        made = {spec.name: -1 for spec in network.inputs}
        last_read: dict[str, int] = {}
        for layer in network.layers:
            made.update(dict.fromkeys(layer.outputs, layer.index))
            last_read.update(dict.fromkeys(layer.inputs, layer.index))
        last_read.update({spec.name: len(network.layers) for spec in network.outputs})
        return cls(network.layers, made, last_read)

    @cached_property
    def live(self) -> tuple[tuple[str, ...], ...]:
        """For every layer k the tensors computed up to layer k and read after it, in the order of their computation."""
        by_layer: list[tuple[str, ...]] = []
        alive: list[str] = []
        for layer in self.layers:
            alive = [name for name in (*alive, *layer.outputs) if self.last_read.get(name, -1) > layer.index]
            by_layer.append(tuple(alive))
        return tuple(by_layer)

    def most_bytes(self, facts: TensorFacts) -> int:
        """Returns the bytes of the tensors that are alive together at most in one inference: live and just read."""
        return max(
            (
                sum(map(facts.size, {*self.live[layer.index], *layer.inputs, *layer.outputs} & self.made.keys()))
                for layer in self.layers
            ),
            default=0,
        )

    def piece(self, start: int, stop: int) -> Piece:
        """The piece of layers ``start`` to ``stop - 1``."""
        inside = self.layers[start:stop]
        reads = dict.fromkeys(name for layer in inside for name in layer.inputs if self.made.get(name, stop) < start)
        makes = tuple(name for layer in inside for name in layer.outputs)
        leaves = tuple(name for name in makes if self.last_read.get(name, -1) >= stop)
        return Piece(start, stop, tuple(reads), makes, leaves)


def cut(network: Network, facts: TensorFacts, layers: int = PIECE_LAYERS) -> tuple[Piece, ...]:
    """Cuts the network into pieces of about ``layers`` quantizable layers, where live tensors have the fewest bytes.

    A piece begins with a quantizable layer and ends with those that follow the last one. There is no cut between an Add
    and the layer right before it that computes one of its terms, as engines fuse the two. A network that cannot be cut
    is one piece.

    Args:
        facts: the shapes and types of the tensors; there is no cut where a tensor that is not in it is live.
    """
    boundaries = Boundaries.of(network)
    starts = [k for k in network.quantizable[1:] if _can_cut(network, boundaries, k, facts)]
    ends = [0, *starts, len(network.layers)]
    weigh = [sum(facts.size(name) for name in boundaries.live[k - 1]) for k in starts]
    places = _best_places(ends, [bisect_left(network.quantizable, end) for end in ends], [0, *weigh, 0], layers)
    return tuple(boundaries.piece(ends[a], ends[b]) for a, b in pairwise(places))


def _can_cut(network: Network, boundaries: Boundaries, k: int, facts: TensorFacts) -> bool:
    """Returns true if a piece may begin with layer ``k``."""
    if any(name not in facts.shapes or _has_two_versions(network, boundaries, name) for name in boundaries.live[k - 1]):
        return False
    makers = (network.producers.get(name) for name in network.layers[k].inputs)
    fused = network.layers[k].op_type == "Add" and any(maker and maker.index == k - 1 for maker in makers)
    return not fused


def _has_two_versions(network: Network, boundaries: Boundaries, tensor: str) -> bool:
    """Returns true for an output of the network that is rounded at the output, and is read unrounded by a layer."""
    rounded = any(r.at_output and r.tensor == tensor for r in network.producers[tensor].roundings)
    return rounded and any(tensor in layer.inputs for layer in boundaries.layers)


def _best_places(ends: Sequence[int], counts: Sequence[int], weights: Sequence[int], layers: int) -> list[int]:
    """The cuts with the least cost: live bytes, plus a share of the mean of them for sizes other than ``layers``.

    Args:
        ends: the first layers of possible pieces, and the end of the network.
        counts: the quantizable layers before each of ``ends``.
        weights: the live bytes at each of ``ends``.
        layers: the desired number of quantizable layers in a piece.

    Returns:
        Indices into ``ends``, the first and the last included (dynamic programming over all cuts).
    """
    usual = sum(weights) / max(len(weights), 1)
    cost = [0.0] + [float("inf")] * (len(ends) - 1)
    before = [0] * len(ends)
    for b in range(1, len(ends)):
        for a in range(b - 1, -1, -1):
            size = counts[b] - counts[a]
            if size > 2 * layers and a < b - 1:
                break
            cost_here = cost[a] + weights[b] + usual * abs(size - layers) / layers
            if cost_here < cost[b]:
                cost[b], before[b] = cost_here, a
    places = [len(ends) - 1]
    while places[-1] > 0:
        places.append(before[places[-1]])
    return places[::-1]
