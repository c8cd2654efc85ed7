"""Times the curve: one command makes the networks, measures everything on this machine and prints the tables.

    python -m benchmarks.run                # the tables of docs/benchmarks.md
    python -m benchmarks.run --only ResNet-50 --repeat 1

Every figure is the median of ``--repeat`` runs, each in a process of its own; ratios are within one run of this script.
"""

from __future__ import annotations

import json as to_json
import shutil
import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks.measure import COMMAND, WORK, command_line, ended, inference, loop, medians, on_the_session, tell_rows
from benchmarks.networks import CASES, Case, write

ROWS = {
    "quantizable layers": "{loop[layers]:.0f}",
    "one FP32 inference, ms": "{inference[milliseconds]:.1f}",
    "rebuild loop, as written by a user": "{loop[seconds]:.1f}",
    "run --strategy exhaustive, whole command": "{exhaustive[seconds]:.1f}",
    "run, whole command": "{curve[seconds]:.2f}",
    "  of that, measuring": "{curve[measuring]:.2f}",
    "the curve on the session alone": "{session[seconds]:.2f}",
    "one culprit: run": "{curve, planted[seconds]:.2f}",
    "one culprit: run --curve culprits": "{culprits, planted[seconds]:.2f}",
    "one culprit: run --strategy exhaustive": "{exhaustive, planted[seconds]:.1f}",
    "user's loop / session": "{ratio:.1f}",
    "engines built, exhaustive and on the session": "{exhaustive[engines]}, {curve[engines]}",
    "peak memory, MiB, one plain inference": "{inference[peak_mb]:.0f}",
    "  the session": "{session[peak_mb]:.0f}",
    "  run": "{curve[peak_mb]:.0f}",
    "planted culprit named on the session, with culprits, exhaustive": "{named}",
}


def main(*, only: tuple[str, ...] = (), repeat: int = 3, json: Path | None = None) -> None:
    tell_rows({case.name: partial(_network, case, repeat) for case in CASES}, only, _table, json)


def _network(case: Case, repeat: int) -> dict[str, Any]:
    network, data = write(case, WORK / "networks")
    planted, _ = write(case, WORK / "networks", planted=True)
    sample = WORK / "networks" / f"{case.name}-input.npz"
    np.savez(sample, x=np.load(data)["x"][:1])
    figures: dict[str, Any] = {
        "network": case.name,
        "inference": medians(inference, [network, data], repeat),
        "loop": medians(loop, [network, data], 1),
        "session": medians(on_the_session, [network, data], repeat),
        "culprit": case.culprit[1],
    }
    for label, path, options in (
        ("exhaustive", network, ["--strategy", "exhaustive"]),
        ("curve", network, []),
        ("exhaustive, planted", planted, ["--strategy", "exhaustive"]),
        ("curve, planted", planted, []),
        ("culprits, planted", planted, ["--curve", "culprits"]),
    ):
        figures[label] = _run(path, data, sample, options, 1 if "exhaustive" in label else repeat)
    return figures


def _run(network: Path, data: Path, sample: Path, options: Sequence[str], repeat: int) -> dict[str, Any]:
    """The whole command without its explanation, calibration not counted: the ranges come from a cache."""
    cache, folder = WORK / "networks" / f"{network.stem}.cache", WORK / "run"
    if not cache.exists():
        ended([COMMAND, "calibrate", network, "--calibration", data, "--calibrator", "minmax", "-o", cache])
    command = [COMMAND, "run", network, "--calibration", cache, "--input", sample, "--explain", "none", "-o", folder]
    times, peaks = [], []
    for _ in range(repeat):
        shutil.rmtree(folder, ignore_errors=True)
        times.append(ended([*command, *options])[0])
        report = to_json.loads((folder / "report.json").read_text())
        peaks.append(report["peak_bytes"] / 2**20)
    return {
        "seconds": statistics.median(times),
        "measuring": report["seconds"]["build"] + report["seconds"]["infer"],
        "peak_mb": statistics.median(peaks),
        "culprits": report["culprits"],
        "engines": report["builds"],
    }


def _table(rows: list[dict[str, Any]]) -> Table:
    names = [figures["network"] for figures in rows]
    table = Table("seconds", *names, title="The curve of prefix(k), one input; calibration not counted")
    shown = []
    for figures in rows:
        named = []
        for way in ("curve, planted", "culprits, planted", "exhaustive, planted"):
            culprits = figures[way]["culprits"]
            named.append("yes" if culprits == [figures["culprit"]] else str(culprits))
        plain = figures["inference"] | {"milliseconds": 1e3 * figures["inference"]["seconds"]}
        ratio = figures["loop"]["seconds"] / figures["session"]["seconds"]
        shown.append(figures | {"inference": plain, "ratio": ratio, "named": ", ".join(named)})
    for label, form in ROWS.items():
        table.add_row(label, *(form.format_map(figures) for figures in shown))
    return table


if __name__ == "__main__":
    command_line(__doc__, main)
