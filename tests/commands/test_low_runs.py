"""Runs in FP16, BF16 and FP8: planted overflows and underflows are found by name, with nothing innocent."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.support.editions import edition
from tests.support.networks import Sketch, save
from tests.support.quantized import plain_run, plain_tensors
from tests.support.records import report_from
from trt_bisect.commands.run.run import run
from trt_bisect.errors import BadInput
from trt_bisect.model.network import load_network
from trt_bisect.model.quantizer import FP16
from trt_bisect.report.model import Report

WIDE = 8


def scalar(sketch, name, value):
    return sketch.constant(name, np.float32(value))


def power(sketch, x):
    """Squares of values up to 600, at once scaled down again."""
    x = sketch.node("Mul", [sketch.dense(x, "fc", WIDE, WIDE), scalar(sketch, "loud", 100.0)], "loud_mul")
    x = sketch.node("Pow", [x, scalar(sketch, "two", 2.0)], "square")
    x = sketch.node("Mul", [x, scalar(sketch, "quiet", 1e-4)], "quiet_mul")
    return sketch.dense(x, "out", WIDE, WIDE)


def total(sketch, x):
    """A sum of values of 20,000 each."""
    x = sketch.node("Exp", [sketch.dense(x, "fc", WIDE, WIDE)], "exp")
    x = sketch.node("Add", [x, scalar(sketch, "offset", 20000.0)], "offset_add")
    x = sketch.node("ReduceSum", [x, sketch.constant("axes", [-1], np.int64)], "total", keepdims=1)
    x = sketch.node("Mul", [x, scalar(sketch, "quiet", 1e-5)], "quiet_mul")
    return sketch.dense(sketch.node("Mul", ["x", x], "use"), "out", WIDE, WIDE)


def softmax_by_hand(sketch, x):
    """A softmax of scores up to 30 without their maximum taken off."""
    x = sketch.node("Mul", [sketch.dense(x, "fc", WIDE, WIDE), scalar(sketch, "sharp", 6.0)], "sharp_mul")
    x = sketch.node("Exp", [x], "exp")
    sums = sketch.node("ReduceSum", [x, sketch.constant("axes", [-1], np.int64)], "sums", keepdims=1)
    return sketch.dense(sketch.node("Div", [x, sums], "shares"), "out", WIDE, WIDE)


def large_weight(sketch, x):
    """A weight of 1e5 in one matrix product, with an input that makes it small again."""
    x = sketch.node("Mul", [sketch.dense(x, "fc", WIDE, WIDE), scalar(sketch, "quiet", 1e-3)], "quiet_mul")
    weight = sketch.random.normal(0, 1, (WIDE, WIDE))
    weight[2, 3] = 1e5
    x = sketch.node("MatMul", [x, sketch.constant("heavy.weight", weight)], "heavy")
    return sketch.dense(x, "out", WIDE, WIDE)


def small_epsilon(sketch, x):
    """A variance of about 1e-9 with an epsilon of 1e-8, which is zero in FP16."""
    x = sketch.dense(x, "fc", WIDE, WIDE)
    faint = sketch.node("Mul", [x, scalar(sketch, "faint", 3e-5)], "faint_mul")
    var = sketch.node("Mul", [faint, faint], "var")
    var = sketch.node("Add", [var, scalar(sketch, "epsilon", 1e-8)], "var_add")
    deviation = sketch.node("Sqrt", [var], "deviation")
    return sketch.dense(sketch.node("Div", [faint, deviation], "norm"), "out", WIDE, WIDE)


PLANTED = {
    power: {"square", "quiet_mul"},
    total: {"total", "quiet_mul"},
    softmax_by_hand: {"exp", "sums", "shares"},
    large_weight: {"heavy"},
    small_epsilon: {"var", "var_add", "deviation"},
}
"""By network the layers that make a value beyond the range, or that read it: rounded for them it is lost too."""


def drawn(draw, folder):
    """The network's file, and a file of inputs, a sample a row."""
    sketch = Sketch(4)
    network = save(sketch.model({"x": [4, WIDE]}, {draw(sketch, "x"): [4, WIDE]}, opset=17), folder)
    data = folder / "inputs.npz"
    np.savez(data, x=np.random.default_rng(7).normal(0, 1, (3, 4, WIDE)).astype(np.float32))
    return network, data


