"""The task detect: heads told from shapes and values, NonMaxSuppression, and detections kept, lost and invented."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from tests.support.by_hand import logit, softmax
from tests.support.heads import asked, counts
from trt_bisect.analyzer.tasks.detect import detector_head, find_head
from trt_bisect.analyzer.tasks.detections import Detections, box_overlaps, matched, overlaps, suppressed
from trt_bisect.analyzer.tasks.find import suggestion
from trt_bisect.analyzer.tasks.task import AskedTask
from trt_bisect.errors import BadInput

CORNERS = np.array([[10.0, 20, 110, 120], [200, 50, 300, 250], [40, 300, 140, 380]])
LABELS = np.array([0, 2, 1])
SCORES = np.array([0.9, 0.8, 0.6])
CLASSES = 3


def centred(boxes):
    return np.concatenate([(boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]], axis=-1)


def one_hot(scores, labels, classes=CLASSES):
    table = np.full((len(scores), classes), 0.01)
    table[np.arange(len(scores)), labels] = scores
    return table


def dense(random, boxes=CORNERS, scores=SCORES, labels=LABELS, many=60):
    """Candidates of a head: each object twice, the second time a little beside and below; the rest is background."""
    beside = boxes + random.uniform(-4, 4, (len(boxes), 4))
    rest = random.uniform(0, 300, (many - 2 * len(boxes), 2))
    rest = np.concatenate([rest, rest + random.uniform(5, 90, rest.shape)], axis=-1)
    table = [one_hot(scores, labels), one_hot(0.9 * scores, labels), np.full((len(rest), CLASSES), 0.02)]
    return np.concatenate([boxes, beside, rest]), np.concatenate(table)


def yolo8(boxes, scores):
    return {"output0": np.concatenate([centred(boxes), scores], axis=-1).T[None].astype(np.float32)}


def yolo5(boxes, scores):
    objectness = scores.max(-1, keepdims=True)
    return {"output": np.concatenate([centred(boxes), objectness, scores / objectness], axis=-1)[None]}


def separate(boxes, scores):
    return {"boxes": boxes[None] / 400, "scores": scores[None]}


def separate_centres(boxes, scores):
    return {"boxes": centred(boxes)[None], "scores": scores[None]}


def ssd(boxes, scores):
    """Probabilities that sum to 1, of which the first is of the background; objects are between other candidates."""
    boxes, scores = np.roll(boxes, 7, axis=0), np.roll(scores, 7, axis=0)
    shares = np.concatenate([1 - scores.sum(-1, keepdims=True), scores], axis=-1)
    return {"scores": shares[None], "boxes": boxes[None] / 400}


def masks_too(boxes, scores):
    rng = np.random.default_rng(0)
    coefficients = rng.normal(size=(len(boxes), 4))
    y = np.concatenate([centred(boxes), scores, coefficients], axis=-1).T[None]
    return {"output0": y, "output1": rng.normal(size=(1, 4, 16, 16))}


def detr(boxes, scores):
    """Queries with logits: of the classes, and of no object as the last."""
    shares = np.concatenate([scores, 1 - scores.sum(-1, keepdims=True)], axis=-1)
    return {"logits": np.log(shares)[None] + 4, "pred_boxes": centred(boxes / 400)[None]}


def rt_detr(boxes, scores):
    return {"logits": logit(scores)[None], "pred_boxes": centred(boxes / 400)[None]}


def rt_detr_in_one(boxes, scores):
    return {"output0": np.concatenate([centred(boxes / 400), scores], axis=-1)[None]}


def rows(boxes, scores):
    ready = np.concatenate([boxes, scores.max(-1)[:, None], scores.argmax(-1)[:, None]], axis=-1)
    return {"output0": ready[None]}


def rows_of_rt_detr(boxes, scores):
    """As Ultralytics exports RT-DETR: centres and sizes as shares of the image, in the columns of YOLO26's corners."""
    return rows(centred(boxes / 400), scores)


def rows_of_paddle(boxes, scores):
    return {"fetch": np.concatenate([scores.argmax(-1)[:, None], scores.max(-1)[:, None], boxes], axis=-1)}


def rows_of_yolo7(boxes, scores):
    image = np.zeros((len(boxes), 1))
    return {"output": np.concatenate([image, boxes, scores.argmax(-1)[:, None], scores.max(-1)[:, None]], axis=-1)}


def lists(boxes, scores):
    """Returns outputs as TensorRT's EfficientNMS gives them: the number of detections; later rows are junk."""
    best = {"boxes": boxes, "scores": scores.max(-1), "classes": scores.argmax(-1).astype(np.int32)}
    junk = {"boxes": [[0.0, 0, 400, 400]], "scores": [0.99], "classes": np.array([1], np.int32)}
    found = {f"det_{name}": np.concatenate([values, junk[name]])[None] for name, values in best.items()}
    return {"num_dets": np.array([[len(boxes)]], np.int32), **found}


