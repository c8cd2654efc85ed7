"""Weak typing on networks that NVIDIA's own ONNX parser made: TensorRT-RTX's, which needs no GPU to parse.

The parser of TensorRT 8.6 makes the same layers and gives fewer of them a name. Source: onnx-tensorrt, release/8.6-GA,
the importers of Gemm and MatMul and ``registerLayer``: what is not registered keeps ``(Unnamed Layer* N) [Kind]`` and
has no metadata. TensorRT-RTX has neither ``dynamic_range`` nor ``precision``, so what it parsed is copied into
stand-ins that have them.
"""

from types import SimpleNamespace

import numpy as np
import pytest

from tests.support.fake_tensorrt import FLOAT, TRT, DataType, Definition, FakeLayer, Tensor, misread
from tests.support.networks import Sketch, save
from trt_bisect.builder.tensorrt_build import RTX, parse_file, start_tensorrt
from trt_bisect.builder.tensorrt_weak import constrain, set_ranges, walk_steps
from trt_bisect.model.network import load_network
from trt_bisect.precision import int8_set, prefix

trt = pytest.importorskip("tensorrt_rtx_bindings")

ALPHA, BETA = 0.5, 3.0
SCALES = {"x": 0.01, "fc1_out": 0.02, "relu_out": 0.03, "fc2_out": 0.04, "mm1_out": 0.05, "mm2_out": 0.06}


def gemms(sketch):
    """fc1 0, with a bias, relu 1, fc2 2, without: each with its ``alpha``."""
    first = [sketch.constant("w1", sketch.weight("w1", 8, 6)), sketch.constant("b1", [0.1, -0.7, 0.3, 0.2, 0, 0.5])]
    fc1 = sketch.node("Gemm", ["x", *first], "fc1", alpha=ALPHA, beta=BETA)
    relu = sketch.node("Relu", [fc1], "relu")
    sketch.node("Gemm", [relu, sketch.constant("w2", sketch.weight("w2", 6, 5))], "fc2", alpha=ALPHA)
    return sketch.model({"x": ["n", 8]}, {"fc2_out": ["n", 5]})


def matmuls(sketch):
    """mm1 0, bias 1, mm2 2: each product reads three dimensions and multiplies by a weight of two."""
    mm1 = sketch.node("MatMul", ["x", sketch.constant("w1", sketch.weight("w1", 8, 6))], "mm1")
    bias = sketch.node("Add", [mm1, sketch.constant("b1", sketch.random.normal(0, 1, 6))], "bias")
    sketch.node("MatMul", [bias, sketch.constant("w2", sketch.weight("w2", 6, 5))], "mm2")
    return sketch.model({"x": ["n", 4, 8]}, {"mm2_out": ["n", 4, 5]})


@pytest.fixture(params=["8.6", "10", "10 with NumPy 2"])
def parse(request, tmp_path):
    def make(draw):
        network = load_network(save(draw(Sketch(3)), tmp_path))
        rt = start_tensorrt(RTX)
        parsed = parse_file(rt, tmp_path / "network.onnx")
        named = {layer.name for layer in network.layers} | {"w1", "b1", "w2"}
        definition = copied(parsed.network, named if request.param == "8.6" else None)
        if request.param.endswith("NumPy 2"):
            for layer in definition.layers:
                layer.weights = None if layer.weights is None else misread(layer.weights)
        return network, definition

    return make


def copied(network, named):
    """Stand-ins for a parsed network's layers; those that are not in ``named`` lose their name and their metadata."""
    inputs = [network.get_input(i).name for i in range(network.num_inputs)]
    definition = Definition(inputs, [network.get_output(i).name for i in range(network.num_outputs)])
    for position in range(network.num_layers):
        layer = network.get_layer(position)
        kind = layer.type.name
        read = [definition.tensors[layer.get_input(i).name] for i in range(layer.num_inputs)]
        made = [layer.get_output(i) for i in range(layer.num_outputs)]
        made = [Tensor(tensor.name, DataType[tensor.dtype.name], tensor.is_shape_tensor) for tensor in made]
        definition.tensors.update({tensor.name: tensor for tensor in made})
        unnamed = named is not None and layer.name not in named
        copy = FakeLayer(
            f"(Unnamed Layer* {position}) [{kind.title()}]" if unnamed else layer.name,
            SimpleNamespace(name=kind),
            read,
            made,
            "" if unnamed else layer.metadata,
        )
        if kind == "CONSTANT":
            layer.__class__ = trt.IConstantLayer
            copy.weights = np.array(layer.weights)
        if kind == "ELEMENTWISE":
            layer.__class__ = trt.IElementWiseLayer
            copy.op = layer.op.name
        definition.layers.append(copy)
    return definition


