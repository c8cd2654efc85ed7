"""Poses, oriented boxes, instance masks and depths: told from FP32's values or refused, judged by their own rules."""

from __future__ import annotations

import math

import numpy as np
import pytest
from pycocotools.cocoeval import COCOeval

from tests.support.heads import MANY, OBJECTS, asked, candidates, counts, dense, keypoints, ready
from trt_bisect.analyzer.tasks.detections import Detections
from trt_bisect.analyzer.tasks.layouts import parse_layout
from trt_bisect.analyzer.tasks.objects import key_similarity, likely_overlaps, mask_overlaps, turned_overlaps_of
from trt_bisect.errors import BadInput

SIZE = 320


def with_more(more, boxes=None):
    """Detections of class 0 with keypoints, oriented boxes or masks."""
    count = len(more)
    return Detections(np.array(boxes or np.zeros((count, 4)).tolist()), np.ones(count), np.zeros(count, int), more)


def figures(task, before, after, **how):
    found = asked(task, before, **how)
    return found, found.judge([before])({0: after}).values


POSES = {
    "YOLO pose [1, 56, N]": (dense, 1, 17, 3),
    "three classes": (dense, 3, 17, 3),
    "corners of hands [1, 4 + 2 + 21 * 2, N]": (dense, 2, 21, 2),
    "four points, divisible by 2 and 3": (dense, 1, 4, 3),
    "six values, two a point": (dense, 1, 3, 2),
    "end to end [1, 100, 57]": (ready, 1, 17, 3),
    "end to end of three classes": (ready, 3, 17, 3),
    "end to end of 8 points": (ready, 2, 4, 2),
}


@pytest.mark.parametrize("head", POSES)
def test_of_three_poses_the_one_whose_points_moved_is_lost_and_invented(random, head):
    make, classes, count, values = POSES[head]
    boxes, scores = candidates(random, classes)
    points = keypoints(random, boxes, count, values)
    moved = points.copy()
    moved[0, :, :2] += (40, 25)
    before, after = (make(boxes, scores, each.reshape(MANY, -1)) for each in (points, moved))
    task, found = figures("pose", before, after)
    assert counts(found) == (2, 1, 1)
    layout = f"classes:{classes}" if make is dense else "score,class"
    assert f"{layout},keypoints:{count}x{values}" in task.note
    assert figures("pose", before, before)[1]["kept"] == OBJECTS


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([0.9, 0.9, 0.9, 0.1], [0.9, 0.1, 0.9, 0.1], 2 / 3),
        ([0.9, 0.9, 0.9, 0.1], [0.9, 0.9, 0.9, 0.9], 3 / 4),
        ([0.9, 0.9, 0.9, 0.9], [0.0, 0.0, 0.0, 0.0], 0.0),
        ([0.1, 0.1, 0.1, 0.1], [0.1, 0.1, 0.1, 0.1], 1.0),
        ([0.1, 0.1, 0.1, 0.1], [0.1, 0.1, 0.1, 0.9], 3 / 4),
    ],
)
def test_a_keypoint_that_one_of_two_poses_sees_alone_is_not_alike(before, after, expected):
    """All keypoints are at the same place, so that each counts 1 or 0."""
    poses = []
    for seen in (before, after):
        points = np.concatenate([np.arange(8.0).reshape(4, 2), np.array(seen)[:, None]], axis=-1)
        poses.append(with_more(points[None], [[0.0, 0, 100, 50]]))
    assert key_similarity(*poses)[0, 0] == pytest.approx(expected)


def test_the_mean_similarity_of_poses_is_that_of_cocos_tools(random):
    """Eight of 17 keypoints of the first pose are far off, as INT8 may put them; the second pose moved a little."""
    boxes, scores = candidates(random, 1)
    points = keypoints(random, boxes, 17, 3)
    moved = points.copy()
    moved[0, :8, :2] += 300
    moved[1, :, :2] += random.normal(0, 2, (17, 2))
    before, after = (dense(boxes, scores, each.reshape(MANY, -1)) for each in (points, moved))
    _, found = figures("pose", before, after, head="xywh,classes:1,keypoints:17x3")
    evaluation = COCOeval(iouType="keypoints")
    expected = []
    for k in range(OBJECTS):
        seen = points[k].copy()
        seen[:, 2] = 2
        box = [0, 0, *boxes[k, 2:]]
        truth = {"keypoints": seen.ravel(), "bbox": box, "area": 0.53 * boxes[k, 2:].prod(), "ignore": 0}
        evaluation._gts[1, 0], evaluation._dts[1, 0] = [truth], [{"keypoints": moved[k].ravel(), "score": 1}]
        expected.append(evaluation.computeOks(1, 0)[0, 0])
    assert found["kept"] == OBJECTS
    assert expected[0] == pytest.approx(9 / 17, abs=1e-6)
    assert found["mean_oks"] == pytest.approx(np.mean(expected), rel=1e-5)