def lists_of_torchvision(boxes, scores):
    return {"boxes": boxes, "labels": scores.argmax(-1), "scores": scores.max(-1)}


DENSE = [yolo8, yolo5, separate, separate_centres, ssd, masks_too]
READY = [
    detr,
    rt_detr,
    rt_detr_in_one,
    rows,
    rows_of_rt_detr,
    rows_of_paddle,
    rows_of_yolo7,
    lists,
    lists_of_torchvision,
]


@pytest.mark.parametrize("head", DENSE + READY, ids=lambda head: head.__name__)
def test_one_detection_lost_one_invented_two_kept(random, head):
    """In INT8 the first has another class: it is lost, and one of that class is invented."""
    boxes, scores = dense(random)
    turned = scores.copy()
    if head in READY:
        once = np.r_[0:3, 6:60]
        boxes, scores, turned = boxes[once], scores[once], turned[once]
        turned[0] = one_hot([0.7], [1])
    else:
        turned[[0, 3]] = one_hot([0.7, 0.6], [1, 1])
    before, after = head(boxes, scores), head(boxes, turned)
    task = asked("detect", before, before)
    found = task.judge([before, before])({0: before, 1: after})
    assert [found.values[name] for name in ("kept", "lost", "invented", "items")] == [5, 1, 1, 7]
    assert found.values["agreement"] == pytest.approx(5 / 7)
    assert found.inputs["agreement"] == pytest.approx((1, 2 / 4))


@pytest.mark.parametrize("head", DENSE + READY, ids=lambda head: head.__name__)
def test_a_box_that_moved_too_far_is_lost_and_invented(random, head):
    """Shifted by a third of its width, a box overlaps by (2/3) / (4/3): a half; by 40 of 100, by 0.43."""
    boxes, scores = dense(random)
    once = np.r_[0:3, 6:60]
    boxes, scores = boxes[once], scores[once]
    moved = boxes.copy()
    moved[0, [0, 2]] += 40
    before, after = head(boxes, scores), head(moved, scores)
    for iou, kept in ((0.4, 3), (0.45, 2)):
        found = asked("detect", before, iou=iou).judge([before])({0: after})
        assert counts(found.values) == (kept, 3 - kept, 3 - kept)


@pytest.mark.parametrize("head", DENSE, ids=lambda head: head.__name__)
def test_boxes_and_scores_are_read_and_doubles_suppressed(random, head):
    outputs = head(*dense(random))
    found = find_head([outputs])
    assert found.needs_nms
    (image,) = found.read(outputs)
    kept = suppressed(image.above(0.3), 0.5)
    unit = 400 if image.boxes.max() < 2 else 1
    order = np.argsort(-kept.scores)
    np.testing.assert_allclose(kept.boxes[order] * unit, CORNERS, atol=1e-2)
    np.testing.assert_allclose(kept.scores[order], SCORES, atol=1e-6)
    assert list(kept.classes[order] - (head is ssd)) == list(LABELS)


def test_a_head_without_dfl_may_give_the_background_negative_sizes(random):
    boxes, scores = dense(random)
    outputs = yolo8(boxes, scores)
    outputs["output0"][0, 2:4, 6::3] -= 100.0
    (image,) = find_head([outputs]).read(outputs)
    kept = suppressed(image.above(0.3), 0.5)
    np.testing.assert_allclose(kept.boxes[np.argsort(-kept.scores)], CORNERS, atol=1e-2)
    outputs["output0"][0, 2:4, :6] -= 400.0
    assert find_head([outputs]) is None


def test_each_image_of_a_batch_is_matched_by_itself(random):
    """The images change places: no detection of the one is one of the other."""
    empty = yolo8(*dense(random, scores=SCORES / 10))["output0"]
    full = yolo8(*dense(random))["output0"]
    before, after = ({"y": np.concatenate(pair)} for pair in ((full, empty), (empty, full)))
    found = asked("detect", before).judge([before])({0: after})
    assert counts(found.values) == (0, 3, 3)


def test_the_score_threshold_counts(random):
    outputs = yolo8(*dense(random))
    for threshold, kept in ((0.3, 3), (0.7, 2), (0.85, 1)):
        task = asked("detect", outputs, score_threshold=threshold)
        assert task.judge([outputs])({0: outputs}).values["kept"] == kept


