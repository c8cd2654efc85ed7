"""The time of ``run`` without explanation, here against an earlier commit: a ratio for each network.

    python -m benchmarks.answer cost --before 43c004f

The four networks of ``benchmarks.networks`` with the ranges of one cache and one input, the OCR sample with its
calibration data, once with one input judged and once with all of ``inputs.npz``, and the other samples. The two trees
run by turns, one process at a time; the ratio is that of the medians, of the seconds that passed and of the
processor's. On a busy machine only the second means anything.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.networks import CASES, Case, write

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / ".bench"
SAMPLES = ROOT / "samples"


def _sample(network: str, *options: str) -> list[str]:
    path = SAMPLES / network
    return [str(path), "--calibration", str(path.with_name("calibration.npz")), *options]


OCR = _sample("ocr/network.onnx", "--input", str(SAMPLES / "ocr/inputs.npz"), "--threshold", "0.95")
SAMPLE_RUNS = {
    "ocr, 1 input": [*OCR, "--samples", "1"],
    "ocr, all inputs": OCR,
    "sample lenet": _sample("lenet/lenet_planted.onnx", "--metric", "cosine"),
    "sample detector": _sample("detector/detector.onnx", "--calibrator", "entropy"),
    "sample transformer": _sample("transformer/encoder.onnx", "--threshold", "0.99"),
}
"""The arguments of ``run`` by name."""
GOAL = 3.0
TREES = ("before", "now")
COMMAND = (sys.executable, "-c", "import sys; from trt_bisect.cli import main; sys.exit(main())")


class Took(NamedTuple):
    """The seconds of a run, those of the processor in all its threads, and the plans that it measured."""

    seconds: float
    processor: float
    plans: float


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--before", default="43c004f", help="the commit to compare with")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", nargs="+", help="names of networks, or their beginnings")


def measure(asked: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    """A row for each network: the seconds of every run of both trees, and the ratio of their medians."""
    trees = {"before": tree_of(asked.before), "now": ROOT}
    rows = []
    for name, arguments in jobs(asked.only).items():
        runs: dict[str, list[Took]] = {tree: [] for tree in TREES}
        for turn in range(asked.repeat):
            for tree in TREES if turn % 2 == 0 else TREES[::-1]:
                runs[tree].append(timed(trees[tree], arguments))
        medians = {tree: Took(*map(statistics.median, zip(*runs[tree], strict=True))) for tree in TREES}
        ratios = [now / before for now, before in zip(medians["now"], medians["before"], strict=True)]
        rows.append({"network": name, "runs": runs, "ratio": ratios[0], "processor ratio": ratios[1]})
        console.print(
            f"{name}: {ratios[0]:.2f} times, of the processor {ratios[1]:.2f} times, "
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


def jobs(only: Sequence[str] | None) -> dict[str, list[str]]:
    """The arguments of ``run`` by the network's name; calibration caches are made where they are missing."""
    cases = {case.name: case for case in CASES}
    names = [name for name in (*cases, *SAMPLE_RUNS) if not only or name.startswith(tuple(only))]
    return {name: _generated(cases[name]) if name in cases else SAMPLE_RUNS[name] for name in names}


def _generated(case: Case) -> list[str]:
    network, data = write(case, WORK / "networks")
    sample, cache = network.with_name(f"{case.name}-input.npz"), network.with_suffix(".cache")
    np.savez(sample, x=np.load(data)["x"][:1])
    if not cache.exists():
        calibrate = ["calibrate", str(network), "--calibration", str(data), "--calibrator", "minmax", "-o", str(cache)]
        subprocess.run([*COMMAND, *calibrate], check=True, capture_output=True, cwd=ROOT)
    return [str(network), "--calibration", str(cache), "--input", str(sample)]


def timed(tree: Path, arguments: Sequence[str]) -> Took:
    """The time of one run of the whole command in a process of its own."""
    folder = WORK / "cost-run"
    shutil.rmtree(folder, ignore_errors=True)
    command = [*COMMAND, "run", *arguments, "--engine", "onnxruntime", "--explain", "none", "-o", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    began, used = time.perf_counter(), _processor()
    done = subprocess.run(command, check=False, capture_output=True, cwd=tree, env=environment, text=True)
    seconds, processor = time.perf_counter() - began, _processor() - used
    if done.returncode not in (0, 1):
        raise SystemExit(f"trt-bisect run failed on {arguments[0]} in {tree}: {done.stderr}")
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
