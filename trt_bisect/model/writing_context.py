"""The facts that all graphs written from one network share: its tensors, its scales, and its rounded weights."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx

from trt_bisect.model.followers import followed_tensors
from trt_bisect.model.layers import Layer, Rounding, TensorTypes
from trt_bisect.model.low import FLOAT_TYPES, FloatType, LowPrecision
from trt_bisect.model.network import Network
from trt_bisect.model.quantizer import Quantizer, Scales, activation_quantizer, round_trips, weight_quantizer
from trt_bisect.model.typed import TypedSlots, carries, typed_slots
from trt_bisect.precision import Precision
from trt_bisect.support.memory import are_large, file_of, mapped

_OWN_WORDS = ("int8", "fp8", "fp16", "bf16", "typed", "rounded", "unrounded", "branch", "scale", "held")


class RoundingCache:
    """The quantizers of a network with one set of scales, and its rounded weights.

    The quantizers of weights and the rounded weights are shared with other caches of the same network. Rounded weights
    take as much room as the weights: where these are large, they are kept in files, or not at all.

    A low precision that is a float type has no quantizers.

    Args:
        network: gives the weights and the quantizers of its file.
        scales: the scales of the activations whose quantizers are not in the file.
        in_base: the indices of the low layers that read and make tensors in the network's base type.
        emulates: their pairs are in float32, with scales that the type has; else they are in the type.
    """

    def __init__(self, network: Network, scales: Scales, in_base: Collection[int] = (), *, emulates: bool) -> None:
        self._network = network
        self._scales = scales
        self._in_base = in_base
        self._emulates = emulates
        self._quantizers: dict[tuple[int, int, bool], tuple[Quantizer, ...]] = {}
        self._constants: dict[tuple[object, ...], np.ndarray] = {}
        self._large = are_large(network.weights)

    def quantizers(self, layer: Layer, rounding: Rounding) -> tuple[Quantizer, ...]:
        """The quantizers of one rounding, first applied first.

        Raises:
            KeyError: the scales lack the rounded tensor.
        """
        key = (layer.index, rounding.slot, rounding.at_output)
        if key not in self._quantizers:
            low = self._network.low
            found = rounding.fixed or (self._new_quantizers(rounding, low) if low.needs_ranges else ())
            if layer.index in self._in_base and not rounding.at_output:
                found = tuple(map(self._with_typed_scale, found))
            self._quantizers[key] = found
        return self._quantizers[key]

    def _with_typed_scale(self, quantizer: Quantizer) -> Quantizer:
        """Returns a quantizer with a scale of the base type."""
        kind = self._network.base_type
        assert kind is not None
        return replace(
            quantizer,
            scale=kind.positive(quantizer.scale),
            dtype=quantizer.dtype if self._emulates else kind.dtype,
        )

    def _new_quantizers(self, rounding: Rounding, low: LowPrecision) -> tuple[Quantizer, ...]:
        if rounding.is_weight:
            known, key = self._network.rounded.quantizers, (rounding.tensor, rounding.axis, low)
            if key not in known:
                known[key] = weight_quantizer(self._network.constant(rounding.tensor), rounding.axis, low)
            return (known[key],)
        return (activation_quantizer(low, self._scales[rounding.tensor]),)

    def has_scale(self, tensor: str) -> bool:
        """Returns true if the scales have an activation."""
        return tensor in self._scales

    def constant(self, name: str, quantizers: tuple[Quantizer, ...], kind: FloatType | None = None) -> np.ndarray:
        """The values of a constant after its quantizers, in the dtype of the last one; first rounded to a type."""
        key = (name, kind, *(quantizer.key() for quantizer in quantizers))
        if key not in self._constants:
            known = self._network.rounded.get(key)
            if known is None:
                values = self._network.constant(name)
                known = round_trips(values if kind is None else kind.rounded(values), quantizers)
                known = mapped(known) if self._large else known
                self._network.rounded[key] = known
            if self._large and file_of(known) is None:
                return known
            self._constants[key] = known
        return self._constants[key]


@dataclass(frozen=True)
class WritingContext:
    """One network with one set of scales, as ``model.writing`` needs it to write graphs.

    Attributes:
        network: the network.
        roundings: its quantizers and rounded weights.
        emulates: the graph is for ONNX Runtime: weights are rounded in advance, and layers in FP16 or BF16 compute in
            float32 between roundings to that type.
        tag: underscores that make the names of new tensors new.
        initializers: the constants of the graph by name, detached weights among them.
        types: the type and shape of each tensor by name, as far as they are known.
        float_tensors: the names of the float32 tensors.
        base_slots: by index of a layer that INT8 or FP8 rounds, the inputs and outputs that have the network's base
            type where the layer is low; none where that is float32.
        followers_round: tensors that layers which only follow make or read are rounded too, where they have a scale
            and an engine may hold them in INT8 (see ``model.followers``).
    """

    network: Network
    roundings: RoundingCache
    emulates: bool
    tag: str
    initializers: Mapping[str, onnx.TensorProto]
    types: Mapping[str, onnx.ValueInfoProto]
    float_tensors: frozenset[str]
    base_slots: Mapping[int, TypedSlots]
    followers_round: bool = False

    @classmethod
    def of(cls, network: Network, scales: Scales, *, emulates: bool, followers_round: bool = False) -> WritingContext:
        """The context for a network and the scales of its activations."""
        graph = network.skeleton.graph
        dtypes = TensorTypes.of(graph).dtypes
        floats = frozenset(name for name, dtype in dtypes.items() if dtype == np.float32)
        base_slots = dict(_base_slots(network, floats))
        return cls(
            network=network,
            roundings=RoundingCache(network, scales, base_slots.keys(), emulates=emulates),
            emulates=emulates,
            tag=_unused_tag(network),
            initializers={tensor.name: tensor for tensor in graph.initializer},
            types={value.name: value for value in (*graph.value_info, *graph.input, *graph.output)},
            float_tensors=floats,
            base_slots=base_slots,
            followers_round=followers_round,
        )

    def followed(self, int8: Collection[int]) -> frozenset[str]:
        """Returns the tensors that are rounded where they are made, with the layers ``int8`` in INT8."""
        if not self.followers_round or self.network.low.precision is not Precision.INT8:
            return frozenset()
        found = followed_tensors(self.network, int8)
        return frozenset(name for name in found & self.float_tensors if self.roundings.has_scale(name))

    def is_constant(self, name: str) -> bool:
        """Returns true if a tensor is a constant of the network."""
        return name in self.initializers

    def typed_slots(self, layer: Layer, precision: Precision) -> TypedSlots | None:
        """Returns the inputs and outputs that a layer in FP16 or BF16 has in that type; None if it has to be float32.

        A layer that could have the low precision, and carries what it reads, does so in any type: see ``carries``.
        """
        kind = FLOAT_TYPES.get(precision)
        node = self.network.skeleton.graph.node[layer.index]
        return None if kind is None else typed_slots(node, self.float_tensors, kind)

    def carries(self, layer: Layer, precision: Precision, slots: TypedSlots) -> bool:
        """Returns true if a layer with these slots rounds nothing, where its inputs have the type already."""
        kind, node = FLOAT_TYPES[precision], self.network.skeleton.graph.node[layer.index]

        def exact(name: str) -> bool:
            return not self.is_constant(name) or kind.holds(self.network.constant(name))

        return carries(node, slots, exact)


def _base_slots(network: Network, floats: frozenset[str]) -> Iterator[tuple[int, TypedSlots]]:
    kind = network.base_type
    if kind is None:
        return
    for layer in network.layers:
        slots = typed_slots(network.skeleton.graph.node[layer.index], floats, kind) if layer.quantizable else None
        if slots is not None:
            yield layer.index, slots


def _unused_tag(network: Network) -> str:
    """The shortest run of two or more underscores that no tensor's name has before a word of ``_OWN_WORDS``."""
    taken = [*network.producers, *(tensor.name for tensor in network.skeleton.graph.initializer)]
    taken += [spec.name for spec in network.inputs]
    tag = "__"
    while any(f"{tag}{word}" in name for name in taken for word in _OWN_WORDS):
        tag += "_"
    return tag
