"""The layers that two networks have in common, such as a float network and its quantized export."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher

from trt_bisect.data.feeds import TensorSpec, match_names
from trt_bisect.errors import BadInput
from trt_bisect.model.layers import Layer
from trt_bisect.model.network import Network

BY_NAME, BY_OUTPUT, BY_STRUCTURE = "name", "output", "structure"
_Kind = tuple[object, ...]  # operator, shapes of the weights, shape of the output


@dataclass(frozen=True)
class Match:
    """A layer of the first network and its partner in the second, or a layer of one network and None.

    Attributes:
        by: the evidence for the partner: ``name``, ``output`` (its name) or ``structure``; empty without a partner.
    """

    first: Layer | None
    second: Layer | None
    by: str = ""


@dataclass(frozen=True)
class Matching:
    """Two networks, layer by layer.

    Attributes:
        tensors: maps the names of tensors and inputs in the first network to those in the second.
        pairs: the matches, by layer index in the second network.
        alone: the layers without a partner, those of the first network first.
    """

    tensors: dict[str, str] = field(default_factory=dict)
    pairs: dict[int, Match] = field(default_factory=dict)
    alone: tuple[Match, ...] = ()

    @property
    def matches(self) -> tuple[Match, ...]:
        """All layers of both networks, in the second's execution order; layers without a partner last."""
        return (*(self.pairs[index] for index in sorted(self.pairs)), *self.alone)

    def notes(self, first: str, second: str) -> list[str]:
        """Returns sentences on matched and unmatched layers; ``first`` and ``second`` are file names."""
        ways = [match.by for match in self.pairs.values()]
        counts = ", ".join(f"{ways.count(way)} by {way}" for way in (BY_NAME, BY_OUTPUT, BY_STRUCTURE) if way in ways)
        sentences = [f"layers of '{first}' that are in '{second}': {counts or 'none'}"]
        layers_of_first = [match.first for match in self.alone if match.first]
        layers_of_second = [match.second for match in self.alone if match.second]
        for source, layers in ((first, layers_of_first), (second, layers_of_second)):
            if layers:
                named = ", ".join(f"'{layer.name}' ({layer.op_type})" for layer in layers)
                sentences.append(f"layers that are only in '{source}': {named}")
        return sentences


def match_layers(first: Network, second: Network) -> Matching:
    """Finds the layers that two networks have in common; the shapes of both must be those of one sample.

    Partners have the same operator, and weights and outputs of the same shapes. Layers are matched by name, then by
    their output's name, then in execution order; outputs of the networks by name, else in order.

    Raises BadInput if the inputs cannot be matched.
    """
    kinds = {**_kinds(first), **_kinds(second)}
    results = match_names(*([spec.name for spec in network.outputs] for network in (first, second)))
    pairing = _Pairing(results | match_inputs(first, second))

    def take(pairs: Iterable[tuple[Layer, Layer]], by: str) -> None:
        for layer, partner in pairs:
            if kinds[id(layer)] == kinds[id(partner)] and not pairing.has(layer) and not pairing.has(partner):
                pairing.add(layer, partner, by)

    by_name = {layer.name: layer for layer in second.layers}
    take(((layer, by_name[layer.name]) for layer in first.layers if layer.name in by_name), BY_NAME)
    makers = [{layer.outputs[0]: layer for layer in network.layers} for network in (first, second)]
    names = match_names(*makers)
    take(((makers[0][name], makers[1][partner]) for name, partner in names.items()), BY_OUTPUT)
    matched_before = -1
    while matched_before < len(pairing.matches):
        here, there = ([layer for layer in network.layers if not pairing.has(layer)] for network in (first, second))
        supported, matched_before = matched_before >= 0, len(pairing.matches)
        kinds_here, kinds_there = ([kinds[id(layer)] for layer in layers] for layers in (here, there))
        blocks = SequenceMatcher(None, kinds_here, kinds_there, autojunk=False).get_matching_blocks()
        for layer, partner in [(here[i + k], there[j + k]) for i, j, size in blocks for k in range(size)]:
            if pairing.agrees(layer, partner, supported=supported):
                pairing.add(layer, partner, BY_STRUCTURE)
    shapes = {layer.outputs[0]: layer.shape for layer in (*first.layers, *second.layers)}
    # Of a convolution's output and that of an unfolded BatchNormalization only one has a partner.
    pairing.follow_readers(shapes)
    for result, partner_of_result in match_specs(first.outputs, second.outputs).items():
        pairing.add_tensor(result, partner_of_result)
    only_first, only_second = ([k for k in network.layers if not pairing.has(k)] for network in (first, second))
    alone = (*(Match(layer, None) for layer in only_first), *(Match(None, layer) for layer in only_second))
    return Matching(pairing.tensors, {match.second.index: match for match in pairing.matches if match.second}, alone)


