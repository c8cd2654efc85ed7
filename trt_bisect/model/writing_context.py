"""The facts that all graphs written from one network share: its tensors, its scales, and its rounded weights."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import onnx

from trt_bisect.model.followers import followed_tensors
from trt_bisect.model.layers import Layer, Rounding, TensorTypes
from trt_bisect.model.low import FLOAT_TYPES, LowPrecision
from trt_bisect.model.network import Network
from trt_bisect.model.quantizer import Quantizer, Scales, activation_quantizer, round_trips, weight_quantizer
from trt_bisect.model.typed import TypedSlots, carries, typed_slots
from trt_bisect.precision import Precision

_OWN_WORDS = ("int8", "fp8", "fp16", "bf16", "typed", "rounded", "unrounded", "branch", "scale", "held")


class RoundingCache:
    """The quantizers of a network with one set of scales, and its rounded weights, each computed once.

    A low precision that is a float type has no quantizers.

    Args:
        network: gives the weights and the quantizers of its file.
        scales: of the activations whose quantizers are not in the file.
    """

    def __init__(self, network: Network, scales: Scales) -> None:
        self._network = network
        self._scales = scales
        self._quantizers: dict[tuple[int, int, bool], tuple[Quantizer, ...]] = {}
        self._constants: dict[tuple[object, ...], np.ndarray] = {}

    def quantizers(self, layer: Layer, rounding: Rounding) -> tuple[Quantizer, ...]:
        """The quantizers of one rounding, first applied first.

        Raises:
            KeyError: the scales lack the rounded tensor.
        """
        key = (layer.index, rounding.slot, rounding.at_output)
        if key not in self._quantizers:
            low = self._network.low
            self._quantizers[key] = rounding.fixed or (self._new_quantizers(rounding, low) if low.needs_ranges else ())
        return self._quantizers[key]

    def _new_quantizers(self, rounding: Rounding, low: LowPrecision) -> tuple[Quantizer, ...]:
        if rounding.is_weight:
            return (weight_quantizer(self._network.constant(rounding.tensor), rounding.axis, low),)
        return (activation_quantizer(low, self._scales[rounding.tensor]),)

    def has_scale(self, tensor: str) -> bool:
        """Returns true if the scales have an activation."""
        return tensor in self._scales

    def constant(self, name: str, quantizers: tuple[Quantizer, ...]) -> np.ndarray:
        """The values of a constant after its quantizers, in the dtype of the last one."""
        key = (name, *(quantizer.key() for quantizer in quantizers))
        if key not in self._constants:
            self._constants[key] = round_trips(self._network.constant(name), quantizers)
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
    followers_round: bool = False

    @classmethod
    def of(cls, network: Network, scales: Scales, *, emulates: bool, followers_round: bool = False) -> WritingContext:
        """The context for a network and the scales of its activations."""
        graph = network.skeleton.graph
        dtypes = TensorTypes.of(graph).dtypes
        return cls(
            network=network,
            roundings=RoundingCache(network, scales),
            emulates=emulates,
            tag=_unused_tag(network),
            initializers={tensor.name: tensor for tensor in graph.initializer},
            types={value.name: value for value in (*graph.value_info, *graph.input, *graph.output)},
            float_tensors=frozenset(name for name, dtype in dtypes.items() if dtype == np.float32),
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


def _unused_tag(network: Network) -> str:
    """The shortest run of two or more underscores that no tensor's name has before a word of ``_OWN_WORDS``."""
    taken = [*network.producers, *(tensor.name for tensor in network.skeleton.graph.initializer)]
    taken += [spec.name for spec in network.inputs]
    tag = "__"
    while any(f"{tag}{word}" in name for name in taken for word in _OWN_WORDS):
        tag += "_"
    return tag
