"""JSON records of results, as a program in another language reads them."""

from __future__ import annotations

import json
from typing import Any

from trt_bisect.report.model import Report
from trt_bisect.support.codec import decode, encode

EMPTY = Report("net.onnx", "onnxruntime", "strong", "bisect", "emulated", "cosine", 0.99, 0.5, "fp32", {}, "")
"""A report with nothing measured."""


def record_of(result: object) -> Any:
    """Returns a result as JSON types, read by Python's own parser."""
    return json.loads(encode(result))


def report_from(record: object) -> Report:
    """Returns the report of a record of ``report.json``."""
    return decode(Report, json.dumps(record))


def texts(notes) -> list[str]:
    """Returns the sentences of notes or lines."""
    return [note if isinstance(note, str) else note.text for note in notes]


def kinds(notes) -> set[str]:
    """Returns the kinds of notes or lines."""
    return {note.kind for note in notes}
