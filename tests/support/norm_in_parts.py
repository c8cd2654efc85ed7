"""A LayerNormalization as exporters below opset 17 write it."""

import numpy as np

from tests.support.networks import Sketch

WIDTH = 16
PARTS = ("mean", "sub", "pow", "var", "add", "sqrt", "div", "by_scale", "by_bias")
"""Its nodes."""


def layer_norm(
    sketch, x, prefix="", *, shape=(WIDTH,), axes=(-1,), epsilon=1e-5, square="Pow", scale=True, bias=True, opset=13
):
    """Draws one whose scale and bias have a shape; the names of nodes and constants begin with a prefix."""

    def node(op, inputs, name, **attributes):
        return sketch.node(op, inputs, f"{prefix}{name}", **attributes)

    def constant(name, values, dtype=np.float32):
        return sketch.constant(f"{prefix}{name}", values, dtype)

    more, listed = ([constant("axes", axes, np.int64)], {}) if opset >= 18 else ([], {"axes": list(axes)})
    centred = node("Sub", [x, node("ReduceMean", [x, *more], "mean", **listed)], "sub")
    squared = node(square, [centred, constant("two", 2.0) if square == "Pow" else centred], "pow")
    variance = node("ReduceMean", [squared, *more], "var", **listed)
    shifted = node("Add", [variance, constant("epsilon", epsilon)], "add")
    last = node("Div", [centred, node("Sqrt", [shifted], "sqrt")], "div")
    if scale:
        last = node("Mul", [last, constant("scale", sketch.random.normal(1, 0.1, shape))], "by_scale")
    if bias:
        last = node("Add", [last, constant("bias", sketch.random.normal(0, 0.1, shape))], "by_bias")
    return last


def in_parts(*, read_twice=False, opset=13, **options):
    """MatMul, a LayerNormalization, MatMul."""
    sketch = Sketch()
    a, b = (sketch.constant(name, sketch.random.normal(size=(WIDTH, WIDTH))) for name in ("a", "b"))
    x = layer_norm(sketch, sketch.node("MatMul", ["x", a], "first"), opset=opset, **options)
    sketch.node("MatMul", [x, b], "last", out="y")
    outputs = {"y": [1, 4, WIDTH]}
    if read_twice:
        outputs[sketch.node("Relu", ["sqrt_out"], "reads")] = None
    return sketch.model({"x": [1, 4, WIDTH]}, outputs, opset)
