"""The reports of TensorRT's engine inspector: the layers that were fused, and the precision that each ran in.

The JSON's format, as NVIDIA documents it ("Engine Inspector", and "Migrating IEngineInspector Usage from TensorRT 10.x
to 11.x"): ``{"Layers": [{"Name", "LayerType", "Inputs": [{"Name", "Format/Datatype"}], "Outputs", "TacticName",
"Metadata"}]}``. TensorRT 11 splits ``Format/Datatype`` in two. An engine built without detailed verbosity lists names
only. One with dynamic shapes reports formats only through an execution context whose input shapes are set.

A region that TensorRT's compiler made of many layers (Myelin: attention, chains of pointwise layers) or that runs on
the DLA is one layer, ``{ForeignNode[first...last]}``. It says neither which layers are in it nor in which precision
they ran, and precisions asked for may be ignored in it (TensorRT issues 3889 and 4505). TensorRT 10 lists the kernels
of such regions instead (``__myl_...``), with the ONNX nodes of each in its metadata (issue 4397).

TensorRT-RTX logs the same facts of each engine while it builds it, also without a GPU: see ``logged_layers``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trt_bisect.builder.base import IN_REGION, ON_DLA
from trt_bisect.model.layers import Layer

_NOT_COMPUTE = frozenset({"Reformat", "NoOp", "Constant", "Signal", "Wait", "Shape", "HostToDeviceCopy"})
_FORMAT_KEYS = ("Format/Datatype", "DataType", "Datatype", "Format")
_PRECISIONS = {
    "int8": "int8",
    "fp16": "fp16",
    "half": "fp16",
    "float16": "fp16",
    "bf16": "bf16",
    "bfloat16": "bf16",
    "fp8": "fp8",
    "fp32": "fp32",
    "float": "fp32",
    "float32": "fp32",
}
"""The words in a format's description that name a precision."""

_PRECISION_WORD = re.compile(rf"\b({'|'.join(_PRECISIONS)})\b")
_INT8_KERNEL = re.compile(r"i8i8|i8f32|i8i32|int8|imma", re.IGNORECASE)
_ONNX_LAYER = re.compile(r"\[ONNX Layer: (.*)\]$", re.DOTALL)
_METADATA_BREAKS = re.compile(r"[\x1e\x1f]|(?<=\])(?=\[ONNX Layer: )")
_REFORMAT = re.compile(r"Reformatting CopyNode for |.* (?:input|output) reformatter \d+$", re.DOTALL)
_REGION = re.compile(r"\{ForeignNode\[(.*?)\]\}", re.DOTALL)
_DLA, _MYELIN = "dla", "myelin"
"""The kinds of layers that are regions; so is a layer with ``_REGION`` in its name."""
_PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
"""The operators whose inputs' precision decides in what they compute."""

LOGGED = "Layers:"
"""The begin of the verbose message in which TensorRT-RTX lists the layers of an engine that it built."""

_LOGGED_LAYER = re.compile(
    r"Name: (?P<Name>.*?), LayerType: (?P<LayerType>.*?), Inputs: \[(?P<Inputs>.*?)\], Constants: .*?"
    r"\], Outputs: \[(?P<Outputs>.*?)\], TacticName: (?P<TacticName>.*?), StreamId: .*?Metadata: (?P<Metadata>.*)"
)
_LOGGED_TYPE = re.compile(r"\], Datatype: (\w+), Format: ")

_POINTWISE = "PWN("
_OWN_BRACKETS = re.compile(r"\([^()]*\)")
_JOINED = re.compile(r" \+ | \|\| |, ")
"""The separators of names: `` + `` where layers were fused, `` || `` where they were fused side by side (TensorRT
issue 2525), ``, `` inside ``PWN(...)``, a block of pointwise layers."""


