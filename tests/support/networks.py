"""Small real networks made with onnx.helper and seeded weights, with planted culprits."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

BIG = 3000.0


@dataclass
class Sketch:
    """Builds a graph node by node; its weights are seeded."""

    seed: int = 0
    nodes: list = field(default_factory=list)
    constants: list = field(default_factory=list)

    def __post_init__(self):
        self.random = np.random.default_rng(self.seed)

    def constant(self, name, values, dtype=np.float32):
        self.constants.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def node(self, op, inputs, name, out="", **attributes):
        """Adds a node; returns the name of its output, which is ``<name>_out`` if no other is given."""
        self.nodes.append(helper.make_node(op, inputs, [out or f"{name}_out"], name=name, **attributes))
        return out or f"{name}_out"

    def weight(self, name, *shape, gain=2.0):
        fan_in = int(np.prod(shape[1:])) if len(shape) > 2 else shape[0]
        return self.random.normal(0, (gain / fan_in) ** 0.5, shape)

    def conv(self, x, name, inside, outside, size=3, group=1, gain=2.0, **attributes):
        """A convolution; its weight and bias can be reached as ``<name>.weight`` and ``<name>.bias``."""
        pads = [size // 2] * 4
        weight = self.constant(f"{name}.weight", self.weight(name, outside, inside // group, size, size, gain=gain))
        bias = self.constant(f"{name}.bias", self.random.normal(0, 0.05, outside))
        return self.node("Conv", [x, weight, bias], name, pads=pads, group=group, **attributes)

    def dense(self, x, name, inside, outside, gain=2.0):
        weight = self.constant(f"{name}.weight", self.weight(name, inside, outside, gain=gain))
        bias = self.constant(f"{name}.bias", self.random.normal(0, 0.05, outside))
        return self.node("Add", [self.node("MatMul", [x, weight], name), bias], f"{name}_bias")

    def pooled_classes(self, x, inside):
        """Pools each channel and ends with a Gemm to ten classes, ``y``."""
        x = self.node("Flatten", [self.node("GlobalAveragePool", [x], "pool")], "flatten")
        weight = self.constant("fc.weight", self.random.normal(0, 0.3, (inside, 10)))
        self.node("Gemm", [x, weight], "fc", out="y")

    def model(self, inputs, outputs, opset=17):
        """The network; its inputs and outputs have shapes by name, or those of ``x`` and ``y`` are lists."""
        inputs = {"x": inputs} if isinstance(inputs, list) else inputs
        outputs = {"y": outputs} if isinstance(outputs, list) else outputs
        return model_of(self.nodes, inputs, outputs, self.constants, opset)


def model_of(nodes, inputs, outputs, constants=(), opset=17, kind=TensorProto.FLOAT, ir_version=8, **more):
    """A model of nodes; inputs and outputs have shapes by name, and all the same type."""
    ends = ([helper.make_tensor_value_info(n, kind, s) for n, s in shapes.items()] for shapes in (inputs, outputs))
    graph = helper.make_graph(nodes, "g", *ends, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version, **more)


def scale_constant(model: onnx.ModelProto, name: str, change) -> None:
    """Applies ``change`` to the values of a constant, in place."""
    for tensor in model.graph.initializer:
        if tensor.name == name:
            tensor.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(tensor).copy()), name))
            return
    raise KeyError(name)


def change_at(model: onnx.ModelProto, name: str, at, change) -> None:
    """Applies ``change`` to a part of a constant, in place."""

    def changed(values):
        values[at] = change(values[at])
        return values

    scale_constant(model, name, changed)


def plant_between(model: onnx.ModelProto, maker: str, reader: str, channel: int = 1, factor: float = BIG) -> None:
    """Multiplies one channel that ``maker`` makes and divides it where ``reader`` reads it: the same in FP32.

    The channel's bias is raised first, so that it is not dead after a Relu. The reader's
    input then has one channel that starves the others of INT8's levels: the reader is the culprit.
    """
    axes = {tensor.name: len(tensor.dims) for tensor in model.graph.initializer}
    made = np.s_[channel] if axes[f"{maker}.weight"] == 4 else np.s_[..., channel]
    read = np.s_[:, channel] if axes[f"{reader}.weight"] == 4 else np.s_[channel]
    change_at(model, f"{maker}.bias", channel, lambda bias: abs(bias) + 0.5)
    change_at(model, f"{maker}.weight", made, lambda weights: weights * factor)
    change_at(model, f"{maker}.bias", made, lambda bias: bias * factor)
    change_at(model, f"{reader}.weight", read, lambda weights: weights / factor)


def copying(model: onnx.ModelProto, **copies: np.ndarray) -> onnx.ModelProto:
    """Makes convolutions copy channels, and plants a culprit between ``first`` and ``second``; returns the network.

    Args:
        copies: by convolution the matrix at the middle of its kernel; the rest, and its bias, become zero.
    """
    for name, channels in copies.items():
        (middle,) = (tensor.dims[2] // 2 for tensor in model.graph.initializer if tensor.name == f"{name}.weight")
        for part in ("weight", "bias"):
            scale_constant(model, f"{name}.{part}", np.zeros_like)
        change_at(model, f"{name}.weight", np.s_[..., middle, middle], lambda _, channels=channels: channels)
    plant_between(model, "first", "second", channel=3)
    return model


def planted(model: onnx.ModelProto, *pairs: tuple[str, str], factor: float = BIG) -> onnx.ModelProto:
    """Plants a culprit between the layers of each pair, by ``plant_between``; returns the network."""
    for maker, reader in pairs:
        plant_between(model, maker, reader, factor=factor)
    return model


def chain(depth: int = 8, width: int = 8, size: int = 16) -> onnx.ModelProto:
    """Conv and Relu, again and again, on images of ``size`` by ``size``, then pooling and a Gemm."""
    sketch = Sketch(1)
    x = sketch.conv("x", "conv0", 3, width)
    for i in range(1, depth):
        x = sketch.conv(sketch.node("Relu", [x], f"relu{i}"), f"conv{i}", width, width)
    sketch.pooled_classes(x, width)
    return sketch.model(["n", 3, size, size], ["n", 10])


def residual(blocks: int = 4, width: int = 8) -> onnx.ModelProto:
    """ResNet-like: x + conv(relu(conv(x)))."""
    sketch = Sketch(2)
    x = sketch.node("Relu", [sketch.conv("x", "stem", 3, width)], "stem_relu")
    for b in range(blocks):
        inner = sketch.conv(x, f"block{b}.conv1", width, width)
        inner = sketch.conv(sketch.node("Relu", [inner], f"block{b}.relu1"), f"block{b}.conv2", width, width)
        x = sketch.node("Relu", [sketch.node("Add", [inner, x], f"block{b}.add")], f"block{b}.relu2")
    sketch.pooled_classes(x, width)
    model = sketch.model(["n", 3, 16, 16], ["n", 10])
    for b in range(blocks):
        scale_constant(model, f"block{b}.conv2.weight", lambda values: 2.0 * values)
    return model


def resnet18(batch: int) -> onnx.ModelProto:
    """ResNet-18 for pictures of 224 x 224, without BatchNormalization: exporters fold it into the convolutions."""
    sketch = Sketch()
    x = sketch.node("Relu", [sketch.conv("x", "stem", 3, 64, 7, strides=[2, 2])], "stem.relu")
    x, inside = sketch.node("MaxPool", [x], "pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4), 64
    for stage, block in ((stage, block) for stage in range(4) for block in range(2)):
        name, outside, step = f"l{stage}.{block}", 64 << stage, 2 if stage and not block else 1
        y = sketch.node("Relu", [sketch.conv(x, f"{name}.c1", inside, outside, strides=[step] * 2)], f"{name}.r1")
        y = sketch.conv(y, f"{name}.c2", outside, outside)
        skip = x if step == 1 else sketch.conv(x, f"{name}.down", inside, outside, 1, strides=[2, 2])
        x, inside = sketch.node("Relu", [sketch.node("Add", [y, skip], f"{name}.add")], f"{name}.r2"), outside
    x = sketch.node("Flatten", [sketch.node("GlobalAveragePool", [x], "avg")], "flat")
    weight = sketch.constant("fc.weight", sketch.weight("fc", 512, 1000))
    sketch.node("Gemm", [x, weight, sketch.constant("fc.bias", np.zeros(1000))], "fc")
    return sketch.model({"x": [batch, 3, 224, 224]}, {"fc_out": [batch, 1000]})


def depthwise(blocks: int = 4, width: int = 8) -> onnx.ModelProto:
    """MobileNet-like: expand, depthwise, project, and the sum."""
    sketch = Sketch(3)
    x = sketch.conv("x", "stem", 3, width)
    for b in range(blocks):
        inner = sketch.node("Relu", [sketch.conv(x, f"block{b}.expand", width, 3 * width, 1)], f"block{b}.relu1")
        inner = sketch.conv(inner, f"block{b}.depthwise", 3 * width, 3 * width, 3, group=3 * width)
        inner = sketch.conv(sketch.node("Relu", [inner], f"block{b}.relu2"), f"block{b}.project", 3 * width, width, 1)
        x = sketch.node("Add", [inner, x], f"block{b}.add")
    sketch.pooled_classes(x, width)
    return sketch.model(["n", 3, 16, 16], ["n", 10])


def transformer(blocks: int = 2, width: int = 16, tokens: int = 12) -> onnx.ModelProto:
    """Pre-norm attention and a two-layer feed-forward net with Relu."""
    sketch = Sketch(4)
    x = sketch.dense("x", "embed", width, width)
    for b in range(blocks):
        normed = _norm(sketch, x, f"block{b}.norm1", width)
        q, k, v = (sketch.dense(normed, f"block{b}.{part}", width, width) for part in ("q", "k", "v"))
        turned = sketch.node("Transpose", [k], f"block{b}.turn", perm=[0, 2, 1])
        scores = sketch.node("MatMul", [q, turned], f"block{b}.scores")
        scaled = sketch.node("Div", [scores, sketch.constant(f"block{b}.root", width**0.5)], f"block{b}.div")
        shares = sketch.node("Softmax", [scaled], f"block{b}.softmax", axis=-1)
        mixed = sketch.dense(sketch.node("MatMul", [shares, v], f"block{b}.mix"), f"block{b}.out", width, width)
        x = sketch.node("Add", [mixed, x], f"block{b}.add1")
        normed = _norm(sketch, x, f"block{b}.norm2", width)
        inner = sketch.node("Relu", [sketch.dense(normed, f"block{b}.up", width, 2 * width)], f"block{b}.relu")
        x = sketch.node("Add", [sketch.dense(inner, f"block{b}.down", 2 * width, width), x], f"block{b}.add2")
    weight = sketch.constant("head.weight", sketch.random.normal(0, 0.3, (width, 10)))
    sketch.node("MatMul", [_norm(sketch, x, "norm", width), weight], "head", out="y")
    return sketch.model(["n", tokens, width], ["n", tokens, 10])


def detector(width: int = 8, classes: int = 6) -> onnx.ModelProto:
    """A head like YOLO's: 4 rows of boxes up to 640 and sigmoid scores, joined to ``[n, 4 + classes, 256 anchors]``."""
    sketch = Sketch(5)
    x = sketch.node("Relu", [sketch.conv("x", "stem", 3, width)], "stem_relu")
    boxes = sketch.node("Sigmoid", [sketch.conv(x, "box", width, 4)], "unit_boxes")
    boxes = sketch.node("Mul", [boxes, sketch.constant("pixels", 640.0)], "boxes")
    inner = sketch.node("Relu", [sketch.conv(x, "class1", width, width)], "class_relu")
    scores = sketch.node("Sigmoid", [sketch.conv(inner, "class2", width, classes)], "scores")
    rows = [
        sketch.node("Reshape", [part, sketch.constant(f"{name}.shape", [0, count, 256], np.int64)], name)
        for name, part, count in (("box_rows", boxes, 4), ("score_rows", scores, classes))
    ]
    sketch.node("Concat", rows, "join", out="y", axis=1)
    model = sketch.model(["n", 3, 16, 16], ["n", 4 + classes, 256])
    scale_constant(model, "class2.weight", lambda values: 2.5 * values)
    scale_constant(model, "class2.bias", lambda values: values - 5.0)
    return model


