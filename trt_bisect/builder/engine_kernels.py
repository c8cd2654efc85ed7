"""The kernels of a built engine, as the model of time takes them, and their measured times.

The engine inspector's JSON (``trtexec --exportLayerInfo``, at detailed verbosity) says of each layer what it reads and
writes, in which format, and of a convolution its filter, stride, groups and number of weights. The profile (``trtexec
--exportProfile``) has the time of each layer by name. ``builder.inspector`` reads the same JSON for another question:
in which precision each layer of the network ran.

Formats say how many channels are stored together: "Thirty-two wide channel vectorized", "Channel major ... where
channel % 8 == 0"; a tensor of 24 channels has 32 of them in memory. Seen in the JSON of TensorRT 8.4 and 8.6.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trt_bisect.builder.inspector import engine_layers, precision_of
from trt_bisect.errors import BadInput, first_line
from trt_bisect.model.gpu_time import BYTES, Kernel, Kind, Product
from trt_bisect.model.network import Network
from trt_bisect.precision import Precision

_NOTHING = frozenset({"NoOp", "Constant", "Shape", "Signal", "Wait"})
_REFORMATS = frozenset({"Reformat", "MyelinReformat", "Quantize", "Dequantize", "Cast"})
_REGIONS = frozenset({"Myelin", "DLA"})
_WIDTHS = {"two": 2, "four": 4, "eight": 8, "sixteen": 16, "thirty-two": 32}
_WIDE = re.compile(rf"^({'|'.join(_WIDTHS)}) wide", re.IGNORECASE)
_MULTIPLE = re.compile(r"channel % (\d+) == 0")
_POOLED = "Conv"
"""The prefix of a convolution's keys where a pooling is in the same layer."""
_PICTURE = 4
"""A tensor with so many channels or fewer is moved in scattered pieces where its format changes."""
_DETAILED = "Give the file of trtexec --exportLayerInfo --profilingVerbosity=detailed."
_FORMAT_KEYS = ("Format/Datatype", "Datatype", "Format")


@dataclass(frozen=True)
class Tensor:
    """A tensor that an engine's layer reads or writes, as it is stored."""

    shape: tuple[int, ...]
    precision: Precision
    width: int

    @property
    def size(self) -> int:
        """Its bytes, with the channels that pad it to the width of its format."""
        values = math.prod(self.shape)
        if len(self.shape) > 1 and self.shape[1]:
            values = values // self.shape[1] * math.ceil(self.shape[1] / self.width) * self.width
        return values * BYTES[self.precision]

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> Tensor:
        """Reads an input or output of the inspector's JSON; a type that is no precision counts as FP32."""
        text = " ".join(str(described.get(key, "")) for key in _FORMAT_KEYS)
        wide, multiple = _WIDE.search(text), _MULTIPLE.search(text)
        width = _WIDTHS[wide[1].lower()] if wide else int(multiple[1]) if multiple else 1
        shape = tuple(max(int(size), 1) for size in described.get("Dimensions", ()))
        return cls(shape, Precision(precision_of(text) or "fp32"), width)


@dataclass(frozen=True)
class EngineKernel:
    """A layer of an engine.

    Attributes:
        kernel: it, as the model of time takes it.
        is_convolution: true also for a fully connected layer that TensorRT runs as a convolution.
        ms: its measured time.
    """

    kernel: Kernel
    is_convolution: bool
    ms: float

    @property
    def is_reformat(self) -> bool:
        """True for a kernel that only changes the type or the format of a tensor."""
        return self.kernel.kind is Kind.REFORMAT


def profiled_kernels(graph: Path, profile: Path) -> tuple[EngineKernel, ...]:
    """Reads the layers of an engine and the time of each; layers that the profile does not name took none.

    Raises:
        BadInput: a file cannot be read, is no such JSON, or lists names only.
    """
    layers, rows = _layers(graph), _json(profile)
    times: defaultdict[str, list[float]] = defaultdict(list)
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and isinstance(row.get("averageMs"), (int, float)):
            times[str(row.get("name"))].append(float(row["averageMs"]))
    if not times:
        raise BadInput(f"'{profile}' has no times of layers.", "Give the file of trtexec --exportProfile.")
    found = []
    for layer in layers:
        known = times.get(str(layer.get("Name")))
        try:
            kernel = kernel_of(layer)
        except (TypeError, ValueError, AttributeError) as error:
            problem = f"'{graph}' has a layer that cannot be read, '{layer.get('Name')}': {first_line(error)}"
            raise BadInput(problem, _DETAILED) from error
        found.append(EngineKernel(kernel, _is_convolution(layer), known.pop(0) if known else 0.0))
    return tuple(found)