@dataclass(frozen=True)
class EngineLayer:
    """One layer of an engine.

    Attributes:
        name: TensorRT's name for it.
        kind: TensorRT's ``LayerType``; empty if only names are known.
        network_layers: the names of the ONNX nodes, and of TensorRT's own layers, that it computes; none for a change
            of format between two layers, also if it is named after one.
        inputs: the precision of each input that is a float or INT8 tensor of a known format.
        outputs: likewise.
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
        """True for layers that TensorRT compiled as one, whose precisions the inspector does not tell."""
        is_copy = _REFORMAT.match(self.name) is not None
        return not is_copy and (self.kind.lower() in (_DLA, _MYELIN) or _REGION.search(self.name) is not None)

    @property
    def ends(self) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
        """The layers at the two ends of each region in its name; of ``{ForeignNode[a]}`` it is ``a`` at both."""
        for found in _REGION.finditer(self.name):
            first, _, last = found.group(1).partition("...")
            yield named_in(first), named_in(last or first)


def engine_layers(text: str) -> tuple[EngineLayer, ...]:
    """Returns the layers that the inspector's JSON describes; none if the text is not such JSON."""
    try:
        described = json.loads(text, strict=False)
    except ValueError:
        return ()
    layers = described.get("Layers", []) if isinstance(described, dict) else []
    return tuple(_engine_layer(layer) for layer in layers)


def _engine_layer(layer: Mapping[str, Any] | str) -> EngineLayer:
    if isinstance(layer, str):
        return EngineLayer(layer, "", named_in(layer), (), (), "")
    name = str(layer.get("Name", ""))
    metadata = "" if _REFORMAT.match(name) else str(layer.get("Metadata", ""))
    return EngineLayer(
        name,
        str(layer.get("LayerType", "")),
        onnx_layers_in(metadata) or named_in(name),
        _precisions(layer.get("Inputs", [])),
        _precisions(layer.get("Outputs", [])),
        str(layer.get("TacticName", "")),
    )


def logged_layers(message: str) -> tuple[EngineLayer, ...]:
    """Returns the layers in TensorRT-RTX's verbose message about an engine, one a line; none of any other text.

    Seen in the log of TensorRT-RTX 1.7 with detailed profiling verbosity: ``Layers:``, then lines of the form
    ``Name: n, LayerType: gemm, Inputs: [ { Name: x, Dimensions: [1,8], ..., Datatype: Int8, Format: ... }], Constants:
    [...], Outputs: [...], TacticName: t, StreamId: 0, Metadata: [ONNX Layer: fc]``. Constants are no inputs.
    """
    lines = message.split("\n") if message.startswith(LOGGED) else []
    layers: list[dict[str, Any]] = [match.groupdict() for match in map(_LOGGED_LAYER.fullmatch, lines) if match]
    for layer in layers:
        for key in ("Inputs", "Outputs"):
            layer[key] = [{"Datatype": kind} for kind in _LOGGED_TYPE.findall(layer[key])]
    return tuple(map(_engine_layer, layers))


def onnx_layers_in(metadata: str) -> tuple[str, ...]:
    """Returns the ONNX nodes that a layer's metadata names.

    >>> onnx_layers_in("[ONNX Layer: conv1]\\x1f[ONNX Layer: relu1]")
    ('conv1', 'relu1')
    """
    found = (_ONNX_LAYER.search(part) for part in _METADATA_BREAKS.split(metadata))
    return tuple(match.group(1) for match in found if match)


def named_in(name: str) -> tuple[str, ...]:
    """Returns the layers whose names were joined into an engine layer's name.

    None for a change of format between layers, and for a region that names only its ends, ``{ForeignNode[a...b]}``.
    Brackets that belong to a name stay in it. Layers fused side by side are all returned.

    >>> named_in("conv2 + PWN(PWN(sigmoid2), mul2)")
    ('conv2', 'sigmoid2', 'mul2')
    >>> named_in("conv (1) + relu || (Unnamed Layer* 306) [Shuffle]")
    ('conv (1)', 'relu', '(Unnamed Layer* 306) [Shuffle]')
    >>> named_in("Reformatting CopyNode for Input Tensor 0 to conv + relu")
    ()
    """
    if _REFORMAT.match(name):
        return ()
    return tuple(part for part in (part.strip() for part in _parts(_REGION.sub("", name))) if part)


