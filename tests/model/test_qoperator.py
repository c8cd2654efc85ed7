"""Files in ONNX Runtime's QOperator format, beside ONNX Runtime's own integer kernels."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnxruntime.quantization import QuantFormat

import trt_bisect
from tests.support import networks
from tests.support.by_hand import cosine
from tests.support.quantized import plain_run, plain_tensors, quantized_by_onnxruntime, round_trip
from trt_bisect.errors import BadInput
from trt_bisect.model.session import integer_sums_are_exact
from trt_bisect.preparation.two_networks import Planned

exact = pytest.mark.skipif(not integer_sums_are_exact(), reason="this processor's INT8 kernels saturate")


def branches():
    """Every operator that ONNX Runtime's quantizer has an integer kernel for, and some that keep levels."""
    sketch = networks.Sketch(3)
    conv = sketch.node("Conv", ["x", sketch.constant("w", sketch.weight("w", 4, 3, 3, 3))], "conv", pads=[1] * 4)
    sketch.nodes.append(helper.make_node("Split", [conv], ["left", "right"], "split", axis=1))
    joined = sketch.node("Concat", ["right", "left"], "joined", axis=1)
    pooled = sketch.node("MaxPool", [joined], "maxpool", kernel_shape=[2, 2], strides=[2, 2])
    mean = sketch.node("AveragePool", [conv], "mean", kernel_shape=[2, 2], strides=[2, 2])
    leaky, gate = sketch.node("LeakyRelu", [pooled], "leaky", alpha=0.2), sketch.node("Sigmoid", [mean], "gate")
    both = sketch.node("Concat", [sketch.node("Mul", [leaky, gate], "mul"), mean, "x2"], "concat", axis=1)
    turned = sketch.node("Transpose", [both], "turned", perm=[0, 2, 3, 1])
    product = sketch.node("MatMul", [turned, sketch.constant("m", sketch.weight("m", 11, 5))], "product")
    shares = sketch.node("Softmax", [product], "shares", axis=-1)
    flat = sketch.node("Flatten", [shares], "flat")
    weight, bias = sketch.constant("fc.w", sketch.weight("fc", 6, 80)), sketch.constant("fc.b", np.linspace(-1, 1, 6))
    sketch.node("Gemm", [flat, weight, bias], "fc", out="y", transB=1, alpha=0.5)
    return sketch.model({"x": [1, 3, 8, 8], "x2": [1, 3, 4, 4]}, {"y": [1, 6]})


def samples_of(model, count=4):
    random = np.random.default_rng(1)
    shapes = {value.name: [d.dim_value or 1 for d in value.type.tensor_type.shape.dim] for value in model.graph.input}
    return [{name: random.normal(size=s).astype(np.float32) for name, s in shapes.items()} for _ in range(count)]


def quantized(model, folder, **how):
    samples = samples_of(model)
    path, out = networks.save(model, folder), folder / "integer.onnx"
    quantized_by_onnxruntime(path, out, samples, quant_format=QuantFormat.QOperator, **how)
    return path, out, samples


def integers(path, samples):
    """The tensors of levels that a file's integer kernels make, by name, with scale and zero point."""
    model = onnx.load(path)
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    made = [name for node in model.graph.node for name in node.output if name.endswith("_quantized")]
    stems = [name.removesuffix("_quantized") for name in made]
    return {
        stem: (levels, constants[f"{stem}_scale"], constants[f"{stem}_zero_point"])
        for stem, levels in zip(stems, plain_tensors(path, made, samples).values(), strict=True)
        if f"{stem}_scale" in constants
    }


