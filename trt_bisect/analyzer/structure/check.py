"""The structure check: finds, without running the network, what TensorRT refuses and what loses accuracy or speed.

Source of the lists of operators and forms: the parser of TensorRT-RTX 1.7, which the tests ask about each, and
``docs/operators.md`` of onnx-tensorrt for TensorRT 10.15, which agrees but where a comment says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

import numpy as np
import onnx

from trt_bisect.analyzer.structure.findings import SEVERITIES, SHARED_LAYER, SHARED_WEIGHT, Finding, found
from trt_bisect.analyzer.structure.graph import ACTIVATIONS, NORM, PAIR, WEIGHTED, FileGraph, attribute_of, with_bodies
from trt_bisect.analyzer.structure.qdq import is_dequantized, pair_findings
from trt_bisect.model.prepare import decomposed_normalizations, import_detached

MIN_OPSET, MAX_OPSET = 9, 24

REFUSED = frozenset(
    "AffineGrid Bernoulli BitCast BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor CenterCropPad Col2Im Compress "
    "ConcatFromSequence CumProd DFT Det DynamicQuantizeLinear ImageDecoder MaxRoiPool MaxUnpool "
    "MelWeightMatrix Multinomial NegativeLogLikelihoodLoss Optional OptionalGetElement OptionalHasElement "
    "RegexFullMatch SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength SequenceMap "
    "SoftmaxCrossEntropyLoss SplitToSequence StringConcat StringNormalizer StringSplit SwiGLU TfIdfVectorizer "
    "Unique".split()
)
INTEGER_OPS = frozenset(
    "ConvInteger MatMulInteger QLinearConv QLinearMatMul QLinearAdd QLinearMul QLinearConcat QLinearSigmoid "
    "QLinearLeakyRelu QLinearAveragePool QLinearGlobalAveragePool QGemm DynamicQuantizeMatMul".split()
)
OWN_TO_TENSORRT = frozenset(
    "ImageScaler ParametricSoftplus ScaledTanh TRT_FP8QuantizeLinear TRT_FP8DequantizeLinear TRT_INT4QuantizeLinear "
    "TRT_INT4DequantizeLinear TRT_MXFP8QuantizeLinear TRT_MXFP8DequantizeLinear TRT_MXFP8DynamicQuantize "
    "TRT_FP4DynamicQuantize".split()
)
"""Operators that the parser imports and that are not ONNX operators."""

SHIPPED_PLUGINS = frozenset(
    "BatchedNMS_TRT BatchedNMSDynamic_TRT BatchTilePlugin_TRT ClipPlugin CoordConvAC CropAndResize "
    "CustomEmbLayerNormPluginDynamic CustomQKVToContextPluginDynamic CustomSkipLayerNormPluginDynamic "
    "DetectionLayer_TRT DisentangledAttention_TRT EfficientNMS_TRT EfficientNMS_ONNX_TRT EfficientNMS_Explicit_TF_TRT "
    "EfficientNMS_Implicit_TF_TRT FlattenConcat_TRT GenerateDetection_TRT GridAnchor_TRT GridAnchorRect_TRT "
    "InstanceNormalization_TRT ModulatedDeformConv2d MultilevelCropAndResize_TRT MultilevelProposeROI_TRT "
    "MultiscaleDeformableAttnPlugin_TRT NMS_TRT NMSDynamic_TRT Normalize_TRT PillarScatterPlugin PriorBox_TRT "
    "ProposalLayer_TRT PyramidROIAlign_TRT Region_TRT Reorg_TRT ResizeNearest_TRT ROIAlign_TRT RPROI_TRT "
    "SpecialSlice_TRT VoxelGeneratorPlugin".split()
)
"""Source: the ``plugin`` folder of NVIDIA/TensorRT."""

_TYPES = frozenset(
    getattr(onnx.TensorProto, name)
    for name in "FLOAT FLOAT16 BFLOAT16 DOUBLE INT32 INT64 INT8 UINT8 BOOL FLOAT8E4M3FN INT4 FLOAT4E2M1".split()
    if hasattr(onnx.TensorProto, name)
)


def opset_findings(graph: FileGraph) -> Iterator[Finding]:
    """Yields an opset that TensorRT does not read."""
    opset = f"ONNX opset {graph.opset}"
    if graph.opset < MIN_OPSET:
        yield found("opset too old", "", opset)
    elif graph.opset > MAX_OPSET:
        yield found("opset too new", "", opset)


def type_findings(graph: FileGraph) -> Iterator[Finding]:
    """Yields inputs and outputs of types that TensorRT does not have or casts."""
    constants = {tensor.name for tensor in graph.model.graph.initializer}
    values = {"input": graph.model.graph.input, "output": graph.model.graph.output}
    for side, listed in values.items():
        for value in listed:
            if value.name in constants:
                continue
            kind = value.type.WhichOneof("value")
            element = value.type.tensor_type.elem_type
            name = onnx.TensorProto.DataType.Name(element).lower() if kind == "tensor_type" else kind or "untyped"
            if kind not in (None, "tensor_type") or (element and element not in _TYPES):
                yield found("type refused", "", f"{side} '{value.name}' is of type {name.removesuffix('_type')}")
            elif element == onnx.TensorProto.DOUBLE:
                yield found("float64", "", f"{side} '{value.name}' is of type double")


def operator_findings(graph: FileGraph) -> Iterator[Finding]:
    """Yields operators that TensorRT's parser refuses, in any form or in the form that they have here."""
    for node in with_bodies(graph.nodes):
        name = node.name or f"node_of_{node.output[0] if node.output else node.op_type}"
        full = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        if node.op_type in INTEGER_OPS:
            yield found("integer operator", name, f"operator {full}")
        elif node.op_type in SHIPPED_PLUGINS and (node.domain or not onnx.defs.has(node.op_type)):
            yield found("plugin of TensorRT", name, f"operator {full}")
        elif node.op_type in OWN_TO_TENSORRT:
            continue
        elif node.domain or not onnx.defs.has(node.op_type):
            yield found("plugin needed", name, f"operator {full}")
        elif node.op_type in REFUSED:
            yield found("operator refused", name, f"operator {full}")
        elif node.op_type in _RESTRICTED and (refused := _RESTRICTED[node.op_type](node, graph)):
            yield found("operator restricted", name, f"{node.op_type} with {refused}")


