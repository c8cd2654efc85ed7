"""Networks that other tools quantized: what their Q/DQ pairs mean, held against ONNX Runtime on the file itself."""

import re

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from onnxruntime.quantization import QuantType

import trt_bisect
from tests.support import networks
from tests.support.by_hand import cosine
from tests.support.flawed_structures import Rounded, pair
from tests.support.networks import Sketch
from tests.support.quantized import for_tensorrt, in_plan, plain_run, quantized_by_onnxruntime, reference
from tests.support.records import texts
from trt_bisect import BadInput, load_network
from trt_bisect.model.file import save_model
from trt_bisect.model.quantizer import Quantizer
from trt_bisect.options.commands import CompareOptions
from trt_bisect.options.concerns import RunOptions
from trt_bisect.preparation.asked_network import asked_network
from trt_bisect.support.text import percent


def by_onnxruntime(path, feeds):
    """The first output of a file, its pairs in float as they are."""
    return plain_run(path, feeds)[0]


def int8_and_float(network, feeds):
    """The first output of full INT8 and of the network without a pair."""
    (low,) = in_plan(network, network.free_plan(network.quantizable), feeds).values()
    return low, reference(network, feeds)[0]


def parsed_by_tensorrt(path):
    """Returns True if TensorRT's own parser takes a file, strongly typed; it needs no GPU for that."""
    trt = pytest.importorskip("tensorrt_rtx_bindings")
    logger = trt.Logger(trt.Logger.INTERNAL_ERROR)
    network = trt.Builder(logger).create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    return trt.OnnxParser(network, logger).parse(path.read_bytes())


# the integers of a pair


def rounded_product(folder, zero_point=None, levels=TensorProto.INT8, dequantizer=()):
    """x rounded to steps of 0.05 and multiplied by a weight, opset 21: the file, the weight and an input."""
    sketch = Sketch(31)
    weight = sketch.constant("w", sketch.random.normal(size=(8, 4)))
    scale = sketch.constant("s", 0.05)
    zero = [] if zero_point is None else [sketch.constant("z", zero_point, np.int8)]
    named = {"output_dtype": levels} if levels else {}
    rounded = sketch.node("QuantizeLinear", ["x", scale, *zero], "q", **named)
    back = [sketch.constant("back", point, np.int8) for point in dequantizer]
    restored = sketch.node("DequantizeLinear", [rounded, scale, *(zero or back)], "dq")
    sketch.node("MatMul", [restored, weight], "product", out="y")
    path = folder / "pair.onnx"
    onnx.save(sketch.model([2, 8], [2, 4], opset=21), path)
    feeds = {"x": np.linspace(-5, 5, 16, dtype=np.float32).reshape(2, 8)}
    return path, numpy_helper.to_array(sketch.constants[0]), feeds


@pytest.mark.parametrize("named", [True, False], ids=["by output_dtype", "by the dequantizer's zero point"])
def test_what_the_integers_are_where_the_quantizer_has_no_zero_point(named, tmp_path):
    """TensorRT's parser takes the second pair as INT8; by ONNX alone the quantizer's integers would be uint8."""
    path, weight, feeds = rounded_product(tmp_path, **({} if named else {"levels": None, "dequantizer": [0]}))
    found, _ = int8_and_float(load_network(path), feeds)
    if named:
        np.testing.assert_allclose(found, by_onnxruntime(path, feeds), rtol=1e-6, atol=1e-6)
    expected = (np.clip(np.rint(feeds["x"] / np.float32(0.05)), -128, 127) * np.float32(0.05)) @ weight
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_a_pair_whose_sides_differ_is_no_rounding_and_stays(tmp_path):
    """A quantizer and a dequantizer of different zero points shift the values: that is not to be left out."""
    path, _, feeds = rounded_product(tmp_path, zero_point=3)
    model = onnx.load(path)
    model.graph.initializer.append(numpy_helper.from_array(np.array(5, np.int8), "other"))
    model.graph.node[1].input[2] = "other"
    onnx.save(model, path)
    network = load_network(path)
    assert not network.has_pairs
    (found,) = reference(network, feeds)
    np.testing.assert_allclose(found, by_onnxruntime(path, feeds), rtol=1e-6)


