"""Prepares the graph of a file for measuring: inlined, opset 13 or later, constants and BatchNormalization folded."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnxruntime
from onnx import helper, inliner, numpy_helper, shape_inference, version_converter
from onnx_graphsurgeon.ir.tensor import LazyValues
from onnx_graphsurgeon.logger import G_LOGGER

from trt_bisect.errors import BadInput, first_line
from trt_bisect.model.file import Weights, bodies_of, detached_tensor, refill, tensors_read
from trt_bisect.model.modules import Place, places_of
from trt_bisect.model.operators import Cut, add_types, cut_around
from trt_bisect.model.qoperator import with_pairs

NORM_OPSET = 17
"""The first opset with LayerNormalization."""


Decomposed = tuple[list[gs.Node], int, float, "np.ndarray | None", "np.ndarray | None"]
"""A LayerNormalization in parts: its nodes; first normalized axis, from the end; epsilon; scale; bias."""


def decomposed_normalizations(graph: gs.Graph) -> Iterator[Decomposed]:
    """Yields each LayerNormalization that consists of several nodes; scale and bias are None if absent."""
    for node in graph.nodes:
        norm = _from_mean(node) if node.op == "ReduceMean" else None
        if norm and not any(tensor in graph.outputs for part in norm[0][:-1] for tensor in part.outputs):
            yield norm


def fuse_normalizations(graph: gs.Graph) -> int:
    """Fuses each decomposed LayerNormalization into one node, in place. Returns the number of fusions.

    Exporters write these nine nodes for opsets below 17:

        x -> ReduceMean -> Sub(x, mean) = d -> Pow(d, 2) -> ReduceMean -> Add(epsilon) -> Sqrt
                                          d -> Div(d, .) -> Mul(scale) -> Add(bias)

    Only sure matches are fused.
    """
    # In FP16 the square overflows above 255, and its mean is inexact; TensorRT computes the single node in FP32 inside
    # (TensorRT issue 4493).
    norms = list(decomposed_normalizations(graph))
    for nodes, axis, epsilon, scale, bias in norms:
        x, last = nodes[0].inputs[0], nodes[-1]
        scale = np.ones(x.shape[axis:], np.float32) if scale is None else scale
        arrays = {"scale": scale} if bias is None else {"scale": scale, "bias": bias}
        constants = [gs.Constant(f"{last.name}.{name}", np.ascontiguousarray(array)) for name, array in arrays.items()]
        attributes = {"axis": axis, "epsilon": epsilon}
        fused = gs.Node("LayerNormalization", last.name, attributes, [x, *constants], list(last.outputs))
        graph.nodes.insert(graph.nodes.index(last), fused)
        for node in nodes:
            node.inputs.clear()
            node.outputs.clear()
            graph.nodes.remove(node)
        fused.outputs = list(fused.outputs)
    return len(norms)


def _from_mean(mean: gs.Node) -> Decomposed | None:
    x, axes = mean.inputs[0], _axes(mean)
    sub = _only_reader(mean, "Sub")
    if axes is None or sub is None or sub.inputs[0] is not x or sub.inputs[1] is not mean.outputs[0]:
        return None
    centred = sub.outputs[0]
    square = next((node for node in centred.outputs if _is_square(node)), None)
    divided = next((node for node in centred.outputs if node.op == "Div" and node.inputs[0] is centred), None)
    if square is None or divided is None or {id(node) for node in centred.outputs} != {id(square), id(divided)}:
        return None
    variance = _only_reader(square, "ReduceMean")
    add = None if variance is None or _axes(variance) != axes else _only_reader(variance, "Add")
    root = None if add is None else _only_reader(add, "Sqrt")
    epsilon = None if add is None or variance is None else _constant_beside(add, variance.outputs[0])
    if root is None or epsilon is None or epsilon.size != 1 or _only_reader(root, "Div") is not divided:
        return None
    nodes, sizes = [mean, sub, square, variance, add, root, divided], tuple(x.shape[axes:])
    scale = _then(nodes, "Mul", sizes)
    bias = None if scale is None else _then(nodes, "Add", sizes)
    return nodes, axes, float(epsilon.reshape(())), scale, bias


def _then(nodes: list[gs.Node], operator: str, sizes: tuple[int, ...]) -> np.ndarray | None:
    following = _only_reader(nodes[-1], operator)
    constant = None if following is None else _constant_beside(following, nodes[-1].outputs[0])
    if constant is None or constant.shape != sizes:
        return None
    nodes.append(following)
    return constant


def _axes(mean: gs.Node) -> int | None:
    # from the end; None unless the mean is over the last axes, all known
    axes = mean.attrs.get("axes")
    if axes is None and len(mean.inputs) > 1 and isinstance(mean.inputs[1], gs.Constant):
        axes = mean.inputs[1].values.tolist()
    shape = mean.inputs[0].shape
    if not axes or shape is None or not mean.attrs.get("keepdims", 1):
        return None
    rank = len(shape)
    axes = sorted(axis % rank - rank for axis in axes)
    are_known = all(isinstance(size, int) and size > 0 for size in shape[axes[0] :])
    return axes[0] if are_known and axes == list(range(-len(axes), 0)) else None


def _is_square(node: gs.Node) -> bool:
    if node.op == "Pow":
        return isinstance(node.inputs[1], gs.Constant) and np.ravel(node.inputs[1].values).tolist() == [2]
    return node.op == "Mul" and node.inputs[0] is node.inputs[1]


def _only_reader(node: gs.Node, operator: str) -> gs.Node | None:
    readers = {id(reader): reader for reader in node.outputs[0].outputs} if len(node.outputs) == 1 else {}
    reader = next(iter(readers.values()), None)
    return reader if len(readers) == 1 and reader is not None and reader.op == operator else None


def _constant_beside(node: gs.Node, tensor: gs.Tensor) -> np.ndarray | None:
    beside = [read for read in node.inputs if read is not tensor]
    is_constant = len(node.inputs) == 2 and len(beside) == 1 and isinstance(beside[0], gs.Constant)
    return np.asarray(beside[0].values) if is_constant else None


MIN_OPSET, UNNOTED_OPSET = 9, 11
"""The oldest opset that is read, as in TensorRT; and the oldest that is converted without a note."""
QDQ_OPSET = 13
"""The first opset with Q/DQ per channel."""

QUANTIZE_OPS = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")
_ML_TYPES = (onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT8E4M3FN)
_FOLD_UNTIL_BYTES = 1 << 28
_COMPUTED_UNTIL_BYTES = 1 << 30
_ONLY_ERRORS = 3

NAME_IN_FILE = "trt-bisect, name in the network's file: "
"""Begins the ``doc_string`` of a node that ``Network.for_parser`` renamed; the old name follows."""

Shapes = Mapping[str, tuple[int, ...]]


def prepare(
    model: onnx.ModelProto,
    weights: Mapping[str, np.ndarray],
    shapes: Shapes,
    source: str,
    opset: int,
    *,
    fuse_norms: bool,
) -> tuple[gs.Graph, Cut | None, dict[str, Place]]:
    """Prepares a model: every node of the result is a layer, named and not constant.

    Args:
        model: the file's graph, which is changed.
        weights: the model's large weights, kept apart.
        shapes: sizes of dynamic axes, by input.
        opset: the oldest opset of the result; 13 if less.

    Returns:
        The graph; sentences on the part cut off because ONNX Runtime cannot run it, or None; and the nodes' places in
        the PyTorch program, by name.

    Raises BadInput if the opset is too old or cannot be converted, a shape does not fit, or the graph is not valid.
    """
    model = with_pairs(with_named_nodes(model), weights)
    sort_nodes(model.graph, source)
    places = places_of(model.graph)
    model, cut = cut_around(model, weights, source)
    _fix_shapes(model.graph, shapes, source)
    add_types(model, weights)
    model = _convert_opset(model, source, max(opset, QDQ_OPSET))
    name_nodes(model.graph)
    _refuse_incomplete(model, source)
    spell_out_partial_shapes(model.graph)
    _leave_unknown_sizes_nameless(model.graph)
    model = infer_shapes(model)
    G_LOGGER.severity = logging.ERROR
    onnxruntime.set_default_logger_severity(_ONLY_ERRORS)
    graph = import_detached(model, weights)
    _use_numpy_types(graph)
    _refuse_large_constants(graph, source)
    graph.fold_constants(
        partitioning="recursive",
        flatten_subgraphs=False,
        size_threshold=_FOLD_UNTIL_BYTES,
        should_exclude_node=lambda node: node.op in QUANTIZE_OPS,
    ).cleanup()
    bypass_identities(graph)
    fold_batch_normalization(graph)
    if fuse_norms:
        fuse_normalizations(graph)
    _state_kernel_shapes(graph)
    return graph.cleanup(), cut, places


def _state_kernel_shapes(graph: gs.Graph) -> None:
    # TensorRT before 10 refuses a convolution without kernel_shape whose weight comes from a DequantizeLinear (8.6.0,
    # see docs/evidence).
    for node in graph.nodes:
        if node.op in ("Conv", "ConvTranspose") and "kernel_shape" not in node.attrs:
            sizes = list(node.inputs[1].shape or ())[2:]
            if sizes and all(isinstance(size, int) for size in sizes):
                node.attrs["kernel_shape"] = sizes


def _use_numpy_types(graph: gs.Graph) -> None:
    # GraphSurgeon has ONNX numbers as the types of BF16 and FP8 tensors.
    for tensor in graph.tensors().values():
        if tensor.dtype in _ML_TYPES:
            if isinstance(tensor, gs.Constant):
                tensor.values = numpy_helper.to_array(tensor._values.tensor)
            else:
                tensor.dtype = helper.tensor_dtype_to_np_dtype(tensor.dtype)


def _refuse_incomplete(model: onnx.ModelProto, source: str) -> None:
    opset = opset_of(model)
    for node in model.graph.node:
        if node.domain or not onnx.defs.has(node.op_type, opset):
            continue
        schema = onnx.defs.get_schema(node.op_type, opset)
        if len(node.input) < schema.min_input or len(node.output) < schema.min_output:
            raise BadInput(
                f"The network '{source}' is not valid: '{node.name}' ({node.op_type}) has {len(node.input)} inputs and "
                f"{len(node.output)} outputs, and needs at least {schema.min_input} and {schema.min_output}.",
                "Check it with onnx.checker.check_model and export it again.",
            )


def _refuse_large_constants(graph: gs.Graph, source: str) -> None:
    computed: set[int] = set()
    for node in graph.nodes:
        if not all(isinstance(tensor, gs.Constant) or id(tensor) in computed for tensor in node.inputs):
            continue
        computed |= {id(out) for out in node.outputs}
        size = max([_computed_bytes(node), *map(_size, node.outputs)])
        if size > _COMPUTED_UNTIL_BYTES:
            raise BadInput(
                f"'{source}' computes a constant of {size >> 20:,} MiB: {node.op} '{node.name}'.",
                "Compute it from the network's inputs, or export it as a weight.",
            )


def _computed_bytes(node: gs.Node) -> int:
    values = [np.asarray(tensor.values).ravel() for tensor in node.inputs if isinstance(tensor, gs.Constant)]
    if len(values) != len(node.inputs) or any(array.dtype.kind not in "iuf" for array in values):
        return 0
    if node.op == "ConstantOfShape" and len(values) == 1:
        return math.prod(map(int, values[0])) * 4
    if node.op in ("Expand", "Tile") and len(values) == 2:
        return math.prod(map(int, values[1])) * values[0].itemsize
    if node.op == "Range" and all(array.size == 1 for array in values) and len(values) == 3 and values[2][0]:
        return int((float(values[1][0]) - float(values[0][0])) / float(values[2][0])) * values[0].itemsize
    return 0


def _size(tensor: gs.Tensor) -> int:
    if tensor.shape is None or tensor.dtype is None or not all(isinstance(size, int) for size in tensor.shape):
        return 0
    return int(math.prod(tensor.shape) * np.dtype(tensor.dtype).itemsize)


def with_named_nodes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns ``model``, which is changed, with functions inlined and nodes named."""
    _use_default_domain(model)
    if model.functions:
        model = inliner.inline_local_functions(model)
    name_nodes(model.graph)
    return model


