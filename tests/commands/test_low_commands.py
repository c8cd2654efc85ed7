"""Goals of runs and the other commands in FP16, BF16 and FP8: sensitivity, worst, compare and regress."""

import json

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

import trt_bisect
from tests.commands.test_low_runs import drawn, power, small_epsilon
from tests.model.test_low_precisions import rounded_by
from tests.support.goal_cases import kept_high, named_points
from tests.support.quantized import plain_run
from trt_bisect.errors import BadInput

OPTIONS = {"engine": "onnxruntime", "history": "none"}


@pytest.fixture(scope="module")
def loud(tmp_path_factory):
    """The network ``power`` and a file of its inputs."""
    network, data = drawn(power, tmp_path_factory.mktemp("power"))
    return network, str(data)


def fp16(values):
    return rounded_by(np.float16, values)


def tensors_in_fp16(network, x):
    """Every tensor of a network of MatMul, Add, Mul and Pow, each operator's inputs and output rounded to FP16."""
    model = onnx.load(network)
    known = {"x": x} | {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    for node in model.graph.node:
        (out,) = ReferenceEvaluator(node).run(None, {name: fp16(known[name]) for name in node.input})
        known[node.output[0]] = fp16(out)
    return known


def test_the_front_finds_the_layers_that_overflow_and_counts_from_all_fp16(loud):
    network, data = loud
    given = {"low": "fp16", "effort": "thorough", "front": True, "explain": "none"}
    found = trt_bisect.run(network, inputs=data, **given, **OPTIONS)
    assert kept_high(found) == {"square": "fp32", "quiet_mul": "fp32"}
    assert found.recipe.meets
    assert found.recipe.added == found.recipe.untested == ()
    named = named_points(found)
    assert named["all FP16"].cost == 0.0
    assert named["all high"].cost == pytest.approx(1.0)
    assert len(named["all high"].high) == 7
    # by multiply-adds: two products of 4x8x8, and five layers of 4x8 values
    assert found.answer.cost == pytest.approx(2 * 32 / (2 * 256 + 5 * 32))
    assert found.low == "fp16"
    assert "of FP16's speedup over FP32 (by multiply-adds)" in found.summary
    assert "INT8" not in found.summary


def test_sensitivity_gives_each_layer_alone_its_loss_in_bf16(loud):
    network, data = loud
    found = trt_bisect.sensitivity(network, inputs=data, low="bf16", metric="mse", engine="onnxruntime")
    assert {op.sensitive_type for op in found.ops} == {"both"}
    assert found.low == "bf16"
    loss = {op.op_name: op.loss for op in found.ops}
    assert len(loss) == 7

    weights = {t.name: numpy_helper.to_array(t) for t in onnx.load(network).graph.initializer}
    samples = np.load(data)["x"]
    worst = 0.0
    for x in samples:  # the last layer alone adds the bias to a product, both rounded
        (exact,) = plain_run(network, {"x": x})
        product = exact - weights["out.bias"]
        product, bias = (rounded_by(ml_dtypes.bfloat16, values) for values in (product, weights["out.bias"]))
        found_out = rounded_by(ml_dtypes.bfloat16, product + bias)
        worst = max(worst, float(np.mean((found_out.astype(np.float64) - exact) ** 2)))
    assert loss["out_bias"] == pytest.approx(worst, rel=0.05)


def test_an_infinite_loss_has_an_infinite_gain_or_none(loud):
    network, data = loud
    found = trt_bisect.sensitivity(network, inputs=data, low="fp16", engine="onnxruntime")
    by_name = {op.op_name: op for op in found.ops}
    assert by_name["square"].loss == np.inf
    assert all(op.alone is None for op in found.ops), "two layers overflow, so that no single one restores the network"


def test_worst_ranks_the_inputs_by_their_overflow(tmp_path):
    network, _ = drawn(power, tmp_path)
    random = np.random.default_rng(3)
    samples = random.normal(0, 0.2, (6, 4, 8)).astype(np.float32)
    samples[4] *= 40
    report = trt_bisect.worst(network, dataset=[{"x": x} for x in samples], low="fp16", engine="onnxruntime")
    assert report.places[0] == 4
    assert report.values[4] is None, "it overflows"
    assert all(value > 0.9999 for place, value in enumerate(report.values) if place != 4)
    assert report.threshold == 0.9999
    report.save(tmp_path / "worst")
    assert trt_bisect.report.losses.WorstReport.load(tmp_path / "worst").low == "fp16"


def test_compare_shows_every_tensor_as_fp16_makes_it(loud, tmp_path):
    network, data = loud
    x = np.load(data)["x"][:1] * np.float32(0.2)
    found = trt_bisect.compare(network, inputs=[{"x": x[0]}], low="fp16", output=str(tmp_path / "out"))
    low = tensors_in_fp16(network, x[0])
    for row in found.tensors:
        values = low[row.origin.tensor]
        assert row.int8.max == pytest.approx(float(values.max()), rel=1e-3), row.origin.tensor
    assert {row.quantized_dtype for row in found.tensors[:-1]} == {"float16"}
    weight = next(row for row in found.weights if row.origin.tensor == "fc.weight")
    values = numpy_helper.to_array(next(t for t in onnx.load(network).graph.initializer if t.name == "fc.weight"))
    assert weight.figures.mse == pytest.approx(float(np.mean((fp16(values).astype(np.float64) - values) ** 2)))
    assert json.loads((tmp_path / "out/compare.json").read_text())["low"] == "fp16"


def test_compare_takes_the_recipe_of_a_run_of_its_own_precision_only(loud, tmp_path):
    network, data = loud
    run = tmp_path / "run"
    trt_bisect.run(network, inputs=data, low="fp16", output=str(run), explain="none", **OPTIONS)
    found = trt_bisect.compare(network, inputs=data, low="fp16", recipe=str(run))
    assert all(row.int8.nonfinite == 0 for row in found.tensors)
    assert {row.origin.layer for row in found.tensors if row.origin.int8_op_type == row.origin.op_type} - {""} == {
        "square", "quiet_mul",
    }  # fmt: skip
    with pytest.raises(BadInput, match="FP16"):
        trt_bisect.compare(network, calibration=data, recipe=str(run))


def test_compare_finds_the_epsilon_that_becomes_zero(tmp_path):
    network, data = drawn(small_epsilon, tmp_path)
    found = trt_bisect.compare(network, inputs=data, low="fp16")
    told = {(each.layers, each.tensor) for each in found.advice}
    assert (("var_add",), "epsilon") in told


def test_fp8_is_measured_by_all_of_them(loud):
    network, data = loud
    given = {"calibration": data, "low": "fp8"}
    mixed = {"precision": "mixed", "threshold": 0.99999, "explain": "none"}
    report = trt_bisect.run(network, inputs=data, **mixed, **given, **OPTIONS)
    assert set(report.recipe.high) <= {"fc", "out"}
    found = trt_bisect.sensitivity(network, inputs=data, engine="onnxruntime", **given)
    assert {op.op_name for op in found.ops} == {"fc", "out"}
    worst = trt_bisect.worst(network, dataset=data, engine="onnxruntime", **given)
    assert len(worst.values) == 3
    compared = trt_bisect.compare(network, **given)
    assert {row.quantized_dtype for row in compared.weights} == {"float8_e4m3fn"}
