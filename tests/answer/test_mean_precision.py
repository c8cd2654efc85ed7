"""The mean average precision on the user's boxes: COCO's JSON and YOLO's text, beside pycocotools on the files."""

import contextlib
import io
import json
import re

import numpy as np
import onnxruntime
import pytest

import trt_bisect
from tests.commands import test_head_runs as heads
from tests.commands.test_task_runs import SIZE, STRIDE, detector, images, to_float32
from tests.support import networks
from trt_bisect.analyzer.tasks.detections import Detections
from trt_bisect.answer import mean_precision as judged
from trt_bisect.errors import BadInput
from trt_bisect.report.summary import accuracy_line

IDS = (3, 7, 44)
"""The ids of the categories; a network numbers them 0, 1, 2."""


def coco(sizes, boxes):
    """COCO's JSON of boxes (x, y, w, h, class) for each image."""
    rows = [(k, *row) for k, image in enumerate(boxes) for row in image]
    return {
        "images": [
            {"id": 100 + k, "file_name": f"{k:03}.jpg", "width": w, "height": h} for k, (w, h) in enumerate(sizes)
        ],
        "annotations": [
            {"id": n, "image_id": 100 + k, "category_id": IDS[int(label)], "bbox": [x, y, w, h], "area": w * h,
             "iscrowd": int(n % 17 == 0)}
            for n, (k, x, y, w, h, label) in enumerate(rows, 1)
        ],
        "categories": [{"id": each, "name": str(each)} for each in reversed(IDS)],
    }  # fmt: skip