def _more_than_one_output(node: onnx.NodeProto, _graph: FileGraph) -> str:
    return f"its output '{node.output[1]}'" if len(node.output) > 1 and node.output[1] else ""


def _dilated(node: onnx.NodeProto, _graph: FileGraph) -> str:
    dilations = list(attribute_of(node, "dilations").ints)
    return f"dilations {dilations}" if set(dilations) - {1} else ""


def _reducing_scatter(node: onnx.NodeProto, _graph: FileGraph) -> str:
    reduction = attribute_of(node, "reduction").s.decode(errors="replace")
    return f"reduction '{reduction}'" if reduction not in ("", "none") else ""


def _batch_first(node: onnx.NodeProto, _graph: FileGraph) -> str:
    """The parser of RTX 1.7 does not refuse it: it takes the input as time first, and says nothing."""
    return "layout 1, which the parser ignores" if attribute_of(node, "layout").i else ""


def _training(node: onnx.NodeProto, graph: FileGraph) -> str:
    mode = graph.values(node.input[2]) if node.op_type == "Dropout" and len(node.input) > 2 else None
    return "training mode on" if attribute_of(node, "training_mode").i or (mode is not None and np.any(mode)) else ""


_NO_NUMBERS = frozenset({"sparse_value", "value_string", "value_strings"})
_RESTRICTED: dict[str, Callable[[onnx.NodeProto, FileGraph], str]] = {
    "MaxPool": lambda node, graph: _more_than_one_output(node, graph) or _dilated(node, graph),
    "AveragePool": _dilated,
    "LpPool": _dilated,
    "LayerNormalization": _more_than_one_output,
    "ScatterND": _reducing_scatter,
    "Resize": lambda node, _: "antialias" if attribute_of(node, "antialias").i else "",
    "LSTM": lambda node, graph: "input_forget 1" if attribute_of(node, "input_forget").i else _batch_first(node, graph),
    "GRU": _batch_first,
    "RNN": _batch_first,
    "BatchNormalization": _training,
    "Dropout": _training,
    "Constant": lambda node, _: min(_NO_NUMBERS & {attribute.name for attribute in node.attribute}, default=""),
}
"""By operator, a function from a node to the form that the parser refuses, in words; empty if it takes the node.

Resize in mode ``cubic`` is taken: operators.md leaves it out, but the source has it since 8.5, and RTX builds it.
"""


