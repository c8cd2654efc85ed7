"""Reads and writes ONNX files with external data; large weights are kept apart from protobuf messages.

A *detached* weight remains in the graph as a tensor with external data in a file named ``MEMORY``, which does not
exist.
"""

from __future__ import annotations

import atexit
import hashlib
import math
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import numpy as np
import onnx
from google.protobuf.message import DecodeError, Message
from onnx import TensorProto, external_data_helper, helper, numpy_helper

from trt_bisect.data.named import ONNX, kind_of, remedy_of, similar_file
from trt_bisect.errors import BadInput, first_line
from trt_bisect.support.memory import mapped_if_large

# Protobuf copies a weight at every step, so the fields that lead to ``raw_data`` are read and written directly. Source:
# "Encoding" in the protobuf documentation; field numbers of ``onnx.proto``.
_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5
_GRAPH_IN_MODEL, _INITIALIZER_IN_GRAPH, _RAW_DATA_IN_TENSOR = 7, 5, 9
_FIXED_SIZES = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}


class _Field(NamedTuple):
    number: int
    encoded: memoryview
    content: memoryview


def read_apart(path: Path) -> tuple[onnx.ModelProto, list[memoryview]]:
    """Reads an ONNX file; returns the network without its main graph's initializers, and the encoded initializers.

    Raises ValueError, DecodeError or OSError if the file cannot be read.
    """
    of_model, of_graph, initializers = list[memoryview](), list[memoryview](), list[memoryview]()
    for part in _fields(np.memmap(path, np.uint8, "r").data):
        if part.number != _GRAPH_IN_MODEL:
            of_model.append(part.encoded)
            continue
        for inner in _fields(part.content):
            if inner.number == _INITIALIZER_IN_GRAPH:
                initializers.append(inner.content)
            else:
                of_graph.append(inner.encoded)
    model = onnx.ModelProto()
    model.MergeFromString(b"".join(of_model))
    model.graph.MergeFromString(b"".join(of_graph))
    return model, initializers


def _read_without_weights(path: Path) -> tuple[onnx.ModelProto, Weights]:
    weights: Weights = {}
    model, initializers = read_apart(path)
    for content in initializers:
        tensor = model.graph.initializer.add()
        raw = _read_but_raw_data(tensor, content)
        if raw and raw.nbytes == _bytes_to_detach(tensor):
            dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
            weights[tensor.name] = np.frombuffer(raw, dtype).reshape(tensor.dims).copy()
        elif raw:
            tensor.raw_data = raw.tobytes()
    return model, weights


def _read_but_raw_data(tensor: TensorProto, content: memoryview) -> memoryview:
    parts = list(_fields(content))
    tensor.MergeFromString(b"".join(part.encoded for part in parts if part.number != _RAW_DATA_IN_TENSOR))
    return {part.number: part.content for part in parts}.get(_RAW_DATA_IN_TENSOR, memoryview(b""))


def _fields(message: memoryview) -> Iterator[_Field]:
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
    # seven bits per byte, lowest first
    value = shift = 0
    while shift < 64 and offset < len(message):
        byte = message[offset]
        value, shift, offset = value | (byte & 0x7F) << shift, shift + 7, offset + 1
        if byte < 0x80:
            return value, offset
    raise ValueError("a number does not end")


def _write(file: BinaryIO, model: onnx.ModelProto, initializers: Iterable[list[bytes | memoryview]]) -> None:
    parts: list[bytes | memoryview] = [model.graph.SerializeToString()]
    for initializer in initializers:
        parts += _in_message(_INITIALIZER_IN_GRAPH, initializer)
    rest = deepcopy(model)
    rest.ClearField("graph")
    for part in (rest.SerializeToString(), *_in_message(_GRAPH_IN_MODEL, parts)):
        file.write(part)


