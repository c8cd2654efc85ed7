"""A plan under weak typing as data: the constraints of every TensorRT layer, for the files of a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Protocol, runtime_checkable

import numpy as np

from trt_bisect.builder.base import Builder
from trt_bisect.builder.tensorrt_walk import Constraint, constraints, steps_of
from trt_bisect.errors import TrialFailed
from trt_bisect.model.layers import Layer, TensorTypes
from trt_bisect.model.network import Network
from trt_bisect.precision import PrecisionPlan

_KINDS = {"Shape": "SHAPE", "Size": "SHAPE", "Cast": "CAST", "If": "CONDITION", "Loop": "LOOP_OUTPUT"}
_KINDS |= {"Scan": "LOOP_OUTPUT", "QuantizeLinear": "QUANTIZE", "DequantizeLinear": "DEQUANTIZE"}
"""TensorRT's types of the layers that are left alone, by the ONNX operator."""

_TYPES = {"float32": "FLOAT", "float16": "HALF", "bfloat16": "BF16"}


@dataclass(frozen=True)
class WeakPlan:
    """The constraints that carry out a plan under weak typing.

    Attributes:
        constraints: the constraints of the layers that have any.
        layers: the names of all layers, in TensorRT's order.
        parser: the parser that named the layers, such as ``TensorRT 8.6.1``; empty for the nodes of the ONNX graph.
        scales: the scales of tensors that TensorRT's parser made, by name; empty for the nodes of the ONNX graph.
    """

    constraints: tuple[Constraint, ...]
    layers: tuple[str, ...]
    parser: str = ""
    scales: Mapping[str, np.float32] = field(default_factory=dict)


@runtime_checkable
class TellsWeakPlan(Protocol):
    """A builder that builds with weak typing, or one that may do so in another process."""

    def weak_plan(self, plan: PrecisionPlan) -> WeakPlan:
        """Returns the constraints of a plan; raises TrialFailed if the graph cannot be parsed."""
        ...


def weak_plan(builder: Builder, network: Network, plan: PrecisionPlan) -> WeakPlan:
    """Returns the constraints of a plan: the builder's own if it builds with weak typing, else those of ONNX nodes.

    The names are those of ``network.for_parser``, which the recipe has as ``network.onnx``.

    TensorRT's parser names the main layer of a node after the node, so that a node's constraints apply to it. Layers
    that the parser adds, such as the sum with a Gemm's bias, have names that only the parser knows: they are left free.
    """
    if builder.typing == "weak" and isinstance(builder, TellsWeakPlan):
        with suppress(TrialFailed):
            return builder.weak_plan(plan)
    network = network.for_parser
    definition = _Nodes(network)
    found = constraints(definition, steps_of(definition, network.layers), network, plan)
    return WeakPlan(tuple(constraint for _, constraint in found), tuple(layer.name for layer in network.layers))


class _Nodes:
    """The nodes of a network with the part of ``INetworkDefinition``'s interface that ``constraints`` uses.

    The indices of a TopK are INT32: its layer makes no other ones, and the parser of TensorRT 10 adds a Cast to ONNX's
    INT64 (``DEFINE_BUILTIN_OP_IMPORTER(TopK)`` of onnx/onnx-tensorrt, 8.5 to 10.1).
    """

    def __init__(self, network: Network) -> None:
        dtypes = TensorTypes.of(network.skeleton.graph).dtypes
        from_data = {spec.name for spec in network.inputs}
        self._tensors: dict[str, Any] = {}
        for layer in network.layers:
            if layer.op_type not in ("Shape", "Size") and from_data & {*layer.inputs}:
                from_data.update(layer.outputs)
        for name in (*from_data, *(name for layer in network.layers for name in (*layer.inputs, *layer.outputs))):
            kind = str(dtypes.get(name, "unknown"))
            dtype = SimpleNamespace(name=_TYPES.get(kind, kind.upper()))
            self._tensors[name] = SimpleNamespace(name=name, dtype=dtype, is_shape_tensor=name not in from_data)
        for indices in (name for layer in network.layers if layer.op_type == "TopK" for name in layer.outputs[1:]):
            self._tensors[indices].dtype = SimpleNamespace(name="INT32")
        self._layers = [_NodeLayer(layer, self._tensors) for layer in network.layers]
        self._outputs = [spec.name for spec in network.outputs if spec.name in self._tensors]
        self.num_layers, self.num_outputs = len(self._layers), len(self._outputs)

    def get_layer(self, i: int) -> _NodeLayer:
        return self._layers[i]

    def get_output(self, i: int) -> Any:
        return self._tensors[self._outputs[i]]


class _NodeLayer:
    """One node with the interface of ``ILayer``."""

    def __init__(self, layer: Layer, tensors: Mapping[str, Any]) -> None:
        self.name = layer.name
        self.type = SimpleNamespace(name=_KINDS.get(layer.op_type, layer.op_type.upper()))
        self._inputs = [tensors[name] for name in layer.inputs]
        self._outputs = [tensors[name] for name in layer.outputs]
        self.num_inputs, self.num_outputs = len(self._inputs), len(self._outputs)

    def get_input(self, i: int) -> Any:
        return self._inputs[i]

    def get_output(self, i: int) -> Any:
        return self._outputs[i]
