"""Networks each with one fault that the structure check has to find."""

import numpy as np
from onnx import TensorProto, helper

from tests.support import networks
from tests.support.norm_in_parts import PARTS, in_parts

ACTIVATION = 0.05


def pair(sketch, x, name, scale=ACTIVATION, zero=0, dtype=np.int8, axis=None, kind=np.float32):
    """A Q/DQ pair on ``x``, of the type ``kind``; its output is ``<name>.dq_out``."""
    scales = sketch.constant(f"{name}.scale", scale, kind)
    zeros = sketch.constant(f"{name}.zero", np.full(np.shape(scale), zero), dtype)
    attributes = {} if axis is None else {"axis": axis}
    rounded = sketch.node("QuantizeLinear", [x, scales, zeros], f"{name}.q", **attributes)
    return sketch.node("DequantizeLinear", [rounded, scales, zeros], f"{name}.dq", **attributes)


class Rounded(networks.Sketch):
    """A network whose convolutions have four output channels and read their weights through pairs."""

    def __init__(self):
        super().__init__(1)

    def quantized(self, x, name, inside=4, weight_scale=0.01, axis=0, bias=()):
        """A convolution that reads ``x`` as it is."""
        weight = self.constant(f"{name}.weight", self.weight(name, 4, inside, 3, 3))
        rounded = pair(self, weight, f"{name}.weight", np.broadcast_to(weight_scale, 3 if axis else 4), axis=axis)
        return self.node("Conv", [x, rounded, *bias], name, pads=[1] * 4)

    def first(self, name="conv", **options):
        """A convolution that reads the input through a pair."""
        return self.quantized(pair(self, "x", "in"), name, 3, **options)

    def layer(self, x, op, name, channels=4):
        """A layer between others; a ``SiLU`` is a Sigmoid and a Mul, as exporters write it."""
        if op == "SiLU":
            return self.node("Mul", [x, self.node("Sigmoid", [x], "gate")], name)
        parts = ("scale", "shift", "mean", "var") if op == "BatchNormalization" else ()
        ones = [self.constant(f"{name}.{part}", np.ones(channels)) for part in parts]
        return self.node(op, [x, *ones], name)

    def finished(self, x, channels=4):
        self.node("Relu", [x], "last", out="y")
        return self.model([1, 3, 8, 8], [1, channels, 8, 8])


def one_conv(activation=None, **options):
    """A convolution with pairs; ``activation`` are options of its input's pair, which a scale of None leaves out."""
    sketch, given = Rounded(), {"scale": ACTIVATION, **(activation or {})}
    x = "x" if given["scale"] is None else pair(sketch, "x", "in", **given)
    return sketch.finished(sketch.quantized(x, "conv", 3, **options))


def with_bias(scale, values, dtype, paired):
    sketch = Rounded()
    bias = sketch.constant("conv.bias", values, dtype)
    if paired:
        bias = pair(sketch, bias, "conv.bias", scale)
    else:
        bias = sketch.node("DequantizeLinear", [bias, sketch.constant("conv.bias.scale", scale)], "conv.bias.dq")
    return sketch.finished(sketch.first(bias=[bias]))


def unsigned_weight():
    sketch = Rounded()
    stored = sketch.constant("stored", np.arange(108).reshape(4, 3, 3, 3), np.uint8)
    scale, zero = sketch.constant("scale", 0.01), sketch.constant("zero", 0, np.uint8)
    weight = sketch.node("DequantizeLinear", [stored, scale, zero], "weight")
    return sketch.finished(sketch.node("Conv", [pair(sketch, "x", "in"), weight], "conv", pads=[1] * 4))


def double_pair():
    sketch = Rounded()
    x = pair(sketch, pair(sketch, "x", "first"), "second", 0.07)
    return sketch.finished(sketch.quantized(x, "conv", 3))


def quantized_residual(skip_has_pair, main_has_pair=False):
    """conv1, then conv2 and the sum across it."""
    sketch = Rounded()
    stem = sketch.node("Relu", [sketch.first("conv1")], "relu1")
    main = sketch.quantized(pair(sketch, stem, "mid"), "conv2")
    skip = pair(sketch, stem, "skip") if skip_has_pair else stem
    main = pair(sketch, main, "main") if main_has_pair else main
    return sketch.finished(sketch.node("Add", [main, skip], "sum"))


