"""The precisions of the layers of an engine with weak typing, from what its users keep of it.

They keep the command line of trtexec, or only its ``--layerPrecisions``, or a table of layers and precisions. Sources:
``sampleOptions.cpp`` and ``sampleEngines.cpp`` of NVIDIA/TensorRT, release/8.5 to release/10.13. A list is split at
every comma, an entry at its last colon, apostrophes quote, and ``*`` matches any text (from 10.0 on). ``--best`` allows
every precision. Layer precisions count from ``--precisionConstraints=prefer`` on; without it trtexec warns, and
TensorRT may do as it likes.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trt_bisect.errors import BadInput, first_line
from trt_bisect.options.tables import read_toml
from trt_bisect.precision import Precision

_PRECISIONS = {str(each): each for each in (Precision.FP32, Precision.FP16, Precision.BF16, Precision.INT8)}
_WORDS = {**_PRECISIONS, "float": Precision.FP32, "float32": Precision.FP32, "half": Precision.FP16}
_WORDS |= {"float16": Precision.FP16, "bfloat16": Precision.BF16}
_NOT_FLOATS = frozenset(("int32", "int64", "bool", "uint8"))
_LAYERS = ("layerPrecisions", "layer_precisions", "layers", "precisions")
"""The keys under which a table of layers may stand in a file."""
_CONSTRAINED = ("obey", "prefer")
_SUFFIXES = (".json", ".toml", ".sh", ".txt")
_GONE = {
    "int8": "the Q/DQ pairs say what is rounded",
    "fp16": "the types of the tensors in the graph say it",
    "bf16": "the types of the tensors in the graph say it",
    "best": "the graph says it",
    "calib": "the scales are in the Q/DQ pairs",
    "layerPrecisions": "the graph says it",
    "layerOutputTypes": "the graph says it",
    "precisionConstraints": "the graph says it",
}
"""trtexec's options of weak typing, which TensorRT 11 does not have, and what stands for them."""


@dataclass(frozen=True)
class Deployment:
    """The facts on how an engine was built.

    Attributes:
        source: where this comes from, for messages; empty if nothing is known.
        layers: by layer or pattern, its precision.
        outputs: the layers whose output types were set too.
        base: the precision of what is not in INT8: FP16 or BF16 where the engine was allowed it.
        shapes: the usual shapes of dynamic inputs.
        obeyed: False where ``layers`` were named and TensorRT was not told to obey them.
        dla: the DLA core; None without.
        gone: the options that TensorRT 11 does not have, each with what stands for it.
    """

    source: str = ""
    layers: Mapping[str, Precision] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    base: Precision = Precision.FP32
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    obeyed: bool = True
    dla: int | None = None
    gone: Mapping[str, str] = field(default_factory=dict)


def read_deployment(given: str | Path | Mapping[str, Any]) -> Deployment:
    """Returns how an engine was built.

    Args:
        given: a trtexec command line or a file with one; a list as ``--layerPrecisions`` takes it; a JSON or TOML file,
            or a mapping, with a table of layers and precisions; empty if nothing is known.

    Raises:
        BadInput: it is none of these, or the engine was not in INT8.
    """
    if isinstance(given, Mapping):
        return Deployment("the layer precisions", _table(given, "the layer precisions"))
    text = str(given).strip()
    if not text:
        return Deployment()
    path = Path(text)
    try:
        is_file = path.is_file()
    except OSError:  # a command line is too long for a path
        is_file = False
    if not is_file and path.suffix.lower() in _SUFFIXES and "--" not in text:
        raise BadInput(f"The file '{path}' does not exist.", _FORMS)
    if not is_file:
        return _of_text(text, "--layer-precisions")
    if path.suffix.lower() == ".toml":
        return Deployment(str(path), _table(read_toml(path, "file", _FORMS), str(path)))
    try:
        content = path.read_text(encoding="utf-8")
        if path.suffix.lower() == ".json":
            return Deployment(str(path), _table(json.loads(content), str(path)))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"'{path}' cannot be read: {first_line(error)}.", _FORMS) from error
    lines = [line for line in content.replace("\\\n", " ").splitlines() if not line.lstrip().startswith("#")]
    return _of_text(" ".join(lines), str(path))


