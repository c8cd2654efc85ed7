"""Differences between two runs in model, ranges, data, engine, GPU and options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

SCHEMA = "schema"
_LABELS = {
    "inputs": "data (the judged inputs)",
    "tensorrt": "TensorRT",
    "tensorrt-rtx": "TensorRT-RTX",
    "onnxruntime": "ONNX Runtime",
    "device": "GPU or processor",
    "trt_bisect": "trt-bisect",
    "python": "Python",
    "numpy": "NumPy",
    "onnx": "ONNX",
    "metric code": "the metric's function",
    "high": "option precision",
    "typed": "how layers in FP16 and BF16 are written",
    SCHEMA: "the report's schema: in 1 the culprits are the curve's suspects, judged on fewer inputs",
}
_OLDEST = 1
"""The schema of a report whose origin does not have it."""
_NO_OPTIONS = ("model", "ranges", "engine", "typing", "driver")
_DIGESTS = ("model", "ranges", "inputs", "metric code")
_DIGITS = 8


@dataclass(frozen=True)
class Difference:
    """One part in which two runs differ.

    Attributes:
        what: the name of the part.
        before: its value in the earlier run as text; the first digits of a digest.
        now: the same for the later run.
    """

    what: str
    before: str
    now: str


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[Difference, ...] | None:
    """Returns the differences between two origins (see ``origin``); None if one of them has no parts."""
    if "model" not in before or "model" not in now:
        return None
    return tuple(_differences({SCHEMA: _OLDEST, **before}, {SCHEMA: _OLDEST, **now}))


def origin(made_of: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    """Returns a flat record of all parts of a run: those of ``made_of`` without nesting, then ``options``.

    Args:
        made_of: the parts of a report's fingerprint, in JSON types; may be empty.
        options: options that do not change an engine, by name.
    """
    parts = {name: value for name, value in made_of.items() if name not in ("versions", "metric")}
    if "metric" in made_of:
        parts["metric code"] = made_of["metric"]
    versions = made_of.get("versions")
    return {**parts, **(versions if isinstance(versions, Mapping) else {}), **options}


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Difference]:
    for name in dict.fromkeys((*before, *now)):
        if before.get(name) != now.get(name):
            is_known = name in _LABELS or name in _NO_OPTIONS
            label = _LABELS.get(name, name) if is_known else f"option {name.replace('_', '-')}"
            yield Difference(label, _text(name, before.get(name)), _text(name, now.get(name)))


def _text(name: str, value: Any) -> str:
    if value in (None, "", []):
        return "none"
    if name not in _DIGESTS:
        return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    if isinstance(value, list):
        return str(value[0])[:_DIGITS] + (f" and {len(value) - 1} more" if len(value) > 1 else "")
    return str(value)[:_DIGITS]