def projected_residual(main_has_pair, skip_has_pair):
    """Two convolutions with a Relu between them, a projection beside them, and their sum."""
    sketch = Rounded()
    x = pair(sketch, "x", "in")
    main = sketch.node("Relu", [sketch.quantized(x, "conv1", 3)], "relu1")
    main, skip = sketch.quantized(pair(sketch, main, "mid"), "conv2"), sketch.quantized(x, "projection", 3)
    main = pair(sketch, main, "main") if main_has_pair else main
    skip = pair(sketch, skip, "skip") if skip_has_pair else skip
    return sketch.finished(sketch.node("Add", [skip, main], "sum"))


def pair_before(*ops, norm=False):
    """A layer, maybe its BatchNormalization, and what follows, with a pair right before that; a Relu is the last."""
    sketch = Rounded()
    x = sketch.first()
    x = sketch.layer(x, "BatchNormalization", "norm") if norm else x
    x = pair(sketch, x, "out")
    for op in ops:
        x = sketch.layer(x, op, "next")
    return sketch.finished(x)


def pair_behind_sum():
    """A residual sum with a pair between it and its activation."""
    sketch = Rounded()
    stem = pair(sketch, "x", "in")
    main = sketch.quantized(stem, "main", 3)
    skip = pair(sketch, sketch.quantized(stem, "projection", 3), "skip")
    total = sketch.node("Add", [main, skip], "sum")
    return sketch.finished(sketch.node("Relu", [pair(sketch, total, "out")], "relu"))


def two_pairs(other_scale):
    """Two convolutions that read one tensor, each through a pair of its own."""
    sketch = Rounded()
    stem = sketch.node("Relu", [sketch.first("stem")], "relu")
    left = sketch.quantized(pair(sketch, stem, "left_in"), "left")
    right = sketch.quantized(pair(sketch, stem, "right_in", other_scale), "right")
    return sketch.finished(sketch.node("Mul", [left, right], "product"))


def concatenated(other_scale):
    """A Concat of two activations, with a pair on each."""
    sketch, sides = Rounded(), []
    x = pair(sketch, "x", "in")
    for name, scale in (("left", ACTIVATION), ("right", other_scale)):
        side = sketch.node("Relu", [sketch.quantized(x, name, 3)], f"{name}.relu")
        sides.append(pair(sketch, side, f"{name}.out", scale))
    joined = pair(sketch, sketch.node("Concat", sides, "concat", axis=1), "joined")
    return sketch.finished(sketch.quantized(joined, "after", 8))


def constant_nodes(model):
    """The same model with its initializers as Constant nodes, as PyTorch's older exporter writes them."""
    values = [
        helper.make_node("Constant", [], [each.name], f"{each.name}.node", value=each)
        for each in model.graph.initializer
    ]
    nodes = [*values, *model.graph.node]
    del model.graph.initializer[:], model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def rounded_output():
    sketch = Rounded()
    pair(sketch, sketch.node("Relu", [sketch.first()], "last"), "out")
    sketch.nodes[-1].output[0] = "y"
    return sketch.model([1, 3, 8, 8], [1, 4, 8, 8])


def one_activation_far_off():
    sketch, x = Rounded(), "x"
    for k, scale in enumerate([0.05, 0.04, 90.0, 0.03, 0.06]):
        x = sketch.quantized(pair(sketch, x, f"in{k}", scale), f"conv{k}", 4 if k else 3)
    return sketch.finished(x)


def second_conv_without_pairs():
    sketch = Rounded()
    return sketch.finished(sketch.conv(sketch.first("conv1"), "conv2", 4, 4))


def shared_weight(*biases):
    """Two Gemm-like convolutions on one weight, with biases of these names or none."""
    sketch = Rounded()
    weight = sketch.constant("tied", sketch.weight("tied", 3, 3, 1, 1))
    for name in dict.fromkeys(biases):
        sketch.constant(name, np.zeros(3))
    x = sketch.node("Conv", ["x", weight, *biases[:1]], "conv1")
    return sketch.finished(sketch.node("Conv", [x, weight, *biases[1:]], "conv2"), 3)


def read_beside(op):
    """The convolution's output is read by ``op`` and, beside it, by the sum."""
    sketch = Rounded()
    x = sketch.conv("x", "conv", 3, 4)
    return sketch.finished(sketch.node("Add", [sketch.layer(x, op, "taken"), x], "sum"))


