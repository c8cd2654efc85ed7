"""ONNX Runtime's emulation against an evaluation of LeNet's Q/DQ arithmetic written in NumPy alone."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from tests.support.by_hand import cosine
from tests.support.editions import edition
from tests.support.networks import attached
from tests.support.quantized import for_tensorrt
from trt_bisect import Report, calibrate, load_network, open_dataset, prefix
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
from trt_bisect.model.session import NO_QDQ_FUSION

LAYERS = ["conv1", "pool1", "conv2", "pool2", "flatten", "ip1", "relu1", "ip2", "prob"]


def q(values, scale):
    """Symmetric INT8, round half to even, and back."""
    return np.clip(np.rint(values / np.float32(scale)), -128, 127).astype(np.float32) * np.float32(scale)


def q_rows(weight):
    """One scale an output channel (axis 0)."""
    flat = weight.reshape(len(weight), -1)
    scale = (np.abs(flat).max(axis=1) / np.float32(127)).astype(np.float32)[:, None]
    return (np.clip(np.rint(flat / scale), -128, 127) * scale).astype(np.float32).reshape(weight.shape)


def convolve(x, weight, bias):
    """``x`` [channels, height, width], no padding, stride 1, in float64."""
    patches = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), weight.shape[2:], axis=(1, 2))
    return (np.einsum("chwij,ocij->ohw", patches, weight.astype(np.float64)) + bias[:, None, None]).astype(np.float32)


def pool(x):
    return x.reshape(x.shape[0], x.shape[1] // 2, 2, x.shape[2] // 2, 2).max(axis=(2, 4))


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def lenet_by_hand(digit, weights, scales, int8):
    """``digit`` [28, 28]; ``int8`` the names of the layers in INT8."""

    def layer(name, x, tensor):
        weight = weights[f"{name}.weight"]
        return (q(x, scales[tensor]), q_rows(weight)) if name in int8 else (x, weight)

    x = digit[None].astype(np.float32)
    a, w = layer("conv1", x, "data")
    x = convolve(a, w, weights["conv1.bias"])
    x = pool(q(x, scales["conv1"]) if "pool1" in int8 else x)
    a, w = layer("conv2", x, "pool1")
    x = convolve(a, w, weights["conv2.bias"])
    x = pool(q(x, scales["conv2"]) if "pool2" in int8 else x)
    a, w = layer("ip1", x.reshape(-1), "flatten")
    x = (w.astype(np.float64) @ a + weights["ip1.bias"]).astype(np.float32)
    x = np.maximum(x, 0)
    a, w = layer("ip2", x, "relu1")
    return softmax(w.astype(np.float64) @ a + weights["ip2.bias"])


@pytest.mark.slow
@pytest.mark.parametrize("file", edition(["lenet_planted.onnx"], ["lenet.onnx", "lenet_planted.onnx"]))
def test_every_prefix_equals_numpy(lenet, file):
    network = load_network(lenet / file)
    assert [layer.name for layer in network.layers] == LAYERS
    data = open_dataset(lenet / "calibration.npz", network.inputs)
    ranges = calibrate(network, data)
    flat = next(layer for layer in network.layers if layer.name == "flatten").outputs[0]
    scales = dict(ranges.scales) | {"flatten": ranges.scales[flat]}
    weights = {t.name: numpy_helper.to_array(t) for t in onnx.load(lenet / file).graph.initializer}
    builder = OnnxRuntimeBuilder(network, ranges.scales, BuildOptions())
    digits = list(open_dataset(lenet / "digits.npz", network.inputs))[:5]
    for digit in digits:
        image = digit["data"][0, 0]
        reference = builder.reference().infer(digit)["prob"][0]
        by_hand = lenet_by_hand(image, weights, scales, set())
        np.testing.assert_allclose(reference, by_hand, atol=1e-5)
        for k in range(len(LAYERS)):
            measured = builder.build(prefix(len(LAYERS), k)).infer(digit)["prob"][0]
            expected = lenet_by_hand(image, weights, scales, set(LAYERS[: k + 1]))
            assert cosine(measured, reference) == pytest.approx(cosine(expected, by_hand), abs=1e-6), LAYERS[k]


def test_no_layer_that_stays_high_is_quantized_in_the_optimised_model(lenet, tmp_path):
    """With ONNX Runtime's Q/DQ fusion on, a Conv left high between INT8 neighbours becomes a QLinearConv."""
    network = load_network(lenet / "lenet.onnx")
    scales = dict.fromkeys(network.activations, np.float32(0.05))
    middle_high = prefix(len(LAYERS), len(LAYERS) - 1).keeping({2})
    written = for_tensorrt(network, scales, middle_high)

    def optimised_ops(*entries):
        options = ort.SessionOptions()
        for entry in entries:
            options.add_session_config_entry(*entry)
        options.optimized_model_filepath = str(tmp_path / f"optimised{len(entries)}.onnx")
        model = attached(written.model, written.weights).SerializeToString()
        ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        return [node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node]

    ours = optimised_ops(NO_QDQ_FUSION)
    assert not [op for op in ours if op.startswith("QLinear") or "Integer" in op]
    assert sum("Conv" in op for op in ours) == 2
    if tuple(map(int, ort.__version__.split(".")[:2])) >= (1, 24):  # older ones do not fall into it on this network
        assert [op for op in optimised_ops() if op.startswith("QLinear")], "the trap is gone: this test proves nothing"


@pytest.mark.slow
def test_a_culprit_is_told_with_the_tensors_that_it_rounds(finished):
    (culprit,) = [row for row in Report.load(finished).layers if row.name == "ip2"]
    assert [(r.tensor, r.kind, r.producer, r.consumer) for r in culprit.rounds] == [
        ("relu1", "activation", "relu1", "ip2"),
        ("ip2.weight", "weight", "a constant", "ip2"),
    ]
