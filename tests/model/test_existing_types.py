"""Networks that are in FP16, BF16 or FP8 in their file are read as they are."""

import re

import ml_dtypes
import numpy as np
import onnx
import onnx.compose
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support.flawed_structures import pair
from tests.support.networks import Sketch, model_of, save
from tests.support.quantized import for_tensorrt, in_plan, plain_run, reference
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
from trt_bisect.calibration.ranges import refuse_without_low
from trt_bisect.errors import BadInput
from trt_bisect.model.network import load_network
from trt_bisect.model.quantizer import BF16, FP8, FP16, LOWS
from trt_bisect.model.session import UNOPTIMISED, make_session

TYPES = {"fp16": (np.float16, TensorProto.FLOAT16), "bf16": (ml_dtypes.bfloat16, TensorProto.BFLOAT16)}
FLOAT = TensorProto.FLOAT


def typed(folder, name="fp16", *, inside="", result="", round_trip=False):
    """MatMul, Add, Relu, Mul, LayerNormalization in float32 between Casts, Exp, MatMul, in a 16-bit type.

    Args:
        inside, result: the name of the type of the network's input and output, if it is not float32.
        round_trip: a Cast to the type and back stands in the part that is in float32.
    """
    dtype, kind = TYPES[name]
    sketch = Sketch(5)
    weights = {"w1": (8, 8), "b1": 8, "w2": (8, 5)}
    w1, b1, w2 = (sketch.constant(name, sketch.random.normal(0, 0.4, shape), dtype) for name, shape in weights.items())
    x = "x" if inside else sketch.node("Cast", ["x"], "to_type", to=kind)
    x = sketch.node("Add", [sketch.node("MatMul", [x, w1], "first"), b1], "bias")
    x = sketch.node("Mul", [sketch.node("Relu", [x], "relu"), sketch.constant("k", 0.3, dtype)], "scale")
    x = sketch.node("Cast", [x], "to_float", to=FLOAT)
    x = sketch.node("LayerNormalization", [x, sketch.constant("g", sketch.random.normal(1, 0.1, 8))], "norm")
    if round_trip:
        x = sketch.node("Cast", [sketch.node("Cast", [x], "there", to=kind)], "back", to=FLOAT)
        x = sketch.node("Sin", [x], "sin")
    x = sketch.node("Exp", [sketch.node("Cast", [x], "again", to=kind)], "exp")
    x = sketch.node("MatMul", [x, w2], "last", out="y" if result else "")
    if not result:
        sketch.node("Cast", [x], "out", out="y", to=FLOAT)
    model = sketch.model([4, 8], [4, 5])
    model.ir_version = 9
    model.graph.input[0].type.tensor_type.elem_type = kind if inside else FLOAT
    model.graph.output[0].type.tensor_type.elem_type = kind if result else FLOAT
    return save(model, folder, f"{name}.onnx")


def node_by_node(path, x):
    """Every tensor of a file: each node computed alone by ONNX Runtime in float32, its output rounded as the file says.

    A node of 16-bit tensors alone is what ONNX Runtime computes for it: see the test of single nodes.
    """
    model = onnx.load(path)
    inferred = onnx.shape_inference.infer_shapes(model)
    kinds = {v.name: v.type.tensor_type.elem_type for v in (*inferred.graph.value_info, *inferred.graph.output)}
    known = {"x": np.asarray(x, np.float32)}
    known |= {t.name: numpy_helper.to_array(t).astype(np.float32) for t in model.graph.initializer}
    by_kind = {kind: dtype for dtype, kind in TYPES.values()}
    for node in model.graph.node:
        out = known[node.input[0]] if node.op_type == "Cast" else alone(node, known, model.opset_import)
        own = by_kind.get(kinds[node.output[0]])
        known[node.output[0]] = out if own is None else out.astype(own).astype(np.float32)
    return known


def alone(node, known, opsets, kind=FLOAT):
    infos = [helper.make_tensor_value_info(name, kind, known[name].shape) for name in node.input]
    graph = helper.make_graph([node], "one", infos, [onnx.ValueInfoProto(name=node.output[0])])
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    dtype = np.float16 if kind == TensorProto.FLOAT16 else np.float32
    feeds = {name: known[name].astype(dtype) for name in node.input}
    return plain_run(model, feeds, optimised=False)[0].astype(np.float32)


FEEDS = np.random.default_rng(1).normal(size=(4, 8)).astype(np.float32)


def test_a_single_node_in_fp16_is_what_onnx_runtime_computes_for_it(tmp_path):
    """The rule that the next tests expect of whole networks: float32 inside, one rounding of the output."""
    path = typed(tmp_path)
    known = node_by_node(path, FEEDS)
    model, seen = onnx.load(path), 0
    for node in model.graph.node:
        if node.op_type not in ("Cast", "LayerNormalization"):
            found = alone(node, known, model.opset_import, TensorProto.FLOAT16)
            np.testing.assert_array_equal(found, known[node.output[0]], err_msg=node.name)
            seen += 1
    assert seen == 6


