"""Findings on Q/DQ pairs: wrong places, wrong parameters, missing pairs; and each tensor's quantization."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Annotated

import numpy as np
import onnx

from trt_bisect.analyzer.structure.findings import HALF_QUANTIZED, Finding, found
from trt_bisect.analyzer.structure.graph import (
    ACTIVATIONS,
    DEQUANTIZE,
    NORM,
    QUANTIZE,
    SMOOTH_ACTIVATIONS,
    WEIGHTED,
    FileGraph,
    Reader,
)
from trt_bisect.model.file import attribute, tensors_read
from trt_bisect.model.layers import Rounding, weight_axis
from trt_bisect.model.network import Network
from trt_bisect.model.quantizer import SMALLEST_SCALE
from trt_bisect.support.table import INDEX, NAME, Column
from trt_bisect.support.text import listed

OUT_OF_LINE = 1000.0
"""A scale is out of line if it differs from its neighbours' by this factor."""
_NEIGHBOURS = 2
_BIAS_SLOT = 2


@dataclass(frozen=True, eq=False)
class QdqPair:
    """A quantizer with its dequantizer, or one of them alone.

    Attributes:
        tensor: the quantized tensor, or the integers in the file.
        stored: true if the file holds the integers, without a quantizer.
        scale: the scale or scales; None if computed.
        zero_point: None if absent or computed.
        dtype: the type of the integers; None if unknown.
        axis: the axis along which there are several scales.
        readers: the layers that read the pair's output ``out``, each with the index of the input that reads it.
        is_output: true if ``out`` becomes an output of the network.
    """

    tensor: str
    stored: bool
    is_constant: bool
    scale: np.ndarray | None
    zero_point: np.ndarray | None
    dtype: np.dtype[np.generic] | None
    axis: int
    out: str
    readers: tuple[Reader, ...]
    is_output: bool

    @property
    def layers(self) -> tuple[str, ...]:
        """The layers that read the pair's output; if there are none, ``(the network's output)`` or ``(read by
        nothing)``.
        """
        without = "(the network's output)" if self.is_output else "(read by nothing)"
        return tuple(dict.fromkeys(node.name for node, _ in self.readers)) or (without,)

    @property
    def per_channel(self) -> bool:
        """True if the pair has several scales."""
        return self.scale is not None and self.scale.size > 1

    @property
    def in_blocks(self) -> bool:
        """True if the pair has scales for blocks of channels."""
        return self.scale is not None and self.scale.ndim > 1


def pairs_of(graph: FileGraph) -> tuple[QdqPair, ...]:
    """Returns the Q/DQ pairs of a graph, and quantizers without a dequantizer, in execution order."""

    def ends_a_pair(node: onnx.NodeProto) -> bool:
        if node.op_type != QUANTIZE:
            return node.op_type == DEQUANTIZE
        return all(reader.op_type != DEQUANTIZE for reader, _ in graph.readers(node.output[0]))

    return tuple(_pair(graph, node) for node in graph.nodes if node.input and ends_a_pair(node))


def _pair(graph: FileGraph, node: onnx.NodeProto) -> QdqPair:
    quantizer = graph.makers.get(graph.moved_from(node.input[0]))
    source = quantizer if quantizer is not None and quantizer.op_type == QUANTIZE else node
    scale, zero = ([*source.input[1:], "", ""])[:2]
    levels = source.output[0] if source.op_type == QUANTIZE else source.input[0]
    return QdqPair(
        tensor=source.input[0],
        stored=source.op_type == DEQUANTIZE,
        is_constant=source.input[0] in graph.constants,
        scale=graph.values(scale),
        zero_point=graph.values(zero),
        dtype=graph.dtype(zero or levels),
        axis=attribute(source, "axis", 1),
        out=node.output[0],
        readers=tuple(graph.layers_reading(node.output[0])),
        is_output=graph.is_given_out(node.output[0]),
    )


