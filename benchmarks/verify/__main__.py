"""``trt-bisect verify`` on stand-ins for engines: it names what is wrong with one, and accuses no healthy one.

    python -m benchmarks.verify
    python -m benchmarks.verify --only tf32 detector
    python -m benchmarks.verify --healthy
    python -m benchmarks.verify --held-out --json rows.json

The stand-ins are made by ``benchmarks.verify.standin``. The held-out cases were made after the suspicions and their
numbers were settled, and have not changed these, but for the rule on few values of outputs.
"""

from __future__ import annotations

import json as to_json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

import trt_bisect
from benchmarks.measure import command_line
from benchmarks.verify.cases import CASES, HEALTHY, HELD_OUT, NONE, Given, Make, healthy, subject
from trt_bisect.report.verification import DIFFERS, Verification
from trt_bisect.support.progress import Silent

Row = dict[str, Any]
LEAST_SHARE = 0.9


def measure(
    *, only: tuple[str, ...] = (), healthy: bool = False, held_out: bool = False, json: Path | None = None
) -> int:
    """Verifies stand-ins, and returns 1 if a healthy one is accused, or under 90 % of the causes are named.

    Args:
        only: Only these causes and networks.
        healthy: Engines that are their file.
        held_out: Engines that no suspicion was made for or tuned on.
        json: Write the rows to this file.
    """
    told, rows = Console(soft_wrap=True, highlight=False), list[Row]()
    for cause, name, given in _cases(HELD_OUT if held_out else CASES, only, healthy=healthy):
        began = time.perf_counter()
        result = trt_bisect.verify(given.model, **given.options, progress=Silent())
        rows.append(_row(cause, name, result, time.perf_counter() - began))
        told.print("  ".join(f"{key} {value}" for key, value in rows[-1].items()))
    right = sum(row["right"] for row in rows)
    told.print(f"{right} of {len(rows)} are right.")
    if json is not None:
        json.write_text(to_json.dumps(rows, indent=1))
    return int(right < len(rows) * (1.0 if healthy else LEAST_SHARE))


def _cases(
    cases: list[tuple[str, str, Make]], only: tuple[str, ...], *, healthy: bool
) -> Iterator[tuple[str, str, Given]]:
    if healthy:
        for name in HEALTHY:
            if not only or name in only:
                yield from _healthy_ones(name)
        return
    for cause, name, make in cases:
        if not only or {cause, name} & {*only}:
            with tempfile.TemporaryDirectory() as folder:
                yield cause, name, make(subject(name, Path(folder)))


def _healthy_ones(name: str) -> Iterator[tuple[str, str, Given]]:
    with tempfile.TemporaryDirectory() as folder:
        for way, given in healthy(subject(name, Path(folder))):
            yield NONE, f"{name}, {way}", given


def _row(cause: str, name: str, result: Verification, seconds: float) -> Row:
    is_right = result.cause is None if cause == NONE else result.cause == cause
    if cause == NONE and "," in name:
        is_right = result.answer != DIFFERS
    return {
        "right": is_right,
        "engine": f"{name}: {cause}",
        "answer": result.answer,
        "cause": result.cause,
        "nearest": result.nearest,
        "explained": round(result.explained, 3),
        "distance": float(f"{result.distance:.2g}"),
        "floor": float(f"{result.floor:.2g}"),
        "seconds": round(seconds, 1),
        "layers": list(result.layers[:3]),
    }


if __name__ == "__main__":
    raise SystemExit(command_line(__doc__, measure))