def write_again(model: onnx.ModelProto, source: Path, folder: Path) -> None:
    """Writes ``model`` with the initializers of ``source`` into ``folder``, under the same file name. ``model`` is the
    network of ``source``, changed and without initializers.
    """
    _, initializers = read_apart(source)
    tensors = [*_tensors(model)]
    for content in initializers:
        tensors.append(TensorProto())
        _read_but_raw_data(tensors[-1], content)
    with (folder / source.name).open("wb") as file:
        _write(file, model, ([content] for content in initializers))
    external = filter(external_data_helper.uses_external_data, tensors)
    for location in {external_data_helper.ExternalDataInfo(tensor).location for tensor in external}:
        (folder / location).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source.parent / location, folder / location)


def _tensor_parts(tensor: TensorProto, weights: Mapping[str, np.ndarray]) -> list[bytes | memoryview]:
    if tensor.data_location != TensorProto.EXTERNAL:
        return [tensor.SerializeToString()]
    array = weights[tensor.name]
    if array.dtype.kind not in "biuf":
        return [numpy_helper.from_array(array, tensor.name).SerializeToString()]
    data_type = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    head = TensorProto(dims=array.shape, data_type=data_type, name=tensor.name).SerializeToString()
    values = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    return [head, *_in_message(_RAW_DATA_IN_TENSOR, [values])]


def _in_message(number: int, parts: list[bytes | memoryview]) -> list[bytes | memoryview]:
    size = sum(memoryview(part).nbytes for part in parts)
    return [_as_varint(number << 3 | _LENGTH) + _as_varint(size), *parts]


def _as_varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


MEMORY = "weights.bin"
"""The external-data location of detached weights."""

DETACH_FROM_BYTES = 1024
INLINE_UNTIL_BYTES = 1_500_000_000
"""From this size on, weights get a separate file: protobuf holds at most 2 GB."""

_DETACHABLE = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.INT8})
_DETACHABLE |= {TensorProto.UINT8, TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL}

Weights = dict[str, np.ndarray]
_Value = TypeVar("_Value")
ONNX_TYPES = (str, Path, onnx.ModelProto)
"""The types of a network that Python functions accept, besides ``Network``."""
_saved: dict[str, Path] = {}


@dataclass
class Written:
    """A graph and, kept apart, its large weights.

    Attributes:
        weights: the large weights by name, rounded ones included.
        pairs: by layer index, the tensors that are rounded for the layer.
    """

    model: onnx.ModelProto
    weights: Weights
    pairs: dict[int, tuple[str, ...]] = field(default_factory=dict)


class Constants:
    """The constants of a graph by name, with its large ``weights``."""

    def __init__(self, graph: onnx.GraphProto, weights: Mapping[str, np.ndarray]) -> None:
        self._weights = weights
        self._small = {tensor.name: tensor for tensor in graph.initializer if tensor.name not in weights}

    def __contains__(self, name: object) -> bool:
        return name in self._weights or name in self._small

    def __getitem__(self, name: str) -> np.ndarray:
        return self._weights[name] if name in self._weights else numpy_helper.to_array(self._small[name])


def saved_model(model: str | Path | onnx.ModelProto) -> Path:
    """Returns the path of a network; a ``ModelProto`` is written to a temporary file.

    Raises BadInput for a ``ModelProto`` without its weights.
    """
    if not isinstance(model, onnx.ModelProto):
        return Path(model)
    if any(tensor.data_location == TensorProto.EXTERNAL for tensor in model.graph.initializer):
        raise BadInput(
            "The ModelProto has its weights in other files, and their folder is not known.",
            "Give the path of its file, or load it with its weights: onnx.load(path).",
        )
    content = model.SerializeToString(deterministic=True)
    digest = hashlib.sha256(content).hexdigest()
    if digest not in _saved:
        name = re.sub(r"[^A-Za-z0-9._-]+", "_", model.graph.name)[:60] or "network"
        _saved[digest] = folder_until_the_end() / f"{name}.onnx"
        _saved[digest].write_bytes(content)
    return _saved[digest]