def test_boxes_and_masks_without_an_area_agree_with_themselves():
    line = np.array([[100.0, 100, 0, 40, 0.3]])
    for moved, least, most in ((0, 1.0, 1.0), ([0.001, 0, 0, 0, 0], 0.9, 1.0), ([0, 0, 0, 0, 0.1], 0.0, 0.01)):
        found = turned_overlaps_of(with_more(line), with_more(line + moved))[0, 0]
        assert least - 1e-9 <= found <= most
    empty, full = np.zeros((1, 4, 5), bool), np.ones((1, 4, 5), bool)
    masks = [with_more(each) for each in (empty, full)]
    assert [mask_overlaps(masks[0], each)[0, 0] for each in masks] == [1.0, 0.0]


def clipped(subject, clip):
    """Sutherland and Hodgman: the part of a polygon within a convex one, both counter-clockwise."""
    for k in range(len(clip)):
        a, b = clip[k - 1], clip[k]
        side = [(b[0] - a[0]) * (p[1] - a[1]) - (b[1] - a[1]) * (p[0] - a[0]) for p in subject]
        kept = []
        for j, point in enumerate(subject):
            if (side[j - 1] >= 0) != (side[j] >= 0):
                t = side[j - 1] / (side[j - 1] - side[j])
                kept.append(subject[j - 1] + t * (point - subject[j - 1]))
            if side[j] >= 0:
                kept.append(point)
        subject = kept
    return subject


def area(polygon):
    pairs = zip(polygon, polygon[1:] + polygon[:1], strict=True)
    return sum(p[0] * q[1] - q[0] * p[1] for p, q in pairs) / 2


def polygon(box):
    x, y, w, h, angle = box
    turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    return [turn @ np.array([a * w / 2, b * h / 2]) + (x, y) for a, b in ((-1, -1), (1, -1), (1, 1), (-1, 1))]


def test_turned_boxes_overlap_as_their_clipped_polygons(random):
    one, other = (
        np.column_stack([random.uniform(0, 30, (60, 2)), random.uniform(1, 40, (60, 2)), random.uniform(-3, 3, 60)])
        for _ in range(2)
    )
    found = turned_overlaps_of(with_more(one), with_more(other))
    for a, row in zip(one, found, strict=True):
        for b, value in zip(other, row, strict=True):
            shared = area(clipped(polygon(a), polygon(b)))
            assert value == pytest.approx(shared / (a[2] * a[3] + b[2] * b[3] - shared), abs=1e-9)
    assert (found > 0.3).any()
    assert (found == 0).any()


def test_turned_boxes_that_share_edges_are_measured_too():
    box = np.array([10.0, 10, 20, 10, 0.7])
    alike = np.array([box, box + np.eye(5)[4] * math.pi, box * [1, 1, 0.5, 1, 1], box * [1, 1, 0, 1, 1], box + 1000])
    found = turned_overlaps_of(with_more(box[None]), with_more(alike))
    assert found[0] == pytest.approx([1, 1, 0.5, 0, 0], abs=1e-3)  # a side is not 0, but 0.01


@pytest.mark.parametrize("make", [dense, ready])
@pytest.mark.parametrize("classes", [1, 15])
def test_an_oriented_box_that_turned_is_lost_and_invented(random, make, classes):
    """A quarter turn leaves a box of 80 x 60 an IoU of 60 x 60 / (2 * 4800 - 3600), 0.6; one of 60 x 20 has 0.2."""
    boxes, scores = candidates(random, classes)
    boxes[1, 2:] = (60, 20)
    angles = random.uniform(-0.7, 2.3, MANY)
    turned = angles.copy()
    turned[:2] += math.pi / 2
    how = {"turned": True} if make is ready else {}
    outputs = [make(boxes, scores, each[:, None], **how) for each in (angles, turned)]
    assert make is dense or {each["output0"].shape for each in outputs} == {(1, 100, 7)}
    task, found = figures("obb", *outputs)
    assert counts(found) == (2, 1, 1)
    assert "angle" in task.note