def test_two_hundred_images_have_the_figures_of_pycocotools(tmp_path, random):
    pytest.importorskip("pycocotools")
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    boxes, found, rows = [], {}, []
    for k in range(200):
        right = np.column_stack(
            [random.uniform(0, 300, (4, 2)), random.uniform(20, 90, (4, 2)), random.integers(0, 3, 4)]
        )
        boxes.append(right.tolist())
        seen = np.concatenate([right[:3], right[:2]])
        seen[:, :4] += random.normal(0, 6, (5, 4))
        seen[-1, 4] = random.integers(0, 3)
        scores = random.uniform(0.05, 1, 5)
        corners = np.column_stack([seen[:, :2], seen[:, :2] + seen[:, 2:4]])
        found[k] = Detections(corners, scores, seen[:, 4].astype(np.int64))
        rows += [
            {"image_id": 100 + k, "category_id": IDS[int(row[4])], "bbox": row[:4].tolist(), "score": float(score)}
            for row, score in zip(seen, scores, strict=True)
        ]
    path, results = tmp_path / "right.json", tmp_path / "found.json"
    path.write_text(json.dumps(coco([(400, 400)] * 200, boxes)), encoding="utf-8")
    results.write_text(json.dumps(rows), encoding="utf-8")
    with contextlib.redirect_stdout(io.StringIO()):
        right = COCO(str(path))
        evaluation = COCOeval(right, right.loadRes(str(results)), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    figures = judged.mean_precision(judged.read_truth(path), found)
    assert (figures["accuracy"], figures["map50"]) == pytest.approx(tuple(evaluation.stats[:2]), abs=1e-6)
    assert 0.1 < figures["accuracy"] < figures["map50"] < 0.9


def test_one_of_two_boxes_found_is_a_half_of_the_recalls(tmp_path):
    """Precision is 1 at the 51 recalls from 0 to 0.5, and 0 at the other 50."""
    pytest.importorskip("pycocotools")
    folder = tmp_path / "labels"
    folder.mkdir()
    (folder / "a.txt").write_text("0 0.25 0.25 0.2 0.2\n0 0.75 0.75 0.2 0.2\n", encoding="utf-8")
    found = Detections(np.array([[0.15, 0.15, 0.35, 0.35]]), np.array([0.9]), np.zeros(1, np.int64))
    truth = judged.read_truth(folder)
    assert judged.mean_precision(truth, {0: found})["accuracy"] == pytest.approx(51 / 101)
    assert judged.mean_precision(truth, {0: found.at(np.zeros(0, int))})["accuracy"] == 0


@pytest.mark.parametrize(("image", "letterbox"), [((64, 32), False), ((64, 32), True), ((20, 50), True)])
def test_boxes_of_the_input_are_placed_in_the_image_as_pillow_placed_the_image(image, letterbox):
    from PIL import Image, ImageOps

    box = np.array([4, 6, 14, 22])
    picture = np.zeros((image[1], image[0]), np.uint8)
    picture[box[1] : box[3], box[0] : box[2]] = 255
    shown = Image.fromarray(picture)
    size = (320, 320)
    placed = ImageOps.pad(shown, size, Image.Resampling.NEAREST) if letterbox else shown.resize(size, 0)
    rows, columns = (np.flatnonzero(np.asarray(placed).any(axis=axis)) for axis in (1, 0))
    seen = np.array([[columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]], np.float64)
    found = judged._in_image(Detections(seen, np.ones(1), np.zeros(1, int)), np.ones(2), size, image, letterbox)
    assert found.boxes[0] == pytest.approx(box, abs=0.25)


@pytest.fixture
def squares(tmp_path, random):
    """The planted detector, its images, and their squares as boxes, in images four times as wide and twice as high."""
    model, data = networks.save(to_float32(detector()), tmp_path), images(random)
    boxes = [
        [
            (STRIDE * x * 4, STRIDE * y * 2, SIZE * 4, SIZE * 2, label)
            for label, y, x in np.argwhere(starts(image[0])).tolist()
        ]
        for image in data
    ]
    path = tmp_path / "boxes.json"
    path.write_text(json.dumps(coco([(128, 64)] * len(boxes), boxes)), encoding="utf-8")
    folder = tmp_path / "yolo"
    folder.mkdir()
    for k, rows in enumerate(boxes):
        lines = [f"{c} {(x + w / 2) / 128} {(y + h / 2) / 64} {w / 128} {h / 64}" for x, y, w, h, c in rows]
        (folder / f"{k:03}.txt").write_text("\n".join(lines), encoding="utf-8")
    return model, [{"x": x} for x in data], path, folder


def starts(image):
    """True where a whole square begins, on the grid of the head: bool ``[2, 7, 7]``."""
    return np.array(
        [
            [[image[c, y : y + SIZE, x : x + SIZE].all() for x in range(0, 25, STRIDE)] for y in range(0, 25, STRIDE)]
            for c in (0, 1)
        ]
    )


@pytest.mark.parametrize("kind", ["COCO", "YOLO"])
def test_the_search_for_the_mean_precision_names_the_layer_that_loses_it(squares, kind):
    pytest.importorskip("pycocotools")
    model, data, path, folder = squares
    labels = path if kind == "COCO" else folder
    wishes = {"engine": "onnxruntime", "calibrator": "minmax", "explain": "none"}
    found = trt_bisect.run(model, data, inputs=data, dataset=data, labels=labels, drop="mlperf99", **wishes)
    assert found.culprits == ("second",)
    assert found.accuracy.fp32 == pytest.approx(1.0)
    assert found.accuracy.int8 < 0.5
    assert found.accuracy.also["fp32"] == {"map50": pytest.approx(1.0)} == found.accuracy.also["recipe"]
    assert found.accuracy.also["int8"]["map50"] < 0.5
    assert "map50: fp32 100" in accuracy_line(found.accuracy).text
    assert found.accuracy.recipe >= found.accuracy.least == pytest.approx(0.99)


@pytest.mark.parametrize(
    "content", ["", "{}", "[1]", '{"images": [], "annotations": [], "categories": []}', '{"images": 3}']
)
def test_a_json_without_boxes_is_refused(tmp_path, monkeypatch, content):
    monkeypatch.setattr(judged.importlib.util, "find_spec", lambda _: True)
    path = tmp_path / "boxes.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(BadInput) as refused:
        judged.read_truth(path)
    assert "Error:" not in refused.value.problem


def test_without_pycocotools_the_extra_is_named(squares, monkeypatch):
    model, data, path, _ = squares
    monkeypatch.setattr(judged.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(BadInput) as refused:
        trt_bisect.run(model, data, dataset=data, labels=path, engine="onnxruntime")
    assert re.search(r"pip install .*coco", str(refused.value))


def test_a_class_that_the_json_does_not_have_is_refused(squares):
    pytest.importorskip("pycocotools")
    truth = judged.read_truth(squares[2])
    found = Detections(np.array([[0.0, 0, 9, 9]]), np.ones(1), np.array([3]))
    with pytest.raises(BadInput, match="3 categories"):
        judged.mean_precision(truth, {0: found})


# Poses and masks.


def figures_of_files(right, results, kind, folder, sigmas=None):
    """The figures that pycocotools prints for two files."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    for name, content in (("right", right), ("found", results)):
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    with contextlib.redirect_stdout(io.StringIO()):
        known = COCO(str(folder / "right.json"))
        evaluation = COCOeval(known, known.loadRes(str(folder / "found.json")), kind)
        if sigmas is not None:
            evaluation.params.kpt_oks_sigmas = np.full(sigmas, 1 / sigmas)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return tuple(evaluation.stats[:2])


def jittered(random, images=40):
    """Boxes (x, y, w, h, class) of images, and as many found near them, with scores."""
    for k in range(images):
        right = np.column_stack(
            [random.uniform(0, 300, (4, 2)), random.uniform(20, 90, (4, 2)), random.integers(0, 3, 4)]
        )
        found = right.copy()
        found[:, :4] += random.normal(0, 5, (4, 4))
        yield k, right, found, random.uniform(0.05, 1, 4)


@pytest.mark.parametrize("count", [17, 5])
def test_poses_have_the_figures_of_pycocotools(tmp_path, random, count):
    pytest.importorskip("pycocotools")
    boxes, found, rows, keypoints = [], {}, [], []
    for k, right, near, scores in jittered(random):
        boxes.append(right.tolist())
        points = right[:, None, :2] + random.uniform(0, 1, (4, count, 2)) * right[:, None, 2:4]
        seen = random.integers(0, 3, (4, count, 1))
        seen[:, 0] = 2
        keypoints += np.concatenate([points, seen], axis=-1).reshape(4, -1).tolist()
        moved = np.concatenate([points + random.normal(0, 3, points.shape), random.uniform(0, 1, seen.shape)], axis=-1)
        corners = np.column_stack([near[:, :2], near[:, :2] + near[:, 2:4]])
        found[k] = Detections(corners, scores, near[:, 4].astype(np.int64), moved)
        rows += [
            {"image_id": 100 + k, "category_id": IDS[int(row[4])], "keypoints": each.ravel().tolist(), "score": score}
            for row, each, score in zip(near, moved, scores.tolist(), strict=True)
        ]
    right = coco([(400, 400)] * 40, boxes)
    for box, each in zip(right["annotations"], keypoints, strict=True):
        visible = int((np.array(each[2::3]) > 0).sum())
        box |= {"keypoints": each, "num_keypoints": visible, "area": 0.53 * box["area"]}
    expected = figures_of_files(right, rows, "keypoints", tmp_path, None if count == 17 else count)
    figures = judged.mean_precision(judged.read_truth(tmp_path / "right.json"), found, "keypoints")
    assert (figures["accuracy"], figures["map50"]) == pytest.approx(expected, abs=1e-6)
    assert 0.05 < figures["accuracy"] < figures["map50"]


def test_masks_have_the_figures_of_pycocotools(tmp_path, random):
    pytest.importorskip("pycocotools")
    boxes, found, rows = [], {}, []
    for k, right, near, scores in jittered(random):
        boxes.append(right.tolist())
        masks = np.zeros((4, 400, 400), bool)
        for mask, (x, y, w, h, _) in zip(masks, near, strict=True):
            mask[max(int(y), 0) : int(y + h), max(int(x), 0) : int(x + w)] = True
        encoded = np.array([judged._encoded(mask) for mask in masks], object)
        found[k] = Detections(np.zeros((4, 4)), scores, near[:, 4].astype(np.int64), encoded)
        rows += [
            {"image_id": 100 + k, "category_id": IDS[int(row[4])], "score": score,
             "segmentation": {"size": [400, 400], "counts": each["counts"].decode()}}
            for row, each, score in zip(near, encoded, scores.tolist(), strict=True)
        ]  # fmt: skip
    right = coco([(400, 400)] * 40, boxes)
    for box in right["annotations"]:
        x, y, w, h = box["bbox"]
        box |= {"segmentation": [[x, y, x + w, y, x + w, y + h, x, y + h]], "iscrowd": 0}
    expected = figures_of_files(right, rows, "segm", tmp_path)
    figures = judged.mean_precision(judged.read_truth(tmp_path / "right.json"), found, "segm")
    assert (figures["accuracy"], figures["map50"]) == pytest.approx(expected, abs=1e-6)
    assert 0.1 < figures["accuracy"] < figures["map50"]


@pytest.mark.parametrize("task", ["pose", "instances"])
def test_the_layer_that_loses_the_precision_of_poses_and_masks_is_named(tmp_path, random, task):
    """The labels are what ONNX Runtime finds: of an image of 64 x 96 pixels, twice and three times the input's."""
    pytest.importorskip("pycocotools")
    model = networks.save(heads.network(task), tmp_path)
    data = []
    for count in (2, 1, 3, 2):
        image = np.zeros((1, 2, 32, 32), np.float32)
        for quarter in random.permutation(4)[:count]:
            y, x = 16 * np.array(divmod(quarter, 2)) + 4 * random.integers(0, 2, 2)
            image[0, random.integers(0, 2), y : y + 8, x : x + 8] = 1
        data.append({"x": image})
    session, boxes, more = onnxruntime.InferenceSession(model), [], []
    for feeds in data:
        columns = session.run(None, feeds)[0][0].astype(np.float64)
        sure = columns[:, columns[4:6].max(axis=0) > 0.9].T
        boxes.append([])
        for x, y, w, h, *scores in sure[:, :6].tolist():
            boxes[-1].append((2 * (x - w / 2), 3 * (y - h / 2), 2 * w, 3 * h, int(np.argmax(scores))))
            edges = 4 * np.ceil(np.array([x - w / 2, y - h / 2, x + w / 2, y + h / 2]) / 4)
            x1, y1, x2, y2 = edges * [2, 3, 2, 3]
            more.append({"segmentation": [[x1, y1, x2, y1, x2, y2, x1, y2]], "area": 6 * w * h, "iscrowd": 0})
        for each, (x, y, *_) in zip(more[-len(sure) :], sure[:, 6:].tolist(), strict=True):
            each |= {"keypoints": [2 * x, 3 * y, 2], "num_keypoints": 1}
    right = coco([(64, 96)] * len(boxes), boxes)
    right["annotations"] = [box | each for box, each in zip(right["annotations"], more, strict=True)]
    path = tmp_path / "right.json"
    path.write_text(json.dumps(right), encoding="utf-8")
    wishes = {"dataset": data, "labels": path, "drop": "1%", "task": task, **heads.JUDGED}
    found = trt_bisect.run(model, data, inputs=data, **wishes)
    assert found.accuracy.fp32 == pytest.approx(1.0)
    assert (found.culprits, found.accuracy.recipe) == (("second",), pytest.approx(1.0))
    assert found.accuracy.int8 < 0.5
    for box in right["annotations"]:
        box.pop("keypoints" if task == "pose" else "segmentation")
    path.write_text(json.dumps(right), encoding="utf-8")
    with pytest.raises(BadInput, match="The labels have no"):
        trt_bisect.run(model, data, inputs=data, **wishes)
