"""Reads the reports of TensorRT's engine inspector: fused layers, their precisions, kernels and times.

A *region* is one engine layer, ``{ForeignNode[first...last]}``, that TensorRT's compiler (Myelin) made of many layers,
or that runs on the DLA. Its precisions are not reported, and may not be those asked for.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from trt_bisect.builder.base import IN_REGION, ON_DLA
from trt_bisect.errors import BadInput, first_line
from trt_bisect.model.gpu_time import BYTES, PICTURE, Kernel, Kind, Product
from trt_bisect.model.layers import Layer
from trt_bisect.model.network import Network
from trt_bisect.precision import Precision

# The JSON, by NVIDIA's documentation ("Engine Inspector", and "Migrating IEngineInspector Usage from TensorRT 10.x to
# 11.x"): {"Layers": [{"Name", "LayerType", "Inputs": [{"Name", "Format/Datatype"}], "Outputs", "TacticName",
# "Metadata"}]}. TensorRT 11 splits "Format/Datatype" in two. Without detailed verbosity an engine lists names only;
# with dynamic shapes, formats need an execution context whose input shapes are set. TensorRT 10 lists a region's
# kernels instead of the region (__myl_...), with their ONNX nodes in the metadata (issue 4397).
# A region may not run in the precisions asked for: issues 3889 and 4505.
_NOTHING = frozenset({"NoOp", "Constant", "Shape", "Signal", "Wait"})
_NOT_COMPUTE = _NOTHING | {"Reformat", "HostToDeviceCopy"}
_FORMAT_KEYS = ("Format/Datatype", "DataType", "Datatype", "Format")
# the words that name a precision in a format's description
_WORDS = {
    "int8": "int8",
    "fp16": "fp16 half float16",
    "bf16": "bf16 bfloat16",
    "fp8": "fp8",
    "fp32": "fp32 float float32",
}
_PRECISIONS = {word: precision for precision, words in _WORDS.items() for word in words.split()}

_PRECISION_WORD = re.compile(rf"\b({'|'.join(_PRECISIONS)})\b")
_INT8_KERNEL = re.compile(r"i8i8|i8f32|i8i32|int8|imma", re.IGNORECASE)
_ONNX_LAYER = re.compile(r"\[ONNX Layer: (.*)\]$", re.DOTALL)
_METADATA_BREAKS = re.compile(r"[\x1e\x1f]|(?<=\])(?=\[ONNX Layer: )")
_REFORMAT = re.compile(r"Reformatting CopyNode for |.* (?:input|output) reformatter \d+$", re.DOTALL)
_REGION = re.compile(r"\{ForeignNode\[(.*?)\]\}", re.DOTALL)
_DLA, _MYELIN = "dla", "myelin"  # values of LayerType for regions; other regions have a name that matches _REGION
# operators that compute in the precision of their inputs
_PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})

LOGGED = "Layers:"  # the beginning of TensorRT-RTX's verbose message that lists the layers of a built engine

# Seen in TensorRT-RTX 1.7 with detailed verbosity: "Layers:", then lines like "Name: n, LayerType: gemm, Inputs:
# [ { Name: x, Dimensions: [1,8], ..., Datatype: Int8, Format: ... }], Constants: [...], Outputs: [...], TacticName: t,
# StreamId: 0, Metadata: [ONNX Layer: fc]".
_LOGGED_LAYER = re.compile(
    r"Name: (?P<Name>.*?), LayerType: (?P<LayerType>.*?), Inputs: \[(?P<Inputs>.*?)\], Constants: .*?"
    r"\], Outputs: \[(?P<Outputs>.*?)\], TacticName: (?P<TacticName>.*?), StreamId: .*?Metadata: (?P<Metadata>.*)"
)
_LOGGED_TYPE = re.compile(r"\], Datatype: (\w+), Format: ")

_POINTWISE = "PWN("
_OWN_BRACKETS = re.compile(r"\([^()]*\)")
# " + " joins the names of fused layers, " || " of parallel layers (TensorRT issue 2525), ", " those inside PWN(...), a
# block of pointwise layers
_JOINED = re.compile(r" \+ | \|\| |, ")


@dataclass(frozen=True)
class EngineLayer:
    """A layer of an engine, as the inspector reports it.

    Attributes:
        kind: TensorRT's ``LayerType``; empty if not reported.
        network_layers: the names of the ONNX nodes, and of TensorRT's own layers, that it computes; empty if it only
            changes a tensor's format.
        inputs: the precision of each float or INT8 input whose format is reported.
        outputs: the same for outputs.
        tactic: the kernel's name.
    """

    name: str
    kind: str
    network_layers: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tactic: str

    @property
    def is_region(self) -> bool:
        """True for a region, whose precisions the inspector does not report."""
        is_copy = _REFORMAT.match(self.name) is not None
        return not is_copy and (self.kind.lower() in (_DLA, _MYELIN) or _REGION.search(self.name) is not None)


def engine_layers(text: str) -> tuple[EngineLayer, ...]:
    """Returns the engine layers in the inspector's JSON; empty for any other text."""
    try:
        described = json.loads(text, strict=False)
    except ValueError:
        return ()
    layers = described.get("Layers", []) if isinstance(described, dict) else []
    return tuple(_engine_layer(layer) for layer in layers)