def test_nothing_that_fp32_finds_is_nothing_to_judge(random):
    outputs = yolo8(*dense(random, scores=SCORES / 10))
    task = asked("detect", outputs)
    with pytest.raises(BadInput, match="finds nothing"):
        task.check([outputs])
    assert task.judge([outputs])({0: outputs}).values["agreement"] == 1


def test_overlaps_are_those_of_pixels():
    """Boxes of whole numbers are drawn and their pixels counted."""
    rng = np.random.default_rng(5)
    low = rng.integers(0, 20, (6, 2))
    boxes = np.concatenate([low, low + rng.integers(1, 12, (6, 2))], axis=-1)
    drawn = np.zeros((6, 40, 40), bool)
    for image, (x1, y1, x2, y2) in zip(drawn, boxes, strict=True):
        image[y1:y2, x1:x2] = True
    expected = [[(a & b).sum() / (a | b).sum() for b in drawn] for a in drawn]
    np.testing.assert_allclose(overlaps(boxes.astype(float), boxes.astype(float)), expected)


@pytest.mark.parametrize(
    ("box", "other", "expected"),
    [
        ([640, 30, 640, 80], [640, 30, 640, 80], 1.0),
        ([640, 30, 640, 80], [640, 40, 640, 90], 40 / 60),
        ([640, 30, 640, 80], [639, 30, 640, 80], 0.16 / 1.16),  # the line counts as 0.32 wide, half of it inside
        ([640, 30, 640, 80], [640.01, 30, 640.01, 80], 0.31 / 0.33),  # float noise
        ([640, 30, 640, 80], [600, 30, 600, 80], 0.0),
        ([0, 0, 0, 0], [0, 0, 0, 0], 1.0),
        ([50, 30, 40, 80], [50, 30, 40, 80], 1.0),
    ],
)
def test_boxes_without_an_area_overlap_as_lines(box, other, expected):
    """A box that is clipped at the border of the picture has no width there; one whose corners changed places none."""
    for pair in ((box, other), (other, box)):
        boxes = [np.array([each], np.float64) for each in pair]
        assert overlaps(*boxes)[0, 0] == pytest.approx(expected, rel=1e-3)


def test_a_class_whose_surest_detections_are_all_lost_has_vanished(random):
    """Of class 1 both detections, of class 2 one of two, of class 0 the only one that FP32 is sure of."""
    boxes = np.array([[40.0 * k, 10, 40.0 * k + 30, 60] for k in range(6)])
    rows = np.column_stack([boxes, [0.9, 0.9, 0.9, 0.9, 0.9, 0.4], [1, 1, 2, 2, 0, 0]])
    before, after = ({"y": each[None].astype(np.float32)} for each in (rows, rows[[2]]))
    task = asked("detect", before)
    assert task.judge([before])({0: after}).vanished == (1,)
    assert task.judge([before])({0: before}).vanished == ()


def test_a_detection_is_taken_once():
    """Two of FP32 overlap the one that is left: one is kept."""
    box = np.array([[0.0, 0, 10, 10]])
    two = Detections(np.concatenate([box, box]), np.array([0.9, 0.8]), np.array([1, 1]))
    (place, _), likeness = matched(two, two.at(np.array([0])), 0.5, box_overlaps)
    assert (place, likeness.tolist()) == (0, [1, 0])
    assert matched(two, two, 0.5, box_overlaps)[0].tolist() == [0, 1]


def test_offsets_to_anchors_are_refused(random):
    outputs = {"deltas": random.normal(size=(1, 50, 4)), "scores": random.uniform(size=(1, 50, 3))}
    with pytest.raises(BadInput, match=r"'deltas' \[1, 50, 4\], 'scores' \[1, 50, 3\]"):
        asked("detect", outputs)


@pytest.mark.parametrize("head", DENSE + READY, ids=lambda head: head.__name__)
def test_detections_are_suggested(random, head):
    boxes, scores = dense(random)
    assert "--task detect" in suggestion([head(boxes[6:], scores[6:]), head(boxes, scores)])


