"""The mean average precision on the user's boxes: COCO's JSON and YOLO's text, beside pycocotools on the files."""

import contextlib
import io
import json
import re
from types import SimpleNamespace

import numpy as np
import pytest

import trt_bisect
from tests.support import networks
from tests.support.squares import SIZE, STRIDE, detector, images
from trt_bisect.analyzer.tasks.detections import Detections
from trt_bisect.analyzer.tasks.task import AskedTask
from trt_bisect.answer import mean_precision as judged
from trt_bisect.answer.accuracy import AskedAccuracy
from trt_bisect.data.datasets import open_dataset
from trt_bisect.data.feeds import TensorSpec
from trt_bisect.errors import BadInput
from trt_bisect.evaluator.accuracy import Accuracy
from trt_bisect.report.summary import accuracy_line

COCO = pytest.importorskip("pycocotools.coco").COCO
COCOeval = pytest.importorskip("pycocotools.cocoeval").COCOeval
encode = pytest.importorskip("pycocotools.mask").encode
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


WIDER, INPUT, IMAGES = np.array([2, 3]), 160, 60
"""An image is twice as wide as the network's input, and three times as high."""
HEADS = {"detect": "", "pose": ",keypoints:5x3", "pose of 17": ",keypoints:17x3", "instances": ",masks:4"}


def made(random, task, number):
    """An image: the annotations of four objects, what the network gives, and what it finds, in COCO's form."""
    cells = np.column_stack([random.integers(0, 25, (4, 2)), random.integers(5, 15, (4, 2))])
    near = np.clip(cells + random.integers(-1, 2, (4, 4)), 0, 39)
    classes, scores = random.integers(0, 3, 4), random.uniform(0.05, 1, 4)
    kinds, count = np.where(random.uniform(size=4) < 0.9, classes, (classes + 1) % 3), 17 if "17" in task else 5
    right, seen = (4 * np.tile(WIDER, 2) * each for each in (cells, near))
    points = right[:, None, :2] + random.uniform(size=(4, count, 2)) * right[:, None, 2:]
    shown = np.concatenate([points, random.integers(0, 3, (4, count, 1))], axis=2)
    shown[:, 0, 2] = 2
    places = points + random.normal(0, 8, points.shape)
    drawn = np.zeros((4, 40, 40))
    for mask, (x, y, w, h) in zip(drawn, near, strict=True):
        mask[y : y + h, x : x + w] = 1
    corners = np.column_stack([right[:, :2], right[:, :2] + right[:, 2:]])
    facts = {"keypoints": shown.reshape(4, -1), "num_keypoints": (shown[..., 2] > 0).sum(1)}
    facts |= {"area": right[:, 2:].prod(1), "segmentation": corners[:, None, [0, 1, 2, 1, 2, 3, 0, 3]]}
    labels = [
        {"bbox": right[k].tolist(), "category_id": IDS[classes[k]], "iscrowd": int(number % 40 == k == 0)}
        | {name: values[k].tolist() for name, values in facts.items()}
        for k in range(4)
    ]
    masks = np.kron(drawn, np.ones((12, 8))).astype(np.uint8)
    each = {
        "detect": lambda k: {"bbox": seen[k].tolist()},
        "pose": lambda k: {"keypoints": np.concatenate([places[k], shown[k, :, 2:]], axis=1).ravel().tolist()},
        "instances": lambda k: {"segmentation": encode(np.asfortranarray(masks[k]))},
    }[task.split()[0]]
    found = [{"category_id": IDS[kinds[k]], "score": scores[k]} | each(k) for k in range(4)]
    more = {"pose": np.concatenate([places / WIDER, shown[..., 2:] / 2], axis=2).reshape(4, -1), "instances": np.eye(4)}
    boxes = 4 * np.column_stack([near[:, :2], near[:, :2] + near[:, 2:], scores / 4, kinds / 4])
    rows = np.column_stack([boxes, more.get(task.split()[0], np.zeros((4, 0)))])[None]
    return labels, found, {"y": rows} | ({"prototypes": 2 * drawn[None] - 1} if task == "instances" else {})


