"""A network with a LayerNormalization as exporters below opset 17 write it."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

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
