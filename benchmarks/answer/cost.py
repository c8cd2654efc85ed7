"""The time of ``run`` without explanation, here against an earlier commit: a ratio for each network.

    python -m benchmarks.answer cost --before 43c004f

The four networks of ``benchmarks.networks`` with the ranges of one cache and one input, the OCR sample with its
calibration data, once with one input judged and once with all of ``inputs.npz``, and the other samples. The two trees
run by turns, one process at a time; the ratio is that of the medians, of the seconds that passed and of the
processor's. On a busy machine only the second means anything. A run that has no answer in ``--timeout`` seconds is
ended.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.networks import CASES, write

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / ".bench"
SAMPLES = ROOT / "samples"
OCR = SAMPLES / "ocr"
OTHER_SAMPLES = {
    "sample lenet": ("lenet/lenet_planted.onnx", "lenet/calibration.npz", "--metric", "cosine"),
    "sample detector": ("detector/detector.onnx", "detector/calibration.npz", "--calibrator", "entropy"),
    "sample transformer": ("transformer/encoder.onnx", "transformer/calibration.npz", "--threshold", "0.99"),
}
"""By name the network, its data, and the options after them."""
GOAL = 3.0
TREES = ("before", "now")
COMMAND = (sys.executable, "-c", "import sys; from trt_bisect.cli import main; sys.exit(main())")


@dataclass(frozen=True)
class Job:
    """A run to be timed: the network and the options after it."""

    name: str
    arguments: tuple[str, ...]


class Took(NamedTuple):
    """The seconds of a run, those of the processor in all its threads, and the plans that it measured."""

    seconds: float
    processor: float
    plans: float


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--before", default="43c004f", help="the commit to compare with")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", nargs="+", help="names of networks, or their beginnings")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds for one run")


def measure(asked: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    """A row for each network: the seconds of every run of both trees, and the ratio of their medians."""
    trees = {"before": tree_of(asked.before), "now": ROOT}
    rows = []
    for job in jobs(asked.only):
        runs: dict[str, list[Took]] = {tree: [] for tree in TREES}
        for turn in range(asked.repeat):
            for tree in TREES if turn % 2 == 0 else TREES[::-1]:
                runs[tree].append(timed(trees[tree], job, asked.timeout))
        medians = {tree: Took(*map(statistics.median, zip(*runs[tree], strict=True))) for tree in TREES}
        ratios = [now / before for now, before in zip(medians["now"], medians["before"], strict=True)]
        rows.append({"network": job.name, "runs": runs, "ratio": ratios[0], "processor ratio": ratios[1]})
        console.print(
            f"{job.name}: {ratios[0]:.2f} times, of the processor {ratios[1]:.2f} times, "
            f"plans {medians['before'].plans:.0f} and {medians['now'].plans:.0f}"
        )
    console.print(table(rows, asked.before))
    return rows


def tree_of(commit: str) -> Path:
    """Unpacks the files of a commit under ``.bench`` and returns their folder."""
    folder = WORK / f"tree-{commit}"
    if not folder.exists():
        archive = subprocess.run(["git", "-C", str(ROOT), "archive", commit], check=True, capture_output=True).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(folder, filter="data")
    return folder


def jobs(only: Sequence[str] | None) -> list[Job]:
    """The networks with their data; calibration caches are made where they are missing."""
    found = []
    for name in [case.name for case in CASES] + ["ocr, 1 input", "ocr, all inputs", *OTHER_SAMPLES]:
        if not only or name.startswith(tuple(only)):
            made = _sample if name in OTHER_SAMPLES else _ocr if name.startswith("ocr") else _generated
            found.append(made(name))
    return found


def _ocr(name: str) -> Job:
    options = ["--samples", "1"] if "1 input" in name else []
    data = ("--calibration", str(OCR / "calibration.npz"), "--input", str(OCR / "inputs.npz"), "--threshold", "0.95")
    return Job(name, (str(OCR / "network.onnx"), *data, *options))


def _sample(name: str) -> Job:
    network, data, *options = OTHER_SAMPLES[name]
    return Job(name, (str(SAMPLES / network), "--calibration", str(SAMPLES / data), *options))


def _generated(name: str) -> Job:
    case = next(case for case in CASES if case.name == name)
    network, data = write(case, WORK / "networks")
    sample, cache = network.with_name(f"{name}-input.npz"), network.with_suffix(".cache")
    np.savez(sample, x=np.load(data)["x"][:1])
    if not cache.exists():
        calibrate = ["calibrate", str(network), "--calibration", str(data), "--calibrator", "minmax", "-o", str(cache)]
        subprocess.run([*COMMAND, *calibrate], check=True, capture_output=True, cwd=ROOT)
    return Job(name, (str(network), "--calibration", str(cache), "--input", str(sample)))


def timed(tree: Path, job: Job, timeout_s: float) -> Took:
    """The time of one run of the whole command in a process of its own, infinite where it did not end in time."""
    folder = WORK / "cost-run"
    shutil.rmtree(folder, ignore_errors=True)
    command = [*COMMAND, "run", *job.arguments, "--engine", "onnxruntime", "--explain", "none", "-o", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    began, used = time.perf_counter(), _processor()
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, cwd=tree, env=environment, timeout=timeout_s, text=True
        )
    except subprocess.TimeoutExpired:
        return Took(math.inf, math.inf, math.nan)
    seconds, processor = time.perf_counter() - began, _processor() - used
    if done.returncode not in (0, 1):
        raise SystemExit(f"trt-bisect run failed on {job.name} in {tree}: {done.stderr}")
    return Took(seconds, processor, json.loads((folder / "report.json").read_text())["plans"])


def _processor() -> float:
    """The processor's seconds of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def table(rows: list[dict[str, Any]], before: str) -> Table:
    """Medians of both, and the ratios against the goal."""
    result = Table("network", f"{before}, s", "now, s", "ratio", "processor: before", "now", "ratio", box=None)
    result.caption = f"goal: a ratio of at most {GOAL:.0f}"
    for row in rows:
        cells = []
        for figure, ratio in ((0, row["ratio"]), (1, row["processor ratio"])):
            cells += [f"{statistics.median(took[figure] for took in row['runs'][tree]):.1f}" for tree in TREES]
            cells.append(f"{ratio:.2f}")
        result.add_row(row["network"], *cells)
    return result
