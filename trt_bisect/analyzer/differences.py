"""Which of model, ranges, data, engine, GPU and options differ between two runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

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
}
_NO_OPTIONS = ("model", "ranges", "engine", "typing", "driver")
_DIGESTS = ("model", "ranges", "inputs", "metric code")
_DIGITS = 8


@dataclass(frozen=True)
class Difference:
    """One part of what two runs are made of, as text in both; a digest by its first digits."""

    what: str
    before: str
    now: str


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[Difference, ...] | None:
    """What differs between two origins (see ``origin``), None where one of them does not know what it is made of."""
    if "model" not in before or "model" not in now:
        return None
    return tuple(_differences(before, now))


def origin(made_of: Mapping[str, Any], **asked: Any) -> dict[str, Any]:
    """A report's ``made_of`` without its nesting, and what else was asked for; ``asked`` alone where it has none.

    Args:
        made_of: in JSON's types.
        asked: options that do not change an engine, by name.
    """
    parts = {name: value for name, value in made_of.items() if name not in ("versions", "metric")}
    if "metric" in made_of:
        parts["metric code"] = made_of["metric"]
    versions = made_of.get("versions")
    return {**parts, **(versions if isinstance(versions, Mapping) else {}), **asked}


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
