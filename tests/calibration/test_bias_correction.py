"""Bias correction: the mean error of each channel, measured here with ONNX Runtime alone, goes; INT8 gets better."""

import numpy as np
import onnx
import onnx.reference
import pytest
from onnx import helper

import trt_bisect
from tests.support import networks
from tests.support.networks import attached
from tests.support.quantized import plain_tensors
from trt_bisect.calibration import bias_correction
from trt_bisect.calibration.bias_correction import correct_biases
from trt_bisect.calibration.collect import calibrate
from trt_bisect.errors import BadInput
from trt_bisect.model.file import save_model
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.precision import int8_set

COUNT = 12


def drawn():
    """Conv, Relu, Conv without a bias, transposed Conv, Add of both, Gemm with a beta, MatMul and Add."""
    sketch = networks.Sketch(4)
    x = sketch.node("Relu", [sketch.conv("x", "a", 3, 8)], "relu_a")
    b = sketch.node("Conv", [x, sketch.constant("b.weight", sketch.weight("b", 8, 8, 3, 3))], "b", pads=[1] * 4)
    b = sketch.node("Relu", [b], "relu_b")
    t = sketch.constant("t.weight", 0.2 * sketch.random.normal(0, 1, (8, 8, 3, 3)))
    t = sketch.node("ConvTranspose", [b, t], "t", pads=[1] * 4)
    x = sketch.node("Relu", [sketch.node("Add", [t, x], "sum")], "relu_t")
    x = sketch.node("Flatten", [sketch.node("GlobalAveragePool", [x], "pool")], "flat")
    g = [sketch.constant("g.weight", sketch.random.normal(0, 0.5, (8, 12))), sketch.constant("g.bias", np.ones(12))]
    x = sketch.node("Relu", [sketch.node("Gemm", [x, *g], "g", beta=0.5)], "relu_g")
    x = sketch.dense(x, "m", 12, 6)
    sketch.nodes[-1].output[0] = "y"
    return sketch.model([1, 3, 10, 10], [1, 6])


MEASURED = {"a": ("a_out", 1), "b": ("b_out", 1), "t": ("t_out", 1), "g": ("g_out", 1), "m": ("y", 1)}
"""By layer in INT8 with a bias, the tensor that the bias is in, and the channel axis."""


@pytest.fixture(scope="module")
def corrected():
    """A network, its samples, its ranges, which clip a little, and its corrected network."""
    network = trt_bisect.load_network(drawn())
    random = np.random.default_rng(5)
    samples = [{"x": random.normal(0.3, 1, (1, 3, 10, 10)).astype(np.float32)} for _ in range(COUNT)]
    ranges = calibrate(network, samples, "percentile", 98.0)
    plan = network.free_plan(network.quantizable)
    return network, samples, ranges, plan, *correct_biases(network, ranges.scales, plan, samples)


def in_int8(network, ranges, plan, samples):
    written = PlanWriter(network, ranges.scales, GraphTarget.ONNXRUNTIME).write(plan)
    return plain_tensors(attached(written.model, written.weights), [name for name, _ in MEASURED.values()], samples)


def test_the_mean_error_of_each_channel_goes(corrected):
    network, samples, ranges, plan, better, errors = corrected
    assert list(errors) == list(MEASURED)
    fp32 = plain_tensors(attached(network.skeleton, network.weights), [name for name, _ in MEASURED.values()], samples)
    before, after = (in_int8(each, ranges, plan, samples) for each in (network, better))
    for layer, (name, axis) in MEASURED.items():
        others = tuple(k for k in range(fp32[name].ndim) if k != axis)
        spread = fp32[name].std()
        mean_before, mean_after = ((each[name] - fp32[name]).mean(axis=others) for each in (before, after))
        assert np.abs(mean_before).max() > 1e-3 * spread, layer
        assert np.abs(mean_after).max() < 0.02 * np.abs(mean_before).max() + 1e-6 * spread, layer
    assert np.abs(after["y"] - fp32["y"]).mean() < 0.5 * np.abs(before["y"] - fp32["y"]).mean()


