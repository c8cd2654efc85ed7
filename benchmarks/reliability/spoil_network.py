"""Spoils ONNX networks field by field, and with the mistakes that people and tools really make."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import numpy as np
import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from onnx import TensorProto, helper, numpy_helper

from benchmarks.reliability.spoil import ODD_FLOATS, ODD_INTS, ODD_TEXTS, spoiled_bytes
from trt_bisect.model.file import refill

Spoil = Callable[[onnx.ModelProto, Random], None]
_INTS = (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64)
_KEYS = ("location", "offset", "length")
_FLOATS = (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE)


def spoiled_network(model: onnx.ModelProto, random: Random) -> bytes:
    """The file of a spoiled copy of ``model``."""
    made = copy.deepcopy(model)
    how = random.randrange(200)
    if how == 0:
        return _too_deep(random.choice((30, 100, 10_000)))
    if how < 25:
        return spoiled_bytes(made.SerializeToString(), random)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        spoil = random.choice(_PLANTED) if random.randrange(2) else _spoil_field
        spoil(made, random)
    return made.SerializeToString()


def _too_deep(levels: int) -> bytes:
    """Returns a network with nested subgraphs, deeper than protobuf writes them."""
    content = b""
    for _ in range(levels):
        for tag in (6, 5, 1):
            content = bytes([tag << 3 | 2]) + _varint(len(content)) + content
    return bytes([7 << 3 | 2]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    return bytes([*made, value])


def _messages(message: Message) -> Iterator[Message]:
    """Yields a message and all messages in it, but none in weights."""
    yield message
    for field, value in message.ListFields():
        if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            for inner in value if field.is_repeated else [value]:
                yield from _messages(inner)


def _spoil_field(model: onnx.ModelProto, random: Random) -> None:
    """Any field of any message: cleared, replaced, doubled, moved, taken out."""
    message = random.choice(list(_messages(model)))
    fields: list[Any] = list(message.DESCRIPTOR.fields)
    present: list[Any] = [field for field, _ in message.ListFields()]
    field = random.choice(present) if present and random.randrange(4) else random.choice(fields)
    is_message = field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE
    if not field.is_repeated:
        if not random.randrange(4):
            message.ClearField(field.name)
        elif is_message:
            _copy_from_elsewhere(model, getattr(message, field.name), random)
        else:
            setattr(message, field.name, _odd_scalar(model, field, random))
        return
    values = getattr(message, field.name)
    if len(values) and not random.randrange(3):
        del values[random.randrange(len(values))]
    elif is_message:
        chosen = random.choice(values) if len(values) and random.randrange(2) else values.add()
        _copy_from_elsewhere(model, chosen, random)
    elif len(values) and random.randrange(3):
        values[random.randrange(len(values))] = _odd_scalar(model, field, random)
    else:
        values.append(_odd_scalar(model, field, random))


def _copy_from_elsewhere(model: onnx.ModelProto, message: Message, random: Random) -> None:
    alike = [other for other in _messages(model) if other.DESCRIPTOR is message.DESCRIPTOR and other is not message]
    if alike:
        message.CopyFrom(copy.deepcopy(random.choice(alike[:50])))


def _odd_scalar(model: onnx.ModelProto, field: Any, random: Random) -> Any:
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return random.choice(field.enum_type.values).number
    if field.cpp_type in _FLOATS:
        return random.choice(
            [odd for odd in ODD_FLOATS if field.cpp_type != FieldDescriptor.CPPTYPE_FLOAT or abs(odd) != 1e308]
        )
    if field.cpp_type in _INTS:
        bits = 31 if field.cpp_type == FieldDescriptor.CPPTYPE_INT32 else 63
        least = 0 if field.cpp_type == FieldDescriptor.CPPTYPE_UINT64 else -(1 << bits)
        return random.choice([odd for odd in ODD_INTS if least <= odd < 1 << bits])
    text = random.choice(_names(model)) if random.randrange(2) else random.choice(ODD_TEXTS)
    return text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text


def _names(model: onnx.ModelProto) -> list[str]:
    names = [name for node in model.graph.node for name in (*node.input, *node.output, node.name, node.op_type)]
    return names or [""]


def _node(model: onnx.ModelProto, random: Random) -> onnx.NodeProto:
    return random.choice(model.graph.node) if model.graph.node else model.graph.node.add()


def _tensor(model: onnx.ModelProto, random: Random) -> TensorProto:
    return random.choice(model.graph.initializer) if model.graph.initializer else model.graph.initializer.add()


def _cycle(model: onnx.ModelProto, random: Random) -> None:
    first, last = _node(model, random), _node(model, random)
    if first.input and last.output:
        first.input[0] = last.output[0]


def _shuffled(model: onnx.ModelProto, random: Random) -> None:
    nodes = list(model.graph.node)
    random.shuffle(nodes)
    refill(model.graph.node, nodes)


def _missing_initializer(model: onnx.ModelProto, random: Random) -> None:
    if model.graph.initializer:
        del model.graph.initializer[random.randrange(len(model.graph.initializer))]


def _claimed_dims(model: onnx.ModelProto, random: Random) -> None:
    """Dimensions that claim terabytes, nothing, or less."""
    tensor = _tensor(model, random)
    dims = [random.choice((0, -1, 1, 3, 1 << 20, 1 << 31, 1 << 40, (1 << 63) - 1)) for _ in range(random.randrange(6))]
    del tensor.dims[:]
    tensor.dims.extend(dims)


def _turned_dims(model: onnx.ModelProto, random: Random) -> None:
    """The same number of values in another shape."""
    tensor = _tensor(model, random)
    dims = list(tensor.dims) + random.choice(([], [1], [1, 1]))
    random.shuffle(dims)
    del tensor.dims[:]
    tensor.dims.extend(dims)


def _other_type(model: onnx.ModelProto, random: Random) -> None:
    _tensor(model, random).data_type = random.choice(TensorProto.DataType.values())


def _other_values(model: onnx.ModelProto, random: Random) -> None:
    """A weight of NaN, infinity, zeros, or of another type and as many values."""
    tensor = _tensor(model, random)
    shape = [size for size in tensor.dims if 0 <= size <= 64][:4]
    dtype = random.choice((np.float32, np.float16, np.float64, np.int8, np.uint8, np.int32, np.int64, np.bool_))
    with np.errstate(all="ignore"):
        values = np.full(shape, random.choice(ODD_FLOATS)).astype(dtype)
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def _other_input(model: onnx.ModelProto, random: Random) -> None:
    """An input or output of another type, shape or kind."""
    value = random.choice([*model.graph.input, *model.graph.output] or [model.graph.input.add()])
    kind = random.randrange(5)
    if kind == 0:
        value.type.tensor_type.elem_type = random.choice(TensorProto.DataType.values())
    elif kind == 1:
        value.type.sequence_type.elem_type.tensor_type.elem_type = 1
    elif kind == 2:
        value.type.optional_type.elem_type.tensor_type.elem_type = 1
    elif kind == 3:
        value.type.map_type.key_type = 7
    else:
        dims = [random.choice((-1, 0, 1, 2, 3, 16, 1 << 20, 1 << 40, "n", "")) for _ in range(random.randrange(7))]
        value.CopyFrom(helper.make_tensor_value_info(value.name, 1, dims))


def _same_names(model: onnx.ModelProto, random: Random) -> None:
    node, other = _node(model, random), _node(model, random)
    if node.output and other.output and random.randrange(2):
        node.output[0] = other.output[0]
    else:
        node.name = other.name


def _deep(model: onnx.ModelProto, random: Random) -> None:
    """Nests subgraphs in subgraphs."""
    innermost = helper.make_node("Identity", [(*_names(model), "x")[0]], ["inner"])
    body = helper.make_graph([innermost], "deepest", [], [helper.make_tensor_value_info("inner", 1, None)])
    for level in range(random.choice((2, 10, 20, 28))):
        out = f"inner{level}"
        node = helper.make_node("If", ["condition"], [out], then_branch=body, else_branch=onnx.GraphProto())
        body = helper.make_graph([node], f"level{level}", [], [helper.make_tensor_value_info(out, 1, None)])
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "condition"))
    model.graph.node.extend(body.node)
    model.graph.output.extend(body.output)


def _pointing_out(model: onnx.ModelProto, random: Random) -> None:
    """Lets external data point to another file, or beyond the end of its file."""
    tensor = _tensor(model, random)
    tensor.ClearField("raw_data")
    tensor.ClearField("float_data")
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    places = (
        "../secret.bin", "/etc/passwd", "/dev/zero", "w.bin", "link.bin", "", ".", "a/../../b", "weights.bin",
        "/proc/self/mem",
    )  # fmt: skip
    sizes = ("0", "-1", "4", "1e3", "x", str(1 << 40), str((1 << 63) - 1), str(1 << 70))
    for key, value in [(key, random.choice(sizes if key != "location" else places)) for key in _KEYS]:
        if random.randrange(5):
            tensor.external_data.add(key=key, value=value)


def _odd_pair(model: onnx.ModelProto, random: Random) -> None:
    """A Q/DQ pair before a node's first input, with a scale, a zero point and an axis of any kind."""
    node = _node(model, random)
    if not node.input:
        return
    at = random.randrange(len(node.input))
    count = random.choice((1, 1, 2, 4, 7))
    with np.errstate(over="ignore"):
        scale = np.array(random.choice(ODD_FLOATS) if random.randrange(2) else 0.05, np.float32)
    kind = random.choice((np.int8, np.int8, np.uint8, np.int32, np.int16, np.float32))
    zero = np.array(random.choice((0, 0, 0, 1, 127)), kind)
    tag = f"odd{len(model.graph.node)}"
    if count > 1:
        scale, zero = np.full(count, scale), np.full(count, zero)
    model.graph.initializer.append(numpy_helper.from_array(scale, f"{tag}.scale"))
    model.graph.initializer.append(numpy_helper.from_array(zero, f"{tag}.zero"))
    parameters = [f"{tag}.scale", f"{tag}.zero"][: random.choice((1, 2, 2))]
    axis: dict[str, Any] = random.choice(
        ({}, {}, {"axis": random.choice((0, 1, -1, 9, -9, 1 << 40))}, {"block_size": 2})
    )
    pair = [
        helper.make_node("QuantizeLinear", [node.input[at], *parameters], [f"{tag}.q"], name=f"{tag}.Q", **axis),
        helper.make_node("DequantizeLinear", [f"{tag}.q", *parameters], [f"{tag}.d"], name=f"{tag}.D", **axis),
    ]
    node.input[at] = f"{tag}.d"
    refill(model.graph.node, [*pair, *model.graph.node])


