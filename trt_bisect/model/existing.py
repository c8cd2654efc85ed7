"""Networks that already hold Q/DQ pairs: the pairs are taken out of the graph, their scales are kept.

What remains is the float network, and for each node the quantizers of the edges into it. A plan then writes back the
pairs of the layers in INT8 and leaves out those of the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import onnx_graphsurgeon as gs

from trt_bisect.model.quantizer import Quantizer

_NEVER_NEGATIVE_OR_PASSING = frozenset(
    "Relu Clip Sigmoid HardSigmoid Softmax Abs Exp MaxPool AveragePool GlobalAveragePool ReduceMean Reshape Flatten "
    "Transpose Squeeze Unsqueeze Concat Slice Split Gather Resize Pad Expand Identity Cast DequantizeLinear".split()
)
_EIGHT_BITS = (np.dtype(np.int8), np.dtype(np.uint8))


@dataclass
class ExistingPairs:
    """The quantizers found, in the order in which they are applied.

    Attributes:
        inputs: by node name and input slot.
        outputs: by node name and output slot: pairs right before an output of the network.
    """

    inputs: dict[tuple[str, int], tuple[Quantizer, ...]] = field(default_factory=dict)
    outputs: dict[tuple[str, int], tuple[Quantizer, ...]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.inputs or self.outputs)


def take_out_pairs(graph: gs.Graph) -> ExistingPairs:
    """Removes the eight-bit Q/DQ pairs of ``graph``, in place, and returns what they did."""
    pairs = ExistingPairs()
    for dequantize in _dequantizers(graph):
        _move_past_transposes(dequantize)
    for dequantize in _dequantizers(graph):
        if dequantize.outputs[0].outputs and all(c.op == "QuantizeLinear" for c in dequantize.outputs[0].outputs):
            continue
        found = _origin(dequantize)
        if found is None:
            continue
        source, quantizers = found
        source = _with_absorbed_activation(source, quantizers, graph)
        _rewire_consumers(dequantize, source, quantizers, pairs, graph)
        _rewire_network_output(dequantize, source, quantizers, pairs, graph)
    graph.cleanup()
    return pairs


def _dequantizers(graph: gs.Graph) -> list[gs.Node]:
    return [node for node in graph.nodes if node.op == "DequantizeLinear"]


def _origin(dequantize: gs.Node) -> tuple[gs.Tensor, tuple[Quantizer, ...]] | None:
    """The float tensor behind a chain of Q/DQ pairs and the quantizers on the way, or None if it is another thing."""
    stored = dequantize.inputs[0]
    if isinstance(stored, gs.Constant):
        return _dequantized_constant(dequantize, stored)
    quantize = stored.inputs[0] if stored.inputs else None
    quantizer = _quantizer(quantize) if quantize is not None and quantize.op == "QuantizeLinear" else None
    if quantize is None or quantizer is None:
        return None
    source = quantize.inputs[0]
    if source.inputs and source.inputs[0].op == "DequantizeLinear":
        before = _origin(source.inputs[0])
        return before and (before[0], (*before[1], quantizer))
    return source, (quantizer,)


def _dequantized_constant(dequantize: gs.Node, stored: gs.Constant) -> tuple[gs.Tensor, tuple[Quantizer, ...]] | None:
    """A stored integer weight as the floats it stands for; biases (int32) carry no quantizer, they are not rounded."""
    if dequantize.attrs.get("block_size", 0) or not isinstance(stored.values, np.ndarray):
        return None
    parameters = _parameters(dequantize, stored.values.dtype)
    if parameters is None or stored.values.dtype not in (*_EIGHT_BITS, np.dtype(np.int32)):
        return None
    scale, zero_point, axis = parameters
    shape = [1] * stored.values.ndim
    if scale.ndim and axis is not None:
        shape[axis] = -1
        levels = stored.values.astype(np.int64) - zero_point.astype(np.int64).reshape(shape)
        values = levels.astype(np.float32) * scale.reshape(shape)
    else:
        values = (stored.values.astype(np.int64) - zero_point.astype(np.int64)).astype(np.float32) * scale
    constant = gs.Constant(f"{stored.name}.dequantized", np.asarray(values, np.float32))
    rounds = stored.values.dtype in _EIGHT_BITS
    return constant, (Quantizer(scale, zero_point, axis),) if rounds else ()


def _quantizer(node: gs.Node) -> Quantizer | None:
    parameters = _parameters(node, np.dtype(np.uint8))
    if parameters is None or parameters[1].dtype not in _EIGHT_BITS or node.attrs.get("block_size", 0):
        return None
    return Quantizer(*parameters)


def _parameters(node: gs.Node, default_dtype: np.dtype[np.generic]) -> tuple[np.ndarray, np.ndarray, int | None] | None:
    """Scale, zero point and axis of a Q or DQ node, or None where they are not constant, or do not fit its input."""
    if not all(isinstance(tensor, gs.Constant) for tensor in node.inputs[1:]):
        return None
    scale = np.asarray(node.inputs[1].values, dtype=np.float32)
    has_zero_point = len(node.inputs) > 2
    zero_point = np.asarray(node.inputs[2].values) if has_zero_point else np.zeros(scale.shape, default_dtype)
    if scale.size == 1:
        return scale.reshape(()), zero_point.reshape(()), None
    data = node.inputs[0]
    rank = len(data.shape) if data.shape is not None else None
    axis = int(node.attrs.get("axis", 1))
    if rank is None:
        return None if axis < 0 else (scale, zero_point, axis)
    if not -rank <= axis < rank or scale.ndim != 1:
        return None
    fits = not isinstance(data.shape[axis], int) or data.shape[axis] == scale.size
    return (scale, zero_point, axis % rank) if fits else None


def _move_past_transposes(dequantize: gs.Node) -> None:
    """Turns ``constant -> DQ -> Transpose -> layer`` into ``transposed constant -> DQ -> layer``."""
    stored = dequantize.inputs[0]
    parameters = _parameters(dequantize, np.dtype(np.int8))
    if not isinstance(stored, gs.Constant) or parameters is None or dequantize.attrs.get("block_size", 0):
        return
    axis = parameters[2]
    for transpose in [consumer for consumer in dequantize.outputs[0].outputs if consumer.op == "Transpose"]:
        order = list(transpose.attrs.get("perm", reversed(range(stored.values.ndim))))
        moved = np.ascontiguousarray(stored.values.transpose(order))
        transpose.op = "DequantizeLinear"
        transpose.attrs = {} if axis is None else {"axis": order.index(axis)}
        transpose.inputs = [gs.Constant(f"{transpose.name}.transposed", moved), *dequantize.inputs[1:]]


def _with_absorbed_activation(source: gs.Tensor, quantizers: tuple[Quantizer, ...], graph: gs.Graph) -> gs.Tensor:
    """``source`` after the Relu that an asymmetric pair stands for.

    ONNX Runtime's quantizer removes a Relu (or Relu6) before a pair whose range begins at zero, since saturation does
    the same. Without the pair the activation must be there again.
    """
    producer = source.inputs[0] if source.inputs else None
    if producer is None or not quantizers or producer.op in _NEVER_NEGATIVE_OR_PASSING:
        return source
    first = quantizers[0]
    if first.zero_point.ndim or first.zero_point != np.iinfo(first.zero_point.dtype).min:
        return source
    name = f"{producer.name}.absorbed_relu"
    for reader in source.outputs:
        if reader.name == name:
            return reader.outputs[0]
    top = float(first.scale) * 255
    ceiling = [gs.Constant(f"{name}.six", np.array(6.0, np.float32))] if abs(top - 6.0) < 1e-3 else []
    floor = [gs.Constant(f"{name}.zero", np.array(0.0, np.float32))]
    out = gs.Variable(f"{name}_out", np.float32, source.shape)
    graph.nodes.insert(
        graph.nodes.index(producer) + 1, gs.Node("Clip", name, inputs=[source, *floor, *ceiling], outputs=[out])
    )
    return out


def _rewire_consumers(
    dequantize: gs.Node,
    source: gs.Tensor,
    quantizers: tuple[Quantizer, ...],
    pairs: ExistingPairs,
    graph: gs.Graph,
) -> None:
    """Bodies of control flow are kept whole: what they read stays as it is."""
    out = dequantize.outputs[0]
    in_main_graph = {id(node) for node in graph.nodes}
    for consumer in list(out.outputs):
        if consumer.op == "QuantizeLinear" or id(consumer) not in in_main_graph:
            continue
        for slot, tensor in enumerate(consumer.inputs):
            if tensor is out:
                consumer.inputs[slot] = source
                if quantizers:
                    pairs.inputs[consumer.name, slot] = quantizers


def _rewire_network_output(
    dequantize: gs.Node,
    source: gs.Tensor,
    quantizers: tuple[Quantizer, ...],
    pairs: ExistingPairs,
    graph: gs.Graph,
) -> None:
    """Lets the node before a pair at the network's output make that output itself, and keeps the pair as its own."""
    out = dequantize.outputs[0]
    producer = source.inputs[0] if source.inputs else None
    if not any(out is output for output in graph.outputs) or producer is None or source in graph.outputs:
        return
    slot = next(i for i, tensor in enumerate(producer.outputs) if tensor is source)
    dequantize.outputs.clear()
    for consumer, position in list(_readers(source)):
        consumer.inputs[position] = out
    producer.outputs[slot] = out
    pairs.outputs[producer.name, slot] = quantizers


def _readers(tensor: gs.Tensor) -> Iterator[tuple[gs.Node, int]]:
    for consumer in list(tensor.outputs):
        for position, read in enumerate(consumer.inputs):
            if read is tensor:
                yield consumer, position