@pytest.mark.parametrize("task", HEADS)
def test_images_have_the_figures_of_pycocotools(tmp_path, random, task):
    """From the outputs of a network on; pycocotools reads files that know nothing of them."""
    labels, found, outputs = zip(*(made(random, task, k) for k in range(IMAGES)), strict=True)
    right = coco([tuple((WIDER * INPUT).tolist())] * IMAGES, [])
    flat = [{"image_id": 100 + k} | each for k, image in enumerate(labels) for each in image]
    right["annotations"] = [{"id": n} | each for n, each in enumerate(flat, 1)]
    (tmp_path / "right.json").write_text(json.dumps(right), encoding="utf-8")
    kind = {"detect": "bbox", "instances": "segm"}.get(task, "keypoints")
    with contextlib.redirect_stdout(io.StringIO()):
        known = COCO(str(tmp_path / "right.json"))
        rows = [{"image_id": 100 + k} | each for k, image in enumerate(found) for each in image]
        evaluation = COCOeval(known, known.loadRes(rows), kind)
        if task == "pose":
            evaluation.params.kpt_oks_sigmas = np.full(5, 1 / 5)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    specs = (TensorSpec("x", np.dtype(np.float32), (1, 3, INPUT, INPUT)),)
    samples = open_dataset([{"x": np.zeros((1, 3, INPUT, INPUT), np.float32)}] * IMAGES, specs)
    asked = AskedTask(task.split()[0], head=f"xyxy,score,class{HEADS[task]}")
    truth, each = judged.read_truth(tmp_path / "right.json"), iter(outputs)
    figures = judged.accuracy_by_boxes(samples, truth, asked, outputs[:9], letterbox=False).of(lambda _: next(each))
    assert (figures["accuracy"], figures["map50"]) == pytest.approx(tuple(evaluation.stats[:2]), abs=1e-6)
    assert 0.05 < figures["accuracy"] < figures["map50"] < 0.95


def test_one_of_two_boxes_found_is_a_half_of_the_recalls(tmp_path):
    """Precision is 1 at the 51 recalls from 0 to 0.5, and 0 at the other 50."""
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
    model, data = networks.save(detector(), tmp_path), images(random)
    found = [np.argwhere(starts(image[0])).tolist() for image in data]
    boxes = [[(STRIDE * x * 4, STRIDE * y * 2, SIZE * 4, SIZE * 2, k) for k, y, x in image] for image in found]
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
    windows = np.lib.stride_tricks.sliding_window_view(image, (SIZE, SIZE), axis=(1, 2))
    return windows[:, ::STRIDE, ::STRIDE].all(axis=(-2, -1))


@pytest.mark.parametrize("kind", ["COCO", "YOLO"])
def test_the_search_for_the_mean_precision_names_the_layer_that_loses_it(squares, kind):
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
def test_a_file_without_boxes_is_refused(tmp_path, content):
    path = tmp_path / "boxes.json"
    path.write_text(content, encoding="utf-8")
    (tmp_path / "a.txt").write_text("0 0.1 0.1 0.4 0.1 0.4 0.4\n", encoding="utf-8")
    for place, name in ((path, "boxes.json"), (tmp_path, "a.txt")):
        with pytest.raises(BadInput) as refused:
            judged.read_truth(place)
        assert (name in refused.value.problem, "Error:" in refused.value.problem) == (True, False)


def test_without_pycocotools_the_extra_is_named(squares, monkeypatch):
    model, data, path, _ = squares
    monkeypatch.setattr(judged.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(BadInput) as refused:
        trt_bisect.run(model, data, dataset=data, labels=path, engine="onnxruntime")
    assert re.search(r"pip install .*coco", str(refused.value))


def test_a_class_that_the_json_does_not_have_is_refused(squares):
    truth = judged.read_truth(squares[2])
    found = Detections(np.array([[0.0, 0, 9, 9]]), np.ones(1), np.array([3]))
    with pytest.raises(BadInput, match="3 categories"):
        judged.mean_precision(truth, {0: found})


@pytest.mark.parametrize("task", ["pose", "instances"])
def test_labels_without_what_the_task_reads_are_refused(tmp_path, random, task):
    labels, _, outputs = made(random, task, 0)
    right = coco([(64, 96)], [[]])
    kept = ("bbox", "category_id", "iscrowd", "area")
    right["annotations"] = [
        {"id": n, "image_id": 100} | {key: each[key] for key in kept} for n, each in enumerate(labels)
    ]
    (tmp_path / "right.json").write_text(json.dumps(right), encoding="utf-8")
    asked = AskedTask(task, head=f"xyxy,score,class{HEADS[task]}")
    with pytest.raises(BadInput, match="The labels have no"):
        judged.accuracy_by_boxes(None, judged.read_truth(tmp_path / "right.json"), asked, [outputs], letterbox=False)


def test_the_figures_of_fp32_do_not_depend_on_the_calibrator_and_a_search_without_a_recipe_has_none():
    """The store of another calibrator knows no trial of FP32; the plan so far is full INT8, which misses."""
    store = SimpleNamespace(find=lambda _: None)
    whole = SimpleNamespace(
        high=None, canonical=lambda _: SimpleNamespace(key=str), store_of=lambda _: store, store=store
    )
    experiment = SimpleNamespace(network=SimpleNamespace(base_type=None, full=lambda _: "all"), whole=whole)
    answer = SimpleNamespace(
        experiment=experiment, recipe=SimpleNamespace(plan="all"), meets=False, most=None, fp16=None
    )
    asked = AskedAccuracy(None, Accuracy(None, "code"), {"accuracy": 0.6, "map50": 0.9}, 0.5)
    found = asked.accuracies(answer, measures=False)
    assert (found.fp32, found.recipe, found.also) == (0.6, None, {"fp32": {"map50": 0.9}})
