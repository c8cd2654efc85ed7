"""A plan in a file: the precision of layers, and the scales of activations, that a user fixes.

The file is TOML or JSON, with the keys of a recipe's ``plan.json``: ``layers`` holds by layer, or by a pattern (see
``fixed_layers.matching``), ``int8``, ``fp16``, ``fp32`` and so on, ``int16`` for activations in 16 bits and weights in
INT8, or a table of ``activation`` and ``weight``, of which only the one in ``fp32`` needs to be there;
``scales`` holds by activation its INT8 scale; ``one_scale`` lists layers or patterns whose weights have one scale each;
``low`` is the low precision, ``high`` that of layers that can never be low; ``activations`` is ``int16`` where the
layers in INT8 have their activations in 16 bits; ``model`` and ``build`` are remarks.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trt_bisect.data.named import content_of
from trt_bisect.errors import BadInput, first_line
from trt_bisect.options.concerns import INT16
from trt_bisect.options.kinds import shown
from trt_bisect.options.tables import read_toml, refuse_unknown
from trt_bisect.precision import Precision, low_of
from trt_bisect.recipe.files import BUILD, FOLDER, PLAN

_KEYS = ("layers", "scales", "one_scale", "high", "low", "activations", "model", "changes", BUILD)
_PARTS = ("activation", "weight")
_HALVES = (Precision.INT8_WEIGHT, Precision.INT8_ACTIVATION)
_WORDS = {str(precision): precision for precision in Precision if precision not in _HALVES}


@dataclass(frozen=True)
class FilePlan:
    """The content of a plan's file.

    Attributes:
        source: its path, for messages.
        layers: by layer or pattern the precision, in the order of the file.
        scales: by activation the scale in the low precision, float32.
        high: the precision of the layers that can never be low; None where the file does not say it.
        low: the low precision; None where the file does not say it.
        one_scale: the layers or patterns whose weights have one scale each.
        wide: the layers in INT8 have their activations in 16 bits.
        changes: see ``Network.changes``: it is for the network beside it, not for the user's.
    """

    source: str
    layers: Mapping[str, Precision]
    scales: Mapping[str, np.float32]
    high: Precision | None = None
    low: Precision | None = None
    one_scale: tuple[str, ...] = ()
    wide: bool = False
    changes: str = ""

    @property
    def left_high(self) -> list[str]:
        """The layers or patterns that the plan does not leave low."""
        low = self.low or Precision.INT8
        return [name for name, precision in self.layers.items() if low_of(precision) is not low]


def read_plan(given: Any) -> FilePlan:
    """Returns the plan in a file, in a run folder or its recipe folder, or in a mapping like that of the file.

    Raises:
        BadInput: there is no such file, or it cannot be read.
    """
    given = content_of(given)
    if isinstance(given, Mapping):
        return _plan("the plan", given)
    path = Path(given)
    places = [path, path / PLAN, path / FOLDER / PLAN]
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        remedy = f"Give a TOML or JSON file, a run's folder, or the {PLAN} in its recipe folder."
        raise BadInput(f"There is no recipe or plan at '{path}'.", remedy)
    if file.suffix.lower() == ".toml":
        return _plan(str(file), read_toml(file, "plan", ""))
    try:
        return _plan(str(file), json.loads(file.read_bytes()))
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable(str(file), f"{type(error).__name__}: {first_line(error)}") from error


def _plan(source: str, record: Any) -> FilePlan:
    if not isinstance(record, Mapping) or not all(isinstance(record.get(key, {}), Mapping) for key in _KEYS[:2]):
        raise _unreadable(source, "'layers' and 'scales' are tables")
    refuse_unknown(Path(source), "", record, _KEYS)
    layers = {str(name): _precision(source, name, value) for name, value in record.get("layers", {}).items()}
    scales = {str(name): _scale(source, name, value) for name, value in record.get("scales", {}).items()}
    high, low = (None if key not in record else _word(source, key, record[key]) for key in ("high", "low"))
    activations = record.get("activations", str(Precision.INT8))
    if activations not in (str(Precision.INT8), INT16):
        raise _unreadable(source, f"'activations' is {shown(activations)}, none of {Precision.INT8}, {INT16}")
    one_scale = record.get("one_scale", [])
    if not isinstance(one_scale, list) or not all(isinstance(name, str) for name in one_scale):
        raise _unreadable(source, "'one_scale' is a list of layers")
    if not layers and not scales and not one_scale:
        raise _unreadable(source, "it has neither 'layers' nor 'scales'")
    wide, changes = activations == INT16, str(record.get("changes", ""))
    return FilePlan(source, layers, scales, high, low, tuple(one_scale), wide, changes)


def _precision(source: str, name: str, value: Any) -> Precision:
    """The precision in one entry: a word, or one for the activations, the weights, or each of them."""
    if not isinstance(value, Mapping):
        return _word(source, name, value)
    known = {part: _word(source, name, value[part]) for part in _PARTS if part in value}
    if not set(value) <= set(_PARTS) or not (len(known) == len(_PARTS) or Precision.FP32 in known.values()):
        remedy = f"has both of {' and '.join(_PARTS)}, or that of the two which is in fp32"
        raise _unreadable(source, f"'{name}' is a word, or {remedy}")
    activation, weight = (known.get(part, Precision.INT8) for part in _PARTS)
    if activation is weight:
        return activation
    if {activation, weight} != {Precision.INT8, Precision.FP32}:
        raise _unreadable(source, f"of '{name}' one side can be in int8 only where the other is in fp32")
    return Precision.INT8_ACTIVATION if activation is Precision.INT8 else Precision.INT8_WEIGHT


def _word(source: str, name: str, value: Any) -> Precision:
    if not isinstance(value, str) or value.lower() not in _WORDS:
        raise _unreadable(source, f"'{name}' is {shown(value)}, none of {', '.join(_WORDS)}")
    return _WORDS[value.lower()]


def _scale(source: str, name: str, value: Any) -> np.float32:
    """A scale that float32 holds as a normal number."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (is_number and math.isfinite(value) and np.float32(value) >= np.finfo(np.float32).tiny):
        raise _unreadable(source, f"the scale of '{name}' is {shown(value)}, no number above 0")
    scale: np.float32 = np.float32(value)
    return scale


def _unreadable(source: str, why: str) -> BadInput:
    return BadInput(
        f"The plan '{source}' cannot be read: {why}.",
        "A plan has 'layers' (by name or pattern: int8, fp16, fp32) and 'scales' (by activation).",
    )