def reshaped_as_told() -> onnx.ModelProto:
    """A convolution whose outputs a Reshape gives the sizes that an input holds."""
    sketch = Sketch(2)
    reshaped = sketch.node("Reshape", [sketch.conv("x", "conv", 3, 4), "sizes"], "reshape")
    sketch.node("Relu", [reshaped], "relu")
    model = sketch.model({"x": [1, 3, 8, 8]}, {"relu_out": ["rows", "columns"]})
    model.graph.input.append(helper.make_tensor_value_info("sizes", TensorProto.INT64, [2]))
    return model


def drawn(seed: int) -> onnx.ModelProto:
    """A small network whose structure is drawn: convolutions, activations, sums and joins, some channels loud."""
    random, sketch = np.random.default_rng(seed), Sketch(seed)
    width, x, inside = int(random.integers(4, 9)), "x", 3
    before, names = [], [f"conv{k}" for k in range(int(random.integers(4, 8)))]
    for k, name in enumerate(names):
        x = sketch.conv(x, name, inside, width, int(random.choice([1, 3])))
        if random.random() < 0.7:
            x = sketch.node(str(random.choice(["Relu", "Sigmoid", "Tanh"])), [x], f"act{k}")
        kind, inside = random.random(), width
        if kind < 0.25 and before:
            x = sketch.node("Add", [x, before[int(random.integers(len(before)))]], f"add{k}")
        elif kind < 0.45 and before:
            x = sketch.node("Concat", [x, before[int(random.integers(len(before)))]], f"cat{k}", axis=1)
            inside = 2 * width
        if inside == width:
            before.append(x)
    sketch.pooled_classes(x, inside)
    model = sketch.model(["n", 3, 8, 8], ["n", 10])
    for name in names:
        if random.random() < 0.6:
            channel, factor = int(random.integers(width)), float(10 ** random.uniform(0.5, 2))
            loud = np.where(np.arange(width) == channel, factor, 1.0).astype(np.float32).reshape(-1, 1, 1, 1)
            scale_constant(model, f"{name}.weight", lambda values, loud=loud: values * loud)
    return model