@exact
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("make", [networks.residual, networks.depthwise, networks.transformer, branches])
def test_the_levels_are_those_of_the_integer_kernels(make, per_channel, tmp_path):
    _, path, samples = quantized(make(), tmp_path, per_channel=per_channel)
    network = trt_bisect.load_network(path)
    run = Planned.as_in_file(network).as_it_runs()
    found = [run.tensors(sample) for sample in samples]
    wanted = integers(path, samples)
    compared = [name for name in wanted if name in found[0]]
    assert len(compared) > 0.7 * len(wanted)
    for name in compared:
        levels, scale, zero = wanted[name]
        limits = np.iinfo(zero.dtype)
        floats = np.concatenate([tensors[name] for tensors in found])
        ours = np.clip(np.rint(floats / scale) + zero.astype(int), limits.min, limits.max)
        # A value at the edge between two levels may fall to the other side, and what it causes behind it too.
        assert np.mean(ours != levels) < 5e-3, name
        assert np.abs(ours - levels).max() <= 2
    assert {layer.op_type for layer in network.layers}.isdisjoint({"QuantizeLinear", "DequantizeLinear"})
    count = sum(node.op_type.startswith("QLinear") or node.op_type == "QGemm" for node in onnx.load(path).graph.node)
    assert network.notes[0].startswith(f"the file has {count} integer layers")


def test_an_old_opset_is_converted_and_a_scale_that_is_no_constant_is_refused(tmp_path):
    model = networks.chain(2)
    model.opset_import[0].version = 11
    _, path, _ = quantized(model, tmp_path, per_channel=True)
    assert {layer.op_type for layer in trt_bisect.load_network(path).layers} >= {"Conv", "Gemm"}
    given = onnx.load(path)
    next(node for node in given.graph.node if node.op_type == "QLinearConv").input[6] = "scale"
    given.graph.input.append(helper.make_tensor_value_info("scale", onnx.TensorProto.FLOAT, []))
    with pytest.raises(BadInput, match="QLinearConv"):
        trt_bisect.load_network(given)


@pytest.mark.slow
@exact
def test_an_integer_file_is_measured_with_its_zero_points(tmp_path):
    sketch = networks.Sketch(5)
    parts = [sketch.constant(name, sketch.random.normal(size=shape)) for name, shape in (("w", (16, 8)), ("b", 8))]
    sketch.node("Gemm", ["x", *parts], "fc", out="y")
    path, integer, samples = quantized(sketch.model(["n", 16], ["n", 8]), tmp_path)
    data = {"x": np.concatenate([sample["x"] for sample in samples])}
    exact, low = ([plain_run(file, sample, optimised=False)[0] for sample in samples] for file in (path, integer))
    wanted = list(map(cosine, exact, low))
    assert trt_bisect.worst(path, other=integer, dataset=data).values == pytest.approx(wanted, abs=1e-8)
    assert trt_bisect.worst(integer, other=path, dataset=data).values == pytest.approx(wanted, abs=1e-8)
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(integer).graph.initializer}
    scale = constants["w_scale"]
    weight = (constants["w_quantized"].astype(np.float32) - constants["w_zero_point"]) * scale
    bias = constants["b_quantized"] * constants["x_scale"] * scale
    floats = [sample["x"] @ weight + bias for sample in samples]  # the weights of the integer file
    found = trt_bisect.sensitivity(integer, inputs=data, engine="onnxruntime", output=tmp_path / "sensitivity")
    (both,) = [op for op in found.ops if op.sensitive_type == "both"]
    assert both.loss == pytest.approx(max(1 - cosine(*pair) for pair in zip(low, floats, strict=True)), rel=5e-3)
    rows = trt_bisect.compare(integer, inputs=data).tensors
    (x,) = [row for row in rows if row.origin.tensor == "x"]
    noise = (round_trip(data["x"], constants["x_scale"], constants["x_zero_point"]) - data["x"]).astype(float)
    assert (x.quantized_dtype, x.scale) == (str(constants["x_zero_point"].dtype), pytest.approx(constants["x_scale"]))
    share = np.mean(data["x"].astype(float) ** 2) / np.mean(noise**2)
    assert x.rounding.sqnr == pytest.approx(10 * np.log10(share), abs=0.01)