def pair_findings(graph: FileGraph) -> Iterator[Finding]:
    """Yields the findings on pairs, and on missing pairs."""
    pairs = pairs_of(graph)
    for pair in pairs:
        yield from _level_findings(pair)
        yield from _scale_findings(pair, graph)
        yield from _place_findings(pair, graph)
    yield from _out_of_line(pairs)
    yield from _unlike_pairs(pairs)
    if pairs:
        yield from _concat_findings(graph, {pair.out: pair for pair in pairs})
        yield from _residual_findings(graph)
        narrow = [pair for pair in pairs if pair.dtype is not None and pair.dtype not in (np.int8, np.uint8, np.int32)]
        yield from _coverage_findings(graph, {pair.out for pair in pairs if pair.in_blocks or pair in narrow})


def _level_findings(pair: QdqPair) -> Iterator[Finding]:
    if pair.zero_point is not None and pair.zero_point.dtype.kind in "iu" and np.any(pair.zero_point):
        points = sorted({int(point) for point in np.ravel(pair.zero_point)})
        values = str(points[0]) if len(points) == 1 else f"{points[0]} to {points[-1]}"
        yield found("asymmetric", pair.layers, f"zero point {values} on '{pair.tensor}'")
    elif pair.dtype == np.uint8 and pair.stored:
        yield found("unsigned weight", pair.layers, f"'{pair.tensor}' is stored as uint8")
    elif pair.dtype == np.uint8:
        yield found("unsigned", pair.layers, f"'{pair.tensor}' is quantized to uint8")


def _scale_findings(pair: QdqPair, graph: FileGraph) -> Iterator[Finding]:
    if pair.scale is None or pair.scale.size == 0 or pair.scale.dtype.kind != "f":
        return
    scales = np.ravel(pair.scale).astype(np.float64)
    odd = {
        "scale not positive": ~(scales > 0),
        "scale infinite": np.isposinf(scales),
        "scale denormal": (scales > 0) & (scales < SMALLEST_SCALE),
    }
    for kind, where in odd.items():
        if where.any():
            first = int(np.argmax(where))
            yield found(kind, pair.layers, f"{_count(where, pair)}scale {scales[first]:g} on '{pair.tensor}'")
    usable = np.isfinite(scales) & (scales >= SMALLEST_SCALE)
    live = _channels_with_values(pair, graph)
    if pair.per_channel and usable.all() and live.any():
        ratios = np.where(live, scales / np.median(scales[live]), 0.0)
        worst = int(np.argmax(ratios))
        if ratios[worst] >= OUT_OF_LINE:
            scale = f"scale {scales[worst]:g}, {ratios[worst]:.0f} times the median"
            what = f"channel {worst} of '{pair.tensor}' has {scale}"
            yield found("scale out of line", pair.layers, what)


def _channels_with_values(pair: QdqPair, graph: FileGraph) -> np.ndarray:
    # Returns bool [scales], false if all values of the channel are known to be zero.
    assert pair.scale is not None
    values = graph.values(pair.tensor)
    if values is None or pair.in_blocks or not values.ndim or values.shape[pair.axis % values.ndim] != pair.scale.size:
        return np.ones(pair.scale.size, bool)
    channels = np.moveaxis(values, pair.axis % values.ndim, 0).reshape(pair.scale.size, -1)
    zero = pair.zero_point.reshape(-1, 1) if pair.stored and pair.zero_point is not None else 0
    return np.asarray(np.any(channels != zero, axis=1))


def _count(where: np.ndarray, pair: QdqPair) -> str:
    if pair.per_channel:
        return f"{int(where.sum())} of {where.size} channels, channel {int(np.argmax(where))} "
    return ""


def _out_of_line(pairs: tuple[QdqPair, ...]) -> Iterator[Finding]:
    activations = [(pair, _single_scale(pair)) for pair in pairs if not pair.is_constant]
    usable = [(pair, scale) for pair, scale in activations if scale is not None]
    for k, (pair, scale) in enumerate(usable):
        neighbours = usable[max(k - _NEIGHBOURS, 0) : k] + usable[k + 1 : k + 1 + _NEIGHBOURS]
        around = [other for _, other in neighbours]
        ratio = scale / median(around) if len(around) >= _NEIGHBOURS else 1.0
        if ratio >= OUT_OF_LINE or ratio <= 1.0 / OUT_OF_LINE:
            times = f"{ratio:.0f} times" if ratio > 1 else f"1/{1 / ratio:.0f} of"
            what = f"scale {scale:g} on '{pair.tensor}', {times} the scales around it"
            yield found("scale out of line", pair.layers, what)