def _engine_layer(layer: Mapping[str, Any] | str) -> EngineLayer:
    described: Mapping[str, Any] = {"Name": layer} if isinstance(layer, str) else layer
    name, kind, tactic, metadata = (
        str(described.get(key, "")) for key in ("Name", "LayerType", "TacticName", "Metadata")
    )
    inputs, outputs = (
        tuple(filter(None, (precision_of(_format(tensor)) for tensor in described.get(key, ()))))
        for key in ("Inputs", "Outputs")
    )
    nodes = () if _REFORMAT.match(name) else onnx_layers_in(metadata)
    return EngineLayer(name, kind, nodes or named_in(name), inputs, outputs, tactic)


def logged_layers(message: str) -> tuple[EngineLayer, ...]:
    """Returns the engine layers in TensorRT-RTX's verbose message about a built engine; empty for any other text."""
    lines = message.split("\n") if message.startswith(LOGGED) else []
    layers: list[dict[str, Any]] = [match.groupdict() for match in map(_LOGGED_LAYER.fullmatch, lines) if match]
    for layer in layers:
        for key in ("Inputs", "Outputs"):
            layer[key] = [{"Datatype": kind} for kind in _LOGGED_TYPE.findall(layer[key])]
    return tuple(map(_engine_layer, layers))


def onnx_layers_in(metadata: str) -> tuple[str, ...]:
    """Returns the names of the ONNX nodes in a layer's metadata.

    >>> onnx_layers_in("[ONNX Layer: conv1]\\x1f[ONNX Layer: relu1]")
    ('conv1', 'relu1')
    """
    matches = (_ONNX_LAYER.search(part) for part in _METADATA_BREAKS.split(metadata))
    return tuple(match.group(1) for match in matches if match)


def named_in(name: str) -> tuple[str, ...]:
    """Returns the names of layers that were joined into an engine layer's name.

    Empty if the engine layer only changes a tensor's format, or is a region that names only its ends.

    >>> named_in("conv2 + PWN(PWN(sigmoid2), mul2) || (Unnamed Layer* 306) [Shuffle]")
    ('conv2', 'sigmoid2', 'mul2', '(Unnamed Layer* 306) [Shuffle]')
    """
    if _REFORMAT.match(name):
        return ()
    return tuple(part for part in (part.strip() for part in _parts(_REGION.sub("", name))) if part)


def _parts(name: str) -> Iterator[str]:
    begin = at = depth = 0
    while at < len(name):
        joint = _JOINED.match(name, at)
        if joint:
            end = joint.end()
        elif at == begin and name.startswith(_POINTWISE, at):
            depth, end = depth + 1, at + len(_POINTWISE)
        elif depth and name[at] == ")":
            depth, end = depth - 1, at + 1
        else:
            brackets = _OWN_BRACKETS.match(name, at)
            at = brackets.end() if brackets else at + 1
            continue
        yield name[begin:at]
        begin = at = end
    yield name[begin:]


