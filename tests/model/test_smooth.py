"""Channel smoothing: the same in FP32 by ONNX Runtime, the division where it is due, INT8 much better."""

import numpy as np
import onnx
import pytest

import trt_bisect
from tests.support import networks
from tests.support.networks import attached
from tests.support.quantized import in_plan, plain_run, plain_tensors
from trt_bisect.calibration.collect import calibrate
from trt_bisect.model.smooth import smooth
from trt_bisect.precision import Precision

LARGE = np.array([300.0, 1, 1, 1, 1, 1, 1, 3])
"""By channel, what it is multiplied by: one takes the levels of the others."""


def planted(kind):
    """A network whose first channel is large where its last layers read it; the kind says what is between."""
    sketch = networks.Sketch(3)
    random, constant, node = np.random.default_rng(8), sketch.constant, sketch.node
    if kind in ("normalization", "two readers", "residual"):
        scale, bias = constant("norm.scale", LARGE), constant("norm.bias", random.normal(0, 1, 8) * LARGE)
        x = node("LayerNormalization", ["x", scale, bias], "norm", axis=-1)
        first = constant("a.weight", random.normal(0, 1, (8, 5)) / LARGE[:, None])
        y = node("MatMul", [x, first], "a")
        if kind == "two readers":
            second = constant("b.weight", random.normal(0, 1, (8, 5)) / LARGE[:, None])
            y = node("Add", [y, node("MatMul", [x, second], "b")], "sum")
        if kind == "residual":
            again = constant("c.weight", random.normal(0, 1, (5, 8)))
            y = node("Add", [node("MatMul", [y, again], "c"), x], "sum")
        return sketch.model({"x": [1, 6, 8]}, {y: [1, 6, 8 if kind == "residual" else 5]})
    if kind == "joined":
        return joined(sketch, random)
    weight = constant("m.weight", random.normal(0, 1, (8, 8, 1, 1)) * LARGE.reshape(-1, 1, 1, 1))
    x = node("Conv", ["x", weight, constant("m.bias", random.normal(0, 1, 8) * LARGE)], "m")
    if kind == "learned scale":
        x = node("HardSwish", [x], "act")
        x = node("Mul", [x, constant("scale", np.array(0.7))], "mul")
        x = node("Add", [constant("shift", np.array([0.2])), x], "add")
    if kind == "pooled":
        x = node("MaxPool", [node("Relu", [x], "relu")], "pool", kernel_shape=[2, 2], strides=[2, 2])
    if kind == "depthwise":
        taps = constant("d.weight", random.normal(0, 1, (8, 1, 3, 3)))
        x = node("Conv", [x, taps], "d", group=8, pads=[1] * 4)
    last = constant("r.weight", random.normal(0, 1, (4, 8, 1, 1)) / LARGE.reshape(1, -1, 1, 1))
    y = node("Conv", [x, last], "r")
    if kind == "read elsewhere":
        y = node("Add", [y, node("Conv", [node("Sigmoid", [x], "gate"), last], "g")], "sum")
    size = 5 if kind == "pooled" else 10
    return sketch.model({"x": [1, 8, 10, 10]}, {y: [1, 4, size, size]})


def joined(sketch, random):
    """Two convolutions of 8 and 4 channels, the second smaller by half and resized, whose Concat a third one reads."""
    constant, node = sketch.constant, sketch.node
    weights = [random.normal(0, 1, shape) for shape in ((8, 8, 1, 1), (4, 8, 2, 2), (4, 12, 1, 1))]
    weights[0] *= LARGE.reshape(-1, 1, 1, 1)
    weights[2][:, :8] /= LARGE.reshape(1, -1, 1, 1)
    first, second, last = (constant(f"{name}.weight", w) for name, w in zip("mnr", weights, strict=True))
    small = node("Relu", [node("Conv", ["x", second], "n", strides=[2, 2])], "relu")
    large = node("Resize", [small, "", constant("scales", np.array([1, 1, 2, 2]))], "up", mode="nearest")
    both = node("Concat", [node("Conv", ["x", first], "m"), large], "join", axis=1)
    return sketch.model({"x": [1, 8, 10, 10]}, {node("Conv", [both, last], "r"): [1, 4, 10, 10]})


KINDS = ("normalization", "two readers", "residual", "learned scale", "pooled", "depthwise", "joined")


def opened(kind):
    network = trt_bisect.load_network(planted(kind))
    random = np.random.default_rng(4)
    shape = network.inputs[0].shape
    return network, [{"x": random.normal(0, 1, shape).astype(np.float32)} for _ in range(6)]


def in_fp32(network, feeds):
    return plain_run(attached(network.skeleton, network.weights), feeds)[0]


