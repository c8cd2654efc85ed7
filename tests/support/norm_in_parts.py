"""A network with a LayerNormalization as exporters below opset 17 write it."""

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.support.networks import model_of

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
    outputs = {"y": [1, 4, WIDTH]}
    if read_twice:
        nodes.append(node("Relu", ["std"], ["z"], "reads"))
        outputs["z"] = None
    used = {name for each in nodes for name in each.input}
    constants = [numpy_helper.from_array(values, name) for name, values in weights.items() if name in used]
    return model_of(nodes, {"x": [1, 4, WIDTH]}, outputs, constants, opset)


def saved(model, folder):
    """Writes a network that ONNX's checker need not know, and returns the path."""
    path = folder / "network.onnx"
    onnx.save(model, path)
    return path
