"""Raw heads: distances as distributions over bins, on maps of several scales, decoded as the exporter does."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.by_hand import logit, sigmoid
from tests.support.heads import asked, counts
from tests.support.raw_heads import CELLS, CLASSES, SIDES, STRIDES, as_logits, as_pairs, raw, whole
from trt_bisect.analyzer.tasks.detect import find_head
from trt_bisect.errors import BadInput


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
    task = asked("detect", outputs)
    assert "raw maps of 20x20, 10x10, 5x5 as dfl:16,classes:3" in task.note
    lost = make(*raw(np.random.default_rng(4), change=1.0)[:2])
    values = task.judge([outputs])({0: lost}).values
    assert counts(values) == (2, 1, 0)


def test_maps_of_bins_and_classes_in_one_are_read_if_the_user_names_both():
    distances, scores, boxes = raw(np.random.default_rng(4))
    outputs = whole(distances, scores)
    with pytest.raises(BadInput) as refused:
        asked("detect", outputs)
    assert "--head dfl:16,classes:C" in str(refused.value)
    task = asked("detect", outputs, head="dfl:16,classes:3")
    assert task.judge([outputs])({0: outputs}).values["kept"] == len(boxes)
    for wrong in ("dfl:16,classes:4", "dfl:16,classes:3,masks:32", "dfl:16"):
        with pytest.raises(BadInput):
            asked("detect", outputs, head=wrong)


def test_features_of_several_scales_are_no_head(random):
    features = {f"p{k}": random.normal(0, 1, (1, 64, side, side)) for k, side in enumerate(SIDES)}
    others = {f"q{k}": random.normal(0, 1, (1, 32, side, side)) for k, side in enumerate(SIDES)}
    alone = {**features, **{f"s{k}": v[:, :3] for k, v in enumerate(features.values()) if k}}
    for outputs in (features, others, features | others, alone):
        with pytest.raises(BadInput):
            asked("detect", outputs)


# What poses, oriented boxes and masks have beside boxes and scores: written so that it decodes to what is wanted.

KEYPOINTS = 5


def beside(random, kind):
    """Raw values of each scale ``[1, columns, side, side]``, and for each detection what they mean in pixels."""
    maps, wanted = [], []
    for scale, side in enumerate(SIDES):
        columns = {"keypoints": 3 * KEYPOINTS, "angle": 1, "masks": 4}[kind]
        values = random.normal(0, 2, (1, columns, side, side))
        for row, column, *_ in CELLS[scale]:
            if kind == "keypoints":
                places = np.array([column + 0.5, row + 0.5]) + random.uniform(-0.4, 0.4, (KEYPOINTS, 2))
                seen = random.uniform(0.6, 0.9, (KEYPOINTS, 1))
                offsets = (places - [column, row]) / 2
                values[0, :, row, column] = np.concatenate([offsets, logit(seen)], axis=1).ravel()
                wanted.append(np.concatenate([STRIDES[scale] * places, seen], axis=1))
            elif kind == "angle":
                angle = random.uniform(-0.7, 2.3)
                values[0, 0, row, column] = logit(angle / np.pi + 0.25)
                wanted.append(angle)
            else:
                wanted.append(values[0, :, row, column].copy())
        maps.append(values)
    return maps, wanted


def apart(distances, scores, more):
    """A map each; the third one has one channel, as in RKNN's exports."""
    named = as_pairs(distances, scores)
    return named | {f"more{k}": each for k, each in enumerate(more)}


def of_all(distances, scores, more):
    """Beside boxes and scores is one output of the cells of all scales, as Ultralytics joins it."""
    return whole(distances, scores) | {"more": np.concatenate([each.reshape(*each.shape[:2], -1) for each in more], 2)}


def written(make, kind):
    """Outputs, their parts, and what was written into them."""
    random = np.random.default_rng(4)
    distances, scores, boxes = raw(random)
    more, wanted = beside(random, kind)
    return make(distances, scores, more), (random, distances, scores, more), boxes, wanted


def best(task, outputs):
    """The three detections of a task, the surest first, as they are compared."""
    (found,) = task.shown(outputs)
    assert len(found) == 3
    return found


@pytest.mark.parametrize("make", [apart, of_all, whole])
def test_keypoints_are_those_that_were_written(make):
    outputs, (_, distances, scores, more), boxes, wanted = written(make, "keypoints")
    task = asked("pose", outputs, head=f"dfl:16,classes:3,keypoints:{KEYPOINTS}x3")
    found = best(task, outputs)
    for place in range(3):
        assert found.boxes[place] == pytest.approx(boxes[place][0], abs=1e-4)
        assert found.more[place] == pytest.approx(wanted[place], abs=1e-4)
    assert task.judge([outputs])({0: outputs}).values["kept"] == 3
    moved = [each + 3.0 * (np.arange(3 * KEYPOINTS) % 3 < 2)[None, :, None, None] for each in more]
    assert task.judge([outputs])({0: make(distances, scores, moved)}).values["kept"] == 0
    with pytest.raises(BadInput):
        asked("pose", outputs)