def ran(network, data, low="fp16", **options) -> Report:
    options = {"engine": "onnxruntime", "history": "none", "explain": "none", **options}
    return run(network, inputs=str(data), low=low, **options)


@pytest.fixture(scope="module")
def in_fp16(tmp_path_factory):
    """Returns the network's file, that of its inputs, and the report of a run in FP16 on a drawn network."""

    @cache
    def found(draw):
        given = drawn(draw, tmp_path_factory.mktemp("drawn"))
        return *given, ran(*given)

    return found


@pytest.mark.parametrize(
    "draw", edition([power, large_weight, small_epsilon], [*PLANTED]), ids=lambda draw: draw.__name__
)
def test_what_leaves_the_range_is_found_by_name_with_nothing_innocent(draw, in_fp16):
    _, _, report = in_fp16(draw)
    assert set(report.culprits) == PLANTED[draw]
    assert report.similarity.recipe > 0.9999 > (report.similarity.int8 or 0.0)
    assert report.exit_code == 1
    assert report.low == "fp16"
    assert "FP16" in report.summary
    assert "INT8" not in report.summary


@pytest.fixture(scope="module")
def overflowing(tmp_path_factory):
    """The network ``power``, its inputs, the report of an explained run in FP16, and its folder."""
    network, data = drawn(power, tmp_path_factory.mktemp("power"))
    folder = network.parent / "run"
    how = {"samples": 3, "trt_version": "10.3.0", "explain": "tensors"}
    return network, data, ran(network, data, output=str(folder), **how), folder


def test_an_overflow_is_told_by_layer_element_and_value(overflowing):
    network, data, report, folder = overflowing
    found = report.overflows[0]
    assert (found.layer, found.tensor, found.role, found.kind) == ("square", "square_out", "output", "overflow")
    values = [plain_tensors(network, ["square_out"], [{"x": x}])["square_out"] for x in np.load(data)["x"]]
    beyond = next(each for each in values if (np.abs(each) >= 65520).any())
    assert found.element == tuple(int(k[0]) for k in np.nonzero(np.abs(beyond) >= 65520))
    assert found.value == pytest.approx(float(beyond[found.element]), rel=5e-3)
    assert found.times == pytest.approx(found.value / 65504)
    saved = json.loads((folder / "report.json").read_text())
    assert saved["low"] == "fp16"
    assert saved["overflows"][0]["layer"] == "square"
    assert report_from(saved).overflows == report.overflows


def test_an_epsilon_that_becomes_zero_is_told(in_fp16):
    _, _, report = in_fp16(small_epsilon)
    told = {(each.layer, each.tensor): each.kind for each in report.overflows}
    assert told["var_add", "epsilon"] == "underflow"
    assert next(each.value for each in report.overflows if each.tensor == "epsilon") == np.float32(1e-8)


@pytest.mark.parametrize("draw", edition([power], [power, total, softmax_by_hand]), ids=lambda draw: draw.__name__)
def test_bf16_has_the_range_of_fp32(draw, tmp_path):
    report = ran(*drawn(draw, tmp_path), low="bf16")
    assert not report.overflows
    assert report.similarity.int8 > 0.99, "only precision is lost"


def test_the_curve_is_the_same_on_whole_engines_and_on_the_session(in_fp16):
    network, data, switch = in_fp16(power)
    whole = ran(network, data, strategy="exhaustive")
    assert switch.culprits == whole.culprits
    curves = [[row.similarity for row in report.layers] for report in (switch, whole)]
    np.testing.assert_allclose(*(np.array(curve, float) for curve in curves), atol=1e-6)


