"""Exports of the users' tools, read as the tools read them, and a culprit planted in each.

    python -m benchmarks.answer heads --json figures.json
    python -m benchmarks.answer heads --only yolo26 DETR --python /some/environment/bin/python

``make_heads`` makes the exports in an environment with PyTorch under ``.bench``, or in the one given. The differences
are the largest over two pictures, in shares of the picture's side: each of the tool's detections from the nearest of
ours. The culprit is a pair of 1x1 convolutions before an early convolution, of which the first makes a channel 2,000
times as wide and the second takes it back; ``trt-bisect run --task`` has to name the second.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from rich.console import Console
from rich.table import Table

from benchmarks.answer.judge import Outputs, infer, read_samples, session
from benchmarks.answer.published import WORK
from trt_bisect.analyzer.tasks.find import find_task
from trt_bisect.analyzer.tasks.task import AskedTask, Task
from trt_bisect.errors import BadInput

PACKAGES = ("torch==2.13.0", "torchvision==0.28.0", "ultralytics==8.4.190", "transformers==5.24.0", "timm==1.0.31",
            "onnx", "onnxruntime", "onnxslim", "scipy", "pandas", "seaborn", "requests", "ipython", "setuptools<80")  # fmt: skip
CULPRIT, WIDE = "planted.second", 2000.0


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--python", type=Path, help="of an environment that has the packages")
    parser.add_argument("--no-culprits", action="store_true")


def measure(asked: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    """A row for each export."""
    folder = WORK / "heads"
    folder.mkdir(parents=True, exist_ok=True)
    python = asked.python
    if python is None:
        python = WORK / "heads-environment/bin/python"
        if not python.exists():
            venv.create(python.parents[1], with_pip=True)
            install = [python, "-m", "pip", "install", "--quiet"]
            subprocess.run([*install, *PACKAGES], check=True)
            subprocess.run([*install, "--no-deps", "yolov5==7.0.14"], check=True)
    make = [python, Path(__file__).with_name("make_heads.py").resolve(), folder]
    subprocess.run([*make, *asked.only], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    rows = []
    for path in sorted(folder.glob("*/case.json")):
        if not asked.only or path.parent.name in asked.only:
            rows.append(_row(path.parent, culprit=not asked.no_culprits))
            console.print(table(rows[-1:]))
    console.print(table(rows))
    return rows


def _row(folder: Path, *, culprit: bool) -> dict[str, Any]:
    case = json.loads((folder / "case.json").read_text())
    opened = session(folder / "network.onnx", "on")
    outputs = [infer(opened, feeds) for feeds in read_samples(folder / "given.npz", opened)]
    row: dict[str, Any] = {"export": folder.name, "task": case["task"]}
    try:
        task = find_task(AskedTask(case["task"], case["score"], case["iou"], head=case["head"] or None), outputs)
    except BadInput as error:
        return row | {"head": f"refused: {error}"}
    with np.load(folder / "right.npz") as file:
        right = [{name[2:]: file[name] for name in file.files if name.startswith(f"{k}.")} for k in (0, 1)]
    size = np.load(folder / "given.npz")[opened.get_inputs()[0].name].shape[:1:-1]
    each = [differences(task, outputs, k, found, size) for k, found in enumerate(right)]
    row |= {"head": task.note, "found": sum(one.pop("found") for one in each)}
    row |= {name: max(one[name] for one in each) for name in each[0]}
    return row | (_culprits(folder, case) if culprit else {})


def differences(task: Task, outputs: Sequence[Outputs], k: int, right: Outputs, size: Sequence[int]) -> dict[str, float]:
    """How far what is read in a picture is from what the tool reads: infinite if one of both has more."""
    if "vector" in right:
        reader = task.judge([{task.reads[0]: right["vector"]}, *outputs[2:]])
        return {"found": 1, "values": 1 - reader({0: outputs[k]}).values["cosine"]}
    assert task.looks is not None
    (found,) = task.looks.read(outputs[k])
    if "map" in right or "text" in right:
        wanted = np.squeeze(right["map"] if "map" in right else right["text"])
        same = np.shape(found) == wanted.shape
        return {"found": wanted.size, "values": float(np.abs(np.subtract(found, wanted)).max()) if same else math.inf}
    assert task.looks.scaling is not None
    scale, sides = task.looks.scaling(outputs)(outputs[k], tuple(size)), np.array(size, np.float64)  # type: ignore[arg-type]
    ours = {"boxes": found.boxes * np.tile(scale, 2), "scores": found.scores, "classes": found.classes}
    ours["boxes"] = np.clip(ours["boxes"].reshape(-1, 2, 2), 0, sides) / sides
    wanted = right | {"boxes": np.clip(right["boxes"].reshape(-1, 2, 2), 0, sides) / sides}
    kind = {"obb": "angles", "pose": "keypoints", "instances": "masks"}.get(task.entry.split()[1])
    if kind == "angles":
        ours["angles"], wanted["angles"] = _upright(found.more, sides), _upright(right["more"], sides)
        ours["boxes"], wanted["boxes"] = ours["angles"][:, :2], wanted["angles"][:, :2]
    elif kind == "keypoints":
        ours[kind], wanted[kind] = (
            np.concatenate([np.clip(each[..., :2], 0, sides) / sides, each[..., 2:]], -1)
            for each in (found.more * [*scale, 1.0], right["more"])
        )
    elif kind == "masks":
        masks = right["more"].reshape(len(right["scores"]), *found.more.shape[1:])
        ours[kind], wanted[kind] = found.more.astype(float), (masks > 0.5).astype(float)
    if len(found) != len(wanted["scores"]) or not len(found):
        return {"found": len(wanted["scores"]), "boxes": math.inf, "scores": math.inf}
    apart = {
        name: np.array([_joined(np.abs(ours[name] - one).reshape(len(found), -1), name) for one in wanted[name]])
        for name in ("boxes", "scores", "classes", *([kind] if kind else []))
    }
    nearest = sum(apart.values()).argmin(axis=1)  # type: ignore[union-attr]
    worst = {name: float(np.take_along_axis(each, nearest[:, None], 1).max(initial=0)) for name, each in apart.items()}
    return {"found": len(found), **worst, "twice": float(len(nearest) - len(set(nearest)))}


def _joined(apart: np.ndarray, name: str) -> np.ndarray:
    """The share of a mask's pixels that differ; of other things the largest difference."""
    return np.asarray(apart.mean(axis=1) if name == "masks" else apart.max(axis=1))


