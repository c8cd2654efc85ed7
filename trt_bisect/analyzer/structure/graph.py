"""The main graph of an ONNX file before it is prepared, and its nodes that are no layers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Annotated

import numpy as np
import onnx
from onnx import numpy_helper

from trt_bisect.model.file import Weights, bodies_of, detach_weights, tensors_read
from trt_bisect.model.layers import TensorTypes, Wiring
from trt_bisect.model.network import Network
from trt_bisect.model.prepare import infer_shapes, opset_of, sort_nodes, with_named_nodes
from trt_bisect.support.table import NAME, Column

PAIR = QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""Operators with weights that TensorRT runs in INT8."""

ACTIVATIONS = ("Relu", "LeakyRelu", "Clip", "PRelu")
"""Activations that TensorRT fuses with the layer before them."""

NORM = "BatchNormalization"

SMOOTH_ACTIVATIONS = (
    "Sigmoid",
    "HardSigmoid",
    "HardSwish",
    "Tanh",
    "Elu",
    "Selu",
    "Celu",
    "Softplus",
    "Gelu",
    "Mish",
    "Swish",
)
"""Activations that TensorRT computes in the kernel before them."""

MOVES = ("Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity")
"""Operators that move values without changing them."""

Reader = tuple[onnx.NodeProto, int]
"""A node, and the index of the input at which it reads a tensor."""


@dataclass(frozen=True, eq=False)
class FileGraph:
    """An ONNX graph as it is in the file, with TensorRT's names of nodes; large weights are in ``weights``."""

    model: onnx.ModelProto
    weights: Weights

    @classmethod
    def of(cls, model: onnx.ModelProto, source: str, weights: Weights | None = None) -> FileGraph:
        """Returns the graph of ``model``, which is changed in place. ``weights`` are large weights that ``model``
        lacks. Raises BadInput, which names the file ``source``, for a cycle of nodes.
        """
        weights = {**(weights or {}), **detach_weights(model)}
        model = with_named_nodes(model)
        sort_nodes(model.graph, source)
        return cls(infer_shapes(model), weights)

    def with_body(self, body: onnx.GraphProto) -> FileGraph:
        """Returns a copy with the nodes and tensors of ``body`` added: an If's branch, or a loop's body."""
        model = deepcopy(self.model)
        model.graph.node.extend(body.node)
        model.graph.initializer.extend(body.initializer)
        model.graph.value_info.extend((*body.value_info, *body.input, *body.output))
        return FileGraph(model, self.weights)

    @property
    def nodes(self) -> Iterable[onnx.NodeProto]:
        """The nodes in execution order."""
        return self.model.graph.node

    @property
    def opset(self) -> int:
        """The ONNX opset."""
        return opset_of(self.model)

    @cached_property
    def outputs(self) -> frozenset[str]:
        """The names of the network's outputs."""
        return frozenset(value.name for value in self.model.graph.output)

    @cached_property
    def makers(self) -> Mapping[str, onnx.NodeProto]:
        """The node that makes each tensor, by the tensor's name."""
        return {name: node for node in self.nodes for name in node.output if name}

    @cached_property
    def _readers(self) -> Mapping[str, list[Reader]]:
        readers: dict[str, list[Reader]] = {}
        for node in self.nodes:
            for slot, name in enumerate(node.input):
                readers.setdefault(name, []).append((node, slot))
        return readers

    def readers(self, tensor: str) -> list[Reader]:
        """Returns the nodes that read a tensor, each with the index of the input that reads it."""
        return self._readers.get(tensor, [])

    def uses(self, tensor: str) -> int:
        """Returns the number of readers of a tensor, and one more if it is a network's output."""
        return len(self.readers(tensor)) + (tensor in self.outputs)

    def maker_op(self, tensor: str) -> str:
        """Returns the operator that makes a tensor; empty for inputs and constants."""
        return self.makers[tensor].op_type if tensor in self.makers else ""

    @cached_property
    def types(self) -> TensorTypes:
        """The known types and shapes of tensors."""
        return TensorTypes.of(self.model.graph)

    def dtype(self, tensor: str) -> np.dtype[np.generic] | None:
        """Returns the type of a tensor; None if ONNX cannot infer it."""
        return self.types.dtypes.get(tensor)

    @cached_property
    def _initializers(self) -> Mapping[str, onnx.TensorProto]:
        return {tensor.name: tensor for tensor in self.model.graph.initializer}

    @cached_property
    def constants(self) -> frozenset[str]:
        """The tensors that do not depend on the network's inputs, rounded weights included."""
        constants = set(self._initializers)
        for node in self.nodes:
            read = [name for name in node.input if name]
            if node.op_type == "Constant" or (read and constants.issuperset(read) and not bodies_of(node)):
                constants.update(node.output)
        return frozenset(constants)

    def values(self, tensor: str) -> np.ndarray | None:
        """Returns the values of a constant in the file; None for other tensors."""
        if tensor in self.weights:
            return self.weights[tensor]
        if tensor in self._initializers:
            return numpy_helper.to_array(self._initializers[tensor])
        node = self.makers.get(tensor)
        if node is not None and node.op_type == "Identity":
            return self.values(node.input[0])
        if node is not None and node.op_type == "Constant":
            return _constant_of(node)
        return None

    def root(self, tensor: str) -> str:
        """Returns the tensor that ``tensor`` comes from, through operators that round or move values."""
        return self.source(tensor, (*MOVES, *PAIR))

    def moved_from(self, tensor: str) -> str:
        """Returns the tensor that ``tensor`` comes from, through operators that only move values."""
        return self.source(tensor, MOVES)

    def source(self, tensor: str, through: Collection[str]) -> str:
        """Returns the tensor that ``tensor`` comes from, through the first inputs of operators in ``through``."""
        while self.maker_op(tensor) in through and self.makers[tensor].input:
            tensor = self.makers[tensor].input[0]
        return tensor

    @cached_property
    def wiring(self) -> Wiring:
        """The makers and readers of each tensor, from which residual sums are found."""
        return Wiring(self.model.graph, self.constants, self.types.shapes)

    def layers_reading(self, tensor: str) -> list[Reader]:
        """Returns the layers that read a tensor, each with the index of the input that reads it. Tensors are also read
        through Q/DQ pairs and Identity, constants through all operators that move values.
        """
        passing, layers = self._passing(tensor), list[Reader]()
        for node, slot in self.readers(tensor):
            if node.op_type in passing and slot == 0:
                layers += chain.from_iterable(map(self.layers_reading, node.output))
            else:
                layers.append((node, slot))
        return layers

    def is_given_out(self, tensor: str) -> bool:
        """Returns true if a tensor is a network's output, directly or through the operators of ``layers_reading``."""
        passed = (node for node, slot in self.readers(tensor) if node.op_type in self._passing(tensor) and slot == 0)
        return tensor in self.outputs or any(self.is_given_out(out) for node in passed for out in node.output)

    def _passing(self, tensor: str) -> tuple[str, ...]:
        if tensor in self.constants:
            return (*PAIR, *MOVES)
        return (*PAIR, "Identity")