def _unlike_pairs(pairs: tuple[QdqPair, ...]) -> Iterator[Finding]:
    by_tensor: dict[str, list[QdqPair]] = {}
    for pair in pairs:
        if not pair.stored and not pair.is_constant:
            by_tensor.setdefault(pair.tensor, []).append(pair)
    for tensor, beside in by_tensor.items():
        scales = [(pair, scale) for pair in beside if (scale := _single_scale(pair)) is not None]
        if len({scale for _, scale in scales}) > 1:
            each = ", ".join(f"{scale:g} for {listed(pair.layers)}" for pair, scale in scales)
            layers = [name for pair, _ in scales for name in pair.layers]
            yield found("unlike pairs", layers, f"'{tensor}' has {len(scales)} pairs, with scales {each}")


def _concat_findings(graph: FileGraph, pairs: Mapping[str, QdqPair]) -> Iterator[Finding]:
    for node in graph.nodes:
        if node.op_type != "Concat":
            continue
        read = [pairs[source] for source in map(graph.moved_from, node.input) if source in pairs]
        scales = {scale for pair in read if not pair.is_constant and (scale := _single_scale(pair)) is not None}
        if len(scales) > 1:
            what = f"its inputs have {len(scales)} scales, from {min(scales):g} to {max(scales):g}"
            yield found("concat of unlike scales", node.name, what)


def _single_scale(pair: QdqPair) -> float | None:
    if pair.scale is None or pair.scale.size != 1:
        return None
    scale = float(pair.scale.reshape(-1)[0])
    return scale if np.isfinite(scale) and scale >= SMALLEST_SCALE else None


def _place_findings(pair: QdqPair, graph: FileGraph) -> Iterator[Finding]:
    if pair.per_channel and not pair.is_constant and pair.scale is not None:
        yield found("per-channel activation", pair.layers, f"{pair.scale.size} scales on '{pair.tensor}'")
    biased = [node.name for node, slot in pair.readers if _is_bias(node, slot, graph)]
    if pair.is_constant and biased:
        kind = "integer bias" if pair.dtype == np.int32 else "pair on a bias"
        yield found(kind, biased, f"bias '{graph.root(pair.tensor)}' is quantized")
    if not pair.stored and graph.maker_op(pair.tensor) == DEQUANTIZE:
        yield found("double pair", pair.layers, f"'{graph.root(pair.tensor)}' goes through two pairs")
    maker = graph.makers.get(pair.tensor)
    if pair.is_output and not pair.is_constant and not pair.readers:
        what = f"an output of the network, '{graph.root(pair.tensor)}', is rounded to {pair.dtype or 'eight bits'}"
        yield found("output rounded", "" if maker is None else maker.name, what)
    yield from _pair_before(pair, maker)
    if pair.is_constant and pair.per_channel and not pair.in_blocks:
        yield from _axis_findings(pair, graph)


def _pair_before(pair: QdqPair, maker: onnx.NodeProto | None) -> Iterator[Finding]:
    if maker is None or pair.is_constant or maker.op_type not in (*WEIGHTED, NORM, "Add"):
        return
    for node, slot in pair.readers:
        what = f"a pair stands between '{maker.name}' and '{node.name}'"
        if node.op_type in (*ACTIVATIONS, *SMOOTH_ACTIVATIONS):
            yield found("pair before the activation", maker.name, what)
            return
        if node.op_type == NORM and slot == 0 and maker.op_type in WEIGHTED:
            yield found("pair before the normalization", maker.name, what)


