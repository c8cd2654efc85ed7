"""Pipelines of two and three networks with a culprit planted in one of them, also one that only a loop shows.

    python -m benchmarks.pipelines
    python -m benchmarks.pipelines --only published --json > rows.json

A row is a run: the culprits, which must be the planted layer alone, and the recipe's figure, which must be that of the
function run in plain ONNX Runtime on the recipe's files.
"""

from __future__ import annotations

import json as to_json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import trt_bisect
from benchmarks.answer.judge import Outputs, infer, session, worst
from benchmarks.measure import ROOT, command_line
from benchmarks.pipelines import published
from benchmarks.pipelines.subject import Nets, Subject
from tests.support.networks import Sketch, chain, planted, residual

SAME = 1e-4
"""The recipe's files give the report's figure up to this: float sums have another order."""
GOAL = 0.9
_STEPS = 8


def gated(nets: Nets, picture: np.ndarray) -> Outputs:
    """The second network sees the picture as bright as the first one says."""
    found = nets["first"]({"x": picture})["y"]
    return {"found": found, "read": nets["second"]({"x": picture * (1.5 + np.tanh(found[0, 0]))})["y"]}


def cropped(nets: Nets, picture: np.ndarray) -> Outputs:
    """The second network sees as many parts of the picture as the first one finds."""
    found = nets["first"]({"x": picture})["y"]
    parts = [np.roll(picture, k, axis=3) for k in np.flatnonzero(found[0] > np.median(found))]
    return {"found": found, "read": np.concatenate([nets["second"]({"x": part})["y"] for part in parts])}


def in_a_row(nets: Nets, picture: np.ndarray) -> Outputs:
    """Each of three networks sees the picture as bright as the one before it says."""
    outputs = gated(nets, picture)
    third = nets["third"]({"x": picture * (1.5 + np.tanh(outputs["read"][0, 1]))})["y"]
    return {**outputs, "third": third}


def looped(nets: Nets, picture: np.ndarray) -> Outputs:
    """A state goes through the second network eight times."""
    drive = np.pad(nets["first"]({"x": picture})["y"], ((0, 0), (0, 14))).astype(np.float32)
    state = drive
    for _ in range(_STEPS):
        state = nets["second"]({"h": state, "x": drive})["next"]
    return {"state": state}


def twice(nets: Nets, digit: np.ndarray) -> Outputs:
    """Both networks see the same digit."""
    return {name: net({"data": digit})["prob"] for name, net in nets.items()}


def step(seed: int, factor: float) -> onnx.ModelProto:
    """A state that two layers rotate: the second reads one channel that is ``factor`` times as large as the others."""
    sketch, scales = Sketch(seed), np.ones(24)
    scales[seed] = factor
    turns = [np.linalg.qr(sketch.random.normal(size=(24, 24)))[0] for _ in range(2)]
    state = sketch.node("MatMul", ["h", sketch.constant("a.weight", turns[0] * scales)], "a")
    state = sketch.node("MatMul", [state, sketch.constant("b.weight", (turns[1].T / scales).T)], "b")
    drive = sketch.node("Mul", ["x", sketch.constant("some", np.float32(0.1))], "shrink")
    sketch.node("Add", [state, drive], "add", out="next")
    return sketch.model({"h": [1, 24], "x": [1, 24]}, {"next": [1, 24]})


def subjects() -> Iterator[Subject]:
    """Yields the pipelines."""
    kinds = {
        "chain": (lambda: chain(depth=4), ("conv1", "conv2")),
        "deep": (lambda: chain(depth=6), ("conv3", "conv4")),
        "residual": (lambda: residual(blocks=2), ("block0.conv1", "block0.conv2")),
    }
    for function, names in ((gated, ("first", "second")), (cropped, ("first", "second"))):
        for kind, (make, pair) in kinds.items():
            for at in names:
                networks = {name: planted(make(), pair) if name == at else chain(depth=3) for name in names}
                least = 0.999 if kind == "residual" else 0.99
                yield Subject(f"{function.__name__}, {kind}, {at}", function, networks, f"{at}/{pair[1]}", least)
    three = ("first", "second", "third")
    for at in three:
        networks = {name: planted(chain(depth=3), ("conv0", "conv1")) if name == at else chain(2) for name in three}
        yield Subject(f"in a row, {at}", in_a_row, networks, f"{at}/conv1")
    for seed, factor in ((2, 24.0), (5, 30.0), (7, 40.0), (11, 50.0)):
        networks = {"first": chain(depth=2), "second": step(seed, factor)}
        yield Subject(f"loop of {_STEPS} steps, {factor:g}", looped, networks, "second/b")
    lenet = {name: onnx.load(ROOT / "samples" / "lenet" / f"{name}.onnx") for name in ("lenet", "lenet_planted")}
    yield Subject("LeNet twice", twice, lenet, "lenet_planted/ip2", samples=digits)


def digits() -> list[np.ndarray]:
    """Returns the digits of LeNet."""
    with np.load(ROOT / "samples" / "lenet" / "calibration.npz") as data:
        return [digit[None] for digit in data["data"][::10]]


def nets_of(files: Mapping[str, Path]) -> Nets:
    """Returns networks in ONNX Runtime, without its INT8 kernels."""
    return {name: partial(infer, session(file, "float")) for name, file in files.items()}


def row_of(subject: Subject, folder: Path) -> dict[str, Any]:
    """Runs a pipeline; returns its row."""
    files = {name: folder / f"{name}.onnx" for name in subject.networks}
    for name, model in subject.networks.items():
        onnx.save(model, files[name])
    how: dict[str, Any] = {"engine": "onnxruntime", "effort": "quick", "explain": "none", "as_is": True}
    how |= {"calibrator": subject.calibrator, "threshold": subject.threshold, "high": subject.high}
    how |= {"output": folder / "run", "history": "none"}
    report = trt_bisect.run_pipeline(subject.function, networks=files, inputs=subject.samples(), **how)
    floats = nets_of(files)
    recipe = nets_of({name: folder / "run" / "recipe" / name / "network.qdq.onnx" for name in files})
    figure = min(worst(subject.function(floats, x), subject.function(recipe, x)) for x in subject.samples())
    reported = report.similarity.recipe
    return {
        "pipeline": subject.name,
        "networks": {row.name: row.similarity for row in report.networks},
        "int8": report.similarity.int8,
        "recipe": reported,
        "in_onnxruntime": figure,
        "same": reported is not None and abs(reported - figure) <= SAME,
        "culprits": list(report.culprits),
        "right": report.culprits == (subject.culprit,),
        "seconds": report.seconds.total,
    }


def measure(*, only: str = "", json: bool = False) -> int:
    """Runs the pipelines; returns 1 if too few culprits or figures are right.

    Args:
        only: Run the pipelines whose name begins so.
        json: Print the rows as JSON.
    """
    rows, pipelines = [], [*subjects()]
    if not only or only.startswith(published.NAME):
        pipelines += published.subjects()
    for subject in pipelines:
        if subject.name.startswith(only):
            with tempfile.TemporaryDirectory() as folder:
                rows.append(row_of(subject, Path(folder)))
            print(to_json.dumps(rows[-1]), file=sys.stderr, flush=True)
    right, same = (sum(row[key] for row in rows) for key in ("right", "same"))
    if json:
        print(to_json.dumps(rows, indent=1))
    print(f"{right} of {len(rows)} culprits are right, {same} figures are those of ONNX Runtime", file=sys.stderr)
    return int(min(right, same) < GOAL * len(rows))


if __name__ == "__main__":
    sys.exit(command_line(__doc__, measure))
