"""Networks that lose less in INT8: the recipe's file passes outside, and its plan is not for the user's file."""

from __future__ import annotations

import json

import numpy as np
import onnxruntime as ort
import pytest

import trt_bisect
from benchmarks.networks import Sketch
from tests.support import networks
from trt_bisect.errors import BadInput

THRESHOLD = 0.999


def loud(blocks):
    """Blocks of a normalization and two MatMuls, of which each normalization makes one channel 300 times as large."""
    sketch = Sketch(5)
    factors = np.ones(24)
    factors[3] = 300.0
    x = sketch.dense("x", "first", 24, 24)
    for block in range(blocks):
        name = f"block{block}"
        scale = sketch.constant(f"{name}.scale", factors)
        y = sketch.node(
            "LayerNormalization", [x, scale, sketch.constant(f"{name}.shift", 0.1 * factors)], name, axis=-1
        )
        weight = sketch.random.normal(0, 0.2, (24, 24)) / factors[:, None]
        y = sketch.node(
            "Relu",
            [sketch.node("MatMul", [y, sketch.constant(f"{name}.up", weight)], f"{name}.up_mul")],
            f"{name}.relu",
        )
        x = sketch.node("Add", [sketch.dense(y, f"{name}.down", 24, 24), x], f"{name}.add")
    sketch.nodes[-1].output[0] = "y"
    return sketch.model(["n", 6, 24], ["n", 6, 24])


@pytest.fixture(scope="module")
def data():
    return np.random.default_rng(2).normal(0, 1, (24, 6, 24)).astype(np.float32)


@pytest.fixture(scope="module")
def dear(tmp_path_factory, data):
    """The run on a network of which six layers lose; the network's file and the run folder."""
    folder = tmp_path_factory.mktemp("dear")
    path = networks.save(loud(6), folder)
    options = {"threshold": THRESHOLD, "explain": "none", "engine": "onnxruntime", "holdout": 0}
    return trt_bisect.run(path, {"x": data}, output=folder / "run", **options), path, folder / "run"


def worst_cosine(one, two, data):
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    sessions = [ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]) for path in (one, two)]
    cosines = []
    for sample in data:
        a, b = (session.run(None, {"x": sample[None]})[0].ravel().astype(np.float64) for session in sessions)
        cosines.append(a @ b / np.sqrt((a @ a) * (b @ b)))
    return min(cosines)


def test_the_recipes_file_passes_with_every_layer_in_int8(dear, data):
    report, path, run = dear
    assert report.answer.cost == 0.0
    assert worst_cosine(path, run / "recipe" / "network.qdq.onnx", data) >= THRESHOLD
    (note,) = [note.text for note in report.notes if "rounded for the outputs" in note.text]
    assert "channels of 12 tensors smoothed" in note, "what each normalization makes, and each Relu"
    assert "as it is" in note


def test_the_recipes_float_file_computes_what_the_users_does(dear, data):
    _, path, run = dear
    assert worst_cosine(path, run / "recipe" / "network.onnx", data) > 0.9999


def test_a_plan_is_refused_on_the_users_file(dear, data):
    _, path, run = dear
    assert json.loads((run / "recipe" / "plan.json").read_text())["model"] == "network.onnx"
    with pytest.raises(BadInput, match="its channels or weights are not those"):
        trt_bisect.run(path, {"x": data}, plan=run, explain="none")
    again = trt_bisect.run(run / "recipe" / "network.onnx", {"x": data}, plan=run, threshold=THRESHOLD, explain="none")
    assert again.verdict.startswith("passes")


def test_a_recipe_of_few_layers_names_them(tmp_path, data):
    path = networks.save(loud(2), tmp_path)
    report = trt_bisect.run(path, {"x": data}, threshold=THRESHOLD, explain="none", engine="onnxruntime")
    assert {"block0.up_mul", "block1.up_mul"} <= set(report.culprits)
    assert not [note for note in report.notes if "smoothed" in note.text]