def _axis_findings(pair: QdqPair, graph: FileGraph) -> Iterator[Finding]:
    rank = len(graph.types.shapes.get(pair.tensor, ()))
    for node, slot in pair.readers:
        moved = graph.maker_op(node.input[slot]) != DEQUANTIZE
        if not rank or moved:
            continue
        axis, of_outputs = pair.axis % rank, weight_axis(node, slot, graph.types)
        if of_outputs not in (None, axis):
            what = f"'{pair.tensor}' has a scale for each index of axis {axis}; the outputs are axis {of_outputs}"
            yield found("per-channel axis", node.name, what)


def _is_bias(node: onnx.NodeProto, slot: int, graph: FileGraph) -> bool:
    if node.op_type == "Add":
        return any(graph.maker_op(name) == "MatMul" for name in node.input)
    return node.op_type in WEIGHTED and slot == _BIAS_SLOT


def _residual_findings(graph: FileGraph) -> Iterator[Finding]:
    for node in graph.nodes:
        if node.op_type != "Add" or len(node.input) != 2 or not graph.constants.isdisjoint(node.input):
            continue
        sides = (node.input[0], node.input[1])
        for name in _sides_without_pair(graph, sides):
            what = f"its input '{name}' has no pair, the other side is in INT8"
            yield found("residual without pair", node.name, what)
        for made_by in _layers_cut_off(graph, sides):
            yield found("residual with extra pair", node.name, f"a pair stands between it and '{made_by}'")


def _sides_without_pair(graph: FileGraph, sides: tuple[str, str]) -> list[str]:
    bare = [name for name in sides if not is_dequantized(graph, name)]
    fused = [name for name in bare if graph.wiring.fused_with(name, WEIGHTED)]
    if len(bare) < 2:
        return [name for name in bare if name not in fused]
    if not any(_from_quantized_convolution(graph, name) for name in fused):
        return []
    if len(fused) < 2:
        return [name for name in bare if name not in fused]
    return [sides[0] if graph.wiring.bare_side(sides) == 1 else sides[1]]


def _layers_cut_off(graph: FileGraph, sides: tuple[str, str]) -> list[str]:
    # Returns the INT8 convolution that a residual sum is not fused with because of a pair between them, if any.
    sources = (_behind_own_pair(graph, sides[0]), _behind_own_pair(graph, sides[1]))
    bare = graph.wiring.bare_side(sources)
    if bare is None or sides[bare] == sources[bare] or not _from_quantized_convolution(graph, sources[bare]):
        return []
    maker, other = graph.wiring.fused_with(sources[bare]), sides[1 - bare]
    fuses_with_other = not is_dequantized(graph, other) and graph.wiring.fused_with(other) is not None
    return [] if maker is None or fuses_with_other else [maker.name]


def _behind_own_pair(graph: FileGraph, tensor: str) -> str:
    dequantizer = graph.makers.get(tensor)
    quantizer = graph.makers.get(dequantizer.input[0]) if dequantizer and dequantizer.op_type == DEQUANTIZE else None
    if quantizer is None or quantizer.op_type != QUANTIZE:
        return tensor
    alone = graph.uses(tensor) == graph.uses(quantizer.output[0]) == 1
    return quantizer.input[0] if alone else tensor


def is_dequantized(graph: FileGraph, tensor: str) -> bool:
    """Returns true if a tensor comes from a Q/DQ pair, directly or through operators that move values."""
    return graph.maker_op(graph.moved_from(tensor)) == DEQUANTIZE


def _from_quantized_convolution(graph: FileGraph, tensor: str) -> bool:
    # Without a pair a sum joins the kernel of an INT8 MatMul, as the kernels of TensorRT-RTX 1.7 show.
    maker = graph.wiring.fused_with(tensor)
    return maker is not None and all(is_dequantized(graph, name) for name in maker.input[:2])


