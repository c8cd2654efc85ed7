"""Exports of the users' tools, read as the tools read them, and a culprit planted in each.

    python -m benchmarks.answer heads --json figures.json
    python -m benchmarks.answer heads --only yolo26 DETR --python /some/environment/bin/python

``make_heads`` makes the exports in an environment with PyTorch under ``.bench``, or in the one given. The differences
are the largest over two pictures, boxes and keypoints in shares of the picture's side: each of the tool's detections
from the nearest of ours. The culprit is a pair of 1x1 convolutions behind the first convolution, which everything
passes: the first makes a channel 2,000 times as wide, the second takes that back. ``trt-bisect run --task`` has to name
the second, at a target halfway between what the same layers in INT8 keep with the pair, and with one that changes
nothing.
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
from trt_bisect.analyzer.tasks.task import ITEMS, AskedTask, Task
from trt_bisect.errors import BadInput

PACKAGES = (
    *("torch==2.14.1", "torchvision==0.29.1", "ultralytics==8.4.190", "transformers==5.24.0", "timm==1.0.31", "onnx"),
    *("onnxruntime", "onnxslim", "scipy", "pandas", "seaborn", "requests", "ipython", "setuptools<80"),
)
CULPRIT, WIDE = "planted.second", 2000.0
STEPS, KEPT, PICTURES = (1, 2, 4, 8, 16, 32, 64), 0.5, 6
"""One layer in so many is in INT8: without training a network bears little, so the first that keeps ``KEPT``."""
NAMED = {"DETR": "background-last"}
"""The heads that users name where the pictures of the culprits do not tell them, as the refusal asks them to."""
KINDS = {"obb": "angles", "pose": "keypoints", "instances": "masks"}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--python", type=Path, help="of an environment that has the packages")
    parser.add_argument("--culprits", action="store_true", help="also plant a culprit, and run")


def measure(asked: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    """A row for each export."""
    folder = WORK / "heads"
    folder.mkdir(parents=True, exist_ok=True)
    python = asked.python or WORK / "heads-environment/bin/python"
    if not python.exists():
        venv.create(python.parents[1], with_pip=True)
        install = [python, "-m", "pip", "install", "--quiet"]
        subprocess.run([*install, *PACKAGES], check=True)
        subprocess.run([*install, "--no-deps", "yolov5==7.0.14"], check=True)
    make = [python, Path(__file__).with_name("make_heads.py").resolve(), folder, *asked.only]
    subprocess.run(make, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    cases = [path.parent for path in sorted(folder.glob("*/case.json"))]
    rows = [_row(case, culprit=asked.culprits) for case in cases if not asked.only or case.name in asked.only]
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
    size = opened.get_inputs()[0].shape[:1:-1]
    each = [differences(task, outputs, k, read, size) for k, read in enumerate(right)]
    row |= {"head": task.note, "found": sum(one.pop("found") for one in each)}
    row |= {name: max(one[name] for one in each) for name in each[0]}
    shown = [k for k, each in enumerate(outputs) if task.judge(outputs)({k: each}).values.get(ITEMS)]
    return row | (_culprits(folder, case, shown[:PICTURES]) if culprit else {})


def differences(task: Task, outputs: Sequence[Outputs], k: int, right: Outputs, size: list[int]) -> dict[str, float]:
    """Differences between what is read in a picture and what the tool reads: infinite if one of both has more."""
    if "vector" in right:
        judge = task.judge([{task.reads[0]: right["vector"]}, *outputs[2:]])
        return {"found": 1, "values": 1 - judge({0: outputs[k]}).values["cosine"]}
    assert task.looks is not None
    (read,) = task.looks.read(outputs[k])
    if "boxes" not in right:
        wanted = np.squeeze(right["map"] if "map" in right else right["text"])
        same = np.shape(read) == wanted.shape
        return {"found": wanted.size, "values": float(np.abs(np.subtract(read, wanted)).max()) if same else math.inf}
    if not len(read) == len(right["scores"]) > 0:
        return {"found": len(right["scores"]), "boxes": math.inf}
    assert task.looks.scaling is not None
    scale, kind = task.looks.scaling(outputs)(outputs[k], (size[0], size[1])), KINDS.get(task.entry.split()[1], "")
    more = read.more * [*scale, 1.0] if kind == "keypoints" else read.more
    ours = _columns(kind, np.array(size), read.boxes * np.tile(scale, 2), read.scores, read.classes, more)
    theirs = _columns(kind, np.array(size), *(right.get(name) for name in ("boxes", "scores", "classes", "more")))
    apart = {}
    for name, columns in theirs.items():
        each = np.abs(columns[:, None] - ours[name])
        apart[name] = each.mean(axis=-1) if name == "masks" else each.max(axis=-1)
    nearest = np.sum(list(apart.values()), axis=0).argmin(axis=1)
    worst = {name: float(each[range(len(nearest)), nearest].max()) for name, each in apart.items()}
    return {"found": len(read), **worst, "twice": len(nearest) - len(set(nearest))}


def _columns(kind: str, sides: np.ndarray, boxes: Any, scores: Any, classes: Any, more: Any) -> dict[str, np.ndarray]:
    """The columns of detections, ``[n, columns]`` each; a turned box has an angle from 0 to a quarter turn."""
    columns = {"boxes": np.clip(boxes.reshape(-1, 2, 2), 0, sides) / sides, "scores": scores, "classes": classes}
    if kind == "angles":
        columns[kind], is_turned = more[:, 4:] % (math.pi / 2), more[:, 4:] % math.pi >= math.pi / 2
        extents = np.where(is_turned, more[:, 3:1:-1], more[:, 2:4])
        columns["boxes"] = np.concatenate([more[:, :2], extents], axis=1) / np.tile(sides, 2)
    elif kind == "keypoints":
        columns[kind] = np.concatenate([np.clip(more[..., :2], 0, sides) / sides, more[..., 2:]], -1)
    elif kind == "masks":
        columns[kind] = more > 0.5
    return {name: np.asarray(each, np.float64).reshape(len(scores), -1) for name, each in columns.items()}


def plant(path: Path, wide: float) -> None:
    """Writes the network with the pair behind the first convolution."""
    model = onnx.load(path)
    place, node = next((place, node) for place, node in enumerate(model.graph.node, 1) if node.op_type == "Conv")
    channels = next(each.dims[0] for each in model.graph.initializer if each.name == node.input[1])
    factors, (out,) = np.where(np.arange(channels) == 0, wide, 1.0)[:, None, None, None], node.output
    node.output[0] = "planted.in"
    parts = [("planted.first", "planted.in", "planted.wide", factors), (CULPRIT, "planted.wide", out, 1 / factors)]
    for name, read, written, values in reversed(parts):
        weight = (np.eye(channels)[..., None, None] * values).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weight, f"{name}.weight"))
        model.graph.node.insert(place, helper.make_node("Conv", [read, f"{name}.weight"], [written], name))
    onnx.save(model, path.with_name("planted.onnx"))


def _culprits(folder: Path, case: dict[str, Any], pictures: Sequence[int]) -> dict[str, Any]:
    """The culprits on pictures in which FP32 finds something; the target is halfway between both pairs."""
    original, case = folder / "network.onnx", case | {"head": NAMED.get(folder.name, case["head"])}
    layers = _told(["layers", original])
    nodes = [each["name"] for each in layers if each["quantizable"] and each["op_type"] in ("Conv", "Gemm", "MatMul")]
    with np.load(folder / "given.npz") as file:
        np.savez(folder / "few.npz", **{name: file[name][list(pictures)] for name in file.files})
    for step in STEPS:
        low = [*nodes[step // 2 :: step], "planted.*"]
        plant(original, 1.0)
        plain = _kept(folder, case, low)
        if plain >= KEPT:
            break
    plant(original, WIDE)
    planted = _kept(folder, case, low)
    threshold = f"{(plain + planted) / 2:.4f}"
    more = ["--threshold", threshold, "--effort", "thorough", "--explain", "none"]
    shutil.rmtree(folder / "run", ignore_errors=True)
    facts = {"low": len(low) + 1, "layers": len(nodes) + 2, "plain": plain, "planted": planted}
    return facts | {"culprits": _measured("run", folder, case, low, *more, "--output", folder / "run")["culprits"]}


def _kept(folder: Path, case: dict[str, Any], low: Sequence[str]) -> float:
    """The mean agreement of a picture with these layers in INT8."""
    return float(np.mean([value or 0.0 for value in _measured("worst", folder, case, low)["values"]]))


def _measured(command: str, folder: Path, case: dict[str, Any], low: Sequence[str], *more: str | Path) -> Any:
    words: list[str | Path] = [command, folder / "planted.onnx", "--task", case["task"]]
    words += ["--calibration", folder / "few.npz", "--calibrator", "minmax", "--engine", "onnxruntime"]
    words += [part for name in low for part in ("--only", name)] + (["--head", case["head"]] if case["head"] else [])
    return _told([*words, *more])


def _told(words: Sequence[str | Path]) -> Any:
    """The JSON document that a command of trt-bisect prints."""
    command = [Path(sys.executable).with_name("trt-bisect"), *words, "--json"]
    found = subprocess.run(command, check=False, capture_output=True, text=True)
    if found.returncode > 1:
        raise RuntimeError(f"{' '.join(map(str, words[:2]))}: {found.stderr[-500:]}")
    return json.loads(found.stdout)


def table(rows: Sequence[dict[str, Any]]) -> Table:
    kinds = ("boxes", "scores", "classes", "keypoints", "angles", "masks", "values")
    result = Table("export", "task", "found", *kinds, "INT8", "plain", "planted", "culprits", box=None)
    for row in rows:
        shown = [f"{row[kind]:.1g}" if kind in row else "" for kind in kinds]
        kept = [f"{row[name]:.3g}" if name in row else "" for name in ("low", "plain", "planted")]
        culprits = ", ".join(row.get("culprits", ()))
        result.add_row(row["export"], row["task"], str(row.get("found", row["head"])), *shown, *kept, culprits)
    return result