def precision_of(description: str) -> str | None:
    """Returns the precision in the description of a tensor's format; None without one.

    >>> precision_of("Thirty-two wide channel vectorized row major Int8 format")
    'int8'
    """
    word = _PRECISION_WORD.search(description.lower())
    return _PRECISIONS[word.group(1)] if word else None


def _format(tensor: Mapping[str, Any]) -> str:
    return " ".join(str(tensor.get(key, "")) for key in _FORMAT_KEYS)


def ran_in(engine: Sequence[EngineLayer], network: Sequence[Layer]) -> dict[int, str]:
    """Returns the precision in which each layer of ``network`` computes, by index, if ``engine`` reports it.

    This is the precision of the tensors that the kernel reads; in a region it is ``region`` or ``dla``.
    """
    # Of the tensors that it reads, since TensorRT may fuse Q/DQ pairs into a float kernel.
    by_name = {layer.name: layer for layer in network}
    ran: dict[int, str] = {}
    for part in engine:
        if part.kind in _NOT_COMPUTE or part.is_region:
            continue
        floats = (precision for precision in (*part.inputs, *part.outputs) if precision != "int8")
        is_int8 = "int8" in part.inputs or _INT8_KERNEL.search(part.tactic)
        precision = "int8" if is_int8 else next(floats, None)
        inside = sorted((by_name[name] for name in {*part.network_layers} & by_name.keys()), key=attrgetter("index"))
        for layer in _shown(part, inside):
            if precision and ran.get(layer.index) != "int8":
                ran[layer.index] = precision
    return {**ran, **_in_regions(engine, network)}


def _shown(part: EngineLayer, inside: Sequence[Layer]) -> Sequence[Layer]:
    # If it reads INT8 and floats, only the first: TensorRT does not say which layer reads the floats. And no product
    # that reads another layer inside, as in fused attention.
    if "int8" in part.inputs and set(part.inputs) != {"int8"}:
        return inside[:1]
    made: set[str] = set()
    shown = []
    for layer in inside:
        if layer.op_type not in _PRODUCTS or made.isdisjoint(layer.inputs):
            shown.append(layer)
        made.update(layer.outputs)
    return shown


def _in_regions(engine: Sequence[EngineLayer], network: Sequence[Layer]) -> dict[int, str]:
    # A region that does not list its layers has the two ends in its name, and all layers between that no other engine
    # layer names. An end that is no layer of the network leaves that side open.
    indices = {layer.name: layer.index for layer in network}
    named = {indices[name] for part in engine if not part.is_region for name in part.network_layers if name in indices}
    ran: dict[int, str] = {}
    for part in engine:
        if part.is_region:
            inside = {indices[name] for name in part.network_layers if name in indices}
            is_listed = part.network_layers != named_in(part.name)
            regions = () if is_listed else _REGION.finditer(part.name)
            for region in regions:
                first, _, last = region[1].partition("...")
                names = named_in(first), named_in(last or first)
                begins, ends = ([indices[name] for name in end if name in indices] for end in names)
                borders = [*begins, *ends]
                low, high = 0, len(network) - 1
                if begins:
                    low = min(borders)
                if ends:
                    high = max(borders)
                inside.update(borders, (k for k in range(low, high + 1) if k not in named))
            where = ON_DLA if part.kind.lower() == _DLA else IN_REGION
            ran.update(dict.fromkeys(inside, where))
    return ran


_REFORMATS = frozenset({"Reformat", "MyelinReformat", "Quantize", "Dequantize", "Cast"})
_REGIONS = frozenset({"Myelin", "DLA"})
# Formats: "Thirty-two wide channel vectorized", "Channel major ... where channel % 8 == 0" (seen in 8.4 and 8.6).
# The number of channels stored together, by the word in a format's description.
WIDTHS = {"two": 2, "four": 4, "eight": 8, "sixteen": 16, "thirty-two": 32}
_WIDE = re.compile(rf"^({'|'.join(WIDTHS)}) wide", re.IGNORECASE)
_MULTIPLE = re.compile(r"channel % (\d+) == 0")
_POOLED = "Conv"  # the prefix of a convolution's keys in an engine layer that also does a pooling
_DETAILED = "Give the file of trtexec --exportLayerInfo --profilingVerbosity=detailed."