def test_only_biases_change_and_missing_ones_are_added(corrected, tmp_path):
    network, _, _, _, better, errors = corrected
    save_model(better.skeleton, better.weights, tmp_path / "corrected.onnx")
    onnx.checker.check_model(str(tmp_path / "corrected.onnx"), full_check=True)
    again = trt_bisect.load_network(tmp_path / "corrected.onnx")
    assert [layer.name for layer in again.layers] == [layer.name for layer in network.layers]
    for node in again.skeleton.graph.node:
        if node.name in ("a", "b", "t", "g", "m"):
            weight = again.constant(node.input[1])
            assert np.array_equal(weight, network.constant(f"{node.name}.weight"))
        if node.name in ("b", "t"):
            assert again.constant(node.input[2]) == pytest.approx(-errors[node.name], abs=1e-7)
    assert again.constant("a.bias") == pytest.approx(network.constant("a.bias") - errors["a"], abs=1e-6)
    assert again.constant("g.bias") == pytest.approx(1 - errors["g"] / 0.5, abs=1e-6)
    assert again.constant("m.bias") == pytest.approx(network.constant("m.bias") - errors["m"], abs=1e-6)


def test_the_first_layers_error_is_that_of_numpy(corrected):
    """Its input and weight rounded by hand, the convolution by ONNX's reference evaluator."""
    network, samples, ranges, _, _, errors = corrected
    weight, bias = network.constant("a.weight"), network.constant("a.bias")
    step = np.abs(weight).max(axis=(1, 2, 3), keepdims=True) / np.float32(127)
    rounded_weight = (np.rint(weight / step) * step).astype(np.float32)
    scale = ranges.scales["x"]
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], pads=[1] * 4)
    infos = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in ("x", "w", "b", "y")]
    graph = helper.make_graph([node], "one", infos[:3], infos[3:])
    run = onnx.reference.ReferenceEvaluator(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])).run
    differences = []
    for sample in samples:
        rounded = np.clip(np.rint(sample["x"] / scale), -128, 127).astype(np.float32) * scale
        (fp32,) = run(None, {"x": sample["x"], "w": weight, "b": bias})
        (int8,) = run(None, {"x": rounded, "w": rounded_weight, "b": bias})
        differences.append(int8.astype(np.float64) - fp32)
    expected = np.mean(differences, axis=(0, 1, 3, 4))
    assert next(iter(errors.values())) == pytest.approx(expected, abs=1e-5)


def test_a_layer_left_high_keeps_its_bias(corrected):
    network, samples, ranges, plan, _, _ = corrected
    (index,) = [layer.index for layer in network.layers if layer.name == "a"]
    better, errors = correct_biases(network, ranges.scales, plan.keeping({index}), samples[:2])
    assert list(errors) == ["b", "t", "g", "m"]
    assert np.array_equal(better.constant("a.bias"), network.constant("a.bias"))
    same, none = correct_biases(network, ranges.scales, int8_set(len(network.layers), ()), samples[:2])
    assert none == {}
    assert same is network


def test_memory_limits_the_samples(corrected, monkeypatch):
    """Live in both runs: at most two tensors of 8 x 10 x 10 floats after layer b, beside the input of 3 x 10 x 10."""
    network, samples, ranges, plan, _, _ = corrected
    largest = 2 * 2 * 8 * 10 * 10 * 4 + 3 * 10 * 10 * 4

    def samples_read(**options):
        remaining = iter(samples)
        correct_biases(network, ranges.scales, plan, remaining, **options)
        return COUNT - len(list(remaining))

    assert samples_read() == COUNT
    assert samples_read(memory=2 * 5 * largest) == 5
    assert samples_read(memory=1) == 1
    monkeypatch.setattr(bias_correction, "SAMPLES", 3)
    assert samples_read() == 3


def test_no_samples_are_refused(corrected):
    network, _, ranges, plan, _, _ = corrected
    with pytest.raises(BadInput, match="no samples"):
        correct_biases(network, ranges.scales, plan, [])
