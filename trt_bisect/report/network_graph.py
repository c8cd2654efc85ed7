"""The network's layers, tensors, attributes and scales, as the page draws them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import AttributeProto, helper

from trt_bisect.model.layers import Layer, TensorTypes
from trt_bisect.model.network import Network

NETWORK = "network.json"
_LONGEST_TEXT = 200


@dataclass(frozen=True)
class GraphLayer:
    """A layer of the graph.

    Attributes:
        inputs: the names of the tensors that it reads, constants too.
        outputs: the names of the tensors that it makes.
        attributes: as text, by name.
    """

    index: int
    name: str
    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, str]


@dataclass(frozen=True)
class GraphTensor:
    """A tensor of the graph.

    Attributes:
        shape: the shape; of a layer's first output the shape on the judged input.
        dtype: empty where it is not known.
        scale: the scale of INT8, the largest of a per-channel scale; None where it is not rounded.
    """

    shape: tuple[int | str | None, ...] | None
    dtype: str
    scale: float | None


@dataclass(frozen=True)
class Graph:
    """The network's layers and tensors, as ``network.json`` has them and the page draws them.

    Attributes:
        layers: the layers in execution order.
        tensors: the tensors by name.
        inputs: the names of the network's inputs.
        outputs: the names of its outputs.
    """

    layers: tuple[GraphLayer, ...]
    tensors: Mapping[str, GraphTensor]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def graph_of(network: Network, scales: Mapping[str, np.float32]) -> Graph:
    """Returns the graph of a network.

    Args:
        network: with the layer names of the report.
        scales: the scales of activations, by tensor name; not needed for Q/DQ pairs that the network holds itself.
    """
    nodes = network.skeleton.graph.node
    layers = tuple(_layer(layer, nodes[layer.index]) for layer in network.layers)
    used = dict.fromkeys(name for layer in layers for name in (*layer.inputs, *layer.outputs))
    used.update(dict.fromkeys(spec.name for spec in (*network.inputs, *network.outputs)))
    types, known = TensorTypes.of(network.skeleton.graph), _scales(network, scales)
    shapes = {**types.shapes, **{layer.outputs[0]: layer.shape for layer in network.layers if layer.outputs}}
    dtypes = {name: str(dtype) for name, dtype in types.dtypes.items() if dtype is not None}
    return Graph(
        layers,
        {name: GraphTensor(shapes.get(name), dtypes.get(name, ""), known.get(name)) for name in used},
        tuple(spec.name for spec in network.inputs),
        tuple(spec.name for spec in network.outputs),
    )


def _layer(layer: Layer, node: onnx.NodeProto) -> GraphLayer:
    read = dict.fromkeys((*(name for name in node.input if name), *layer.inputs))
    attributes = {attribute.name: _text(attribute) for attribute in node.attribute}
    return GraphLayer(layer.index, layer.name, layer.op_type, tuple(read), tuple(layer.outputs), attributes)


def _text(attribute: AttributeProto) -> str:
    """Returns an attribute as text: a tensor as its type and shape, a subgraph as its number of nodes."""
    if attribute.type == AttributeProto.TENSOR:
        dtype = helper.tensor_dtype_to_np_dtype(attribute.t.data_type)
        return f"{dtype} {list(attribute.t.dims)}"
    if attribute.type == AttributeProto.GRAPH:
        return f"a body of {len(attribute.g.node)} nodes"
    value = helper.get_attribute_value(attribute)
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"


def _scales(network: Network, scales: Mapping[str, np.float32]) -> dict[str, float]:
    found = {name: float(scale) for name, scale in scales.items()}
    for layer in network.layers:
        for rounding in layer.roundings:
            for quantizer in rounding.fixed:
                found[rounding.tensor] = max(found.get(rounding.tensor, 0.0), float(quantizer.scale.max()))
    return found
