"""A convolution with pairs whose flaws can be chosen."""

import numpy as np
from onnx import helper, numpy_helper

from tests.support.networks import model_of


def pairs(*, zero=0, input_scale=0.03, weight_scale=None, result_scale=None, loud=1.0, bias_scale=None):
    """Returns a convolution with pairs on input and weight, on request on its result, and with ``bias_scale`` an
    int32 bias; output channel 0 is loud."""
    weight = np.random.default_rng(0).normal(0, 0.3, (4, 3, 3, 3)).astype(np.float32)
    weight[0] *= loud
    scales = {"x": input_scale, "w": weight_scale or np.abs(weight).max() / 127, "u": result_scale}
    constants, nodes = [numpy_helper.from_array(weight, "w")], []
    points = {"x": zero, "w": 0, "u": 0}

    def pair(name, made):
        constants.append(numpy_helper.from_array(np.float32(scales[name]), f"{name}.scale"))
        constants.append(numpy_helper.from_array(np.int8(points[name]), f"{name}.zero"))
        parameters = [f"{name}.scale", f"{name}.zero"]
        nodes.append(helper.make_node("QuantizeLinear", [name, *parameters], [f"{name}q"], f"q_{name}"))
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}q", *parameters], [made], f"dq_{name}"))

    pair("x", "xd")
    pair("w", "wd")
    read = ["xd", "wd"]
    if bias_scale:
        constants.append(numpy_helper.from_array(np.arange(4, dtype=np.int32), "b"))
        constants.append(numpy_helper.from_array(np.float32(bias_scale), "b.scale"))
        nodes.append(helper.make_node("DequantizeLinear", ["b", "b.scale"], ["bd"], "dq_b"))
        read.append("bd")
    nodes.append(helper.make_node("Conv", read, ["u"], "conv"))
    if result_scale:
        pair("u", "y")
    else:
        undone = np.array([1 / loud, 1, 1, 1], np.float32).reshape(1, 4, 1, 1)
        constants.append(numpy_helper.from_array(undone, "undone"))
        nodes.append(helper.make_node("Mul", ["u", "undone"], ["y"], "undo"))
    return model_of(nodes, {"x": ["n", 3, 8, 8]}, {"y": ["n", 4, 6, 6]}, constants)
