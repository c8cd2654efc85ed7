"""Outputs of detectors' heads, three far objects among background, and the tasks that read them."""

import numpy as np

from trt_bisect.analyzer.tasks.find import find_task
from trt_bisect.analyzer.tasks.task import AskedTask

MANY, OBJECTS = 525, 3


def corners(boxes):
    """Boxes (cx, cy, w, h) as two corners."""
    return np.column_stack([boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2])


def candidates(random, classes, many=MANY):
    """Boxes (cx, cy, w, h) and scores: three far objects of class 0, 1, ... and background below 0.05."""
    boxes = np.column_stack([random.uniform(20, 300, (many, 2)), random.uniform(10, 80, (many, 2))])
    boxes[:OBJECTS] = [[60, 60, 80, 60], [200, 80, 60, 90], [120, 240, 100, 70]]
    scores = random.uniform(0, 0.05, (many, classes))
    scores[np.arange(OBJECTS), np.arange(OBJECTS) % classes] = (0.9, 0.8, 0.7)
    return boxes, scores


def dense(boxes, scores, *more):
    return {"output0": np.column_stack([boxes, scores, *more]).T[None].astype(np.float32)}


def ready(boxes, scores, *more, turned=False):
    """Rows of an end-to-end head: the best 100, as ``[1, 100, 6 + ...]``."""
    best = np.argsort(-scores.max(-1), kind="stable")[:100]
    placed = boxes if turned else corners(boxes)
    rows = np.column_stack([placed, scores.max(-1), scores.argmax(-1), *more])[best]
    return {"output0": rows[None].astype(np.float32)}


def keypoints(random, boxes, count, values=3):
    """Points about the boxes ``[n, count, values]``; the third value is visibility."""
    points = boxes[:, None, :2] + random.uniform(-0.4, 0.4, (len(boxes), count, 2)) * boxes[:, None, 2:]
    seen = random.uniform(0.6, 1, (len(boxes), count, 1))
    return points if values == 2 else np.concatenate([points, seen], axis=-1)


def asked(task, *outputs, **how):
    """The task that reads FP32's outputs by input."""
    return find_task(AskedTask(task, **how), list(outputs))


def counts(values):
    """The detections kept, lost and invented."""
    return tuple(values[name] for name in ("kept", "lost", "invented"))
