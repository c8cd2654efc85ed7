"""Writes results as plain JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from trt_bisect.support.files import write_whole


def plain(value: Any) -> Any:
    """Converts a value to JSON's types. Floats that are not finite become None, tuples become lists, times ISO 8601."""
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    return value.isoformat() if isinstance(value, datetime) else value


def json_lines(record: Mapping[str, Any]) -> str:
    """Returns a record as JSON with a line for each entry, and for each element of an entry that is a list.

    Floats that are not finite become null. ``json.dumps`` with an indent does not use its C encoder.
    """
    return "{\n" + ",\n".join(f" {json.dumps(name)}: {_lines_of(value)}" for name, value in record.items()) + "\n}\n"


def _lines_of(value: Any) -> str:
    if not isinstance(value, (list, tuple)) or not value:
        return _one_line(value)
    return "[\n  " + ",\n  ".join(map(_one_line, value)) + "\n ]"


def _one_line(value: Any) -> str:
    """Converts a value only if it is not in JSON's types already, as most are: that takes longer than writing it."""
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return json.dumps(plain(value), allow_nan=False)


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    """Writes a record as JSON, in lines.

    Raises:
        BadInput: the file cannot be written.
    """
    write_whole(path, json_lines(record).encode())


def shape_text(shape: Iterable[int | str | None]) -> str:
    """Returns a shape as text: ``1x3x8``, ``?`` for unknown sizes, ``scalar`` for no axes."""
    return "x".join("?" if size is None else str(size) for size in shape) or "scalar"
