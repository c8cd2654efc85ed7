"""Times the curve: one command makes the networks, measures everything on this machine and prints the tables.

    python -m benchmarks.run                # the tables of docs/benchmarks.md
    python -m benchmarks.run --only ResNet-50 --repeat 1

Every figure is the median of ``--repeat`` runs, each in a process of its own; ratios are within one run of this script.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from rich.console import Console
from rich.table import Table

from benchmarks.networks import CASES, Case, chain, samples, write

HERE = Path(__file__).resolve().parent
WORK = HERE.parent / ".bench"
GROWTH = (50, 100, 200, 400, 800)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[case.name for case in CASES], help="none: the growth alone")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--no-growth", action="store_true")
    parser.add_argument("--json", type=Path, default=None, help="also write every figure there")
    asked = parser.parse_args()
    console = Console(highlight=False, width=140)
    figures: dict[str, Any] = {"cores": len(os.sched_getaffinity(0))}
    figures["start"] = {
        "import": _seconds([sys.executable, "-c", "import trt_bisect"], asked.repeat),
        "help": _seconds([_command(), "run", "--help"], asked.repeat),
    }
    figures["networks"] = {
        case.name: _network(case, asked.repeat, console) for case in CASES if case.name in asked.only
    }
    if asked.only:
        console.print(_curve_table(figures["networks"]))
    console.print(f"import {figures['start']['import']:.2f} s, run --help {figures['start']['help']:.2f} s")
    if not asked.no_growth:
        figures["growth"] = [_growth(layers, asked.repeat) for layers in GROWTH]
        console.print(_growth_table(figures["growth"]))
    if asked.json:
        asked.json.write_text(json.dumps(figures, indent=1) + "\n")


def _network(case: Case, repeat: int, console: Console) -> dict[str, Any]:
    network, data = write(case, WORK / "networks")
    planted, _ = write(case, WORK / "networks", planted=True)
    sample = WORK / "networks" / f"{case.name}-input.npz"
    np.savez(sample, x=np.load(data)["x"][:1])
    console.print(f"{case.name} ...")
    found: dict[str, Any] = {
        "inference": _measure("inference", [network, data], repeat),
        "loop": _measure("loop", [network, data], 1),
        "pass": _measure("one_pass", [network, data], repeat),
        "one core": _measure("one_pass", [network, data], repeat, cores=1),
    }
    for label, path, options in (
        ("exhaustive", network, ["--strategy", "exhaustive"]),
        ("branch", network, []),
        ("exhaustive, planted", planted, ["--strategy", "exhaustive"]),
        ("branch, planted", planted, []),
        ("culprits, planted", planted, ["--curve", "culprits"]),
    ):
        times = 1 if "exhaustive" in label else repeat
        found[label] = _run(path, data, sample, options, times)
    found["culprit"] = case.culprit[1]
    return found


def _command() -> str:
    return str(Path(sys.executable).with_name("trt-bisect"))


def _run(network: Path, data: Path, sample: Path, options: Sequence[str], repeat: int) -> dict[str, Any]:
    """The whole command without its explanation, calibration not counted: the ranges come from a cache."""
    cache = WORK / "networks" / f"{network.stem}.cache"
    if not cache.exists():
        calibrate = ["calibrate", str(network), "--calibration", str(data), "--calibrator", "minmax", "-o", str(cache)]
        subprocess.run([_command(), *calibrate], check=True, capture_output=True)
    folder = WORK / "run"
    command = [_command(), "run", str(network), "--calibration", str(cache), "--input", str(sample)]
    command += ["--explain", "none", "-o", str(folder)]
    times, peaks = [], []
    for _ in range(repeat):
        subprocess.run(["rm", "-rf", str(folder)], check=True)
        began = time.perf_counter()
        done = subprocess.run([*command, *options], check=False, capture_output=True)
        times.append(time.perf_counter() - began)
        if done.returncode not in (0, 1):
            raise SystemExit(f"trt-bisect run failed on {network}: {done.stderr.decode()}")
        report = json.loads((folder / "report.json").read_text())
        peaks.append(report["peak_bytes"] / 2**20)
    measured = report["seconds"]["build"] + report["seconds"]["infer"]
    return {
        "seconds": statistics.median(times),
        "measuring": measured,
        "peak_mb": statistics.median(peaks),
        "culprits": report["culprits"],
        "plans": report["plans"],
        "engines": report["builds"],
    }


def _measure(what: str, paths: Sequence[Path], repeat: int, cores: int | None = None) -> dict[str, float]:
    """The medians of a measurement of ``benchmarks.measure``, each in a process of its own, on so many cores."""
    pinned = ["taskset", "-c", ",".join(map(str, sorted(os.sched_getaffinity(0))[:cores]))] if cores else []
    runs = []
    for _ in range(repeat):
        done = subprocess.run(
            [*pinned, sys.executable, "-m", "benchmarks.measure", what, *map(str, paths)],
            check=True, capture_output=True, text=True, cwd=HERE.parent,
        )  # fmt: skip
        runs.append(json.loads(done.stdout.splitlines()[-1]))
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def _seconds(command: Sequence[str], repeat: int) -> float:
    times = []
    for _ in range(max(repeat, 3)):
        began = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _growth(layers: int, repeat: int) -> dict[str, float]:
    model = chain(layers)
    network, data = WORK / "networks" / f"chain-{layers}.onnx", WORK / "networks" / f"chain-{layers}.npz"
    onnx.save(model, str(network))
    np.savez(data, x=samples(model, 2))
    plain = _measure("inference", [network, data], repeat)
    return {"layers": layers, "inference": plain["seconds"], "plain_mb": plain["peak_mb"]} | _measure(
        "one_pass", [network, data], repeat
    )


def _curve_table(networks: dict[str, Any]) -> Table:
    table = Table("seconds", *networks, title="The curve of prefix(k), one input; calibration not counted")
    rows = {
        "quantizable layers": lambda n: f"{n['loop']['layers']:.0f}",
        "one FP32 inference, ms": lambda n: f"{1e3 * n['inference']['seconds']:.1f}",
        "rebuild loop, as written by a user": lambda n: f"{n['loop']['seconds']:.1f}",
        "run --strategy exhaustive, whole command": lambda n: f"{n['exhaustive']['seconds']:.1f}",
        "run (branch), whole command": lambda n: f"{n['branch']['seconds']:.2f}",
        "  of that, measuring": lambda n: f"{n['branch']['measuring']:.2f}",
        "the pass alone": lambda n: f"{n['pass']['seconds']:.2f}",
        "  on one core": lambda n: f"{n['one core']['seconds']:.2f}",
        "one culprit: run (branch)": lambda n: f"{n['branch, planted']['seconds']:.2f}",
        "one culprit: run --curve culprits": lambda n: f"{n['culprits, planted']['seconds']:.2f}",
        "  of that, measuring the culprits": lambda n: f"{n['culprits, planted']['measuring']:.2f}",
        "one culprit: run --strategy exhaustive": lambda n: f"{n['exhaustive, planted']['seconds']:.1f}",
        "pass on one core / on all": lambda n: f"{n['one core']['seconds'] / n['pass']['seconds']:.2f}",
        "user's loop / pass": lambda n: f"{n['loop']['seconds'] / n['pass']['seconds']:.1f}",
        "exhaustive / branch, measuring": lambda n: f"{n['exhaustive']['measuring'] / n['branch']['measuring']:.1f}",
        "exhaustive / branch, whole commands": lambda n: f"{n['exhaustive']['seconds'] / n['branch']['seconds']:.1f}",
        "engines built, exhaustive and branch": lambda n: f"{n['exhaustive']['engines']}, {n['branch']['engines']}",
        "peak memory, MiB, one plain inference": lambda n: f"{n['inference']['peak_mb']:.0f}",
        "  the pass": lambda n: f"{n['pass']['peak_mb']:.0f}",
        "  run (branch)": lambda n: f"{n['branch']['peak_mb']:.0f}",
        "planted culprit named by branch, culprits, exhaustive": lambda n: ", ".join(
            "yes" if n[way]["culprits"] == [n["culprit"]] else str(n[way]["culprits"])
            for way in ("branch, planted", "culprits, planted", "exhaustive, planted")
        ),
    }
    for label, figure in rows.items():
        table.add_row(label, *(figure(found) for found in networks.values()))
    return table


def _growth_table(growth: Sequence[dict[str, float]]) -> Table:
    heads = ("layers", "one inference, ms", "the pass, s", "a layer, ms", "engines", "plain, MiB", "pass, MiB")
    table = Table(*heads, title="Growth with the number of layers")
    for found in growth:
        shown = {"inference": 1e3 * found["inference"], "a layer": 1e3 * found["seconds"] / found["layers"]}
        keys = {"layers": ".0f", "inference": ".1f", "seconds": ".2f", "a layer": ".1f"}
        keys |= dict.fromkeys(("engines", "plain_mb", "peak_mb"), ".0f")
        table.add_row(*(format((found | shown)[key], form) for key, form in keys.items()))
    return table


if __name__ == "__main__":
    main()