@pytest.mark.parametrize("make", [apart, of_all, whole])
def test_oriented_boxes_stand_about_the_middle_of_their_cells(make):
    """By hand: the distances are measured along the box, which is turned about the middle of its cell."""
    outputs, _, boxes, wanted = written(make, "angle")
    if make is apart:
        outputs = {name: value for name, value in outputs.items() if not name.startswith("sum")}
    task = asked("obb", outputs, head="dfl:16,classes:3,angle")
    found = best(task, outputs)
    for place, (scale, cells) in enumerate(CELLS.items()):
        ((row, column, *_),) = cells
        middle, angle = STRIDES[scale] * np.array([column + 0.5, row + 0.5]), wanted[place]
        x1, y1, x2, y2 = boxes[place][0] - np.concatenate([middle, middle])
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        centre = middle + turn @ [(x1 + x2) / 2, (y1 + y2) / 2]
        assert found.more[place] == pytest.approx([*centre, x2 - x1, y2 - y1, angle], abs=1e-4)
    assert task.judge([outputs])({0: outputs}).values["kept"] == 3


@pytest.mark.parametrize("make", [apart, of_all, whole])
def test_masks_are_told_by_their_prototypes_or_named(make):
    outputs, (random, *_), boxes, wanted = written(make, "masks")
    prototypes = random.normal(0, 1, (1, 4, 40, 40))
    outputs |= {"prototypes": prototypes}
    task = asked("instances", outputs, head="dfl:16,classes:3,masks:4")
    found = best(task, outputs)
    for place, (box, *_) in enumerate(boxes):
        mask = np.tensordot(wanted[place], prototypes[0], 1) > 0
        x1, y1, x2, y2 = box / 4
        inside = (np.arange(40) >= x1) & (np.arange(40) < x2), (np.arange(40) >= y1) & (np.arange(40) < y2)
        assert (found.more[place] == (mask & inside[0][None] & inside[1][:, None])).all()
    if make is apart:
        assert asked("instances", outputs).note == task.note
    else:
        with pytest.raises(BadInput):
            asked("instances", outputs)


def test_what_is_decoded_already_is_not_decoded_again():
    random = np.random.default_rng(4)
    distances, scores, _ = raw(random)
    points, _ = beside(random, "keypoints")
    pixels = [100 + 9 * each for each in points]
    shares = [each.copy() for each in points]
    for each in shares:
        each[:, 2::3] = 0.5
    quarters = [random.uniform(-0.7, 2.3, (1, 1, side, side)) for side in SIDES]
    for kind, more in (("keypoints:5x3", pixels), ("keypoints:5x3", shares), ("angle", quarters)):
        task = "obb" if kind == "angle" else "pose"
        with pytest.raises(BadInput, match="cannot read the outputs"):
            asked(task, whole(distances, scores, more), head=f"dfl:16,classes:3,{kind}")


# Anchors.


def anchored(random, sizes, classes=4):
    """Maps ``[1, 3, side, side, 5 + C]`` with three boxes, by the inverse of what YOLO v5 computes; and the boxes."""
    maps, boxes = [], []
    for scale, side in enumerate(SIDES):
        values = random.normal(0, 1, (1, 3, side, side, 5 + classes))
        values[..., 4:] = random.uniform(-9, -5, values[..., 4:].shape)
        ((row, column, label, score),) = CELLS[scale]
        anchor = scale % 3
        size = np.array(sizes[scale][anchor]) * random.uniform(0.5, 3, 2)
        centre = STRIDES[scale] * (np.array([column, row]) + random.uniform(-0.4, 1.4, 2))
        offsets = (centre / STRIDES[scale] - [column, row] + 0.5) / 2
        cell = values[0, anchor, row, column]
        cell[:4] = logit(np.concatenate([offsets, np.sqrt(size / sizes[scale][anchor]) / 2]))
        cell[[4, 5 + label]] = logit(np.sqrt(score))
        maps.append(values)
        boxes.append((np.concatenate([centre - size / 2, centre + size / 2]), label, score))
    return maps, boxes


V5 = [[(10, 13), (16, 30), (33, 23)], [(30, 61), (62, 45), (59, 119)], [(116, 90), (156, 198), (373, 326)]]
V7 = [[(12, 16), (19, 36), (40, 28)], [(36, 75), (76, 55), (72, 146)], [(142, 110), (192, 243), (459, 401)]]


def permuted(maps):
    return {f"p{k}": each for k, each in enumerate(maps)}


