"""``profile`` of networks with Q/DQ pairs: both sides of each pair, by the operators of ONNX Runtime."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnxruntime.quantization import QuantFormat

import trt_bisect
from tests.model.test_unquantized import with_pairs
from tests.support import networks
from tests.support.quantized import plain_tensors, quantized_by_onnxruntime, round_trip

CONVOLUTIONS = ("conv0", "conv1", "conv2")
READ = ("x", "relu1_out", "relu2_out")
PAIRS = {"int8": (np.int8(0), (0.01, 0.004, 0.02)), "uint8": (np.uint8(100), (0.015, 0.008, 0.02))}
"""By the type of the levels a zero point, and the scales before the three convolutions, so small that values clip."""


@pytest.fixture(scope="module", params=PAIRS)
def quantized(request, tmp_path_factory):
    """The type of the levels, a network with a pair before each convolution, and samples."""
    model, (zero_point, scales) = networks.chain(3), PAIRS[request.param]
    made = with_pairs(model, dict(zip(READ, scales, strict=True)), [], zero_point)
    return request.param, networks.save(made, tmp_path_factory.mktemp("pairs")), networks.samples(model, 3)["x"]


def tensors_of(path, samples):
    """The tensors of a network by name, as its file computes them, all samples together."""
    names = [name for node in onnx.load(str(path)).graph.node for name in node.output]
    found = plain_tensors(path, names, networks.feeds(samples))
    return {"x": samples, **{name: values.astype(np.float32) for name, values in found.items()}}


def pair_of(path, tensor):
    """The scale and the zero point of the pair on a tensor, from the file."""
    graph = onnx.load(str(path)).graph
    constants = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    node = next(node for node in graph.node if node.op_type == "QuantizeLinear" and node.input[0] == tensor)
    return constants[node.input[1]], constants[node.input[2]]


def test_both_sides_of_each_pair(quantized):
    """Moments before and after, as the file computes them with the pairs before, scale, zero point, clipped values."""
    dtype, qdq, samples = quantized
    found = trt_bisect.profile(qdq, inputs={"x": samples})
    tensors = tensors_of(qdq, samples)
    rows = {row.layer: row for row in found.tensors if row.role == "input" and row.quantized_dtype}
    assert {*CONVOLUTIONS} <= set(rows)
    clipped = []
    for name in CONVOLUTIONS:
        row = rows[name]
        scale, zero_point = pair_of(qdq, row.tensor)
        assert (row.dtype, row.quantized_dtype) == ("float32", dtype)
        assert (row.scale, row.zero_point) == (float(scale), int(zero_point))
        values = tensors[row.tensor]
        after = round_trip(values, scale, zero_point)
        for side, seen in ((values, row.spread), (after, row.rounded)):
            numbers = side.astype(np.float64)
            expected = (numbers.min(), numbers.max(), numbers.mean(), numbers.var(), numbers.size)
            assert (seen.min, seen.max, seen.mean, seen.variance, seen.count) == pytest.approx(expected, rel=2e-4)
        limits = np.iinfo(zero_point.dtype)
        level = np.rint(values / scale) + zero_point
        outside = np.mean((level < limits.min) | (level > limits.max))
        assert row.rounding.clipped == pytest.approx(outside, abs=2e-3)
        assert sum(row.histogram.fp32) == sum(row.histogram.int8) == values.size
        clipped.append(outside)
    assert max(clipped) > 0.05, "the pairs are too wide for this test"
    (last,) = (row for row in found.tensors if row.tensor == "y")
    seen, expected = last.spread, tensors["y"].astype(np.float64)
    assert (seen.min, seen.max, seen.std) == pytest.approx((expected.min(), expected.max(), expected.std()), rel=2e-4)


def test_an_integer_file_has_the_values_of_its_levels(tmp_path):
    """QOperator: the levels that ONNX Runtime's integer kernels give, times the file's scales."""
    model = networks.chain(2)
    path, integers = networks.save(model, tmp_path), tmp_path / "integers.onnx"
    samples = networks.feeds(networks.samples(model, 3)["x"])
    quantized_by_onnxruntime(path, integers, samples, quant_format=QuantFormat.QOperator)
    graph, expected = onnx.load(integers).graph, []
    constants = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    places = {"QuantizeLinear": 1, "QLinearConv": 6, "QGemm": 7, "QLinearGlobalAveragePool": 3}
    made = {node.output[0]: node.input[places[node.op_type] :][:2] for node in graph.node if node.op_type in places}
    assert len(made) == len(places) + 1
    for name, levels in plain_tensors(integers, made, samples).items():
        scale, zero_point = (constants[part].astype(np.float64) for part in made[name])
        values = (levels - zero_point) * scale
        expected.append((values.min(), values.max(), values.mean(), values.std()))
    found = trt_bisect.profile(integers, inputs={"x": np.concatenate([sample["x"] for sample in samples])})
    rows = [row for row in found.tensors if row.rounded is not None and row.role != "weight"]
    assert {row.layer.removesuffix("_quant") for row in rows} >= {"conv0", "conv1", "pool", "fc"}
    for row in rows:
        seen = (row.rounded.min, row.rounded.max, row.rounded.mean, row.rounded.std)
        assert any(seen == pytest.approx(figures, rel=1e-5, abs=1e-6) for figures in expected), row.tensor


def test_a_layer_kept_high_has_one_side_only(quantized):
    _, qdq, samples = quantized
    found = trt_bisect.profile(qdq, inputs={"x": samples[:1]}, high=["conv1"])
    sides = {row.layer: row.rounded is not None for row in found.tensors if row.role == "input"}
    assert sides["conv0"]
    assert not sides["conv1"]


@pytest.mark.parametrize(
    ("options", "layers"),
    [
        ({"prefix": ["conv1", "fc"]}, {"conv1", "fc"}),
        ({"prefix": "conv"}, {"conv0", "conv1", "conv2"}),
        ({"prefix": ["conv2", "relu", "fc"], "op_types": ["Relu", "Conv"]}, {"conv2", "relu1", "relu2"}),
    ],
)
def test_several_prefixes_and_operators(options, layers, tmp_path):
    found = trt_bisect.profile(networks.save(networks.chain(3), tmp_path), **options)
    assert {row.layer for row in found.tensors} == layers
