"""Cross-layer equalisation: the same in FP32 by ONNX Runtime, factors as the formula gives them, INT8 much better."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from onnx import numpy_helper

from tests.support import networks
from tests.support.by_hand import cosine
from tests.support.networks import attached
from tests.support.quantized import in_plan, plain_run
from trt_bisect.calibration.collect import calibrate
from trt_bisect.model.equalise import equalise
from trt_bisect.model.network import load_network

ANY = ["batch", "channels", "height", "width"]


def in_int8(network, feeds):
    """The output in full INT8, with min-max ranges."""
    plan = network.free_plan(network.quantizable)
    return in_plan(network, plan, feeds, calibrate(network, [feeds], "minmax").scales)[network.outputs[0].name]


def assert_same_in_fp32(model, network, feeds, within=1e-5):
    before, after = (plain_run(each, feeds) for each in (model, attached(network.skeleton, network.weights)))
    for one, two in zip(before, after, strict=True):
        assert np.linalg.norm(one - two) <= within * np.linalg.norm(one)


def sketch(random, ops, channels=6, group=1, **shapes):
    """conv, some operators, conv; ``ops`` are pairs of an operator and its attributes."""
    drawn = networks.Sketch(int(random.integers(1 << 30)))
    x = drawn.conv("x", "first", 3, channels)
    for place, (op, attributes, *constants) in enumerate(ops):
        inputs = [drawn.constant(f"op{place}.{k}", *each) for k, each in enumerate(constants)]
        x = drawn.node(op, [x, *inputs], f"op{place}", **attributes)
    x = drawn.conv(x, "second", channels, channels, group=group)
    drawn.nodes[-1].output[0] = "y"
    return drawn


def unevenly(model, name):
    """Multiplies the channels of a weight, or a bias, by factors from 0.01 to 100, drawn with the same seed."""
    scale = 10.0 ** np.random.default_rng(7).uniform(-2, 2, 6)
    networks.scale_constant(model, name, lambda values: (values.T * scale).T.astype(np.float32))


def test_the_factors_of_one_pair_are_those_of_the_formula(random):
    model = sketch(random, [("Relu", {})]).model([1, 3, 8, 8], [1, 6, 8, 8])
    unevenly(model, "first.weight")
    unevenly(model, "first.bias")
    network, factors = equalise(load_network(model))
    before = {tensor.name: numpy_helper.to_array(tensor).astype(np.float64) for tensor in model.graph.initializer}
    r1 = np.abs(before["first.weight"]).max(axis=(1, 2, 3))
    r2 = np.abs(before["second.weight"]).max(axis=(0, 2, 3))
    s = np.sqrt(r1 * r2) / r2
    assert list(factors) == [("first", "second")]
    assert factors["first", "second"] == pytest.approx(s, rel=1e-6)
    moved = network.constant
    assert moved("first.weight") == pytest.approx(before["first.weight"] / s[:, None, None, None], rel=1e-5)
    assert moved("first.bias") == pytest.approx(before["first.bias"] / s, rel=1e-5)
    assert moved("second.weight") == pytest.approx(before["second.weight"] * s[:, None, None], rel=1e-5)
    assert moved("second.bias") == pytest.approx(before["second.bias"])
    assert_same_in_fp32(model, network, {"x": random.standard_normal((1, 3, 8, 8)).astype(np.float32)})


def test_a_chain_settles_with_equal_ranges_at_both_sides():
    """The fixed point of the iteration: r1_i = r2_i between all layers of the chain."""
    model = networks.chain()
    networks.plant_between(model, "conv2", "conv3")
    network, factors = equalise(load_network(model))
    assert list(factors) == [
        *((f"conv{k}", f"conv{k + 1}") for k in range(7)), ("conv7", "fc")
    ]  # fmt: skip
    for k in range(7):
        made = np.abs(network.constant(f"conv{k}.weight")).max(axis=(1, 2, 3))
        read = np.abs(network.constant(f"conv{k + 1}.weight")).max(axis=(0, 2, 3))
        assert made == pytest.approx(read, rel=1e-3)
    assert_same_in_fp32(model, network, networks.samples(model))


def test_uneven_channels_lose_int8_and_equalised_ones_do_not():
    model, feeds = networks.chain(), networks.samples(networks.chain())
    networks.plant_between(model, "conv2", "conv3")
    equalised, _ = equalise(load_network(model))
    (fp32,) = plain_run(model, feeds)
    before, after = (cosine(fp32, in_int8(each, feeds)) for each in (load_network(model), equalised))
    assert before < 0.95
    assert after > 0.999


ZEROS_AROUND = np.array([0, 0, 1, 1, 0, 0, 1, 1])
COMMUTES = {
    "nothing": [],
    "LeakyRelu": [("LeakyRelu", {"alpha": 0.1})],
    "PRelu": [("PRelu", {}, (np.linspace(-0.5, 0.5, 6).reshape(6, 1, 1),))],
    "zero padding": [("Relu", {}), ("Pad", {}, (ZEROS_AROUND, np.int64))],
    "reflection": [("Pad", {"mode": "reflect"}, (ZEROS_AROUND, np.int64)), ("Relu", {})],
    "max pooling": [("Relu", {}), ("MaxPool", {"kernel_shape": [2, 2], "pads": [1, 1, 1, 1]})],
    "average pooling": [("AveragePool", {"kernel_shape": [2, 2], "count_include_pad": 1, "pads": [1, 1, 1, 1]})],
}
DOES_NOT = {
    "Clip": [("Clip", {}, (0.0,), (6.0,))],
    "Sigmoid": [("Sigmoid", {})],
    "ones around": [("Pad", {}, (ZEROS_AROUND, np.int64), (1.0,))],
    "new channels": [("Pad", {}, ([0, 1, 0, 0, 0, -1, 0, 0], np.int64))],
    "a constant added": [("Add", {}, (np.ones((6, 1, 1)),))],
}


@pytest.mark.parametrize("between", COMMUTES)
@pytest.mark.parametrize("group", [1, 2, 6])
def test_what_commutes_is_passed_and_groups_are_kept(between, group, random):
    model = sketch(random, COMMUTES[between], group=group).model({"x": [1, 3, 8, 8]}, {"y": ANY})
    unevenly(model, "first.weight")
    network, factors = equalise(load_network(model))
    (s,) = factors.values()
    assert max(s.max(), 1 / s.min()) > 3
    assert_same_in_fp32(model, network, {"x": random.standard_normal((1, 3, 8, 8)).astype(np.float32)})


@pytest.mark.parametrize("between", DOES_NOT)
def test_what_does_not_commute_is_left_alone(between, random):
    model = sketch(random, DOES_NOT[between]).model({"x": [1, 3, 8, 8]}, {"y": ANY})
    unevenly(model, "first.weight")
    network = load_network(model)
    equalised, factors = equalise(network)
    assert factors == {}
    assert equalised is network


@pytest.mark.parametrize("extra", ["z", "op0_out"], ids=["another reader", "an output"])
def test_a_tensor_with_two_readers_or_that_is_an_output_is_left_alone(extra, random):
    drawn = sketch(random, [("Relu", {})])
    if extra == "z":
        drawn.node("Sigmoid", ["op0_out"], "other", out="z")
    model = drawn.model({"x": [1, 3, 8, 8]}, {"y": ANY, extra: ANY})
    unevenly(model, "first.weight")
    assert equalise(load_network(model))[1] == {}


def test_a_shared_weight_is_left_alone_and_a_shared_bias_is_copied(random):
    drawn = networks.Sketch(5)
    x = drawn.conv("x", "a", 6, 6)
    for name in ("b", "c", "d"):
        x = drawn.conv(drawn.node("Relu", [x], f"relu_{name}"), name, 6, 6)
    drawn.nodes[-1].output[0] = "y"
    model = drawn.model({"x": [1, 6, 8, 8]}, {"y": ANY})
    nodes = {node.name: node for node in model.graph.node}
    nodes["d"].input[1] = "a.weight"
    nodes["b"].input[2] = nodes["c"].input[2] = "a.bias"
    unevenly(model, "b.weight")
    network, factors = equalise(load_network(model))
    assert list(factors) == [("b", "c")]
    assert_same_in_fp32(model, network, {"x": random.standard_normal((1, 6, 8, 8)).astype(np.float32)})


def test_dead_channels_keep_their_weights(random):
    factors = np.where(np.arange(6) == 2, 1e-20, 1).astype(np.float32).reshape(-1, 1, 1, 1)
    model = sketch(random, [("Relu", {})]).model({"x": [1, 3, 8, 8]}, {"y": ANY})
    networks.scale_constant(model, "first.weight", lambda values: values * factors)
    (s,) = equalise(load_network(model))[1].values()
    assert s[2] == 1.0
    assert max(s.max(), 1 / s.min()) < 10


@st.composite
def chains(draw):
    """Convolutions (grouped, transposed), activations and pools in a chain, flattened into a Gemm."""
    drawn = networks.Sketch(draw(st.integers(0, 1000)))
    x, inside, size = "x", 4, 8
    for k in range(draw(st.integers(1, 4))):
        outside, group = draw(st.sampled_from([4, 8])), draw(st.sampled_from([1, 2, 4]))
        op = draw(st.sampled_from(["Conv", "ConvTranspose"]))
        shape = (outside, inside // group, 3, 3) if op == "Conv" else (inside, outside // group, 3, 3)
        scale = 10.0 ** drawn.random.uniform(-2, 2, (shape[0], shape[1], 1, 1))
        constants = [drawn.constant(f"w{k}", 0.3 * drawn.random.standard_normal(shape) * scale)]
        if draw(st.booleans()):
            constants.append(drawn.constant(f"b{k}", drawn.random.standard_normal(outside)))
        x, inside = drawn.node(op, [x, *constants], f"layer{k}", pads=[1] * 4, group=group), outside
        follows = draw(st.sampled_from(["Relu", "LeakyRelu", "Tanh", "MaxPool", None]))
        if follows == "MaxPool":
            x = drawn.node(follows, [x], f"then{k}", kernel_shape=[3, 3], pads=[1] * 4)
        elif follows:
            x = drawn.node(follows, [x], f"then{k}")
    if draw(st.booleans()):
        x, size = drawn.node("GlobalAveragePool", [x], "pool"), 1
    rows = drawn.constant("rows", [0, -1], np.int64)
    x = drawn.node("Flatten", [x], "flat") if draw(st.booleans()) else drawn.node("Reshape", [x, rows], "flat")
    features, transposed = inside * size * size, draw(st.booleans())
    weight = drawn.random.standard_normal((5, features) if transposed else (features, 5)) / features
    drawn.node("Gemm", [x, drawn.constant("g", weight)], "gemm", out="y", transB=int(transposed))
    return drawn.model([1, 4, 8, 8], [1, 5])


@pytest.mark.slow
@settings(max_examples=15)
@given(chains())
def test_any_chain_computes_the_same(model):
    """Sums of some chains cancel, so that float32 rounds them to 6e-5; a wrong factor changes a channel by far more."""
    x = networks.normal(1, 1, 4, 8, 8)
    assert_same_in_fp32(model, equalise(load_network(model))[0], {"x": x}, within=1e-3)