def _opset(model: onnx.ModelProto, random: Random) -> None:
    how = random.randrange(4)
    if how == 0:
        del model.opset_import[:]
    elif how == 1:
        model.opset_import.append(helper.make_opsetid(random.choice(("", "ai.onnx", "own", "ai.onnx.ml")), 5))
    elif model.opset_import:
        odd = (0, -1, 1, 6, 7, 10, 11, 12, 13, 21, 22, 25, 26, 999, 1 << 40)
        model.opset_import[0].version = random.choice(odd)
    if not random.randrange(3):
        model.ir_version = random.choice((0, 1, 2, 3, 4, 11, 12, 13, 99, -5))


def _domain(model: onnx.ModelProto, random: Random) -> None:
    node = _node(model, random)
    node.domain = random.choice(("own", "com.microsoft", "ai.onnx.ml", "trt.plugins", "ai.onnx"))
    if random.randrange(2):
        model.opset_import.append(helper.make_opsetid(node.domain, 1))


def _operator(model: onnx.ModelProto, random: Random) -> None:
    """Another operator with the same inputs."""
    ops = """Conv ConvTranspose Gemm MatMul MaxPool AveragePool Add Concat Relu Reshape Softmax Identity Cast Shape
        Loop If Scan BatchNormalization Dropout Constant ConstantOfShape Expand Tile Range Resize Split SequenceEmpty
        Transpose QuantizeLinear DequantizeLinear DynamicQuantizeLinear NonZero Pad OneHot Einsum StringNormalizer"""
    node = _node(model, random)
    node.op_type = random.choice(ops.split())
    if random.randrange(2):
        del node.attribute[:]