def in_scope(nodes: Iterable[onnx.NodeProto], graph: FileGraph) -> Iterator[tuple[onnx.NodeProto, FileGraph]]:
    """Yields every node, also in subgraphs, with a graph that has all tensors which the node can read."""
    for node in nodes:
        yield node, graph
        for body in bodies_of(node):
            yield from in_scope(body.node, graph.with_body(body))


def _constant_of(node: onnx.NodeProto) -> np.ndarray | None:
    attribute = node.attribute[0] if node.attribute else None
    if attribute is None or attribute.name not in ("value", "value_float", "value_floats", "value_int", "value_ints"):
        return None
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value, np.float32 if "float" in attribute.name else np.int64)


_PASSED_ON = ("Identity", "Dropout")


@dataclass(frozen=True)
class DroppedNode:
    """A node of the file that is no layer.

    Attributes:
        after: the index of the layer before it in the file; None without one.
        node: the node's name.
        tensor: the node's first output.
    """

    after: Annotated[int | None, Column("After", "Index of the layer before it", rank=1)]
    node: Annotated[str, Column("Node", kind=NAME, rank=0)]
    op_type: Annotated[str, Column("Op", "Operator", rank=0)]
    tensor: Annotated[str, Column("Output", rank=4)]
    why: Annotated[str, Column("No layer", "What became of it", rank=0)]
    calls: Annotated[int, Column("Read by", "Nodes that read its outputs", rank=2)]


def dropped_nodes(graph: FileGraph, network: Network) -> Iterator[DroppedNode]:
    """Yields the nodes of a file that are no layers of the prepared network, in the file's order."""
    needed = set(graph.outputs)  # The tensors that an output of the network depends on.
    for node in reversed([*graph.nodes]):
        if not needed.isdisjoint(node.output):
            needed.update(tensors_read(node))
    index_of, after = {layer.name: layer.index for layer in network.layers}, None
    for node in graph.nodes:
        if node.name in index_of:
            after = index_of[node.name]
            continue
        calls = {id(reader) for out in node.output for reader, _ in graph.readers(out)}
        first, why = next(iter(node.output), ""), _why(node, graph, needed)
        yield DroppedNode(after, node.name, node.op_type, first, why, len(calls))


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
