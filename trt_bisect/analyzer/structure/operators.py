"""Operators, types and forms that TensorRT's parser refuses: the table ``refused.json``, and rules for forms.

Source: the parser of TensorRT-RTX 1.7; TensorRT 10.15 agrees unless a comment says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import onnx

from trt_bisect.analyzer.structure.findings import Finding, found
from trt_bisect.analyzer.structure.graph import PAIR, FileGraph, in_scope
from trt_bisect.model.file import attribute
from trt_bisect.model.layers import RECURRENT
from trt_bisect.support.codec import decode

TABLE = Path(__file__).with_name("refused.json")


@dataclass(frozen=True)
class RefusedTypes:
    """The types, by NumPy's names, that an operator does not take as its input number ``slot``."""

    operator: str
    slot: int
    types: tuple[str, ...]


@dataclass(frozen=True)
class ParserTable:
    """The operators and types that a parser refuses in any form.

    Attributes:
        parser: the engine and its version.
        onnx: the version of ONNX whose operators and tests were tried.
        operators: ONNX's operators that the parser does not know.
        plugins: operators that need a plugin which the parser lacks.
        tests, refused: the number of ONNX's tests of operators, and of those refused.
    """

    parser: str
    onnx: str
    operators: tuple[str, ...]
    plugins: tuple[str, ...]
    types: tuple[RefusedTypes, ...]
    tests: int
    refused: int


@cache
def parser_table() -> ParserTable:
    """Returns the operators and types that TensorRT's parser refuses, from ``refused.json``."""
    return decode(ParserTable, TABLE.read_bytes())


INTEGER_OPS = frozenset(
    "ConvInteger MatMulInteger QLinearConv QLinearMatMul QLinearAdd QLinearMul QLinearConcat QLinearSigmoid "
    "QLinearLeakyRelu QLinearAveragePool QLinearGlobalAveragePool QGemm DynamicQuantizeMatMul".split()
)
OWN_TO_TENSORRT = frozenset(
    "ImageScaler ParametricSoftplus ScaledTanh TRT_FP8QuantizeLinear TRT_FP8DequantizeLinear TRT_INT4QuantizeLinear "
    "TRT_INT4DequantizeLinear TRT_MXFP8QuantizeLinear TRT_MXFP8DequantizeLinear TRT_MXFP8DynamicQuantize "
    "TRT_FP4DynamicQuantize".split()
)
"""Operators that the parser imports and ONNX does not have."""

FROM_PLUGINS = frozenset({"DeformConv", "NonZero", "RoiAlign"})
"""Operators that TensorRT, but not TensorRT-RTX, builds from its plugins. Source: ``docs/operators.md``."""

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
"""TensorRT's own plugins. Source: folder ``plugin`` of NVIDIA/TensorRT."""

