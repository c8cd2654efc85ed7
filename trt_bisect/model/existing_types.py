"""Networks that are in FP16 or BF16 in their file: the types are removed from the graph, and noted by layer.

The result is the float32 network with the file's weights. A plan then writes the Casts of the layers that are low, and
with all of them low it is the file's network again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

import numpy as np
import onnx_graphsurgeon as gs
from onnx import TensorProto

from trt_bisect.errors import BadInput
from trt_bisect.model.layers import Layer
from trt_bisect.model.low import FLOAT_TYPES, FloatType, LowPrecision
from trt_bisect.model.prepare import bodies_of, tensor_names, unused_name
from trt_bisect.precision import Precision

_FLOAT32 = np.dtype(np.float32)


def take_out_types(graph: gs.Graph, low: LowPrecision, source: str) -> frozenset[str] | None:
    """Makes the FP16 or BF16 tensors of a graph float32, in place, and removes the Casts between.

    A Cast to the type and back, with nothing between, stays: it is a rounding of the network's own. FP16 inputs and
    outputs of the network keep their type; those in BF16 become float32, as ONNX Runtime's Python has no BF16 arrays.

    Args:
        graph: the graph of the network, without Q/DQ pairs.
        low: the low precision, a float type.
        source: the file's name, for messages.

    Returns:
        The names of the nodes that the file has in the type; None if there are none.

    Raises:
        BadInput: the file has another 16-bit type than ``low``, or one inside the body of a control-flow node.
    """
    kind = low.float_type
    assert kind is not None
    for precision, other in FLOAT_TYPES.items():
        if other is not kind and _in_type(graph, other):
            both = _in_type(graph, kind)
            raise BadInput(
                f"'{source}' is in {precision.upper()} and cannot be measured in {low.title}.",
                "Give the network in FP32." if both else f"Give --low {precision}, or the network in FP32.",
            )
    if any(_in_type(body, kind) for body in bodies_of(graph)):
        raise BadInput(
            f"'{source}' has {low.title} tensors inside If, Loop or Scan.",
            "Give the network in FP32, or without such tensors.",
        )
    if not _in_type(graph, kind):
        return None
    own_roundings = _own_roundings(graph, kind)
    found = frozenset(
        node.name for node in graph.nodes if node.op != "Cast" and any(out.dtype == kind.dtype for out in node.outputs)
    )
    _keep_interface(graph, low)
    for node in list(graph.nodes):
        if node.op == "Cast" and id(node) not in own_roundings:
            _remove_cast(graph, node, kind)
        elif node.attrs.get("dtype") == kind.onnx:
            node.attrs["dtype"] = TensorProto.FLOAT
    graph.cleanup()
    kept = {id(node.outputs[0]) for node in graph.nodes if node.op == "Cast" and node.attrs.get("to") == kind.onnx}
    kept |= {id(value) for value in graph.inputs if low.precision is Precision.FP16}
    for tensor in graph.tensors().values():
        if tensor.dtype == kind.dtype and id(tensor) not in kept:
            if isinstance(tensor, gs.Constant):
                tensor.values = tensor.values.astype(np.float32)
            else:
                tensor.dtype = _FLOAT32
    return found


def in_question(layers: Iterable[Layer], in_type: Collection[str]) -> tuple[Layer, ...]:
    """Returns layers of which only those named in ``in_type`` may be low: the file has them in the type."""
    return tuple(
        layer if layer.name in in_type else layer.kept_high("the network has it in float32") for layer in layers
    )


def in_bf16(graph: gs.Graph) -> bool:
    """Returns true if a graph has BF16 tensors."""
    return _in_type(graph, FLOAT_TYPES[Precision.BF16])


def raised(layers: Iterable[Layer], in_base: Collection[str]) -> tuple[Layer, ...]:
    """Returns layers of a file with pairs: those that it has neither in eight bits nor in its base stay in FP32."""
    return tuple(
        replace(layer, fixed=Precision.FP32)
        if layer.follows and layer.dtype == _FLOAT32 and layer.name not in in_base and layer.op_type != "Cast"
        else layer
        for layer in layers
    )


def type_notes(
    layers: Iterable[Layer], low: LowPrecision, in_type: Collection[str] | None, in_base: Collection[str] | None
) -> Iterator[str]:
    """Yields notes on activations in INT16, and on a network in FP16 or BF16 in its file.

    Args:
        layers: the layers of the network.
        low: its low precision.
        in_type: the nodes that the file has in it; None if it is no float type, or the file has none.
        in_base: the nodes that a file with pairs has in BF16; None if it has none.
    """
    if low.wide:
        yield f"{low.title} is an experiment, emulated only: INT16 activations, INT8 weights; no engine has it"
    if in_type is not None:
        count = sum(layer.quantizable for layer in layers)
        yield (
            f"the network is in {low.title}: the {count} layers that compute in it in the file are in question, and "
            "FP32 means the file's weights in float32 arithmetic"
        )
    if in_base is not None:
        yield "all that is not in eight bits is in BF16, as in the file, and so are the tensors at its Q/DQ pairs"


def _in_type(graph: gs.Graph, kind: FloatType) -> bool:
    return any(tensor.dtype == kind.dtype for tensor in graph.tensors().values())


def _own_roundings(graph: gs.Graph, kind: FloatType) -> set[int]:
    """The ids of the Casts from float32 to the type, and of those back, where nothing else reads the typed tensor."""
    found: set[int] = set()
    for node in graph.nodes:
        out = node.outputs[0]
        if node.op != "Cast" or node.attrs.get("to") != kind.onnx or node.inputs[0].dtype != _FLOAT32:
            continue
        back = list(out.outputs)
        only_back = all(each.op == "Cast" and each.attrs.get("to") == TensorProto.FLOAT for each in back)
        if back and out not in graph.outputs and only_back:
            found |= {id(node), *map(id, back)}
    return found


def _keep_interface(graph: gs.Graph, low: LowPrecision) -> None:
    """Adds Casts after FP16 inputs of the network, and before its FP16 outputs."""
    kind, taken = low.float_type, tensor_names(graph)
    assert kind is not None
    if low.precision is not Precision.FP16:
        return
    for given in [value for value in graph.inputs if value.dtype == kind.dtype]:
        readers = list(given.outputs)
        inside = gs.Variable(unused_name(f"{given.name}_float32", taken), _FLOAT32, given.shape)
        for reader in readers:
            reader.inputs = [inside if tensor is given else tensor for tensor in reader.inputs]
        name = unused_name(f"{given.name}_to_float32", taken)
        graph.nodes.insert(0, gs.Node("Cast", name, {"to": TensorProto.FLOAT}, [given], [inside]))
    for result in [value for value in graph.outputs if value.dtype == kind.dtype and value.inputs]:
        maker = result.inputs[0]
        inside = gs.Variable(unused_name(f"{result.name}_float32", taken), _FLOAT32, result.shape)
        slot = next(i for i, out in enumerate(maker.outputs) if out is result)
        for reader in list(result.outputs):
            reader.inputs = [inside if tensor is result else tensor for tensor in reader.inputs]
        maker.outputs[slot] = inside
        name = unused_name(f"{result.name}_to_{kind.name}", taken)
        graph.nodes.append(gs.Node("Cast", name, {"to": kind.onnx}, [inside], [result]))


def _remove_cast(graph: gs.Graph, node: gs.Node, kind: FloatType) -> None:
    """Removes a Cast between float32 and the type; one from another type to it casts to float32 instead."""
    read, out, to = node.inputs[0], node.outputs[0], node.attrs.get("to")
    floats = (_FLOAT32, kind.dtype)
    if to not in (TensorProto.FLOAT, kind.onnx):
        return
    if read.dtype not in floats:
        node.attrs["to"] = TensorProto.FLOAT
        return
    if any(out is result for result in graph.outputs):
        _give_name(graph, node)
        return
    if any(read is given for given in graph.inputs) and read.dtype == kind.dtype:
        return
    for reader in list(out.outputs):
        reader.inputs = [read if tensor is out else tensor for tensor in reader.inputs]
    node.inputs.clear()
    node.outputs.clear()


def _give_name(graph: gs.Graph, node: gs.Node) -> None:
    """Lets the layer before a Cast make the output of the network that the Cast makes, if the output is float32."""
    read, out = node.inputs[0], node.outputs[0]
    if node.attrs["to"] != TensorProto.FLOAT:
        return
    if not read.inputs or any(read is value for value in (*graph.inputs, *graph.outputs)):
        node.op, node.attrs = "Identity", {}
        return
    maker = read.inputs[0]
    slot = next(i for i, tensor in enumerate(maker.outputs) if tensor is read)
    node.inputs.clear()
    node.outputs.clear()
    for reader in list(read.outputs):
        reader.inputs = [out if tensor is read else tensor for tensor in reader.inputs]
    maker.outputs[slot] = out