@pytest.mark.parametrize("levels", [TensorProto.FLOAT8E5M2, TensorProto.INT4, TensorProto.INT16, TensorProto.UINT16])
def test_pairs_of_other_types_are_refused(levels, tmp_path):
    path, _, _ = rounded_product(tmp_path, levels=levels)
    name = TensorProto.DataType.Name(levels)
    with pytest.raises(BadInput, match=f"{name} at 1 Q/DQ nodes, 'q'"):
        load_network(path)


def test_sixteen_bits_of_onnxruntimes_quantizer_are_refused(tmp_path):
    """Before opset 21 its nodes are of the domain com.microsoft."""
    model = networks.chain(depth=2)
    path, quantized = networks.save(model, tmp_path), tmp_path / "quantized.onnx"
    samples = [{"x": networks.samples(model, 1)["x"]}]
    quantized_by_onnxruntime(path, quantized, samples, activation_type=QuantType.QInt16)
    with pytest.raises(BadInput, match="INT16 at"):
        load_network(quantized)


# FP16


def half_network(folder, opset, stored):
    """Conv, Relu, Conv, a residual sum, pooling, Gemm in FP16 with FP16 scales, as ModelOpt writes them.

    Args:
        stored: the weights are integers in the file; else FP16 with a pair.
    """
    sketch = Sketch(7)

    def rounded(x, name, scale):
        return pair(sketch, x, name, scale, kind=np.float16)

    def weight(name, *shape):
        values = sketch.random.normal(0, 0.3, shape)
        scales = (np.abs(values).max(axis=tuple(range(1, len(shape)))) / 127).astype(np.float16)
        if not stored:
            floats = sketch.constant(f"{name}.float", values, np.float16)
            return pair(sketch, floats, name, scales, axis=0, kind=np.float16)
        levels = np.rint(values / scales.astype(np.float64).reshape(-1, *(1 for _ in shape[1:])))
        given = [sketch.constant(f"{name}.stored", np.clip(levels, -128, 127), np.int8)]
        given.append(sketch.constant(f"{name}.scale", scales, np.float16))
        return sketch.node("DequantizeLinear", given, name, axis=0)

    x = sketch.node("Cast", ["x"], "in", to=TensorProto.FLOAT16)
    bias = sketch.constant("b0", sketch.random.normal(0, 0.1, 8), np.float16)
    skip = sketch.node("Conv", [rounded(x, "x0", 0.03), weight("w0", 8, 3, 3, 3), bias], "conv0", pads=[1] * 4)
    skip = sketch.node("Relu", [skip], "relu0")
    x = sketch.node("Conv", [rounded(skip, "x1", 0.03), weight("w1", 8, 8, 3, 3)], "conv1", pads=[1] * 4)
    x = sketch.node("Relu", [sketch.node("Add", [x, rounded(skip, "x2", 0.04)], "add")], "relu1")
    x = sketch.node("Flatten", [sketch.node("GlobalAveragePool", [x], "pool")], "flat")
    x = sketch.node("Gemm", [rounded(x, "x3", 0.01), weight("w2", 10, 8)], "fc", transB=1)
    sketch.node("Cast", [x], "out", out="y", to=TensorProto.FLOAT)
    model = sketch.model(["n", 3, 8, 8], ["n", 10], opset=opset)
    model.ir_version = 10
    return networks.save(model, folder)


def without_pairs(path, folder):
    """The file with every dequantizer's output replaced by what its quantizer read, by its protobuf alone."""
    model = onnx.load(path)
    made = {node.output[0]: node for node in model.graph.node}
    behind = {out: made[n.input[0]].input[0] for out, n in made.items() if n.op_type == "DequantizeLinear"}
    kept = [networks.copied(n) for n in model.graph.node if n.op_type not in ("QuantizeLinear", "DequantizeLinear")]
    for node in kept:
        node.input[:] = [behind.get(name, name) for name in node.input]
    del model.graph.node[:]
    model.graph.node.extend(kept)
    return networks.save(model, folder, "without.onnx")