def _upright(boxes: np.ndarray, sides: np.ndarray) -> np.ndarray:
    """Oriented boxes with an angle from 0 to a quarter turn, as Ultralytics gives them too."""
    turned = boxes[:, 4:] % math.pi >= math.pi / 2
    extent = np.where(turned, boxes[:, 3:1:-1], boxes[:, 2:4])
    return np.concatenate([boxes[:, :2] / sides, extent / sides, boxes[:, 4:] % (math.pi / 2)], axis=1)


def plant(path: Path) -> Path:
    """Writes the network with the pair before the third convolution of four channels or more, or the last of fewer."""
    model = onnx.load(path)
    weights = {each.name: each.dims for each in model.graph.initializer}
    users = [name for node in model.graph.node for name in node.input]
    given = model.graph.input[0].name
    fitting = [
        (place, node, weights[node.input[1]][1])
        for place, node in enumerate(model.graph.node)
        if node.op_type == "Conv" and node.input[0] != given and users.count(node.input[0]) == 1
        and len(weights.get(node.input[1], ())) == 4 and weights[node.input[1]][1] >= 4
    ][:3]  # fmt: skip
    place, node, channels = fitting[-1]
    diagonal, tensor = np.eye(channels, dtype=np.float32)[..., None, None], node.input[0]
    factors = np.where(np.arange(channels) == 0, WIDE, 1.0).astype(np.float32)[:, None, None, None]
    for name, values in ((CULPRIT.replace("second", "first"), factors), (CULPRIT, 1 / factors)):
        model.graph.initializer.append(numpy_helper.from_array(diagonal * values, f"{name}.weight"))
        made = helper.make_node("Conv", [tensor, f"{name}.weight"], [f"{name}.out"], name)
        model.graph.node.insert(place, made)
        place, tensor = place + 1, f"{name}.out"
    node = model.graph.node[place]
    node.input[0] = tensor
    planted = path.with_name("planted.onnx")
    onnx.save(model, planted)
    return planted


def _culprits(folder: Path, case: dict[str, Any]) -> dict[str, Any]:
    """The culprits at four fifths of the agreement that full INT8 has without the planted pair.

    One in eight layers may be in INT8, beside the pair: without training a network bears little more.
    """
    planted = plant(folder / "network.onnx")
    nodes = onnx.load(folder / "network.onnx").graph.node
    low = [node.name for node in nodes if node.op_type in ("Conv", "Gemm", "MatMul")][4::8]
    plain = _run(folder, folder / "network.onnx", case, low, 0.001)["similarity"]["int8"]
    report = _run(folder, planted, case, [*low, "planted.*"], max(0.8 * plain, 0.001))
    return {"plain": plain, "planted": report["similarity"]["int8"], "culprits": report["culprits"]}


def _run(folder: Path, network: Path, case: dict[str, Any], low: Sequence[str], threshold: float) -> dict[str, Any]:
    command = [Path(sys.executable).with_name("trt-bisect"), "run", network, "--calibration", folder / "given.npz"]
    command += ["--task", case["task"], "--calibrator", "minmax", "--engine", "onnxruntime", "--explain", "none"]
    command += ["--threshold", f"{threshold:.4f}", "--output", folder / "run"]
    command += [part for name in low for part in ("--only", name)]
    shutil.rmtree(folder / "run", ignore_errors=True)
    subprocess.run([*command, *(["--head", case["head"]] if case["head"] else [])], check=False, capture_output=True)
    report: dict[str, Any] = json.loads((folder / "run/report.json").read_text())
    return report


def table(rows: Sequence[dict[str, Any]]) -> Table:
    kinds = ("boxes", "scores", "classes", "keypoints", "angles", "masks", "values")
    result = Table("export", "task", "found", *kinds, "INT8", "planted", "culprits", box=None)
    for row in rows:
        shown = [f"{row[kind]:.1g}" if kind in row else "" for kind in kinds]
        culprits = row.get("culprits", [])
        named = f"planted{f' and {len(culprits) - 1}' * (len(culprits) > 1)}" if CULPRIT in culprits else str(len(culprits))
        kept = [f"{row[name]:.2f}" if name in row else "" for name in ("plain", "planted")]
        result.add_row(row["export"], row["task"], str(row.get("found", row["head"])), *shown, *kept, named)
    return result
