"""``kl`` and ``top1``: the axis of the classes, and what is made a probability, against NumPy."""

import re

import numpy as np
import pytest

import trt_bisect
from tests.support import networks
from tests.support.by_hand import sigmoid, softmax
from tests.support.records import texts
from trt_bisect import BadInput, similarity
from trt_bisect.analyzer.classes import LOGITS, OWN, SHARES, Classes, classes_of, find_classes


def entropy(p, q, axis):
    """``scipy.stats.entropy``: both divided by their sums, then the sum of p log(p / q)."""
    p, q = p / p.sum(axis=axis, keepdims=True), q / q.sum(axis=axis, keepdims=True)
    return np.mean(np.sum(p * np.log(p / q), axis=axis))


def bernoulli(p, q):
    return np.mean(p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q)))


def test_one_logit_a_row_goes_through_a_sigmoid(random):
    r, o = random.normal(0, 3, (2, 8, 1))
    assert similarity(r, o, "kl") == pytest.approx(bernoulli(sigmoid(r), sigmoid(o)), rel=1e-9)
    assert similarity(r, o, "top1") == np.mean((r > 0) == (o > 0))


@pytest.mark.parametrize("shape", [(8, 1), (1, 20), (1, 40, 97)])
def test_probabilities_of_their_own_are_each_a_yes_or_no(shape, random):
    """Sigmoids of one label, of several, and of a mask: rows that do not sum to 1."""
    p, q = random.uniform(0.1, 0.9, (2, *shape))
    assert find_classes([p]).kind == OWN
    assert similarity(p, q, "kl") == pytest.approx(bernoulli(p, q), rel=1e-9)
    if shape == (8, 1):
        assert similarity(p, q, "top1") == np.mean((p > 0.5) == (q > 0.5))


@pytest.mark.parametrize("total", [0.985, 1.015, 1.2])
def test_a_softmax_goes_on_neither_side_where_fp32_gives_probabilities(total, random):
    """INT8 rounds probabilities, and their sum is another: as shares they are the same, or nearly."""
    p = softmax(random.normal(0, 2, (16, 10)), -1)
    q = softmax(np.log(p) + 0.05 * random.normal(size=p.shape), -1)
    assert similarity(p, total * p, "kl") == pytest.approx(0.0, abs=1e-12)
    assert similarity(p, total * q, "kl") == pytest.approx(entropy(p, q, -1), rel=1e-9)


@pytest.mark.parametrize("total", [0.992, 1.008])
def test_probabilities_may_miss_a_sum_of_one_by_a_hundredth(total, random):
    """Rounded to FP16, probabilities do not sum to 1 exactly."""
    p = softmax(random.normal(0, 2, (16, 10)), -1)
    assert find_classes([total * p]).kind == SHARES
    assert find_classes([0.97 * p]).kind != SHARES


def test_a_softmax_goes_on_both_sides_where_fp32_gives_logits(random):
    """Also where INT8's happen to sum to 1."""
    r = random.normal(0, 2, (4, 10))
    o = softmax(r, -1)
    assert similarity(r, o, "kl") == pytest.approx(entropy(softmax(r, -1), softmax(o, -1), -1), rel=1e-9)


def test_probabilities_that_int8_rounds_to_zero_are_no_agreement():
    p = np.full((1, 1000), 1e-3)
    assert similarity(p, np.zeros_like(p), "kl") > 10


@pytest.mark.parametrize("axis", [1, 2])
def test_the_axis_of_probabilities_is_the_one_along_which_they_sum_to_one(axis, random):
    p, q = (softmax(random.normal(0, 2, (1, 6, 9)), axis) for _ in range(2))
    assert find_classes([p]) == Classes(axis, SHARES)
    assert similarity(p, q, "kl") == pytest.approx(entropy(p, q, axis), rel=1e-9)
    assert similarity(p, q, "top1") == np.mean(p.argmax(axis) == q.argmax(axis))
    logarithms, others = np.log(p), np.log(q)
    assert find_classes([logarithms]) == Classes(axis, LOGITS)
    assert similarity(logarithms, others, "kl") == pytest.approx(entropy(p, q, axis), rel=1e-9)


