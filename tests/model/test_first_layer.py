"""The effect of samples on the layer that reads an input, against ONNX Runtime and NumPy on all samples at once."""

import tracemalloc

import numpy as np
import onnx
import pytest

from tests.support import networks
from tests.support.quantized import plain_session
from trt_bisect import load_network
from trt_bisect.analyzer.data_warnings import first_layer, first_outputs, has_large_weights


def conv_outputs(path, samples):
    """The outputs of the first convolution on all samples, [channels, samples * inner places]."""
    model = onnx.load(path)
    conv = next(node for node in model.graph.node if node.op_type == "Conv")
    model.graph.output.append(onnx.helper.make_empty_tensor_value_info(conv.output[0]))
    session = plain_session(model)
    found = np.concatenate([session.run([conv.output[0]], {"x": x[None]})[0] for x in samples])
    return np.moveaxis(found[:, :, 3:-3, 3:-3].astype(np.float64), 1, 0).reshape(found.shape[1], -1)


@pytest.mark.parametrize("shift", [0.0, 300.0])
def test_reach_and_spread_are_those_of_all_samples_together(shift, tmp_path):
    path = networks.save(networks.chain(2), tmp_path)
    samples = np.random.default_rng(3).normal(shift, 1.0, (4, 3, 16, 16)).astype(np.float32)
    samples *= np.array([1, 2, 3, 4], np.float32)[:, None, None, None]
    network = load_network(path)
    reach, spread = first_outputs(network, first_layer(network, "x"), networks.feeds(samples))
    together = conv_outputs(path, samples)
    assert reach == np.abs(samples).max()
    assert spread == pytest.approx(np.median(together.std(axis=1) / np.abs(together.mean(axis=1))), rel=1e-6)


def test_channels_stored_as_zeros_are_left_out(tmp_path):
    """Their outputs are the bias whatever the data are; the spread is that of the channels with weights."""
    model = networks.chain(2)
    networks.change_at(model, "conv0.weight", np.s_[1:], lambda _: 0)
    networks.change_at(model, "conv0.bias", np.s_[:], lambda _: 1)
    path = networks.save(model, tmp_path)
    samples = np.random.default_rng(3).normal(0.0, 1.0, (4, 3, 16, 16)).astype(np.float32)
    network = load_network(path)
    layer = first_layer(network, "x")
    _, spread = first_outputs(network, layer, networks.feeds(samples))
    live = conv_outputs(path, samples)[0]
    assert spread == pytest.approx(live.std() / abs(live.mean()), rel=1e-6)
    assert has_large_weights(network, layer)


def test_a_sample_is_not_kept_when_the_next_one_runs():
    network = load_network(networks.chain(1, size=256))
    feeds = {"x": np.ones((1, 3, 256, 256), np.float32)}
    layer, peaks = first_layer(network, "x"), []
    for count in (1, 4):
        tracemalloc.start()
        first_outputs(network, layer, [feeds] * count)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose", "Gemm", "MatMul"])
def test_a_weight_that_is_fed_is_no_weight_of_the_first_layer(op, tmp_path):
    """Its values say nothing about the input, and the other operand of it is no input either."""
    is_conv = op in ("Conv", "ConvTranspose")
    shapes = {"x": [1, 3, 8, 8], "w": [3, 3, 3, 3]} if is_conv else {"x": [1, 8], "w": [8, 8]}
    sketch = networks.Sketch(1)
    made = sketch.node("Relu", [sketch.node(op, ["x", "w"], "dynamic")], "relu")
    last = sketch.constant("last.weight", sketch.random.normal(size=(2, 3, 1, 1) if is_conv else (8, 2)))
    sketch.node("Conv" if is_conv else "MatMul", [made, last], "last", out="y")
    outside = {"Conv": [1, 2, 6, 6], "ConvTranspose": [1, 2, 10, 10]}.get(op, [1, 2])
    path = networks.save(sketch.model(shapes, {"y": outside}), tmp_path)
    network = load_network(path)
    assert [first_layer(network, name) for name in shapes] == [None, None]
    assert network.layer_named("dynamic").quantizable
