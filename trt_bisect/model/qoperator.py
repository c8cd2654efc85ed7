"""Networks of integer layers (ONNX Runtime's QOperator format) as networks with Q/DQ pairs.

Both compute the same but for float noise. Source: ONNX Runtime's ``ContribOperators.md``, and ONNX's ``QLinearConv``
and ``QLinearMatMul``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper, numpy_helper

from trt_bisect.model.file import Constants, attribute, refill

_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
# By operator, the slots of the integers that it reads, of its output's scale, and of its bias; 0 for no bias.
_FORMS: Mapping[str, tuple[tuple[int, ...], int, int]] = {
    **dict.fromkeys(("QLinearAdd", "QLinearMul", "QLinearMatMul"), ((0, 3), 6, 0)),
    **dict.fromkeys(("QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax"), ((0,), 3, 0)),
    **dict.fromkeys(("QLinearAveragePool", "QLinearGlobalAveragePool"), ((0,), 3, 0)),
    "QLinearConv": ((0, 3), 6, 8),
    "QGemm": ((0, 3), 7, 6),
    "QLinearWhere": ((1, 4), 7, 0),
}
# Operators that take integers like floats, and only move them.
_KEEPING = frozenset(
    "Reshape Flatten Transpose Squeeze Unsqueeze MaxPool Slice Split Gather Identity Resize Expand Tile DepthToSpace "
    "SpaceToDepth".split()
)
_ENDING = "_quantized"  # ONNX Runtime's quantizer appends it to the name of a rounded tensor.

_Levels = tuple[str, str, str]  # The names of a tensor of integers, its scale, and its zero point (empty without one).


@dataclass(frozen=True)
class _Integer:
    op_type: str  # of the layer in floats
    read: tuple[_Levels | str, ...]  # integers with their scale, or the name of another tensor
    made: tuple[str, str]  # the output's scale and zero point; empty for floats
    bias: str = ""  # integers, at the scale of the product of the first two inputs


def with_pairs(model: onnx.ModelProto, weights: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """Returns ``model``, which is changed, with its integer layers in floats between Q/DQ nodes.

    Layers with computed scales, or channels last, stay. Nodes must have names; ``weights`` are the large weights.
    """
    layers = [_integer(node) for node in model.graph.node]
    if not any(layers):
        return model
    writing = _Writing(model, weights)
    for node, layer in zip(model.graph.node, layers, strict=True):
        writing.write(node, layer)
    refill(model.graph.node, writing.nodes)
    return model


def _integer(node: onnx.NodeProto) -> _Integer | None:
    op, read = node.op_type, [*node.input, *[""] * 3]
    if op == "QLinearConcat":
        slots, made, bias = tuple(range(2, len(node.input), 3)), 0, 0
    elif op in _FORMS and not attribute(node, "channels_last", 0):
        slots, made, bias = _FORMS[op]
    else:
        return None
    parts: list[_Levels | str] = [_levels(read, slot) for slot in slots]
    if op == "QLinearWhere":
        parts.insert(0, read[0])
    float_op = "Gemm" if op == "QGemm" else op.removeprefix("QLinear")
    return _Integer(float_op, tuple(parts), (read[made], read[made + 1]), read[bias] if bias else "")


def _levels(names: Sequence[str], slot: int) -> _Levels:
    return names[slot], names[slot + 1], names[slot + 2]


class _Writing:
    def __init__(self, model: onnx.ModelProto, weights: Mapping[str, np.ndarray]) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self._graph, self._constants = model.graph, Constants(model.graph, weights)
        results = {value.name for value in model.graph.output}
        made = {name for node in model.graph.node for name in node.output}
        self._taken = made | {tensor.name for tensor in model.graph.initializer}
        self._taken |= {value.name for value in model.graph.input}
        self._renamed: dict[str, str] = {}
        self._known: dict[str, _Levels] = {}
        for node in model.graph.node:
            if node.op_type == _DEQUANTIZE and node.output[0] not in results:
                # The layer that makes the levels gets this name; who reads the floats reads them under another one.
                self._renamed[node.output[0]] = self._free(f"{node.output[0]}_dequantized")
                self._taken.discard(node.output[0])

    def write(self, node: onnx.NodeProto, layer: _Integer | None) -> None:
        levels = self._known.get(node.input[0]) if node.input else None
        all_levels = len(node.output) == 1 or node.op_type == "Split"  # MaxPool may give indices too
        if layer is None and levels is not None and node.op_type in _KEEPING and all_levels:
            layer = _Integer(node.op_type, (levels, *node.input[1:]), levels[1:])
        if node.op_type == _QUANTIZE:
            self._known[node.output[0]] = _levels([node.output[0], *node.input[1:], ""], 0)
        if layer is None or not self._has_constants(layer):
            self._keep(node)
            return
        names = [part if isinstance(part, str) else self._dequantized(part, node, layer) for part in layer.read]
        if layer.bias:
            names.append(self._bias(node, layer))
        while names and not names[-1]:
            names.pop()
        outputs, quantizers = [], []
        for output in node.output:
            scale, zero = layer.made
            outputs.append(self._free(output.removesuffix(_ENDING)) if scale else output)
            if scale:
                self._known[output] = output, scale, zero
                quantizers.append(helper.make_node(_QUANTIZE, [outputs[-1], *filter(None, layer.made)], [output]))
        plain = helper.make_node(layer.op_type, names, outputs, node.name)
        plain.attribute.extend(each for each in node.attribute if each.name not in ("channels_last", "opset"))
        plain.metadata_props.extend(node.metadata_props)
        self.nodes += [plain, *quantizers]

    def _keep(self, node: onnx.NodeProto) -> None:
        for names in (node.input, node.output):
            names[:] = [self._renamed.get(name, name) for name in names]
        self.nodes.append(node)

    def _has_constants(self, layer: _Integer) -> bool:
        parts = [part[1:] for part in layer.read if isinstance(part, tuple)]
        scales = [name for part in (*parts, layer.made) for name in part if name]
        return all(name in self._constants for name in scales)

    def _free(self, name: str) -> str:
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name

    def _dequantized(self, part: _Levels, node: onnx.NodeProto, layer: _Integer) -> str:
        name = self._free(f"{part[0]}_of_{node.name}")
        dequantize = helper.make_node(_DEQUANTIZE, list(filter(None, part)), [name])
        if self._constants[part[1]].size > 1:
            axis = 0 if layer.op_type == "Conv" or attribute(node, "transB", 0) else -1
            dequantize.attribute.append(helper.make_attribute("axis", axis))
        self.nodes.append(dequantize)
        return name

    def _bias(self, node: onnx.NodeProto, layer: _Integer) -> str:
        first, second = (self._constants[part[1]] for part in layer.read[:2])
        scale = np.asarray(first.astype(np.float64) * second * attribute(node, "alpha", 1.0), np.float32)
        name, floats = self._free(f"{layer.bias}_scale"), self._free(f"{layer.bias}_of_{node.name}")
        self._graph.initializer.append(numpy_helper.from_array(scale.reshape(-1) if scale.size > 1 else scale, name))
        dequantize = helper.make_node(_DEQUANTIZE, [layer.bias, name], [floats])
        if scale.size > 1:
            dequantize.attribute.append(helper.make_attribute("axis", 0))
        self.nodes.append(dequantize)
        return floats
