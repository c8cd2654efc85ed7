"""FP16, BF16 and FP8: the emulation to the bit against NumPy and ml_dtypes, operator by operator."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tests.support import networks
from tests.support.networks import Sketch, save, scale_constant
from tests.support.quantized import for_tensorrt, in_plan, plain_run, reference, round_trip
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
from trt_bisect.errors import BadInput
from trt_bisect.model.network import load_network
from trt_bisect.model.quantizer import BF16, FP8, FP16, INT8, LowPrecision, find_low, symmetric
from trt_bisect.precision import Precision, PrecisionPlan, prefix

DTYPES = {"fp16": np.float16, "bf16": ml_dtypes.bfloat16}
IMAGE, ROWS = (1, 4, 6, 6), (3, 8)
OPERATORS = {
    "Conv": (IMAGE, {"w": (5, 4, 3, 3), "b": (5,)}, {}),
    "ConvTranspose": (IMAGE, {"w": (4, 5, 3, 3)}, {}),
    "Gemm": (ROWS, {"w": (8, 5), "b": (5,)}, {"alpha": 0.7}),
    "MatMul": (ROWS, {"w": (8, 5)}, {}),
    **{name: (ROWS, {"b": (8,)}, {}) for name in ("Add", "Sub", "Mul", "Div", "PRelu")},
    "LayerNormalization": (ROWS, {"g": (8,), "b": (8,)}, {}),
    "InstanceNormalization": (IMAGE, {"g": (4,), "b": (4,)}, {}),
    **{name: (ROWS, {}, {}) for name in "Exp Sqrt Erf Sigmoid Tanh Softplus LeakyRelu Reciprocal Elu".split()},
    **{name: (ROWS, {}, {"axis": -1}) for name in ("Softmax", "LogSoftmax")},
    **{name: (ROWS, {}, {"axes": [-1]}) for name in ("ReduceMean", "ReduceL2")},
    **{name: (ROWS, {}, {}) for name in ("ReduceSum", "HardSwish")},
    "AveragePool": (IMAGE, {}, {"kernel_shape": [2, 2]}),
    "GlobalAveragePool": (IMAGE, {}, {}),
    "Einsum": (ROWS, {"w": (8, 5)}, {"equation": "ab,bc->ac"}),
}


def single(op: str) -> onnx.ModelProto:
    """A network of one node of an operator, with seeded constants."""
    shape, constants, attributes = OPERATORS[op]
    sketch = Sketch(3)
    names = [sketch.constant(name, sketch.random.normal(0, 1, size)) for name, size in constants.items()]
    out = sketch.node(op, ["x", *names], "node", **attributes)
    return sketch.model({"x": list(shape)}, {out: [None] * len(shape)})


def rounded_by(dtype, values):
    with np.errstate(over="ignore"):
        return np.asarray(values, np.float32).astype(dtype).astype(np.float32)


def in_both(network, values, scales=None):
    """The output of the plan with all layers low, from its own engine and from the session of all plans."""
    builder, plan = OnnxRuntimeBuilder(network, scales or {}, BuildOptions()), network.free_plan(network.quantizable)
    (found,) = builder.build(plan).infer({"x": values}).values()
    (switched,) = builder.switch(1).infer(plan, {"x": values}).values()
    return found, switched


@pytest.mark.parametrize("low", ["fp16", "bf16"])
@pytest.mark.parametrize("op", OPERATORS)
def test_a_layer_rounds_what_it_reads_and_what_it_makes(op, low):
    model, dtype = single(op), DTYPES[low]
    values = np.abs(np.random.default_rng(1).normal(0, 1, OPERATORS[op][0])).astype(np.float32)
    for tensor in model.graph.initializer:
        scale_constant(model, tensor.name, lambda constant: rounded_by(dtype, constant))
    (inside,) = plain_run(model, {"x": rounded_by(dtype, values)}, optimised=False)
    network = load_network(single(op), low=find_low(low))
    assert network.quantizable == (0,)
    found, switched = in_both(network, values)
    np.testing.assert_array_equal(switched, rounded_by(dtype, inside))
    np.testing.assert_array_equal(found, rounded_by(dtype, found))
    np.testing.assert_allclose(found, switched, rtol=2 * float(ml_dtypes.finfo(dtype).eps), atol=1e-6)


@pytest.mark.parametrize(("low", "value", "becomes"), [
    ("fp16", 65519.0, 65504.0), ("fp16", 65520.0, np.inf), ("fp16", -7e4, -np.inf), ("fp16", 2.0**-25, 0.0),
    ("fp16", 3e-8, 2.0**-25 * 2), ("bf16", 7e4, 70144.0), ("bf16", 1e38, 9.969209968386869e37), ("bf16", 1e-30, 1e-30),
])  # fmt: skip
def test_the_ends_of_the_range_are_those_of_the_type(low, value, becomes):
    sketch = Sketch()
    out = sketch.node("Mul", ["x", sketch.constant("one", np.float32(1.0))], "mul")
    network = load_network(sketch.model({"x": [1]}, {out: [1]}), low=find_low(low))
    (found,) = in_plan(network, network.free_plan(network.quantizable), {"x": np.array([value], np.float32)})[out]
    assert found == rounded_by(DTYPES[low], value)
    assert found == pytest.approx(becomes, rel=0.004)


def fp8_pair(values: np.ndarray, scale) -> np.ndarray:
    """FP8 by hand: divided by the scale, saturated at 448, rounded to E4M3, multiplied."""
    levels = np.clip(np.asarray(values, np.float32) / scale, -448, 448)
    return levels.astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * scale


@pytest.mark.parametrize(("op", "axes"), [("Conv", (1, 2, 3)), ("Gemm", (0,)), ("MatMul", (0,))])
def test_fp8_rounds_activations_by_tensor_and_weights_by_channel(op, axes):
    model = single(op)
    values = np.random.default_rng(1).normal(0, 1, OPERATORS[op][0]).astype(np.float32) * 3
    scale = np.float32(0.02)
    scale_constant(model, "w", lambda w: fp8_pair(w, np.abs(w).max(axis=axes, keepdims=True) / np.float32(448)))
    act = np.float32(np.float32(scale * 127) / np.float32(448))
    (expected,) = plain_run(model, {"x": fp8_pair(values, act)}, optimised=False)
    network = load_network(single(op), low=FP8)
    found, switched = in_both(network, values, {"x": scale})
    np.testing.assert_array_equal(switched, expected)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert np.abs(values).max() > 448 * act, "some values must saturate"


def test_fp8_round_trips_are_those_of_onnx_runtime_to_the_bit():
    odd = [0, -0.0, 447.9, 1e6, -1e6, 1e-9, 232, 248]
    values = np.concatenate([np.random.default_rng(0).normal(0, 200, 5000), odd]).astype(np.float32)
    scale = np.float32(0.37)
    expected, quantizer = round_trip(values, scale, np.zeros((), ml_dtypes.float8_e4m3fn)), symmetric(scale, low=FP8)
    np.testing.assert_array_equal(quantizer.round_trip(values), expected)
    np.testing.assert_array_equal(quantizer.round_trip(values), fp8_pair(values, scale))


def carrying() -> onnx.ModelProto:
    """Layers that round, with layers that only carry between them."""
    sketch = Sketch(5)
    x = sketch.node("Relu", [sketch.conv("x", "conv1", 3, 4)], "relu")
    x = sketch.node("MaxPool", [x], "pool", kernel_shape=[2, 2], strides=[2, 2])
    y = sketch.node("Concat", [x, sketch.node("Exp", [x], "exp")], "concat", axis=1)
    y = sketch.node("Transpose", [y], "transpose", perm=[0, 2, 3, 1])
    y = sketch.node("Max", [y, sketch.constant("floor", np.float32(0.1))], "max")
    y = sketch.node("Softmax", [y], "softmax", axis=-1)
    return sketch.model({"x": [1, 3, 8, 8]}, {y: [1, 4, 4, 8]})


def test_layers_that_only_carry_are_no_layers_in_question():
    network = load_network(carrying(), low=FP16)
    names = [network.layers[k].name for k in network.quantizable]
    assert names == ["conv1", "exp", "max", "softmax"], "0.1 is not exact in FP16, so that the Max rounds"
    assert "rounds nothing" in network.layer_named("relu").why_not


def test_the_network_for_tensorrt_computes_what_the_emulation_does():
    network = load_network(carrying(), low=FP16)
    feeds = {"x": networks.normal(2, 1, 3, 8, 8)}
    builder = OnnxRuntimeBuilder(network, {}, BuildOptions())
    for chosen in (network.quantizable, network.quantizable[1:], network.quantizable[::2], ()):
        written = for_tensorrt(network, plan=network.free_plan(chosen))
        onnx.checker.check_model(written.model, full_check=True)
        (own,) = plain_run(written.model, feeds, optimised=False)
        (emulated,) = builder.build(network.free_plan(chosen)).infer(feeds).values()
        np.testing.assert_allclose(own, emulated, rtol=2e-2, atol=2e-3)


def test_a_layer_that_carries_has_the_type_of_what_it_carries():
    network = load_network(carrying(), low=FP16)
    model = for_tensorrt(network).model
    types = {value.name: value.type.tensor_type.elem_type for value in model.graph.value_info}
    for node in model.graph.node:
        if node.op_type not in ("Cast",):
            assert types.get(node.output[0]) == TensorProto.FLOAT16, node.name
    assert [node.op_type for node in model.graph.node].count("Cast") == 2, "one of the input, one of the output"


def test_names_and_refusals(tmp_path):
    assert [find_low(name) for name in ("int8", "fp16", "bf16", "fp8")] == [INT8, FP16, BF16, FP8]
    with pytest.raises(BadInput, match="int4"):
        find_low("int4")
    network = load_network(save(carrying(), tmp_path))
    assert network.low is INT8
    assert network.opset == 17
    assert network.with_low(BF16).quantizable == load_network(tmp_path / "network.onnx", low=BF16).quantizable
    with pytest.raises(BadInput, match="FP8"):
        network.with_low(FP8)
    assert load_network(tmp_path / "network.onnx", low=FP8).opset == 19


@pytest.mark.parametrize("low", [INT8, FP16, BF16, FP8])
def test_plans_say_their_low_precision(low: LowPrecision):
    plan = prefix(4, 1, low=low.precision)
    assert PrecisionPlan.from_key(plan.key()) == plan
    assert plan.lowered == {0, 1}
    assert plan.keeping({0}).lowered == {1}
    assert plan.keeping({0, 1}).lowered == frozenset()
    assert plan.keeping({0}).key() != prefix(4, 1, low=Precision.INT8).keeping({0}).key() or low is INT8


@pytest.mark.parametrize("activation", ["Relu", "Clip"])
def test_an_activation_before_fp8_is_not_optimised_away(activation):
    """ONNX Runtime's extended optimisations take E4M3 for an integer type that saturates at zero."""
    sketch = Sketch(3)
    bounds = [sketch.constant("zero", np.float32(0)), sketch.constant("six", np.float32(6))]
    kept = sketch.node(activation, ["x", *bounds] if activation == "Clip" else ["x"], "act")
    weight = sketch.random.normal(0, 1, (8, 5)).astype(np.float32)
    out = sketch.node("MatMul", [kept, sketch.constant("w", weight)], "product")
    network = load_network(sketch.model({"x": [3, 8]}, {out: [3, 5]}), low=FP8)
    scale, values = np.float32(0.02), networks.normal(1, 3, 8)
    own = np.abs(weight).max(axis=0) / np.float32(448)
    read = np.maximum(values, 0) if activation == "Relu" else np.clip(values, 0, 6)
    expected = fp8_pair(read, np.float32(np.float32(scale * 127) / np.float32(448))) @ fp8_pair(weight, own)
    scales = dict.fromkeys(("x", kept), scale)
    found = in_plan(network, network.free_plan(network.quantizable), {"x": values}, scales)[out]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def reduced_in_parts(op, x, dtype):
    """By hand: each step that TensorRT's parser makes a layer of is rounded."""
    first = {"ReduceL2": np.square, "ReduceSumSquare": np.square, "ReduceL1": np.abs}
    last = {"ReduceL2": np.sqrt, "ReduceLogSum": np.log}
    x = rounded_by(dtype, x)
    with np.errstate(over="ignore"):
        x = rounded_by(dtype, first[op](x)) if op in first else x
        x = rounded_by(dtype, x.sum(axis=-1, keepdims=True))
        return rounded_by(dtype, last[op](x)) if op in last else x


