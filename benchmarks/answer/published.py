"""Recipes of ``run`` on published networks that nobody tuned to, judged on given and unseen inputs.

    python -m benchmarks.answer published --json figures.json
    python -m benchmarks.answer published --only recogniser ocr-sample

The networks come from packages, installed into an environment of their own under ``.bench``. ``run`` sees the given
inputs; the others are its ``--validation``, which it measures the finished recipe on and no more. The recipe's Q/DQ
file and the FP32 file are then run in plain ONNX Runtime. ``--threshold`` replaces each network's own.
"""

from __future__ import annotations

import json as to_json
import os
import shutil
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.table import Table

import trt_bisect
from benchmarks.answer.judge import Cuts, judged, read_samples, session
from benchmarks.measure import ROOT, WORK, environment, tell_rows
from trt_bisect.errors import TrtBisectError
from trt_bisect.model.cost import shares, times_by_macs
from trt_bisect.model.observe import facts_for
from trt_bisect.precision import Precision
from trt_bisect.support.progress import Silent

HERE = Path(__file__).resolve().parent
OCR = ROOT / "samples" / "ocr"
NETWORKS = WORK / "published-networks"


NAMES = """detector recogniser photo-classifier silero-vad akiki-vad speech-encoder sentence-encoder line-classifier
    page-classifier layout-detector ocr-sample wake-word pitch file-types captcha-reader captcha-detector text-detector
    speech-quality notes""".split()
CUTS: dict[str, Cuts] = {"detector": {"output0": [4]}}
"""By network the outputs whose parts differ in magnitude, and where they are cut on axis 1."""


def measure(
    *,
    only: tuple[str, ...] = (),
    threshold: float | None = None,
    effort: Literal["quick", "default", "thorough"] = "default",
    json: Path | None = None,
) -> None:
    """A row for each network."""
    make_networks()
    usual = dict.fromkeys(NAMES, 0.99) | {"ocr-sample": 0.95}
    tell_rows({name: partial(row, name, threshold or usual[name], effort) for name in NAMES}, only, table, json)


def make_networks() -> None:
    """Installs the packages and writes the networks and inputs, where that is not done or their makers changed."""
    files = [HERE / "published.txt", HERE / "published-nodeps.txt"]
    binary = ["--only-binary=:all:", "-r"]
    installs = [*binary, str(files[0])], ["--no-deps", *binary, str(files[1])]
    python = environment(WORK / "published", "\n".join(file.read_text() for file in files), *installs)
    makers = [HERE / name for name in ("make_published.py", "make_later.py", "data.py", "texts.txt", "photographs.txt")]
    stamp, content = NETWORKS / "made.txt", "\n".join(path.read_text() for path in makers)
    if not stamp.exists() or stamp.read_text() != content:
        without_ours = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        subprocess.run([python, makers[0], NETWORKS], check=True, env=without_ours)
        stamp.write_text(content)
    _ocr_sample(NETWORKS / "ocr-sample")


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


def row(name: str, threshold: float, effort: str) -> dict[str, Any]:
    """The figures of one network, or the message of the error that ended its run."""
    folder, network = WORK / "published-runs" / name, NETWORKS / name / "network.onnx"
    given, unseen = network.with_name("given.npz"), network.with_name("unseen.npz")
    parts = {"given": given, "unseen": unseen} if unseen.exists() else {"given": given}
    shutil.rmtree(folder, ignore_errors=True)
    wishes: dict[str, Any] = {"threshold": threshold, "explain": "none", "engine": "onnxruntime", "effort": effort}
    calibration = given
    if unseen.exists():
        wishes["validation"] = str(unseen)
    else:
        wishes["inputs"], calibration = str(given), OCR / "calibration.npz"
    first, began, used = FirstRecipe(), time.perf_counter(), time.process_time()
    figures: dict[str, Any] = {"network": name, "threshold": threshold}
    try:
        report = trt_bisect.run(network, str(calibration), output=str(folder), progress=first, **wishes)
    except TrtBisectError as error:
        return figures | {"failed": str(error).splitlines()[0]}
    answer = report.answer
    assert answer is not None
    assert answer.given is not None
    figures |= {"seconds": time.perf_counter() - began, "processor": time.process_time() - used}
    figures |= {"first": None if first.seconds is None else first.seconds - used}
    figures |= _recipe_cost(network, given, folder / "recipe")
    recipe = folder / "recipe" / "network.qdq.onnx"
    return (
        figures
        | {
            "sweeps": _of_the_session(folder) / figures["layers"] / answer.given.inputs,
            "similarity": dict(report.similarity.items()),
            "plans": report.plans,
            "inferences": report.inferences,
            "culprits": list(report.culprits),
            "changes": answer.changes,
            "fp32": None if answer.in_fp32 is None else answer.in_fp32.cost,
        }
        | {part: judged(network, recipe, data, CUTS.get(name)) for part, data in parts.items()}
    )


