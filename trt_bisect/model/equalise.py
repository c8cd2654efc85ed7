"""Cross-layer equalisation: factors moved between two layers, so that the channels between them are alike.

Source: Nagel, van Baalen, Blankevoort, Welling, "Data-Free Quantization Through Weight Equalization and Bias
Correction", ICCV 2019, section 4.1. A layer's output channel i is divided by s_i, the next layer's weights for that
channel are multiplied by s_i = sqrt(r1_i r2_i) / r2_i, where r1_i and r2_i are the largest magnitudes of the weights
that make and that read the channel. What is between the two must commute with positive factors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import onnx
from onnx import numpy_helper

from trt_bisect.model.file import DETACH_FROM_BYTES, detached_tensor, subgraphs_of_attribute, tensor_uses, tensors_read
from trt_bisect.model.layers import int_attribute
from trt_bisect.model.network import Network
from trt_bisect.model.prepare import unused_name
from trt_bisect.model.quantizer import RoundedWeights

BIAS_SLOT = 2
"""The input of Conv, ConvTranspose and Gemm that is the bias."""

Slot = tuple[int, int]
"""The index of a layer and the position of one of its inputs."""


def with_constants(network: Network, changed: Mapping[Slot, np.ndarray]) -> Network:
    """Returns a network in which some layers read other constants.

    A constant that only the changed input reads keeps its name. Otherwise the new one gets a name of its own, after its
    layer. An input right after a layer's last one can be added.

    Args:
        changed: by layer and input, the new constant.
    """
    skeleton = onnx.ModelProto()
    skeleton.CopyFrom(network.skeleton)
    graph = skeleton.graph
    uses = tensor_uses(graph)
    taken = {name for node in graph.node for name in (*node.output, *tensors_read(node), *_names_inside(node))}
    taken |= {tensor.name for tensor in graph.initializer} | {value.name for value in graph.input}
    weights, small = dict(network.weights), {tensor.name: tensor for tensor in graph.initializer}
    for (index, slot), values in changed.items():
        node = graph.node[index]
        if slot == len(node.input):
            node.input.append("")
        name = node.input[slot]
        if uses[name] != 1:
            name = unused_name(f"{node.name}.{'bias' if slot == BIAS_SLOT else 'weight'}", taken)
            node.input[slot] = name
        weights.pop(name, None)
        if values.nbytes >= DETACH_FROM_BYTES:
            weights[name] = values
            small[name] = detached_tensor(name, values)
        else:
            small[name] = numpy_helper.from_array(values, name)
    kept = [onnx.TensorProto.FromString(tensor.SerializeToString()) for tensor in small.values()]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    return replace(network, skeleton=skeleton, weights=weights, memo={}, rounded=RoundedWeights())


def _names_inside(node: onnx.NodeProto) -> set[str]:
    """The names of the tensors in the bodies of a node."""
    names: set[str] = set()
    bodies = [body for attribute in node.attribute for body in subgraphs_of_attribute(attribute)]
    while bodies:
        body = bodies.pop()
        names |= {value.name for value in body.input} | {tensor.name for tensor in body.initializer}
        for inner in body.node:
            names |= {*inner.input, *inner.output}
            bodies += [deeper for attribute in inner.attribute for deeper in subgraphs_of_attribute(attribute)]
    return names


_WEIGHTED = ("Conv", "ConvTranspose", "Gemm")
BY_CHANNEL = frozenset("Relu LeakyRelu PRelu MaxPool AveragePool GlobalMaxPool GlobalAveragePool".split())
"""Operators that work on each channel by itself and commute with positive factors; a PRelu's slopes are constants."""
_TO_ROWS = ("Reshape", "Squeeze")
_DEAD = 1e-6
"""A channel whose weights are all below this share of the layer's largest is dead: its factor is 1."""
_SWEEPS = 100
_SETTLED = 1e-4
"""The factors of a sweep that are all this near to 1, relatively, end the iteration."""
_WORTH = 1e-3
"""A pair whose factors are all this near to 1, relatively, is left as it is."""


@dataclass(frozen=True, eq=False)
class EqualisedPair:
    """Two layers between which factors were moved.

    Attributes:
        first: the name of the layer whose output channels are divided by the factors.
        second: the name of the layer whose weights are multiplied by them.
        factors: positive, float64, one for each channel between the two.
    """

    first: str
    second: str
    factors: np.ndarray

    @property
    def largest(self) -> float:
        """The largest of the factors and of their inverses."""
        return float(np.max(np.maximum(self.factors, 1 / self.factors)))


@dataclass(frozen=True)
class Equalised:
    """A network whose channels are equalised, and the pairs of layers that were changed, in execution order."""

    network: Network
    pairs: tuple[EqualisedPair, ...]


