"""FP32 itself: random outputs, values that are not finite, and scores that stay near 0 are said first."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import trt_bisect
from tests.support import networks
from tests.support.quantized import plain_session
from trt_bisect.analyzer.compare_output import OutputJudge
from trt_bisect.analyzer.fp32_itself import data_warnings, started_at
from trt_bisect.analyzer.metrics import BUILT_IN
from trt_bisect.errors import NothingMeasured
from trt_bisect.model.network import load_network

HOW = {"engine": "onnxruntime", "explain": "none", "calibrator": "minmax", "effort": "quick"}
MEMORY = 1 << 28


def network(folder, nodes, *, size=4, **constants):
    """A network of ``x``, ``[1, 8]``; its constants are weights of it."""
    random = np.random.default_rng(0)
    weights = {"w": random.normal(size=(8, 8)), "v": random.normal(size=(8, size)), **constants}
    arrays = {name: np.asarray(value) if value is True else np.asarray(value, "f") for name, value in weights.items()}
    tensors = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    return networks.save(networks.model_of(nodes, {"x": [1, 8]}, {"y": [1, size]}, tensors), folder)


def node(op_type, inputs, output, **attributes):
    return helper.make_node(op_type, inputs, [output], output, **attributes)


def normalising(folder):
    """0 / 0 for an input of zeros."""
    nodes = [
        node("MatMul", ["x", "w"], "feature"),
        node("ReduceL2", ["feature"], "norm", axes=[1]),
        node("Div", ["feature", "norm"], "unit"),
        node("MatMul", ["unit", "v"], "y"),
    ]
    return network(folder, nodes)


def samples(count=24, *, zero=()):
    x = networks.normal(1, count, 8)
    x[list(zero)] = 0.0
    return x


def test_inputs_on_which_fp32_is_not_finite_are_named_with_the_layer(tmp_path):
    path, x = normalising(tmp_path), samples(12, zero=[5])
    report = trt_bisect.run(path, {"x": x}, inputs={"x": x}, **HOW)
    first = report.lines[0]
    assert first.kind == "data"
    assert "'unit' (Div)" in first.text
    assert "1 of 12 inputs" in first.text
    assert report.exit_code == 1
    assert report.next.kind == "data"
    assert report.by_input.int8.inputs == 11
    assert report.by_input.int8.values[5] is None
    assert "almost zero" not in "".join(note.text for note in report.notes)


def test_worst_leaves_them_out_and_says_so(tmp_path):
    path, x = normalising(tmp_path), samples(zero=[5, 9])
    x[9] *= -1
    report = trt_bisect.worst(path, calibration={"x": x}, dataset={"x": x}, engine="onnxruntime")
    assert report.broken == (5, 9)
    assert report.faint == ()
    assert "2 of 24 samples" in report.data
    assert "'unit' (Div)" in report.data
    assert report.distribution.count == 22
    assert not {5, 9} & set(report.places)


def test_the_only_input_is_not_almost_zero(tmp_path):
    path = normalising(tmp_path)
    with pytest.raises(NothingMeasured, match="'unit'"):
        trt_bisect.run(path, {"x": samples()}, inputs={"x": samples(1, zero=[0])}, **HOW)


def test_a_mask_of_infinite_values_is_no_start(tmp_path):
    nodes = [
        node("Add", ["x", "mask"], "masked"),
        node("ReduceSum", ["x"], "sum", keepdims=1),
        node("Log", ["sum"], "log"),
        node("Softmax", ["masked"], "shares"),
        node("Mul", ["shares", "log"], "scaled"),
        node("MatMul", ["scaled", "v"], "y"),
    ]
    read = load_network(network(tmp_path, nodes, mask=np.array([0.0] * 7 + [-np.inf])))
    good, bad = ({"x": np.full((1, 8), sign, np.float32)} for sign in (1.0, -1.0))
    assert "'log' (Log)" in started_at(read, bad, [good], MEMORY)[0]
    nan = {"x": np.full((1, 8), np.nan, np.float32)}
    assert "input 'x' has them already" in started_at(read, nan, [good], MEMORY)[0]


def test_nan_that_an_argmax_hides_is_told(tmp_path):
    sketch = networks.Sketch()
    logits = sketch.dense(sketch.node("Sqrt", ["x"], "root"), "logits", 8, 5)
    sketch.node("ArgMax", [logits], "best", "y", axis=1, keepdims=0)
    model = sketch.model({"x": [1, 8]}, {"y": [1]})
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    path = networks.save(model, tmp_path)
    x = np.full((4, 1, 8), 0.5, np.float32)
    x[2, 0, 3] = -1.0
    references = [{"y": plain_session(path).run(None, {"x": sample})[0]} for sample in x]
    assert all(outputs["y"].dtype == np.int64 for outputs in references)
    read = load_network(path)
    (told,) = data_warnings(read, ["y"], [{"x": sample} for sample in x], references, "abcd", MEMORY)
    assert (
        "NaN or infinite values in 'logits_bias_out' on 1 of 4 inputs ('c'); they start at layer 'root' (Sqrt)" in told
    )
    good = [{"x": np.abs(sample)} for sample in x]
    assert not [*data_warnings(read, ["y"], good, references, "abcd", MEMORY)]


def test_a_mask_that_a_good_input_lacks_is_no_start(tmp_path):
    nodes = [
        node("Greater", ["x", "zero"], "seen"),
        node("Where", ["seen", "x", "low"], "masked"),
        node("Softmax", ["masked"], "shares"),
        node("MatMul", ["shares", "v"], "y"),
    ]
    read = load_network(network(tmp_path, nodes, zero=0.0, low=-np.inf))
    seen, half, nothing = ({"x": np.array([signs], np.float32)} for signs in ([1] * 8, [1, -1] * 4, [-1] * 8))
    assert "'masked' (Where)" in started_at(read, nothing, [seen], MEMORY)[0]
    assert "'shares' (Softmax)" in started_at(read, nothing, [seen, half], MEMORY)[0]


@pytest.mark.parametrize("kind", ["log", "constant", "input"])
def test_infinite_values_on_some_inputs_are_told_unless_they_are_a_mask(tmp_path, kind):
    makers = {
        "log": [node("Relu", ["x"], "positive"), node("Log", ["positive"], "y")],
        "constant": [node("Greater", ["x", "one"], "hidden"), node("Where", ["hidden", "low", "x"], "y")],
        "input": [node("Add", ["x", "one"], "y")],
    }
    path = network(tmp_path, makers[kind], size=8, one=1.0, low=-np.inf)
    x = np.full((4, 1, 8), 0.5, np.float32)
    x[2, 0, 3] = {"log": -1.0, "constant": 2.0, "input": -np.inf}[kind]
    session = plain_session(path)
    references = [{"y": session.run(None, {"x": sample})[0]} for sample in x]
    assert [int(np.isinf(outputs["y"]).sum()) for outputs in references] == [0, 0, 1, 0]
    feeds = [{"x": sample} for sample in x]
    told = [*data_warnings(load_network(path), ["y"], feeds, references, "abcd", MEMORY)]
    assert len(told) == (kind == "log")
    assert all("1 of 4 inputs ('c'); they start at layer 'y' (Log)" in text for text in told)
    everywhere = [references[2]] * 4
    assert not [*data_warnings(load_network(path), ["y"], [feeds[2]] * 4, everywhere, "abcd", MEMORY)]


@pytest.mark.parametrize("kind", ["noise", "dropout"])
def test_an_output_that_is_random_is_said_first(tmp_path, kind):
    added = {
        "noise": [node("RandomNormalLike", ["feature"], "noise"), node("Add", ["feature", "noise"], "spoiled")],
        "dropout": [node("Dropout", ["feature", "ratio", "training"], "spoiled")],
    }
    nodes = [node("MatMul", ["x", "w"], "feature"), *added[kind], node("MatMul", ["spoiled", "v"], "y")]
    path, x = network(tmp_path, nodes, ratio=0.5, training=True), samples()
    report = trt_bisect.run(path, {"x": x}, inputs={"x": x}, **HOW)
    first = report.lines[0]
    assert first.kind == "random"
    assert f"'{'noise' if kind == 'noise' else 'spoiled'}'" in first.text
    assert report.exit_code == 1
    assert report.next.kind == "another file"
    assert "float noise" not in "".join(note.text for note in report.notes)


def test_a_single_score_near_0_is_judged_by_its_absolute_error():
    fp32, plan = [np.array([[score]]) for score in (1e-5, 0.9)], [np.array([[score]]) for score in (1.3e-4, 0.891)]
    judge = OutputJudge(fp32, BUILT_IN)
    found = judge.figures(plan).inputs
    assert found["cosine"] == pytest.approx([1 - 1.2e-4 / 0.05, 1 - 0.009 / 0.9])
    assert found["max_rel"] == pytest.approx([1.2e-4 / 0.05, 0.01])
    # A false alarm beside a score that is almost zero counts.
    assert judge.figures([np.array([[0.9]]), fp32[1]]).values["cosine"] < 0.1
    # A number that is no score keeps its relative error.
    numbers = OutputJudge([np.array([[1e-5]]), np.array([[-3.0]])], BUILT_IN)
    assert numbers.at(0, np.array([[9e-6]])).values["cosine"] == pytest.approx(0.9)


def test_a_score_that_no_input_raises_is_a_doubt_on_the_data(tmp_path):
    nodes = [
        node("MatMul", ["x", "w"], "feature"),
        node("MatMul", ["feature", "v"], "sum"),
        node("Add", ["sum", "bias"], "logit"),
        node("Sigmoid", ["logit"], "y"),
    ]
    path, x = network(tmp_path, nodes, size=1, bias=[-30.0]), samples() / 4
    report = trt_bisect.run(path, {"x": x}, inputs={"x": x}, **HOW)
    assert "No input raises the score 'y'" in report.lines[0].text
    assert report.verdict == "passes with doubts"
    session = plain_session(path)
    scores = [session.run(None, {"x": sample[None]})[0].item() for sample in x]
    figures = report.outputs.int8["y"]
    assert figures["largest_score"] == pytest.approx(max(scores))
    (line,) = (line for line in report.lines if line.kind == "scores")
    assert f"by at most {figures['max_abs']:.1g}" in line.text
    high = [{"y": np.array([[score]], np.float32)} for score in (1e-6, 0.3)]
    labels, feeds = ("a", "b"), networks.feeds(x[:2])
    read = load_network(path)
    assert not [*data_warnings(read, ["y"], feeds, high, labels, MEMORY)]