_FORMS = (
    "Give the trtexec command line, its --layerPrecisions (conv1:fp16,conv2:int8), or a JSON or TOML file of layers "
    "and precisions."
)


def _of_text(text: str, source: str) -> Deployment:
    if "--" not in text:
        return Deployment(source, dict(_entries(text, source)))
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise BadInput(f"The command line of {source} cannot be read: {error}.", _FORMS) from error
    options: dict[str, str] = {}
    for place, word in enumerate(words):
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            follows = words[place + 1] if place + 1 < len(words) else "--"
            options[name] = value if equals or follows.startswith("-") else follows
    return _of_options(options, source)


def _of_options(options: Mapping[str, str], source: str) -> Deployment:
    """Returns how trtexec built an engine, from its options by name without dashes."""
    if "stronglyTyped" in options:
        raise BadInput(
            f"The engine of {source} is strongly typed: its network is what TensorRT 11 takes.",
            "Nothing is to migrate.",
        )
    if not {"int8", "best"} & set(options) and "layerPrecisions" not in options:
        raise BadInput(
            f"The command line of {source} builds no engine in INT8: it has neither --int8 nor --best.",
            "Give the command line of the INT8 engine.",
        )
    layers = dict(_entries(options.get("layerPrecisions", ""), source))
    constrained = options.get("precisionConstraints", "none") in _CONSTRAINED
    shapes = options.get("optShapes", options.get("shapes", ""))
    return Deployment(
        source=source,
        layers=layers,
        outputs=tuple(name for name, _ in _split(options.get("layerOutputTypes", ""), source)),
        base=Precision.FP16 if {"fp16", "best"} & set(options) else Precision.FP32,
        shapes={name: tuple(map(int, shape.split("x"))) for name, shape in _split(shapes, source)},
        obeyed=constrained or not layers,
        dla=int(options["useDLACore"]) if options.get("useDLACore", "").isdecimal() else None,
        gone={f"--{name}": why for name, why in _GONE.items() if name in options},
    )


def _split(text: str, source: str) -> Iterator[tuple[str, str]]:
    """Yields the names and values of a list as trtexec takes it."""
    for entry in text.split(",") if text else ():
        name, colon, value = entry.rpartition(":")
        if not colon or not name.strip(" '"):
            raise BadInput(f"{source} has the entry {entry.strip()!r}, which is no LAYER:PRECISION.", _FORMS)
        yield name.strip().replace("'", ""), value.strip()


def _entries(text: str, source: str) -> Iterator[tuple[str, Precision]]:
    for name, value in _split(text, source):
        if value.lower() not in _NOT_FLOATS:
            yield name, _precision(value, name, source)


def _precision(word: Any, name: str, source: str) -> Precision:
    if not isinstance(word, str) or word.lower() not in _WORDS:
        raise BadInput(f"{source} has '{name}' in {word!r}, none of {', '.join(_PRECISIONS)}.", _FORMS)
    return _WORDS[word.lower()]


def _table(record: Any, source: str) -> dict[str, Precision]:
    """Returns the precisions in a table by layer, in a list of layers, or in either under a key."""
    if isinstance(record, Mapping):
        inner = next((record[key] for key in _LAYERS if isinstance(record.get(key), (Mapping, list, str))), None)
        if inner is not None:
            return dict(_entries(inner, source)) if isinstance(inner, str) else _table(inner, source)
        return {str(name): _precision(word, name, source) for name, word in record.items()}
    if isinstance(record, list) and all(isinstance(row, Mapping) and "name" in row for row in record):
        return {str(row["name"]): _precision(row.get("precision"), row["name"], source) for row in record}
    raise BadInput(f"{source} has no table of layers and precisions.", _FORMS)