def test_an_image_of_logits_has_its_classes_on_axis_1(random):
    r, o = random.normal(0, 1, (2, 1, 5, 12, 16))
    assert similarity(r, o, "top1") == np.mean(r.argmax(1) == o.argmax(1))
    assert similarity(r, o, "kl") == pytest.approx(entropy(softmax(r, 1), softmax(o, 1), 1), rel=1e-9)


PLAIN = {
    (1, 10): 1, (10,): 0, (1, 1000, 1, 1): 1, (1, 1, 1, 10): 3, (1, 21, 64, 64): 1, (1, 21, 48, 64): 1,
    (1, 1000, 7, 7): 1, (1, 1, 32, 32): 1, (4, 1): 1,
}  # fmt: skip
AMBIGUOUS = [(1, 64, 64, 21), (1, 48, 64, 21), (1, 7, 7, 1000), (1, 84, 8400), (1, 3, 20, 20, 85), (1, 1, 40, 97)]


@pytest.mark.parametrize("shape", PLAIN)
def test_the_axis_is_found_in_the_shape_of_logits(shape, random):
    assert find_classes([random.normal(0, 3, shape)]).axis == PLAIN[shape]


@pytest.mark.parametrize("shape", AMBIGUOUS)
def test_where_the_axis_cannot_be_told_it_has_to_be_given(shape, random):
    r, o = random.normal(0, 3, (2, *shape))
    for name in ("top1", "kl"):
        with pytest.raises(BadInput, match="class axis") as refused:
            similarity(r, o, name)
        assert {"--class-axis", "--outputs", "--metric"} <= {*re.findall(r"--[a-z-]+", refused.value.remedy)}
    assert similarity(r, o, "top1", class_axis=-1) == np.mean(r.argmax(-1) == o.argmax(-1))
    assert similarity(r, o) < 1


def test_classes_that_fp32_rules_out_are_ruled_out_on_both_sides(random):
    """-inf in FP32, as a mask writes it: that class has no part in the comparison."""
    r, o = random.normal(0, 2, (2, 3, 6))
    masked = r.copy()
    masked[:, 4] = -np.inf
    kept = [0, 1, 2, 3, 5]
    expected = entropy(softmax(r[:, kept], -1), softmax(o[:, kept], -1), -1)
    assert similarity(masked, o, "kl") == pytest.approx(expected, rel=1e-9)
    other = np.where(np.isfinite(masked), o, -np.inf)
    assert similarity(masked, o, "top1") == np.mean(masked.argmax(-1) == other.argmax(-1))


def test_an_axis_that_is_not_there_is_refused():
    with pytest.raises(BadInput, match="no axis 4"):
        classes_of([{"y": np.zeros((1, 4, 12, 12))}], ["y"], "cosine", 4)


def segmenting(folder):
    """A network whose output ``[N, 4, 12, 12]`` holds logits, with a culprit; and data."""
    sketch = networks.Sketch(5)
    x = sketch.conv(sketch.node("Relu", [sketch.conv("x", "conv0", 3, 8)], "relu0"), "conv1", 8, 8)
    y = sketch.conv(sketch.node("Relu", [x], "relu1"), "head", 8, 4)
    sketch.node("Identity", [y], "y_out", out="y")
    model = sketch.model(["n", 3, 12, 12], ["n", 4, 12, 12])
    networks.plant_between(model, "conv0", "conv1")
    return networks.save(model, folder), networks.samples(model, 4)


BY_CLASS = {"metric": "top1", "threshold": 0.9, "engine": "onnxruntime", "history": "none", "explain": "none"}
BY_CLASS |= {"effort": "quick", "calibrator": "minmax"}


@pytest.mark.slow
def test_another_axis_takes_no_figures_of_the_first(tmp_path):
    path, data = segmenting(tmp_path)
    first, second = (trt_bisect.run(path, data, data, class_axis=axis, **BY_CLASS) for axis in (None, -1))
    assert first.similarity.int8 == min(first.by_input.int8.values) < 0.9
    assert any("axis 1" in note for note in texts(first.notes))
    assert first.fingerprint != second.fingerprint
    assert first.similarity.int8 != second.similarity.int8
