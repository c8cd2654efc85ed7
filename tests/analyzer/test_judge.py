"""Metrics by hand, and what the judge makes of odd outputs."""

import math

import numpy as np
import pytest
from onnx import helper

import trt_bisect
from tests.support import networks
from tests.support.records import texts
from trt_bisect import BadInput, find_metric, similarity
from trt_bisect.analyzer.judge import compare_arrays, make_rule, nonfinite_in_reference
from trt_bisect.analyzer.metrics import BUILT_IN, EXACT_SQNR
from trt_bisect.evaluator.trial import MEASURED, NOT_FINITE, OutputFigures, Trial

MINMAX = {"engine": "onnxruntime", "calibrator": "minmax"}
COSINE = make_rule(BUILT_IN["cosine"], None)
R, G = np.array([[3.0, 4.0]]), np.array([[4.0, 3.0]])


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_an_output_of_several_parts_is_the_output_as_a_whole(kind, random):
    r = random.normal(3, 1, (1, 5, 300, 290)).astype(kind)
    o = (r + random.normal(0, 0.1, r.shape)).astype(kind)
    found = compare_arrays([r], [o], BUILT_IN).values
    r, o = r.astype(np.float64), o.astype(np.float64)
    noise, least = np.sum((r - o) ** 2), 1e-6 * np.abs(r).max()
    p, q = (np.exp(x) / np.exp(x).sum(axis=1, keepdims=True) for x in (r, o))
    expected = {
        "cosine": np.sum(r * o) / np.linalg.norm(r) / np.linalg.norm(o),
        "mse": noise / r.size,
        "l1": np.mean(np.abs(r - o)),
        "sqnr": 10 * np.log10(np.sum(r**2) / noise),
        "centered_sqnr": 10 * np.log10(r.var() * r.size / noise),
        "max_abs": np.abs(r - o).max(),
        "max_rel": np.max(np.abs(r - o) / np.maximum(np.abs(r), least)),
        "top1": np.mean(r.argmax(axis=1) == o.argmax(axis=1)),
        "kl": np.mean(np.sum(p * np.log(p / q), axis=1)),
    }
    assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("name", BUILT_IN)
def test_equal_outputs_are_perfect_and_lose_nothing(name):
    value = similarity(R, R, name)
    assert value == BUILT_IN[name].perfect
    assert BUILT_IN[name].loss(value) == 0.0


def test_zero_vectors():
    zero = np.zeros(3)
    assert similarity(zero, zero) == 1.0
    assert similarity(zero, np.ones(3)) == 0.0
    assert similarity(zero, np.ones(3), "sqnr") == -EXACT_SQNR


def test_a_function_of_the_user():
    def hits(reference, output):
        return 100.0 * np.mean(reference.argmax(-1) == output.argmax(-1))

    metric = find_metric(hits).knowing_perfect(R)
    rule = make_rule(metric, 99.0)
    assert rule.budget == 1.0
    assert metric.loss(metric.function(R, G)) == 100.0
    assert similarity(R, G, hits) == 0.0
    with pytest.raises(BadInput, match="threshold"):
        make_rule(metric, None)
    with pytest.raises(BadInput, match="failed: TypeError"):
        similarity(R, G, lambda reference, output: [reference, output])
    for name in ("top1", "sqnr", "accuracy"):  # the names of built-in figures
        hits.__name__ = name
        assert find_metric(hits).name == f"{__name__}:{name}"
        assert similarity(R, R, hits) == 100.0


def figures(reference, output):
    return compare_arrays([np.asarray(reference)], [np.asarray(output)], BUILT_IN)


def test_nan_where_the_reference_has_none_is_an_outcome():
    found = figures([1.0, 2.0], [1.0, np.nan])
    assert not found.finite
    assert COSINE.loss(Trial("", NOT_FINITE, {"y": found})) == math.inf


def test_nan_in_the_reference_is_left_out_and_said():
    found = figures([1.0, np.nan, 2.0, np.inf], [1.0, 5.0, 2.0, 7.0])
    assert found.finite
    assert found.values["cosine"] == 1.0
    said = nonfinite_in_reference([{"a": np.array([1.0]), "b": np.array([np.nan, 1.0])}])
    assert list(said) == ["b"]
    assert "(1 of 1 inputs)" in said["b"]


def test_outputs_of_another_shape_are_compared_where_both_have_values():
    found = figures(np.ones((1, 5, 2)), np.ones((1, 3, 2)))
    assert found.values["cosine"] == 1.0
    assert "shape [1, 3, 2] instead of [1, 5, 2]" in found.note
    nothing = figures(np.ones((0, 2)), np.ones((3, 2)))
    assert COSINE.loss(Trial("", MEASURED, {"y": nothing})) == 1.0  # three rows of three are not FP32's
    assert figures(np.ones((0, 2)), np.ones((0, 2))).values["cosine"] == 1.0


def test_the_worst_output_decides_and_outputs_can_be_chosen():
    trial = Trial("", MEASURED, {"a": OutputFigures({"cosine": 0.9}), "b": OutputFigures({"cosine": 0.999})})
    assert COSINE.similarity(trial) == 0.9
    assert make_rule(BUILT_IN["cosine"], None, outputs=["b"]).similarity(trial) == 0.999


def test_a_reference_of_nothing_but_nan_measures_nothing(tmp_path):
    model = networks.chain(depth=1)
    model.graph.node[-1].output[0] = "before"
    negative = [helper.make_node("Abs", ["before"], ["abs"]), helper.make_node("Neg", ["abs"], ["neg"])]
    model.graph.node.extend([*negative, helper.make_node("Sqrt", ["neg"], ["y"])])
    with pytest.raises(trt_bisect.NothingMeasured, match="only NaN") as caught:
        trt_bisect.run(*networks.given(model, tmp_path), engine="onnxruntime")
    assert caught.value.exit_code == 3


def test_a_mask_is_named_and_its_reader_stays_high(tmp_path):
    sketch = networks.Sketch(12)
    scores = sketch.dense("x", "scores", 8, 8)
    masked = sketch.node("Add", [scores, "mask"], "masked")
    sketch.node("Softmax", [masked], "softmax", out="y", axis=-1)
    path = networks.save(sketch.model({"x": ["n", 4, 8], "mask": ["n", 1, 8]}, {"y": ["n", 4, 8]}), tmp_path)
    mask = np.zeros((4, 1, 8), np.float32)
    mask[:, :, 5:] = -3e38
    data = {"x": networks.normal(0, 4, 4, 8), "mask": mask}
    report = trt_bisect.run(path, data, **MINMAX)
    row = next(row for row in report.layers if row.name == "masked")
    assert not row.quantizable
    assert "mask" in row.why_not
    assert "mask" in report.ranges.unusable
    assert any("'masked'" in note for note in texts(report.notes))
    scale = {"scales": {"mask": 3e38 / 127}}
    wrecked = trt_bisect.run(path, data, plan=scale, **MINMAX)
    assert next(row for row in wrecked.layers if row.name == "masked").quantizable