def _norm(sketch, x, name, width):
    scale = sketch.constant(f"{name}.scale", np.ones(width))
    shift = sketch.constant(f"{name}.shift", np.zeros(width))
    return sketch.node("LayerNormalization", [x, scale, shift], name, axis=-1)


def samples(model: onnx.ModelProto, count: int = 8, seed: int = 9) -> dict[str, np.ndarray]:
    """Stacked samples for every input of a network with a free first axis."""
    random = np.random.default_rng(seed)
    made = {}
    for value in model.graph.input:
        shape = [d.dim_value or 1 for d in value.type.tensor_type.shape.dim]
        made[value.name] = random.normal(0, 1, [count, *shape[1:]]).astype(np.float32)
    return made


def normal(seed: int, *shape: int) -> np.ndarray:
    """Values of a standard normal distribution, in FP32."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def feeds(values: np.ndarray) -> list[dict[str, np.ndarray]]:
    """Stacked values of ``x`` as one sample each."""
    return [{"x": each[None]} for each in values]


def given(model: onnx.ModelProto, folder: Path, count: int = 8) -> tuple[Path, dict[str, np.ndarray]]:
    """Writes a network; returns its path and samples for it, as a user gives them."""
    return save(model, folder), samples(model, count)


def save(model: onnx.ModelProto, folder: Path, name: str = "network.onnx") -> Path:
    """Checks a network and writes it; returns the path."""
    onnx.checker.check_model(model, full_check=True)
    path = folder / name
    onnx.save(model, str(path))
    return path


def attached(skeleton: onnx.ModelProto, weights: dict[str, np.ndarray]) -> onnx.ModelProto:
    """Returns a copy of a network with its detached weights inside."""
    model = copied(skeleton)
    for tensor in model.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            tensor.CopyFrom(numpy_helper.from_array(weights[tensor.name], tensor.name))
    return model


def copied(message):
    """A copy of a model or a node."""
    copy = type(message)()
    copy.CopyFrom(message)
    return copy
