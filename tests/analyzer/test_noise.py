"""Noise of a hundred shapes under every task: refused, or read as the guide says, by rules that NumPy decides here.

Detections, poses, oriented boxes and masks have columns of different kinds, text has a blank that is far more frequent
than other classes, and noise has neither. So noise is none of them, unless all its numbers are shares: then boxes and
scores can be alike. The other tasks read arrays by their shapes; depths are positive.
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


def noise(seed, values):
    """A hundred pairs of outputs, of no to six axes, each shape once."""
    random, known = np.random.default_rng(seed), set()
    while len(known) < SHAPES:
        shape = tuple(random.choice(LENGTHS, random.choice([0, 1, 2, 3, 3, 3, 3, 4, 4, 4, 5, 6])).tolist())
        if shape not in known and np.prod(shape) <= MOST:
            known.add(shape)
            make = values[random.choice(list(values))]
            yield [np.asarray(make(random, shape)) for _ in range(2)]


def are_shares(pair):
    return all(((y >= 0) & (y <= 1)).all() for y in pair)


def detect(pair):
    """Shares of boxes and scores, up to 1,000: the columns are the last axis or the one before, and no more than rows.

    Of each image the boxes and scores from 0.3 on, the best first.
    """
    first = pair[0]
    if first.dtype.kind == "f" and first.ndim == 3 and first.any() and are_shares(pair):
        for rows in (first, first.transpose(0, 2, 1)):
            if 5 <= rows.shape[2] <= rows.shape[1]:
                boxes = np.concatenate([rows[..., :2] - rows[..., 2:4] / 2, rows[..., :2] + rows[..., 2:4] / 2], axis=2)
                scores = rows[..., 4:].max(-1)
                orders = [[k for k in np.argsort(-each, kind="stable") if each[k] >= 0.3] for each in scores]
                return [(each[k], own[k]) for each, own, k in zip(boxes, scores, orders, strict=True)]
    return None


def class_axis(pair):
    """The only axis longer than 1 behind the batch; of four axes the second, if the others can be rows and columns."""
    shape = pair[0].shape
    long = [axis for axis in range(min(1, len(shape) - 1), len(shape)) if shape[axis] > 1]
    if len(long) < 2:
        return long[0] if long else len(shape) - 1
    if len(shape) != 4:
        return None
    channels, height, width = shape[1:]
    is_second = are_shares(pair) if channels == 1 else channels != height and width >= min(channels, height)
    return 1 if height == width or is_second else None


def predicted(pair, axis):
    """The best class along an axis; a single value is a class above the middle of shares or of logits."""
    first = pair[0]
    return first.argmax(axis) if first.shape[axis] > 1 else (first > 0.5 * are_shares(pair)).squeeze(axis).astype(int)


def classify(pair):
    first = pair[0]
    if first.dtype.kind != "f" or not first.ndim or class_axis(pair) is None or detect(pair) is not None:
        return None
    return [f"class {each}" for each in predicted(pair, class_axis(pair)).ravel().tolist()]


def segment(pair):
    first = pair[0]
    if sum(length > 1 for length in first.shape) < 2:
        return None
    if first.dtype.kind == "i":
        return first.reshape(-1, *first.shape[-2:])
    is_one = first.ndim == 4 and 1 in (first.shape[1], first.shape[3])
    if detect(pair) is None and (is_one or (first.ndim == 3 and class_axis(pair) is None)):
        is_depth = not are_shares(pair) and min(y.min() for y in pair) >= 0
        if (is_one and not is_depth) or are_shares(pair):
            return (first > 0.5 * are_shares(pair)).reshape(-1, *first.shape[-2:])
    elif first.ndim == 4 and class_axis(pair) is not None:
        axis = class_axis(pair)
        if all(first.shape[other] > 1 for other in {1, 2, 3} - {axis}):
            return first.argmax(axis)
    return None


def depth(pair):
    first = pair[0]
    if first.dtype.kind != "f" or first.ndim not in (3, 4) or (first.ndim == 4 and first.shape[1] > 1):
        return None
    short, long = sorted(first.shape[-2:])
    is_map = short >= 8 and long <= 4 * short and all(y.min() >= 0 and np.ptp(y) > 0 for y in pair)
    return first.reshape(-1, *first.shape[-2:]) if is_map and detect(pair) is None else None


def embed(pair):
    """The mean cosine between the vectors of both outputs; of tokens the mean is the vector."""
    first = pair[0]
    if first.dtype.kind != "f" or first.ndim not in (1, 2, 3) or first.shape[-1] < 2 or detect(pair) is not None:
        return None
    one, other = (np.atleast_2d(y.mean(axis=1) if y.ndim == 3 else y) for y in pair)
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return round(np.mean(np.sum(one * other, axis=1) / np.where(lengths, lengths, 1)), 9)


def found(task, pair):
    """Returns what the task reads of the first output, in the form of the rules above; None if it refuses."""
    outputs = [{"y": y} for y in pair]
    try:
        task = find_task(AskedTask(task), outputs)
        task.check(outputs)
    except BadInput:
        return None
    if task.looks is None:
        return round(task.judge(outputs)({0: outputs[1]}).values["mean_cosine"], 9)
    read = task.looks.read(outputs[0])
    return [(image.boxes, image.scores) for image in read] if task.entry == "task detect" else read


RIGHT = {"detect": detect, "classify": classify, "segment": segment, "depth": depth, "embed": embed}


@pytest.mark.parametrize("task", TASKS)
def test_noise_is_refused_or_read_by_its_shape(task):
    read = 0
    for pair in noise(1, VALUES if task in ("classify", "segment", "embed") else VALUES | CONSTANT):
        got, right = found(task, pair), RIGHT[task](pair) if task in RIGHT else None
        assert (got is None) == (right is None), (pair[0].shape, pair[0].ravel()[:3])
        read += right is not None
        np.testing.assert_equal(got, right)
    assert (read > 0) == (task in RIGHT)
