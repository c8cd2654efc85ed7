"""The structure check: finds, without running the network, what TensorRT refuses and what loses accuracy or speed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from itertools import chain

import onnx

from trt_bisect.analyzer.structure.findings import (
    CALLED_AGAIN,
    NEVER_CALLED,
    SEVERITIES,
    SHARED_LAYER,
    SHARED_WEIGHT,
    Finding,
    found,
)
from trt_bisect.analyzer.structure.graph import ACTIVATIONS, NORM, PAIR, WEIGHTED, FileGraph
from trt_bisect.analyzer.structure.operators import operator_findings
from trt_bisect.analyzer.structure.qdq import is_dequantized, pair_findings
from trt_bisect.model.file import attribute
from trt_bisect.model.modules import calls_of, enclosing, places_of
from trt_bisect.model.prepare import MIN_OPSET, decomposed_normalizations, import_detached

MAX_OPSET = 24

_TYPES = frozenset(
    getattr(onnx.TensorProto, name)
    for name in "FLOAT FLOAT16 BFLOAT16 DOUBLE INT32 INT64 INT8 UINT8 BOOL FLOAT8E4M3FN INT4 FLOAT4E2M1".split()
    if hasattr(onnx.TensorProto, name)
)


def opset_findings(graph: FileGraph) -> Iterator[Finding]:
    """Yields a finding for an opset that TensorRT does not read."""
    opset = f"ONNX opset {graph.opset}"
    if graph.opset < MIN_OPSET:
        yield found("opset too old", "", opset)
    elif graph.opset > MAX_OPSET:
        yield found("opset too new", "", opset)


def type_findings(graph: FileGraph) -> Iterator[Finding]:
    """Yields findings on inputs and outputs of types that TensorRT casts or does not support."""
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


def structure_findings(graph: FileGraph, calls: Mapping[str, int] | None = None) -> tuple[Finding, ...]:
    """Returns the structure check's findings on a graph, errors first, each once.

    Args:
        calls: the number of calls of each module in the exported program, by name; default: from the file.
    """
    of_modules = _call_findings(graph, calls_of(graph.model.graph) if calls is None else calls)
    return in_order(chain(of_modules, *(check(graph) for check in _CHECKS)))


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Returns findings by severity, errors first, each once."""
    return tuple(sorted(dict.fromkeys(findings), key=lambda finding: SEVERITIES.index(finding.severity)))


def _shared_findings(graph: FileGraph) -> Iterator[Finding]:
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


def _call_findings(graph: FileGraph, calls: Mapping[str, int]) -> Iterator[Finding]:
    places, parameters = places_of(graph.model.graph), {tensor.name for tensor in graph.model.graph.initializer}
    # A module is in use without a call if a module in it is called, or a function reads its parameters.
    used = {outer for name in (*filter(calls.get, calls), *parameters) for outer in enclosing(name)}
    for path, count in calls.items():
        parent = path.rpartition(".")[0]
        if not count and path not in used and (not parent or parent in used):
            yield found(NEVER_CALLED, "", f"module '{path}' is called 0 times")
        elif count > max(calls.get(parent, 1), 1):
            inside = [name for name, place in places.items() if f"{place.path}.".startswith(f"{path}.")]
            yield found(CALLED_AGAIN, inside, f"module '{path}' is called {count} times")


def _constants_of(node: onnx.NodeProto, graph: FileGraph) -> tuple[str, ...]:
    return tuple(graph.root(name) for name in node.input if name in graph.constants)


# Patterns that TensorRT would fuse, if this graph did not prevent it.
def _fusion_findings(graph: FileGraph) -> Iterator[Finding]:
    for node in graph.nodes:
        if node.op_type in WEIGHTED and not graph.constants.issuperset(node.output):
            yield from _read_twice(node, graph)
        elif node.op_type == "Add":
            yield from _activation_before_sum(node, graph)
        elif node.op_type == "Transpose" and node.input and node.input[0] not in graph.constants:
            yield from _transpose_between(node, graph)


def _read_twice(node: onnx.NodeProto, graph: FileGraph) -> Iterator[Finding]:
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
    maker = graph.makers.get(node.input[0])
    for reader, _ in graph.readers(node.output[0]):
        two_sided = reader.op_type == "Add" and not any(name in graph.constants for name in reader.input)
        fusible = reader.op_type in (NORM, *ACTIVATIONS) or two_sided
        if maker is not None and maker.op_type in WEIGHTED and fusible:
            yield found("transpose between", node.name, f"it stands between '{maker.name}' and '{reader.name}'")
        if reader.op_type == "Transpose" and _cancels(node, reader):
            yield found("transposes cancel", node.name, f"'{reader.name}' undoes it")


def _cancels(first: onnx.NodeProto, second: onnx.NodeProto) -> bool:
    order, back = (attribute(node, "perm", list[int]()) for node in (first, second))
    if not order or not back:
        return not order and not back
    return len(order) == len(back) and [order[axis] for axis in back] == list(range(len(order)))


def _norm_findings(graph: FileGraph) -> Iterator[Finding]:
    imported = import_detached(deepcopy(graph.model), graph.weights)
    for node in imported.nodes:
        values = graph.values(node.outputs[0].name) if node.op in ("Constant", "Identity") else None
        if values is not None:
            node.outputs[0].to_constant(values)
    for nodes, *_ in decomposed_normalizations(imported):
        names = [node.name for node in nodes]
        yield found("LayerNormalization in parts", names, f"{len(names)} nodes, from {names[0]} on")


def _float_findings(graph: FileGraph) -> Iterator[Finding]:
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