@dataclass(frozen=True)
class Tensor:
    """A tensor of an engine layer; in memory its channels are padded to a multiple of ``width``."""

    shape: tuple[int, ...]
    precision: Precision
    width: int

    @property
    def size(self) -> int:
        """The size in bytes, with padded channels."""
        values = math.prod(self.shape)
        if len(self.shape) > 1 and self.shape[1]:
            values = values // self.shape[1] * math.ceil(self.shape[1] / self.width) * self.width
        return values * BYTES[self.precision]

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> Tensor:
        """Returns a tensor from the inspector's JSON; a type that is no precision counts as FP32."""
        text = _format(described)
        wide, multiple = _WIDE.search(text), _MULTIPLE.search(text)
        if wide:
            width = WIDTHS[wide[1].lower()]
        else:
            width = int(multiple[1]) if multiple else 1
        shape = tuple(max(int(size), 1) for size in described.get("Dimensions", ()))
        return cls(shape, Precision(precision_of(text) or "fp32"), width)


@dataclass(frozen=True)
class EngineKernel:
    """An engine layer, with its measured time.

    Attributes:
        kernel: the layer in the form from which times are predicted.
        is_convolution: true also for a fully connected layer run as a convolution.
        ms: its mean milliseconds in one inference; 0 if the profile lacks it.
    """

    kernel: Kernel
    network_layers: tuple[str, ...]
    is_convolution: bool
    ms: float


def profiled_kernels(graph: Path, profile: Path) -> tuple[EngineKernel, ...]:
    """Returns an engine's layers and times, in the order of ``graph``.

    ``graph`` is a file of trtexec's ``--exportLayerInfo``, ``profile`` one of its ``--exportProfile``. Raises BadInput
    if a file cannot be read, or ``graph`` has only the layers' names.
    """
    described = _json(graph)
    layers = described.get("Layers") if isinstance(described, dict) else None
    if not isinstance(layers, list) or not layers or not all(isinstance(layer, dict) for layer in layers):
        raise BadInput(f"'{graph}' does not describe the layers of an engine.", _DETAILED)
    rows = _json(profile)
    if not isinstance(rows, list):
        rows = []
    times: defaultdict[str, list[float]] = defaultdict(list)
    for row in rows:
        if isinstance(row, dict) and isinstance(row.get("averageMs"), (int, float)):
            times[str(row.get("name"))].append(float(row["averageMs"]))
    if not times:
        raise BadInput(f"'{profile}' has no times of layers.", "Give the file of trtexec --exportProfile.")
    kernels = []
    for layer in layers:
        layer_times = times.get(str(layer.get("Name")))
        try:
            kernel = kernel_of(layer)
        except (TypeError, ValueError, AttributeError) as error:
            problem = f"'{graph}' has a layer that cannot be read, '{layer.get('Name')}': {first_line(error)}"
            raise BadInput(problem, _DETAILED) from error
        ms = layer_times.pop(0) if layer_times else 0.0
        kernels.append(EngineKernel(kernel, _engine_layer(layer).network_layers, _is_convolution(layer), ms))
    return tuple(kernels)


def graph_beside(profile: Path) -> Path:
    """Returns the layer file next to a profile: the same name with ``graph`` or ``layers`` in place of ``profile``.

    Raises BadInput if a file is missing.
    """
    if not profile.is_file():
        raise BadInput(f"The profile '{profile}' does not exist.", "Give the file of trtexec --exportProfile.")
    for word in ("graph", "layers"):
        graph = profile.with_name(profile.name.replace("profile", word))
        if graph != profile and graph.exists():
            return graph
    raise BadInput(
        f"The engine's layers are not next to the profile '{profile}'.",
        "Name the file of trtexec --exportProfile NAME.profile.json, and that of --exportLayerInfo NAME.graph.json.",
    )


