"""A LayerNormalization in parts: found, fused, and equal in FP32; what is none stays as it is."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import trt_bisect
from trt_bisect.model.network import load_network

WIDTH = 16


def in_parts(axes=(-1,), square="Pow", scale=True, bias=True, read_twice=False, opset=13):
    """Gemm, a LayerNormalization as exporters below opset 17 write it, Gemm."""
    random = np.random.default_rng(0)
    weights = {name: random.normal(size=(WIDTH, WIDTH)).astype(np.float32) for name in ("a", "b")}
    weights |= {name: random.normal(size=WIDTH).astype(np.float32) for name in ("scale", "bias")}
    weights |= {"two": np.float32(2), "epsilon": np.float32(1e-5), "axes": np.array(axes, np.int64)}
    listed = {} if opset >= 18 else {"axes": list(axes)}
    more = ["axes"] if opset >= 18 else []
    node = helper.make_node
    nodes = [
        node("MatMul", ["x", "a"], ["h"], "first"),
        node("ReduceMean", ["h", *more], ["mean"], "mean", **listed),
        node("Sub", ["h", "mean"], ["d"], "sub"),
        node("Pow", ["d", "two"], ["sq"], "pow") if square == "Pow" else node("Mul", ["d", "d"], ["sq"], "pow"),
        node("ReduceMean", ["sq", *more], ["var"], "var", **listed),
        node("Add", ["var", "epsilon"], ["shifted"], "add"),
        node("Sqrt", ["shifted"], ["std"], "sqrt"),
        node("Div", ["d", "std"], ["n0"], "div"),
    ]
    last = "n0"
    for on, operator, name in ((scale, "Mul", "scale"), (bias, "Add", "bias")):
        if on:
            nodes.append(node(operator, [last, name], [f"{last}_{name}"], f"by_{name}"))
            last = f"{last}_{name}"
    nodes.append(node("MatMul", [last, "b"], ["y"], "last"))
    shape = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, WIDTH])
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, WIDTH])]
    if read_twice:
        nodes.append(node("Relu", ["std"], ["z"], "reads"))
        outputs.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, None))
    used = {name for each in nodes for name in each.input}
    graph = helper.make_graph(
        nodes, "norm", [shape], outputs, [numpy_helper.from_array(v, k) for k, v in weights.items() if k in used]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def saved(model, folder):
    path = folder / "network.onnx"
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("square", ["Pow", "Mul"])
@pytest.mark.parametrize(("scale", "bias"), [(True, True), (True, False), (False, False)])
def test_it_becomes_one_node_with_the_same_outputs(tmp_path, opset, square, scale, bias):
    path = saved(in_parts(square=square, scale=scale, bias=bias, opset=opset), tmp_path)
    network = load_network(path, fuse_norms=True)
    assert [layer.op_type for layer in network.layers] == ["MatMul", "LayerNormalization", "MatMul"]
    x = np.random.default_rng(1).normal(0, 3, (1, 4, WIDTH)).astype(np.float32)
    (expected,) = ort.InferenceSession(str(path)).run(None, {"x": x})
    run = trt_bisect.run(
        path, {"x": x}, {"x": x}, fuse_norms=True, base="fp16", explain="none", history="none", output=tmp_path / "run",
        engine="onnxruntime",
    )  # fmt: skip
    written = tmp_path / "run" / "recipe" / "network.onnx"
    assert "LayerNormalization" in {node.op_type for node in onnx.load(written).graph.node}
    (fused,) = ort.InferenceSession(str(written)).run(None, {"x": x})
    np.testing.assert_allclose(fused, expected, rtol=1e-5, atol=1e-5)
    assert len(run.layers) == 3


@pytest.mark.parametrize("changes", [{"axes": (1,)}, {"read_twice": True}, {"axes": (0, 2)}])
def test_what_is_no_layer_normalization_stays_in_parts(tmp_path, changes):
    path = saved(in_parts(**changes), tmp_path)
    assert "LayerNormalization" not in {layer.op_type for layer in load_network(path, fuse_norms=True).layers}
    assert "LayerNormalization in parts" not in {each.kind for each in trt_bisect.check(path).findings}


def test_check_names_its_nodes_and_the_file_is_left_as_it_is(tmp_path):
    path = saved(in_parts(), tmp_path)
    (finding,) = (each for each in trt_bisect.check(path).findings if each.kind == "LayerNormalization in parts")
    assert finding.layers == ("mean", "sub", "pow", "var", "add", "sqrt", "div", "by_scale", "by_bias")
    assert "LayerNormalization" not in {layer.op_type for layer in load_network(path).layers}