def _leave_unknown_sizes_nameless(graph: onnx.GraphProto) -> None:
    # Paddle names any unknown size ``?``, and TensorRT takes axes of one name for equally long.
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param and not any(letter.isalnum() for letter in dim.dim_param):
                dim.ClearField("dim_param")


def infer_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns ``model`` with types and shapes, as far as ONNX can infer them."""
    try:
        return shape_inference.infer_shapes(model, data_prop=True)
    except Exception as error:
        logging.getLogger(__name__).debug("shape inference: %s", error)
        return model


def refuse_shapes(graph: onnx.GraphProto, shapes: Shapes, source: str) -> None:
    """Raises BadInput, about the file ``source``, if an input in ``shapes`` is missing or does not take its shape."""
    inputs = _inputs_of(graph)
    for name, shape in shapes.items():
        if name not in inputs:
            raise BadInput(
                f"'{source}' has no input '{name}' to give a shape to.",
                "Its inputs are " + ", ".join(f"'{name}'" for name in inputs) + ".",
            )
        dims = inputs[name].type.tensor_type.shape.dim
        fits = len(dims) == len(shape) and all(
            not dim.HasField("dim_value") or dim.dim_value in (size, -1) for dim, size in zip(dims, shape, strict=True)
        )
        if not fits:
            raise BadInput(
                f"Shape {'x'.join(map(str, shape))} does not fit input '{name}' of '{source}': {_dims_text(dims)}.",
                _shape_remedy(name, shape, dims),
            )


def _inputs_of(graph: onnx.GraphProto) -> dict[str, onnx.ValueInfoProto]:
    constants = {tensor.name for tensor in graph.initializer}
    return {value.name: value for value in graph.input if value.name not in constants}


def _fix_shapes(graph: onnx.GraphProto, shapes: Shapes, source: str) -> None:
    refuse_shapes(graph, shapes, source)
    inputs = _inputs_of(graph)
    for name, shape in shapes.items():
        for dim, size in zip(inputs[name].type.tensor_type.shape.dim, shape, strict=True):
            dim.dim_value = size
    if shapes:
        del graph.value_info[:]


def _dims_text(dims: object) -> str:
    return "x".join(str(d.dim_value) if d.HasField("dim_value") else "?" for d in dims)  # type: ignore[attr-defined]


def _shape_remedy(name: str, shape: tuple[int, ...], dims: Sequence[Any]) -> str:
    sizes = (1, *shape) if len(shape) == len(dims) - 1 else shape
    if all(dim.HasField("dim_value") for dim in dims):
        return "Leave --shape out: every size of that input is fixed in the network."
    if len(sizes) != len(dims):
        return f"Give {len(dims)} sizes, such as --shape {name}:{_dims_text(dims)} with a number for each '?'."
    fixed = [dim.dim_value if dim.HasField("dim_value") else size for dim, size in zip(dims, sizes, strict=True)]
    return f"Only '?' can be given a size: --shape {name}:{'x'.join(map(str, fixed))}."


def opset_of(model: onnx.ModelProto) -> int:
    """Returns the version of the ONNX operators (opset)."""
    return next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 1)


def _convert_opset(model: onnx.ModelProto, source: str, needed: int) -> onnx.ModelProto:
    opset = opset_of(model)
    if opset < MIN_OPSET:
        raise BadInput(
            f"'{source}' uses ONNX opset {opset}; {MIN_OPSET} is the oldest that is supported.",
            "Export it again with opset 13 or later, or convert it with onnx.version_converter.",
        )
    if opset >= needed:
        return model
    try:
        return version_converter.convert_version(model, needed)
    except Exception as error:
        problem = f"'{source}' uses opset {opset} and cannot be converted to {needed}, which its Q/DQ pairs need"
        remedy = f"Export it again with opset {needed} or later."
        raise BadInput(f"{problem}: {first_line(error)}", remedy) from error


def sort_nodes(graph: onnx.GraphProto, source: str) -> None:
    """Sorts the nodes in execution order, in place; raises BadInput, about the file ``source``, for a cycle."""
    maker = {name: i for i, node in enumerate(graph.node) for name in node.output if name}
    needed = [{maker[name] for name in tensors_read(node) if name in maker} for node in graph.node]
    if all(max(before, default=-1) < i for i, before in enumerate(needed)):
        return
    try:
        order = list(TopologicalSorter(dict(enumerate(needed))).static_order())
    except CycleError as error:
        raise BadInput(
            f"The nodes of '{source}' form a cycle: a node reads a tensor that is computed from its own output.",
            "Check it with onnx.checker.check_model and export it again.",
        ) from error
    refill(graph.node, [graph.node[i] for i in order])


def name_nodes(graph: onnx.GraphProto) -> None:
    """Names unnamed nodes as TensorRT's parser does, ``node_of_<output>``, and makes all names unique.

    Nodes renamed for TensorRT's parser get their old names back. Source: ``getNodeName`` in onnx-tensorrt's
    ``onnxProtoUtils.cpp``.
    """
    taken: set[str] = set()
    for node in graph.node:
        before, _, renamed = node.doc_string.partition(NAME_IN_FILE)
        name = ("" if before else renamed) or node.name or f"node_of_{(*node.output, node.op_type)[0]}"
        node.name = unused_name("".join(letter if letter.isprintable() else "_" for letter in name), taken)


def names_for_parser(nodes: Sequence[str], constants: Collection[str]) -> dict[str, str]:
    """Returns, by old name, new names for nodes whose names TensorRT's parser may give to layers that it adds.

    The sum with the bias of ``fc`` may become ``fc_6``, so a node ``fc_6`` is renamed ``fc.6``. Source:
    ``ImporterContext::registerLayer`` in onnx-tensorrt's ``ImporterContext.cpp``.
    """
    taken = {*nodes, *constants}
    names: dict[str, str] = {}
    for name in nodes:
        stem, _, number = name.rpartition("_")
        is_numbered = number.isdecimal() and stem in taken
        if is_numbered or name in constants:
            new_name = f"{stem}.{number}" if is_numbered else f"{name}."
            while new_name in taken:
                new_name += "."
            taken.add(new_name)
            names[name] = new_name
    return names


def _use_default_domain(model: onnx.ModelProto) -> None:
    # The domain ``ai.onnx`` means the empty text, but not every tool knows it.
    for entry in (*model.opset_import, *(opset for function in model.functions for opset in function.opset_import)):
        entry.domain = "" if entry.domain == "ai.onnx" else entry.domain
    bodies: list[onnx.GraphProto | onnx.FunctionProto] = [model.graph, *model.functions]
    while bodies:
        for node in bodies.pop().node:
            node.domain = "" if node.domain == "ai.onnx" else node.domain
            bodies += bodies_of(node)


def spell_out_partial_shapes(graph: onnx.GraphProto) -> None:
    """Rewrites ``Shape(start, end)`` as Shape and Slice, in place."""
    # GraphSurgeon would fold the first as the whole shape.
    nodes = []
    for node in graph.node:
        for body in bodies_of(node):
            spell_out_partial_shapes(body)
        bounds = {attribute.name: attribute.i for attribute in node.attribute if attribute.name in ("start", "end")}
        if node.op_type != "Shape" or node.domain or not bounds:
            nodes.append(node)
            continue
        final, full_shape = node.output[0], f"{node.output[0]}__whole"
        nodes.append(helper.make_node("Shape", node.input, [full_shape], f"{node.name}_whole"))
        limits = {"starts": bounds.get("start", 0), "ends": bounds.get("end", np.iinfo(np.int64).max), "axes": 0}
        for name, value in limits.items():
            constant = numpy_helper.from_array(np.array([value], np.int64))
            nodes.append(helper.make_node("Constant", [], [f"{final}__{name}"], f"{node.name}_{name}", value=constant))
        inputs = [full_shape, *(f"{final}__{name}" for name in limits)]
        nodes.append(helper.make_node("Slice", inputs, [final], node.name))
    refill(graph.node, nodes)


def bypass_identities(graph: gs.Graph) -> None:
    """Removes Identity and inference-time Dropout nodes."""
    for node in list(graph.nodes):
        out = node.outputs[0] if node.outputs else None
        if out is None or not _is_identity(node) or any(out in scope.outputs for scope in scopes_of(graph)):
            continue
        redirect(out, node.inputs[0])
        node.outputs.clear()
        node.inputs.clear()
        graph.nodes.remove(node)


def redirect(old: gs.Tensor, new: gs.Tensor) -> None:
    """Makes the nodes that read ``old`` read ``new``, in place."""
    for reader in list(old.outputs):
        reader.inputs = [new if tensor is old else tensor for tensor in reader.inputs]


def _is_identity(node: gs.Node) -> bool:
    if node.op == "Dropout":
        training = node.inputs[2] if len(node.inputs) > 2 else None
        off = training is None or (isinstance(training, gs.Constant) and not np.any(training.values))
        return off and all(not mask.outputs for mask in node.outputs[1:])
    return bool(node.op == "Identity" and isinstance(node.inputs[0], (gs.Variable, gs.Constant)))


def tensor_names(graph: gs.Graph) -> set[str]:
    """Returns the names of all tensors, also inside nodes."""
    return {name for scope in scopes_of(graph) for name in scope.tensors(check_duplicates=False)}


def unused_name(stem: str, taken: set[str]) -> str:
    """Returns ``stem``, numbered if it is in ``taken``, and adds the result to ``taken``."""
    name, count = stem, 1
    while name in taken:
        name, count = f"{stem}_{count}", count + 1
    taken.add(name)
    return name


def fold_batch_normalization(graph: gs.Graph) -> None:
    """Folds each BatchNormalization into the convolution or Gemm before it, in place, as TensorRT does."""
    taken = tensor_names(graph)
    for node in list(graph.nodes):
        if node.op != "BatchNormalization" or node.attrs.get("training_mode", 0):
            continue
        makers = node.inputs[0].inputs
        if len(makers) != 1 or not _can_absorb(makers[0], node, graph):
            continue
        # y = (W x + b - mean) * s + beta with s = gamma / sqrt(var + epsilon)
        gamma, beta, mean, variance = (tensor.values.astype(np.float64) for tensor in node.inputs[1:5])
        scale = gamma / np.sqrt(variance + node.attrs.get("epsilon", 1e-5))
        _absorb(makers[0], scale, beta - mean * scale, taken)
        out = node.outputs[0]
        node.outputs.clear()
        makers[0].outputs = [out]
        graph.nodes.remove(node)


def _can_absorb(producer: gs.Node, norm: gs.Node, graph: gs.Graph) -> bool:
    tensor = norm.inputs[0]
    constants = [*norm.inputs[1:5], *producer.inputs[1:]]
    return (
        producer.op in ("Conv", "ConvTranspose", "Gemm")
        and len(tensor.outputs) == 1
        and tensor not in graph.outputs
        and len([out for out in norm.outputs if out.outputs]) <= 1
        and all(isinstance(constant, gs.Constant) and constant not in graph.outputs for constant in constants)
        and {constant.values.shape for constant in norm.inputs[1:5]} == {(norm.inputs[1].values.size,)}
        and (producer.op != "Gemm" or len(producer.inputs) < 3 or producer.inputs[2].values.ndim == 1)
    )


def _absorb(producer: gs.Node, scale: np.ndarray, shift: np.ndarray, taken: set[str]) -> None:
    weight = producer.inputs[1]
    dtype, is_shared = weight.values.dtype, len(weight.outputs) > 1
    folded = _scaled(weight.values.astype(np.float64), scale, producer)
    beta = float(producer.attrs.get("beta", 1.0)) if producer.op == "Gemm" else 1.0
    bias = producer.inputs[2].values.astype(np.float64) * beta if len(producer.inputs) > 2 else 0.0
    folded_bias = np.broadcast_to((bias * scale + shift) / (beta or 1.0), scale.shape)
    if producer.op == "Gemm" and beta == 0.0:
        producer.attrs["beta"] = 1.0
    name = unused_name(f"{producer.name}.weight", taken) if is_shared else weight.name
    producer.inputs = [
        producer.inputs[0],
        gs.Constant(name, folded.astype(dtype)),
        gs.Constant(unused_name(f"{producer.name}.folded_bias", taken), folded_bias.astype(dtype)),
    ]


def _scaled(weight: np.ndarray, scale: np.ndarray, layer: gs.Node) -> np.ndarray:
    if layer.op == "Gemm":
        return np.asarray(weight * (scale[:, np.newaxis] if layer.attrs.get("transB", 0) else scale))
    if layer.op == "Conv":
        return np.asarray(weight * scale.reshape((-1,) + (1,) * (weight.ndim - 1)))
    groups = layer.attrs.get("group", 1)
    grouped = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
    by_channel = scale.reshape((groups, 1, weight.shape[1]) + (1,) * (weight.ndim - 2))
    return np.asarray((grouped * by_channel).reshape(weight.shape))


_ODD_TYPES = ("map_type", "optional_type", "opaque_type")
DYNAMIC_OPS = frozenset({"ConvInteger", "MatMulInteger", "DynamicQuantizeLinear", "DynamicQuantizeMatMul"})
"""The operators of dynamic quantization, which have no constant scales."""


def drop_odd_outputs(graph: onnx.GraphProto, source: str) -> tuple[str, ...]:
    """Removes outputs that are maps or optional values, in place; returns a note on them, or no note without such
    outputs.

    Raises BadInput, about the file ``source``, if no output is left.
    """
    odd = [
        value.name
        for value in graph.output
        if value.type.WhichOneof("value") in _ODD_TYPES
        or value.type.sequence_type.elem_type.WhichOneof("value") == "map_type"
    ]
    kept = [value for value in graph.output if value.name not in odd]
    if not kept:
        raise BadInput(
            f"'{source}' has no output that is a tensor: {', '.join(odd)}.",
            "Cut the network before the nodes that make maps (ZipMap) or optional values.",
        )
    if not odd:
        return ()
    refill(graph.output, kept)
    return (f"outputs that are maps or optional values are left out: {', '.join(map(repr, odd))}",)


def is_integer_layer(op_type: str) -> bool:
    """Returns true for an operator of the QOperator format, which computes with integers."""
    return op_type.startswith("QLinear") or op_type == "QGemm"


def refuse_integer_layers(graph: gs.Graph, source: str) -> None:
    """Raises BadInput, about the file ``source``, if ``graph`` still has integer layers, not Q/DQ pairs."""
    ops = [node.op for node in graph.nodes if node.op in DYNAMIC_OPS or is_integer_layer(node.op)]
    if ops:
        raise BadInput(
            f"'{source}' is quantized already, into {len(ops)} integer layers ({', '.join(sorted(set(ops)))}) without "
            "constant scales: no such layer can be put back into high precision.",
            "Give the FP32 network, or quantize it in Q/DQ format (QuantFormat.QDQ in ONNX Runtime). "
            f"'trt-bisect compare FP32.onnx {source} --input DATA' runs it as it is, next to the FP32 network.",
        )


_OF_SHAPES = ("Shape", "Size")


class _Detached(LazyValues):  # type: ignore[misc]
    def __init__(self, name: str, array: np.ndarray) -> None:
        super().__init__(detached_tensor(name, array))
        self.array = array

    def load(self) -> np.ndarray:
        return self.array


def import_detached(model: onnx.ModelProto, weights: Mapping[str, np.ndarray]) -> gs.Graph:
    """Returns GraphSurgeon's graph of a model whose large ``weights`` are kept apart."""
    # Large weights stay detached, so that nothing copies them.
    graph = gs.import_onnx(model)
    fixed, outputs = _not_foldable(graph), {id(tensor) for tensor in graph.outputs}
    for scope in scopes_of(graph):
        for tensor in scope.tensors(check_duplicates=False).values():
            values: Any = tensor._values if isinstance(tensor, gs.Constant) else None
            if type(values) is LazyValues and values.tensor.data_location == onnx.TensorProto.EXTERNAL:
                name, array = tensor.name, weights[tensor.name]
                # fold_constants cannot need a weight read only by layers that depend on the network's inputs.
                apart = id(tensor) not in outputs and all(id(node) in fixed for node in tensor.outputs)
                tensor.values = _Detached(name, array) if apart else LazyValues(numpy_helper.from_array(array, name))
                tensor.data_location = None
    return graph


def scopes_of(graph: gs.Graph) -> list[gs.Graph]:
    """Returns a graph and all graphs inside its nodes."""
    return [graph, *graph.subgraphs(recursive=True)]


def _not_foldable(graph: gs.Graph) -> set[int]:
    # nodes that depend on the values of an input, not on its shape alone
    depends = {id(tensor) for tensor in graph.inputs}
    fixed, before = set[int](), -1
    while len(fixed) > before:
        before = len(fixed)
        for node in graph.nodes:
            if id(node) not in fixed and any(id(tensor) in depends for tensor in node.inputs):
                fixed.add(id(node))
                if node.op not in _OF_SHAPES:
                    depends |= {id(tensor) for tensor in node.outputs}
    return fixed


def detached_in(graph: gs.Graph) -> Weights:
    """Returns the large weights of a graph by name."""
    constants = [tensor for tensor in graph.tensors(check_duplicates=False).values() if isinstance(tensor, gs.Constant)]
    return {tensor.name: tensor._values.array for tensor in constants if isinstance(tensor._values, _Detached)}
