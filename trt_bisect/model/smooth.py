"""Channel smoothing: large channels of an activation are divided where it is made, its readers' weights multiplied.

TensorRT rounds an activation with one scale for all channels: a channel ten times as large as the others costs them
three of eight bits. Dividing channel c by s[c] and multiplying the weights that read it by s[c] changes nothing in
FP32. SmoothQuant (Xiao et al., ICML 2023) does this behind LayerNormalization.

Here the division goes back from the readers to the first constants that can take it, through operators that commute
with positive factors: scale and bias of a normalization, weights of a convolution or MatMul, the constant of a Mul, Div
or Add. Without such constants the tensor stays as it is. At a Concat of channels the division goes on in each input:

    Conv a ---------- [0:16] -+
                              Concat --- Conv c     a and b are divided by their part of the factors, c is multiplied
    Conv b - Resize - [16:48]-+

With LayerNormalization after the residual sum, as in BERT, the next block's sum reads the tensor too. Then a Mul
restores the channels for the other readers, if the expected error at least halves (like Wei et al., "Outlier
Suppression", NeurIPS 2022):

    LayerNormalization / s -+- MatMul * s --- ...
                            +- Mul s -------- Add       the only layer that is added; TensorRT fuses it with others

The factors. Of a[c]^p / w[c]^q, with a[c] the largest magnitude of a channel and w[c] the largest weight that reads it,
those with the least expected squared error of the readers' outputs are taken: the sum over o, c of ((w[o,c] s[c])^2 D^2
+ E[x[c]^2] / s[c]^2 d[o]^2) / 12, with the steps D = max_c(a[c] / s[c]) / 127 of the activation and d[o] = max_c
|w[o,c] s[c]| / 127 of the weights. For depthwise convolutions, whose weights have a scale per channel, s = a; p = q =
1/2 is SmoothQuant's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import helper, numpy_helper

from trt_bisect.data.feeds import Feeds
from trt_bisect.model.equalise import BIAS_SLOT, BY_CHANNEL, weight_grid, with_constants
from trt_bisect.model.existing import ExistingPairs
from trt_bisect.model.file import attribute, refill
from trt_bisect.model.layers import layers_of
from trt_bisect.model.network import Network, Slot
from trt_bisect.model.observe import observe
from trt_bisect.model.prepare import unused_name

_PRODUCTS = ("MatMul", "Gemm")
_POWERS = tuple((p / 4, q / 4) for p in range(5) for q in range(5) if p + q)
_WORTH = 0.9  # A tensor is left unchanged if smoothing would leave a larger share of the expected error.
_WORTH_A_LAYER = 0.5  # The same limit for a tensor with other readers, which needs a Mul.
# The least magnitude of a channel, as a share of the largest: it may be larger on other samples.
_LEAST_MAGNITUDE = 1e-3
_SAMPLES = 64  # The number of samples over which the channels' magnitudes are measured.


# A constant that is divided by the channels' factors: its input slot; its channel axis from the end; its channels in
# the smoothed tensor; and true for a divisor, which is multiplied instead.
_Divided = tuple[Slot, int, slice, bool]


@dataclass(frozen=True)
class _Smoothable:
    axis: int
    readers: Sequence[int]  # the layers whose weights are multiplied
    taken_by: Sequence[_Divided]  # the constants that are divided
    others: Sequence[Slot] = ()  # inputs of other layers, which read the tensor after a Mul


def smooth(network: Network, samples: Iterable[Feeds]) -> tuple[Network, dict[str, float]]:
    """Returns a network with similar channel ranges, equal in FP32 up to float noise; and by tensor the share of the
    expected error that remains.

    The network must have known shapes and no Q/DQ pairs; the samples are calibration data.
    """
    nodes, smoothable = network.skeleton.graph.node, dict(_Finder(network).smoothable())
    scalings = defaultdict[Slot, list[np.ndarray]](list)
    shares, brought_back = dict[str, float](), dict[str, tuple[np.ndarray, Sequence[Slot]]]()

    def scale(slot: Slot, axis: int, factors: np.ndarray) -> None:
        scalings[slot].append(factors.reshape([-1] + [1] * (-axis - 1)))

    for tensor, (largest, squares) in _magnitudes(network, smoothable, samples).items():
        use = smoothable[tensor]
        weights = {k: network.constant(nodes[k].input[1]) for k in use.readers}
        factors, share = _factors(largest, squares, [_magnitudes_read(nodes[k], w) for k, w in weights.items()])
        if share <= (_WORTH_A_LAYER if use.others else _WORTH):
            shares[tensor] = share
            if use.others:
                brought_back[tensor] = factors, use.others
            for k, weight in weights.items():
                scale((k, 1), _read_axis(nodes[k], weight), factors)
            for slot, axis, channels, divides in use.taken_by:
                scale(slot, axis, factors[channels] if divides else 1.0 / factors[channels])
    if not shares:
        return network, {}
    changed: dict[Slot, np.ndarray] = {}
    for slot, factors_of_slot in scalings.items():
        index, position = slot
        values = network.constant(nodes[index].input[position]).astype(np.float64)
        for factors in factors_of_slot:
            values = values * factors
        changed[slot] = np.ascontiguousarray(values, np.float32)
    return _with_products(with_constants(network, changed), brought_back), shares


def _with_products(network: Network, products: Mapping[str, tuple[np.ndarray, Sequence[Slot]]]) -> Network:
    if not products:
        return network
    skeleton = deepcopy(network.skeleton)
    graph, added = skeleton.graph, dict[int, onnx.NodeProto]()
    makers = {name: index for index, node in enumerate(graph.node) for name in node.output}
    taken = {name for node in graph.node for name in (node.name, *node.input, *node.output)}
    types = {value.name: value.type for value in graph.value_info}
    for tensor, (factors, slots) in products.items():
        name = unused_name(f"{graph.node[makers[tensor]].name}.channels", taken)
        constant, product = (unused_name(f"{name}_{word}", taken) for word in ("factors", "out"))
        graph.initializer.append(numpy_helper.from_array(factors.astype(np.float32), constant))
        graph.value_info.append(onnx.ValueInfoProto(name=product, type=types.get(tensor)))
        added[makers[tensor]] = helper.make_node("Mul", [tensor, constant], [product], name)
        for index, slot in slots:
            graph.node[index].input[slot] = product
    nodes = [(node, added.get(index)) for index, node in enumerate(graph.node)]
    refill(graph.node, [node for pair in nodes for node in pair if node is not None])
    before = {layer.name: layer for layer in network.layers}
    layers = []
    for layer in layers_of(graph, network.weights, ExistingPairs(), network.low):
        old = before.get(layer.name, layer)
        layer = replace(layer, fixed=old.fixed, title=old.title, module=old.module, code=old.code)
        layers.append(layer if old.quantizable else layer.kept_high(old.why_not))
    with_muls = replace(network, skeleton=skeleton, layers=tuple(layers), one_scale=frozenset())
    indices = {layer.name: layer.index for layer in layers}
    return with_muls.with_one_scale_a_weight(indices[network.layers[k].name] for k in network.one_scale)


def _magnitudes(
    network: Network, smoothable: Mapping[str, _Smoothable], samples: Iterable[Feeds]
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    largest: dict[str, np.ndarray] = {}
    squares: dict[str, list[np.ndarray]] = {name: [] for name in smoothable}
    for _, tensors in zip(range(_SAMPLES), observe(network, list(smoothable), samples), strict=False):
        for name, values in tensors.items():
            axis = smoothable[name].axis
            channels = np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)
            if values.size:
                largest[name] = np.maximum(largest.get(name, 0.0), np.abs(channels).max(axis=1))
                squares[name].append(np.square(channels).mean(axis=1, dtype=np.float64))
    return {
        name: (magnitudes.astype(np.float64), np.mean(squares[name], axis=0))
        for name, magnitudes in largest.items()
        if np.isfinite(magnitudes).all() and magnitudes.max() > 0
    }


def _factors(largest: np.ndarray, squares: np.ndarray, weights: Sequence[np.ndarray]) -> tuple[np.ndarray, float]:
    read = np.maximum.reduce([weight.max(axis=0) for weight in weights])
    a, w = (np.maximum(magnitudes / max(magnitudes.max(), 1e-30), _LEAST_MAGNITUDE) for magnitudes in (largest, read))

    def error(s: np.ndarray) -> float:
        total = 0.0
        for weight in weights:
            total += float(np.square(weight * s).sum()) * float((largest / s).max()) ** 2
            if len(weight) > 1:
                total += float(np.square((weight * s).max(axis=1)).sum() * (squares / s**2).sum())
        return total

    best = min((a**p / w**q for p, q in _POWERS), key=error)
    before = error(np.ones_like(a))
    return best / np.exp(np.log(best).mean()), error(best) / before if before > 0 else 1.0


def _is_depthwise(node: onnx.NodeProto) -> bool:
    return attribute(node, "group", 1) > 1


def _read_axis(node: onnx.NodeProto, weight: np.ndarray) -> int:
    if node.op_type == "Conv":
        return -weight.ndim if _is_depthwise(node) else 1 - weight.ndim
    return -1 if attribute(node, "transB", 0) else -2


def _magnitudes_read(node: onnx.NodeProto, weight: np.ndarray) -> np.ndarray:
    # [outputs, channels]; of a depthwise convolution [1, channels]
    largest: np.ndarray = np.abs(weight_grid(node, weight)).max(axis=3)
    return np.moveaxis(largest, 0, 1).reshape(largest.shape[1], -1)


class _Finder:
    def __init__(self, network: Network) -> None:
        self._network, self._nodes = network, network.skeleton.graph.node
        self._shapes = {layer.outputs[0]: layer.shape for layer in network.layers if layer.shape is not None}

    def smoothable(self) -> Iterator[tuple[str, _Smoothable]]:
        for tensor in self._network.rounded_activations:
            reads, shape = self._network.readers.get(tensor, ()), self._shapes.get(tensor)
            if shape is None or len(reads) != self._network.uses[tensor]:
                continue
            kinds = {self._nodes[k].op_type for k, _ in reads}
            all_convs, rank = kinds == {"Conv"}, len(shape)
            readers = [k for k, slot in reads if all_convs or (slot == 0 and self._nodes[k].op_type in _PRODUCTS)]
            scaled = list(filter(self._can_be_scaled, readers))
            others = [(k, slot) for k, slot in reads if k not in scaled]
            if scaled and not (others and kinds <= {"Conv", *_PRODUCTS}):
                axis = 1 - rank if all_convs else -1
                taken_by = self._taken_by(tensor, axis, rank, slice(0, None))
                if taken_by:
                    yield tensor, _Smoothable(axis % rank, scaled, taken_by, others)

    def _can_be_scaled(self, index: int) -> bool:
        node, network = self._nodes[index], self._network
        names = [name for name in node.input[1:] if name]
        if not all(map(network.has_constant, names)) or network.uses[names[0]] != 1 or index in network.one_scale:
            return False
        weight = network.constant(names[0])
        if weight.dtype != np.float32 or not weight.size or not np.isfinite(weight).all():
            return False
        if node.op_type == "Conv":
            return not _is_depthwise(node) or weight.shape[:2] == (attribute(node, "group", 1), 1)
        return weight.ndim == 2 and not attribute(node, "transA", 0)

    def _taken_by(self, tensor: str, axis: int, rank: int, channels: slice) -> list[_Divided]:
        divided: list[_Divided] = []
        while (maker := self._network.producers.get(tensor)) is not None:
            index, node = maker.index, self._nodes[maker.index]
            op = node.op_type if not node.domain else ""
            constants = [slot for slot, name in enumerate(node.input) if name and self._network.has_constant(name)]
            slot = constants[0] if len(constants) == 1 and self._fits(node, constants[0], axis) else None
            before = node.input[0] if node.input else ""
            if op in ("Conv", "Gemm", "MatMul", "LayerNormalization", "Concat"):
                ends = self._in_parts if op == "Concat" else self._in_layer
                last = ends(index, axis, rank, channels)
                return [*divided, *last] if last else []
            if (op == "Mul" and slot is not None) or (op == "Div" and slot == 1):
                return [*divided, ((index, slot), axis, channels, op == "Div")]
            if op in ("Add", "Sub") and slot is not None:
                divided.append(((index, slot), axis, channels, False))
                before = node.input[1 - slot]
            elif op == "Transpose":
                order = attribute(node, "perm", list(range(rank))[::-1])
                axis = order[axis] - rank
            elif not self._commutes(node, tensor, axis, constants):
                return []
            if not self._is_divided(before, rank):
                return []
            tensor = before
        return []

    def _is_divided(self, tensor: str, rank: int) -> bool:
        return self._network.uses[tensor] == 1 and len(self._shapes.get(tensor, ())) == rank

    def _in_parts(self, index: int, axis: int, rank: int, channels: slice) -> list[_Divided]:
        if attribute(self._nodes[index], "axis", 0) % rank != axis % rank:
            return []
        divided, start = list[_Divided](), channels.start
        for name in self._nodes[index].input:
            size = self._shapes[name][axis] if self._is_divided(name, rank) else None
            taken_by = self._taken_by(name, axis, rank, slice(start, start + size)) if isinstance(size, int) else []
            if not taken_by:
                return []
            divided += taken_by
            start += size
        return divided

    def _commutes(self, node: onnx.NodeProto, tensor: str, axis: int, constants: Sequence[int]) -> bool:
        if node.domain:
            return False
        shape, before = (self._shapes.get(name, ()) for name in (tensor, node.input[0]))
        if node.op_type == "Resize":
            sizes = [sizes[axis] for sizes in (shape, before) if len(sizes) >= -axis]
            mode = attribute(node, "coordinate_transformation_mode", b"")
            return mode != b"tf_crop_and_resize" and len(sizes) == 2 and sizes[0] == sizes[1] and sizes[0] is not None
        by_channel = node.op_type in BY_CHANNEL and axis == 1 - len(shape) and not constants
        return node.op_type in ("Relu", "LeakyRelu") or by_channel

    def _in_layer(self, index: int, axis: int, rank: int, channels: slice) -> list[_Divided]:
        node = self._nodes[index]
        slots = [slot for slot in (1, BIAS_SLOT) if slot < len(node.input) and node.input[slot]]
        if node.op_type == "LayerNormalization":
            fits = axis == -1 and attribute(node, "axis", -1) in (-1, rank - 1)
            fits = fits and all(self._network.has_constant(node.input[slot]) for slot in slots)
            return [((index, slot), -1, channels, False) for slot in slots] if fits else []
        if not self._can_be_scaled(index) or axis != (1 - rank if node.op_type == "Conv" else -1):
            return []
        if node.op_type == "Conv":
            weight_axis = -self._network.constant(node.input[1]).ndim
        else:
            weight_axis = -2 if attribute(node, "transB", 0) else -1
        return [((index, slot), weight_axis if slot == 1 else -1, channels, False) for slot in slots]

    def _fits(self, node: onnx.NodeProto, slot: int, axis: int) -> bool:
        values = self._network.constant(node.input[slot])
        if values.dtype != np.float32 or not np.isfinite(values).all():
            return False
        return values.size == 1 or (values.ndim >= -axis and values.size == values.shape[axis])