def folder_until_the_end() -> Path:
    """Returns a new folder that is removed when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="trt-bisect-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def read_model(path: Path) -> tuple[onnx.ModelProto, Weights]:
    """Reads a network and its external data; returns the network without its large weights, and these weights by name.

    Raises BadInput if the file is no ONNX network, or external data is missing or outside its folder.
    """
    if not path.is_file():
        raise _no_file(path)
    kind = kind_of(path)
    if kind not in ("", ONNX):
        raise BadInput(f"'{path}' is {kind}, not an ONNX network.", remedy_of(kind) or "Give an .onnx file.")
    try:
        model, weights = _parsed(path)
    except (DecodeError, ValueError, OSError) as error:
        raise _not_onnx(path, str(error)) from error
    if not model.graph.node and not model.graph.output:
        raise _not_onnx(path, "it holds no graph")
    texts = (t for n in model.graph.node for t in (n.op_type, n.name, n.domain, *n.input, *n.output))
    if any(isinstance(text, bytes) for text in texts):  # protobuf's way to return what is not UTF-8
        raise _not_onnx(path, "a node's name is not UTF-8 text")
    try:
        for tensor in model.graph.initializer:
            weight = _external_weight(tensor, path)
            if weight is not None:
                weights[tensor.name], tensor.data_location = weight, TensorProto.DEFAULT
        for tensor in _tensors(model):
            _load_external(tensor, path)
    except (onnx.checker.ValidationError, OSError, ValueError) as error:
        raise BadInput(
            f"The external data of '{path}' cannot be read: {first_line(error)}",
            "Keep the data files that were exported with the network in its folder, as files, not as links.",
        ) from error
    for tensor in model.graph.initializer:
        if tensor.name in weights:
            set_external(tensor, weights[tensor.name].nbytes)
    return model, mapped_if_large(weights | detach_weights(model))


def _external_weight(tensor: TensorProto, path: Path) -> np.ndarray | None:
    if not external_data_helper.uses_external_data(tensor):
        return None
    # Protobuf frees a field's memory only with the whole model.
    loaded = deepcopy(tensor)
    _load_external(loaded, path)
    return numpy_helper.to_array(loaded) if _bytes_to_detach(loaded) else None


def _load_external(tensor: TensorProto, path: Path) -> None:
    if external_data_helper.uses_external_data(tensor):
        location = external_data_helper.ExternalDataInfo(tensor).location
        folder = path.parent.resolve()
        if Path(location).is_absolute() or not (folder / location).resolve().is_relative_to(folder):
            raise ValueError(f"'{tensor.name}' refers to '{location}', outside the network's folder")
        if not (folder / location).exists():
            raise BadInput(
                f"The external data '{path.parent / location}' of '{path}' is missing.",
                "Put the data file that was exported with the network into its folder.",
            )
        external_data_helper.load_external_data_for_tensor(tensor, str(path.parent or Path()))
        tensor.data_location = TensorProto.DEFAULT
        del tensor.external_data[:]
        try:
            numpy_helper.to_array(tensor)
        except ValueError as error:
            raise ValueError(f"the data of '{tensor.name}' does not fit its shape: {error}") from error


def _parsed(path: Path) -> tuple[onnx.ModelProto, Weights]:
    # Large weights never enter the message, as far as they can be left out.
    if path.suffix == ".onnx":
        with suppress(DecodeError, ValueError, OSError):
            return _read_without_weights(path)
    return onnx.load(str(path), load_external_data=False), {}


def _no_file(path: Path) -> BadInput:
    if path.is_dir():
        kind, networks = kind_of(path), sorted(path.glob("*.onnx"))
        inside = f"Give one of its networks, such as {networks[0]}." if networks else "Give the path of an .onnx file."
        if (path / "report.json").is_file():
            inside = f"It is the folder of a run: 'trt-bisect view {path}' shows it. Give the network's .onnx file."
        return BadInput(f"'{path}' is {kind or 'a folder'}, not an ONNX network.", remedy_of(kind) or inside)
    if re.match(r"[a-z][a-z0-9+]+:/", str(path)):
        return BadInput(f"'{path}' is a URL, and URLs are not fetched.", "Download the file and give its path.")
    return BadInput(f"The network '{path}' does not exist.", similar_file(path) or "Give the path of an .onnx file.")


def _not_onnx(path: Path, reason: str) -> BadInput:
    return BadInput(
        f"'{path}' is not an ONNX network: {reason.splitlines()[0] if reason else 'it cannot be parsed'}",
        "Check that the file is whole (not truncated, not a Git LFS pointer) and was exported as ONNX.",
    )


# The fields that hold constants, or messages with constants.
_TENSOR_FIELDS = frozenset(
    "graph functions training_info initialization algorithm node attribute attribute_proto g graphs t tensors "
    "sparse_tensor sparse_tensors initializer sparse_initializer values indices".split()
)


def _tensors(message: Message) -> Iterator[TensorProto]:
    for descriptor, value in message.ListFields():
        if descriptor.name in _TENSOR_FIELDS:
            for inner in [value] if isinstance(value, Message) else value:
                yield from [inner] if isinstance(inner, TensorProto) else _tensors(inner)


def refill(field: Any, messages: Iterable[Message]) -> None:
    """Replaces the messages of a repeated field by copies of ``messages``, which may belong to the field."""
    copies = [type(message).FromString(message.SerializeToString()) for message in messages]
    del field[:]
    field.extend(copies)


def attribute(node: onnx.NodeProto, name: str, default: _Value) -> _Value:
    """Returns an attribute of a node (texts as bytes), or ``default`` without it."""
    return next((helper.get_attribute_value(entry) for entry in node.attribute if entry.name == name), default)


def bodies_of(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """Returns the graphs inside a node: an If's branches, a Loop's body."""
    bodies = list[onnx.GraphProto]()
    for entry in node.attribute:
        if entry.HasField("g"):
            bodies.append(entry.g)
        bodies += entry.graphs
    return bodies


def tensors_read(node: onnx.NodeProto) -> Iterator[str]:
    """Yields the tensors that a node reads, also inside its bodies (If, Loop)."""
    yield from node.input
    for body in bodies_of(node):
        made_inside = {value.name for value in body.input} | {tensor.name for tensor in body.initializer}
        made_inside |= {name for inner in body.node for name in inner.output}
        for inner in body.node:
            yield from (name for name in tensors_read(inner) if name not in made_inside)
        yield from (value.name for value in body.output if value.name not in made_inside)


def tensor_uses(graph: onnx.GraphProto) -> Counter[str]:
    """Returns the number of readers of each tensor; an output of the graph counts as one."""
    uses = Counter(name for node in graph.node for name in tensors_read(node) if name)
    uses.update(value.name for value in graph.output)
    return uses


def with_outputs(skeleton: onnx.ModelProto, names: Iterable[str]) -> onnx.ModelProto:
    """Returns a copy of ``skeleton`` that also outputs the tensors ``names``."""
    model = deepcopy(skeleton)
    outputs = {value.name for value in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in outputs)
    return model


def type_inputs(graph: onnx.GraphProto, values: Mapping[str, np.ndarray]) -> None:
    """Gives the inputs of ``graph`` the types and numbers of axes of ``values``, in place."""
    for value in graph.input:
        array = values[value.name]
        dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
        value.CopyFrom(helper.make_tensor_value_info(value.name, dtype, [None] * array.ndim))


def detach_weights(model: onnx.ModelProto) -> Weights:
    """Removes the large weights of the main graph, in place, and returns them by name."""
    weights: Weights = {}
    for tensor in model.graph.initializer:
        size = _bytes_to_detach(tensor)
        if size:
            weights[tensor.name] = numpy_helper.to_array(tensor)
            set_external(tensor, size)
    return weights


def weights_digest(weights: Weights) -> str:
    """Returns the SHA-256 over names and bytes of the weights."""
    sha = hashlib.sha256()
    for name in sorted(weights):
        sha.update(name.encode())
        sha.update(np.ascontiguousarray(weights[name]).view(np.uint8).reshape(-1).data)
    return sha.hexdigest()


def _bytes_to_detach(tensor: TensorProto) -> int:
    if tensor.data_type not in _DETACHABLE or tensor.data_location == TensorProto.EXTERNAL:
        return 0
    size = math.prod(tensor.dims) * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    return size if size >= DETACH_FROM_BYTES else 0


def set_external(tensor: TensorProto, size: int, location: str = MEMORY, offset: int = 0) -> None:
    """Turns ``tensor`` into a reference to ``size`` bytes at ``offset`` of the file ``location``."""
    for name in ("float_data", "int32_data", "int64_data", "double_data"):
        tensor.ClearField(name)
    tensor.raw_data = b""  # the library refuses a tensor without it
    external_data_helper.set_external_data(tensor, location, offset, size)
    tensor.ClearField("raw_data")


def detached_tensor(name: str, array: np.ndarray) -> TensorProto:
    """Returns the initializer of a large weight whose values are kept apart: name, type and shape."""
    tensor = TensorProto(name=name, dims=array.shape, data_type=onnx.helper.np_dtype_to_tensor_dtype(array.dtype))
    set_external(tensor, array.nbytes)
    return tensor


def constant_tensor(name: str, values: np.ndarray, weights: Weights) -> TensorProto:
    """Returns the initializer of a constant; the values of a large one go to ``weights`` instead."""
    if values.nbytes < DETACH_FROM_BYTES:
        return numpy_helper.from_array(values, name)
    weights[name] = values
    return detached_tensor(name, values)


def refer_to_weights(model: onnx.ModelProto, path: Path) -> None:
    """Makes the initializers of ``model`` whose values are kept apart refer to the file ``path`` that ``save_model``
    wrote.
    """
    detached = [tensor for tensor in model.graph.initializer if tensor.data_location == TensorProto.EXTERNAL]
    inside = dict[str, memoryview]()
    for content in read_apart(path)[1]:
        written = TensorProto()
        raw = _read_but_raw_data(written, content)
        if raw:
            inside[written.name] = raw
    if all(tensor.name in inside for tensor in detached):
        for tensor in detached:
            raw = inside[tensor.name]
            offset = np.asarray(raw).ctypes.data - np.asarray(raw.obj).ctypes.data
            set_external(tensor, raw.nbytes, path.name, offset)
        return
    beside = {tensor.name: tensor for tensor in onnx.load(path, load_external_data=False).graph.initializer}
    for tensor in detached:
        tensor.CopyFrom(beside[tensor.name])


def save_model(skeleton: onnx.ModelProto, weights: Mapping[str, np.ndarray], path: Path) -> list[Path]:
    """Writes a graph and its large ``weights``, by name, to ``path``; returns the paths of the files written.

    Weights too large for one file go to ``<path>.data``.
    """
    inline_bytes = sum(weights[t.name].nbytes for t in skeleton.graph.initializer if t.name in weights)
    model = deepcopy(skeleton)
    if inline_bytes < INLINE_UNTIL_BYTES:
        model.graph.ClearField("initializer")
        with path.open("wb") as file:
            _write(file, model, (_tensor_parts(tensor, weights) for tensor in skeleton.graph.initializer))
        return [path]
    data = path.with_name(path.name + ".data")
    with data.open("wb") as file:
        for tensor in model.graph.initializer:
            if tensor.data_location == TensorProto.EXTERNAL:
                array = np.ascontiguousarray(weights[tensor.name])
                file.write(b"\0" * (-file.tell() % 4096))
                set_external(tensor, array.nbytes, data.name, file.tell())
                file.write(array.reshape(-1).view(np.uint8).data)
    path.write_bytes(model.SerializeToString())
    return [path, data]
