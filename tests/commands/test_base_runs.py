"""Runs on a base in FP16: the recipe has low, base and raised layers, and its files say so."""

import json

import numpy as np
import pytest

import trt_bisect
from tests.support import networks
from tests.support.records import kinds, texts
from trt_bisect.report.summary import BASE

CULPRIT = "block1.conv2"
OPTIONS = {"engine": "onnxruntime", "calibrator": "minmax", "metric": "sqnr", "explain": "none", "history": "none"}


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """A residual network with one culprit, and its samples."""
    folder = tmp_path_factory.mktemp("base")
    return networks.given(networks.planted(networks.residual(blocks=2), ("block1.conv1", CULPRIT)), folder)


RAISED = {"base": "fp16", "precision": "fp32", "trt_version": "10.3.0"}


@pytest.fixture(scope="module")
def raised(planted, tmp_path_factory):
    folder = tmp_path_factory.mktemp("raised") / "run"
    path, samples = planted
    return folder, trt_bisect.run(path, samples, **RAISED, output=folder, **OPTIONS)


def test_the_culprit_is_raised_and_the_rest_is_in_the_base(raised):
    folder, report = raised
    assert report.culprits == (CULPRIT,)
    rows = {row.name: row for row in report.layers}
    assert rows[CULPRIT].recipe == "fp32"
    assert {row.recipe for row in report.layers if not row.quantizable} == {"fp16"}
    assert {row.recipe for row in report.layers if row.quantizable and row.name != CULPRIT} == {"int8"}
    record = json.loads((folder / "recipe/plan.json").read_text())
    assert (record["high"], record["layers"][CULPRIT]) == ("fp16", "fp32")
    assert set(record["layers"].values()) == {"int8", "fp32"}
    flags = (folder / "recipe/trtexec.flags").read_text()
    assert "--fp16" in flags
    assert f"{CULPRIT}:fp32" in flags
    assert report.made_of["base"] == "fp16"
    assert report.precision == "fp32"


def test_the_recipe_is_a_plan_for_the_same_base(raised, planted, tmp_path):
    folder, report = raised
    path, samples = planted
    same = trt_bisect.run(path, samples, base="fp16", plan=folder, **OPTIONS)
    assert same.similarity.int8 == pytest.approx(report.similarity.recipe, abs=1e-6)
    with pytest.raises(trt_bisect.errors.BadInput, match='base="fp16"'):
        trt_bisect.run(path, samples, plan=folder, **OPTIONS)
    found = trt_bisect.compare(path, samples, recipe=folder, output=tmp_path / "compared")
    by_layer = {row.origin.layer: row.origin for row in found.tensors}
    assert by_layer[CULPRIT].int8_op_type == by_layer[CULPRIT].op_type


def test_sensitivity_and_worst_stand_on_the_base(planted):
    path, samples = planted
    how = {"engine": "onnxruntime", "calibrator": "minmax", "metric": "mse"}
    found = trt_bisect.sensitivity(path, samples, samples, base="fp16", precision="fp32", **how)
    assert found.ops[0].op_name == CULPRIT
    halves = trt_bisect.sensitivity(path, samples, samples, **how)
    least = {op.op_name: op.loss for op in found.ops if op.sensitive_type == "both"}
    assert any(least[op.op_name] != op.loss for op in halves.ops if op.sensitive_type == "both")
    ranked = trt_bisect.worst(path, calibration=samples, dataset=samples, engine="onnxruntime", base="fp16")
    assert len(ranked.values) == len(samples["x"])


def test_a_base_that_overflows_is_told_as_such(tmp_path):
    """A layer that only follows makes values of 1e5 and more: INT8 is not to blame."""
    sketch = networks.Sketch(1)
    x = sketch.node("Mul", [sketch.dense("x", "fc", 8, 8), sketch.constant("loud", np.float32(1e5))], "loud_mul")
    x = sketch.node("Mul", [x, sketch.constant("quiet", np.float32(1e-5))], "quiet_mul")
    path = networks.save(sketch.model({"x": [4, 8]}, {sketch.dense(x, "out", 8, 8): [4, 8]}), tmp_path)
    data = [{"x": each} for each in networks.normal(0, 3, 4, 8)]
    options = {**OPTIONS, "metric": "cosine"}
    report = trt_bisect.run(path, data, base="fp16", precision="fp32", output=tmp_path / "run", **options)
    assert not report.recipe.meets
    assert BASE in kinds(report.lines)
    assert any("'loud_mul' (Mul) overflows FP16" in note for note in texts(report.notes))
    assert "--low fp16" in report.next.command, "the layers are not found by searching INT8 further"
    assert "--precision fp32 --high" in report.next.what
    assert "--base" not in report.next.command
    assert "--effort" not in report.next.command
    raised = trt_bisect.run(path, data, base="fp16", precision="fp32", high=["*_mul"], **options)
    assert BASE not in kinds(raised.lines)
    assert raised.similarity.int8 > 0.99


def test_the_base_is_judged_on_all_inputs_where_the_worst_in_int8_is_another(tmp_path):
    """On input 5 the square is 0 in FP16, and its logarithm infinite; INT8 bounds what it reads."""
    sketch = networks.Sketch(1)
    x = sketch.node("Mul", ["x", "x"], "square")
    x = sketch.node("Log", [sketch.node("Add", [x, sketch.constant("least", 1e-10)], "floor")], "log")
    sketch.pooled_classes(sketch.conv(x, "conv1", 3, 8), 8)
    path, data = networks.given(sketch.model(["n", 3, 16, 16], ["n", 10]), tmp_path, 12)
    samples = np.sign(data["x"]) * np.maximum(np.abs(data["x"]), 0.3)
    samples[5, 0, :4] = 1e-4
    wanted = {"threshold": 0.9999, "validation": 0.0, "base": "fp16", "explain": "none", "calibrator": "minmax"}
    report = trt_bisect.run(path, {"x": samples}, engine="onnxruntime", **wanted)
    assert report.by_input.int8.worst != 5
    assert BASE in kinds(report.lines)
    assert report.next.what.startswith("find the layers that FP16 cannot hold")
    assert "'floor' (Add) underflows FP16: its weight 'least' is 1e-10 and becomes zero" in " ".join(
        texts(report.notes)
    )