def characters(random, steps, classes):
    """Scores of a recogniser whose most frequent class is neither the first nor the last, so that it is no CTC."""
    best = np.where(random.random(steps) < 0.6, classes // 2, random.integers(0, classes, steps))
    return {"softmax": softmax(9 * one_hot(np.ones(steps), best, classes))[None]}


def corners_of_cells(random):
    """Table tokens and the four corners of each cell, as PaddleOCR's SLANet-plus has them: [1, T, 8] and [1, T, 50]."""
    left, top = random.uniform(0, 0.8, (2, 56))
    right, bottom = left + random.uniform(0.05, 0.2, 56), top + 0.05
    cells = np.stack([left, top, right, top, right, bottom, left, bottom], axis=-1)
    return {"loc_preds": cells[None], "structure_probs": characters(random, 56, 50)["softmax"]}


def boxes_of_cells(random):
    """Table tokens up to the last class, which ends them, and a box for each, as SLANet has them: [1, T, 4]."""
    best = np.where(np.arange(500) < 80, random.integers(1, 20, 500), 29)
    tokens = softmax(9 * one_hot(np.ones(500), best, 30))
    return {"loc_preds": random.uniform(0.05, 0.9, (1, 500, 4)), "structure_probs": tokens[None]}


def class_scores_alone(random):
    """Scores of classes, mostly near 0, and distributions of distances, as PicoDet has them before its decoding."""
    scores = random.beta(0.3, 30, (1, 1900, 10))
    return {"scores": scores, "distances": random.normal(size=(1, 1900, 32))}


@pytest.mark.parametrize("make", [
    partial(characters, steps=40, classes=600), partial(characters, steps=97, classes=37), corners_of_cells,
    boxes_of_cells, class_scores_alone,
], ids=["characters", "few characters", "corners of cells", "boxes of cells", "class scores"])  # fmt: skip
def test_scores_of_characters_tokens_and_classes_are_no_detections(random, make):
    assert not suggestion([make(random), make(random)])


@pytest.mark.parametrize("turned", [False, True])
def test_boxes_that_are_not_decoded_are_told(random, turned):
    """YOLOX at 416 as it is exported by default: 52, 26 and 13 places a side, offsets and logarithms of sizes."""
    many = 52**2 + 26**2 + 13**2
    raw = np.concatenate([random.normal(size=(1, many, 4)), random.random((1, many, 2))], axis=-1).astype(np.float32)
    with pytest.raises(BadInput) as refused:
        asked("detect", {"output": raw.transpose(0, 2, 1) if turned else raw})
    assert raw.shape == (1, 3549, 6)
    assert ("'output'" in refused.value.problem, "--decode_in_inference" in refused.value.remedy) == (True, True)


@pytest.mark.parametrize(("name", "first"), [("detection_boxes", 0.2), ("detection_boxes:0", 0.2), ("boxes", 0.1)])
def test_boxes_of_tensorflow_have_y_first(name, first):
    outputs = {
        name: np.array([[[0.1, 0.2, 0.4, 0.8], [0.3, 0.1, 0.5, 0.9]]], np.float32),
        "scores": np.array([[0.9, 0.8]], np.float32),
        "classes": np.array([[1.0, 2.0]], np.float32),
    }
    (found,) = find_head([outputs]).read(outputs)
    assert found.boxes[0, 0] == pytest.approx(first)
    assert sorted(found.boxes[0]) == pytest.approx([0.1, 0.2, 0.4, 0.8])


def test_a_query_of_two_classes_is_two_detections_of_as_many_as_there_are_queries():
    """Of nine pairs the best three: 0.9 and 0.8 of the first query, 0.7 of the third."""
    shares = np.array([[0.9, 0.8, 0.02], [0.02, 0.03, 0.04], [0.6, 0.01, 0.7]])
    outputs = rt_detr(CORNERS, shares)
    (image,) = detector_head(AskedTask("detect", head="sigmoid"), [outputs]).read(outputs)
    assert image.scores == pytest.approx([0.9, 0.8, 0.7])
    assert image.classes.tolist() == [0, 1, 2]
    assert image.boxes == pytest.approx(CORNERS[[0, 0, 2]] / 400)


def test_queries_without_a_majority_of_background_are_asked_for():
    """Two of three queries have an object, so their logits can be read with a sigmoid and with a softmax."""
    shares = one_hot(np.array([0.9, 0.8, 0.02]), LABELS)
    outputs = detr(CORNERS, shares)
    with pytest.raises(BadInput) as refused:
        asked("detect", outputs)
    assert "--head sigmoid, or --head background-first, or --head background-last" in refused.value.remedy
    assert not suggestion([outputs])
    (image,) = detector_head(AskedTask("detect", head="background-last"), [outputs]).read(outputs)
    assert image.scores[:2] == pytest.approx([0.9, 0.8])
    assert image.classes[:2].tolist() == [0, 2]


def test_pixels_are_corners_though_some_boxes_have_negative_sizes():
    """YOLO26 has no DFL: of its 300 rows some end before they begin."""
    boxes = np.tile([10.0, 20, 110, 120], (300, 1))
    boxes[:30, 2] = 5
    outputs = {"output0": np.concatenate([boxes, np.full((300, 1), 0.5), np.zeros((300, 1))], axis=-1)[None]}
    (image,) = find_head([outputs]).read(outputs)
    assert image.boxes == pytest.approx(boxes)
