"""Raw heads: distances as distributions over bins, on maps of several scales, decoded as the exporter does."""

from __future__ import annotations

import numpy as np
import pytest

from trt_bisect.analyzer.tasks.detect import find_head
from trt_bisect.analyzer.tasks.find import find_task
from trt_bisect.analyzer.tasks.task import AskedTask
from trt_bisect.errors import BadInput

SIDES, BINS, CLASSES = (20, 10, 5), 16, 3
STRIDES = (8, 16, 32)
CELLS = {0: [(4, 5, 0, 0.9)], 1: [(7, 2, 1, 0.8)], 2: [(1, 3, 2, 0.7)]}
"""Of each scale the detections: row, column, class and score."""


def logit(p):
    return np.log(p / (1 - p))


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
        shares = 1 / (1 + np.exp(-score))
        named |= {f"box{k}": box, f"score{k}": shares, f"sum{k}": shares.sum(axis=1, keepdims=True)}
    return named


def as_logits(distances, scores):
    named = {f"score{k}": score for k, score in enumerate(scores)}
    return named | {f"box{k}": box for k, box in enumerate(distances)}


def in_one(distances, scores):
    return {f"map{k}": np.concatenate(each, axis=1) for k, each in enumerate(zip(distances, scores, strict=True))}


@pytest.mark.parametrize("make", [as_pairs, as_logits])
def test_the_boxes_are_those_that_were_written_and_a_lost_scale_is_lost(make):
    distances, scores, boxes = raw(np.random.default_rng(4))
    outputs = make(distances, scores)
    (found,) = find_head([outputs]).read(outputs)
    best = np.argsort(-found.scores)[:3]
    for place, (box, label, score) in zip(best, boxes, strict=True):
        assert found.boxes[place] == pytest.approx(box, abs=1e-4)
        assert found.classes[place] == label
        assert found.scores[place] == pytest.approx(score, abs=1e-6)
    task = find_task(AskedTask("detect"), [outputs])
    assert "raw maps of 20x20, 10x10, 5x5 as dfl:16,classes:3" in task.note
    lost = make(*raw(np.random.default_rng(4), change=1.0)[:2])
    values = task.judge([outputs])({0: lost}).values
    assert (values["kept"], values["lost"], values["invented"]) == (2, 1, 0)


def test_maps_of_bins_and_classes_in_one_are_read_if_the_user_names_both():
    distances, scores, boxes = raw(np.random.default_rng(4))
    outputs = in_one(distances, scores)
    with pytest.raises(BadInput) as refused:
        find_task(AskedTask("detect"), [outputs])
    assert "--head dfl:16,classes:C" in str(refused.value)
    task = find_task(AskedTask("detect", head="dfl:16,classes:3"), [outputs])
    assert task.judge([outputs])({0: outputs}).values["kept"] == len(boxes)
    for wrong in ("dfl:16,classes:4", "dfl:16,classes:3,masks:32", "dfl:16"):
        with pytest.raises(BadInput):
            find_task(AskedTask("detect", head=wrong), [outputs])


def test_features_of_several_scales_are_no_head(random):
    features = {f"p{k}": random.normal(0, 1, (1, 64, side, side)) for k, side in enumerate(SIDES)}
    others = {f"q{k}": random.normal(0, 1, (1, 32, side, side)) for k, side in enumerate(SIDES)}
    alone = {**features, **{f"s{k}": v[:, :3] for k, v in enumerate(features.values()) if k}}
    for outputs in (features, others, features | others, alone):
        with pytest.raises(BadInput):
            find_task(AskedTask("detect"), [outputs])
