"""The network cut into pieces: consecutive layers that are built and run one by one."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from trt_bisect.model.layers import TensorFacts
from trt_bisect.model.network import Network

PIECE_LAYERS = 4
"""The usual number of quantizable layers in a piece: fewer need more sessions, more repeat more work."""


@dataclass(frozen=True)
class Piece:
    """A piece of a network: layers ``start`` to ``stop - 1``.

    Attributes:
        reads: tensors of earlier layers, and the network's inputs.
        leaves: tensors that later layers read, and the network's outputs.
    """

    start: int
    stop: int
    reads: tuple[str, ...]
    leaves: tuple[str, ...]

    @property
    def layers(self) -> range:
        """The indices of the layers."""
        return range(self.start, self.stop)


class Boundaries:
    """The layers that compute and that last read each tensor.

    Attributes:
        made: by tensor, the index of the layer that computes it; -1 for the network's inputs.
        last_read: that of the last layer that reads it; for the network's outputs the number of layers.
    """

    def __init__(self, network: Network) -> None:
        layers = self.layers = network.layers
        self.made = {spec.name: -1 for spec in network.inputs}
        self.made |= {name: layer.index for layer in layers for name in layer.outputs}
        self.last_read = {name: layer.index for layer in layers for name in layer.inputs}
        self.last_read |= {spec.name: len(layers) for spec in network.outputs}

    @cached_property
    def live(self) -> tuple[tuple[str, ...], ...]:
        """For every layer k the tensors computed up to k and read after k."""
        by_layer, alive = list[tuple[str, ...]](), list[str]()
        for layer in self.layers:
            alive = [name for name in (*alive, *layer.outputs) if self.last_read.get(name, -1) > layer.index]
            by_layer.append(tuple(alive))
        return tuple(by_layer)

    def most_bytes(self, facts: TensorFacts) -> int:
        """Returns the most bytes of tensors that one inference holds at once."""
        alive = [{*self.live[k.index], *k.inputs, *k.outputs} & self.made.keys() for k in self.layers]
        return max((sum(map(facts.size, names)) for names in alive), default=0)

    def piece(self, start: int, stop: int) -> Piece:
        """Returns the piece of layers ``start`` to ``stop - 1``."""
        inside = self.layers[start:stop]
        reads = dict.fromkeys(name for layer in inside for name in layer.inputs if self.made.get(name, stop) < start)
        leaves = (name for layer in inside for name in layer.outputs if self.last_read.get(name, -1) >= stop)
        return Piece(start, stop, tuple(reads), tuple(leaves))


def cut(network: Network, facts: TensorFacts, layers: int = PIECE_LAYERS) -> tuple[Piece, ...]:
    """Cuts the network into pieces of about ``layers`` quantizable layers, where the fewest bytes of tensors cross.

    A network that cannot be cut is one piece.
    """
    boundaries = Boundaries(network)
    starts = [k for k in network.quantizable[1:] if _can_cut(network, boundaries, k, facts)]
    ends = [0, *starts, len(network.layers)]
    live_bytes = [0, *(sum(map(facts.size, boundaries.live[k - 1])) for k in starts), 0]
    cuts = _best_cuts([bisect_left(network.quantizable, end) for end in ends], live_bytes, layers)
    return tuple(boundaries.piece(ends[a], ends[b]) for a, b in pairwise(cuts))


def _can_cut(network: Network, boundaries: Boundaries, k: int, facts: TensorFacts) -> bool:
    if any(name not in facts.shapes or _has_two_versions(network, boundaries, name) for name in boundaries.live[k - 1]):
        return False
    makers = (network.producers.get(name) for name in network.layers[k].inputs)
    return network.layers[k].op_type != "Add" or not any(maker and maker.index == k - 1 for maker in makers)


def _has_two_versions(network: Network, boundaries: Boundaries, tensor: str) -> bool:
    rounded = any(r.at_output and r.tensor == tensor for r in network.producers[tensor].roundings)
    return rounded and any(tensor in layer.inputs for layer in boundaries.layers)


def _best_cuts(counts: Sequence[int], live_bytes: Sequence[int], layers: int) -> list[int]:
    # A cut costs its live bytes, a piece the mean of live_bytes times its relative deviation from layers.
    usual = sum(live_bytes) / max(len(live_bytes), 1)
    cost = [0.0] + [float("inf")] * (len(counts) - 1)
    before = [0] * len(counts)
    for b in range(1, len(counts)):
        for a in range(b - 1, -1, -1):
            size = counts[b] - counts[a]
            if size > 2 * layers and a < b - 1:
                break
            cost_here = cost[a] + live_bytes[b] + usual * abs(size - layers) / layers
            if cost_here < cost[b]:
                cost[b], before[b] = cost_here, a
    cuts = [len(counts) - 1]
    while cuts[-1] > 0:
        cuts.append(before[cuts[-1]])
    return cuts[::-1]
