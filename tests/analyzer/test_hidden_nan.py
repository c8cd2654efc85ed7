"""NaN that an operator behind it hides: the plan's outputs are finite and near FP32's in ONNX Runtime alone."""

import numpy as np
import pytest

import trt_bisect
from tests.support import networks
from tests.support.records import kinds, texts
from trt_bisect.analyzer.hidden_nan import NAN_HIDDEN, hidden_nan
from trt_bisect.model.network import load_network
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.precision import Precision
from trt_bisect.support.progress import Silent

HOW = {"engine": "onnxruntime", "calibrator": "minmax", "explain": "none", "validation": 0.0, "as_is": True}


def spectrum(hides: bool):
    """A logarithm of squares, infinite in FP16 near 0; a convolution, which adds infinities of both signs, and whose
    largest values are elsewhere; then the largest value of each channel, or the mean.
    """
    sketch = networks.Sketch(1)
    x = sketch.node("Mul", ["x", "x"], "square")
    x = sketch.node("Log", [sketch.node("Add", [x, sketch.constant("least", 1e-10)], "floor")], "log")
    x = sketch.conv(x, "conv0", 3, 8)
    if hides:
        x = sketch.node("MaxPool", [x], "max", kernel_shape=[16, 16])
    sketch.pooled_classes(x, 8)
    model = sketch.model(["n", 3, 16, 16], ["n", 10])
    networks.change_at(model, "conv0.weight", np.s_[:], np.abs)
    networks.change_at(model, "conv0.weight", np.s_[:, 0, 1, 1], lambda values: -0.01 * values)
    return model


@pytest.fixture(params=[True, False])
def given(request, tmp_path):
    """The network, and samples of which two have values near 0."""
    path, data = networks.given(spectrum(request.param), tmp_path, 12)
    samples = np.sign(data["x"]) * np.maximum(np.abs(data["x"]), 0.3)
    samples[[3, 5], :, 4:6, 4:6] = 1e-4
    return request.param, path, samples


def test_nan_is_counted_where_a_later_operator_hides_it(given):
    hides, path, samples = given
    network = load_network(path)
    writer, in_fp16 = PlanWriter(network, {}, GraphTarget.ONNXRUNTIME), network.all_in(Precision.FP16)
    found = hidden_nan(writer, in_fp16, networks.feeds(samples), Silent())
    assert found == ("'conv0' gives NaN on 2 of 12 inputs, and FP32 does not" if hides else "")
    assert not hidden_nan(writer, network.all_in(Precision.FP32), networks.feeds(samples), Silent())
    samples[3, 0, 4, 4] = np.nan  # FP32 has NaN there too
    assert not hidden_nan(writer, in_fp16, networks.feeds(samples), Silent())


def test_fp16_that_gives_nan_inside_is_not_shipped(given):
    hides, path, samples = given
    report = trt_bisect.run(path, {"x": samples}, threshold=0.97, **HOW)
    fp16 = next(choice for choice in report.choices if choice.plan == "fp16")
    assert (fp16.meets, fp16.similarity) == (False, None)
    assert report.answer.around_fp16.meets, "pairs bound what INT8 layers read"
    assert any("in FP16 'conv0' gives NaN on 2 of 12 inputs" in text for text in texts(report.notes)) is hides


@pytest.mark.parametrize("base", ["fp32", "fp16"])
def test_a_plan_that_gives_nan_inside_is_doubted(given, base):
    """With the logarithm in FP32 nothing is infinite. A QuantizeLinear before the mean hides NaN too."""
    _, path, samples = given
    report = trt_bisect.run(path, {"x": samples}, threshold=0.97, base=base, high=["conv0"], **HOW)
    assert report.recipe.meets
    assert (NAN_HIDDEN in kinds(report.answer.doubts)) is (base == "fp16")