def activation_before_sum():
    sketch = Rounded()
    stem = sketch.node("Relu", [sketch.conv("x", "conv1", 3, 4)], "relu1")
    main = sketch.node("Relu", [sketch.conv(stem, "conv2", 4, 4)], "relu2")
    return sketch.finished(sketch.node("Add", [main, stem], "sum"))


def transpose_between():
    sketch = Rounded()
    x = sketch.node("Transpose", [sketch.conv("x", "conv", 3, 8)], "turn", perm=[0, 2, 3, 1])
    return sketch.finished(x, 8)


def transposes_cancel():
    sketch = Rounded()
    x = sketch.node("Transpose", ["x"], "there", perm=[0, 2, 3, 1])
    return sketch.finished(sketch.node("Transpose", [x], "back", perm=[0, 3, 1, 2]), 3)


def single(op, opset=17, domain="", **attributes):
    sketch = Rounded()
    sketch.node(op, ["x"], "odd", out="y", domain=domain, **attributes)
    model = sketch.model({"x": [1, 3, 8, 8]}, {"y": None}, opset)
    if domain:
        model.opset_import.append(helper.make_opsetid(domain, 1))
    return model


def indices_of_pooling():
    sketch = Rounded()
    sketch.nodes.append(helper.make_node("MaxPool", ["x"], ["p", "where"], name="odd", kernel_shape=[2, 2]))
    return sketch.finished("p", 3)


def batch_first():
    sketch = Rounded()
    names = [sketch.constant(name, np.ones((1, 3, width))) for name, width in (("w", 8), ("r", 3))]
    sketch.nodes.append(helper.make_node("RNN", ["x", *names], ["y"], name="odd", hidden_size=3, layout=1))
    return sketch.model({"x": [5, 2, 8]}, {"y": None})


def training_norm():
    sketch = Rounded()
    x = sketch.layer("x", "BatchNormalization", "odd", 3)
    sketch.nodes[-1].attribute.append(helper.make_attribute("training_mode", 1))
    sketch.nodes[-1].output.extend(["mean_out", "var_out"])
    return sketch.finished(x, 3)


def refused_inside_a_body():
    """The operator stands in a branch of an If."""
    x_info = helper.make_tensor_value_info("z", TensorProto.FLOAT, None)
    yes = helper.make_graph([helper.make_node("Det", ["x"], ["z"], name="odd")], "yes", [], [x_info])
    no = helper.make_graph([helper.make_node("Identity", ["x"], ["z"], name="kept")], "no", [], [x_info])
    sketch = Rounded()
    sketch.constant("condition", True, np.bool_)
    sketch.node("If", ["condition"], "choice", out="y", then_branch=yes, else_branch=no)
    return sketch.model({"x": [1, 3, 8, 8]}, {"y": None})


def of_type(element, op="Identity"):
    model = single(op)
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.elem_type = element
    return model


def half_floats():
    model = networks.chain(depth=1)
    for tensor in model.graph.initializer:
        networks.scale_constant(model, tensor.name, lambda values: values.astype(np.float16))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    return model


