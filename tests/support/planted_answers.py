"""Small real networks whose right answer is known: every plan is tried, and the 1-minimal sets are listed.

Here stand the cases that mislead a search: errors that cancel, a culprit hidden behind another, layers that look bad
and are not, a drop that later layers absorb, and an output whose small slice is destroyed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from tests.support import networks
from tests.support.by_hand import cosine
from tests.support.networks import Sketch, plant_between, scale_constant
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
from trt_bisect.calibration.collect import calibrate
from trt_bisect.model.network import load_network
from trt_bisect.precision import all_but

THRESHOLD = 0.99
WIDTH, SIZE = 6, 8


@dataclass(frozen=True)
class PlantedAnswer:
    """A network, and the trap in it.

    Attributes:
        model: with the input ``x`` and the output ``y``; ranges are min-max over ``networks.samples(model)``.
        decoys: innocent layers that a wrong search would blame.
        cut: the place on axis 1 where ``y`` is cut before it is judged; 0 if it is judged whole.
    """

    model: onnx.ModelProto
    decoys: tuple[str, ...] = ()
    cut: int = 0


@dataclass
class EveryPlan:
    """The losses of all plans: 1 - cosine on the worst of four samples and the worst piece of the output.

    Attributes:
        names: of the quantizable layers, in their order.
        losses: by the names of the layers kept high.
    """

    names: tuple[str, ...]
    losses: dict[frozenset[str], float] = field(default_factory=dict)

    def meets(self, high) -> bool:
        return self.losses[frozenset(high)] <= 1.0 - THRESHOLD

    @property
    def minimal(self) -> list[frozenset[str]]:
        """The 1-minimal sets: the target holds, and does not if any one member goes back to INT8."""
        return [
            high for high in self.losses if self.meets(high) and not any(self.meets(high - {name}) for name in high)
        ]

    def drop(self, name: str) -> float:
        """The loss that the layer adds to the prefix curve, no layer kept high before it."""
        before = self.names[: self.names.index(name)]
        return self.prefix(len(before) + 1) - self.prefix(len(before))

    def prefix(self, count: int) -> float:
        """Returns the loss with the first ``count`` layers in INT8."""
        return self.losses[frozenset(self.names[count:])]


def every_plan(planted: PlantedAnswer, folder: Path) -> EveryPlan:
    """Tries every plan on the session that switches precisions."""
    network = load_network(networks.save(planted.model, folder))
    samples = networks.samples(planted.model)["x"]
    ranges = calibrate(network, networks.feeds(samples), "minmax")
    session = OnnxRuntimeBuilder(network, ranges.scales, BuildOptions(threads=1)).switch()
    feeds = {"x": samples[:4]}
    exact = session.infer(all_but(len(network.layers), network.quantizable), feeds)["y"]
    found = EveryPlan(tuple(network.layers[k].name for k in network.quantizable))
    for number in range(1 << len(network.quantizable)):
        high = [k for place, k in enumerate(network.quantizable) if number >> place & 1]
        output = session.infer(all_but(len(network.layers), high), feeds)["y"]
        found.losses[frozenset(network.layers[k].name for k in high)] = _loss(exact, output, planted.cut)
    return found


def _loss(exact, output, cut):
    pieces = zip(*(np.split(each, [cut] if cut else [], axis=1) for each in (exact, output)), strict=True)
    return max(1.0 - cosine(a, b) for left, right in pieces for a, b in zip(left, right, strict=True))


def cancelling_pair() -> PlantedAnswer:
    """``left`` and ``right`` are subtracted and nearly equal: with both in INT8 their errors cancel, with one they do
    not. ``conv2`` is to blame."""
    sketch = Sketch(34)
    x = sketch.node("Relu", [sketch.conv("x", "conv0", 3, WIDTH)], "relu0")
    left, right = sketch.conv(x, "left", WIDTH, WIDTH), sketch.conv(x, "right", WIDTH, WIDTH)
    x = sketch.conv(sketch.node("Sub", [left, right], "apart"), "conv1", WIDTH, WIDTH)
    x = sketch.conv(sketch.node("Relu", [x], "relu1"), "conv2", WIDTH, WIDTH)
    model = _ended(sketch, x)
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    for part in ("weight", "bias"):
        shared = constants[f"left.{part}"][2:]
        scale_constant(model, f"right.{part}", lambda own, shared=shared: np.concatenate([own[:2], shared]))
    louder = np.float32([1, 1, 12, 12, 12, 12])[:, None, None]
    scale_constant(model, "conv1.weight", lambda values: values * louder)
    plant_between(model, "conv1", "conv2")
    return PlantedAnswer(model, ("left", "right"))


def masked_culprit() -> PlantedAnswer:
    """``conv1`` and ``conv4`` are to blame; with ``conv1`` in INT8 almost nothing arrives at ``conv4``."""
    sketch = Sketch(22)
    x = sketch.conv("x", "conv0", 3, WIDTH)
    for k in range(1, 6):
        x = sketch.conv(sketch.node("Relu", [x], f"relu{k}"), f"conv{k}", WIDTH, WIDTH)
    model = _ended(sketch, x)
    plant_between(model, "conv0", "conv1", factor=1e5)
    plant_between(model, "conv3", "conv4", channel=2)
    return PlantedAnswer(model)


def decoys() -> PlantedAnswer:
    """``decoy1`` destroys its tensors, which hardly count in the sum; ``conv2`` is to blame."""
    sketch = Sketch(23)
    x = sketch.node("Relu", [sketch.conv("x", "conv0", 3, WIDTH)], "relu0")
    side = sketch.node("Relu", [sketch.conv(x, "decoy0", WIDTH, WIDTH)], "decoy_relu")
    side = sketch.conv(side, "decoy1", WIDTH, WIDTH)
    little = sketch.constant("little", np.float32(1e-3))
    x = sketch.node("Relu", [sketch.conv(x, "conv1", WIDTH, WIDTH)], "relu1")
    x = sketch.conv(x, "conv2", WIDTH, WIDTH)
    x = sketch.node("Add", [x, sketch.node("Mul", [side, little], "fade")], "sum")
    model = _ended(sketch, x)
    plant_between(model, "decoy0", "decoy1")
    plant_between(model, "conv1", "conv2")
    return PlantedAnswer(model, ("decoy1",))


def absorbed_drop() -> PlantedAnswer:
    """``conv1`` computes zero in channel 2, as the difference of two large numbers that INT8 rounds apart. ``conv2``
    reads it with a weight that INT8 rounds to zero: the error counts only while ``conv2`` is high. ``conv4`` is to
    blame."""
    sketch = Sketch(24)
    x = sketch.conv("x", "conv0", 3, WIDTH)
    for k in range(1, 5):
        x = sketch.conv(sketch.node("Relu", [x], f"relu{k}") if k != 2 else x, f"conv{k}", WIDTH, WIDTH)
    model = _ended(sketch, x)
    large = 4e4

    def same(values):
        values[1] = 0.7 * values[0]
        return values

    def difference(values):
        values[2] = 0.0
        if values.ndim == 4:
            values[2, :2, 1, 1] = 0.7 * large, -large
        return values

    def faint(values):
        values[:, 2] = 0.4 / 127 * np.abs(np.delete(values, 2, axis=1)).max(axis=(1, 2, 3))[:, None, None]
        return values

    for name, change in (("conv0", same), ("conv1", difference)):
        scale_constant(model, f"{name}.weight", change)
        scale_constant(model, f"{name}.bias", change)
    scale_constant(model, "conv2.weight", faint)
    plant_between(model, "conv3", "conv4")
    return PlantedAnswer(model, ("conv1",))


def unlike_slices() -> PlantedAnswer:
    """Four channels of ``y`` go to 600, two to 1. ``score1`` destroys the small ones, which the cosine of the whole
    output does not show."""
    sketch = Sketch(25)
    x = sketch.node("Relu", [sketch.conv("x", "conv0", 3, WIDTH)], "relu0")
    x = sketch.node("Relu", [sketch.conv(x, "conv1", WIDTH, WIDTH)], "relu1")
    boxes = sketch.node("Sigmoid", [sketch.conv(x, "boxes", WIDTH, 4, 1)], "box_sigmoid")
    boxes = sketch.node("Mul", [boxes, sketch.constant("size", np.float32(600.0))], "box_scale")
    scores = sketch.node("Relu", [sketch.conv(x, "score0", WIDTH, WIDTH)], "score_relu")
    scores = sketch.node("Sigmoid", [sketch.conv(scores, "score1", WIDTH, 2, 1)], "score_sigmoid")
    sketch.node("Concat", [boxes, scores], "join", out="y", axis=1)
    model = sketch.model(["n", 3, SIZE, SIZE], ["n", 6, SIZE, SIZE])
    scale_constant(model, "score1.weight", lambda values: 4.0 * values)
    plant_between(model, "score0", "score1")
    return PlantedAnswer(model, cut=4)


MISLEADING = {made.__name__: made for made in (cancelling_pair, masked_culprit, decoys, absorbed_drop, unlike_slices)}


def _ended(sketch: Sketch, x: str) -> onnx.ModelProto:
    weight = sketch.constant("last.weight", sketch.weight("last", 4, WIDTH, 1, 1))
    sketch.node("Conv", [x, weight], "last", out="y")
    return sketch.model(["n", 3, SIZE, SIZE], ["n", 4, SIZE, SIZE])