def equalise(network: Network) -> Equalised:
    """Returns a network that computes the same in FP32, up to float noise, with equalised channels.

    A pair is a Conv, ConvTranspose or Gemm and the next such layer. Between the two there are only operators that
    commute with positive factors (Relu, LeakyRelu, PRelu, pooling, zero padding, flattening), and each tensor there has
    a single reader. Clip (ReLU6) does not commute. A layer with a computed, shared, or not finite weight, or one that
    is not float32, is in no pair. The factors are computed again and again for all pairs until they settle, since a
    layer can be in two of them.

    Args:
        network: without Q/DQ pairs of its own: their scales would not fit the new channels.
    """
    found = list(_Finder(network).pairs())
    incoming = {pair.second: pair for pair in found}
    layers = {k: _weighted(network, k, incoming.get(k)) for pair in found for k in (pair.first, pair.second)}
    factors = _settle(found, {k: layer.magnitudes() for k, layer in layers.items()})
    changed = {pair: s for pair, s in factors.items() if np.max(np.abs(np.log(s))) > _WORTH}
    if not changed:
        return Equalised(network, ())
    before = {pair.second: s for pair, s in changed.items()}
    after = {pair.first: s for pair, s in changed.items()}
    constants: dict[Slot, np.ndarray] = {}
    for k in sorted({*before, *after}):
        constants.update(layers[k].scaled(before.get(k), after.get(k)))
    names = network.layers
    pairs = (EqualisedPair(names[pair.first].name, names[pair.second].name, s) for pair, s in changed.items())
    return Equalised(with_constants(network, constants), tuple(pairs))


@dataclass(frozen=True)
class _Pair:
    """Two layers by index, and the number of channels between them."""

    first: int
    second: int
    channels: int


def _settle(pairs: Sequence[_Pair], magnitudes: Mapping[int, np.ndarray]) -> dict[_Pair, np.ndarray]:
    """The factors of all pairs; ``magnitudes`` are changed."""
    factors = {pair: np.ones(pair.channels) for pair in pairs}
    for _ in range(_SWEEPS):
        moved = 0.0
        for pair in pairs:
            one, two = magnitudes[pair.first], magnitudes[pair.second]
            r1, r2 = one.max(axis=2).ravel(), two.max(axis=1).ravel()
            live = (r1 > _DEAD * r1.max()) & (r2 > _DEAD * r2.max())
            s = np.where(live, np.sqrt(np.where(live, r1, 1.0) / np.where(live, r2, 1.0)), 1.0)
            one /= s.reshape(one.shape[0], -1, 1)
            two *= s.reshape(two.shape[0], 1, -1)
            factors[pair] *= s
            moved = max(moved, float(np.max(np.abs(np.log(s)))))
        if moved < _SETTLED:
            break
    return factors