def structure_findings(graph: FileGraph) -> tuple[Finding, ...]:
    """Returns the findings on a graph as it is in the file: errors first, each finding once."""
    return in_order(chain.from_iterable(check(graph) for check in _CHECKS))


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Returns findings by severity, errors first, each once."""
    return tuple(sorted(dict.fromkeys(findings), key=lambda finding: SEVERITIES.index(finding.severity)))


def _shared_findings(graph: FileGraph) -> Iterator[Finding]:
    """Yields weights that several layers read, and layers that share all their constants."""
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.nodes:
        if node.op_type in WEIGHTED:
            for root in {graph.root(name) for name in node.input[:2] if name in graph.constants}:
                readers.setdefault(root, []).append(node)
    for root, nodes in readers.items():
        if len(nodes) > 1:
            names = [node.name for node in nodes]
            constants = {(node.op_type, *_constants_of(node, graph)) for node in nodes}
            has_bias = len(_constants_of(nodes[0], graph)) > 1
            kind = SHARED_LAYER if len(constants) == 1 and has_bias else SHARED_WEIGHT
            yield found(kind, names, f"{len(nodes)} layers read weight '{root}'")


def _constants_of(node: onnx.NodeProto, graph: FileGraph) -> tuple[str, ...]:
    """Returns the constants that a layer reads, by their names in the file: the weight, and the bias if any."""
    return tuple(graph.root(name) for name in node.input if name in graph.constants)


def _fusion_findings(graph: FileGraph) -> Iterator[Finding]:
    """Yields patterns that TensorRT would fuse, if this graph did not prevent it."""
    for node in graph.nodes:
        if node.op_type in WEIGHTED and not graph.constants.issuperset(node.output):
            yield from _read_twice(node, graph)
        elif node.op_type == "Add":
            yield from _activation_before_sum(node, graph)
        elif node.op_type == "Transpose" and node.input and node.input[0] not in graph.constants:
            yield from _transpose_between(node, graph)


def _read_twice(node: onnx.NodeProto, graph: FileGraph) -> Iterator[Finding]:
    """Yields a layer that cannot be fused with its BatchNormalization or activation, since others read its output."""
    tensor = node.output[0]
    if graph.uses(tensor) < 2:
        return
    for reader, slot in graph.readers(tensor):
        if slot == 0 and reader.op_type in (NORM, *ACTIVATIONS):
            others = [beside.name for beside, _ in graph.readers(tensor) if beside.name != reader.name]
            also = ", ".join(f"'{name}'" for name in others) or "the network's output"
            kind = "norm cannot fold" if reader.op_type == NORM else "activation cannot fuse"
            yield found(kind, node.name, f"its output is read by '{reader.name}' and by {also}")


def _activation_before_sum(node: onnx.NodeProto, graph: FileGraph) -> Iterator[Finding]:
    """Yields a residual sum that cannot be fused with a layer, since an activation stands between them."""
    if len(node.input) != 2 or any(name in graph.constants for name in node.input):
        return
    makers = [graph.makers.get(graph.source(name, PAIR)) for name in node.input]
    if any(maker is not None and maker.op_type in (*WEIGHTED, NORM) for maker in makers):
        return
    for name, maker in zip(node.input, makers, strict=True):
        if maker is None or maker.op_type not in ACTIVATIONS or graph.uses(maker.output[0]) > 1:
            continue
        before = graph.maker_op(graph.source(maker.input[0], PAIR))
        if before in (*WEIGHTED, NORM) and graph.uses(name) == 1:
            yield found("activation before the sum", node.name, f"'{maker.name}' stands between the layer and the sum")


def _transpose_between(node: onnx.NodeProto, graph: FileGraph) -> Iterator[Finding]:
    """Yields a Transpose that prevents a fusion, or that the next Transpose undoes."""
    maker = graph.makers.get(node.input[0])
    for reader, _ in graph.readers(node.output[0]):
        two_sided = reader.op_type == "Add" and not any(name in graph.constants for name in reader.input)
        fusible = reader.op_type in (NORM, *ACTIVATIONS) or two_sided
        if maker is not None and maker.op_type in WEIGHTED and fusible:
            yield found("transpose between", node.name, f"it stands between '{maker.name}' and '{reader.name}'")
        if reader.op_type == "Transpose" and _cancels(node, reader):
            yield found("transposes cancel", node.name, f"'{reader.name}' undoes it")


def _cancels(first: onnx.NodeProto, second: onnx.NodeProto) -> bool:
    order, back = attribute_of(first, "perm").ints, attribute_of(second, "perm").ints
    if not order or not back:
        return not order and not back
    return len(order) == len(back) and [order[axis] for axis in back] == list(range(len(order)))


def _norm_findings(graph: FileGraph) -> Iterator[Finding]:
    """Yields each LayerNormalization that the exporter took apart."""
    copied = onnx.ModelProto()
    copied.CopyFrom(graph.model)
    imported = import_detached(copied, graph.weights)
    for node in imported.nodes:
        values = graph.values(node.outputs[0].name) if node.op in ("Constant", "Identity") else None
        if values is not None:
            node.outputs[0].to_constant(values)
    for nodes, *_ in decomposed_normalizations(imported):
        names = [node.name for node in nodes]
        yield found("LayerNormalization in parts", names, f"{len(names)} nodes, from {names[0]} on")


def _float_findings(graph: FileGraph) -> Iterator[Finding]:
    """Yields layers that are not quantized only because their type is not float32. Layers behind pairs do not count."""
    for node in graph.nodes:
        if node.input and is_dequantized(graph, node.input[0]):
            continue
        dtype = graph.dtype(node.input[0]) if node.op_type in WEIGHTED and node.input else None
        if dtype is not None and dtype != "float32" and node.input[0] not in graph.constants:
            yield found("not float32", node.name, f"{node.op_type} of {dtype}")


_CHECKS = (
    opset_findings,
    type_findings,
    operator_findings,
    pair_findings,
    _shared_findings,
    _fusion_findings,
    _norm_findings,
    _float_findings,
)