def match_inputs(first: Network, second: Network) -> dict[str, str]:
    """Maps the inputs of the first network to the second's: by name, else by position.

    Raises BadInput if an input of the second network has no counterpart of the same size.
    """
    names = match_specs(first.inputs, second.inputs)
    remedy = "Give two networks of the same inputs."
    missing = [spec for spec in second.inputs if spec.name not in names.values()]
    if missing:
        inputs = ", ".join(f"'{spec.name}' {list(spec.shape)}" for spec in first.inputs)
        problem = (
            f"'{second.source}' has the input '{missing[0].name}', and '{first.source}' none that could be the same"
        )
        raise BadInput(f"{problem}: it has {inputs}.", remedy)
    theirs = {spec.name: spec for spec in second.inputs}
    for ours in first.inputs:
        partner = theirs.get(names.get(ours.name, ""))
        if partner is not None and _differ(ours.shape, partner.shape):
            inputs = f"'{first.source}' has the input {ours}, and '{second.source}' the input {partner}"
            raise BadInput(f"{inputs}: no sample fits both.", remedy)
    return names


def _differ(first: tuple[int | None, ...], second: tuple[int | None, ...]) -> bool:
    pairs = zip(first, second, strict=False)
    return len(first) != len(second) or any(None not in pair and pair[0] != pair[1] for pair in pairs)


def match_specs(first: Iterable[TensorSpec], second: Iterable[TensorSpec]) -> dict[str, str]:
    """Maps names of inputs (or outputs) to those in a second network: by equal name, else in order, if ranks are equal.

    Those without a counterpart are left out.
    """
    ours, theirs = list(first), list(second)
    names = match_names((spec.name for spec in ours), (spec.name for spec in theirs))
    partners = set(names.values())
    ours, theirs = [s for s in ours if s.name not in names], [s for s in theirs if s.name not in partners]
    if len(ours) == len(theirs):
        names |= {a.name: b.name for a, b in zip(ours, theirs, strict=True) if len(a.shape) == len(b.shape)}
    return names


def _kinds(network: Network) -> dict[int, _Kind]:
    graph = network.skeleton.graph
    shapes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer if len(tensor.dims) > 1}
    read = [tuple(sorted(shapes[name] for name in node.input if name in shapes)) for node in graph.node]
    return {id(layer): (layer.op_type, read[layer.index], layer.shape) for layer in network.layers}


class _Pairing:
    def __init__(self, tensors: dict[str, str]) -> None:
        self.tensors = tensors
        self.matches: list[Match] = []
        self._back = {partner: name for name, partner in tensors.items()}
        self._taken: set[int] = set()

    def has(self, layer: Layer) -> bool:
        return id(layer) in self._taken

    def agrees(self, layer: Layer, partner: Layer, *, supported: bool) -> bool:
        # false if each reads a matched tensor that the other does not; a supported pair must share one
        here = [name for name in layer.inputs if name in self.tensors]
        there = [name for name in partner.inputs if name in self._back]
        apart = [name for name in here if self.tensors[name] not in partner.inputs]
        if apart and any(self._back[name] not in layer.inputs for name in there):
            return False
        return not supported or len(here) > len(apart)

    def add(self, layer: Layer, partner: Layer, by: str) -> None:
        self._taken |= {id(layer), id(partner)}
        self.matches.append(Match(layer, partner, by))
        for name, its_partner in zip(layer.outputs, partner.outputs, strict=False):
            self.add_tensor(name, its_partner)

    def add_tensor(self, name: str, partner: str) -> None:
        if name and partner and name not in self.tensors and partner not in self._back:
            self.tensors[name], self._back[partner] = partner, name

    def follow_readers(self, shapes: Mapping[str, object]) -> None:
        read = {
            pair
            for match in self.matches
            if match.first and match.second and len(match.first.inputs) == len(match.second.inputs)
            for pair in zip(match.first.inputs, match.second.inputs, strict=True)
        }
        for name, partner in sorted(read):
            mine, theirs = self.tensors.get(name), self._back.get(partner)
            is_read = (name, mine) in read or (theirs, partner) in read
            are_matched = mine is not None and theirs is not None
            if is_read or are_matched or shapes.get(name) is None or shapes.get(name) != shapes.get(partner):
                continue
            if theirs is not None:
                del self.tensors[theirs]
            if mine is not None:
                del self._back[mine]
            self.tensors[name], self._back[partner] = partner, name
