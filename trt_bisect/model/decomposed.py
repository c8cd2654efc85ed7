"""The operators that TensorRT's ONNX parser writes as several layers, each of which rounds in FP16 and BF16.

Source: the networks that TensorRT-RTX 1.7 parses. A Softmax and the normalizations of ONNX stay one TensorRT layer;
ReduceLogSumExp has its maximum taken off first, so that nothing overflows inside.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import helper, numpy_helper

_SUM, _SQUARE = "ReduceSum", "Mul"
_PARTS = {
    "ReduceL2": (_SQUARE, _SUM, "Sqrt"),
    "ReduceSumSquare": (_SQUARE, _SUM),
    "ReduceLogSum": (_SUM, "Log"),
    "ReduceL1": ("Abs", _SUM),
}


def parts_of(node: onnx.NodeProto, final: str) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """Returns the nodes that compute what a node computes, and new constants that they read.

    Args:
        node: the node of the graph; an operator of one TensorRT layer is returned as it is.
        final: a name that begins the names of new tensors; it is not given to one itself.
    """
    if node.op_type not in _PARTS or node.domain not in ("", "ai.onnx"):
        return [node], []
    parts = _PARTS[node.op_type]
    axes, constants = _axes(node, final)
    kept = [attribute for attribute in node.attribute if attribute.name != "axes"]
    names = [node.input[0], *(f"{final}_part{place}" for place in range(len(parts) - 1)), node.output[0]]
    nodes = []
    for place, op in enumerate(parts):
        inputs = [names[place], *([names[place]] if op == _SQUARE else axes if op == _SUM else [])]
        part = helper.make_node(op, inputs, [names[place + 1]], f"{node.name}_part{place}")
        part.attribute.extend(kept if op == _SUM else [])
        nodes.append(part)
    return nodes, constants


def _axes(node: onnx.NodeProto, final: str) -> tuple[list[str], list[onnx.TensorProto]]:
    """The second input of a ReduceSum, which has its axes as an input since opset 13, the others since opset 18."""
    given: Iterator[onnx.AttributeProto] = (each for each in node.attribute if each.name == "axes")
    attribute = next(given, None)
    if attribute is None:
        return list(node.input[1:]), []
    name = f"{final}_axes"
    return [name], [numpy_helper.from_array(np.asarray(attribute.ints, np.int64), name)]
