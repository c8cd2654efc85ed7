"""The nodes of a file that are no layers: constants, Q/DQ pairs, and operators that preparing the graph drops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import onnx

from trt_bisect.analyzer.structure.graph import PAIR, FileGraph
from trt_bisect.model.file import tensors_read
from trt_bisect.model.network import Network
from trt_bisect.support.table import NAME, Column

_PASSED_ON = ("Identity", "Dropout")


@dataclass(frozen=True)
class DroppedNode:
    """A node of the file that is no layer.

    Attributes:
        after: the index of the layer before it in the file; None before the first one.
        node: its name.
        op_type: its operator.
        tensor: its first output.
        why: what became of it.
        calls: the number of nodes that read its outputs.
    """

    after: Annotated[int | None, Column("After", "Index of the layer before it", rank=1)]
    node: Annotated[str, Column("Node", kind=NAME, rank=0)]
    op_type: Annotated[str, Column("Op", "Operator", rank=0)]
    tensor: Annotated[str, Column("Output", rank=4)]
    why: Annotated[str, Column("No layer", "What became of it", rank=0)]
    calls: Annotated[int, Column("Read by", "Nodes that read its outputs", rank=2)]


def dropped_nodes(graph: FileGraph, network: Network) -> Iterator[DroppedNode]:
    """Yields the nodes of a file that are no layers of its network, in the order of the file.

    Args:
        graph: the file.
        network: the same, prepared.
    """
    index_of, needed, after = {layer.name: layer.index for layer in network.layers}, _needed(graph), None
    for node in graph.nodes:
        if node.name in index_of:
            after = index_of[node.name]
            continue
        calls = {id(reader) for out in node.output for reader, _ in graph.readers(out)}
        yield DroppedNode(
            after, node.name, node.op_type, next(iter(node.output), ""), _why(node, graph, needed), len(calls)
        )


def _needed(graph: FileGraph) -> set[str]:
    """The tensors that an output of the network depends on."""
    needed = set(graph.outputs)
    for node in reversed([*graph.nodes]):
        if not needed.isdisjoint(node.output):
            needed.update(tensors_read(node))
    return needed


def _why(node: onnx.NodeProto, graph: FileGraph, needed: set[str]) -> str:
    if needed.isdisjoint(node.output):
        return "no output of the network depends on it"
    if node.op_type == "Constant":
        return "constant"
    if node.op_type in PAIR:
        return "Q/DQ pair"
    if graph.constants.issuperset(node.output):
        return "computed once, as a constant"
    if node.op_type in _PASSED_ON:
        return "passes its input on"
    if node.op_type == "BatchNormalization":
        return "folded into the layer before it"
    return "dropped"
