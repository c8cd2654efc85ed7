"""The time of ``run`` without explanation, here against an earlier commit: a ratio for each network.

    python -m benchmarks.answer cost --before 43c004f

The four networks of ``benchmarks.networks`` with the ranges of one cache and one input, and the OCR sample with its
calibration data, once with one input judged and once with all 26. The two trees run by turns, one process at a time;
the ratio is that of the medians. A run that has no answer in ``--timeout`` seconds is ended.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.networks import CASES, write

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / ".bench"
OCR = ROOT / "samples" / "ocr"
GOAL = 3.0
TREES = ("before", "now")
COMMAND = (sys.executable, "-c", "import sys; from trt_bisect.cli import main; sys.exit(main())")


@dataclass(frozen=True)
class Job:
    """What is run: the network and the options after it."""

    name: str
    arguments: tuple[str, ...]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--before", default="43c004f", help="the commit to compare with")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", nargs="+", help="names of networks, or their beginnings")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds for one run")


def measure(asked: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    """A row for each network: the seconds of every run of both trees, and the ratio of their medians."""
    trees = {"before": worktree(asked.before), "now": ROOT}
    rows = []
    for job in jobs(asked.only):
        seconds: dict[str, list[float]] = {tree: [] for tree in TREES}
        for turn in range(asked.repeat):
            for tree in TREES if turn % 2 == 0 else TREES[::-1]:
                seconds[tree].append(timed(trees[tree], job, asked.timeout))
        medians = {tree: statistics.median(seconds[tree]) for tree in TREES}
        rows.append({"network": job.name, "seconds": seconds, "ratio": medians["now"] / medians["before"]})
        console.print(f"{job.name}: {rows[-1]['ratio']:.2f} times")
    console.print(table(rows, asked.before))
    return rows


def worktree(commit: str) -> Path:
    """The tree of a commit, checked out under ``.bench``."""
    folder = WORK / f"tree-{commit}"
    if not folder.exists():
        command = ["git", "-C", str(ROOT), "worktree", "add", "--detach", str(folder), commit]
        subprocess.run(command, check=True, capture_output=True)
    return folder


def jobs(only: Sequence[str] | None) -> list[Job]:
    """The networks with their data; calibration caches are made where they are missing."""
    found = []
    for name in [case.name for case in CASES] + ["ocr, 1 input", "ocr, all inputs"]:
        if not only or name.startswith(tuple(only)):
            found.append(_ocr(name) if name.startswith("ocr") else _generated(name))
    return found


def _ocr(name: str) -> Job:
    options = ["--samples", "1"] if "1 input" in name else []
    data = ("--calibration", str(OCR / "calibration.npz"), "--input", str(OCR / "inputs.npz"), "--threshold", "0.95")
    return Job(name, (str(OCR / "network.onnx"), *data, *options))


def _generated(name: str) -> Job:
    case = next(case for case in CASES if case.name == name)
    network, data = write(case, WORK / "networks")
    sample, cache = network.with_name(f"{name}-input.npz"), network.with_suffix(".cache")
    np.savez(sample, x=np.load(data)["x"][:1])
    if not cache.exists():
        calibrate = ["calibrate", str(network), "--calibration", str(data), "--calibrator", "minmax", "-o", str(cache)]
        subprocess.run([*COMMAND, *calibrate], check=True, capture_output=True, cwd=ROOT)
    return Job(name, (str(network), "--calibration", str(cache), "--input", str(sample)))


def timed(tree: Path, job: Job, timeout_s: float) -> float:
    """The seconds of one run of the whole command in a process of its own, infinite where it did not end in time."""
    folder = WORK / "cost-run"
    shutil.rmtree(folder, ignore_errors=True)
    command = [*COMMAND, "run", *job.arguments, "--engine", "onnxruntime", "--explain", "none", "-o", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    began = time.perf_counter()
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, cwd=tree, env=environment, timeout=timeout_s, text=True
        )
    except subprocess.TimeoutExpired:
        return float("inf")
    seconds = time.perf_counter() - began
    if done.returncode not in (0, 1):
        raise SystemExit(f"trt-bisect run failed on {job.name} in {tree}: {done.stderr}")
    json.loads((folder / "report.json").read_text())
    return seconds


def table(rows: list[dict[str, Any]], before: str) -> Table:
    """Medians, the range of the runs, and the ratio against the goal."""
    result = Table("network", f"{before}, s", "runs", "now, s", "runs", "ratio", f"goal {GOAL:.0f}", box=None)
    for row in rows:
        cells = []
        for tree in TREES:
            runs = row["seconds"][tree]
            cells += [f"{statistics.median(runs):.1f}", f"{min(runs):.1f} to {max(runs):.1f}"]
        met = "met" if row["ratio"] <= GOAL else "missed"
        result.add_row(row["network"], *cells, f"{row['ratio']:.2f}", met)
    return result
