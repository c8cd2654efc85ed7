"""The layers that others would keep in FP32, beside those of a recipe: same data, scales, emulation and price.

    python -m benchmarks.answer others --json figures.json
    python -m benchmarks.answer others --only recogniser-60 detector

The rules: ``run``; *leave one out*: the layer whose return to FP32 helps full INT8 most, then the next, until the given
inputs hold; the tools of ``tools.py``, each in an environment of its own under ``.bench``; and by hand, as users copy
them: the first and the last layer, attention, and the convolutions before the boxes of a YOLO. Each set of layers is
written with the scales that ``run`` chose, and judged as in ``published``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
import venv
from collections import Counter
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from rich.console import Console
from rich.table import Table

import trt_bisect
from benchmarks.answer.judge import infer, read_samples, session, worst
from benchmarks.answer.published import CASES, WORK, Case, cost_of, make_networks, row
from benchmarks.answer.tools import TOOLS, fewest
from trt_bisect.calibration.ranges import Ranges, keeping_unusable_high
from trt_bisect.model.file import save_model
from trt_bisect.model.layers import Layer
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.precision import Precision, all_but

TOOL_SECONDS = 600
RANKED_ON = 4
HEADS = ("*/cv?.?/cv?.?.2/Conv", "*dfl*")
"""The convolutions before boxes and scores in ultralytics' names."""


class Recipe:
    """A run that has ended, and the plans that others make of its scales."""

    def __init__(self, case: Case, threshold: float) -> None:
        self.case, self.threshold, self.file = case, threshold, case.folder / "network.onnx"
        ranges = _chosen(WORK / "published-runs" / case.name)
        self.network, _ = keeping_unusable_high(trt_bisect.load_network(self.file), ranges)
        self.layers = [self.network.layers[k] for k in self.network.quantizable]
        self._writer = PlanWriter(self.network, ranges.scales, GraphTarget.TENSORRT)
        self.written = WORK / "others" / case.name
        self.written.mkdir(parents=True, exist_ok=True)
        exact = session(self.file, "off")
        feeds = {data: read_samples(case.folder / data, exact) for data in (case.given, case.unseen)}
        self._samples = {data: [(each, infer(exact, each)) for each in some] for data, some in feeds.items()}
        self.named = self._with_names()

    def _with_names(self) -> Path:
        """The published file with the data's shapes; nodes without a name of their own have that of their output."""
        model, path = onnx.load(self.file), self.written / "named.onnx"
        taken = Counter(node.name for node in model.graph.node)
        for node in model.graph.node:
            node.name = node.output[0] if taken[node.name] > 1 or not node.name else node.name
        for name, array in self._samples[self.case.given][0][0].items():
            shape = next(each for each in model.graph.input if each.name == name).type.tensor_type.shape
            for axis, size in zip(shape.dim, array.shape, strict=True):
                axis.dim_value = size
        onnx.save(model, path)
        return path

    def judge(self, high: Sequence[Layer], data: str, most: int | None = None) -> list[float]:
        """The cosine of each input, or of the first ones, with these layers in FP32 and the others in INT8."""
        made = self._writer.write(all_but(len(self.network.layers), [layer.index for layer in high]))
        save_model(made.model, made.weights, self.written / "plan.onnx")
        rounded = session(self.written / "plan.onnx", "off")
        return [
            worst(reference, infer(rounded, feeds), self.case.cuts) for feeds, reference in self._samples[data][:most]
        ]

    def holds(self, high: Sequence[Layer]) -> bool:
        """True if all given inputs reach the threshold."""
        return min(self.judge(high, self.case.given)) >= self.threshold


def leave_one_out(run: Recipe) -> list[Layer]:
    """The layers by what full INT8 gains on some inputs without each, as many as all given inputs need."""
    gains = {layer.index: np.mean(run.judge([layer], run.case.given, RANKED_ON)) for layer in run.layers}
    ranked = sorted(run.layers, key=lambda layer: -gains[layer.index])
    return list(fewest(ranked, run.holds))


def first_and_last(run: Recipe) -> list[Layer]:
    """The first and the last layer with weights."""
    weighty = [layer for layer in run.layers if layer.has_weight]
    return [weighty[0], weighty[-1]]


def attention(run: Recipe) -> list[Layer]:
    """Products of two activations, and Softmax."""
    return [layer for layer in run.layers if layer.op_type in ("Softmax", "MatMul") and not layer.has_weight]


def head(run: Recipe) -> list[Layer]:
    """The layers that users of ultralytics exclude by name."""
    return [layer for layer in run.layers if any(fnmatch(layer.name, pattern) for pattern in HEADS)]


