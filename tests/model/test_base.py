"""A base in FP16 or BF16 beneath INT8 and FP8: low, base and raised layers, against NumPy, and as files."""

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, shape_inference

from tests.support.networks import Sketch, save, scale_constant
from tests.support.quantized import for_tensorrt, in_plan, plain_run
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
from trt_bisect.builder.tensorrt_weak import weak_plan
from trt_bisect.calibration.cache import parse_version
from trt_bisect.errors import BadInput
from trt_bisect.model.cost import shares
from trt_bisect.model.network import load_network
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.model.quantizer import FP8, INT8
from trt_bisect.options.concerns import RunOptions
from trt_bisect.precision import Precision
from trt_bisect.recipe.files import write_network
from trt_bisect.recipe.trtexec import Build, flags_of

DTYPES = {Precision.FP16: np.float16, Precision.BF16: ml_dtypes.bfloat16}
LEVELS = {INT8: (np.int8, 127), FP8: (ml_dtypes.float8_e4m3fn, 448)}
CASES = [(base, low) for base in DTYPES for low in (INT8, FP8)]
SCALES = {"x": np.float32(0.0311), "b_out": np.float32(0.0173)}
"""INT8's; not to be held exactly in FP16 or BF16."""


def drawn():
    """Two matrix products with biases, and a Sigmoid between; values of one to three digits."""
    sketch = Sketch(4)
    weights = {name: sketch.random.normal(0, 0.4, (6, 6)).astype(np.float32) for name in ("wa", "wc")}
    weights |= {name: sketch.random.normal(0, 0.4, 6).astype(np.float32) for name in ("ba", "bc")}
    names = {name: sketch.constant(name, values) for name, values in weights.items()}
    first = sketch.node("Gemm", ["x", names["wa"], names["ba"]], "a")
    out = sketch.node("Gemm", [sketch.node("Sigmoid", [first], "b"), names["wc"], names["bc"]], "c")
    return sketch.model({"x": ["n", 6]}, {out: ["n", 6]}), weights


@pytest.fixture
def path(tmp_path):
    return save(drawn()[0], tmp_path)


def values(count=5):
    return np.random.default_rng(2).normal(0, 1.2, (count, 6)).astype(np.float32)


def by_hand(base, low, x, *, raised):
    """a is low, b follows, c is raised into FP32 or in the base."""
    dtype, (stored, most) = DTYPES[base], LEVELS[low]

    def f(array):
        return np.asarray(array, np.float32).astype(dtype).astype(np.float32)

    def pair(array, scale):
        levels = np.clip(np.asarray(array, np.float32) / scale, -most - (most == 127), most)
        levels = np.rint(levels) if most == 127 else levels
        return levels.astype(stored).astype(np.float32) * scale

    w = drawn()[1]
    act = SCALES["x"] if low is INT8 else np.float32(np.float32(SCALES["x"] * 127) / np.float32(448))
    own = f(np.abs(w["wa"]).max(axis=0) / np.float32(most))
    a = f(pair(f(x), f(act)) @ pair(f(w["wa"]), own) + f(w["ba"]))
    b = f(1 / (1 + np.exp(-a)))
    return b @ w["wc"] + w["bc"] if raised else f(b @ f(w["wc"]) + f(w["bc"]))


@pytest.mark.parametrize("raised", [True, False])
@pytest.mark.parametrize(("base", "low"), CASES)
def test_low_base_and_raised_layers_compute_as_by_hand(base, low, raised, path):
    network = load_network(path, low=low, base=base)
    plan = network.plan((), base).keeping({0}, low.precision)
    plan = plan.keeping({2}, Precision.FP32) if raised else plan
    builder, x = OnnxRuntimeBuilder(network, SCALES, BuildOptions(high=plan.precisions[2])), values()
    expected = by_hand(base, low, x, raised=raised)
    for found in (builder.build(plan).infer({"x": x}), builder.switch(1).infer(plan, {"x": x})):
        np.testing.assert_allclose(found["c_out"], expected, rtol=1e-6, atol=1e-6)
    plain = load_network(path, low=low)
    other = in_plan(plain, plain.plan({0}, Precision.FP32), {"x": x}, SCALES)["c_out"]
    assert np.mean(np.abs(other - expected) > np.abs(found["c_out"] - expected)) > 0.8


def exported(network, plan, folder, name="out.onnx"):
    written = for_tensorrt(network, SCALES, plan)
    write_network(folder / name, written.model, written.weights)
    onnx.checker.check_model(str(folder / name), full_check=True)
    return folder / name


