"""The network's layers, tensors, attributes and scales, as the page draws them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, helper

from trt_bisect.data.feeds import TensorSpec
from trt_bisect.model.layers import Layer, TensorTypes
from trt_bisect.model.network import Network
from trt_bisect.model.residual import Shape

NETWORK = "network.json"
_LONGEST_TEXT = 200


def network_facts(network: Network, scales: Mapping[str, np.float32]) -> dict[str, Any]:
    """Returns the content of ``network.json``, in JSON's types.

    Args:
        network: with the layer names of the report.
        scales: the scales of activations, by tensor name; not needed for Q/DQ pairs that the network holds itself.

    Returns:
        ``layers``: index, name, op_type, inputs (constants too), outputs, attributes as text. ``tensors``: by name
        shape (a layer's first output has the layer's shape on the judged input), dtype, and the INT8 scale (the largest
        of a per-channel scale) or None. ``inputs`` and ``outputs``: names.
    """
    nodes = network.skeleton.graph.node
    layers = [_layer(layer, nodes[layer.index]) for layer in network.layers]
    used = dict.fromkeys(name for layer in layers for name in (*layer["inputs"], *layer["outputs"]))
    ends = (*network.inputs, *network.outputs)
    used.update(dict.fromkeys(spec.name for spec in ends))
    types, known = TensorTypes.of(network.skeleton.graph), _scales(network, scales)
    shapes = {**types.shapes, **{layer.outputs[0]: layer.shape for layer in network.layers if layer.outputs}}
    return {
        "layers": layers,
        "tensors": {name: _tensor(shapes.get(name), types.dtypes.get(name), known.get(name)) for name in used},
        "inputs": _names(network.inputs),
        "outputs": _names(network.outputs),
    }


def _names(specs: tuple[TensorSpec, ...]) -> list[str]:
    return [spec.name for spec in specs]


def _layer(layer: Layer, node: onnx.NodeProto) -> dict[str, Any]:
    read = dict.fromkeys((*(name for name in node.input if name), *layer.inputs))
    return {
        "index": layer.index,
        "name": layer.name,
        "op_type": layer.op_type,
        "inputs": list(read),
        "outputs": list(layer.outputs),
        "attributes": {attribute.name: _text(attribute) for attribute in node.attribute},
    }


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


def _tensor(shape: Shape | None, dtype: np.dtype[Any] | None, scale: float | None) -> dict[str, Any]:
    return {
        "shape": None if shape is None else list(shape),
        "dtype": "" if dtype is None else str(dtype),
        "scale": scale,
    }
