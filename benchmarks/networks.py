"""The benchmark's networks, generated: the layers of well-known ones, seeded random weights, a culprit on request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from tests.support import networks

CULPRIT_FACTOR = 2000.0


class Sketch(networks.Sketch):
    """A graph while it is being drawn; every weight is drawn from one seeded generator."""

    def dense(self, x: str, name: str, inside: int, outside: int, gain: float = 1.0) -> str:
        return str(super().dense(x, name, inside, outside, gain))

    def varied(self, name: str, width: int, deviation: float = 0.0) -> str:
        """A constant near one, or with a deviation near zero."""
        if deviation:
            return self.constant(name, self.random.normal(0, deviation, width))
        return self.constant(name, self.random.uniform(0.8, 1.2, width))

    def norm(self, x: str, name: str, width: int) -> str:
        parameters = [self.varied(f"{name}.scale", width), self.varied(f"{name}.shift", width, 0.05)]
        return self.node("LayerNormalization", [x, *parameters], name, axis=-1)

    def batch_norm(self, x: str, name: str, width: int) -> str:
        scale = self.varied(f"{name}.scale", width)
        means = [self.varied(f"{name}.{part}", width, 0.1) for part in ("shift", "mean")]
        return self.node("BatchNormalization", [x, scale, *means, self.varied(f"{name}.var", width)], name)

    def relu(self, x: str, name: str) -> str:
        return self.node("Relu", [x], name)

    def head(self, x: str, width: int, classes: int) -> None:
        x = self.node("Flatten", [self.node("GlobalAveragePool", [x], "pool")], "flatten")
        weight = self.random.normal(0, (1.0 / width) ** 0.5, (classes, width))
        parameters = [self.constant("fc.weight", weight), self.varied("fc.bias", classes, 0.05)]
        self.node("Gemm", [x, *parameters], "fc", out="y", transB=1)


def resnet50(size: int = 224) -> onnx.ModelProto:
    """ResNet-50, BatchNormalization folded: 53 convolutions, 16 sums, two poolings, one Gemm."""
    sketch = Sketch(50)
    x = sketch.relu(sketch.conv("x", "stem", 3, 64, 7, strides=[2, 2]), "stem_relu")
    x = sketch.node("MaxPool", [x], "stem_pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    inside = 64
    for stage, (blocks, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512))):
        for block in range(blocks):
            name, stride = f"layer{stage + 1}.{block}", 2 if stage and not block else 1
            y = sketch.relu(sketch.conv(x, f"{name}.conv1", inside, width, 1), f"{name}.relu1")
            y = sketch.relu(sketch.conv(y, f"{name}.conv2", width, width, strides=[stride] * 2), f"{name}.relu2")
            y = sketch.conv(y, f"{name}.conv3", width, 4 * width, 1, gain=0.4)
            if not block:
                x = sketch.conv(x, f"{name}.downsample", inside, 4 * width, 1, gain=1.0, strides=[stride] * 2)
            x = sketch.relu(sketch.node("Add", [y, x], f"{name}.add"), f"{name}.relu3")
            inside = 4 * width
    sketch.head(x, inside, 1000)
    return sketch.model(["n", 3, size, size], ["n", 1000])


def mobilenet_v2(size: int = 224) -> onnx.ModelProto:
    """MobileNetV2: 52 convolutions, ten sums, pooling, one Gemm."""
    sketch = Sketch(2)

    def relu6(x: str, name: str) -> str:
        low, high = sketch.constant(f"{name}.low", np.array(0.0)), sketch.constant(f"{name}.high", np.array(6.0))
        return sketch.node("Clip", [x, low, high], name)

    x = relu6(sketch.conv("x", "stem", 3, 32, strides=[2, 2]), "stem_relu")
    inside, count = 32, 0
    for expand, outside, blocks, first in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    ):  # fmt: skip
        for block in range(blocks):
            name, stride, hidden = f"block{count}", first if not block else 1, inside * expand
            y = x
            if expand > 1:
                y = relu6(sketch.conv(y, f"{name}.expand", inside, hidden, 1), f"{name}.relu1")
            y = sketch.conv(y, f"{name}.depthwise", hidden, hidden, group=hidden, strides=[stride] * 2)
            y = relu6(y, f"{name}.relu2")
            y = sketch.conv(y, f"{name}.project", hidden, outside, 1, gain=1.0)
            x = sketch.node("Add", [x, y], f"{name}.add") if stride == 1 and inside == outside else y
            inside, count = outside, count + 1
    x = relu6(sketch.conv(x, "last", inside, 1280, 1), "last_relu")
    sketch.head(x, 1280, 1000)
    return sketch.model(["n", 3, size, size], ["n", 1000])


def densenet121(size: int = 160) -> onnx.ModelProto:
    """DenseNet-121: every layer reads all before it; BatchNormalization and Relu stand before the convolutions."""
    sketch = Sketch(121)
    x = sketch.relu(sketch.conv("x", "stem", 3, 64, 7, strides=[2, 2]), "stem_relu")
    x = sketch.node("MaxPool", [x], "stem_pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    width, growth = 64, 32
    for stage, layers in enumerate((6, 12, 24, 16)):
        for i in range(layers):
            name = f"dense{stage + 1}.{i}"
            y = sketch.relu(sketch.batch_norm(x, f"{name}.norm1", width), f"{name}.relu1")
            y = sketch.relu(sketch.conv(y, f"{name}.conv1", width, 4 * growth, 1), f"{name}.relu2")
            y = sketch.conv(y, f"{name}.conv2", 4 * growth, growth, 3)
            x = sketch.node("Concat", [x, y], f"{name}.concat", axis=1)
            width += growth
        if stage < 3:
            name = f"transition{stage + 1}"
            x = sketch.relu(sketch.batch_norm(x, f"{name}.norm", width), f"{name}.relu")
            x = sketch.conv(x, f"{name}.conv", width, width // 2, 1)
            x = sketch.node("AveragePool", [x], f"{name}.pool", kernel_shape=[2, 2], strides=[2, 2])
            width //= 2
    x = sketch.relu(sketch.batch_norm(x, "norm", width), "norm_relu")
    sketch.head(x, width, 1000)
    return sketch.model(["n", 3, size, size], ["n", 1000])


def encoder(blocks: int = 12, width: int = 384, heads: int = 6, tokens: int = 128) -> onnx.ModelProto:
    """A transformer encoder with pre-norm attention: eight MatMuls and two sums a block, and a head."""
    sketch = Sketch(12)
    split = sketch.constant("split", np.array([0, tokens, heads, width // heads]), np.int64)
    joined = sketch.constant("joined", np.array([0, tokens, width]), np.int64)
    root = sketch.constant("root", np.array((width / heads) ** 0.5))
    x = sketch.norm(sketch.dense("x", "embed", width, width), "embed_norm", width)
    for b in range(blocks):
        name = f"block{b}"
        normed = sketch.norm(x, f"{name}.norm1", width)
        parts = {}
        for part, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
            y = sketch.dense(normed, f"{name}.{part}", width, width)
            y = sketch.node("Reshape", [y, split], f"{name}.{part}_split")
            parts[part] = sketch.node("Transpose", [y], f"{name}.{part}_turn", perm=order)
        scores = sketch.node("MatMul", [parts["q"], parts["k"]], f"{name}.scores")
        shares = sketch.node("Softmax", [sketch.node("Div", [scores, root], f"{name}.div")], f"{name}.softmax", axis=-1)
        mixed = sketch.node("MatMul", [shares, parts["v"]], f"{name}.mix")
        mixed = sketch.node("Transpose", [mixed], f"{name}.mix_turn", perm=[0, 2, 1, 3])
        mixed = sketch.node("Reshape", [mixed, joined], f"{name}.mix_join")
        x = sketch.node("Add", [sketch.dense(mixed, f"{name}.out", width, width, 0.5), x], f"{name}.add1")
        y = sketch.dense(sketch.norm(x, f"{name}.norm2", width), f"{name}.up", width, 4 * width)
        root_2, one, half = (
            sketch.constant(f"{name}.{n}", np.array(v)) for n, v in (("r2", 2**0.5), ("one", 1.0), ("half", 0.5))
        )
        error = sketch.node("Erf", [sketch.node("Div", [y, root_2], f"{name}.gelu_div")], f"{name}.gelu_erf")
        gelu = sketch.node("Mul", [y, sketch.node("Add", [error, one], f"{name}.gelu_add")], f"{name}.gelu_mul")
        gelu = sketch.node("Mul", [gelu, half], f"{name}.gelu_half")
        y = sketch.dense(gelu, f"{name}.down", 4 * width, width, 0.5)
        x = sketch.node("Add", [y, x], f"{name}.add2")
    weight = sketch.constant("head.weight", sketch.weight("head", width, 100, gain=1.0))
    sketch.node("MatMul", [sketch.norm(x, "norm", width), weight], "head", out="y")
    return sketch.model(["n", tokens, width], ["n", tokens, 100])


@dataclass(frozen=True)
class Case:
    """A network of the benchmark, and the two layers between which a culprit is planted; the second is to blame."""

    name: str
    make: Callable[[], onnx.ModelProto]
    culprit: tuple[str, str]


CASES = (
    Case("MobileNetV2", mobilenet_v2, ("block16.project", "last")),
    Case("ResNet-50", resnet50, ("layer3.1.conv1", "layer3.1.conv2")),
    Case("encoder-12", encoder, ("block6.norm2", "block6.up")),
    Case("DenseNet-121-like", densenet121, ("transition2.norm", "transition2.conv")),
)


def plant(model: onnx.ModelProto, maker: str, reader: str, channel: int = 1) -> None:
    """Raises one channel that ``maker`` makes two thousandfold and lowers it where ``reader`` reads it.

    Nothing changes in FP32. In INT8 the channel takes the levels of all others: the reader is to blame.
    """
    raised = {f"{maker}.{part}" for part in ("weight", "bias", "scale", "shift")}
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor).copy()
        if tensor.name in raised:
            values[channel] *= CULPRIT_FACTOR
        elif tensor.name == f"{reader}.weight":
            values[(slice(None), channel) if values.ndim == 4 else channel] /= CULPRIT_FACTOR
        else:
            continue
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def samples(model: onnx.ModelProto, count: int, seed: int = 7) -> np.ndarray:
    """``count`` inputs, float32, stacked on the first axis."""
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim][1:]
    random = np.random.default_rng(seed)
    base = random.normal(0, 1, (count, *shape))
    return (base + random.normal(0, 0.5, (count, *[1] * len(shape)))).astype(np.float32)


def write(case: Case, folder: Path, *, planted: bool = False) -> tuple[Path, Path]:
    """Writes a case's network and eight samples, and returns both paths."""
    folder.mkdir(parents=True, exist_ok=True)
    model = case.make()
    if planted:
        plant(model, *case.culprit)
    onnx.checker.check_model(model, full_check=True)
    network, data = folder / f"{case.name}{'-planted' if planted else ''}.onnx", folder / f"{case.name}.npz"
    onnx.save(model, str(network))
    np.savez(data, x=samples(model, 8))
    return network, data
