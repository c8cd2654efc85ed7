"""The quantization of every layer: what its Q/DQ pairs say, or what a plan with the layer in INT8 would write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from trt_bisect.model.file import tensors_read
from trt_bisect.model.layers import Rounding, TensorTypes
from trt_bisect.model.network import Network
from trt_bisect.support.table import INDEX, NAME, Column

INPUT, WEIGHT, CONSTANT, OUTPUT = "input", "weight", "constant", "output"
IN_FILE, PLANNED = "file", "planned"


@dataclass(frozen=True)
class TensorRounding:
    """A tensor that a layer reads or makes, and its quantization.

    Attributes:
        index: the index of the layer, in execution order.
        layer: its name.
        op_type: its operator.
        role: ``input``, ``weight``, ``constant`` or ``output``.
        tensor: the name.
        dtype: the dtype in the network; empty where it is not known.
        quantized: the integer type of the pair, ``int8`` or ``uint8``; empty without one.
        scales: the number of scales: 1, or the number of channels; 0 without a pair.
        axis: the axis of the channels; None with one scale.
        origin: ``file`` for a pair in the file, ``planned`` for one that a plan writes; empty without one.
        calls: the number of layers that read it.
        why_not: the reason why the layer cannot be in INT8; empty for one that can.
    """

    index: Annotated[int, Column("#", "Place in execution order", INDEX, rank=1)]
    layer: Annotated[str, Column("Layer", kind=NAME, rank=0)]
    op_type: Annotated[str, Column("Op", "Operator", rank=3)]
    role: Annotated[str, Column("Role", rank=0)]
    tensor: Annotated[str, Column("Tensor", rank=2)]
    dtype: Annotated[str, Column("dtype", "In the network", rank=4)]
    quantized: Annotated[str, Column("Rounded to", "The integer type of its pair", rank=0)]
    scales: Annotated[int, Column("Scales", "1, or one for each channel", rank=3)]
    axis: Annotated[int | None, Column("Axis", "Axis of the channels", rank=6)]
    origin: Annotated[str, Column("From", "The file has the pair, or a plan writes it", rank=3)]
    calls: Annotated[int, Column("Read by", "Number of layers that read the tensor", rank=5)]
    why_not: Annotated[str, Column("Why not", "The reason why the layer cannot be in INT8", rank=7)]


def tensor_roundings(network: Network) -> Iterator[TensorRounding]:
    """Yields a row for each tensor that a layer reads or makes, in execution order."""
    types, nodes = TensorTypes.of(network.skeleton.graph), network.skeleton.graph.node
    constants = {tensor.name for tensor in network.skeleton.graph.initializer} | set(network.weights)
    calls = Counter(name for node in nodes for name in set(tensors_read(node)))
    for layer in network.layers:
        node = nodes[layer.index]
        places = [(slot, name, False) for slot, name in enumerate(node.input) if name]
        places += [(slot, name, True) for slot, name in enumerate(node.output) if name]
        for slot, name, at_output in places:
            own = (each for each in layer.roundings if (each.slot, each.at_output) == (slot, at_output))
            rounding = next(own, None) if layer.quantizable else None
            of_constant = WEIGHT if rounding is not None and rounding.is_weight else CONSTANT
            role = OUTPUT if at_output else of_constant if name in constants else INPUT
            yield TensorRounding(
                layer.index,
                layer.name,
                layer.op_type,
                role,
                name,
                str(types.dtypes.get(name, "")),
                *_pair(network, rounding),
                calls[name],
                layer.why_not,
            )


def _pair(network: Network, rounding: Rounding | None) -> tuple[str, int, int | None, str]:
    """The integer type, the number of scales, their axis, and where the pair is from."""
    if rounding is None:
        return "", 0, None, ""
    if rounding.fixed:
        own = (rounding.asymmetric or rounding.fixed)[0]
        return str(own.zero_point.dtype), int(own.scale.size), own.axis if own.scale.size > 1 else None, IN_FILE
    if not rounding.is_weight or rounding.axis is None:
        return "int8", 1, None, PLANNED
    return "int8", int(network.constant(rounding.tensor).shape[rounding.axis]), rounding.axis, PLANNED