@pytest.mark.parametrize("opset", [19, 21])
@pytest.mark.parametrize("stored", [False, True], ids=["float weights", "stored weights"])
def test_a_network_in_fp16_is_measured_as_onnxruntime_runs_it(opset, stored, tmp_path):
    path = half_network(tmp_path, opset, stored)
    feeds = {"x": networks.normal(0, 2, 3, 8, 8)}
    network = load_network(path)
    assert "FP16" in network.notes[0]
    assert [network.layers[k].name for k in network.quantizable] == ["conv0", "conv1", "add", "fc"]
    int8, floats = int8_and_float(network, feeds)
    np.testing.assert_allclose(int8, by_onnxruntime(path, feeds), atol=2e-3)
    if not stored:
        np.testing.assert_allclose(floats, by_onnxruntime(without_pairs(path, tmp_path), feeds), atol=2e-3)
    written = for_tensorrt(network)
    types = {tensor.name: tensor.data_type for tensor in written.model.graph.initializer}
    scales = {types[node.input[1]] for node in written.model.graph.node if node.op_type == "DequantizeLinear"}
    assert scales == {TensorProto.FLOAT16}


def test_tensorrt_takes_a_recipe_in_fp16(tmp_path):
    network = load_network(half_network(tmp_path, 19, stored=True))
    written = for_tensorrt(network)
    save_model(written.model, written.weights, tmp_path / "recipe.onnx")
    kinds = [finding.kind for finding in trt_bisect.check(tmp_path / "recipe.onnx").findings]
    assert kinds == ["unlike pairs"], "the file gives the sum's skip side another scale than the convolution's input"
    assert parsed_by_tensorrt(tmp_path / "recipe.onnx")


# asymmetric pairs


def test_the_symmetric_quantizer_reaches_as_far():
    """By hand: levels of uint8 with zero point 0 and scale 0.1 reach 25.5, which are 127 steps of 25.5 / 127."""
    unsigned = [(np.uint8, 0, 25.5 / 127), (np.uint8, 128, 0.1), (np.uint8, 255, 25.5 / 128)]
    cases = [*unsigned, (np.int8, -128, 25.5 / 127), (np.int8, 27, 15.5 / 128), (np.int8, 0, 0.1)]
    for dtype, zero, expected in cases:
        found = Quantizer(np.array(0.1, np.float32), np.array(zero, dtype)).symmetric()
        assert found.zero_point.dtype == np.int8
        assert not found.zero_point.any()
        assert float(found.scale) == pytest.approx(expected, rel=1e-6)


def activated(sketch, x, name, kind):
    if kind == "relu":
        return sketch.node("Relu", [x], f"{name}.relu")
    if kind == "silu":
        return sketch.node("Mul", [x, sketch.node("Sigmoid", [x], f"{name}.sigmoid")], f"{name}.silu")
    scaled = sketch.node("Mul", [x, sketch.constant(f"{name}.root", 0.5**0.5)], f"{name}.scaled")
    gate = sketch.node("Add", [sketch.node("Erf", [scaled], f"{name}.erf"), sketch.constant(f"{name}.one", 1)], name)
    both = sketch.node("Mul", [x, gate], f"{name}.gated")
    return sketch.node("Mul", [both, sketch.constant(f"{name}.half", 0.5)], f"{name}.gelu")


def asymmetric(folder, kind, **options):
    """A network of products with activations, ONNX Runtime's quantization of it, and the inputs of its calibration.

    One channel is loud, as in transformers: its scale is so coarse that the least value of GELU rounds to zero.
    """
    sketch, x = Sketch(5), "x"
    for k in range(3):
        x = activated(sketch, sketch.dense(x, f"fc{k}", 16, 16), f"act{k}", kind)
    weight = sketch.constant("last.weight", sketch.random.normal(0, 0.3, (16, 8)))
    sketch.node("MatMul", [x, weight], "last", out="y")
    model = sketch.model(["n", 16], ["n", 8])
    for k in range(2):
        networks.plant_between(model, f"fc{k}", f"fc{k + 1}", factor=200.0)
    plain = networks.save(model, folder)
    samples = [{"x": networks.normal(k, 4, 16)} for k in range(6)]
    quantized_by_onnxruntime(plain, folder / "quantized.onnx", samples, **options)
    return plain, folder / "quantized.onnx", samples


FLOAT_WEIGHTS = {"extra_options": {"QuantizeBias": False, "AddQDQPairToWeight": True}}


