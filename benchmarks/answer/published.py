"""Recipes of ``run`` on published networks that nobody tuned to, judged on given and unseen inputs.

    python -m benchmarks.answer published --json figures.json
    python -m benchmarks.answer published --only recogniser ocr-sample

The networks come from packages, installed into an environment of their own under ``.bench``. ``run`` sees the given
inputs; the others are its ``--validation``, which it measures the finished recipe on and no more. The recipe's Q/DQ
file and the FP32 file are then run in plain ONNX Runtime.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import time
import venv
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import trt_bisect
from benchmarks.answer.judge import Cuts, judged, read_samples, session
from trt_bisect.errors import TrtBisectError
from trt_bisect.model.cost import shares, times_by_macs
from trt_bisect.model.network import Network
from trt_bisect.model.shapes import facts_for
from trt_bisect.precision import Precision
from trt_bisect.support.progress import Silent

HERE = Path(__file__).resolve().parent
WORK = HERE.parent.parent / ".bench"
OCR = HERE.parent.parent / "samples" / "ocr"
NETWORKS = WORK / "published-networks"


@dataclass(frozen=True)
class Case:
    """A network with its inputs.

    Attributes:
        name: of the row.
        folder: of ``network.onnx``.
        given: the inputs that ``run`` sees, an ``.npz`` in the folder.
        unseen: the others; empty where there are none.
        threshold: the cosine asked for.
        cuts: outputs whose parts differ in magnitude, and where they are cut on axis 1.
    """

    name: str
    folder: Path
    given: str = "given.npz"
    unseen: str = "unseen.npz"
    threshold: float = 0.99
    cuts: Cuts = field(default_factory=dict)


PLAIN = """recogniser recogniser-60 photo-classifier silero-vad akiki-vad speech-encoder sentence-encoder
    line-classifier page-classifier layout-detector""".split()
CASES = (
    Case("detector", NETWORKS / "detector", cuts={"output0": [4]}),
    *(Case(name, NETWORKS / name) for name in PLAIN),
    Case("ocr-sample", NETWORKS / "ocr-sample", unseen="", threshold=0.95),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", choices=[case.name for case in CASES])
    parser.add_argument("--threshold", type=float, help="instead of each network's own")
    parser.add_argument("--effort", choices=("quick", "default", "thorough"), default="default")


def measure(asked: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    """A row for each network; the table is printed again after each."""
    make_networks()
    rows = []
    for case in CASES:
        if asked.only and case.name not in asked.only:
            continue
        console.print(f"{case.name} ...")
        rows.append(row(case, asked.threshold or case.threshold, asked.effort))
        if asked.json:
            asked.json.write_text(json.dumps(rows, indent=1) + "\n")
        console.print(table(rows))
    return rows


def make_networks() -> None:
    """Installs the packages and writes the networks and inputs, where that is not done or their makers changed."""
    makers = [HERE / name for name in ("make_published.py", "data.py", "texts.txt", "photographs.txt")]
    stamp, wanted = NETWORKS / "made.txt", "\n".join(path.read_text() for path in makers)
    python = _python()
    if not stamp.exists() or stamp.read_text() != wanted:
        without_ours = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        subprocess.run([python, makers[0], NETWORKS], check=True, env=without_ours)
        stamp.write_text(wanted)
    _ocr_sample(NETWORKS / "ocr-sample")


def _python() -> Path:
    """Returns the Python of the packages' environment; makes it where it is missing or the packages changed."""
    folder, files = WORK / "published", [HERE / "published.txt", HERE / "published-nodeps.txt"]
    python, stamp = folder / "bin/python", folder / "installed.txt"
    wanted = "\n".join(file.read_text() for file in files)
    if not stamp.exists() or stamp.read_text() != wanted:
        venv.create(folder, clear=True, with_pip=True)
        for file, options in zip(files, ([], ["--no-deps"]), strict=True):
            pip = [str(python), "-m", "pip", "install", "--quiet", "--only-binary=:all:", *options, "-r", str(file)]
            subprocess.run(pip, check=True)
        stamp.write_text(wanted)
    return python


def _ocr_sample(folder: Path) -> None:
    """The network of ``samples/ocr`` with all its tiles as given inputs, those for calibration and the others."""
    folder.mkdir(exist_ok=True)
    shutil.copyfile(OCR / "network.onnx", folder / "network.onnx")
    with np.load(OCR / "calibration.npz") as calibration, np.load(OCR / "inputs.npz") as inputs:
        tiles = {name: np.concatenate([calibration[name], inputs[name]]) for name in inputs.files}
    np.savez(folder / "given.npz", **tiles)  # type: ignore[arg-type]


class FirstRecipe(Silent):
    """Notes the seconds of the processor at which the first recipe holds."""

    seconds: float | None = None

    def say(self, text: str) -> None:
        if self.seconds is None and text.startswith("A recipe passes"):
            self.seconds = time.process_time()