def tool(run: Recipe, name: str) -> tuple[list[Layer], float]:
    """The layers that another tool keeps, judging INT8 by its own scales, and the seconds of the processor it took."""
    module, packages, _ = TOOLS[name]
    folder, asked, found = WORK / module.split(".")[0], run.written / "task.json", run.written / f"{name}.json"
    if not folder.exists():
        venv.create(folder, with_pip=True)
        subprocess.run([folder / "bin/pip", "install", "--quiet", *packages], check=True)
    task = {"network": run.named, "samples": run.case.folder / run.case.given, "layers": found}
    asked.write_text(json.dumps(task | {"target": run.threshold, "cuts": run.case.cuts}, default=str))
    command = [str(folder / "bin/python"), "-m", "benchmarks.answer.tools", name, str(asked)]
    env = os.environ | {"PYTHONPATH": str(WORK.parent)}
    limits: dict[str, Any] = {"check": True, "timeout": TOOL_SECONDS, "capture_output": True, "text": True}
    subprocess.run(command, env=env, cwd=run.written, **limits)
    answer = json.loads(found.read_text())
    high = set(answer["high"])  # a MatMul fused with its bias is named by its output, by its module in AIMET
    names = [{layer.name, layer.name.rpartition("/")[0] or layer.name, *layer.outputs} for layer in run.layers]
    return [layer for layer, own in zip(run.layers, names, strict=True) if own & high], answer["seconds"]


def _chosen(folder: Path) -> Ranges:
    """The scales of a finished run: its plan's, and of tensors that it does not round those of its calibrator."""
    chosen = json.loads((folder / "recipe" / "plan.json").read_text())["scales"]
    kept = json.loads((folder / "candidates.json").read_text())["kept"]
    known = [{n: np.frombuffer(bytes.fromhex(s), "<f4")[0] for n, s in one["scales"].items()} for one in kept]
    nearest = max(known, key=lambda one: sum(one[name] == np.float32(scale) for name, scale in chosen.items()))
    return Ranges(nearest | {name: np.float32(scale) for name, scale in chosen.items()}, kept[0]["unusable"])


RULES: dict[str, Callable[[Recipe], list[Layer]]] = {
    "leave one out": leave_one_out,
    "first and last": first_and_last,
    "attention": attention,
    "YOLO's head": head,
}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", choices=[case.name for case in CASES])
    parser.add_argument("--rules", nargs="+", choices=[*RULES, *TOOLS], default=[*RULES, *TOOLS])


def measure(asked: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    """A row for each network and rule that names layers; the table is printed again after each network."""
    make_networks()
    rows: list[dict[str, Any]] = []
    for case in CASES:
        if not case.unseen or (asked.only and case.name not in asked.only):
            continue
        console.print(f"{case.name} ...")
        ours = row(case, case.threshold, "default", precision="fp32", as_is=True)
        if "failed" in ours:
            rows.append({"network": case.name, "rule": "run", "failed": ours["failed"]})
            continue
        run = Recipe(case, case.threshold)
        high = [layer for layer in run.layers if layer.name in ours["high"]]
        mode = "off, cut" if case.cuts else "off"
        rows.append(_row(run, "run", high, ours["processor"]) | {p: ours[p][mode] for p in ("given", "unseen")})
        found = [_of_rule(run, name) for name in asked.rules]
        rows += [one for one in found if one["rule"] in TOOLS or one["high"]]
        if asked.json:
            asked.json.write_text(json.dumps(rows, indent=1) + "\n")
        console.print(table(rows))
    return rows


def _of_rule(run: Recipe, name: str) -> dict[str, Any]:
    began, failed = time.process_time(), {"network": run.case.name, "rule": name}
    try:
        high, seconds = tool(run, name) if name in TOOLS else (RULES[name](run), None)
    except subprocess.CalledProcessError as error:
        return failed | {"failed": " ".join(error.stderr.strip().splitlines()[-1:])}
    except subprocess.TimeoutExpired:
        return failed | {"failed": f"more than {TOOL_SECONDS} s"}
    return _row(run, name, high, time.process_time() - began if seconds is None else seconds)


def _row(run: Recipe, name: str, high: Sequence[Layer], seconds: float) -> dict[str, Any]:
    found = {"network": run.case.name, "rule": name, "threshold": run.threshold, "seconds": seconds}
    found |= {"high": [layer.name for layer in high], "layers": len(run.layers)}
    found |= {part: run.judge(high, getattr(run.case, part)) for part in ("given", "unseen")}
    return found | {"cost": cost_of(run.case, run.network, {layer.index: Precision.FP32 for layer in high})}


def table(rows: Sequence[dict[str, Any]]) -> Table:
    heads = ("network", "rule", "high", "cost, %", "given below", "unseen below", "worst given", "processor, s")
    result = Table(*heads, box=None)
    for found in rows:
        if "failed" in found:
            result.add_row(found["network"], found["rule"], found["failed"])
            continue
        below = [sum(value < found["threshold"] for value in found[part]) for part in ("given", "unseen")]
        kept = f"{len(found['high'])} of {found['layers']}", f"{100 * found['cost']:.1f}"
        missed = f"{below[0]} of {len(found['given'])}", f"{below[1]} of {len(found['unseen'])}"
        worst_given, seconds = f"{min(found['given']):.5f}", f"{found['seconds']:.0f}"
        result.add_row(found["network"], found["rule"], *kept, *missed, worst_given, seconds)
    return result
