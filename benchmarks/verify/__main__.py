"""``trt-bisect verify`` on stand-ins for engines: it names what is wrong with one, and accuses no healthy one.

    python -m benchmarks.verify --json rows.json
    python -m benchmarks.verify --only tf32 detector
    python -m benchmarks.verify --group healthy

The stand-ins are made by ``benchmarks.verify.standin``. The held-out cases were made after the suspicions and their
numbers were settled, and have not changed these, but for the rule on few values of outputs.
"""

from __future__ import annotations

import json as to_json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args

from rich.console import Console

import trt_bisect
from benchmarks.measure import command_line
from benchmarks.verify.cases import CASES, HEALTHY, HELD_OUT, NONE, Given, healthy, subject
from trt_bisect.report.verification import DIFFERS, Verification
from trt_bisect.support.progress import Silent

Row = dict[str, Any]
Group = Literal["causes", "healthy", "held-out"]
LEAST = {"causes": 0.9, "healthy": 1.0, "held-out": 0.0}
"""By group the least share of right answers."""


def measure(*, only: tuple[str, ...] = (), group: Group | None = None, json: Path | None = None) -> int:
    """Verifies stand-ins; returns 1 if a healthy one is accused, or under 90 % of the causes are named.

    Args:
        only: Only these causes and networks.
        group: Only engines with a cause, engines that are their file, or engines that no suspicion was made for.
        json: Write the rows to this file.
    """
    told, rows, failed = Console(soft_wrap=True, highlight=False), list[Row](), False
    groups: tuple[Group, ...] = get_args(Group) if group is None else (group,)
    for each in groups:
        right = count = 0
        for cause, name, given in _cases(each, only):
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


def _cases(group: Group, only: tuple[str, ...]) -> Iterator[tuple[str, str, Given]]:
    if group == "healthy":
        for name in HEALTHY:
            with tempfile.TemporaryDirectory() as folder:
                ways = healthy(subject(name, Path(folder))) if not only or name in only else ()
                yield from ((NONE, f"{name}, {way}", given) for way, given in ways)
        return
    for cause, name, make in HELD_OUT if group == "held-out" else CASES:
        if not only or {cause, name} & {*only}:
            with tempfile.TemporaryDirectory() as folder:
                yield cause, name, make(subject(name, Path(folder)))


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
        "explained": None if result.explained is None else round(result.explained, 3),
        "distance": float(f"{result.distance:.2g}"),
        "floor": float(f"{result.floor:.2g}"),
        "seconds": round(seconds, 1),
        "layers": list(result.layers[:3]),
    }


if __name__ == "__main__":
    raise SystemExit(command_line(__doc__, measure))