@pytest.mark.parametrize(("base", "low"), CASES)
def test_the_exported_network_has_each_kind_of_layer_in_its_type(base, low, path, tmp_path):
    """Low and base layers in the base type, scales of the pairs too, and the raised layer in float32."""
    network = load_network(path, low=low, base=base)
    plan = network.plan({0}, Precision.FP32)
    assert plan.precisions == (low.precision, base, Precision.FP32)
    graph = shape_inference.infer_shapes(onnx.load(exported(network, plan, tmp_path)), strict_mode=True).graph
    types = {value.name: value.type.tensor_type.elem_type for value in (*graph.value_info, *graph.output)}
    wide, narrow = TensorProto.FLOAT, helper.np_dtype_to_tensor_dtype(np.dtype(DTYPES[base]))
    made = {node.name: types[node.output[0]] for node in graph.node}
    assert (made["a"], made["b"], made["c"]) == (narrow, narrow, wide)
    constants = {tensor.name: tensor for tensor in graph.initializer}
    pairs = [node for node in graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")]
    assert len(pairs) == 4
    assert {constants[node.input[1]].data_type for node in pairs} == {narrow}
    assert [each.name for each in graph.output] == ["c_out"]
    assert types["c_out"] == wide


def scales_at_a(network):
    layer, writer = network.layer_named("a"), PlanWriter(network, SCALES, GraphTarget.TENSORRT)
    return [each.scale for rounding in layer.roundings for each in writer.quantizers(layer, rounding)]


@pytest.mark.parametrize(("base", "low"), CASES)
def test_the_exported_network_is_read_back(base, low, path, tmp_path):
    """The same layers low with the same scales; BF16, which ONNX Runtime cannot run, to the bit."""
    network = load_network(path, low=low, base=base)
    plan, x = network.plan({0}, Precision.FP32), values()
    measured = in_plan(network, plan, {"x": x}, SCALES)["c_out"]
    file = exported(network, plan, tmp_path)
    again = load_network(file, low=low)
    assert again.low is low
    assert [again.layers[k].name for k in again.quantizable] == ["a"]
    for one, two in zip(scales_at_a(again), scales_at_a(network), strict=True):
        np.testing.assert_array_equal(one, two)
    full = again.full(Precision.FP32)
    found = in_plan(again, full, {"x": x})["c_out"]
    if base is Precision.BF16:
        assert again.base is base
        assert [full.precisions[again.layer_named(name).index] for name in "abc"] == list(plan.precisions)
        np.testing.assert_array_equal(found, measured)
        assert exported(again, full, tmp_path, "twice.onnx").is_file()
    else:
        alone = plain_run(file, {"x": x})[0]
        np.testing.assert_allclose(found, measured, atol=3e-3)
        np.testing.assert_allclose(alone, measured, atol=3e-3)


def test_a_scale_that_fp16_would_make_zero_stays_positive():
    model, _ = drawn()
    scale_constant(model, "wa", lambda values: np.full_like(values, 1e-9))
    network = load_network(model, base=Precision.FP16)
    found = in_plan(network, network.plan({0}, Precision.FP32), {"x": values()}, SCALES)
    assert np.isfinite(found["c_out"]).all()


def test_weak_typing_is_told_all_three_kinds(path):
    """The INT8 layer's float output is in the base, the layer that follows too, and the raised one in FP32."""
    network = load_network(path, base=Precision.FP16)
    plan = network.plan({0}, Precision.FP32)
    weak = weak_plan(OnnxRuntimeBuilder(network, SCALES, BuildOptions()), network, plan)
    told = {each.layer: (each.precision, each.outputs) for each in weak.constraints}
    fp16, fp32 = Precision.FP16, Precision.FP32
    assert told == {"a": (None, (fp16,)), "b": (fp16, (fp16,)), "c": (fp32, (fp32,))}
    assert "--fp16" in flags_of(weak, Build(parse_version("8.6.1"), network.used_precisions(plan)))
    bare = load_network(path, base=Precision.FP16).keeping_high({0: "x", 2: "x"})
    assert Precision.INT8 not in bare.used_precisions(bare.plan((), Precision.FP16))


def test_another_base_is_another_network(path):
    bases = (Precision.FP32, Precision.FP16, Precision.BF16)
    assert len({load_network(path, base=Precision.FP16).with_base(base).digest() for base in bases}) == 3
    plain = load_network(path)
    assert plain.digest() == load_network(path, base=Precision.FP32).digest()
    with pytest.raises(BadInput, match="base"):
        plain.with_base(Precision.FP16)


def test_costs_are_shares_of_the_speedup_over_fp16():
    """By multiply-adds 1:2:4 a layer in FP16 loses its share of the speedup, and three times that in FP32."""
    times = {k: {Precision.INT8: 1.0, Precision.FP16: 2.0, Precision.FP32: 4.0} for k in range(4)}
    assert shares(times)[0] == {Precision.FP16: 0.25, Precision.FP32: 0.75}
    without_int8 = {k: {Precision.FP16: 2.0, Precision.FP32: 4.0} for k in range(4)}
    assert shares(without_int8, Precision.FP16)[0] == {Precision.FP32: 0.25}


@pytest.mark.parametrize(("given", "base", "high"), [
    ({}, "fp32", "fp32"), ({"base": "fp16"}, "fp16", "fp16"), ({"precision": "fp16"}, "fp16", "fp16"),
    ({"base": "fp16", "precision": "fp32"}, "fp16", "fp32"), ({"base": "bf16"}, "bf16", "bf16"),
    ({"low": "fp8", "base": "bf16", "precision": "fp32"}, "bf16", "fp32"), ({"low": "fp16"}, "fp32", "fp32"),
    ({"base": "fp16", "precision": "mixed"}, "fp16", "fp32"), ({"precision": "mixed"}, "fp32", "fp32"),
])  # fmt: skip
def test_base_and_precision_stand_for_each_other(given, base, high):
    options = RunOptions(**given)
    assert (str(options.base_precision), str(options.high_precision)) == (base, high)


@pytest.mark.parametrize(
    "given",
    [{"base": "fp32", "precision": "fp16"}, {"base": "bf16", "precision": "fp16"}, {"low": "fp16", "base": "fp16"}],
)
def test_what_leaves_no_sense_is_refused(given):
    with pytest.raises(BadInput, match="base"):
        RunOptions(**given)
