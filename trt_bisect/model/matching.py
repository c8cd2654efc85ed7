"""The layers that two networks have in common: one network exported in float and quantized, or of two days."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher

from trt_bisect.data.feeds import TensorSpec, match_names
from trt_bisect.errors import BadInput
from trt_bisect.model.layers import Layer
from trt_bisect.model.network import Network

BY_NAME, BY_OUTPUT, BY_STRUCTURE = "name", "output", "structure"
_Kind = tuple[object, ...]
"""The operator of a layer, the shapes of its weights, and the shape of its output."""


@dataclass(frozen=True)
class Match:
    """A layer of the first network and the same layer of the second one; None where it has none there.

    Attributes:
        by: ``name``, ``output`` or ``structure``; empty without a partner.
    """

    first: Layer | None
    second: Layer | None
    by: str = ""


@dataclass(frozen=True)
class Matching:
    """Two networks, layer by layer.

    Attributes:
        tensors: the names of the first network's tensors, inputs among them, and those that they have in the second.
        pairs: by the index of a layer in the second network, the match.
        left: the layers without a partner, those of the first network first.
    """

    tensors: dict[str, str] = field(default_factory=dict)
    pairs: dict[int, Match] = field(default_factory=dict)
    left: tuple[Match, ...] = ()

    @property
    def matches(self) -> tuple[Match, ...]:
        """All layers of both networks, in the execution order of the second; those without a partner last."""
        return (*(self.pairs[index] for index in sorted(self.pairs)), *self.left)

    def notes(self, first: str, second: str) -> list[str]:
        """Returns sentences on how many layers were matched, and on those that were not, by the networks' files."""
        ways = [match.by for match in self.pairs.values()]
        counts = ", ".join(f"{ways.count(way)} by {way}" for way in (BY_NAME, BY_OUTPUT, BY_STRUCTURE) if way in ways)
        sentences = [f"layers of '{first}' that are in '{second}': {counts or 'none'}"]
        for source, layers in (
            (first, [match.first for match in self.left if match.first]),
            (second, [match.second for match in self.left if match.second]),
        ):
            if layers:
                named = ", ".join(f"'{layer.name}' ({layer.op_type})" for layer in layers)
                sentences.append(f"layers that are only in '{source}': {named}")
        return sentences


def match_layers(first: Network, second: Network) -> Matching:
    """Finds the layers of two networks that are the same.

    They have the same operator, and weights and outputs of the same shapes. Of these, layers of the same name are
    matched, then layers whose output has the same name, without case and punctuation. The rest is aligned in execution
    order by ``difflib``, and again as long as that finds more; a pair whose inputs come from layers that are matched
    otherwise is no pair. Where matched layers read tensors of which one has no partner, such as the output of a
    convolution and that of a BatchNormalization that was not folded into it, these two are the same tensor. Outputs of
    the networks are matched by name, else in order.

    Args:
        first, second: with the layers' shapes on one sample, see ``Network.with_shapes``.

    Raises:
        BadInput: the inputs of the networks cannot be matched.
    """
    kinds = {**_kinds(first), **_kinds(second)}
    results = match_names(*([spec.name for spec in network.outputs] for network in (first, second)))
    pairing = _Pairing(results | match_inputs(first, second))

    def take(pairs: Iterable[tuple[Layer, Layer]], by: str) -> None:
        for one, other in pairs:
            if kinds[id(one)] == kinds[id(other)] and not pairing.has(one) and not pairing.has(other):
                pairing.add(one, other, by)

    by_name = {layer.name: layer for layer in second.layers}
    take(((layer, by_name[layer.name]) for layer in first.layers if layer.name in by_name), BY_NAME)
    made = [{layer.outputs[0]: layer for layer in network.layers if layer.outputs} for network in (first, second)]
    names = match_names(*made)
    take(((made[0][one], made[1][other]) for one, other in names.items()), BY_OUTPUT)
    supported = False
    while True:
        left = [[layer for layer in network.layers if not pairing.has(layer)] for network in (first, second)]
        before = len(pairing.matches)
        here, there = ([kinds[id(layer)] for layer in layers] for layers in left)
        blocks = SequenceMatcher(None, here, there, autojunk=False).get_matching_blocks()
        aligned = [(left[0][start + k], left[1][other + k]) for start, other, size in blocks for k in range(size)]
        for one, other in aligned:
            if pairing.agrees(one, other, supported=supported):
                pairing.add(one, other, BY_STRUCTURE)
        if len(pairing.matches) == before:
            break
        supported = True
    pairing.follow_readers({**_shapes(first), **_shapes(second)})
    for result, its_partner in match_specs(first.outputs, second.outputs).items():
        pairing.add_tensor(result, its_partner)
    only_first, only_second = ([k for k in network.layers if not pairing.has(k)] for network in (first, second))
    alone = (*(Match(layer, None) for layer in only_first), *(Match(None, layer) for layer in only_second))
    return Matching(pairing.tensors, {each.second.index: each for each in pairing.matches if each.second}, alone)