def test_oriented_boxes_side_by_side_are_not_suppressed_as_their_upright_boxes_would_be(random):
    boxes, scores = candidates(random, 2)
    angles = random.uniform(-0.7, 2.3, MANY)
    boxes[:2] = [[100, 100, 120, 12], [112, 88, 120, 12]]
    angles[:2], scores[:2] = math.pi / 4, [0.9, 0.01]
    upright = np.array([70.0, 70, 130, 130])
    assert (upright[2:] - upright[:2]).min() > 3 * 12
    outputs = dense(boxes, scores, angles[:, None])
    assert figures("obb", outputs, outputs)[1]["kept"] == OBJECTS


def test_likely_overlaps_are_those_of_normal_distributions():
    """By hand. Two squares of 12 have the variance 12 along each axis; 12 beside each other, the Bhattacharyya distance
    is 144 / 8 / 12 = 1.5. A square of 12 in one of 24: log((12 + 48)^2 / (4 * 12 * 48)) / 2. Turned squares are alike.
    """
    boxes = np.array([[0.0, 0, 12, 12, 0], [12, 0, 12, 12, 0.7], [0, 0, 24, 24, 0], [0, 0, 0, 5, 0]])
    found = likely_overlaps(boxes)
    assert found[0, 1] == pytest.approx(1 - math.sqrt(1 - math.exp(-1.5)))
    assert found[0, 2] == pytest.approx(1 - math.sqrt(1 - math.sqrt(4 * 12 * 48) / 60))
    assert found[0, 3] == 0.0
    assert np.diag(found)[:3] == pytest.approx(1, abs=1e-7)


def test_an_oriented_box_that_is_removed_removes_others_too(random):
    """As Ultralytics does: of three squares of 12, each 3 beside the one before, only the first is left.

    The distance of neighbours is 9 / 96, their ProbIoU 0.70; that of the first and the last 36 / 96, 0.44.
    """
    boxes, scores = candidates(random, 2)
    boxes[:3] = [[100, 100, 12, 12], [103, 100, 12, 12], [106, 100, 12, 12]]
    scores[:3] = [[0.9, 0.01], [0.8, 0.01], [0.7, 0.01]]
    outputs = dense(boxes, scores, random.uniform(-0.7, 2.3, MANY)[:, None])
    (found,) = asked("obb", outputs).shown(outputs)
    assert found.scores == pytest.approx([0.9])


def test_an_instance_without_a_pixel_is_none(random):
    """The prototypes are of one sign in the first box, so that its mask is empty or whole."""
    outputs = instance_outputs(random, dense)
    outputs["output1"][:, :, 7:24, 5:26] = 1.0
    outputs["output0"][0, -8:, 0] = -0.1
    task, found = figures("instances", outputs, outputs)
    assert counts(found) == (OBJECTS - 1, 0, 0)
    outputs["output0"][0, -8:, 0] = 0.1
    assert task.judge([outputs])({0: outputs}).values["kept"] == OBJECTS


def test_background_boxes_that_leave_the_image_do_not_hide_its_size(random):
    outputs = instance_outputs(random, dense)
    outputs["output0"][0, 2:4, OBJECTS:] = 500
    assert figures("instances", outputs, outputs)[1]["kept"] == OBJECTS
    outputs["output0"][0, :2] *= 2
    with pytest.raises(BadInput, match="cannot place"):
        figures("instances", outputs, outputs)


