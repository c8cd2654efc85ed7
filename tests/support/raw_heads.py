"""Raw heads: maps of three scales, with distances as distributions over bins and scores, that decode to known boxes."""

import numpy as np

from tests.support.by_hand import logit, sigmoid

SIDES, BINS, CLASSES = (20, 10, 5), 16, 3
STRIDES = (8, 16, 32)
CELLS = {0: [(4, 5, 0, 0.9)], 1: [(7, 2, 1, 0.8)], 2: [(1, 3, 2, 0.7)]}
"""Of each scale the detections: row, column, class and score."""


def raw(random, change=0.0):
    """The maps of each scale: a distance lies between two bins, whose shares say where; other bins have nothing."""
    distances, scores, boxes = [], [], []
    for scale, side in enumerate(SIDES):
        wanted = random.uniform(0.5, 4, (4, side, side))
        bins = np.full((4, BINS, side, side), -60.0)
        below = np.floor(wanted).astype(int)
        i, y, x = np.indices(wanted.shape)
        part = wanted - below
        bins[i, below, y, x], bins[i, below + 1, y, x] = np.log(1 - part), np.log(part)
        logits = random.uniform(-9, -4, (CLASSES, side, side))
        for row, column, label, score in CELLS[scale]:
            logits[label, row, column] = logit(score)
            left, top, right, bottom = wanted[:, row, column]
            middle = np.array([column + 0.5, row + 0.5])
            corners = np.concatenate([middle, middle]) + np.array([-left, -top, right, bottom])
            boxes.append((STRIDES[scale] * corners, label, score))
        distances.append((bins + 0).reshape(1, 4 * BINS, side, side))
        scores.append(logits[None] - change * (scale == 0) * 10)
    return distances, scores, boxes


def as_pairs(distances, scores):
    """As RKNN has them: a third map, the sum of the scores, beside both."""
    named = {}
    for k, (box, score) in enumerate(zip(distances, scores, strict=True)):
        shares = sigmoid(score)
        named |= {f"box{k}": box, f"score{k}": shares, f"sum{k}": shares.sum(axis=1, keepdims=True)}
    return named


def as_logits(distances, scores):
    named = {f"score{k}": score for k, score in enumerate(scores)}
    return named | {f"box{k}": box for k, box in enumerate(distances)}


def whole(*maps):
    """The maps of each scale in one output, as YOLO26 has them, where a distance is no distribution."""
    return {f"map{k}": np.concatenate(each, axis=1) for k, each in enumerate(zip(*maps, strict=True))}
