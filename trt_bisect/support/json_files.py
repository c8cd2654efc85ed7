"""JSON objects in files that a stop, a full disk or somebody may have spoiled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def record_of(text: bytes | str) -> dict[str, Any] | None:
    """The JSON object that a text is, None where it is none."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def read_record(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file, None where there is none that can be read."""
    try:
        return record_of(path.read_bytes())
    except OSError:
        return None