@pytest.mark.parametrize("kind", ["relu", "silu", "gelu"])
def test_the_network_without_its_asymmetric_pairs_is_the_one_before_quantizing(kind, tmp_path):
    plain, quantized, samples = asymmetric(tmp_path, kind, **FLOAT_WEIGHTS)
    removed = len([node for node in onnx.load(plain).graph.node if node.op_type == "Relu"])
    assert not any(node.op_type == "Relu" for node in onnx.load(quantized).graph.node)
    network = load_network(quantized)
    assert len([layer for layer in network.layers if layer.name.endswith(".absorbed_relu")]) == removed
    for feeds in samples[:2]:
        exact = by_onnxruntime(plain, feeds)
        np.testing.assert_allclose(int8_and_float(network, feeds)[1], exact, rtol=1e-4, atol=1e-4)
        in_file = int8_and_float(network.as_in_file(), feeds)[0]
        np.testing.assert_allclose(in_file, by_onnxruntime(quantized, feeds), rtol=1e-4, atol=1e-3)


def test_what_cannot_be_told_is_said_once(tmp_path):
    path = asymmetric(tmp_path, "gelu", **FLOAT_WEIGHTS)[1]
    graph = onnx.load(path).graph
    products = {node.output[0] for node in graph.node if node.op_type == "Mul"}
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    quantizers = [node for node in graph.node if node.op_type == "QuantizeLinear" and node.input[0] in products]
    at_zero = [node for node in quantizers if values[node.input[2]] == np.iinfo(values[node.input[2]].dtype).min]
    assert len(at_zero) > 1
    (said,) = [note for note in load_network(path).notes if "Relu" in note]
    assert f"after {len(at_zero)} layers" in said


