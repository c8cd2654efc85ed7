"""The structure check: finds, without running the network, what TensorRT refuses and what loses accuracy or speed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx

from trt_bisect.analyzer.structure.findings import SEVERITIES, SHARED_LAYER, SHARED_WEIGHT, Finding, found
from trt_bisect.analyzer.structure.graph import ACTIVATIONS, PAIR, WEIGHTED, FileGraph, integers
from trt_bisect.analyzer.structure.operators import operator_findings, opset_findings, type_findings
from trt_bisect.analyzer.structure.qdq import is_dequantized, pair_findings

_NORM = "BatchNormalization"


def structure_findings(graph: FileGraph) -> tuple[Finding, ...]:
    """Returns the findings on a graph as it is in the file: errors first, each finding once."""
    findings = [
        *opset_findings(graph),
        *type_findings(graph),
        *operator_findings(graph),
        *pair_findings(graph),
        *_shared_findings(graph),
        *_fusion_findings(graph),
        *_float_findings(graph),
    ]
    return in_order(findings)


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
        if slot == 0 and reader.op_type in (_NORM, *ACTIVATIONS):
            others = [other.name for other, _ in graph.readers(tensor) if other.name != reader.name]
            also = ", ".join(f"'{name}'" for name in others) or "the network's output"
            kind = "norm cannot fold" if reader.op_type == _NORM else "activation cannot fuse"
            yield found(kind, node.name, f"its output is read by '{reader.name}' and by {also}")


def _activation_before_sum(node: onnx.NodeProto, graph: FileGraph) -> Iterator[Finding]:
    """Yields a residual sum that cannot be fused with a layer, since an activation stands between them."""
    if len(node.input) != 2 or any(name in graph.constants for name in node.input):
        return
    makers = [graph.makers.get(graph.source(name, PAIR)) for name in node.input]
    if any(maker is not None and maker.op_type in (*WEIGHTED, _NORM) for maker in makers):
        return
    for name, maker in zip(node.input, makers, strict=True):
        if maker is None or maker.op_type not in ACTIVATIONS or graph.uses(maker.output[0]) > 1:
            continue
        before = graph.maker_op(graph.source(maker.input[0], PAIR))
        if before in (*WEIGHTED, _NORM) and graph.uses(name) == 1:
            yield found("activation before the sum", node.name, f"'{maker.name}' stands between the layer and the sum")


def _transpose_between(node: onnx.NodeProto, graph: FileGraph) -> Iterator[Finding]:
    """Yields a Transpose that prevents a fusion, or that the next Transpose undoes."""
    maker = graph.makers.get(node.input[0])
    for reader, _ in graph.readers(node.output[0]):
        two_sided = reader.op_type == "Add" and not any(name in graph.constants for name in reader.input)
        fusible = reader.op_type in (_NORM, *ACTIVATIONS) or two_sided
        if maker is not None and maker.op_type in WEIGHTED and fusible:
            yield found("transpose between", node.name, f"it stands between '{maker.name}' and '{reader.name}'")
        if reader.op_type == "Transpose" and _cancels(node, reader):
            yield found("transposes cancel", node.name, f"'{reader.name}' undoes it")


def _cancels(first: onnx.NodeProto, second: onnx.NodeProto) -> bool:
    order, back = integers(first, "perm"), integers(second, "perm")
    if not order or not back:
        return not order and not back
    return len(order) == len(back) and [order[axis] for axis in back] == list(range(len(order)))


def _float_findings(graph: FileGraph) -> Iterator[Finding]:
    """Yields layers that are not quantized only because their type is not float32. Layers behind pairs do not count."""
    for node in graph.nodes:
        if node.input and is_dequantized(graph, node.input[0]):
            continue
        dtype = graph.dtype(node.input[0]) if node.op_type in WEIGHTED and node.input else None
        if dtype is not None and dtype != "float32" and node.input[0] not in graph.constants:
            yield found("not float32", node.name, f"{node.op_type} of {dtype}")
