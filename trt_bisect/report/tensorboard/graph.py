"""The network for TensorBoard's graph page: a GraphDef with a node for each layer, input and output.

Source of the form: TensorFlow's ``graph.proto`` and ``node_def.proto``. A name there is
``[A-Za-z0-9.][A-Za-z0-9_.\\-/]*``, its scopes separated by ``/``; an input is ``node``, or ``node:slot`` for a later
output.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto

from trt_bisect.data.feeds import TensorSpec
from trt_bisect.model.fusions import Shape
from trt_bisect.model.layers import Layer, TensorTypes
from trt_bisect.model.network import Network
from trt_bisect.precision import Precision, PrecisionPlan
from trt_bisect.support.figures import shape_text

INPUT, OUTPUT = "Input", "Output"
FOLLOWS = "follows"
"""The device of a layer whose precision no plan decides."""

_ILLEGAL = re.compile(r"[^A-Za-z0-9_.\-/]")
_PLAIN = (
    AttributeProto.INT,
    AttributeProto.FLOAT,
    AttributeProto.STRING,
    AttributeProto.INTS,
    AttributeProto.FLOATS,
    AttributeProto.STRINGS,
)
_FIELDS: dict[type, str] = {int: "i", float: "f", bytes: "s"}
Value = bytes | int | float | Sequence[bytes] | Sequence[int] | Sequence[float]
"""The types of a node's attributes."""


def graph_of(network: Network, plan: PrecisionPlan | None = None) -> Any:
    """Returns the GraphDef of a network.

    A node has its operator, its attributes as ONNX has them, the layer's own name (``layer_name``), its constants and
    ``_output_shapes``. Its device is its precision in ``plan``, so that the page can colour by it.

    Args:
        network: with its layers' shapes.
        plan: the precisions; without it all layers are in FP32.
    """
    from tensorboard.compat.proto.graph_pb2 import GraphDef

    graph, types = GraphDef(), TensorTypes.of(network.skeleton.graph)
    given, results = [spec.name for spec in network.inputs], [f"{spec.name}_output" for spec in network.outputs]
    names = iter(legal_names([*given, *(layer.name for layer in network.layers), *results]))
    on_judged = {layer.outputs[0]: layer.shape for layer in network.layers if layer.outputs and layer.shape is not None}
    known = {**types.shapes, **on_judged}
    sources: dict[str, str] = {}
    for spec in network.inputs:
        sources[spec.name] = next(names)
        _add(graph, sources[spec.name], INPUT, (), "", _boundary_attributes(spec), [spec.shape])
    for layer in network.layers:
        node, name = network.skeleton.graph.node[layer.index], next(names)
        device = FOLLOWS if not layer.quantizable else str(plan.precisions[layer.index] if plan else Precision.FP32)
        shapes = [known.get(tensor) for tensor in node.output]
        read = [sources[tensor] for tensor in layer.inputs if tensor in sources]
        _add(graph, name, layer.op_type, read, device, _layer_attributes(layer, node, types), shapes)
        sources.update({tensor: f"{name}:{slot}" if slot else name for slot, tensor in enumerate(node.output)})
    for spec in network.outputs:
        read = [sources[spec.name]] if spec.name in sources else []
        _add(graph, next(names), OUTPUT, read, "", _boundary_attributes(spec), [])
    return graph


def legal_names(names: Sequence[str]) -> list[str]:
    """Returns a name that TensorFlow allows for each name, all different, and none the scope of another.

    A node whose name is also a scope goes into that scope, under the last part of its
    name: ``a`` beside ``a/b`` is ``a/a``.
    """
    legal = [_legal(name) for name in names]
    scopes = {name[:end] for name in legal for end, letter in enumerate(name) if letter == "/"}
    taken: set[str] = set()
    found = []
    for name in legal:
        base = f"{name}/{name.rpartition('/')[2]}" if name in scopes else name
        unique, count = base, 1
        while unique in taken or unique in scopes:
            unique, count = f"{base}_{count}", count + 1
        taken.add(unique)
        found.append(unique)
    return found


def _legal(name: str) -> str:
    parts = [part for part in _ILLEGAL.sub("_", name).split("/") if part]
    legal = "/".join(parts)
    return legal if legal and re.match(r"[A-Za-z0-9.]", legal) else f".{legal}"


def _add(
    graph: Any,
    name: str,
    op_type: str,
    inputs: Iterable[str],
    device: str,
    attributes: Mapping[str, Value],
    shapes: Sequence[Shape | None],
) -> None:
    node = graph.node.add(name=name, op=op_type, device=device)
    node.input.extend(inputs)
    for key, value in attributes.items():
        _set(node.attr[key], value)
    for shape in shapes:
        entry = node.attr["_output_shapes"].list.shape.add(unknown_rank=shape is None)
        for size in shape or ():
            entry.dim.add(size=size if isinstance(size, int) else -1, name=size if isinstance(size, str) else "")


def _set(attribute: Any, value: Value) -> None:
    if isinstance(value, (bytes, int, float)):
        setattr(attribute, _FIELDS[type(value)], value)
        return
    for each in value:
        getattr(attribute.list, _FIELDS[type(each)]).append(each)


def _boundary_attributes(spec: TensorSpec) -> dict[str, Value]:
    return {"tensor": spec.name.encode(), "tensor_type": _typed(spec.dtype, spec.shape).encode()}


def _layer_attributes(layer: Layer, node: onnx.NodeProto, types: TensorTypes) -> dict[str, Value]:
    constants = [
        f"{name} {_typed(types.dtypes.get(name), types.shapes.get(name, ()))}"
        for name in node.input
        if name and name not in layer.inputs
    ]
    texts = {"layer_name": layer.name, "constants": "; ".join(constants), "why_not_int8": layer.why_not}
    own: dict[str, Value] = {key: text.encode() for key, text in texts.items() if text}
    return {**own, **{attribute.name: _attribute_value(attribute) for attribute in node.attribute}}


def _typed(dtype: np.dtype[Any] | None, shape: Shape) -> str:
    return f"{dtype or '?'}[{shape_text(shape)}]"


def _attribute_value(attribute: AttributeProto) -> Value:
    value = onnx.helper.get_attribute_value(attribute)
    if attribute.type == AttributeProto.TENSOR:
        return _typed(onnx.helper.tensor_dtype_to_np_dtype(value.data_type), tuple(value.dims)).encode()
    if attribute.type in _PLAIN:
        return value  # type: ignore[no-any-return]
    return AttributeProto.AttributeType.Name(attribute.type).lower().encode()
