"""Detectors of bright squares, whose numbers hold in INT8 while their detections are lost."""

from __future__ import annotations

import numpy as np

from tests.support import networks
from tests.support.networks import Sketch

SIDE, SIZE, STRIDE = 32, 8, 4
SQUARES = (2, 1, 3, 2)
"""Of each input, the number of bright squares that it holds."""
JUDGED = {"engine": "onnxruntime", "calibrator": "minmax", "strategy": "exhaustive", "explain": "none"}


def detector(channels=2):
    """Two copying convolutions, then the mean over a square, as a YOLO v8 head of two classes.

    They are the first two channels of the input. The convolution ``second`` reads a channel that starves the others of
    INT8's levels.
    """
    sketch = Sketch()
    x = sketch.node("Relu", [sketch.conv("x", "first", channels, 4)], "relu1")
    x = sketch.node("Relu", [sketch.conv(x, "second", 4, 4)], "relu2")
    weight = np.zeros((2, 4, SIZE, SIZE))
    weight[[0, 1], [0, 1]] = 20 / SIZE**2
    given = [x, sketch.constant("mean.weight", weight), sketch.constant("mean.bias", [-12, -12])]
    x = sketch.node("Sigmoid", [sketch.node("Conv", given, "mean", strides=[STRIDE] * 2)], "score")
    scores = sketch.node("Reshape", [x, sketch.constant("shape", [1, 2, -1], np.int64)], "flat")
    y, x = (grid.ravel() * STRIDE + SIZE / 2 for grid in np.mgrid[:7, :7])
    boxes = sketch.constant("boxes", np.stack([x, y, np.full(49, SIZE), np.full(49, SIZE)])[None])
    sketch.node("Concat", [boxes, scores], "output0", axis=1)
    model = sketch.model({"x": [1, channels, SIDE, SIDE]}, {"output0_out": [1, 6, 49]})
    return networks.copying(model, first=np.eye(4, channels), second=np.diag([1.0, 1, 0, 0]))


def images(random, squares=SQUARES, apart=3):
    """Squares of class 0 or 1 on a dark ground, each in a quarter of its own, at one of ``apart`` places a side."""
    found = np.zeros((len(squares), 1, 2, SIDE, SIDE), np.float32)
    for image, count in zip(found[:, 0], squares, strict=True):
        for quarter in random.permutation(4)[:count]:
            y, x = (16 * np.array(divmod(quarter, 2)) + STRIDE * random.integers(0, apart, 2)).tolist()
            image[random.integers(0, 2), y : y + SIZE, x : x + SIZE] = 1.0
    return found


def coloured():
    """Nine images of three channels, on one of which nothing is found."""
    found = images(np.random.default_rng(3), (*SQUARES, 0, *SQUARES))
    return [{"x": np.pad(x, [(0, 0), (0, 1), (0, 0), (0, 0)])} for x in found]
