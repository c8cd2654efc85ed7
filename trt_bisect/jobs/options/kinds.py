"""The kinds of options: how a value is given on the command line and in TOML, and repeated in a suggested command."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from trt_bisect.data.named import name_of
from trt_bisect.data.preprocessing import numbers, size
from trt_bisect.errors import BadInput
from trt_bisect.jobs.options import toml
from trt_bisect.jobs.options.option_info import Kind, OptionInfo

_SHAPE = re.compile(r"(.+):(\d+(?:x\d+)*)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}
_FUNCTION = "MODULE:FUNCTION"


def parse_shapes(texts: Sequence[str] | None) -> dict[str, tuple[int, ...]] | None:
    """``name:1x3x224x224`` as a name and a shape; names may hold colons.

    Raises:
        BadInput: a text is of another form, or a size is 0.
    """
    shapes = {}
    for text in texts or ():
        match = _SHAPE.fullmatch(text)
        if not match or "0" in match[2].split("x"):
            raise BadInput(f"The shape '{text}' cannot be read.", _shape_remedy(text))
        shapes[match[1]] = tuple(int(size) for size in match[2].split("x"))
    return shapes or None


def _shape_remedy(text: str) -> str:
    name, _, sizes = text.rpartition(":")
    found = re.findall(r"[1-9]\d*", sizes)
    example = f"--shape {name or 'NAME'}:{'x'.join(found) if len(found) > 1 else '1x3x224x224'}"
    named = "" if name else " with the input's name ('trt-bisect layers' prints it)"
    return f"Write {example}{named}, every size 1 or more."


def parse_time(given: str | float) -> float:
    """A duration in seconds: ``90s``, ``10m``, ``1h``, or a number of seconds.

    Raises:
        BadInput: it is of another form, or 0.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", str(given).strip())
    seconds = float(match[1]) * _SECONDS[match[2]] if match else 0.0
    if not seconds:
        raise BadInput(f"The time '{given}' cannot be read.", "Write 90s, 10m or 1h.")
    return seconds


def _word(value: Any) -> tuple[str, ...]:
    return (f"{value:.15g}" if isinstance(value, float) else str(value),)


def _no_words(_value: Any) -> tuple[str, ...]:
    return ()


def _each(values: Any) -> tuple[str, ...]:
    return tuple(map(str, values))


def _shape_words(shapes: Mapping[str, tuple[int, ...]]) -> tuple[str, ...]:
    return tuple(f"{name}:{'x'.join(map(str, sizes))}" for name, sizes in shapes.items())


def _number_words(value: Any) -> tuple[str, ...]:
    return (",".join(f"{number:.15g}" for number in numbers(value)),)


def _size_words(value: Any) -> tuple[str, ...]:
    return ("x".join(map(str, size(value))),)


def _function_words(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    return (f"{module}:{name}" if module not in (None, "__main__") and name.isidentifier() else _FUNCTION,)


def _text_reader(info: OptionInfo) -> toml.Read:
    return partial(toml.one_of, known=info.choices) if info.choices else toml.text


def _bounds(info: OptionInfo) -> dict[str, float]:
    bounds = {"above": info.above, "least": info.least, "most": info.most}
    return {name: bound for name, bound in bounds.items() if bound is not None}


def _number_reader(info: OptionInfo) -> toml.Read:
    return partial(toml.number, **_bounds(info))  # type: ignore[arg-type]


def _whole_reader(info: OptionInfo) -> toml.Read:
    return partial(toml.whole, **{"least": -math.inf, **_bounds(info)})  # type: ignore[arg-type]


def _always(read: toml.Read) -> Callable[[OptionInfo], toml.Read]:
    return lambda _info: read


TEXT = Kind(str, _text_reader, _word)
"""A text, or one of the choices."""
WHOLE = Kind(int, _whole_reader, _word)
"""A whole number."""
NUMBER = Kind(float, _number_reader, _word)
"""A finite number."""
NUMBERS = Kind(str, _always(toml.numbers), _number_words, parse=numbers, metavar="<number,number,...>")
"""One number, or one for each channel."""
SIZE = Kind(str, _always(toml.size), _size_words, parse=size, metavar="<height x width>")
"""Height and width."""
SWITCH = Kind(bool, _always(toml.switch), _no_words)
"""True or false; on the command line a flag without a value."""
TEXTS = Kind(str, _always(toml.texts), _each, several=True, parse=lambda values: tuple(values or ()), metavar="<name>")
"""Several texts."""
SHAPES = Kind(str, _always(toml.shapes), _shape_words, several=True, parse=parse_shapes, metavar="<name:1x3x224x224>")
"""Shapes of inputs by name."""
DATA = Kind(str, _always(toml.data), lambda value: (name_of(value),), metavar="<data>")
"""Data: a file, a folder, ``module:function``; in Python arrays, feeds or iterables as well."""
METRIC = Kind(str, _always(toml.metric), _function_words, metavar="<metric>")
"""A metric by its name or as a function."""
FUNCTION = Kind(str, _always(toml.function), _function_words, metavar="<module:function>")
"""A function of the user's."""
FILE = Kind(Path, _always(toml.existing), _word)
"""A file or folder that is read."""
PLAN = Kind(str, _always(toml.existing), lambda value: (name_of(value) or "PLAN.toml",), metavar="<file>")
"""A plan's file or a run folder; in Python a mapping as well."""
PLACE = Kind(Path, lambda info: partial(toml.place, known=info.choices), _word, closed=False)
"""A file or folder that is written, or one of the choices."""
WORD_OR_FILE = Kind(str, lambda info: partial(toml.place, known=info.choices), _word, closed=False)
"""One of the choices, or a file."""
SHARE = Kind(str, _always(toml.text_or_number), _word, metavar="<share>")
"""A share: 0.05, or 5%."""
TIME = Kind(str, _always(toml.text_or_number), _word, metavar="<time>")
"""A duration: 90s, 10m, 1h, or seconds; see ``parse_time``."""
TRT_VERSION = Kind(str, _always(toml.trt_version), _word, metavar="<version>")
"""A version of TensorRT."""