def _attribute(model: onnx.ModelProto, random: Random) -> None:
    """An attribute of the wrong type, or with values that nobody expects."""
    node = _node(model, random)
    names_there = [attribute.name for attribute in node.attribute]
    names = "axis perm pads strides dilations group kernel_shape to transB epsilon auto_pad value then_branch body"
    name = random.choice(names_there) if names_there and random.randrange(2) else random.choice(names.split())
    odd: tuple[Any, ...] = (
        *ODD_INTS, *(odd for odd in ODD_FLOATS if abs(odd) < 1e308), "text", [1, 2, 3], [-1, -1], [0, 0],
        [1 << 40, 1 << 40], [0.5], ["a", "b"], helper.make_tensor("t", 1, [2], [1.0, 2.0]),
        helper.make_graph([], "empty", [], []),
    )  # fmt: skip
    kept = [attribute for attribute in node.attribute if attribute.name != name]
    refill(node.attribute, [*kept, helper.make_attribute(name, random.choice(odd))])


def _large_constant(model: onnx.ModelProto, random: Random) -> None:
    """Adds a constant of a few bytes that computes gigabytes."""
    size = random.choice(([1 << 15, 1 << 15], [1 << 31], [1 << 40], [-1], [1 << 13, 1 << 13, 16], [0, 1 << 40]))
    shape = numpy_helper.from_array(np.array(size, np.int64), "large_shape")
    model.graph.initializer.append(shape)
    op = random.choice(("ConstantOfShape", "Expand", "Tile", "Range"))
    if op == "ConstantOfShape":
        nodes = [helper.make_node(op, ["large_shape"], ["large"])]
    elif op == "Range":
        limits = [numpy_helper.from_array(np.array(v, np.int64), n) for n, v in (("r0", 0), ("r1", size[0]), ("r2", 1))]
        model.graph.initializer.extend(limits)
        nodes = [helper.make_node(op, ["r0", "r1", "r2"], ["large"])]
    else:
        model.graph.initializer.append(numpy_helper.from_array(np.ones([1] * len(size), np.float32), "small"))
        nodes = [helper.make_node(op, ["small", "large_shape"], ["large"])]
    nodes.append(helper.make_node("ReduceSum", ["large"], ["large_sum"], keepdims=0))
    model.graph.node.extend(nodes)
    model.graph.output.append(helper.make_tensor_value_info("large_sum", 7 if op == "Range" else 1, []))


def _recursive_function(model: onnx.ModelProto, random: Random) -> None:
    inner = random.choice(("again", "other"))
    for name, calls in (("again", inner), ("other", "again")):
        body = [helper.make_node(calls, ["a"], ["b"], domain="own")]
        model.functions.append(helper.make_function("own", name, ["a"], ["b"], body, [helper.make_opsetid("", 17)]))
    node = _node(model, random)
    node.domain, node.op_type = "own", "again"
    model.opset_import.append(helper.make_opsetid("own", 1))


_PLANTED: tuple[Spoil, ...] = (
    _attribute, _claimed_dims, _cycle, _deep, _domain, _large_constant, _missing_initializer, _odd_pair, _operator,
    _opset, _other_input, _other_type, _other_values, _pointing_out, _recursive_function, _same_names, _shuffled,
    _turned_dims,
)  # fmt: skip
