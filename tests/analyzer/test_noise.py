"""Noise of a hundred shapes under every task: refused as bad input, or read by those that need nothing but a shape.

Detections, poses, oriented boxes and masks have columns of different kinds, text has a blank that is far more frequent
than other classes, and noise has neither. How the other tasks read arrays by their shapes is told by their own tests.
"""

from __future__ import annotations

import numpy as np
import pytest

from trt_bisect.analyzer.tasks.find import TASKS, find_task
from trt_bisect.analyzer.tasks.task import AskedTask
from trt_bisect.errors import BadInput

SHAPES, MOST = 100, 20_000
LENGTHS = (1, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 20, 21, 32, 38, 40, 56, 57, 64, 84, 85, 116, 144, 255, 300, 1000)
VALUES = {
    "normal": lambda random, shape: random.normal(0, 1, shape),
    "pixels": lambda random, shape: random.uniform(-20, 640, shape),
    "positive": lambda random, shape: random.uniform(0.5, 80, shape),
    "shares": lambda random, shape: random.uniform(0, 1, shape),
    "signed shares": lambda random, shape: random.uniform(-1, 1, shape),
    "whole": lambda random, shape: random.integers(-3, 9, shape).astype(float),
    "integers": lambda random, shape: random.integers(0, 9, shape),
}
CONSTANT = {"zeros": lambda _, shape: np.zeros(shape), "NaN": lambda _, shape: np.full(shape, np.nan)}

BY_SHAPE = ("detect", "classify", "segment", "depth", "embed")
"""Shares can be boxes and scores alike, positive values depths."""


def noise(seed, values):
    """A hundred pairs of outputs, of no to six axes, each shape once."""
    random, known = np.random.default_rng(seed), set()
    while len(known) < SHAPES:
        shape = tuple(random.choice(LENGTHS, random.choice([0, 1, 2, 3, 3, 3, 3, 4, 4, 4, 5, 6])).tolist())
        if shape not in known and np.prod(shape) <= MOST:
            known.add(shape)
            make = values[random.choice(list(values))]
            yield [np.asarray(make(random, shape)) for _ in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_noise_is_refused_or_read_by_its_shape(task):
    read = 0
    for pair in noise(1, VALUES | CONSTANT):
        outputs = [{"y": y} for y in pair]
        try:
            found = find_task(AskedTask(task), outputs)
            found.check(outputs)
        except BadInput:
            continue
        read += 1
    assert (read > 0) == (task in BY_SHAPE)
