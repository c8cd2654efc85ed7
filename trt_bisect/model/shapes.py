"""The shapes of tensors for given feeds, and networks with a dynamic batch axis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import numpy_helper

from trt_bisect.data.feeds import Feeds
from trt_bisect.model.file import refill
from trt_bisect.model.layers import TensorFacts, TensorTypes, int_attribute
from trt_bisect.model.network import Network
from trt_bisect.model.observe import SHARE_OF_GROUP, Observer, can_be_cut, groups_of
from trt_bisect.model.prepare import infer_shapes
from trt_bisect.model.qdq import Written

_KINDS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "double", "bool")
_DTYPES = {f"tensor({kind})": np.dtype(kind) for kind in _KINDS} | {
    "tensor(float)": np.dtype(np.float32),
    "tensor(string)": np.dtype(object),
}
"""By ONNX Runtime's name of a tensor's type, the dtype of the array that holds it."""


@dataclass(frozen=True)
class FreeBatch:
    """A network with a dynamic first axis, as far as shape inference can tell.

    It is not proven to be right: code that stacks samples must compare the result with that of single samples.

    Attributes:
        network: the network; Reshapes to a fixed batch are changed.
        axes: by tensor, the axis that grows with the batch; None for a tensor that does not grow.
        repaired: the indices of the changed layers.
    """

    network: Network
    axes: Mapping[str, int | None]
    repaired: frozenset[int]


def facts_for(network: Network, feeds: Feeds) -> TensorFacts:
    """Returns the shape and dtype of every tensor for ``feeds``: inferred, or else read from a run of the network.

    Raises BadInput if ONNX Runtime refuses the network or the feeds.
    """
    model = _without_shapes(network)
    for value in model.graph.input:
        dtype = value.type.tensor_type.elem_type
        value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, dtype, np.shape(feeds[value.name])))
    inferred = {
        name: tuple(size for size in shape if isinstance(size, int))
        for name, shape in TensorTypes.of(infer_shapes(model).graph).shapes.items()
        if all(isinstance(size, int) for size in shape)
    }
    dtypes = TensorTypes.of(network.skeleton.graph).dtypes
    made = (name for layer in network.layers for name in layer.outputs)
    unknown = [name for name in made if name not in inferred or name not in dtypes]
    seen = _observed(network, unknown, feeds) if unknown else {}
    shapes = {**inferred, **{name: shape for name, (shape, _) in seen.items()}}
    dtypes = {**dtypes, **{name: dtype for name, (_, dtype) in seen.items()}}
    return TensorFacts({name: shape for name, shape in shapes.items() if name in dtypes}, dtypes)


def groups_within(
    network: Network, names: Iterable[str], feeds: Feeds, memory: int, *, runs: int = 1
) -> list[tuple[str, ...]]:
    """Returns tensors in groups to be read one after another; one group if the network cannot be cut.

    ``memory`` is for a group, in bytes, and for what later groups need; ``runs`` of the network are held at once.
    """
    if any(spec.name not in feeds for spec in network.inputs) or not can_be_cut(network.skeleton):
        return [tuple(names)]
    facts = facts_for(network, feeds)
    return groups_of(names, lambda name: runs * facts.size(name), memory // SHARE_OF_GROUP)


def _observed(
    network: Network, names: Sequence[str], feeds: Feeds
) -> dict[str, tuple[tuple[int, ...], np.dtype[np.generic]]]:
    """Returns the shapes and dtypes of tensors for ``feeds``. A Shape node reads each, so that no tensor is held."""
    written = Written(network.skeleton, dict(network.weights))
    types = Observer(written, [names], network.source).types
    dtypes = {name: _DTYPES[types[name]] for name in names if types.get(name) in _DTYPES}
    tag = "__shape"
    while any(out.endswith(tag) for node in network.skeleton.graph.node for out in node.output):
        tag += "_"
    model = deepcopy(network.skeleton)
    model.graph.node.extend(onnx.helper.make_node("Shape", [name], [f"{name}{tag}"]) for name in dtypes)
    observer = Observer(Written(model, written.weights), [[f"{name}{tag}" for name in dtypes]], network.source)
    shapes = next(observer.run(feeds, 0))
    return {name: (tuple(int(n) for n in shapes[f"{name}{tag}"]), dtype) for name, dtype in dtypes.items()}


def with_free_batch(network: Network, feeds: Feeds) -> FreeBatch:
    """Returns the network for any number of samples of the shape of ``feeds``, which hold one sample or one batch."""
    model = _without_shapes(network)
    first = next((np.shape(feeds[spec.name]) for spec in network.inputs if np.ndim(feeds[spec.name])), ())
    batch = first[0] if first else 1
    symbol = "batch"
    while any(symbol == dim.dim_param for value in model.graph.input for dim in value.type.tensor_type.shape.dim):
        symbol += "_"
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        if len(dims) and np.shape(feeds[value.name])[0] == batch:
            dims[0].dim_param = symbol
    repaired = _repair_reshapes(model.graph, batch)
    model = infer_shapes(model)
    return FreeBatch(replace(network, skeleton=model), _axes(model.graph, symbol), repaired)


def _without_shapes(network: Network) -> onnx.ModelProto:
    """Returns a copy of the skeleton without the shapes of inner tensors and of outputs."""
    model = deepcopy(network.skeleton)
    types = {value.name: value.type.tensor_type.elem_type for value in model.graph.value_info}
    infos = [onnx.helper.make_tensor_value_info(name, dtype, None) for name, dtype in types.items() if dtype]
    refill(model.graph.value_info, infos)
    for value in model.graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    return model


def _repair_reshapes(graph: onnx.GraphProto, batch: int) -> frozenset[int]:
    """Makes the first axis of Reshapes to a fixed shape dynamic: -1, or 0 if another is -1; returns their indices."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    repaired = []
    for index, node in enumerate(graph.node):
        if node.op_type != "Reshape" or node.input[1] not in constants:
            continue
        shape = numpy_helper.to_array(constants[node.input[1]]).copy()
        if not shape.size or shape[0] <= 0:
            continue
        if -1 not in shape:
            shape[0] = -1
        elif shape[0] == batch and not int_attribute(node, "allowzero", 0):
            shape[0] = 0
        else:
            continue
        name = f"{node.output[0]}_free_shape"
        while name in constants:
            name += "_"
        node.input[1], constants[name] = name, numpy_helper.from_array(shape, name)
        graph.initializer.append(constants[name])
        repaired.append(index)
    return frozenset(repaired)


def _axes(graph: onnx.GraphProto, symbol: str) -> dict[str, int | None]:
    """The axis of each tensor that is named ``symbol``; None for a fixed shape, 0 for an unknown one."""
    axes: dict[str, int | None] = {}
    for value in (*graph.value_info, *graph.input, *graph.output):
        dims = value.type.tensor_type.shape.dim
        is_fixed = value.type.tensor_type.HasField("shape") and all(dim.HasField("dim_value") for dim in dims)
        named = (axis for axis, dim in enumerate(dims) if dim.dim_param == symbol)
        axes[value.name] = next(named, None if is_fixed else 0)
    return axes