def test_a_relu_behind_a_pool_is_put_back_and_none_where_the_name_denies_it(tmp_path):
    """A convolution of positive weights on positive inputs begins at zero by itself; its output has its own name."""
    sketch = Sketch(9)
    weight = sketch.constant("w", np.abs(sketch.random.normal(size=(4, 3, 1, 1))))
    positive = sketch.node("Conv", ["x", weight], "positive")
    signed = sketch.node("Conv", [positive, sketch.constant("v", sketch.random.normal(size=(4, 4, 1, 1)))], "signed")
    pooled = sketch.node("MaxPool", [signed], "pool", kernel_shape=[2, 2])
    last = sketch.constant("u", sketch.random.normal(size=(4, 4, 1, 1)))
    sketch.node("Conv", [sketch.node("Relu", [pooled], "relu"), last], "last", out="y", pads=[0] * 4)
    plain = networks.save(sketch.model([1, 3, 8, 8], [1, 4, 7, 7]), tmp_path)
    samples = [{"x": np.random.default_rng(k).uniform(0, 1, (1, 3, 8, 8)).astype(np.float32)} for k in range(4)]
    quantized_by_onnxruntime(plain, tmp_path / "quantized.onnx", samples, **FLOAT_WEIGHTS)
    network = load_network(tmp_path / "quantized.onnx")
    assert [layer.name for layer in network.layers if layer.op_type == "Clip"] == ["pool.absorbed_relu"]
    mirrored = {"x": -samples[0]["x"]}
    found = int8_and_float(network, mirrored)[1]
    np.testing.assert_allclose(found, by_onnxruntime(plain, mirrored), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("by", ["BatchNormalization", "Conv"])
@pytest.mark.parametrize("levels", [QuantType.QUInt8, QuantType.QInt8])
def test_a_range_that_begins_at_zero_by_itself_is_no_absorbed_relu(by, levels, tmp_path):
    """The shift after the Relu is less than half a step, so that the pair behind it has its zero point at the lowest
    level. The pooled mean is that shift. The Relu before it was removed, and is put back."""
    sketch = Sketch(2)
    identity = np.eye(4).reshape(4, 4, 1, 1)
    made = sketch.node("Relu", [sketch.node("Conv", ["x", sketch.constant("w", identity)], "conv")], "relu")
    if by == "BatchNormalization":
        parts = [sketch.constant(f"bn.{k}", np.full(4, value)) for k, value in enumerate((1.0, 0.0, 0.035, 1.0))]
        made = sketch.node("BatchNormalization", [made, *parts], "shift", out="shifted", epsilon=0.0)
    else:
        parts = [sketch.constant("shift.weight", identity), sketch.constant("shift.bias", np.full(4, -0.035))]
        made = sketch.node("Conv", [made, *parts], "shift", out="shifted")
    last = sketch.constant("u", sketch.random.normal(size=(8, 4, 1, 1)))
    sketch.node("Conv", [sketch.node("GlobalAveragePool", [made], "pool"), last], "last", out="y")
    plain = networks.save(sketch.model([1, 4, 16, 16], [1, 8, 1, 1]), tmp_path)
    x = -np.abs(np.random.default_rng(0).normal(size=(8, 1, 4, 16, 16))).astype(np.float32)
    x[:, :, :, 3, 5] = np.linspace(1, 20, 32).reshape(8, 1, 4)
    quantized = tmp_path / "quantized.onnx"
    samples = [{"x": sample} for sample in x]
    quantized_by_onnxruntime(plain, quantized, samples, activation_type=levels, **FLOAT_WEIGHTS)
    graph = {layer.name: layer.op_type for layer in load_network(quantized).layers}
    assert graph["shift.absorbed_relu"] == "Clip", "the graph alone does not tell"
    for options in (RunOptions(inputs={"x": x}), RunOptions(calibration={"x": x}), CompareOptions(inputs={"x": x})):
        network = asked_network(options, quantized, None)
        assert [each.layer for each in network.restored] == ["conv.absorbed_relu"]
        found = int8_and_float(network, samples[0])[1]
        np.testing.assert_allclose(found, by_onnxruntime(plain, samples[0]), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_file_that_is_not_the_references_without_its_pairs_either_is_said_to_be_so(tmp_path):
    plain, quantized, samples = asymmetric(tmp_path, "relu", **FLOAT_WEIGHTS)
    other = onnx.load(plain)
    networks.scale_constant(other, "last.weight", lambda values: values[:, ::-1])
    unlike = networks.save(other, tmp_path, "unlike.onnx")
    how = {"engine": "onnxruntime", "explain": "none", "effort": "quick"}
    found, right = (trt_bisect.run(quantized, inputs=samples[:2], reference=each, **how) for each in (unlike, plain))
    (warning,) = found.inputs.warnings
    worst = min(cosine(by_onnxruntime(unlike, feeds), by_onnxruntime(plain, feeds)) for feeds in samples[:2])
    assert f"even without its Q/DQ pairs, in FP32, '{quantized}' measures {percent(worst)[:3]}" in warning
    assert not right.inputs.warnings


@pytest.mark.parametrize("dedicated", [False, True])
def test_a_tensor_that_two_layers_read_counts_once_as_asymmetric(dedicated):
    """Rounded are 'x' and two weights, whether 'x' has one pair or, as by DedicatedQDQPair, one for each reader."""
    sketch = Rounded()
    rounded = pair(sketch, "x", "in", zero=3)
    other = pair(sketch, "x", "in2", zero=3) if dedicated else rounded
    branches = [sketch.quantized(rounded, "conv1", 3), sketch.quantized(other, "conv2", 3)]
    network = load_network(sketch.finished(sketch.node("Sub", branches, "sub")))
    assert re.findall(r"\d+", network.notes[0])[:2] == ["1", "3"]


@pytest.mark.slow
def test_an_asymmetric_file_gets_a_symmetric_recipe_and_its_own_figure(tmp_path):
    _, quantized, samples = asymmetric(tmp_path, "gelu")
    assert {finding.severity for finding in trt_bisect.check(quantized).findings} >= {"error"}
    how = {
        "engine": "onnxruntime",
        "threshold": 0.999,
        "effort": "quick",
        "output": tmp_path / "run",
        "explain": "tensors",
    }
    report = trt_bisect.run(quantized, inputs=samples[:1], **how)
    recipe = tmp_path / "run" / "recipe" / "network.qdq.onnx"
    assert [finding for finding in trt_bisect.check(recipe).findings if finding.severity == "error"] == []
    network = load_network(quantized)
    assert "asymmetric" in texts(report.notes)[0]
    assert report.explanation is not None
    floats = int8_and_float(network, samples[0])[1]
    own = cosine(by_onnxruntime(quantized, samples[0]), floats)
    assert f"{100 * own:.2f}" in texts(report.notes)[1]
    written = for_tensorrt(network)
    save_model(written.model, written.weights, tmp_path / "symmetric.onnx")
    ours = cosine(by_onnxruntime(tmp_path / "symmetric.onnx", samples[0]), floats)
    assert report.similarity.int8 == pytest.approx(ours, abs=1e-6)
    assert not parsed_by_tensorrt(quantized)
    assert parsed_by_tensorrt(recipe)
