"""Writes results as plain JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from trt_bisect.support.files import write_whole

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""A cell that begins with one of these is a formula for Excel, LibreOffice and Google Sheets."""


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


def csv_text(records: Iterable[Mapping[str, Any]], columns: Iterable[str] = ()) -> str:
    """Returns CSV with one row for each record.

    None and NaN are empty, shapes are written as ``1x3x8``, other tuples separated by spaces. A text that a spreadsheet
    would run as a formula gets an apostrophe in front (OWASP, "CSV Injection").

    Args:
        records: one a row; a record without one of the columns has an empty cell there.
        columns: the header where there are no records.
    """
    rows = list(records)
    text = io.StringIO()
    header = list(dict.fromkeys(name for row in rows for name in row) if rows else columns)
    writer = csv.DictWriter(text, header, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(name, value) for name, value in row.items()} for row in rows)
    return text.getvalue()


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


def _cell(name: str, value: Any) -> Any:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, tuple):
        value = shape_text(value) if name == "shape" else " ".join(map(str, value))
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
