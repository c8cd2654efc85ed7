"""Reads ``report.json`` of every version: schemas 1 and 2 become the tree of today."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from trt_bisect.report.model import SCHEMA, Report, verdict_in
from trt_bisect.runs.progress_file import FINISHED, INTERRUPTED
from trt_bisect.support.codec import Head, Malformed, decode

OLDER = "in an older report"
"""The kind of notes of schemas 1 and 2, which had none."""
_READ = (1, 2, SCHEMA)


def report_of(text: bytes | str) -> Report:
    """Returns the report of the content of ``report.json``.

    Raises:
        Malformed: the text is no report, or one of a schema that this version does not know.
    """
    schema = decode(Head, text).schema
    if schema == SCHEMA:
        return decode(Report, text)
    if schema not in _READ:
        raise Malformed(f"it has schema {schema!r}, this version reads {', '.join(map(str, _READ))}")
    try:
        return msgspec.convert(_upgraded(decode(dict[str, Any], text)), Report)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise Malformed(f"{type(error).__name__}: {error}") from error


def read_report(path: Path) -> Report | None:
    """Returns the report in a file; None if the file cannot be read or is no report."""
    try:
        return report_of(path.read_bytes())
    except (OSError, Malformed, RecursionError):
        return None


def _upgraded(record: dict[str, Any]) -> dict[str, Any]:
    """Returns a record of schema 1 or 2 in the form of schema 3; it keeps its own number."""
    recipe, answer, inputs = record["recipe"], record.get("answer"), record["inputs"]
    by_input = record.get("by_input", {})
    step = {name: record.get(f"next_{'step' if name == 'what' else name}", "") for name in ("kind", "what", "command")}
    return {
        **record,
        "state": INTERRUPTED if record.get("stopped") == INTERRUPTED else FINISHED,
        "verdict": verdict_in(record["exit_code"], meets=bool(recipe["meets"] and not recipe["high"])),
        "lines": [{"kind": line.partition(":")[0].lower(), "text": line} for line in record["summary"].splitlines()],
        "notes": [{"kind": OLDER, "text": text} for text in record["notes"]],
        "by_input": {plan: by_input.get(plan) for plan in ("int8", "recipe")},
        "inputs": {
            **inputs,
            "fed": {
                by: {name: {"name": name, **figures} for name, figures in fed.items()}
                for by, fed in inputs.get("fed", {}).items()
            },
        },
        "answer": None if answer is None else _answer(answer),
        "next": step if any(step.values()) else None,
    }


def _answer(answer: Mapping[str, Any]) -> dict[str, Any]:
    doubts = answer.get("doubts", ())
    kinds = answer.get("doubt_kinds") or [OLDER] * len(doubts)
    return {
        **answer,
        "doubts": [{"kind": kind, "text": text} for kind, text in zip(kinds, doubts, strict=True)],
        "confidence": [{"kind": OLDER, "text": text, "short": text.partition(":")[0]} for text in answer["confidence"]],
    }