@dataclass(frozen=True, eq=False)
class _Weighted:
    """A layer with a constant weight.

    Its weight can be seen as a grid of shape [groups, output channels of a group, input channels of a group, rest].

    Attributes:
        bias: None if it has none.
        per_channel: the inputs of a Gemm that one channel before it is flattened to.
    """

    index: int
    node: onnx.NodeProto
    weight: np.ndarray
    bias: np.ndarray | None
    per_channel: int = 1

    @cached_property
    def outputs(self) -> int:
        """The number of output channels."""
        grid = self._grid(self.weight)
        return int(grid.shape[0] * grid.shape[1])

    @cached_property
    def inputs(self) -> int:
        """The number of input channels."""
        grid = self._grid(self.weight)
        return int(grid.shape[0] * grid.shape[2])

    def magnitudes(self) -> np.ndarray:
        """The largest magnitude of the weights between two channels: [groups, outputs, inputs], float64."""
        return np.asarray(np.abs(self._grid(self.weight)).max(axis=3), np.float64)

    def scaled(self, before: np.ndarray | None, after: np.ndarray | None) -> dict[Slot, np.ndarray]:
        """The constants of the layer with its input channels times ``before`` and its output channels over ``after``.

        None stands for ones.
        """
        grid = self._grid(self.weight).astype(np.float64)
        if before is not None:
            grid = grid * before.reshape(grid.shape[0], 1, -1, 1)
        changed: dict[Slot, np.ndarray] = {}
        if after is not None:
            grid = grid / after.reshape(grid.shape[0], -1, 1, 1)
            if self.bias is not None:
                changed[self.index, BIAS_SLOT] = np.asarray(self.bias / after, np.float32)
        changed[self.index, 1] = np.ascontiguousarray(self._ungrid(grid).astype(np.float32))
        return changed

    def _grid(self, weight: np.ndarray) -> np.ndarray:
        groups, (first, second) = int_attribute(self.node, "group", 1), weight.shape[:2]
        if self.node.op_type == "Conv":
            return np.reshape(weight, (groups, first // groups, second, -1))
        if self.node.op_type == "ConvTranspose":
            return np.transpose(weight.reshape(groups, first // groups, second, -1), (0, 2, 1, 3))
        rows: np.ndarray = weight if int_attribute(self.node, "transB", 0) else weight.T
        return rows.reshape(1, rows.shape[0], -1, self.per_channel)

    def _ungrid(self, grid: np.ndarray) -> np.ndarray:
        if self.node.op_type == "ConvTranspose":
            grid = grid.transpose(0, 2, 1, 3)
        if self.node.op_type != "Gemm":
            return grid.reshape(self.weight.shape)
        rows: np.ndarray = grid.reshape(grid.shape[1], -1)
        return rows if int_attribute(self.node, "transB", 0) else rows.T


def _weighted(network: Network, index: int, incoming: _Pair | None) -> _Weighted:
    """The layer, whose weight and bias are constants; ``incoming`` is the pair that it is the second of."""
    node = network.skeleton.graph.node[index]
    has_bias = len(node.input) > BIAS_SLOT and bool(node.input[BIAS_SLOT])
    bias = network.constant(node.input[BIAS_SLOT]) if has_bias else None
    layer = _Weighted(index, node, network.constant(node.input[1]), bias)
    return replace(layer, per_channel=layer.inputs // incoming.channels) if incoming else layer


class _Finder:
    """Finds the pairs of a network."""

    def __init__(self, network: Network) -> None:
        self._network = network
        graph = network.skeleton.graph
        self._nodes = graph.node
        self._constants = {tensor.name for tensor in graph.initializer}
        self._uses = tensor_uses(graph)
        self._readers = {name: index for index, node in enumerate(graph.node) for name in node.input}

    def pairs(self) -> Iterator[_Pair]:
        """Yields the pairs in execution order."""
        for index, node in enumerate(self._nodes):
            if self._can_be_scaled(node):
                first = _weighted(self._network, index, None)
                second = self._next(node.output[0], first.outputs)
                if second is not None and (first.bias is None or first.bias.shape in ((), (1,), (first.outputs,))):
                    yield _Pair(index, second, first.outputs)

    def _can_be_scaled(self, node: onnx.NodeProto) -> bool:
        if node.op_type not in _WEIGHTED or node.domain not in ("", "ai.onnx"):
            return False
        if any(name and name not in self._constants for name in node.input[1:]) or self._uses[node.input[1]] != 1:
            return False
        weight = self._network.constant(node.input[1])
        return weight.dtype == np.float32 and weight.size > 0 and bool(np.isfinite(weight).all())

    def _next(self, tensor: str, channels: int) -> int | None:
        """The layer that reads a tensor with this number of channels and can be the second of a pair; or None."""
        flat = False
        while True:
            index = self._readers.get(tensor)
            if index is None or self._uses[tensor] != 1 or self._nodes[index].input[0] != tensor:
                return None
            node = self._nodes[index]
            if node.op_type in _WEIGHTED:
                return index if self._fits(index, channels, flat) else None
            flattens = self._flattens(index, channels)
            if not flattens and not self._commutes(node):
                return None
            flat, tensor = flat or flattens, node.output[0]

    def _fits(self, index: int, channels: int, flat: bool) -> bool:
        """Returns true if the layer reads these channels; ``flat``: several inputs of a Gemm may be one channel."""
        node = self._nodes[index]
        if not self._can_be_scaled(node) or int_attribute(node, "transA", 0):
            return False
        inputs = _weighted(self._network, index, None).inputs
        return inputs % channels == 0 if flat else inputs == channels

    def _commutes(self, node: onnx.NodeProto) -> bool:
        """Returns true for a node that works on each channel by itself and commutes with positive factors."""
        if node.domain not in ("", "ai.onnx") or any(self._uses[name] for name in node.output[1:] if name):
            return False
        if any(name and name not in self._constants for name in node.input[1:]):
            return False
        return node.op_type in BY_CHANNEL or (node.op_type == "Pad" and self._pads_with_zeros(node))

    def _pads_with_zeros(self, node: onnx.NodeProto) -> bool:
        """Returns true for a Pad that adds zeros, or copies of values, and adds no channels."""
        mode = next((each.s for each in node.attribute if each.name == "mode"), b"constant")
        pads, value, axes = (node.input[slot] if slot < len(node.input) else "" for slot in (1, 2, 3))
        if axes or (mode == b"constant" and value and np.any(self._network.constant(value))):
            return False
        by_axis = self._network.constant(pads).reshape(2, -1)
        return by_axis.shape[1] > 1 and not by_axis[:, 1].any()

    def _flattens(self, index: int, channels: int) -> bool:
        """Returns true for a node that turns [batch, channels, ...] into [batch, channels x the rest]."""
        node, layer = self._nodes[index], self._network.layers[index]
        if node.op_type == "Flatten":
            return int_attribute(node, "axis", 1) == 1
        maker = self._network.producers.get(node.input[0])
        if node.op_type not in _TO_ROWS or maker is None:
            return False
        before, after = (maker.shape or ())[1:], layer.shape or ()
        sizes = [size for size in before if isinstance(size, int)]
        whole = len(sizes) == len(before) and sizes[:1] == [channels]
        return whole and len(after) == 2 and after[1] == int(np.prod(sizes))