@pytest.mark.parametrize("options", [{}, {"round_trip": True}], ids=["plain", "round trip"])
@pytest.mark.parametrize(("name", "low"), [("fp16", FP16), ("bf16", BF16)])
def test_full_low_is_the_file_to_the_bit(name, low, options, tmp_path):
    path = typed(tmp_path, name, **options)
    network = load_network(path, low=low)
    assert network.typed_in_file
    engine = OnnxRuntimeBuilder(network, {}, BuildOptions()).switch(1)
    (found,) = engine.infer(network.free_plan(network.quantizable), {"x": FEEDS}).values()
    np.testing.assert_array_equal(found, node_by_node(path, FEEDS)["y"])


def test_layers_that_the_file_has_in_float32_are_not_in_question(tmp_path):
    network = load_network(typed(tmp_path), low=FP16)
    names = [network.layers[k].name for k in network.quantizable]
    assert names == ["first", "bias", "scale", "exp", "last"]
    assert "float32" in network.layer_named("norm").why_not
    assert all(layer.op_type != "Cast" for layer in network.layers)
    assert network.notes


def test_fp32_is_the_files_weights_in_float32(tmp_path):
    path = typed(tmp_path)
    model = onnx.load(path)
    known = {"x": FEEDS} | {t.name: numpy_helper.to_array(t).astype(np.float32) for t in model.graph.initializer}
    for node in model.graph.node:
        cast = node.op_type == "Cast"
        known[node.output[0]] = known[node.input[0]] if cast else alone(node, known, model.opset_import)
    network = load_network(path, low=FP16)
    (found,) = reference(network, {"x": FEEDS})
    np.testing.assert_allclose(found, known["y"], rtol=1e-5, atol=1e-6)


def test_fp16_inputs_and_outputs_keep_their_type(tmp_path):
    path = typed(tmp_path, inside="fp16", result="fp16")
    network = load_network(path, low=FP16)
    assert (network.inputs[0].dtype, network.outputs[0].dtype) == (np.float16, np.float16)
    x = FEEDS.astype(np.float16)
    switch = OnnxRuntimeBuilder(network, {}, BuildOptions()).switch(1)
    (found,) = switch.infer(network.free_plan(network.quantizable), {"x": x}).values()
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found.astype(np.float32), node_by_node(path, x)["y"])


def test_the_network_for_tensorrt_is_the_file_again(tmp_path):
    """All low: the same nodes in the same types as in the file, and no Cast more."""
    path = typed(tmp_path)
    network = load_network(path, low=FP16)
    written = for_tensorrt(network).model
    types = {v.name: v.type.tensor_type.elem_type for v in onnx.shape_inference.infer_shapes(written).graph.value_info}
    in_type = {n.name for n in written.graph.node if n.op_type != "Cast" and types.get(n.output[0]) == 10}
    assert in_type == {"first", "bias", "relu", "scale", "exp", "last"}
    casts = [node.op_type for node in onnx.load(path).graph.node].count("Cast")
    assert [node.op_type for node in written.graph.node].count("Cast") == casts


def test_another_type_than_the_files_is_refused(tmp_path):
    with pytest.raises(BadInput, match="is in BF16"):
        load_network(typed(tmp_path, "bf16"), low=FP16)
    with pytest.raises(BadInput, match="FP16"):
        load_network(typed(tmp_path), low=FP16).with_low(BF16)


# FP8


@pytest.mark.parametrize("kinds", [("fp16",), ("bf16",), ("fp16", "bf16")])
@pytest.mark.parametrize("asked", ["int8", "fp16", "bf16", "fp8"])
def test_advice_for_a_file_in_16_bits_is_not_refused(kinds, asked, tmp_path):
    """Each low precision that an error of such a file names can be measured, and there is such advice for one type."""
    model = onnx.load(typed(tmp_path, kinds[0], inside=kinds[0]))
    for kind in kinds[1:]:
        second = onnx.compose.add_prefix(onnx.load(typed(tmp_path, kind, inside=kind)), "second.")
        model = onnx.compose.merge_models(model, second, io_map=[])
    onnx.save(model, tmp_path / "given.onnx")

    def read(low):
        refuse_without_low(load_network(tmp_path / "given.onnx", low=LOWS[low]))

    if asked in kinds and len(kinds) == 1:
        return read(asked)
    with pytest.raises(BadInput) as refused:
        read(asked)
    advised = re.findall("--low ([a-z0-9]+)", refused.value.remedy)
    assert advised == (list(kinds) if len(kinds) == 1 else [])
    for low in advised:
        read(low)