def kernels_of(network: Network, profile: Path) -> tuple[tuple[Kernel, float], ...]:
    """Returns an engine's kernels in order, each with its mean seconds.

    ``profile`` is a file of trtexec's ``--exportProfile``, with the layer file next to it. A kernel has the indices of
    its layers in ``network``. Raises BadInput if a file cannot be used, or no kernel contains a layer of the network.
    """
    graph = graph_beside(profile)
    indices = {layer.name: layer.index for layer in network.layers}
    timed = []
    for part in profiled_kernels(graph, profile):
        if part.ms > 0.0 and part.kernel.kind is not Kind.NOTHING:
            names = () if part.kernel.kind is Kind.REFORMAT else part.network_layers
            layers = tuple(sorted({indices[name] for name in names if name in indices}))
            timed.append((replace(part.kernel, layers=layers), part.ms / 1e3))
    if not any(kernel.layers for kernel, _ in timed):
        why = "Profile an engine of this network: its layers are named after the nodes of the ONNX file."
        raise BadInput(f"No layer of the engine in '{graph}' is a layer of the network.", why)
    return tuple(timed)


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"), strict=False)
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"'{path}' cannot be read: {first_line(error)}", "Give a file that trtexec wrote.") from error


def _is_convolution(layer: Mapping[str, Any]) -> bool:
    return any({f"{prefix}Kernel", f"{prefix}OutMaps"} <= layer.keys() for prefix in ("", _POOLED))


def kernel_of(layer: Mapping[str, Any]) -> Kernel:
    """Returns a layer of the inspector's JSON in the form from which times are predicted."""
    name, kind = str(layer.get("Name", "")), str(layer.get("LayerType", ""))
    read, written = ([Tensor.of(entry) for entry in layer.get(key, ())] for key in ("Inputs", "Outputs"))
    moved = sum(tensor.size for tensor in (*read, *written))
    if kind in _NOTHING:
        return Kernel(name, Kind.NOTHING, 0)
    if kind in _REFORMATS:
        is_narrow = any(len(tensor.shape) > 2 and tensor.shape[1] <= PICTURE for tensor in read)
        return Kernel(name, Kind.REFORMAT, moved, is_narrow=is_narrow)
    if kind in _REGIONS:
        return Kernel(name, Kind.REGION, moved)
    product = None
    if read and written and _is_convolution(layer):
        product = _convolution(layer, read[0], written[0])
    elif read and written and (layer.get("ParameterType") == "MatrixMultiply" or "gemm" in kind.lower()):
        product = _matrices(read, written[0])
    if product is None:
        return Kernel(name, Kind.STREAM, moved)
    constants = product.columns * product.channels * product.taps * product.groups
    weights = constants * BYTES[product.precision] if _is_convolution(layer) or len(read) == 1 else 0
    return Kernel(name, Kind.PRODUCT, moved + weights, product)


def _convolution(layer: Mapping[str, Any], read: Tensor, written: Tensor) -> Product:
    prefix = "" if "OutMaps" in layer else _POOLED
    filters, groups = int(layer[f"{prefix}OutMaps"]), int(layer.get(f"{prefix}Groups", 1))
    kernel, batch, channels = layer[f"{prefix}Kernel"], read.shape[0], read.shape[1] // groups
    columns, taps, by_fours = filters // groups, math.prod(kernel), read.width == PICTURE
    if layer.get("ParameterType") == "Deconvolution":
        return Product(batch * math.prod(read.shape[2:]), columns * taps, channels, 1, read.precision, groups)
    places = written.shape[2:]
    if prefix:
        keys = ("PrePadding", "PostPadding", "Stride", "Dilation")
        before, after, stride, dilation = (layer[f"{prefix}{key}"] for key in keys)
        sizes = zip(read.shape[2:], before, after, kernel, stride, dilation, strict=True)
        places = tuple((n + a + b - d * (k - 1) - 1) // s + 1 for n, a, b, k, s, d in sizes)
    return Product(batch * math.prod(places), columns, channels, taps, read.precision, groups, by_fours)


def _matrices(read: Sequence[Tensor], written: Tensor) -> Product | None:
    first, out = read[0].shape, written.shape
    if len(first) < 2 or len(out) < 2:
        return None
    batch = math.prod(out[:-2]) if len(read) > 1 and len(read[1].shape) > 2 else 1
    return Product(math.prod(out[:-1]) // batch, out[-1], first[-1], 1, read[0].precision, batch)