def in_channels(maps):
    """As the convolutions of the head write them, the coarsest first."""
    flat = [each.transpose(0, 1, 4, 2, 3).reshape(1, -1, *each.shape[2:4]) for each in maps]
    return {f"p{k}": each for k, each in reversed(list(enumerate(flat)))}


@pytest.mark.parametrize(("name", "sizes"), [("yolov5", V5), ("yolov7", V7)])
@pytest.mark.parametrize("make", [permuted, in_channels])
@pytest.mark.parametrize("as_shares", [False, True])
def test_boxes_of_anchors_are_those_that_were_written(name, sizes, make, as_shares):
    maps, boxes = anchored(np.random.default_rng(4), sizes)
    maps = [sigmoid(each) for each in maps] if as_shares else maps
    outputs = make(maps)
    task = asked("detect", outputs, head=name)
    assert f"raw maps of 20x20, 10x10, 5x5 with the anchors of {name}, 4 classes" in task.note
    assert task.scaling([outputs])(outputs, (320, 240)).tolist() == [320 / (8 * 20), 240 / (8 * 20)]
    found = best(task, outputs)
    for place, (box, label, score) in enumerate(boxes):
        assert found.boxes[place] == pytest.approx(box, abs=1e-4)
        assert (found.classes[place], found.scores[place]) == (label, pytest.approx(score, abs=1e-6))
    lost = make([maps[0], 0 * maps[1] - (0 if as_shares else 9), maps[2]])
    values = task.judge([outputs])({0: lost}).values
    assert counts(values) == (2, 1, 0)


def test_maps_of_anchors_are_read_only_if_they_are_asked_for_and_alone():
    maps, _ = anchored(np.random.default_rng(4), V5)
    for make in (permuted, in_channels):
        outputs = make(maps)
        with pytest.raises(BadInput, match="--head yolov5"):
            asked("detect", outputs)
        prototypes = outputs | {"masks": np.ones((1, 32, 40, 40))}
        fourth = outputs | {"p4": np.ones((1, 3, 3, 3, 9))}
        two = {name: outputs[name] for name in list(outputs)[:2]}
        other = {**outputs, "p1": outputs["p1"][:, :, :, :-1]}
        for wrong in (prototypes, fourth, two, other):
            with pytest.raises(BadInput):
                asked("detect", wrong, head="yolov5")


NAMED = {
    "detect": "yolov5",
    "pose": "dfl:16,classes:1,keypoints:17x3",
    "obb": "dfl:16,classes:15,angle",
    "instances": "dfl:16,classes:80,masks:32",
}


@pytest.mark.parametrize("task", NAMED)
def test_maps_of_noise_are_no_head(task, random):
    """A hundred times maps of two to four scales with one to three outputs each, named and not: all are refused."""
    for number in range(100):
        outputs = {
            f"y{side}.{k}": random.normal(0, 3, (1, random.choice([1, 3, 15, 32, 51, 64, 80, 255]), side, side))
            for side in (16, 8, 4, 2)[: random.integers(2, 5)]
            for k in range(random.integers(1, 4))
        }
        with pytest.raises(BadInput):
            asked(task, outputs, head=NAMED[task] if number % 2 else None)


@pytest.mark.parametrize("columns", ["", ",angle", ",keypoints:1x3"])
def test_maps_of_one_bin_are_read_as_they_are(columns):
    """By hand, cell (4, 5) of the finest map: from (44, 36), 8 pixels a unit; and what is beside it is not doubled."""
    distances = [np.ones((1, 4, side, side)) for side in SIDES]
    scores = [np.full((1, CLASSES, side, side), -9.0) for side in SIDES]
    more = [np.full((1, 3 * ("key" in columns) + ("ang" in columns), side, side), -1.0) for side in SIDES]
    distances[0][0, :, 4, 5], scores[0][0, 1, 4, 5] = (1, 2, 3, 4), 2.0
    if columns:
        more[0][0, :, 4, 5] = 0.5
    outputs = whole(distances, scores, more)
    name = {"": "detect", ",angle": "obb", ",keypoints:1x3": "pose"}[columns]
    (found,) = asked(name, outputs, head=f"dfl:1,classes:3{columns}").shown(outputs)
    assert (len(found), found.classes[0]) == (1, 1)
    if columns != ",angle":
        assert found.boxes[0] == pytest.approx([36, 20, 68, 68])
    if columns == ",keypoints:1x3":
        assert found.more[0, 0] == pytest.approx([48, 40, sigmoid(0.5)])
    if columns == ",angle":
        turned = [44 + 8 * (np.cos(0.5) - np.sin(0.5)), 36 + 8 * (np.sin(0.5) + np.cos(0.5))]
        assert found.more[0] == pytest.approx([*turned, 32, 48, 0.5])