def match_inputs(first: Network, second: Network) -> dict[str, str]:
    """Maps the names of the inputs of one network to those of another: by name, else by their place.

    Raises:
        BadInput: an input of the second network has no counterpart, or one of another size.
    """
    names = match_specs(first.inputs, second.inputs)
    missing = [spec.name for spec in second.inputs if spec.name not in names.values()]
    if missing:
        raise BadInput(
            f"'{second.source}' has the input '{missing[0]}', and '{first.source}' none that could be the same: it has "
            + ", ".join(f"'{spec.name}' {list(spec.shape)}" for spec in first.inputs)
            + ".",
            "Give two networks of the same inputs.",
        )
    theirs = {spec.name: spec for spec in second.inputs}
    for ours in first.inputs:
        other = theirs.get(names.get(ours.name, ""))
        if other is not None and _differ(ours.shape, other.shape):
            raise BadInput(
                f"'{first.source}' has the input {ours}, and '{second.source}' the input {other}: no sample fits both.",
                "Give two networks of the same inputs.",
            )
    return names


def _differ(first: tuple[int | None, ...], second: tuple[int | None, ...]) -> bool:
    """Returns true if no array has both shapes; None is a size that may be any."""
    pairs = zip(first, second, strict=False)
    return len(first) != len(second) or any(None not in pair and pair[0] != pair[1] for pair in pairs)


def match_specs(first: Iterable[TensorSpec], second: Iterable[TensorSpec]) -> dict[str, str]:
    """Maps names of inputs, or of outputs, to those of another network: by name, else in order, of equal ranks."""
    ours, theirs = list(first), list(second)
    names = match_names((spec.name for spec in ours), (spec.name for spec in theirs))
    left = [spec for spec in ours if spec.name not in names], [s for s in theirs if s.name not in names.values()]
    if len(left[0]) == len(left[1]):
        in_order = zip(*left, strict=True)
        names |= {one.name: other.name for one, other in in_order if len(one.shape) == len(other.shape)}
    return names


def _kinds(network: Network) -> dict[int, _Kind]:
    """Returns by ``id`` of a layer the facts that its partner must share."""
    graph = network.skeleton.graph
    shapes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer if len(tensor.dims) > 1}
    read = {
        layer.index: sorted(shapes[name] for name in graph.node[layer.index].input if name in shapes)
        for layer in network.layers
    }
    return {id(layer): (layer.op_type, tuple(read[layer.index]), layer.shape) for layer in network.layers}


def _shapes(network: Network) -> dict[str, object]:
    return {layer.outputs[0]: layer.shape for layer in network.layers if layer.outputs}


class _Pairing:
    """The pairs so far.

    Args:
        tensors: those that are matched before any layer is, see ``Matching``.
    """

    def __init__(self, tensors: dict[str, str]) -> None:
        self.tensors = tensors
        self.matches: list[Match] = []
        self._back = {other: one for one, other in tensors.items()}
        self._taken: set[int] = set()

    def has(self, layer: Layer) -> bool:
        return id(layer) in self._taken

    def agrees(self, one: Layer, other: Layer, *, supported: bool) -> bool:
        """Returns false if both read tensors that are matched, but not with each other.

        Args:
            supported: they must read at least one tensor that is matched.
        """
        here = [name for name in one.inputs if name in self.tensors]
        there = [name for name in other.inputs if name in self._back]
        apart = [name for name in here if self.tensors[name] not in other.inputs]
        if apart and any(self._back[name] not in one.inputs for name in there):
            return False
        return not supported or len(here) > len(apart)

    def add(self, one: Layer, other: Layer, by: str) -> None:
        self._taken |= {id(one), id(other)}
        self.matches.append(Match(one, other, by))
        for name, theirs in zip(one.outputs, other.outputs, strict=False):
            self.add_tensor(name, theirs)

    def add_tensor(self, one: str, other: str) -> None:
        """Matches two tensors that have no partner yet."""
        if one and other and one not in self.tensors and other not in self._back:
            self.tensors[one], self._back[other] = other, one

    def follow_readers(self, shapes: Mapping[str, object]) -> None:
        """Matches tensors that matched layers read in the same place, if at most one of the two has a partner so far.

        Args:
            shapes: the shapes of first outputs, of both networks: only tensors of the same shape are the same.
        """
        read = {
            pair
            for match in self.matches
            if match.first and match.second and len(match.first.inputs) == len(match.second.inputs)
            for pair in zip(match.first.inputs, match.second.inputs, strict=True)
        }
        for one, other in sorted(read):
            mine, theirs = self.tensors.get(one), self._back.get(other)
            known = (one, mine) in read or (theirs, other) in read or (mine is not None and theirs is not None)
            if known or shapes.get(one) is None or shapes.get(one) != shapes.get(other):
                continue
            if theirs is not None:
                del self.tensors[theirs]
            if mine is not None:
                del self._back[mine]
            self.tensors[one], self._back[other] = other, one