def graph_beside(profile: Path) -> Path:
    """Returns the file of the engine's layers beside a profile: its name with ``graph`` or ``layers`` for ``profile``.

    Raises:
        BadInput: one of the two does not exist.
    """
    if not profile.is_file():
        raise BadInput(f"The profile '{profile}' does not exist.", "Give the file of trtexec --exportProfile.")
    for word in ("graph", "layers"):
        graph = profile.with_name(profile.name.replace("profile", word))
        if graph != profile and graph.exists():
            return graph
    raise BadInput(
        f"The engine's layers are not beside the profile '{profile}'.",
        "Name the file of trtexec --exportProfile NAME.profile.json, and that of --exportLayerInfo NAME.graph.json.",
    )


def kernels_of(network: Network, profile: Path) -> tuple[tuple[Kernel, float], ...]:
    """Reads the kernels of an engine of a network, with the network's layers in each, and the measured seconds.

    Args:
        network: prepared.
        profile: its graph stands beside it, see ``graph_beside``.

    Raises:
        BadInput: a file cannot be used, or no kernel has a layer of the network.
    """
    graph = graph_beside(profile)
    kernels = profiled_kernels(graph, profile)
    indices = {layer.name: layer.index for layer in network.layers}
    found = []
    for one, part in zip(kernels, engine_layers(graph.read_text(encoding="utf-8")), strict=True):
        layers = () if one.is_reformat else tuple(sorted({indices[n] for n in part.network_layers if n in indices}))
        if one.ms > 0.0 and one.kernel.kind is not Kind.NOTHING:
            found.append((replace(one.kernel, layers=layers), one.ms / 1e3))
    if not any(kernel.layers for kernel, _ in found):
        why = "Profile an engine of this network: its layers are named after the nodes of the ONNX file."
        raise BadInput(f"No layer of the engine in '{graph}' is a layer of the network.", why)
    return tuple(found)


def engine_kernels(graph: Path) -> tuple[Kernel, ...]:
    """Reads the layers of an engine.

    Raises:
        BadInput: see ``profiled_kernels``.
    """
    return tuple(kernel_of(layer) for layer in _layers(graph))


def _layers(graph: Path) -> Sequence[Mapping[str, Any]]:
    described = _json(graph)
    layers = described.get("Layers") if isinstance(described, dict) else None
    if not isinstance(layers, list) or not layers or not all(isinstance(layer, dict) for layer in layers):
        raise BadInput(f"'{graph}' does not describe the layers of an engine.", _DETAILED)
    return tuple(layers)


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"), strict=False)
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"'{path}' cannot be read: {first_line(error)}", "Give a file that trtexec wrote.") from error


def _is_convolution(layer: Mapping[str, Any]) -> bool:
    return any({f"{prefix}Kernel", f"{prefix}OutMaps"} <= layer.keys() for prefix in ("", _POOLED))


def kernel_of(layer: Mapping[str, Any]) -> Kernel:
    """Returns a layer of the inspector's JSON as the model of time takes it."""
    name, kind = str(layer.get("Name", "")), str(layer.get("LayerType", ""))
    read, written = ([Tensor.of(one) for one in layer.get(key, ())] for key in ("Inputs", "Outputs"))
    moved = sum(tensor.size for tensor in (*read, *written))
    if kind in _NOTHING:
        return Kernel(name, Kind.NOTHING, 0)
    if kind in _REFORMATS:
        is_narrow = any(len(tensor.shape) > 2 and tensor.shape[1] <= _PICTURE for tensor in read)
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
    """The product of a convolution. One with a pooling in the same layer does not show its own output."""
    prefix = "" if "OutMaps" in layer else _POOLED
    filters, groups = int(layer[f"{prefix}OutMaps"]), int(layer.get(f"{prefix}Groups", 1))
    kernel, batch, channels = layer[f"{prefix}Kernel"], read.shape[0], read.shape[1] // groups
    columns, taps, by_fours = filters // groups, math.prod(kernel), read.width == _PICTURE
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
    """The product of two matrices, the second a constant or the second input; batches of two activations are groups."""
    first, out = read[0].shape, written.shape
    if len(first) < 2 or len(out) < 2:
        return None
    batch = math.prod(out[:-2]) if len(read) > 1 and len(read[1].shape) > 2 else 1
    return Product(math.prod(out[:-1]) // batch, out[-1], first[-1], 1, read[0].precision, batch)
