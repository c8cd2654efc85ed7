"""Weights in a graph of ONNX-GraphSurgeon that stay apart from it, so that nothing copies them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import numpy_helper
from onnx_graphsurgeon.ir.tensor import LazyValues

from trt_bisect.model.file import Weights, detached_tensor

_OF_SHAPES = ("Shape", "Size")


class _Detached(LazyValues):  # type: ignore[misc]
    """The values of a constant that the graph refers to. GraphSurgeon writes the reference, not the values."""

    def __init__(self, name: str, array: np.ndarray) -> None:
        super().__init__(detached_tensor(name, array))
        self.array = array

    def load(self) -> np.ndarray:
        """Returns the values; GraphSurgeon calls it if it needs them."""
        return self.array


def import_detached(model: onnx.ModelProto, weights: Mapping[str, np.ndarray]) -> gs.Graph:
    """Returns GraphSurgeon's graph of a model.

    A weight that only layers read that depend on the network's inputs stays detached: ``fold_constants`` cannot need
    it. The others are attached.

    Args:
        model: its initializers without values are ``weights``.
        weights: the weights by name.
    """
    graph = gs.import_onnx(model)
    fixed, outputs = _not_foldable(graph), {id(tensor) for tensor in graph.outputs}
    for each in (graph, *bodies_of(graph)):
        for tensor in each.tensors(check_duplicates=False).values():
            if isinstance(tensor, gs.Constant) and _has_no_values(tensor):
                array = weights[tensor.name]
                apart = id(tensor) not in outputs and all(id(node) in fixed for node in tensor.outputs)
                whole = None if apart else LazyValues(numpy_helper.from_array(array, tensor.name))
                tensor.values = _Detached(tensor.name, array) if whole is None else whole
                tensor.data_location = None
    return graph


def _has_no_values(tensor: gs.Constant) -> bool:
    values = tensor._values
    return type(values) is LazyValues and values.tensor.data_location == onnx.TensorProto.EXTERNAL


def bodies_of(graph: gs.Graph) -> list[gs.Graph]:
    """The bodies inside a graph, those inside them too."""
    inside = [value for node in graph.nodes for value in node.attrs.values() if isinstance(value, gs.Graph)]
    return inside + [deeper for body in inside for deeper in bodies_of(body)]


def _not_foldable(graph: gs.Graph) -> set[int]:
    """The nodes, by id, that depend on the values of an input of the network, not on its shape alone."""
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
    """Returns the weights of a graph that are detached, by their names there."""
    constants = graph.tensors(check_duplicates=False).values()
    return {
        tensor.name: tensor._values.array
        for tensor in constants
        if isinstance(tensor, gs.Constant) and isinstance(tensor._values, _Detached)
    }