@pytest.mark.parametrize("low", ["fp16", "bf16"])
@pytest.mark.parametrize("opset", [17, 18])
@pytest.mark.parametrize("op", ["ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceL1"])
def test_reductions_that_tensorrt_takes_apart_round_in_between(op, opset, low):
    """The last row overflows FP16 inside: squares of 300."""
    sketch = Sketch()
    axes = {"axes": [-1]} if opset == 17 else {}
    reads = ["x"] if opset == 17 else ["x", sketch.constant("axes", [-1], np.int64)]
    out = sketch.node(op, reads, "node", **axes)
    model = sketch.model({"x": [3, 8]}, {out: [3, 1]}, opset)
    network = load_network(model, low=find_low(low))
    values = np.abs(np.random.default_rng(1).normal(1, 0.5, (3, 8))).astype(np.float32)
    values[2] *= 300
    expected = reduced_in_parts(op, values, DTYPES[low])
    for found in in_both(network, values):
        np.testing.assert_allclose(found, expected, rtol=2 * float(ml_dtypes.finfo(DTYPES[low]).eps))
    assert np.isinf(expected[2]).all() or low == "bf16" or op in ("ReduceL1", "ReduceLogSum")
    (exact,) = plain_run(model, {"x": values}, optimised=False)
    np.testing.assert_allclose(reference(network, {"x": values})[0], exact, rtol=1e-6)
