"""Reads JSON objects from files that may be damaged or incomplete."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def record_of(text: bytes | str) -> dict[str, Any] | None:
    """Parses a JSON object; returns None if the text is anything else."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def read_record(path: Path) -> dict[str, Any] | None:
    """Reads the JSON object in a file; returns None if the file cannot be read or holds anything else."""
    try:
        return record_of(path.read_bytes())
    except OSError:
        return None
