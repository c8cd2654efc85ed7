"""Operators, opsets, types and forms of operators that TensorRT refuses.

Source: ``docs/operators.md`` of onnx-tensorrt for TensorRT 10.15, and the errors of TensorRT-RTX 1.7's parser.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import onnx

from trt_bisect.analyzer.structure.findings import Finding, found
from trt_bisect.analyzer.structure.graph import FileGraph, integer, integers, text

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
    for node in graph.all_nodes():
        name = node.name or f"node_of_{node.output[0] if node.output else node.op_type}"
        full = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        if node.op_type in INTEGER_OPS:
            yield found("integer operator", name, f"operator {full}")
        elif node.op_type in SHIPPED_PLUGINS and (node.domain or not _is_onnx(node)):
            yield found("plugin of TensorRT", name, f"operator {full}")
        elif node.op_type in OWN_TO_TENSORRT:
            continue
        elif node.domain or not _is_onnx(node):
            yield found("plugin needed", name, f"operator {full}")
        elif node.op_type in REFUSED:
            yield found("operator refused", name, f"operator {full}")
        else:
            refused = _RESTRICTED.get(node.op_type, _nothing)(node, graph)
            if refused:
                yield found("operator restricted", name, f"{node.op_type} with {refused}")


def _is_onnx(node: onnx.NodeProto) -> bool:
    return onnx.defs.has(node.op_type)


def _nothing(_node: onnx.NodeProto, _graph: FileGraph) -> str:
    return ""


def _more_than_one_output(node: onnx.NodeProto, _graph: FileGraph) -> str:
    return f"its output '{node.output[1]}'" if len(node.output) > 1 and node.output[1] else ""


def _dilated(node: onnx.NodeProto, _graph: FileGraph) -> str:
    return f"dilations {list(integers(node, 'dilations'))}" if set(integers(node, "dilations")) - {1} else ""


def _max_pool(node: onnx.NodeProto, graph: FileGraph) -> str:
    return _more_than_one_output(node, graph) or _dilated(node, graph)


def _reducing_scatter(node: onnx.NodeProto, _graph: FileGraph) -> str:
    reduction = text(node, "reduction")
    return f"reduction '{reduction}'" if reduction not in ("", "none") else ""


def _resize(node: onnx.NodeProto, _graph: FileGraph) -> str:
    if text(node, "mode") == "cubic":
        return "mode 'cubic'"
    return "antialias" if integer(node, "antialias") else ""


def _lstm(node: onnx.NodeProto, _graph: FileGraph) -> str:
    return next((f"{name} 1" for name in ("input_forget", "layout") if integer(node, name)), "")


def _training(node: onnx.NodeProto, graph: FileGraph) -> str:
    mode = graph.values(node.input[2]) if node.op_type == "Dropout" and len(node.input) > 2 else None
    return "training mode on" if integer(node, "training_mode") or (mode is not None and np.any(mode)) else ""


def _text_constant(node: onnx.NodeProto, _graph: FileGraph) -> str:
    named = {attribute.name for attribute in node.attribute} & {"sparse_value", "value_string", "value_strings"}
    return next(iter(sorted(named)), "")


_RESTRICTED: dict[str, Callable[[onnx.NodeProto, FileGraph], str]] = {
    "MaxPool": _max_pool,
    "AveragePool": _dilated,
    "LpPool": _dilated,
    "LayerNormalization": _more_than_one_output,
    "ScatterND": _reducing_scatter,
    "Resize": _resize,
    "LSTM": _lstm,
    "BatchNormalization": _training,
    "Dropout": _training,
    "Constant": _text_constant,
}
"""By operator, a function from a node to the form that the parser refuses, in words; empty if it takes the node."""