def asked(definition, network, plan):
    """By position in the network, of the layers that compute with activations: the kind, and what was asked of it."""
    steps = walk_steps(definition, network.layers)
    constrain(TRT, definition, steps, network, plan)
    said = definition.asked()
    return [(step.kind, said.get(step.layer.name)) for step in steps if not step.constant]


def ranges(definition, network):
    set_ranges(TRT, definition, walk_steps(definition, network.layers), network, SCALES)
    return {layer.name: [tensor.dynamic_range for tensor in layer.outputs] for layer in definition.layers}


def test_every_layer_of_a_gemm_belongs_to_it(parse):
    """The weights, the product, alpha and its multiply, the bias, beta and its multiply, the broadcast, the sum."""
    network, definition = parse(gemms)
    steps = walk_steps(definition, network.layers)
    fc1 = "CONSTANT MATRIX_MULTIPLY CONSTANT ELEMENTWISE CONSTANT CONSTANT ELEMENTWISE SHUFFLE ELEMENTWISE".split()
    fc2 = ["CONSTANT", "MATRIX_MULTIPLY", "CONSTANT", "ELEMENTWISE"]
    assert [(step.kind, step.owner) for step in steps] == [
        *((kind, 0) for kind in fc1), ("ACTIVATION", 1), *((kind, 2) for kind in fc2)
    ]  # fmt: skip
    assert [step.kind for step in steps if step.computes] == ["MATRIX_MULTIPLY", "ACTIVATION", "MATRIX_MULTIPLY"]


GEMMS = ["MATRIX_MULTIPLY", "ELEMENTWISE", "ELEMENTWISE", "ACTIVATION", "MATRIX_MULTIPLY", "ELEMENTWISE"]
"""The results of ``gemms``: the product, alpha's multiply and the sum of fc1, relu, the product and alpha of fc2."""
RESULT = (None, {0: "FLOAT"})


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (prefix(3, -1), [FLOAT] * 6),
        (int8_set(3, {0, 2}), [None, None, None, None, RESULT, FLOAT]),
        (prefix(3, 1), [RESULT, FLOAT, FLOAT]),
    ],
    ids=["all high", "fc1 and fc2", "fc1"],
)
def test_a_gemm_is_one_layer_with_its_alpha_and_its_bias(parse, plan, said):
    """High it is high with its alpha. What is left of it between INT8 Gemms is free; the last multiply makes the
    network's output. A boundary after it adds no rounding before its bias."""
    network, definition = parse(gemms)
    assert asked(definition, network, plan)[: len(said)] == list(zip(GEMMS, said, strict=False))


def test_the_parts_of_a_gemm_have_ranges_of_their_own(parse):
    """NumPy: beta times the bias reaches 3 * 0.7; the product, and alpha times it, have the range of the output."""
    network, definition = parse(gemms)
    found = list(ranges(definition, network).values())
    output = 127 * SCALES["fc1_out"]
    bias = float(np.abs(BETA * network.constant("b1")).max())
    assert bias == pytest.approx(2.1)
    weights = float(np.abs(network.constant("w1")).max())
    largest = [most for ((_, most),) in found[:9]]
    assert largest == pytest.approx([weights, output, ALPHA, output, 0.7, BETA, bias, bias, output])
    assert (largest[2], largest[5]) == (ALPHA, BETA)


def test_the_weights_of_a_matmul_are_left_free(parse):
    """The parser puts a Shuffle between weights of two dimensions and a product of three."""
    network, definition = parse(matmuls)
    steps = walk_steps(definition, network.layers)
    shuffles = [step for step in steps if step.kind == "SHUFFLE"]
    assert [(step.owner, step.constant) for step in shuffles] == [(0, True), (1, True), (2, True)]
    found = ranges(definition, network)
    for shuffle, weight in zip(shuffles, ("w1", "b1", "w2"), strict=True):
        largest = float(np.abs(network.constant(weight)).max())
        assert found[shuffle.layer.name] == [(pytest.approx(-largest), pytest.approx(largest))]
    kinds = ("MATRIX_MULTIPLY", "ELEMENTWISE", "MATRIX_MULTIPLY")
    assert asked(definition, network, int8_set(3, {0, 2})) == list(zip(kinds, (None, None, RESULT), strict=True))
    assert all(step.layer.precision is None and not step.layer.output_types for step in shuffles)
