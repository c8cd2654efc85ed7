"""Cross-layer equalisation: rescales the channels between two layers, so that they have similar ranges.

Source: Nagel, van Baalen, Blankevoort, Welling, "Data-Free Quantization Through Weight Equalization and Bias
Correction", ICCV 2019, section 4.1: output channel i is divided by s_i = sqrt(r1_i r2_i) / r2_i and the next layer's
weights for it are multiplied by s_i; r1_i and r2_i are the largest magnitudes of the weights that make and that read
the channel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import replace

import numpy as np
import onnx

from trt_bisect.model.file import attribute, bodies_of, constant_tensor, refill, tensors_read
from trt_bisect.model.network import Network, Slot
from trt_bisect.model.prepare import unused_name
from trt_bisect.model.quantizer import RoundedWeights
from trt_bisect.support.memory import mapped_if_large

BIAS_SLOT = 2
"""The input of Conv, ConvTranspose and Gemm that is the bias."""


def with_constants(network: Network, changed: Mapping[Slot, np.ndarray]) -> Network:
    """Returns a network in which some layers read other constants: ``changed``, by (layer index, input position).

    The position after a layer's last input adds an input.
    """
    skeleton = deepcopy(network.skeleton)
    graph = skeleton.graph
    taken = {name for node in graph.node for name in (*node.output, *tensors_read(node), *_names_inside(node))}
    taken |= {tensor.name for tensor in graph.initializer} | {value.name for value in graph.input}
    weights, constants = dict(network.weights), {tensor.name: tensor for tensor in graph.initializer}
    for (index, slot), values in changed.items():
        node = graph.node[index]
        if slot == len(node.input):
            node.input.append("")
        name = node.input[slot]
        if network.uses[name] != 1:
            part = "bias" if slot == BIAS_SLOT else "weight"
            name = unused_name(f"{node.name}.{part}", taken)
            node.input[slot] = name
        weights.pop(name, None)
        constants[name] = constant_tensor(name, values, weights)
    refill(graph.initializer, constants.values())
    return replace(network, skeleton=skeleton, weights=mapped_if_large(weights), rounded=RoundedWeights())


def _names_inside(node: onnx.NodeProto) -> set[str]:
    names = set[str]()
    for body in bodies_of(node):
        names |= {value.name for value in body.input} | {tensor.name for tensor in body.initializer}
        for inner in body.node:
            names |= {*inner.input, *inner.output, *_names_inside(inner)}
    return names


_WEIGHTED = ("Conv", "ConvTranspose", "Gemm")
BY_CHANNEL = frozenset("Relu LeakyRelu PRelu MaxPool AveragePool GlobalMaxPool GlobalAveragePool".split())
"""Operators that treat each channel by itself and commute with positive factors."""
_TO_ROWS = ("Reshape", "Squeeze")
_DEAD = 1e-6  # The factor of a channel is 1 if its weights are below this share of the layer's largest.
_SWEEPS = 100
_SETTLED = 1e-4  # The iteration ends when all factors of a sweep are as close to 1 as this.
_WORTH = 1e-3  # A pair of layers is left unchanged if all its factors are as close to 1 as this.


def equalise(network: Network) -> tuple[Network, dict[tuple[str, str], np.ndarray]]:
    """Returns a network with equalised channels, equal in FP32 up to float noise, and the factors by pair of layer
    names. ``network`` has no Q/DQ pairs.

    A pair of layers is a Conv, ConvTranspose or Gemm and the next such layer, if each tensor between them has one
    reader, the operators between them commute with positive factors (Relu, LeakyRelu, PRelu, pooling, zero padding,
    flattening; not Clip), and weights are constant, float32, finite and not shared. The factors are float64, one for
    each channel.
    """
    pairs = dict(_Finder(network).pairs())
    channels_before = {second: channels for (_, second), channels in pairs.items()}
    layers = {k: _Weighted(network, k, channels_before.get(k, 0)) for pair in pairs for k in pair}
    # A layer can be in two pairs: factors are computed until they settle.
    factors = _settle(pairs, {k: layer.magnitudes() for k, layer in layers.items()})
    changed = {pair: s for pair, s in factors.items() if np.max(np.abs(np.log(s))) > _WORTH}
    if not changed:
        return network, {}
    before = {second: s for (_, second), s in changed.items()}
    after = {first: s for (first, _), s in changed.items()}
    constants: dict[Slot, np.ndarray] = {}
    for k in sorted({*before, *after}):
        constants.update(layers[k].scaled(before.get(k), after.get(k)))
    names = [layer.name for layer in network.layers]
    return with_constants(network, constants), {(names[k], names[j]): s for (k, j), s in changed.items()}


_Pair = tuple[int, int]


def _settle(pairs: Mapping[_Pair, int], magnitudes: Mapping[int, np.ndarray]) -> dict[_Pair, np.ndarray]:
    # pairs has the number of channels; magnitudes is scaled in place
    factors = {pair: np.ones(channels) for pair, channels in pairs.items()}
    for _ in range(_SWEEPS):
        moved = 0.0
        for pair in pairs:
            first, second = (magnitudes[k] for k in pair)
            r1, r2 = first.max(axis=2).ravel(), second.max(axis=1).ravel()
            live = (r1 > _DEAD * r1.max()) & (r2 > _DEAD * r2.max())
            s = np.where(live, np.sqrt(np.where(live, r1, 1.0) / np.where(live, r2, 1.0)), 1.0)
            first /= s.reshape(first.shape[0], -1, 1)
            second *= s.reshape(second.shape[0], 1, -1)
            factors[pair] *= s
            moved = max(moved, float(np.max(np.abs(np.log(s)))))
        if moved < _SETTLED:
            break
    return factors


def weight_grid(node: onnx.NodeProto, weight: np.ndarray) -> np.ndarray:
    """Returns a layer's weight as [groups, outputs per group, inputs per group, taps]."""
    if node.op_type in ("Gemm", "MatMul"):
        rows: np.ndarray = weight if attribute(node, "transB", 0) else weight.T
        return rows[np.newaxis, :, :, np.newaxis]
    groups = attribute(node, "group", 1)
    grid: np.ndarray = weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], -1)
    return grid if node.op_type == "Conv" else grid.transpose(0, 2, 1, 3)


