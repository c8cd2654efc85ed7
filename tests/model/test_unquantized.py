"""Layers that only follow round too: the tensors, the graph written by hand, and the switching session."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support import networks
from tests.support.flawed_structures import pair
from tests.support.quantized import plain_session
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
from trt_bisect.builder.tensorrt_weak import weak_plan
from trt_bisect.calibration.collect import calibrate
from trt_bisect.model.network import followed_tensors, load_network
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.model.session import UNOPTIMISED, make_session
from trt_bisect.precision import Precision, int8_set


def swish() -> onnx.ModelProto:
    """Three convolutions; x * sigmoid(x) between the first two, a Relu and a Transpose between the others."""
    sketch = networks.Sketch(3)
    x = sketch.conv("x", "a", 3, 6)
    x = sketch.node("Mul", [x, sketch.node("Sigmoid", [x], "gate")], "swish")
    x = sketch.node("Relu", [sketch.conv(x, "b", 6, 6)], "relu")
    x = sketch.node("Transpose", [x], "turn", perm=[0, 1, 3, 2])
    x = sketch.conv(x, "c", 6, 4)
    sketch.node("Sigmoid", [x], "last", out="y")
    return sketch.model(["n", 3, 8, 8], ["n", 4, 8, 8])


def prepared(make, **options):
    model = make()
    network = load_network(model)
    feeds = networks.feeds(networks.samples(model, 3)["x"])
    scales = calibrate(network, feeds, "minmax").scales
    return network, feeds, scales, OnnxRuntimeBuilder(network, scales, BuildOptions(unquantized_round=True, **options))


def test_what_stands_between_int8_layers_is_rounded_and_what_is_fused_or_last_is_not():
    network, _, _, _ = prepared(swish)
    assert followed_tensors(network, network.quantizable) == {
        "a_out", "swish_out", "relu_out", "turn_out"
    }, "b_out and gate_out are inside fused kernels; c_out has no INT8 reader"  # fmt: skip
    a, b, c = network.quantizable
    assert followed_tensors(network, [a, c]) == frozenset()
    assert followed_tensors(network, [b, c]) == {"relu_out", "turn_out"}


@pytest.mark.parametrize("make", [swish, networks.residual, networks.transformer, networks.depthwise])
def test_they_are_among_the_tensors_that_weak_typing_leaves_free(make, random):
    """Of the constraints that a recipe for weak typing sets; only what fused kernels hide is missing."""
    network, _, _, builder = prepared(make)
    for _ in range(6):
        int8 = [k for k in network.quantizable if random.random() < 0.7]
        weak = weak_plan(builder, network, int8_set(len(network.layers), int8))
        set_on = {each.layer: each for each in weak.constraints}
        free = {
            tensor
            for layer in network.layers
            for slot, tensor in enumerate(layer.outputs)
            if layer.name not in set_on or set_on[layer.name].outputs[slot] is None
        }
        found = followed_tensors(network, int8)
        assert found <= free
        readers = {t: [layer.op_type for layer in network.layers if t in layer.inputs] for t in free - found}
        for tensor, ops in readers.items():
            assert len(ops) <= 1, (tensor, ops)
            assert set(ops) <= {"Relu", "Add", "Clip", "Mul"}, (tensor, ops)


ZERO = np.int8(0)


def with_pairs(model, tensors, weights, zero=ZERO):
    """The file with a Q/DQ pair on each tensor and weight, and on its input ``x``, put there by hand."""
    model = networks.copied(model)
    graph, nodes = model.graph, []

    def rounded(values):
        scale = (np.abs(values).max(axis=(1, 2, 3), keepdims=True) / 127).astype(np.float32)
        return (np.clip(np.rint(values / scale), -127, 127) * scale).astype(np.float32)

    for name in weights:
        networks.scale_constant(model, name, rounded)

    def pair(name):
        parameters = [f"{name}@s", f"{name}@0"]
        for value, constant in zip((np.float32(tensors[name]), zero), parameters, strict=True):
            graph.initializer.append(numpy_helper.from_array(value, constant))
        nodes.append(helper.make_node("QuantizeLinear", [name, *parameters], [f"{name}@q"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}@q", *parameters], [f"{name}@d"]))

    if "x" in tensors:
        pair("x")
    for node in graph.node:
        node.input[:] = [f"{name}@d" if name in tensors else name for name in node.input]
        nodes.append(node)
        for name in node.output:
            if name in tensors:
                pair(name)
    rest = list(nodes)
    del graph.node[:]
    graph.node.extend(rest)
    return model


def test_the_graph_is_that_with_pairs_put_in_by_hand():
    network, feeds, scales, _builder = prepared(swish)
    names = ["x", "a_out", "swish_out", "relu_out", "turn_out"]
    by_hand = with_pairs(swish(), {name: scales[name] for name in names}, ["a.weight", "b.weight", "c.weight"])
    theirs, plan = plain_session(by_hand, optimised=False), network.free_plan(network.quantizable)
    written = PlanWriter(network, scales, GraphTarget.ONNXRUNTIME, unquantized_round=True).write(plan)
    ours = make_session(written, level=UNOPTIMISED)
    plain = OnnxRuntimeBuilder(network, scales, BuildOptions())
    for sample in feeds:
        (expected,) = theirs.run(None, sample)
        (found,) = ours.run(None, sample)
        assert np.allclose(found, expected, atol=1e-6)
        assert np.abs(plain.build(plan).infer(sample)["y"] - expected).max() > 1e-4


@pytest.mark.parametrize("high", [Precision.FP32, Precision.FP16])
def test_the_switching_session_gives_what_the_plans_own_graph_gives(random, high):
    network, feeds, scales, builder = prepared(swish, high=high)
    switch = builder.switch(threads=1)
    writer = PlanWriter(network, scales, GraphTarget.ONNXRUNTIME, unquantized_round=True)
    for place in range(8):
        int8 = network.quantizable if place == 0 else [k for k in network.quantizable if random.random() < 0.6]
        plan = int8_set(len(network.layers), int8, high)
        own = make_session(writer.write(plan), level=UNOPTIMISED, threads=1)
        (expected,) = own.run(None, feeds[0])
        assert np.array_equal(switch.infer(plan, feeds[0])["y"], expected)


def test_a_network_with_pairs_of_its_own_has_nothing_more_to_round():
    sketch = networks.Sketch(5)
    x = "x"
    for name, inside in (("a", 3), ("b", 4)):
        x = sketch.conv(pair(sketch, x, f"before_{name}", 0.05), name, inside, 4)
        x = sketch.node("Sigmoid", [x], f"{name}.gate") if name == "a" else x
    sketch.nodes[-1].output[0] = "y"
    network = load_network(sketch.model([1, 3, 8, 8], [1, 4, 8, 8]))
    plan = network.free_plan(network.quantizable)
    written = [
        PlanWriter(network, {}, GraphTarget.ONNXRUNTIME, unquantized_round=on).write(plan) for on in (False, True)
    ]
    assert written[0].model == written[1].model
    assert TensorProto.INT8 in {tensor.data_type for tensor in written[0].model.graph.initializer}