def _of_the_session(folder: Path) -> int:
    """Returns the single inferences on the session that switches precisions, from the journal of a run."""
    lines = map(to_json.loads, (folder / "journal.jsonl").read_text().splitlines())
    trials = {line["trial"]["plan"]: line["trial"] for line in lines if " by " in line.get("trial", {}).get("plan", "")}
    return sum(trial["inferences"] for trial in trials.values())


def _recipe_cost(path: Path, given: Path, recipe: Path) -> dict[str, Any]:
    """Returns the layers that ``plan.json`` leaves high, and their cost: a share of INT8's gain in multiply-adds."""
    network = trt_bisect.load_network(path)
    precisions = to_json.loads((recipe / "plan.json").read_text())["layers"]
    layers = [network.layers[k] for k in network.quantizable]
    in_plan = [(layer, Precision(precisions.get(layer.name, "int8"))) for layer in layers]
    high = [(layer, precision) for layer, precision in in_plan if precision is not Precision.INT8]
    feeds = read_samples(given, session(path, "off"))[0]
    costs = shares(times_by_macs(network, facts_for(network, feeds)))
    cost = sum(costs[layer.index][precision] for layer, precision in high)
    return {"layers": len(layers), "high": [layer.name for layer, _ in high], "cost": cost}


COLUMNS = (
    "network, target, layers, high, cost, in FP32, given below, unseen below, worst given, worst unseen, cut: given, "
    "cut: unseen, seconds, processor, first, sweeps"
)
FORMS = {"cost": ".1%", "fp32": ".1%", "seconds": ".1f", "processor": ".1f", "first": ".1f", "sweeps": ".2f"}


def table(rows: list[dict[str, Any]]) -> Table:
    result = Table(*COLUMNS.split(", "), box=None)
    result.caption = "below the target: optimisations off / on / on without integer kernels, of the inputs"
    for figures in rows:
        if "failed" in figures:
            result.add_row(figures["network"], f"{figures['threshold']}", figures["failed"])
            continue
        texts = {key: "-" if figures[key] is None else format(figures[key], form) for key, form in FORMS.items()}
        cells = [figures["network"], f"{figures['threshold']}", str(figures["layers"]), str(len(figures["high"]))]
        cells += [texts["cost"], texts["fp32"], _below(figures, "given"), _below(figures, "unseen")]
        for part in ("given", "unseen"):
            modes = figures.get(part, {})
            cells.append("/".join(f"{np.min(modes[mode]):.4f}" for mode in ("off", "on")) if modes else "-")
        cells += [_below(figures, "given", ", cut"), _below(figures, "unseen", ", cut")]
        result.add_row(*cells, *(texts[key] for key in ("seconds", "processor", "first", "sweeps")))
    return result


def _below(figures: dict[str, Any], part: str, cut: str = "") -> str:
    if f"off{cut}" not in figures.get(part, {}):
        return "-"
    counts = [sum(v < figures["threshold"] for v in figures[part][f"{mode}{cut}"]) for mode in ("off", "on", "float")]
    return f"{'/'.join(map(str, counts))} of {len(figures[part]['off'])}"
