"""Times the curve: one command makes the networks, measures everything on this machine and prints the tables.

    python -m benchmarks.run                # the tables of docs/benchmarks.md
    python -m benchmarks.run --only ResNet-50 --repeat 1

Every figure is the median of ``--repeat`` runs, each in a process of its own; ratios are within one run of this script.
``--only`` without a name measures the growth alone.
"""

from __future__ import annotations

import json as to_json
import os
import shutil
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from rich.console import Console
from rich.table import Table

from benchmarks.measure import COMMAND, WORK, command_line, ended, inference, loop, medians, on_the_session
from benchmarks.networks import CASES, Case, chain, samples, write

GROWTH = (50, 100, 200, 400, 800)
NAMES = tuple(case.name for case in CASES)
ROWS = {
    "quantizable layers": "{loop[layers]:.0f}",
    "one FP32 inference, ms": "{inference[milliseconds]:.1f}",
    "rebuild loop, as written by a user": "{loop[seconds]:.1f}",
    "run --strategy exhaustive, whole command": "{exhaustive[seconds]:.1f}",
    "run, whole command": "{curve[seconds]:.2f}",
    "  of that, measuring": "{curve[measuring]:.2f}",
    "the curve on the session alone": "{session[seconds]:.2f}",
    "  on one core": "{one core[seconds]:.2f}",
    "one culprit: run": "{curve, planted[seconds]:.2f}",
    "one culprit: run --curve culprits": "{culprits, planted[seconds]:.2f}",
    "  of that, measuring the culprits": "{culprits, planted[measuring]:.2f}",
    "one culprit: run --strategy exhaustive": "{exhaustive, planted[seconds]:.1f}",
    "session on one core / on all": "{ratios[cores]:.2f}",
    "user's loop / session": "{ratios[loop]:.1f}",
    "exhaustive / session, measuring": "{ratios[measuring]:.1f}",
    "exhaustive / session, whole commands": "{ratios[commands]:.1f}",
    "engines built, exhaustive and on the session": "{exhaustive[engines]}, {curve[engines]}",
    "peak memory, MiB, one plain inference": "{inference[peak_mb]:.0f}",
    "  the session": "{session[peak_mb]:.0f}",
    "  run": "{curve[peak_mb]:.0f}",
    "planted culprit named on the session, with culprits, exhaustive": "{named}",
}


def main(*, only: tuple[str, ...] = NAMES, repeat: int = 3, no_growth: bool = False, json: Path | None = None) -> None:
    console = Console(highlight=False, width=140)
    figures: dict[str, Any] = {"cores": len(os.sched_getaffinity(0))}
    starts = {"import": [sys.executable, "-c", "import trt_bisect"], "help": [COMMAND, "run", "--help"]}
    figures["start"] = {
        name: statistics.median(ended(command)[0] for _ in range(max(repeat, 3))) for name, command in starts.items()
    }
    figures["networks"] = {case.name: _network(case, repeat, console) for case in CASES if case.name in only}
    if only:
        console.print(_curve_table(figures["networks"]))
    console.print(f"import {figures['start']['import']:.2f} s, run --help {figures['start']['help']:.2f} s")
    if not no_growth:
        figures["growth"] = [_growth(layers, repeat) for layers in GROWTH]
        console.print(_growth_table(figures["growth"]))
    if json:
        json.write_text(to_json.dumps(figures, indent=1) + "\n")


def _network(case: Case, repeat: int, console: Console) -> dict[str, Any]:
    network, data = write(case, WORK / "networks")
    planted, _ = write(case, WORK / "networks", planted=True)
    sample = WORK / "networks" / f"{case.name}-input.npz"
    np.savez(sample, x=np.load(data)["x"][:1])
    console.print(f"{case.name} ...")
    figures: dict[str, Any] = {
        "inference": medians(inference, [network, data], repeat),
        "loop": medians(loop, [network, data], 1),
        "session": medians(on_the_session, [network, data], repeat),
        "one core": medians(on_the_session, [network, data], repeat, cores=1),
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
        "plans": report["plans"],
        "engines": report["builds"],
    }


def _growth(layers: int, repeat: int) -> dict[str, float]:
    model = chain(layers)
    network, data = WORK / "networks" / f"chain-{layers}.onnx", WORK / "networks" / f"chain-{layers}.npz"
    onnx.save(model, str(network))
    np.savez(data, x=samples(model, 2))
    plain, curve = (medians(measurement, [network, data], repeat) for measurement in (inference, on_the_session))
    return {"layers": layers, "inference": plain["seconds"], "plain_mb": plain["peak_mb"]} | curve


def _curve_table(networks: dict[str, Any]) -> Table:
    table = Table("seconds", *networks, title="The curve of prefix(k), one input; calibration not counted")
    shown = []
    for figures in networks.values():
        ways = ("curve, planted", "culprits, planted", "exhaustive, planted")
        named = (
            "yes" if figures[way]["culprits"] == [figures["culprit"]] else str(figures[way]["culprits"]) for way in ways
        )
        exhaustive, curve, alone = figures["exhaustive"], figures["curve"], figures["session"]["seconds"]
        ratios = {
            name: exhaustive[key] / curve[key] for name, key in (("measuring", "measuring"), ("commands", "seconds"))
        }
        ratios |= {"loop": figures["loop"]["seconds"] / alone, "cores": figures["one core"]["seconds"] / alone}
        plain = figures["inference"] | {"milliseconds": 1e3 * figures["inference"]["seconds"]}
        shown.append(figures | {"inference": plain, "ratios": ratios, "named": ", ".join(named)})
    for label, form in ROWS.items():
        table.add_row(label, *(form.format_map(figures) for figures in shown))
    return table


def _growth_table(growth: Sequence[dict[str, float]]) -> Table:
    heads = ("layers", "one inference, ms", "the curve, s", "a layer, ms", "plain, MiB", "curve, MiB")
    table = Table(*heads, title="Growth with the number of layers")
    form = "{layers:.0f}|{inference:.1f}|{seconds:.2f}|{a_layer:.1f}|{plain_mb:.0f}|{peak_mb:.0f}"
    for figures in growth:
        scaled = {"inference": 1e3 * figures["inference"], "a_layer": 1e3 * figures["seconds"] / figures["layers"]}
        table.add_row(*form.format_map(figures | scaled).split("|"))
    return table


if __name__ == "__main__":
    command_line(__doc__, main)
