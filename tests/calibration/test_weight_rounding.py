"""Weights rounded for the outputs: on the same grid, with a smaller error there than the nearest, in files too."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper

import trt_bisect
from tests.support import networks
from tests.support.networks import attached
from tests.support.quantized import for_tensorrt, plain_session
from trt_bisect.calibration.collect import calibrate
from trt_bisect.calibration.weight_rounding import round_weights
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.precision import Precision

GRIDS = {"conv": 0, "depthwise": 0, "gemm": 0, "matmul": 1}
"""By layer, the axis of its weight that has a step for each output."""


@pytest.fixture(scope="module")
def case():
    """A smooth picture read by a strided convolution, a dilated depthwise one, a Gemm and a MatMul."""
    sketch = networks.Sketch(9)
    random, constant, node = np.random.default_rng(2), sketch.constant, sketch.node
    kernel = constant("conv.weight", random.normal(0, 1, (8, 2, 3, 3)))
    x = node("Conv", ["x", kernel], "conv", strides=[2, 1], pads=[1, 0, 1, 2])
    taps = constant("depthwise.weight", random.normal(0, 1, (8, 1, 3, 3)))
    x = node("Conv", [node("Relu", [x], "relu"), taps], "depthwise", group=8, dilations=[2, 1], pads=[2, 1, 2, 1])
    x = node("Flatten", [node("AveragePool", [x], "pool", kernel_shape=[3, 4], strides=[3, 4])], "flat")
    x = node("Gemm", [x, constant("gemm.weight", random.normal(0, 1, (10, 72)))], "gemm", transB=1)
    y = node("MatMul", [node("Relu", [x], "relu2"), constant("matmul.weight", random.normal(0, 1, (10, 4)))], "matmul")
    model = sketch.model({"x": [1, 2, 18, 12]}, {y: [1, 4]})
    network = trt_bisect.load_network(model)
    waves = [np.cumsum(np.cumsum(random.normal(0, 1, (1, 2, 18, 12)), 2), 3) for _ in range(24)]
    samples = [{"x": (wave / np.abs(wave).max()).astype(np.float32)} for wave in waves]
    return network, samples, *round_weights(network, samples)


def plan_of_weights(network):
    return network.free_plan().keeping(network.quantizable, Precision.INT8_WEIGHT)


def outputs(network, samples, plan, target=GraphTarget.ONNXRUNTIME):
    scales = calibrate(network, samples, "minmax").scales
    written = PlanWriter(network, scales, target).write(plan)
    session = plain_session(attached(written.model, written.weights), optimised=False)
    return np.stack([session.run(None, feeds)[0] for feeds in samples])


@pytest.mark.parametrize("layer", GRIDS)
def test_the_new_weights_are_on_the_grid_of_the_old_ones(case, layer):
    """The largest of each output keeps its last level: whoever takes steps from the new ones gets those of the old."""
    network, _, rounded, _ = case
    assert network.digest() != rounded.digest()
    name, axis = f"{layer}.weight", GRIDS[layer]
    old, new = network.constant(name), rounded.on_grid[name]
    others = tuple(k for k in range(old.ndim) if k != axis)
    largest = np.abs(old).max(axis=others, keepdims=True)
    levels = new / (largest / 127)
    np.testing.assert_allclose(levels, np.rint(levels), atol=1e-3)
    assert np.abs(levels).max() <= 127.001
    assert np.any(np.rint(levels) != np.rint(old / (largest / 127)))
    np.testing.assert_allclose(np.abs(new).max(axis=others, keepdims=True), largest, rtol=1e-6)


def test_weights_in_int8_lose_less_at_the_outputs(case):
    network, samples, rounded, shares = case
    reference = outputs(network, samples, network.free_plan())
    before, after = (outputs(each, samples, plan_of_weights(each)) for each in (network, rounded))
    assert np.linalg.norm(after - reference) < 0.7 * np.linalg.norm(before - reference)
    assert set(shares) == {f"{layer}.weight" for layer in GRIDS}
    assert all(share < 1.0 for share in shares.values())


def test_layers_that_stay_high_have_the_weights_of_the_file(case):
    network, samples, rounded, _ = case
    both = (outputs(each, samples[:2], each.free_plan()) for each in (network, rounded))
    np.testing.assert_array_equal(*both)


def test_the_recipes_file_rounds_the_new_weights_to_themselves(case):
    network, samples, rounded, _ = case
    plan = network.free_plan(network.quantizable)
    ours, files = (outputs(rounded, samples, plan, target) for target in GraphTarget)
    np.testing.assert_allclose(ours, files, rtol=1e-5, atol=1e-5)
    scales = calibrate(network, samples, "minmax").scales
    written = for_tensorrt(rounded, scales, plan)
    graph = attached(written.model, written.weights).graph
    sources = {each.input[0] for each in graph.node if each.op_type == "QuantizeLinear"}
    constants = {each.name: each for each in graph.initializer}
    held = [numpy_helper.to_array(constants[name]) for name in sources if name in constants]
    for name in ("depthwise.weight", "matmul.weight"):
        assert any(np.array_equal(rounded.on_grid[name], each) for each in held)