PLANTED = {
    "opset too old": (lambda: single("Relu", opset=8), ()),
    "opset too new": (lambda: single("Relu", opset=27), ()),
    "operator refused": (lambda: single("Det"), ("odd",)),
    "operator refused in a body": (refused_inside_a_body, ("odd",)),
    "integer operator": (lambda: single("QLinearSigmoid", domain="com.microsoft"), ("odd",)),
    "operator of ONNX Runtime": (lambda: single("Conv", domain="com.microsoft.nchwc"), ("odd",)),
    "operator of ONNX Runtime for machine learning": (lambda: single("Scaler", domain="ai.onnx.ml"), ("odd",)),
    "operator restricted": (indices_of_pooling, ("odd",)),
    "operator ignored": (batch_first, ("odd",)),
    "type restricted": (lambda: of_type(TensorProto.UINT8, "Transpose"), ("odd",)),
    "not in TensorRT-RTX": (lambda: single("NonZero"), ("odd",)),
    "operator restricted by training": (training_norm, ("odd",)),
    "LayerNormalization in parts": (in_parts, PARTS),
    "LayerNormalization in parts, its constants nodes": (lambda: constant_nodes(in_parts()), PARTS),
    "LayerNormalization in parts, axes and constants nodes": (lambda: constant_nodes(in_parts(opset=18)), PARTS),
    "plugin needed": (lambda: single("MyOp", domain="mine"), ("odd",)),
    "plugin needed without a domain": (lambda: single("MyOp"), ("odd",)),
    "plugin of TensorRT": (lambda: single("EfficientNMS_TRT"), ("odd",)),
    "type refused": (lambda: of_type(TensorProto.STRING), ()),
    "float64": (lambda: of_type(TensorProto.DOUBLE), ()),
    "shared weight": (lambda: shared_weight("bias1", "bias2"), ("conv1", "conv2")),
    "shared weight without biases": (shared_weight, ("conv1", "conv2")),
    "shared layer": (lambda: shared_weight("bias", "bias"), ("conv1", "conv2")),
    "norm cannot fold": (lambda: read_beside("BatchNormalization"), ("conv",)),
    "activation cannot fuse": (lambda: read_beside("Relu"), ("conv",)),
    "activation before the sum": (activation_before_sum, ("sum",)),
    "transpose between": (transpose_between, ("turn",)),
    "transposes cancel": (transposes_cancel, ("there",)),
    "asymmetric": (lambda: one_conv({"zero": 3}), ("conv",)),
    "asymmetric and unsigned": (lambda: one_conv({"zero": 128, "dtype": np.uint8}), ("conv",)),
    "unsigned": (lambda: one_conv({"dtype": np.uint8}), ("conv",)),
    "unsigned weight": (unsigned_weight, ("conv",)),
    "per-channel activation": (lambda: one_conv({"scale": np.full(3, 0.05), "axis": 1}), ("conv",)),
    "per-channel axis": (lambda: one_conv(axis=1), ("conv",)),
    "residual without pair": (lambda: quantized_residual(skip_has_pair=False), ("sum",)),
    "residual without pair on the skip side": (lambda: quantized_residual(False, main_has_pair=True), ("sum",)),
    "residual without pair on both sides": (lambda: projected_residual(False, False), ("sum",)),
    "residual with extra pair": (lambda: quantized_residual(True, main_has_pair=True), ("sum",)),
    "residual with extra pair of two": (lambda: projected_residual(True, True), ("sum",)),
    "integer bias": (lambda: with_bias(0.001, np.arange(4), np.int32, paired=False), ("conv",)),
    "pair on a bias": (lambda: with_bias(0.01, np.arange(4), np.float32, paired=True), ("conv",)),
    "double pair": (double_pair, ("conv",)),
    "output rounded": (rounded_output, ("last",)),
    "pair before the activation": (pair_before, ("conv",)),
    "pair before the activation SiLU": (lambda: pair_before("SiLU"), ("conv",)),
    "pair before the activation HardSwish": (lambda: pair_before("HardSwish"), ("conv",)),
    "pair before the activation behind a norm": (lambda: pair_before("Relu", norm=True), ("norm",)),
    "pair before the activation of a sum": (pair_behind_sum, ("sum",)),
    "pair before the normalization": (lambda: pair_before("BatchNormalization"), ("conv",)),
    "unlike pairs": (lambda: two_pairs(0.012), ("left", "right")),
    "concat of unlike scales": (lambda: concatenated(0.012), ("concat",)),
    "scale not positive": (lambda: one_conv({"scale": 0.0}), ("conv",)),
    "scale not positive but NaN": (lambda: one_conv({"scale": np.nan}), ("conv",)),
    "scale not positive but negative": (lambda: one_conv({"scale": -0.1}), ("conv",)),
    "scale infinite": (lambda: one_conv({"scale": np.inf}), ("conv",)),
    "scale denormal": (lambda: one_conv({"scale": 1e-40}), ("conv",)),
    "scale out of line": (lambda: one_conv(weight_scale=np.array([0.01, 0.01, 20.0, 0.01])), ("conv",)),
    "scale out of line among activations": (one_activation_far_off, ("conv2",)),
    "half quantized": (lambda: one_conv({"scale": None}), ("conv",)),
    "never quantized": (second_conv_without_pairs, ("conv2",)),
    "not float32": (half_floats, ("conv0",)),
}
