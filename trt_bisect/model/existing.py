"""Networks that are quantized, or in FP16 or BF16, in their file: pairs and types are removed, and recorded by layer.

A plan with all layers in low precision writes the file's network again. ONNX Runtime's quantizer replaces some
activations by a Q/DQ pair (``QDQRemovableActivation`` in ``onnxruntime.quantization``). Such an activation is restored
if the graph proves that it existed (docs/howto/qat.md):

1. The pair has one scale, and its zero point is the lowest level.
2. Its values come from a layer whose results have no lower bound (a convolution, a matrix product, a normalization),
and are only moved, pooled, scaled by constants or added since.
3. The tensor is not named after its producer (``/conv1/Conv_output_0`` after ``/conv1/Conv``): the quantizer gives the
name of the removed activation's output to the layer before.

Values that are always positive pass the proof too; data decide then (``RestoredActivation.is_seen``).
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field, replace

import ml_dtypes
import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import TensorProto, helper

from trt_bisect.errors import BadInput
from trt_bisect.model.prepare import redirect, tensor_names, unused_name
from trt_bisect.model.quantizer import FLOAT_TYPES, FP8, FP8_DTYPE, INT8, FloatType, LowPrecision, Quantizer
from trt_bisect.precision import Precision

_EIGHT_BITS = (np.dtype(np.int8), np.dtype(np.uint8), FP8_DTYPE)
_BF16 = np.dtype(ml_dtypes.bfloat16)
_FLOATS = (np.dtype(np.float32), np.dtype(np.float16), _BF16)
# Integers of other than 8 and 32 bits, and small floats: name by ``TensorProto.DataType``.
_OTHER_LEVELS = {
    kind: name
    for name, kind in onnx.TensorProto.DataType.items()
    if name != "FLOAT8E4M3FN"
    and name.startswith(("FLOAT8", "FLOAT6", "FLOAT4", "INT16", "UINT16", "INT4", "UINT4", "INT2", "UINT2"))
}


@dataclass(frozen=True)
class RestoredActivation:
    """An activation function that a Q/DQ pair replaced, as far as the graph shows. A Clip takes its place again.

    Attributes:
        layer, tensor: the names of the Clip and of its input.
        scale: the scale of the pair.
    """

    layer: str
    tensor: str
    scale: float

    def is_seen(self, values: np.ndarray) -> bool:
        """Returns true if the values of ``tensor`` show an activation: the pair cuts off more at zero than rounding
        loses (step² / 12 per value).
        """
        steps = values.astype(np.float64) / self.scale
        cut = np.where(steps < -0.5, steps, 0.0)
        return bool(np.sum(cut**2) > steps.size / 12)


@dataclass
class ExistingPairs:
    """The quantizers of the Q/DQ pairs removed from a graph; those of one tensor in the order of application.

    Attributes:
        inputs: the quantizers before an input, by (node name, input position).
        outputs: those right before an output of the network, by (node name, output position).
        unproven: the layers after which a pair may have replaced an activation, without proof.
    """

    inputs: dict[tuple[str, int], tuple[Quantizer, ...]] = field(default_factory=dict)
    outputs: dict[tuple[str, int], tuple[Quantizer, ...]] = field(default_factory=dict)
    unproven: list[str] = field(default_factory=list)
    restored: list[RestoredActivation] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.inputs or self.outputs)


def refuse_other_pairs(graph: onnx.GraphProto, source: str) -> None:
    """Raises BadInput, about the file ``source``, for Q/DQ pairs of 4 or 16 bits, or in FP8 other than E4M3."""
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.name == "value":
                types[node.output[0]] = attribute.t.data_type
    levels: dict[str, str] = {}
    for node in graph.node:
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
            continue
        kinds = {types[name] for slot, name in enumerate(node.input) if slot != 1 and name in types}
        kinds |= {attribute.i for attribute in node.attribute if attribute.name == "output_dtype"}
        for kind in kinds & _OTHER_LEVELS.keys():
            levels[node.name or node.output[0]] = _OTHER_LEVELS[kind]
    if levels:
        first = next(iter(levels))
        raise BadInput(
            f"'{source}' is quantized to {levels[first]} at {len(levels)} Q/DQ nodes, '{first}' the first: trt-bisect "
            "compares INT8 and FP8 (E4M3) with higher precision.",
            "Give the network before quantization, or quantized to one of these.",
        )


def take_out_pairs(graph: gs.Graph, unseen: Collection[str]) -> ExistingPairs:
    """Removes the eight-bit Q/DQ pairs of ``graph``, in place, and returns their quantizers.

    Activation functions that pairs replaced are restored as Clips, except the Clips named in ``unseen``: data showed
    no such function there.
    """
    pairs, taken, made = ExistingPairs(), tensor_names(graph), dict[tuple[object, ...], gs.Constant]()
    for dequantize in [node for node in graph.nodes if node.op == "DequantizeLinear"]:
        _move_past_transposes(dequantize)
    for dequantize in [node for node in graph.nodes if node.op == "DequantizeLinear"]:
        if dequantize.outputs[0].outputs and all(c.op == "QuantizeLinear" for c in dequantize.outputs[0].outputs):
            continue
        chain = _chain_before(dequantize, taken, made)
        if chain is not None:
            source = _with_absorbed_activation(*chain, graph, pairs, unseen)
            _rewire(dequantize, source, chain[1], pairs, graph)
    graph.cleanup()
    return pairs


# The tensor that consecutive pairs read, and their quantizers, first applied first; a bias has none.
_Chain = tuple[gs.Tensor, tuple[Quantizer, ...]]


def _chain_before(dequantize: gs.Node, taken: set[str], made: dict[tuple[object, ...], gs.Constant]) -> _Chain | None:
    stored = dequantize.inputs[0]
    if isinstance(stored, gs.Constant):
        return _dequantized_constant(dequantize, stored, taken, made)
    quantize = stored.inputs[0] if stored.inputs else None
    quantizer = _pair(quantize, dequantize) if quantize is not None and quantize.op == "QuantizeLinear" else None
    if quantize is None or quantizer is None:
        return None
    source = quantize.inputs[0]
    if source.inputs and source.inputs[0].op == "DequantizeLinear":
        before = _chain_before(source.inputs[0], taken, made)
        return before and (before[0], (*before[1], quantizer))
    return source, (quantizer,)


def _dequantized_constant(
    dequantize: gs.Node, stored: gs.Constant, taken: set[str], made: dict[tuple[object, ...], gs.Constant]
) -> _Chain | None:
    if not isinstance(stored.values, np.ndarray) or stored.values.dtype not in (*_EIGHT_BITS, np.dtype(np.int32)):
        return None
    quantizer = _parameters(dequantize, stored.values.dtype)
    if quantizer is None:
        return None
    quantizer = replace(quantizer, dtype=_measured_in(quantizer.dtype))
    key = (stored.name, *quantizer.key())
    if key not in made:
        name = unused_name(f"{stored.name}.dequantized", taken)
        made[key] = gs.Constant(name, quantizer.dequantized(stored.values))
    return made[key], (quantizer,) if stored.values.dtype in _EIGHT_BITS else ()


def _pair(quantize: gs.Node, dequantize: gs.Node) -> Quantizer | None:
    levels = _levels(quantize, dequantize)
    q, dq = _parameters(quantize, levels), _parameters(dequantize, levels)
    if q is None or dq is None or levels not in _EIGHT_BITS or quantize.attrs.get("precision", 0):
        return None
    source = quantize.inputs[0].dtype
    are_equal = q.scale.tobytes() == dq.scale.tobytes() and q.zero_point.tobytes() == dq.zero_point.tobytes()
    keeps_type = source is None or np.dtype(source) == dq.dtype
    return replace(q, dtype=_measured_in(dq.dtype)) if are_equal and keeps_type else None


def _measured_in(dtype: np.dtype[np.generic]) -> np.dtype[np.generic]:
    # ONNX Runtime has no BF16 kernels: pairs in BF16 are emulated in float32.
    return np.dtype(np.float32) if dtype == _BF16 else dtype


def _levels(quantize: gs.Node, dequantize: gs.Node) -> np.dtype[np.generic]:
    # Source: ONNX operator QuantizeLinear: the type of the zero point, else output_dtype (opset 21), else uint8. As in
    # TensorRT's parser, the zero point of the DQ node counts if the Q node has neither.
    named = quantize.attrs.get("output_dtype", 0)
    levels: np.dtype[np.generic] = np.dtype(np.uint8)
    if _has_zero_point(quantize):
        levels = np.dtype(quantize.inputs[2].dtype)
    elif named:
        levels = np.dtype(helper.tensor_dtype_to_np_dtype(named))
    elif _has_zero_point(dequantize):
        levels = np.dtype(dequantize.inputs[2].dtype)
    return levels


def _has_zero_point(node: gs.Node) -> bool:
    return len(node.inputs) > 2 and not node.inputs[2].is_empty()


def _parameters(node: gs.Node, levels: np.dtype[np.generic]) -> Quantizer | None:
    parameters = node.inputs[1:3] if _has_zero_point(node) else node.inputs[1:2]
    if node.attrs.get("block_size", 0) or not all(isinstance(tensor, gs.Constant) for tensor in parameters):
        return None
    scale = np.asarray(parameters[0].values)
    named = node.attrs.get("output_dtype", 0) if node.op == "DequantizeLinear" else 0
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(named)) if named else scale.dtype
    if scale.dtype not in _FLOATS or dtype not in _FLOATS:
        return None
    scale = scale.astype(np.float32)
    zero_point = np.asarray(parameters[1].values) if len(parameters) > 1 else np.zeros(scale.shape, levels)
    if scale.size == 1:
        return Quantizer(scale.reshape(()), zero_point.reshape(()), None, dtype)
    axis = _axis(node, scale)
    return None if axis is None else Quantizer(scale, zero_point, axis, dtype)


def _axis(node: gs.Node, scale: np.ndarray) -> int | None:
    shape = node.inputs[0].shape
    axis = int(node.attrs.get("axis", 1))
    if shape is None:
        return None if axis < 0 else axis
    if not -len(shape) <= axis < len(shape) or scale.ndim != 1:
        return None
    fits = not isinstance(shape[axis], int) or shape[axis] == scale.size
    return axis % len(shape) if fits else None


def _move_past_transposes(dequantize: gs.Node) -> None:
    stored = dequantize.inputs[0]
    quantizer = _parameters(dequantize, np.dtype(np.int8))
    if not isinstance(stored, gs.Constant) or quantizer is None:
        return
    axis = quantizer.axis
    for transpose in [consumer for consumer in dequantize.outputs[0].outputs if consumer.op == "Transpose"]:
        order = list(transpose.attrs.get("perm", reversed(range(stored.values.ndim))))
        moved = np.ascontiguousarray(stored.values.transpose(order))
        transpose.op = "DequantizeLinear"
        kept = {name: value for name, value in dequantize.attrs.items() if name == "output_dtype"}
        transpose.attrs = kept if axis is None else {**kept, "axis": order.index(axis)}
        transpose.inputs = [gs.Constant(f"{transpose.name}.transposed", moved), *dequantize.inputs[1:]]


def _rewire(
    dequantize: gs.Node, source: gs.Tensor, quantizers: tuple[Quantizer, ...], pairs: ExistingPairs, graph: gs.Graph
) -> None:
    in_main_graph, out = {id(node) for node in graph.nodes}, dequantize.outputs[0]
    for consumer in list(out.outputs):
        if consumer.op == "QuantizeLinear" or id(consumer) not in in_main_graph:
            continue
        for slot, tensor in enumerate(consumer.inputs):
            if tensor is out:
                consumer.inputs[slot] = source
                if quantizers:
                    pairs.inputs[consumer.name, slot] = quantizers
    # The node before the chain makes the network output that the chain made.
    producer = source.inputs[0] if source.inputs else None
    if any(out is output for output in graph.outputs) and producer is not None and source not in graph.outputs:
        dequantize.outputs.clear()
        redirect(source, out)
        pairs.outputs[producer.name, _replace_output(source, out)] = quantizers


_NO_LOWER_BOUND = frozenset(
    "Conv ConvTranspose Gemm MatMul BatchNormalization InstanceNormalization LayerNormalization "
    "GroupNormalization".split()
)
# No other activation follows an activation, or an operator whose results are never negative.
_NO_RELU_BEHIND = frozenset(
    "Relu Clip Sigmoid HardSigmoid Softmax Softplus Abs Exp Sqrt Erf Tanh LeakyRelu PRelu Elu Celu Selu Gelu Mish "
    "Swish HardSwish DequantizeLinear".split()
)
_ALL_PASS = ("Add", "Concat", "Sum")
_FIRST_PASSES = frozenset(
    "Sub MaxPool AveragePool GlobalAveragePool GlobalMaxPool ReduceMean ReduceMax Reshape Flatten Transpose Squeeze "
    "Unsqueeze Slice Split Gather Resize Pad Expand Tile Identity Cast DepthToSpace SpaceToDepth".split()
)
_OWN_NAME = r"(?:[_.]out(?:put)?(?:_\d+)?|:\d+)?"
_RELU6 = 6.0


def _with_absorbed_activation(
    source: gs.Tensor, quantizers: tuple[Quantizer, ...], graph: gs.Graph, pairs: ExistingPairs, unseen: Collection[str]
) -> gs.Tensor:
    producer = source.inputs[0] if source.inputs else None
    if producer is None or not quantizers or not quantizers[0].begins_at_zero:
        return source
    stem = producer.name if len(producer.outputs) == 1 else source.name
    name = f"{stem}.absorbed_relu"
    for reader in source.outputs:
        if reader.name == name:
            return reader.outputs[0]
    origins = _origins(source)
    stems = (producer.name, producer.name.removeprefix("node_"))  # a prefix of PyTorch's newer exporter
    has_own_name = any(re.fullmatch(re.escape(stem) + _OWN_NAME, source.name) for stem in stems)
    if origins & _NO_LOWER_BOUND and not has_own_name and name not in unseen:
        pairs.restored.append(RestoredActivation(name, source.name, float(quantizers[0].scale)))
        return _restore(source, producer, quantizers[0], name, graph)
    if not origins <= _NO_RELU_BEHIND and producer.name not in pairs.unproven:
        pairs.unproven.append(producer.name)
    return source


def _origins(tensor: gs.Tensor) -> set[str]:
    origins, seen, waiting = set[str](), set[int](), [tensor]
    while waiting:
        current = waiting.pop()
        if id(current) in seen or not current.inputs:
            continue
        seen.add(id(current))
        passed = _passed(current.inputs[0])
        waiting += passed
        if not passed:
            origins.add(current.inputs[0].op)
    return origins


def _passed(node: gs.Node) -> list[gs.Tensor]:
    if node.op in _ALL_PASS:
        return list(node.inputs)
    if node.op in _FIRST_PASSES:
        return list(node.inputs[:1])
    varying = [tensor for tensor in node.inputs if not isinstance(tensor, gs.Constant)]
    scaled = node.op in ("Mul", "Div") and len(varying) == 1 and (node.op == "Mul" or varying[0] is node.inputs[0])
    return varying if scaled else []


def _restore(source: gs.Tensor, producer: gs.Node, first: Quantizer, name: str, graph: gs.Graph) -> gs.Tensor:
    limits = {"zero": 0.0, "six": _RELU6} if abs(float(first.scale) * 255 - _RELU6) < 1e-3 else {"zero": 0.0}
    bounds = [gs.Constant(f"{name}.{word}", np.array(limit, first.dtype)) for word, limit in limits.items()]
    out = gs.Variable(f"{name}_out", first.dtype, source.shape)
    clip = gs.Node("Clip", name, inputs=[source, *bounds], outputs=[out])
    graph.nodes.insert(graph.nodes.index(producer) + 1, clip)
    return out


def low_of_pairs(pairs: ExistingPairs, low: LowPrecision, source: str) -> LowPrecision:
    """Returns the low precision of a file: that of its pairs, INT8 or FP8, or ``low`` without pairs.

    Raises BadInput, about the file ``source``, if it has pairs of both, or if ``low`` is neither INT8 nor the precision
    of the pairs.
    """
    first_at: dict[LowPrecision, str] = {}
    for (node, _), chain in (*pairs.inputs.items(), *pairs.outputs.items()):
        for quantizer in chain:
            kind = FP8 if quantizer.in_fp8 else INT8
            first_at.setdefault(kind, node)
    if not first_at:
        return low
    if len(first_at) > 1:
        raise BadInput(
            f"'{source}' has Q/DQ pairs of INT8 ('{first_at[INT8]}' the first layer) and of FP8 ('{first_at[FP8]}' the "
            "first): trt-bisect compares one of the two with higher precision.",
            "Give the network before quantization, or quantized to one of them.",
        )
    (kind,) = first_at
    if low not in (INT8, kind):
        raise BadInput(
            f"'{source}' came with Q/DQ pairs of {kind.title}: it cannot be measured in {low.title}.",
            "Give the network without pairs, or leave out --low.",
        )
    return kind


_FLOAT32 = np.dtype(np.float32)


def take_out_types(graph: gs.Graph, low: LowPrecision, source: str) -> frozenset[str] | None:
    """Turns the tensors of the type of ``low`` (FP16 or BF16) into float32, in place, and removes the Casts between
    both.

    FP16 inputs and outputs of the network keep their type; BF16 ones become float32.

    Returns the names of the nodes that computed in the type, or None if no tensor had it. Raises BadInput if the file,
    ``source``, has another 16-bit type than ``low``, or has the type inside control flow.
    """
    kind = low.float_type
    assert kind is not None
    for precision, other_kind in FLOAT_TYPES.items():
        if other_kind is not kind and has_type(graph, other_kind):
            remedy = "Give the network" if has_type(graph, kind) else f"Give --low {precision}, or the network"
            raise BadInput(
                f"'{source}' is in {precision.upper()} and cannot be measured in {low.title}.", f"{remedy} in FP32."
            )
    if any(has_type(body, kind) for body in graph.subgraphs(recursive=True)):
        raise BadInput(
            f"'{source}' has {low.title} tensors inside If, Loop or Scan.",
            "Give the network in FP32, or without such tensors.",
        )
    if not has_type(graph, kind):
        return None
    own_roundings = _own_roundings(graph, kind)
    typed_nodes = frozenset(
        node.name for node in graph.nodes if node.op != "Cast" and any(out.dtype == kind.dtype for out in node.outputs)
    )
    if low.precision is Precision.FP16:
        _keep_interface(graph, kind)
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
    return typed_nodes


def has_type(graph: gs.Graph, kind: FloatType) -> bool:
    """Returns true if a tensor of the graph has the float type."""
    return any(tensor.dtype == kind.dtype for tensor in graph.tensors().values())


def _own_roundings(graph: gs.Graph, kind: FloatType) -> set[int]:
    cast_ids: set[int] = set()
    for node in graph.nodes:
        out = node.outputs[0]
        if node.op != "Cast" or node.attrs.get("to") != kind.onnx or node.inputs[0].dtype != _FLOAT32:
            continue
        back = list(out.outputs)
        only_back = all(cast.op == "Cast" and cast.attrs.get("to") == TensorProto.FLOAT for cast in back)
        if back and out not in graph.outputs and only_back:
            cast_ids |= {id(node), *map(id, back)}
    return cast_ids


def _keep_interface(graph: gs.Graph, kind: FloatType) -> None:
    taken = tensor_names(graph)
    for value in [value for value in graph.inputs if value.dtype == kind.dtype]:
        inside = gs.Variable(unused_name(f"{value.name}_float32", taken), _FLOAT32, value.shape)
        redirect(value, inside)
        name = unused_name(f"{value.name}_to_float32", taken)
        graph.nodes.insert(0, gs.Node("Cast", name, {"to": TensorProto.FLOAT}, [value], [inside]))
    for value in [value for value in graph.outputs if value.dtype == kind.dtype and value.inputs]:
        inside = gs.Variable(unused_name(f"{value.name}_float32", taken), _FLOAT32, value.shape)
        redirect(value, inside)
        _replace_output(value, inside)
        name = unused_name(f"{value.name}_to_{kind.name}", taken)
        graph.nodes.append(gs.Node("Cast", name, {"to": kind.onnx}, [inside], [value]))


def _replace_output(old: gs.Tensor, new: gs.Tensor) -> int:
    maker = old.inputs[0]
    slot = next(slot for slot, tensor in enumerate(maker.outputs) if tensor is old)
    maker.outputs[slot] = new
    return slot


def _remove_cast(graph: gs.Graph, node: gs.Node, kind: FloatType) -> None:
    read, out = node.inputs[0], node.outputs[0]
    if node.attrs.get("to") not in (TensorProto.FLOAT, kind.onnx):
        return
    if read.dtype not in (_FLOAT32, kind.dtype):
        node.attrs["to"] = TensorProto.FLOAT
    elif any(out is result for result in graph.outputs):
        _give_name(graph, node)
    elif read.dtype != kind.dtype or not any(read is value for value in graph.inputs):
        redirect(out, read)
        node.inputs.clear()
        node.outputs.clear()


def _give_name(graph: gs.Graph, node: gs.Node) -> None:
    read, out = node.inputs[0], node.outputs[0]
    if node.attrs["to"] != TensorProto.FLOAT:
        return
    if not read.inputs or any(read is value for value in (*graph.inputs, *graph.outputs)):
        node.op, node.attrs = "Identity", {}
    else:
        node.inputs.clear()
        node.outputs.clear()
        redirect(read, out)
        _replace_output(read, out)
