"""Reads and writes ONNX files with their weights beside protobuf, so that no weight is copied more often than once.

Protobuf copies a weight when a file is parsed, when its bytes are taken out of the message, when they are put into one
and when that is serialised. Here the fields of the messages that lead to a weight are read and written directly.
Source: "Encoding" in the protobuf documentation; the field numbers are those of ``onnx.proto``. Only a network's main
graph is treated so, and only weights in ``raw_data``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5
_GRAPH_IN_MODEL, _INITIALIZER_IN_GRAPH, _NAME_IN_TENSOR, _RAW_DATA_IN_TENSOR = 7, 5, 8, 9
_FIXED_SIZES = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}


class _Field(NamedTuple):
    """A field of a message: its number, all its bytes, and its content (empty for a number)."""

    number: int
    whole: memoryview
    content: memoryview


def read_without_weights(
    path: Path, least: int, types: frozenset[int]
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Reads an ONNX file; the weights are copied once, from the file into the arrays.

    Args:
        least: smaller weights stay in the graph, in bytes.
        types: the types of the weights that are taken out, ``TensorProto.DataType``.

    Returns:
        The network, and by name the weights whose ``raw_data`` was left out of it.

    Raises:
        ValueError, DecodeError: the file is no protobuf message of this kind. ``onnx.load`` says more about it.
        OSError: it cannot be read.
    """
    if sys.byteorder != "little":
        raise ValueError("raw_data is little-endian")
    model, weights = onnx.ModelProto(), dict[str, np.ndarray]()
    of_model, of_graph = [], []
    tensors: list[memoryview] = []
    for field in _fields(np.memmap(path, np.uint8, "r").data):
        if field.number != _GRAPH_IN_MODEL:
            of_model.append(field.whole)
            continue
        for inner in _fields(field.content):
            if inner.number == _INITIALIZER_IN_GRAPH:
                tensors.append(inner.content)
            else:
                of_graph.append(inner.whole)
    model.MergeFromString(b"".join(of_model))
    model.graph.MergeFromString(b"".join(of_graph))
    for content in tensors:
        array = _read_tensor(content, model.graph.initializer.add(), least, types)
        if array is not None:
            weights[model.graph.initializer[-1].name] = array
    return model, weights


def places_of_weights(path: Path) -> dict[str, tuple[int, int]]:
    """Returns by name the offset and the size in ``path``, in bytes, of each weight in ``raw_data``."""
    whole = np.memmap(path, np.uint8, "r")
    begin, places = whole.ctypes.data, dict[str, tuple[int, int]]()
    for field in _fields(whole.data):
        for inner in _fields(field.content) if field.number == _GRAPH_IN_MODEL else ():
            if inner.number != _INITIALIZER_IN_GRAPH:
                continue
            fields = {each.number: each.content for each in _fields(inner.content)}
            raw = fields.get(_RAW_DATA_IN_TENSOR)
            if raw:
                offset = np.frombuffer(raw, np.uint8).ctypes.data - begin
                places[bytes(fields[_NAME_IN_TENSOR]).decode()] = offset, raw.nbytes
    return places


def _read_tensor(content: memoryview, tensor: TensorProto, least: int, types: frozenset[int]) -> np.ndarray | None:
    """Fills ``tensor``; returns its values where they are left out of it."""
    raw = memoryview(b"")
    rest = []
    for field in _fields(content):
        if field.number == _RAW_DATA_IN_TENSOR:
            raw = field.content
        else:
            rest.append(field.whole)
    tensor.MergeFromString(b"".join(rest))
    if raw.nbytes >= least and tensor.data_type in types and tensor.data_location != TensorProto.EXTERNAL:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        if prod(tensor.dims) * dtype.itemsize == raw.nbytes:
            values: np.ndarray = np.frombuffer(raw, dtype).reshape(tensor.dims).copy()
            return values
    if raw.nbytes:
        tensor.raw_data = raw.tobytes()
    return None


def _fields(message: memoryview) -> Iterator[_Field]:
    """Yields the fields of a message; raises ValueError if it is none."""
    start, end = 0, len(message)
    while start < end:
        key, offset = _varint(message, start)
        wire_type, content = key & 7, message[:0]
        if wire_type == _VARINT:
            _, offset = _varint(message, offset)
        elif wire_type == _LENGTH:
            size, offset = _varint(message, offset)
            content = message[offset : offset + size]
            offset += size
        elif wire_type in _FIXED_SIZES:
            offset += _FIXED_SIZES[wire_type]
        else:
            raise ValueError(f"no protobuf field has wire type {wire_type}")
        if offset > end:
            raise ValueError("a field ends behind its message")
        yield _Field(key >> 3, message[start:offset], content)
        start = offset


def _varint(message: memoryview, offset: int) -> tuple[int, int]:
    """Returns the number at ``offset``, seven bits a byte, the lowest first; and the offset after it."""
    value = shift = 0
    while shift < 64 and offset < len(message):
        byte = message[offset]
        value, shift, offset = value | (byte & 0x7F) << shift, shift + 7, offset + 1
        if byte < 0x80:
            return value, offset
    raise ValueError("a number does not end")


def write_with_weights(file: BinaryIO, skeleton: onnx.ModelProto, weights: Mapping[str, np.ndarray]) -> None:
    """Writes an ONNX file; the weights go from the arrays into the file.

    Args:
        skeleton: the network; initializers of external data have their values in ``weights``.
    """
    model, graph = onnx.ModelProto(), onnx.GraphProto()
    model.CopyFrom(skeleton)
    graph.CopyFrom(skeleton.graph)
    model.ClearField("graph")
    graph.ClearField("initializer")
    parts: list[bytes | memoryview] = [graph.SerializeToString()]
    for tensor in skeleton.graph.initializer:
        parts += _in_message(_INITIALIZER_IN_GRAPH, _tensor_parts(tensor, weights))
    for part in (model.SerializeToString(), *_in_message(_GRAPH_IN_MODEL, parts)):
        file.write(part)


def _tensor_parts(tensor: TensorProto, weights: Mapping[str, np.ndarray]) -> list[bytes | memoryview]:
    """The bytes of an initializer, in parts."""
    if tensor.data_location != TensorProto.EXTERNAL:
        return [tensor.SerializeToString()]
    array = weights[tensor.name]
    if array.dtype.kind not in "biuf" or sys.byteorder != "little":
        return [numpy_helper.from_array(array, tensor.name).SerializeToString()]
    data_type = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    head = TensorProto(dims=array.shape, data_type=data_type, name=tensor.name).SerializeToString()
    values = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    return [head, *_in_message(_RAW_DATA_IN_TENSOR, [values])]


def _in_message(number: int, parts: list[bytes | memoryview]) -> list[bytes | memoryview]:
    """The parts of a message or of bytes as a field of another message."""
    size = sum(memoryview(part).nbytes for part in parts)
    return [_as_varint(number << 3 | _LENGTH) + _as_varint(size), *parts]


def _as_varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])