def instance_outputs(random, make, classes=2, size=8, change=None):
    boxes, scores = candidates(random, classes)
    prototypes = random.normal(0, 1, (1, size, SIZE // 4, SIZE // 4))
    coefficients = random.normal(0, 1, (MANY, size))
    if change is not None:
        coefficients[change] *= -1
    return {**make(boxes, scores, coefficients), "output1": prototypes.astype(np.float32)}


@pytest.mark.parametrize("make", [dense, ready])
@pytest.mark.parametrize("classes", [1, 2])
def test_an_instance_whose_mask_is_inverted_is_lost_and_invented(make, classes):
    before, after = (instance_outputs(np.random.default_rng(5), make, classes, change=c) for c in (None, 1))
    task, found = figures("instances", before, after)
    assert counts(found) == (2, 1, 1)
    assert "masks:8" in task.note
    assert figures("detect", before, after)[1]["kept"] == OBJECTS


def test_masks_overlap_as_their_pixels(random):
    masks = random.normal(0, 1, (2, 10, 12)) > 0
    image = with_more(masks)
    assert mask_overlaps(image, image)[0, 1] == (masks[0] & masks[1]).sum() / (masks[0] | masks[1]).sum()


LISTS = {"boxes": np.array([[2.0, 3, 20, 22], [30, 5, 60, 40]]), "labels": np.array([1, 2])}
LISTS["scores"] = np.array([0.9, 0.8])


def test_whole_masks_beside_boxes_scores_and_labels(random):
    masks = np.zeros((2, 1, 48, 64))
    masks[0, 0, 3:22, 2:20] = masks[1, 0, 5:40, 30:60] = 0.9
    outputs = {**LISTS, "masks": masks}
    shrunk = {**outputs, "masks": masks.copy()}
    shrunk["masks"][1, 0, 15:] = 0
    _, found = figures("instances", outputs, shrunk)
    assert counts(found) == (1, 1, 1)
    none = {name: value[:0] for name, value in outputs.items()}
    assert figures("instances", outputs, none)[1]["lost"] == 2


def test_poses_beside_boxes_scores_and_labels(random):
    """As Keypoint R-CNN gives them; the scores of keypoints are not read."""
    points = random.uniform(0, 1, (2, 17, 3)) * [18, 19, 0] + [2, 3, 1]
    points[1, :, :2] += 28
    outputs = {**LISTS, "keypoints": points, "keypoints_scores": random.normal(0, 5, (2, 17))}
    moved = {**outputs, "keypoints": points + np.array([0, 30])[:, None, None] * [1, 1, 0]}
    task, found = figures("pose", outputs, moved)
    assert counts(found) == (1, 1, 1)
    assert task.shown(outputs)[0].more == pytest.approx(points)
    none = {name: value[:0] for name, value in outputs.items()}
    assert task.judge([outputs])({0: none}).values["lost"] == 2


@pytest.mark.parametrize("shape", [(1, 1, 24, 32), (2, 24, 32)])
def test_the_error_of_depths_is_that_of_their_logarithms_and_not_their_scale(random, shape):
    before = random.uniform(0.5, 80, shape)
    noise = random.normal(0, 0.02, shape)
    _, scaled = figures("depth", {"y": before}, {"y": 3 * before})
    assert (scaled["agreement"], scaled["near"]) == (pytest.approx(1.0), 1.0)
    _, found = figures("depth", {"y": before}, {"y": before * np.exp(noise)})
    errors = [math.sqrt(np.mean(each**2) - np.mean(each) ** 2) for each in noise]
    assert found["agreement"] == pytest.approx(1 - np.mean(errors), rel=1e-9)
    assert figures("depth", {"y": before}, {"y": 0 * before})[1]["agreement"] < 0.2


def normalised(random):
    boxes, scores = candidates(random, 1)
    return dense(boxes / SIZE, scores, (keypoints(random, boxes, 17, 3) / [SIZE, SIZE, 1]).reshape(MANY, -1))


def transposed(random):
    boxes, scores = candidates(random, 3)
    outputs = dense(boxes, scores, keypoints(random, boxes, 17, 3).reshape(MANY, -1))
    return {"output0": outputs["output0"].transpose(0, 2, 1)}


@pytest.mark.parametrize(
    ("task", "outputs", "words"),
    [
        ("pose", normalised, "cannot read"),
        ("pose", transposed, "--head xywh,objectness,classes:2,keypoints:17x3"),
        ("obb", lambda r: {"y": dense(*candidates(r, 3), r.uniform(0, 1, (MANY, 1)))["output0"]}, "cannot read"),
        ("instances", lambda r: {"y": dense(*candidates(r, 3), r.normal(0, 1, (MANY, 8)))["output0"]}, "cannot read"),
        ("depth", lambda r: {name: r.uniform(0, 9, (1, 1, 24, 32)) for name in "ab"}, "cannot read"),
    ],
)
def test_what_can_be_told_in_no_way_or_in_several_is_refused(random, task, outputs, words):
    with pytest.raises(BadInput, match=words):
        asked(task, outputs(random))


@pytest.mark.parametrize("text", [
    "", "xywh", "xywh,xyxy,classes:2", "classes:3", "xywh,classes:0", "xywh,score", "xyxy,classes:3,angle",
    "xywh,keypoints:17", "xywh,classes:3,classes:3", "xywh,score,class,classes:2", "ultralytics", "xywh,classes:-1",
    "xywh,class,classes:2",
])  # fmt: skip
def test_a_head_that_is_no_whole_row_is_refused(text):
    with pytest.raises(BadInput):
        parse_layout(text)


@pytest.mark.parametrize("text", ["xywh,classes:2,keypoints:17x3", "xyxy,score,class,angle", "xywh,classes:15,angle"])
def test_a_head_that_the_outputs_do_not_have_is_refused(random, text):
    with pytest.raises(BadInput):
        asked("pose", {"y": random.normal(0, 1, (1, 56, 8400))}, head=text)
