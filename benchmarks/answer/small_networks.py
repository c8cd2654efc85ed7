"""Forty small networks with 8 to 14 layers that INT8 can take: few enough that every plan can be measured.

Chains, residual blocks, depthwise blocks, Gemms, attention, and twins whose errors cancel; some lose a little
everywhere, in others one to four culprits of different size are planted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper, numpy_helper

from benchmarks.networks import Sketch

SIZE, TOKENS, CLASSES = 8, 8, 10
PLANTED = (0, 1, 2, 0, 3, 1, 4, 2)
"""The number of culprits in the networks of a family, in turn."""
Pairs = list[tuple[str, str]]
"""Between whom a culprit can be planted: the layer that makes a tensor, and its only reader."""


@dataclass(frozen=True)
class Small:
    """A small network, inputs to calibrate with and others to judge on, by the name of its input ``x``."""

    name: str
    model: onnx.ModelProto
    calibration: np.ndarray
    inputs: np.ndarray
    calibrator: str


def small_networks() -> list[Small]:
    """Returns all small networks, the same ones at each call."""
    families: list[tuple[str, Callable[[Sketch, int], Pairs], list[int]]] = [
        ("chain", _chain, [7, 8, 9, 10, 7, 8, 9, 11]),
        ("residual", _residual, [2, 3, 3, 2, 3, 3, 2, 3]),
        ("depthwise", _depthwise, [2, 2, 2, 2, 2, 2, 2, 2]),
        ("dense", _dense, [8, 9, 10, 11, 8, 9]),
        ("attention", _attention, [1, 1, 1, 1, 1, 1]),
        ("twins", _twins, [3, 4, 5, 6]),
    ]
    found = []
    for family, draw, sizes in families:
        for k, size in enumerate(sizes):
            sketch = Sketch(1000 + 17 * k + len(family))
            pairs = draw(sketch, size)
            shape: list[int | str] = (
                ["n", TOKENS, 16] if family == "attention" else ["n", 24] if family == "dense" else ["n", 3, 8, 8]
            )
            model = sketch.model(shape, ["n", CLASSES])
            places = sketch.random.permutation(len(pairs))[: PLANTED[k]]
            for place in places:
                maker, reader = pairs[place]
                _raise_channel(model, maker, reader, factor=10 ** sketch.random.uniform(1.0, 3.0))
            onnx.checker.check_model(model, full_check=True)
            given = samples(model, 8, k)
            found.append(Small(f"{family}-{k}", model, given, samples(model, 4, 100 + k), ("minmax", "entropy")[k % 2]))
    return found


def samples(model: onnx.ModelProto, count: int, seed: int) -> np.ndarray:
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim][1:]
    return np.random.default_rng(seed).normal(0, 1, (count, *shape)).astype(np.float32)


def _chain(sketch: Sketch, depth: int) -> Pairs:
    x = sketch.conv("x", "conv0", 3, 8, 3)
    for k in range(1, depth):
        x = sketch.conv(sketch.relu(x, f"relu{k}"), f"conv{k}", 8 * min(k, 2), 8 * min(k + 1, 2), 3)
    sketch.head(x, 16, CLASSES)
    return [(f"conv{k}", f"conv{k + 1}") for k in range(depth - 1)]


def _residual(sketch: Sketch, blocks: int) -> Pairs:
    x = sketch.relu(sketch.conv("x", "stem", 3, 8, 3), "stem_relu")
    for b in range(blocks):
        y = sketch.relu(sketch.conv(x, f"block{b}.conv1", 8, 16, 3), f"block{b}.relu1")
        y = sketch.conv(y, f"block{b}.conv2", 16, 8, 3)
        x = sketch.relu(sketch.node("Add", [y, x], f"block{b}.add"), f"block{b}.relu2")
    sketch.head(x, 8, CLASSES)
    return [(f"block{b}.conv1", f"block{b}.conv2") for b in range(blocks)]


def _depthwise(sketch: Sketch, blocks: int) -> Pairs:
    x = sketch.conv("x", "stem", 3, 8, 3)
    for b in range(blocks):
        y = sketch.relu(sketch.conv(x, f"block{b}.expand", 8, 16, 1), f"block{b}.relu1")
        y = sketch.relu(sketch.conv(y, f"block{b}.depthwise", 16, 16, 3, group=16), f"block{b}.relu2")
        x = sketch.node("Add", [sketch.conv(y, f"block{b}.project", 16, 8, 1), x], f"block{b}.add")
    sketch.head(x, 8, CLASSES)
    return [(f"block{b}.depthwise", f"block{b}.project") for b in range(blocks)]


def _dense(sketch: Sketch, depth: int) -> Pairs:
    x, inside = "x", 24
    for k in range(depth - 1):
        outside = (32, 16, 48)[k % 3]
        x = sketch.relu(sketch.dense(x, f"dense{k}", inside, outside, 2.0), f"relu{k}")
        inside = outside
    weight = sketch.constant("fc.weight", sketch.random.normal(0, inside**-0.5, (inside, CLASSES)))
    sketch.nodes.append(helper.make_node("MatMul", [x, weight], ["y"], name="fc"))
    return [(f"dense{k}", f"dense{k + 1}") for k in range(depth - 2)]


def _attention(sketch: Sketch, blocks: int) -> Pairs:
    x, width = sketch.dense("x", "embed", 16, 16), 16
    root = sketch.constant("root", np.array(4.0))
    for b in range(blocks):
        name = f"block{b}"
        normed = sketch.norm(x, f"{name}.norm1", width)
        q, k, v = (sketch.dense(normed, f"{name}.{part}", width, width) for part in "qkv")
        scores = sketch.node("MatMul", [q, sketch.node("Transpose", [k], f"{name}.turn", perm=[0, 2, 1])],
                             f"{name}.scores")  # fmt: skip
        shares = sketch.node("Softmax", [sketch.node("Div", [scores, root], f"{name}.div")], f"{name}.softmax", axis=-1)
        mixed = sketch.dense(sketch.node("MatMul", [shares, v], f"{name}.mix"), f"{name}.out", width, width)
        x = sketch.node("Add", [mixed, x], f"{name}.add1")
        y = sketch.relu(sketch.dense(sketch.norm(x, f"{name}.norm2", width), f"{name}.up", width, 32), f"{name}.relu")
        x = sketch.node("Add", [sketch.dense(y, f"{name}.down", 32, width), x], f"{name}.add2")
    x = sketch.node("ReduceMean", [x], "mean", axes=[1], keepdims=0)
    weight = sketch.constant("fc.weight", sketch.random.normal(0, 0.25, (width, CLASSES)))
    sketch.nodes.append(helper.make_node("MatMul", [x, weight], ["y"], name="fc"))
    return [(f"block{b}.up", f"block{b}.down") for b in range(blocks)]


def _twins(sketch: Sketch, depth: int) -> Pairs:
    """Two convolutions of the same weights but for three channels, subtracted: their errors cancel if both are low."""
    x = sketch.relu(sketch.conv("x", "conv0", 3, 8, 3), "relu0")
    left = sketch.conv(x, "left", 8, 8, 3)
    right = sketch.conv(x, "right", 8, 8, 3)
    named = {tensor.name: tensor for tensor in sketch.constants}
    for part in ("weight", "bias"):
        values = numpy_helper.to_array(named[f"right.{part}"]).copy()
        values[3:] = numpy_helper.to_array(named[f"left.{part}"])[3:]
        named[f"right.{part}"].CopyFrom(numpy_helper.from_array(values, f"right.{part}"))
    x = sketch.conv(sketch.node("Sub", [left, right], "apart"), "reader", 8, 8, 3)
    values = numpy_helper.to_array(next(t for t in sketch.constants if t.name == "reader.weight")).copy()
    values[:, 3:] *= 20.0
    next(t for t in sketch.constants if t.name == "reader.weight").CopyFrom(
        numpy_helper.from_array(values, "reader.weight")
    )
    for k in range(1, depth):
        x = sketch.conv(sketch.relu(x, f"relu{k}"), f"conv{k}", 8, 8, 3)
    sketch.head(x, 8, CLASSES)
    return [(f"conv{k}", f"conv{k + 1}") for k in range(1, depth - 1)]


def _raise_channel(model: onnx.ModelProto, maker: str, reader: str, factor: float, channel: int = 1) -> None:
    """Multiplies one channel that ``maker`` makes and divides it where ``reader`` reads it: the same in FP32.

    Its bias is raised first, so that a Relu leaves it alive.
    """
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor).copy()
        whose, _, part = tensor.name.rpartition(".")
        if whose == maker and part == "bias":
            values[channel] = (abs(values[channel]) + 0.5) * factor
        elif whose == maker and part == "weight":
            values[(channel if values.ndim == 4 else (..., channel))] *= factor
        elif whose == reader and part == "weight":
            values[(slice(None), channel) if values.ndim == 4 else channel] /= factor
        else:
            continue
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