def from_grid(node: onnx.NodeProto, grid: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Returns a layer's weight, in its ``shape``, from [groups, outputs per group, inputs per group, taps]."""
    if node.op_type == "ConvTranspose":
        grid = grid.transpose(0, 2, 1, 3)
    if node.op_type in ("Conv", "ConvTranspose") or attribute(node, "transB", 0):
        return grid.reshape(shape)
    transposed: np.ndarray = grid.reshape(shape[::-1]).T
    return transposed


class _Weighted:
    # A Gemm after a flattening reads several inputs of each channel.

    def __init__(self, network: Network, index: int, channels: int = 0) -> None:
        node = self._node = network.skeleton.graph.node[index]
        has_bias = len(node.input) > BIAS_SLOT and bool(node.input[BIAS_SLOT])
        self.bias = network.constant(node.input[BIAS_SLOT]) if has_bias else None
        self._index, self._weight, self._per_channel = index, network.constant(node.input[1]), 1
        groups, outputs, inputs, _ = self._grid().shape
        self.outputs, self.inputs = groups * outputs, groups * inputs
        self._per_channel = self.inputs // channels if channels else 1

    def magnitudes(self) -> np.ndarray:
        return np.asarray(np.abs(self._grid()).max(axis=3), np.float64)

    def scaled(self, before: np.ndarray | None, after: np.ndarray | None) -> dict[Slot, np.ndarray]:
        grid = self._grid().astype(np.float64)
        if before is not None:
            grid = grid * before.reshape(grid.shape[0], 1, -1, 1)
        changed: dict[Slot, np.ndarray] = {}
        if after is not None:
            grid = grid / after.reshape(grid.shape[0], -1, 1, 1)
            if self.bias is not None:
                changed[self._index, BIAS_SLOT] = np.asarray(self.bias / after, np.float32)
        changed[self._index, 1] = np.ascontiguousarray(
            from_grid(self._node, grid, self._weight.shape).astype(np.float32)
        )
        return changed

    def _grid(self) -> np.ndarray:
        grid = weight_grid(self._node, self._weight)
        return grid if self._per_channel == 1 else grid.reshape(*grid.shape[:2], -1, self._per_channel)


class _Finder:
    def __init__(self, network: Network) -> None:
        self._network, self._nodes = network, network.skeleton.graph.node

    def pairs(self) -> Iterator[tuple[_Pair, int]]:
        for index, node in enumerate(self._nodes):
            if self._can_be_scaled(node):
                first = _Weighted(self._network, index)
                second = self._next(node.output[0], first.outputs)
                if second is not None and (first.bias is None or first.bias.shape in ((), (1,), (first.outputs,))):
                    yield (index, second), first.outputs

    def _can_be_scaled(self, node: onnx.NodeProto) -> bool:
        if node.op_type not in _WEIGHTED or node.domain:
            return False
        if self._reads_computed(node) or self._network.uses[node.input[1]] != 1:
            return False
        weight = self._network.constant(node.input[1])
        return weight.dtype == np.float32 and weight.size > 0 and bool(np.isfinite(weight).all())

    def _reads_computed(self, node: onnx.NodeProto) -> bool:
        return any(name and not self._network.has_constant(name) for name in node.input[1:])

    def _next(self, tensor: str, channels: int) -> int | None:
        is_flat = False
        while True:
            reads = self._network.readers.get(tensor, ())
            if self._network.uses[tensor] != 1 or [slot for _, slot in reads] != [0]:
                return None
            ((index, _),) = reads
            node = self._nodes[index]
            if node.op_type in _WEIGHTED:
                if not self._can_be_scaled(node) or attribute(node, "transA", 0):
                    return None
                inputs = _Weighted(self._network, index).inputs
                return index if inputs == channels or (is_flat and inputs % channels == 0) else None
            flattens = self._flattens(index, channels)
            if not flattens and not self._commutes(node):
                return None
            is_flat, tensor = is_flat or flattens, node.output[0]

    def _commutes(self, node: onnx.NodeProto) -> bool:
        if node.domain or any(self._network.uses[name] for name in node.output[1:] if name):
            return False
        if self._reads_computed(node):
            return False
        return node.op_type in BY_CHANNEL or (node.op_type == "Pad" and self._pads_with_zeros(node))

    def _pads_with_zeros(self, node: onnx.NodeProto) -> bool:
        mode = attribute(node, "mode", b"constant")
        pads, value, axes = (node.input[slot] if slot < len(node.input) else "" for slot in (1, 2, 3))
        if axes or (mode == b"constant" and value and np.any(self._network.constant(value))):
            return False
        by_axis = self._network.constant(pads).reshape(2, -1)
        return by_axis.shape[1] > 1 and not by_axis[:, 1].any()

    def _flattens(self, index: int, channels: int) -> bool:
        node, layer = self._nodes[index], self._network.layers[index]
        if node.op_type == "Flatten":
            return attribute(node, "axis", 1) == 1
        maker = self._network.producers.get(node.input[0])
        if node.op_type not in _TO_ROWS or maker is None:
            return False
        before, after = (maker.shape or ())[1:], layer.shape or ()
        sizes = [size for size in before if isinstance(size, int)]
        are_known = len(sizes) == len(before) and sizes[:1] == [channels]
        return are_known and len(after) == 2 and after[1] == int(np.prod(sizes))