def error_in_int8(network, samples, reference):
    """The error of full INT8 on the first sample, relative to the output's norm."""
    scales, plan = calibrate(network, samples, "minmax").scales, network.free_plan(network.quantizable)
    found = in_plan(network, plan, samples[0], scales)[network.outputs[0].name]
    return np.linalg.norm(found - reference) / np.linalg.norm(reference)


@pytest.mark.parametrize("kind", KINDS)
def test_computes_the_same_in_fp32_and_loses_less_in_int8(kind):
    network, samples = opened(kind)
    smoothed, _ = smooth(network, samples)
    before, after = (in_fp32(each, samples[0]) for each in (network, smoothed))
    assert np.linalg.norm(before - after) <= 1e-5 * np.linalg.norm(before)
    known = {layer.name for layer in network.layers}
    names = [layer.name for layer in smoothed.layers]
    assert [name for name in names if name in known] == [layer.name for layer in network.layers]
    assert error_in_int8(smoothed, samples, before) < 0.5 * error_in_int8(network, samples, before)


def test_the_channels_of_a_depthwise_convolution_become_equal():
    network, samples = opened("depthwise")
    smoothed, _ = smooth(network, samples)
    kernel, bias = (smoothed.constant(f"m.{part}") for part in ("weight", "bias"))
    maps = [np.tensordot(kernel[:, :, 0, 0], each["x"][0], 1) + bias[:, None, None] for each in samples]
    largest = np.abs(maps).max(axis=(0, 2, 3))
    np.testing.assert_allclose(largest, largest[0], rtol=1e-4)


def test_the_inputs_of_a_concat_come_to_one_range():
    network, samples = opened("joined")

    def ratio(each):
        """The largest magnitude of the first 8 channels over that of the others, by ONNX Runtime on one sample."""
        joined = plain_tensors(attached(each.skeleton, each.weights), ["join_out"], samples[:1])["join_out"]
        return np.abs(joined[:, :8]).max() / np.abs(joined[:, 8:]).max()

    smoothed, shares = smooth(network, samples)
    assert set(shares) == {"join_out"}
    assert ratio(network) > 100
    assert ratio(smoothed) < 10


def test_a_residual_sum_reads_the_product_of_a_mul():
    network, samples = opened("residual")
    network = network.fixing({network.layer_named("c").index: Precision.FP32}).with_one_scale_a_weight({2})
    smoothed, _ = smooth(network, samples)
    by_name = {node.name: node for node in smoothed.skeleton.graph.node}
    (added,) = by_name.keys() - {layer.name for layer in network.layers}
    assert by_name[added].op_type == "Mul"
    assert by_name[added].input[0] == "norm_out"
    assert by_name["sum"].input[1] == by_name[added].output[0]
    assert [layer.index for layer in smoothed.layers] == [*range(len(network.layers) + 1)]
    assert not smoothed.layer_named(added).quantizable
    assert smoothed.layer_named("c").fixed is Precision.FP32
    (whole,) = smoothed.one_scale
    assert smoothed.layers[whole].name == network.layers[2].name
    assert [rounding.axis for rounding in smoothed.layers[whole].roundings if rounding.is_weight] == [None]
    shares = np.divide(*(np.abs(n.constant("norm.scale")) for n in (network, smoothed)))
    np.testing.assert_allclose(smoothed.constant(by_name[added].input[1]), shares, rtol=1e-5)


def with_a_sigmoid(model):
    next(node for node in model.graph.node if node.name == "relu").op_type = "Sigmoid"


def with_one_weight(model):
    next(node for node in model.graph.node if node.name == "b").input[1] = "a.weight"


def with_another_output(model):
    model.graph.output.append(onnx.helper.make_tensor_value_info("norm_out", onnx.TensorProto.FLOAT, [1, 6, 8]))


@pytest.mark.parametrize(("kind", "change", "shape"), [
    ("joined", with_a_sigmoid, (8, 10, 10)), ("two readers", with_one_weight, (6, 8)),
    ("residual", with_another_output, (6, 8)),
])  # fmt: skip
def test_what_cannot_be_divided_is_shared_or_is_an_output_is_left(kind, change, shape):
    model = planted(kind)
    change(model)
    network = trt_bisect.load_network(model)
    _, shares = smooth(network, [{"x": np.ones((1, *shape), np.float32)}])
    assert "norm_out" not in shares
    assert shares == {} or kind == "residual"


def test_a_tensor_of_convolutions_that_others_read_is_left():
    network, samples = opened("read elsewhere")
    smoothed, shares = smooth(network, samples)
    assert shares == {}
    assert smoothed is network