def test_fp8_is_calibrated_and_its_recipe_has_pairs_of_fp8(tmp_path):
    network, data = drawn(power, tmp_path)
    report = ran(network, data, "fp8", calibration=str(data), output=str(tmp_path / "run"))
    assert report.low == "fp8"
    assert report.ranges.tensors > 0
    assert sum(row.quantizable for row in report.layers) == 2, "the two matrix products"
    files = {path.name for path in (tmp_path / "run" / "recipe").iterdir()}
    named = {"network.qdq.onnx", "plan.json", "modelopt_nodes_to_exclude.json", "README.md"}
    assert files == {*named, "annotated.onnx"}
    model = onnx.load(tmp_path / "run/recipe/network.qdq.onnx")
    kinds = {t.data_type for t in model.graph.initializer if t.name.endswith("_zero_point")}
    assert kinds <= {onnx.TensorProto.FLOAT8E4M3FN}
    plan = json.loads((tmp_path / "run/recipe/plan.json").read_text())
    scales = [t for t in model.graph.initializer if t.name.endswith("_scale") and not t.dims]
    stored = {float(numpy_helper.to_array(tensor)) for tensor in scales}
    assert plan["scales"]
    assert set(plan["scales"].values()) <= stored, "those of the pairs in use"
    again = ran(network, data, "fp8", calibration=str(data), plan=str(tmp_path / "run"), output=str(tmp_path / "again"))
    assert json.loads((tmp_path / "again/recipe/plan.json").read_text())["scales"] == plan["scales"]
    assert again.similarity.int8 == report.similarity.recipe


def test_the_recipe_of_fp16_has_casts_and_no_cache(overflowing):
    network, data, _, folder = overflowing
    recipe = folder / "recipe"
    assert {path.name for path in recipe.iterdir()} == {
        "network.fp16.onnx", "network.onnx", "plan.json", "modelopt_nodes_to_exclude.json", "README.md",
        "polygraphy_postprocess.py", "trtexec.flags", "annotated.onnx", "tao_deploy.yaml",
        "deepstream_nvinfer.txt",
    }  # fmt: skip
    plan = json.loads((recipe / "plan.json").read_text())
    assert plan["low"] == "fp16"
    assert {n for n, p in plan["layers"].items() if p == "fp32"} == PLANTED[power]
    flags = (recipe / "trtexec.flags").read_text()
    assert "--fp16" in flags
    assert "--int8" not in flags
    assert "square:fp32" in flags
    assert "fc:fp16" in flags
    assert json.loads((recipe / "modelopt_nodes_to_exclude.json").read_text())["nodes_to_exclude"] == [
        "^square$", "^quiet_mul$",
    ]  # fmt: skip
    feeds = {"x": np.load(data)["x"][0]}
    outputs = [plain_run(path, feeds)[0] for path in (network, recipe / "network.fp16.onnx")]
    np.testing.assert_allclose(outputs[1], outputs[0], rtol=0.02, atol=0.05 * np.abs(outputs[0]).max())


def test_an_explanation_names_the_overflow(overflowing):
    _, _, report, _ = overflowing
    reasons = {advice.culprit: advice.reasons for advice in report.advice}
    assert reasons["square"][0] == "overflow"
    assert reasons["quiet_mul"][0] == "overflow"
    assert {remedy.remedy for advice in report.advice for remedy in advice.remedies} == {"FP32"}


def test_a_loaded_network_and_wrong_options(tmp_path):
    network, data = drawn(power, tmp_path)
    loaded = ran(load_network(network), data)
    assert set(loaded.culprits) == PLANTED[power]
    assert ran(load_network(network, low=FP16), data, low="int8").low == "fp16"
    for options in ({"precision": "fp16"}, {"unquantized": "int8"}, {"explain": "remedies"}):
        with pytest.raises(BadInput, match=r"(fp|FP)16"):
            ran(network, data, **options)
    with pytest.raises(BadInput, match="input"):
        run(network, low="fp16", engine="onnxruntime", history="none")