OF_ONNXRUNTIME = ("com.microsoft", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training")
"""The domains of ONNX Runtime's own operators."""


def operator_findings(graph: FileGraph) -> Iterator[Finding]:
    """Yields findings on operators that TensorRT's parser refuses (in any form, or as this node uses them), of which it
    ignores an attribute, that TensorRT-RTX lacks, or that need a plugin.
    """
    table = parser_table()
    refused = frozenset((*table.operators, *table.plugins)) - FROM_PLUGINS
    for node, scope in in_scope(graph.nodes, graph):
        name = node.name or f"node_of_{node.output[0] if node.output else node.op_type}"
        full = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        if node.op_type in INTEGER_OPS:
            yield found("integer operator", name, f"operator {full}")
        elif node.op_type in SHIPPED_PLUGINS and (node.domain or not onnx.defs.has(node.op_type)):
            yield found("plugin of TensorRT", name, f"operator {full}")
        elif node.op_type in OWN_TO_TENSORRT:
            continue
        # The parser ignores domains: it takes a convolution of com.microsoft.nchwc, whose weights have another layout,
        # for ONNX's.
        elif node.domain.startswith(OF_ONNXRUNTIME):
            yield found("operator of ONNX Runtime", name, f"operator {full}")
        elif node.domain or not onnx.defs.has(node.op_type):
            yield found("plugin needed", name, f"operator {full}")
        elif node.op_type in FROM_PLUGINS:
            yield found("not in TensorRT-RTX", name, f"operator {full}")
        elif node.op_type in refused:
            yield found("operator refused", name, f"operator {full}")
        elif ignored := _ignored(node):
            yield found("operator ignored", name, f"{node.op_type} with {ignored}")
        elif refused_type := _refused_type(node, scope):
            yield found("type restricted", name, f"{node.op_type} with {refused_type}")
        elif form := _RULES.get(node.op_type, _taken)(node, scope):
            yield found("operator restricted", name, f"{node.op_type} with {form}")


def _ignored(node: onnx.NodeProto) -> str:
    # The parser of RTX 1.7 ignores layout 1 of recurrent operators, and takes the first axis for time.
    is_batch_first = node.op_type in RECURRENT and attribute(node, "layout", 0)
    return "layout 1, which the parser ignores" if is_batch_first else ""


def _refused_type(node: onnx.NodeProto, graph: FileGraph) -> str:
    # TensorRT supports uint8 for inputs only.
    for row in parser_table().types:
        name = _input(node, row.slot)
        is_refused = row.operator == node.op_type and str(graph.dtype(name)) in row.types
        if is_refused and name not in graph.constants:
            return f"its input '{name}' of {graph.dtype(name)}"
    if node.op_type in PAIR:
        return ""
    for name in node.output:
        if graph.dtype(name) == np.uint8 and graph.readers(name) and name not in graph.constants:
            return f"its output '{name}' of uint8, which another node reads"
    return ""


def _input(node: onnx.NodeProto, slot: int) -> str:
    # Returns the name of an input; empty if it is absent.
    return next(iter(node.input[slot : slot + 1]), "")


def _taken(_node: onnx.NodeProto, _graph: FileGraph) -> str:
    return ""


Rule = Callable[[onnx.NodeProto, FileGraph], str]
"""A function that returns the form of a node that the parser refuses, in words; empty if it takes the node."""


def _any_of(*rules: Rule) -> Rule:
    return lambda node, graph: next((form for rule in rules if (form := rule(node, graph))), "")


def _outputs(most: int) -> Rule:
    def rule(node: onnx.NodeProto, _graph: FileGraph) -> str:
        used = [name for name in node.output[most:] if name]
        return f"its output '{used[0]}'" if used else ""

    return rule


def _constant(slot: int, role: str) -> Rule:
    # Input slot, role in messages, must be constant or computed from constants.

    def rule(node: onnx.NodeProto, graph: FileGraph) -> str:
        name = _input(node, slot)
        if name and name not in graph.constants:
            return f"{role} '{name}' that are no constants"
        return ""

    return rule


def _values(slot: int, role: str) -> Rule:
    # The values of input slot may come from a shape, but not from a float input of the network.

    def rule(node: onnx.NodeProto, graph: FileGraph) -> str:
        origin = _float_input(_input(node, slot), graph)
        if origin:
            return f"{role} '{node.input[slot]}' computed from the input '{origin}' in floats"
        return ""

    return rule


_SHAPES = ("Shape", "Size", "NonZero")


def _float_input(tensor: str, graph: FileGraph) -> str:
    inputs = {value.name for value in graph.model.graph.input} - graph.constants
    seen, waiting = set[str](), [tensor]
    while waiting:
        name = waiting.pop()
        maker, dtype = graph.makers.get(name), graph.dtype(name)
        if name in inputs and dtype is not None and dtype.kind in "fV":
            return name
        if maker is not None and maker.op_type not in _SHAPES and name not in seen:
            seen.add(name)
            waiting += [read for read in maker.input if read and read not in graph.constants]
    return ""


def _only(name: str, *taken: str) -> Rule:
    # An attribute, a word or a number, must be absent or among taken.

    def rule(node: onnx.NodeProto, _graph: FileGraph) -> str:
        value: bytes | float | None = attribute(node, name, None)
        if value is None:
            return ""
        word = value.decode(errors="replace") if isinstance(value, bytes) else f"{value:g}"
        return f"{name} {word}" if word not in taken else ""

    return rule


def _dilated(node: onnx.NodeProto, _graph: FileGraph) -> str:
    dilations = attribute(node, "dilations", list[int]())
    return f"dilations {dilations}" if set(dilations) - {1} else ""


def _training(node: onnx.NodeProto, graph: FileGraph) -> str:
    mode = graph.values(_input(node, 2)) if node.op_type == "Dropout" else None
    if attribute(node, "training_mode", 0) or (mode is not None and np.any(mode)):
        return "training mode on"
    return ""


def _no_numbers(node: onnx.NodeProto, _graph: FileGraph) -> str:
    kinds = {"sparse_value", "value_string", "value_strings"}
    return min(kinds & {attribute.name for attribute in node.attribute}, default="")


def _float_modulo(node: onnx.NodeProto, graph: FileGraph) -> str:
    dtype = graph.dtype(node.input[0])
    is_float = dtype is not None and dtype not in (np.int32, np.int64)
    if is_float and not attribute(node, "fmod", 0):
        return f"fmod 0 of {dtype}"
    return ""


def _clipped_integers(node: onnx.NodeProto, graph: FileGraph) -> str:
    # Bounds of INT8 must be constant; UINT8 may have none.
    dtype, bounds = graph.dtype(node.input[0]), [name for name in node.input[1:] if name]
    is_taken = len(node.input) == 1 or (bool(bounds) and graph.constants.issuperset(bounds))
    if dtype == np.uint8 or (dtype == np.int8 and not is_taken):
        return f"bounds of {dtype}"
    return ""


def _line_norm(node: onnx.NodeProto, graph: FileGraph) -> str:
    if len(graph.types.shapes.get(node.input[0]) or ()) == 3:
        return "windows along one axis"
    return ""


def _vector_times_batch(node: onnx.NodeProto, graph: FileGraph) -> str:
    # The parser removes the wrong axis of a vector times a batch of matrices.
    shapes = graph.types.shapes
    vector, batch = shapes.get(node.input[0]), shapes.get(node.input[1])
    if vector is None or batch is None or len(vector) != 1 or len(batch) < 3 or set(batch[:-2]) == {1}:
        return ""
    return f"a vector '{node.input[0]}' times the matrices '{node.input[1]}'"


def _causal_mask(node: onnx.NodeProto, _graph: FileGraph) -> str:
    mask = _input(node, 3)
    if mask and attribute(node, "is_causal", 0):
        return f"is_causal 1 and the mask '{mask}'"
    return ""


def _unlike_key_and_value(node: onnx.NodeProto, graph: FileGraph) -> str:
    keys, values = (_size(graph, node, slot, -1) for slot in (1, 2))
    if keys and values and keys != values:
        return f"keys of size {keys} and values of size {values}"
    return ""


def _short_mask(node: onnx.NodeProto, graph: FileGraph) -> str:
    # A mask needs one column, or as many as there are keys.
    keys, columns = _size(graph, node, 1, -2), _size(graph, node, 3, -1)
    if not keys or not columns or _input(node, 4) or columns in (1, keys):
        return ""
    return f"a mask of {columns} columns for {keys} keys"


def _size(graph: FileGraph, node: onnx.NodeProto, slot: int, axis: int) -> int | None:
    shape = graph.types.shapes.get(_input(node, slot))
    size = shape[axis] if shape and -len(shape) <= axis < len(shape) else None
    return size if isinstance(size, int) else None


def _odd_count(node: onnx.NodeProto, graph: FileGraph) -> str:
    shape, dtype = graph.types.shapes.get(node.input[0]) or (None,), str(graph.dtype(node.input[0]))
    is_odd = all(isinstance(size, int) and size % 2 == 1 for size in shape)
    if is_odd and dtype in ("int4", "uint4", "float4_e2m1fn"):
        return f"an odd number of values of {dtype}"
    return ""


def _axes_of_scales(node: onnx.NodeProto, graph: FileGraph) -> str:
    axes, rank = attribute(node, "axes", list[int]()), len(graph.types.shapes.get(node.input[0]) or ())
    if axes and _input(node, 2) and axes != list(range(rank)):
        return f"axes {axes} and scales"
    return ""


def _cache_of_rank(node: onnx.NodeProto, graph: FileGraph) -> str:
    shape = graph.types.shapes.get(node.input[0])
    return f"a cache of rank {len(shape)}" if shape and len(shape) != 4 else ""


def _short_last_part(node: onnx.NodeProto, graph: FileGraph) -> str:
    # The last of equal parts would have a negative size.
    parts, size = attribute(node, "num_outputs", 0), _size(graph, node, 0, attribute(node, "axis", 0))
    if not parts or not size:
        return ""
    each = -(-size // parts)
    return f"{parts} parts of {size}" if each * (parts - 1) > size else ""


def _dtype_attribute(node: onnx.NodeProto, _graph: FileGraph) -> str:
    kind = attribute(node, "dtype", 0)
    if kind == onnx.TensorProto.DOUBLE:
        return f"dtype {onnx.TensorProto.DataType.Name(kind).lower()}"
    return ""


_POOL = _any_of(_outputs(1), _dilated)
_AXES = _constant(1, "axes")
_REDUCTION = _only("reduction", "none")
_REDUCES = (
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare"
)
_MODES = ("align_corners", "tf_half_pixel_for_nn", "pytorch_half_pixel", "half_pixel", "asymmetric")
# Resize in mode cubic is allowed, though operators.md leaves it out: the source has it since 8.5, and RTX builds it.
_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(_REDUCES.split(), _AXES),
    "Attention": _any_of(
        _outputs(1), _only("softcap", "0"), _only("softmax_precision"), _causal_mask, _unlike_key_and_value, _short_mask
    ),
    "AveragePool": _dilated,
    "BatchNormalization": _training,
    "Clip": _clipped_integers,
    "Constant": _no_numbers,
    "ConstantOfShape": _values(0, "a shape"),
    "DequantizeLinear": _odd_count,
    "Dropout": _any_of(_training, _constant(2, "a training mode")),
    "Expand": _values(1, "a shape"),
    "LSTM": _only("input_forget", "0"),
    "LayerNormalization": _outputs(1),
    "Loop": _values(0, "a number of turns"),
    "LpPool": _any_of(_dilated, _only("p", "1", "2"), _line_norm),
    "MatMul": _vector_times_batch,
    "MaxPool": _POOL,
    "Mod": _float_modulo,
    "OneHot": _values(1, "a depth"),
    "RandomNormalLike": _dtype_attribute,
    "RandomUniformLike": _dtype_attribute,
    "Range": _any_of(*(_values(slot, "a value") for slot in range(3))),
    "Reshape": _values(1, "a shape"),
    "Resize": _any_of(
        _only("antialias", "0"),
        _only("keep_aspect_ratio_policy", "stretch"),
        _only("coordinate_transformation_mode", *_MODES),
        _axes_of_scales,
        _values(2, "scales"),
    ),
    "STFT": _constant(1, "frame steps"),
    "Scatter": _REDUCTION,
    "ScatterElements": _REDUCTION,
    "ScatterND": _REDUCTION,
    "Split": _short_last_part,
    "Squeeze": _AXES,
    "TensorScatter": _any_of(_only("mode", "linear"), _cache_of_rank),
    "Tile": _values(1, "repeats"),
    "Unsqueeze": _AXES,
    "Upsample": _values(1, "scales"),
}
