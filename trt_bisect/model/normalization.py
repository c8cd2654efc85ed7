"""A LayerNormalization that an exporter took apart, found in a graph and put together again.

Exporters write LayerNormalization as one node from opset 17 on. Below, it is nine nodes:

    x -> ReduceMean -> Sub(x, mean) = d -> Pow(d, 2) -> ReduceMean -> Add(epsilon) -> Sqrt
                                      d -> Div(d, .) -> Mul(scale) -> Add(bias)

In FP16 the square overflows above 255, and its mean is inexact: TensorRT computes the single node in FP32 inside
(TensorRT issue 4493). Both compute the same in FP32.

Only what is surely a LayerNormalization is taken: the mean is over the last axes, with their sizes known; nothing else
reads a tensor in between; scale and bias are constants of these sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

OPSET = 17
"""The opset that has LayerNormalization."""
OPERATOR = "LayerNormalization"


@dataclass(frozen=True)
class Decomposed:
    """A LayerNormalization in parts.

    Attributes:
        nodes: its nodes, the first ReduceMean first, the last one makes the output.
        axis: the first of the axes that it normalizes, counted from the end.
        epsilon: added to the variance.
        scale: multiplied at the end; None without.
        bias: added at the end; None without.
    """

    nodes: tuple[gs.Node, ...]
    axis: int
    epsilon: float
    scale: np.ndarray | None = None
    bias: np.ndarray | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its nodes."""
        return tuple(node.name for node in self.nodes)


def decomposed_normalizations(graph: gs.Graph) -> Iterator[Decomposed]:
    """Yields each LayerNormalization that a graph has in parts."""
    for node in graph.nodes:
        found = _from_mean(node) if node.op == "ReduceMean" else None
        inner = found.nodes[:-1] if found else ()
        if found and not any(tensor in graph.outputs for part in inner for tensor in part.outputs):
            yield found


def fuse_normalizations(graph: gs.Graph) -> int:
    """Puts each of them together, in place; the graph has opset 17 or later. Returns their number."""
    found = list(decomposed_normalizations(graph))
    for norm in found:
        x, last = norm.nodes[0].inputs[0], norm.nodes[-1]
        shape = x.shape[norm.axis :]
        scale = np.ones(shape, np.float32) if norm.scale is None else norm.scale
        arrays = {"scale": scale, **({} if norm.bias is None else {"bias": norm.bias})}
        constants = [gs.Constant(f"{last.name}.{name}", np.ascontiguousarray(array)) for name, array in arrays.items()]
        attributes = {"axis": norm.axis, "epsilon": norm.epsilon}
        fused = gs.Node(OPERATOR, last.name, attributes, [x, *constants], list(last.outputs))
        graph.nodes.insert(graph.nodes.index(last), fused)
        for node in norm.nodes:
            node.inputs.clear()
            node.outputs.clear()
            graph.nodes.remove(node)
        fused.outputs = list(fused.outputs)
    return len(found)


def _from_mean(mean: gs.Node) -> Decomposed | None:
    """Returns the LayerNormalization that begins with a mean; None if there is none."""
    x, axes = mean.inputs[0], _axes(mean)
    sub = _only_reader(mean, "Sub")
    if axes is None or sub is None or sub.inputs[0] is not x or sub.inputs[1] is not mean.outputs[0]:
        return None
    centred = sub.outputs[0]
    square = next((node for node in centred.outputs if _is_square(node)), None)
    divided = next((node for node in centred.outputs if node.op == "Div" and node.inputs[0] is centred), None)
    if square is None or divided is None or {id(each) for each in centred.outputs} != {id(square), id(divided)}:
        return None
    variance = _only_reader(square, "ReduceMean")
    add = None if variance is None or _axes(variance) != axes else _only_reader(variance, "Add")
    root = None if add is None else _only_reader(add, "Sqrt")
    epsilon = None if add is None or variance is None else _constant_beside(add, variance.outputs[0])
    if root is None or epsilon is None or epsilon.size != 1 or _only_reader(root, "Div") is not divided:
        return None
    nodes, sizes = [mean, sub, square, variance, add, root, divided], tuple(x.shape[axes:])
    scale, bias = _then(nodes, "Mul", sizes), None
    bias = _then(nodes, "Add", sizes) if scale is not None else None
    return Decomposed(tuple(nodes), axes, float(epsilon.reshape(())), scale, bias)


def _then(nodes: list[gs.Node], operator: str, sizes: tuple[int, ...]) -> np.ndarray | None:
    """Adds the next node if it is the operator with a constant of the sizes; returns the constant."""
    following = _only_reader(nodes[-1], operator)
    constant = None if following is None else _constant_beside(following, nodes[-1].outputs[0])
    if constant is None or constant.shape != sizes:
        return None
    nodes.append(following)
    return constant


def _axes(mean: gs.Node) -> int | None:
    """Returns the first axis of a ReduceMean, counted from the end; None unless it is over the last axes, all known."""
    axes = mean.attrs.get("axes")
    if axes is None and len(mean.inputs) > 1 and isinstance(mean.inputs[1], gs.Constant):
        axes = mean.inputs[1].values.tolist()
    shape = mean.inputs[0].shape
    if not axes or shape is None or not mean.attrs.get("keepdims", 1):
        return None
    rank = len(shape)
    places = sorted(axis % rank - rank for axis in axes)
    sizes = shape[places[0] :]
    known = all(isinstance(size, int) and size > 0 for size in sizes)
    return places[0] if known and places == list(range(-len(places), 0)) else None


def _is_square(node: gs.Node) -> bool:
    if node.op == "Pow":
        exponent = node.inputs[1]
        return (
            isinstance(exponent, gs.Constant) and exponent.values.size == 1 and float(exponent.values.reshape(())) == 2
        )
    return node.op == "Mul" and node.inputs[0] is node.inputs[1]


def _only_reader(node: gs.Node, operator: str) -> gs.Node | None:
    """Returns the node that alone reads the only output of another, if it is the operator."""
    readers = {id(each): each for each in node.outputs[0].outputs} if len(node.outputs) == 1 else {}
    reader = next(iter(readers.values()), None)
    return reader if len(readers) == 1 and reader is not None and reader.op == operator else None


def _constant_beside(node: gs.Node, tensor: gs.Tensor) -> np.ndarray | None:
    """Returns the constant that a node reads beside a tensor; None if it reads something else."""
    others = [each for each in node.inputs if each is not tensor]
    if len(node.inputs) != 2 or len(others) != 1 or not isinstance(others[0], gs.Constant):
        return None
    return np.asarray(others[0].values)