def _coverage_findings(graph: FileGraph, other: set[str]) -> Iterator[Finding]:
    # other: outputs of pairs that have other than eight bits, or scales for blocks.
    for node in graph.nodes:
        if node.op_type not in WEIGHTED or len(node.input) < 2 or other & {graph.moved_from(n) for n in node.input}:
            continue
        if all(name in graph.constants for name in node.input[:2]):
            continue
        bare = [name for name in node.input[:2] if not is_dequantized(graph, name)]
        if len(bare) == 2:
            yield found("never quantized", node.name, f"{node.op_type} without a Q/DQ pair on its inputs")
        elif bare:
            what = "weight" if bare[0] in graph.constants else "input"
            yield found(HALF_QUANTIZED, node.name, f"its {what} '{bare[0]}' has no Q/DQ pair, the other operand has")


INPUT, WEIGHT, CONSTANT, OUTPUT = "input", "weight", "constant", "output"
IN_FILE, PLANNED = "file", "planned"


@dataclass(frozen=True)
class TensorRounding:
    """A tensor that a layer reads or makes, and its quantization.

    Attributes:
        role: ``input``, ``weight``, ``constant`` or ``output``.
        dtype: the dtype in the network.
        quantized: the integer type of the tensor's Q/DQ pair, ``int8`` or ``uint8``; empty without a pair.
        scales: the number of scales: 1, or the number of channels; 0 without a pair.
        axis: the channel axis; None without several scales.
        origin: ``file`` for a pair in the file, ``planned`` for a pair that a plan writes; else empty.
    """

    index: Annotated[int, Column("#", "Place in execution order", INDEX, rank=1)]
    layer: Annotated[str, Column("Layer", kind=NAME, rank=0)]
    op_type: Annotated[str, Column("Op", "Operator", rank=3)]
    role: Annotated[str, Column("Role", rank=0)]
    tensor: Annotated[str, Column("Tensor", rank=2)]
    dtype: Annotated[str, Column("dtype", "In the network", rank=4)]
    quantized: Annotated[str, Column("Rounded to", "The integer type of its pair", rank=0)]
    scales: Annotated[int, Column("Scales", "1, or one for each channel", rank=3)]
    axis: Annotated[int | None, Column("Axis", "Axis of the channels", rank=6)]
    origin: Annotated[str, Column("From", "The file has the pair, or a plan writes it", rank=3)]
    calls: Annotated[int, Column("Read by", "Number of layers that read the tensor", rank=5)]
    why_not: Annotated[str, Column("Why not", "The reason why the layer cannot be in INT8", rank=7)]


def tensor_roundings(network: Network) -> Iterator[TensorRounding]:
    """Yields the tensors that layers read or make, in execution order."""
    types, nodes = network.types, network.skeleton.graph.node
    constants = {tensor.name for tensor in network.skeleton.graph.initializer} | set(network.weights)
    calls = Counter(name for node in nodes for name in set(tensors_read(node)))
    for layer in network.layers:
        node = nodes[layer.index]
        places = [(slot, name, False) for slot, name in enumerate(node.input) if name]
        places += [(slot, name, True) for slot, name in enumerate(node.output) if name]
        for slot, name, at_output in places:
            here = (r for r in layer.roundings if (r.slot, r.at_output) == (slot, at_output))
            rounding = next(here, None) if layer.quantizable else None
            if at_output:
                role = OUTPUT
            elif name not in constants:
                role = INPUT
            else:
                role = WEIGHT if rounding is not None and rounding.is_weight else CONSTANT
            yield TensorRounding(
                layer.index,
                layer.name,
                layer.op_type,
                role,
                name,
                str(types.dtypes.get(name, "")),
                *_rounding_facts(network, rounding),
                calls[name],
                layer.why_not,
            )


def _rounding_facts(network: Network, rounding: Rounding | None) -> tuple[str, int, int | None, str]:
    if rounding is None:
        return "", 0, None, ""
    if rounding.fixed:
        first = (rounding.asymmetric or rounding.fixed)[0]
        scales = int(first.scale.size)
        return str(first.zero_point.dtype), scales, first.axis if scales > 1 else None, IN_FILE
    if not rounding.is_weight or rounding.axis is None:
        return "int8", 1, None, PLANNED
    return "int8", int(network.constant(rounding.tensor).shape[rounding.axis]), rounding.axis, PLANNED
