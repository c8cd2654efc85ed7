"""``trt-bisect verify`` on stand-ins for engines: it names what is wrong with one, and accuses no healthy one.

    python -m benchmarks.verify --json rows.json
    python -m benchmarks.verify --only tf32 detector
    python -m benchmarks.verify --group healthy

The stand-ins are made by ``benchmarks.verify.standin``.
"""

from __future__ import annotations

import json as to_json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

import trt_bisect
from benchmarks.measure import command_line
from benchmarks.verify.cases import CASES, HEALTHY, Given, healthy, subject
from trt_bisect.report.verification import DIFFERS, Verification
from trt_bisect.support.progress import Silent

Row = dict[str, Any]
NONE = "none"
LEAST = {"causes": 0.9, "healthy": 1.0}
"""By group the least share of right answers."""


def measure(
    *, only: tuple[str, ...] = (), group: Literal["causes", "healthy"] | None = None, json: Path | None = None
) -> int:
    """Verifies stand-ins; returns 1 if a healthy one is accused, or under 90 % of the causes are named.

    Args:
        only: Only these causes and networks.
        group: Only engines with a cause, or engines that are their file.
        json: Write the rows to this file.
    """
    told, rows, failed = Console(soft_wrap=True, highlight=False), list[Row](), False
    for each in LEAST if group is None else (group,):
        right = count = 0
        for cause, name, given in _healthy(only) if each == "healthy" else _with_causes(only):
            began = time.process_time()
            result = trt_bisect.verify(**given, progress=Silent())
            rows.append({"group": each, **_row(cause, name, result, time.process_time() - began)})
            told.print("  ".join(f"{key} {value}" for key, value in rows[-1].items()))
            right += rows[-1]["right"]
            count += 1
        told.print(f"{each}: {right} of {count} are right.")
        failed |= right < count * LEAST[each]
    if json is not None:
        json.write_text(to_json.dumps(rows, indent=1))
    return int(failed)


def _healthy(only: tuple[str, ...]) -> Iterator[tuple[str, str, Given]]:
    for name in HEALTHY:
        if not only or name in only:
            with tempfile.TemporaryDirectory() as folder:
                for way, given in healthy(subject(name, Path(folder))):
                    yield NONE, f"{name}, {way}", given


def _with_causes(only: tuple[str, ...]) -> Iterator[tuple[str, str, Given]]:
    for cause, name, make in CASES:
        if not only or {cause, name} & {*only}:
            with tempfile.TemporaryDirectory() as folder:
                yield cause, name, make(subject(name, Path(folder)))


def _row(cause: str, name: str, result: Verification, seconds: float) -> Row:
    is_right = result.answer != DIFFERS if cause == NONE else result.cause == cause
    explained = result.explained
    return {
        "right": is_right,
        "engine": f"{name}: {cause}",
        "answer": result.answer,
        "cause": result.cause,
        "nearest": result.nearest,
        "explained": explained if explained is None else round(explained, 3),
        "distance": float(f"{result.distance:.2g}"),
        "floor": float(f"{result.floor:.2g}"),
        "seconds": round(seconds, 1),
        "layers": list(result.layers[:3]),
    }


if __name__ == "__main__":
    raise SystemExit(command_line(__doc__, measure))