def test_a_network_of_onnx_runtimes_own_operators_is_said_to_be_one(tmp_path):
    nodes = [helper.make_node("QuickGelu", ["x"], ["y"], "gelu", domain="com.microsoft")]
    shapes = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy"]
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph(nodes, "g", shapes[:1], shapes[1:]), opset_imports=sets, ir_version=8)
    onnx.save(model, tmp_path / "optimised.onnx")
    with pytest.raises(BadInput, match="QuickGelu"):
        refuse_without_low(load_network(tmp_path / "optimised.onnx"))


def fp8_network(folder, high=np.float32):
    """Conv with pairs at input and weight, Relu, MatMul with a weight stored in FP8, in float32 or FP16."""
    sketch, levels = Sketch(2), ml_dtypes.float8_e4m3fn
    how = {"dtype": levels, "kind": high}
    weight = sketch.constant("w1", sketch.random.normal(0, 0.3, (6, 4, 3, 3)), high)
    scales = np.abs(sketch.random.normal(0.003, 0.0005, 6))
    reads = [pair(sketch, "x", "in", 0.01, **how), pair(sketch, weight, "weight", scales, axis=0, **how)]
    x = sketch.node("Relu", [sketch.node("Conv", reads, "conv", pads=[1] * 4)], "relu")
    x = sketch.node("Reshape", [x, sketch.constant("shape", [1, -1], np.int64)], "flat")
    stored = sketch.constant("w2_q", sketch.random.normal(0, 100, (96, 5)).clip(-448, 448), levels)
    given = [stored, sketch.constant("w2_s", 0.01, high), sketch.constant("w2_z", 0, levels)]
    sketch.node(
        "MatMul", [pair(sketch, x, "f", 0.02, **how), sketch.node("DequantizeLinear", given, "w2")], "fc", out="y"
    )
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(high))
    ends = {"x": [1, 4, 4, 4]}, {"y": [1, 5]}
    return save(model_of(sketch.nodes, *ends, sketch.constants, opset=19, kind=kind, ir_version=9), folder, "fp8.onnx")


def by_onnx_runtime(path, x):
    return plain_run(path, {"x": x}, optimised=False)[0]


IMAGE = np.random.default_rng(0).normal(0, 2, (1, 4, 4, 4)).astype(np.float32)


def test_fp8_pairs_are_read_and_written_back_to_the_bit(tmp_path):
    path = fp8_network(tmp_path)
    network = load_network(path)
    assert network.low is FP8
    assert [network.layers[k].name for k in network.quantizable] == ["conv", "fc"]
    written = for_tensorrt(network)
    (found,) = make_session(written, level=UNOPTIMISED).run(None, {"x": IMAGE})
    np.testing.assert_array_equal(found, by_onnx_runtime(path, IMAGE))
    (emulated,) = in_plan(network, network.free_plan(network.quantizable), {"x": IMAGE}).values()
    np.testing.assert_allclose(emulated, found, rtol=1e-5, atol=1e-5)


def test_fp8_pairs_beside_int8_pairs_are_refused(tmp_path):
    """One low precision is compared with higher ones: INT8 would be the name of FP8 layers."""
    path = fp8_network(tmp_path)
    model = onnx.load(path)
    (zero_point,) = [tensor for tensor in model.graph.initializer if tensor.name == "f.zero"]
    zero_point.CopyFrom(numpy_helper.from_array(np.zeros((), np.int8), "f.zero"))
    onnx.save(model, path)
    with pytest.raises(BadInput, match=r"INT8 \('fc'.*FP8 \('conv'"):
        load_network(path)


def test_fp8_pairs_in_an_fp16_network_are_read(tmp_path):
    path = fp8_network(tmp_path, np.float16)
    network = load_network(path)
    assert network.low is FP8
    assert "FP8" in network.notes[0]
    x = IMAGE.astype(np.float16)
    found, expected = in_plan(network, network.free_plan(network.quantizable), {"x": x}), by_onnx_runtime(path, x)
    np.testing.assert_allclose(*(y.astype(np.float32) for y in (*found.values(), expected)), rtol=2e-3, atol=2e-2)


def test_without_its_pairs_an_fp8_network_is_its_weights_in_float32(tmp_path):
    path = fp8_network(tmp_path)
    network = load_network(path)
    (found,) = reference(network, {"x": IMAGE})
    constants = {t.name: numpy_helper.to_array(t).astype(np.float32) for t in onnx.load(path).graph.initializer}
    padded = np.pad(IMAGE, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    hidden = np.maximum(np.einsum("ncijkl,ockl->noij", windows, constants["w1"]), 0).reshape(1, -1)
    np.testing.assert_allclose(found, hidden @ (constants["w2_q"] * 0.01), rtol=1e-4, atol=1e-4)
