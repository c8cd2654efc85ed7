"""A plan as flags of trtexec, or the reason why trtexec cannot express it.

Source of the rules: ``sampleOptions.cpp``, ``sampleEngines.cpp`` and ``sampleUtils.cpp`` in ``samples/common`` of
NVIDIA/TensorRT, 8.4 to 10.13. A list is split at every comma, and an entry at its last colon. Apostrophes quote, and
are removed from every name. From 10.0 on, the first ``*`` in a name matches any text, for layers that no entry names
exactly. Types of outputs are joined by ``+``: one for each output of the layer, or one for all of them, integers
included. A name that no layer has is ignored silently.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Iterator

from trt_bisect.builder.tensorrt_walk import Constraint
from trt_bisect.builder.weak_plan import WeakPlan
from trt_bisect.precision import Precision

_SPLITS = ",'\n"
_MOST_BYTES = 100_000
"""The limit for all flags. Above 128 KiB with the environment, xargs starts a second trtexec with the rest."""

_TYPES = {kind: kind for kind in map(str, Precision)} | {"FLOAT": "fp32", "HALF": "fp16", "BF16": "bf16"}
_TYPES |= {kind.upper(): kind for kind in ("int32", "int64", "bool", "uint8", "int8")}
"""trtexec's names of output types, by precision or by TensorRT's own name."""

REFUSED = "--refused-by-trt-bisect"
"""A flag that trtexec does not have: it prints it as an unknown option, with its value, and fails."""


def flags_of(weak: WeakPlan, precisions: Collection[Precision], cache: str) -> list[str]:
    """Returns the flags that build the plan.

    Args:
        weak: the plan's constraints.
        precisions: the precisions of the layers.
        cache: the calibration cache's file.
    """
    flags = ["--noTF32"]
    if Precision.INT8 in precisions:
        flags += ["--int8", f"--calib={cache}"]
    flags += [f"--{kind}" for kind in (Precision.FP16, Precision.BF16) if kind in precisions]
    layers = [f"{each.layer}:{each.precision}" for each in weak.constraints if each.precision is not None]
    types = [f"{each.layer}:{_types(each)}" for each in weak.constraints if _types_outputs(each)]
    if layers or types:
        flags.append("--precisionConstraints=obey")
    if layers:
        flags.append(f"--layerPrecisions={','.join(layers)}")
    if types:
        flags.append(f"--layerOutputTypes={','.join(types)}")
    return flags


def _types_outputs(constraint: Constraint) -> bool:
    return any(isinstance(kind, Precision) for kind in constraint.outputs)


def _types(constraint: Constraint) -> str:
    """Returns the types of a layer's outputs: one for all if they are the same."""
    kinds = [_TYPES.get(str(kind), "") for kind in constraint.outputs]
    return kinds[0] if len(set(kinds)) == 1 else "+".join(kinds)


def flags_file(flags: list[str], refused: list[str]) -> str:
    """Returns the text of a file of flags, one a line, quoted for ``xargs``.

    Args:
        flags: from ``flags_of``.
        refused: from ``refusals``. If there are any, the file holds one line that makes trtexec fail and print them.
    """
    if refused:
        return shlex.quote(f"{REFUSED}={'; '.join(_plain(why) for why in refused)}") + "\n"
    return "\n".join(map(shlex.quote, flags)) + "\n"


def _plain(text: str) -> str:
    """Returns ``text`` without the characters that ``xargs`` reads as line ends or quotes."""
    return "".join("`" if letter == "'" else letter if letter.isprintable() else "?" for letter in text)


def refusals(weak: WeakPlan, flags: list[str]) -> list[str]:
    """Returns the reasons why trtexec cannot express a plan, a clause for each layer; empty if it can."""
    found = [f"layer '{each.layer}': {why}" for each in weak.constraints for why in _why_not(each, weak)]
    length = sum(len(flag.encode()) for flag in flags)
    if not found and length > _MOST_BYTES:
        found.append(
            f"{len(weak.constraints)} layers: their names take {length >> 10} KiB, too much for a command line"
        )
    return found


def _why_not(constraint: Constraint, weak: WeakPlan) -> Iterator[str]:
    name = constraint.layer
    letters = [letter for letter in _SPLITS if letter in name]
    if letters:
        yield f"its name holds {' and '.join(map(repr, letters))}"
    if any(other != name and _matches(name, other) for other in weak.layers):
        yield "its name holds '*' and stands for other layers too"
    if Counter(weak.layers)[name] != weak.constraints.count(constraint):
        yield "other layers have its name"
    if _types_outputs(constraint) and any(str(kind) not in _TYPES for kind in constraint.outputs):
        yield "some of its outputs have a type and some are left to TensorRT"


def _matches(pattern: str, name: str) -> bool:
    """Returns true if a name matches a pattern, whose first ``*`` is its only wildcard."""
    start, star, end = pattern.partition("*")
    return bool(star) and len(name) >= len(start) + len(end) and name.startswith(start) and name.endswith(end)