def row(case: Case, threshold: float, effort: str, **more: Any) -> dict[str, Any]:
    """The figures of one network, or the message of the error that ended its run, with more options."""
    folder = WORK / "published-runs" / case.name
    shutil.rmtree(folder, ignore_errors=True)
    wishes: dict[str, Any] = {"threshold": threshold, "explain": "none", "engine": "onnxruntime", "effort": effort}
    wishes |= more
    calibration = str(OCR / "calibration.npz") if not case.unseen else str(case.folder / case.given)
    if case.unseen:
        wishes["validation"] = str(case.folder / case.unseen)
    else:
        wishes["inputs"] = str(case.folder / case.given)
    first, began, used = FirstRecipe(), time.perf_counter(), time.process_time()
    try:
        report = trt_bisect.run(case.folder / "network.onnx", calibration, output=str(folder), progress=first, **wishes)
    except TrtBisectError as error:
        return {"network": case.name, "threshold": threshold, "failed": str(error).splitlines()[0]}
    seconds, processor = time.perf_counter() - began, time.process_time() - used
    found: dict[str, Any] = {"network": case.name, "threshold": threshold, "seconds": seconds}
    found |= {"processor": processor, "first": None if first.seconds is None else first.seconds - used}
    found |= _recipe_cost(case, folder / "recipe")
    assert report.answer is not None
    assert report.answer.given is not None
    found |= {"sweeps": _of_the_session(folder) / found["layers"] / report.answer.given.inputs}
    found |= {"similarity": dict(report.similarity.items()), "plans": report.plans, "inferences": report.inferences}
    found |= {"culprits": list(report.culprits), "changes": report.answer.changes}
    found |= {"fp32": None if report.answer.in_fp32 is None else report.answer.in_fp32.cost}
    for part, data in (("given", case.given), ("unseen", case.unseen)):
        if data:
            paths = case.folder / "network.onnx", folder / "recipe" / "network.qdq.onnx", case.folder / data
            found[part] = judged(*paths, case.cuts)
    return found


def _of_the_session(folder: Path) -> int:
    """Returns the single inferences on the session that switches precisions, from the journal of a run."""
    lines = map(json.loads, (folder / "journal.jsonl").read_text().splitlines())
    trials = {line["trial"]["plan"]: line["trial"] for line in lines if " by " in line.get("trial", {}).get("plan", "")}
    return sum(trial["inferences"] for trial in trials.values())


def _recipe_cost(case: Case, recipe: Path) -> dict[str, Any]:
    """Returns the layers that ``plan.json`` leaves high, and their cost."""
    loaded = trt_bisect.load_network(case.folder / "network.onnx")
    precisions = json.loads((recipe / "plan.json").read_text())["layers"]
    layers = [loaded.layers[k] for k in loaded.quantizable]
    high = {layer.index: Precision(precisions.get(layer.name, "int8")) for layer in layers}
    high = {k: precision for k, precision in high.items() if precision is not Precision.INT8}
    names = [loaded.layers[k].name for k in high]
    return {"layers": len(layers), "high": names, "cost": cost_of(case, loaded, high)}


def cost_of(case: Case, loaded: Network, high: Mapping[int, Precision]) -> float:
    """Returns the cost of layers in high precisions: a share of INT8's gain over FP32, in multiply-adds."""
    feeds = read_samples(case.folder / case.given, session(case.folder / "network.onnx", "off"))[0]
    costs = shares(times_by_macs(loaded, facts_for(loaded, feeds)))
    return sum(costs[k][precision] for k, precision in high.items())


def table(rows: list[dict[str, Any]]) -> Table:
    heads = (
        "network",
        "target",
        "layers",
        "high",
        "cost, %",
        "in FP32, %",
        "given below",
        "unseen below",
        "worst given",
    )
    result = Table(
        *heads, "worst unseen", "cut: given", "cut: unseen", "seconds", "processor", "first", "sweeps", box=None
    )
    for found in rows:
        if "failed" in found:
            result.add_row(found["network"], f"{found['threshold']}", found["failed"])
            continue
        result.add_row(
            found["network"], f"{found['threshold']}", str(found["layers"]), str(len(found["high"])),
            f"{100 * found['cost']:.1f}", "-" if found["fp32"] is None else f"{100 * found['fp32']:.1f}",
            _below(found, "given"), _below(found, "unseen"), _least(found, "given"), _least(found, "unseen"),
            _below(found, "given", ", cut"), _below(found, "unseen", ", cut"), f"{found['seconds']:.1f}",
            f"{found['processor']:.1f}", "-" if found["first"] is None else f"{found['first']:.1f}",
            f"{found['sweeps']:.2f}",
        )  # fmt: skip
    result.caption = "below the target: optimisations off / on / on without integer kernels, of the inputs"
    return result


def _below(found: dict[str, Any], part: str, cut: str = "") -> str:
    if f"off{cut}" not in found.get(part, {}):
        return "-"
    counts = [sum(v < found["threshold"] for v in found[part][f"{mode}{cut}"]) for mode in ("off", "on", "float")]
    return f"{'/'.join(map(str, counts))} of {len(found[part]['off'])}"


def _least(found: dict[str, Any], part: str) -> str:
    if part not in found:
        return "-"
    return "/".join(f"{np.min(found[part][mode]):.4f}" for mode in ("off", "on"))