def _parts(name: str) -> Iterator[str]:
    """Splits a name at separators and at the brackets of ``PWN(...)``, but not inside a name's own brackets."""
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
            own = _OWN_BRACKETS.match(name, at)
            at = own.end() if own else at + 1
            continue
        yield name[begin:at]
        begin = at = end
    yield name[begin:]


def precision_of(description: str) -> str | None:
    """Returns the precision in the description of a tensor's format, None for another type or an unknown format.

    >>> precision_of("Thirty-two wide channel vectorized row major Int8 format")
    'int8'
    """
    word = _PRECISION_WORD.search(description.lower())
    return _PRECISIONS[word.group(1)] if word else None


def _precisions(tensors: list[Mapping[str, Any]]) -> tuple[str, ...]:
    described = (" ".join(str(tensor.get(key, "")) for key in _FORMAT_KEYS) for tensor in tensors)
    return tuple(precision for precision in map(precision_of, described) if precision)


def ran_in(engine: Sequence[EngineLayer], network: Sequence[Layer]) -> dict[int, str]:
    """Returns by index the precision in which each layer of the network computes, as far as the engine shows it.

    It is not the precision that the layer's inputs are rounded to where the graph has Q/DQ pairs: TensorRT may fuse
    these into a float kernel.

    A layer's precision is that of the tensors that it reads. Where an engine layer fuses several, they may read tensors
    that the inspector does not show: these layers are left out, see ``_shown``. A layer in a region that TensorRT
    compiled as one has no precision but ``IN_REGION``, or ``ON_DLA``: the region's inputs do not show it.
    """
    by_name = {layer.name: layer for layer in network}
    ran: dict[int, str] = {}
    for part in engine:
        precision = None if part.kind in _NOT_COMPUTE or part.is_region else _precision(part)
        if precision is None:
            continue
        inside = sorted(
            (by_name[name] for name in {*part.network_layers} & by_name.keys()), key=lambda layer: layer.index
        )
        for layer in _shown(part, inside):
            if ran.get(layer.index) != "int8":
                ran[layer.index] = precision
    return {**ran, **_in_regions(engine, network)}


def _shown(part: EngineLayer, inside: Sequence[Layer]) -> Sequence[Layer]:
    """Returns the layers in an engine layer whose precision the engine layer's inputs show.

    - If it reads INT8 and float tensors, only the first: which of the others read the float tensors is not said.
    - Not a product, such as a MatMul, that reads what another layer in it makes: attention in one kernel multiplies
      twice, and the inspector shows no tensor between.
    """
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
    """Returns the layers that ran in regions, by index.

    A region's metadata, or its name, may list its layers. Without such a list they are its ends, and the layers between
    them that no other part of the engine names; an end that is no layer of the network, such as a constant, leaves that
    side open.
    """
    indices = {layer.name: layer.index for layer in network}
    named = {indices[name] for part in engine if not part.is_region for name in part.network_layers if name in indices}
    ran: dict[int, str] = {}
    for part in engine:
        if part.is_region:
            inside = {indices[name] for name in part.network_layers if name in indices}
            is_listed = part.network_layers != named_in(part.name)
            for first, last in () if is_listed else part.ends:
                begins, ends = ([indices[name] for name in end if name in indices] for end in (first, last))
                both = [*begins, *ends]
                low, high = min(both) if begins else 0, max(both) if ends else len(network) - 1
                inside.update(both, (k for k in range(low, high + 1) if k not in named))
            ran.update(dict.fromkeys(inside, ON_DLA if part.kind.lower() == _DLA else IN_REGION))
    return ran


def _precision(layer: EngineLayer) -> str | None:
    if "int8" in layer.inputs or (layer.tactic and _INT8_KERNEL.search(layer.tactic)):
        return "int8"
    floats = [precision for precision in (*layer.inputs, *layer.outputs) if precision != "int8"]
    return floats[0] if floats else None
