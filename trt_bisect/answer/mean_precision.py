"""The mean average precision of a detector on the user's boxes, by pycocotools: mAP50-95, as COCO counts it."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trt_bisect.analyzer.tasks.detections import Detections, Head
from trt_bisect.builder.base import Outputs
from trt_bisect.data.datasets import Dataset
from trt_bisect.data.feeds import Feeds
from trt_bisect.errors import BadInput, first_line, install
from trt_bisect.evaluator.accuracy import ACCURACY, Accuracy, RunNetwork, place_finder

_LEAST_SCORE, _IOU = 0.001, 0.7
"""Of detections that count, as in the evaluation of Ultralytics."""


@dataclass(frozen=True)
class TruthImage:
    """An image and its right boxes.

    Attributes:
        name: the name of its file.
        size: its width and height; 1 and 1 where the boxes are shares of it.
        boxes: ``[n, 4]``: x, y, w, h.
        classes: ``[n]``.
        crowds: ``[n]``, 1 for a box around many objects.
    """

    name: str
    size: tuple[float, float]
    boxes: np.ndarray
    classes: np.ndarray
    crowds: np.ndarray


@dataclass(frozen=True)
class Truth:
    """The right boxes of images, in the order of the file.

    Attributes:
        images: the images.
        categories: the number of classes; 0 where the file does not say it.
        digest: SHA-256 of the files.
    """

    images: tuple[TruthImage, ...]
    categories: int
    digest: str


def read_truth(path: Path) -> Truth:
    """Reads boxes from COCO's JSON, whose categories are numbered in the order of their ids, or YOLO's text files.

    Raises:
        BadInput: the files cannot be read, hold no boxes, or pycocotools is not installed.
    """
    if importlib.util.find_spec("pycocotools") is None:
        raise BadInput("Boxes are judged by pycocotools, which is not installed.", install("coco"))
    try:
        truth = _yolo(path) if path.is_dir() else _coco(path)
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise BadInput(
            f"The boxes '{path}' cannot be read: {type(error).__name__}: {first_line(error)}",
            "Give COCO's JSON with images, annotations and categories, or a folder with a YOLO text file an image.",
        ) from error
    if not any(len(image.classes) for image in truth.images):
        raise BadInput(f"'{path}' holds no boxes.", "Give the boxes of the images of --dataset.")
    return truth


def _coco(path: Path) -> Truth:
    content = path.read_bytes()
    found = json.loads(content)
    numbers = {one: k for k, one in enumerate(sorted(category["id"] for category in found["categories"]))}
    rows: dict[object, list[tuple[float, ...]]] = {image["id"]: [] for image in found["images"]}
    for box in found["annotations"]:
        rows[box["image_id"]].append((*box["bbox"], numbers[box["category_id"]], box.get("iscrowd", 0)))
    images = tuple(
        _image(str(image["file_name"]), (float(image["width"]), float(image["height"])), rows[image["id"]])
        for image in found["images"]
    )
    return Truth(images, len(numbers), hashlib.sha256(content).hexdigest())


def _yolo(folder: Path) -> Truth:
    files = sorted(folder.glob("*.txt"))
    images, sha = [], hashlib.sha256()
    for file in files:
        content = file.read_text(encoding="utf-8")
        sha.update(f"{file.name}\n{content}\n".encode())
        rows = [[float(one) for one in line.split()] for line in content.splitlines() if line.strip()]
        boxes = [(x - w / 2, y - h / 2, w, h, label, 0) for label, x, y, w, h in rows]
        images.append(_image(file.name, (1.0, 1.0), boxes))
    return Truth(tuple(images), 0, sha.hexdigest())


def _image(name: str, size: tuple[float, float], rows: Sequence[Sequence[float]]) -> TruthImage:
    table = np.array(rows, np.float64).reshape(-1, 6)
    return TruthImage(name, size, table[:, :4], table[:, 4].astype(np.int64), table[:, 5].astype(np.int64))


def accuracy_by_boxes(
    samples: Dataset, truth: Truth, head: Head, reference: Sequence[Outputs], *, letterbox: bool
) -> Accuracy:
    """Makes the accuracy that is mAP50-95.

    Args:
        samples: pictures are found among the images of ``truth`` by their names, without their endings; other samples
            by their number. Each holds one image.
        truth: the right boxes.
        head: reads the detections.
        reference: the FP32 outputs for some inputs: they tell boxes in pixels of the input from shares of it.
        letterbox: the images keep their shape in the input; else they are stretched.
    """
    if letterbox and all(image.size == (1.0, 1.0) for image in truth.images):
        raise BadInput("YOLO's text files do not say how large the images are.", "Give COCO's JSON with --letterbox.")
    scale = head.scaling(reference)
    place_of = place_finder(samples, [image.name for image in truth.images], "box")

    def counted(infer: RunNetwork) -> dict[str, float]:
        found: dict[int, Detections] = {}
        for position, feeds in enumerate(samples):
            outputs = {name: np.asarray(value) for name, value in infer(feeds).items()}
            images = head.read(outputs) or [Detections(np.zeros((0, 4)), np.zeros(0), np.zeros(0, np.int64))]
            if len(images) != 1:
                raise BadInput(f"A sample holds {len(images)} images.", "Give --dataset with one image a sample.")
            best = images[0].above(_LEAST_SCORE)
            best = head.suppress(best, _IOU) if head.needs_nms else best
            size = input_size(feeds)
            place = place_of(position)
            found[place] = _in_image(best, scale(outputs, size), size, truth.images[place].size, letterbox)
        return mean_precision(truth, found)

    sha = hashlib.sha256(f"{truth.digest} {head.note} {letterbox} {samples.digest()}".encode())
    return Accuracy(counted, sha.hexdigest())


def input_size(feeds: Feeds) -> tuple[int, int]:
    """Returns the width and the height of the picture."""
    shape = next((value.shape for value in feeds.values() if value.ndim == 4), None)
    if shape is None:
        raise BadInput(
            "No input is a picture, [N, C, H, W] or [N, H, W, C].", "Give --accuracy with your own function."
        )
    height, width = shape[2:] if shape[1] <= 4 else shape[1:3]
    return width, height


def _in_image(
    found: Detections, scale: np.ndarray, size: tuple[int, int], image: tuple[float, float], letterbox: bool
) -> Detections:
    """Returns detections with their boxes in the pixels of the image.

    Args:
        found: in the input.
        scale: the pixels of the input along a unit of the boxes, in x and y.
        size: the width and the height of the input.
        image: those of the image.
        letterbox: see ``inside_of``.
    """
    inside, border = inside_of(size, image, letterbox=letterbox)
    boxes = (found.boxes.reshape(-1, 2, 2) * scale - border) / inside * np.array(image)
    return Detections(boxes.reshape(-1, 4), found.scores, found.classes)


def inside_of(size: tuple[int, int], image: tuple[float, float], *, letterbox: bool) -> tuple[np.ndarray, np.ndarray]:
    """Returns the width and the height of an image inside the input, and those of the border before it.

    Args:
        size: the width and the height of the input.
        image: those of the image.
        letterbox: the image keeps its shape in the middle of the input, as Pillow pads it; else it fills the input.
    """
    inside = np.array(size, np.float64)
    if letterbox:
        narrow = image[0] / image[1] < size[0] / size[1]
        inside[0 if narrow else 1] = round(image[0] / image[1] * size[1] if narrow else image[1] / image[0] * size[0])
    return inside, np.round((np.array(size) - inside) / 2)


def mean_precision(truth: Truth, found: Mapping[int, Detections]) -> dict[str, float]:
    """Returns ``accuracy`` (mAP50-95) and ``map50`` by pycocotools.

    Args:
        truth: the right boxes.
        found: the detections by the number of their image, boxes as corners; only these images count.

    Raises:
        BadInput: a detection is of a class that the boxes do not have.
    """
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    rows = [
        np.column_stack([np.full(len(one), place), one.boxes[:, :2], one.boxes[:, 2:] - one.boxes[:, :2], one.scores])
        for place, one in found.items()
    ]
    classes = np.concatenate([one.classes for one in found.values()])
    if truth.categories and classes.max(initial=0) >= truth.categories:
        raise BadInput(
            f"The network finds class {classes.max()}, and the boxes have {truth.categories} categories.",
            "List in the JSON all categories that the network knows, or give --accuracy with your own function.",
        )
    if not len(classes):
        return {ACCURACY: 0.0, "map50": 0.0}
    known = range(max(truth.categories, 1 + max(image.classes.max(initial=0) for image in truth.images)))
    with contextlib.redirect_stdout(io.StringIO()):
        right = COCO()
        right.dataset = {
            "images": [{"id": place} for place in found],
            "annotations": _annotations(truth, found),
            "categories": [{"id": k} for k in known],
        }
        right.createIndex()
        evaluation = COCOeval(right, right.loadRes(np.column_stack([np.concatenate(rows), classes])), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return {ACCURACY: float(evaluation.stats[0]), "map50": float(evaluation.stats[1])}


def _annotations(truth: Truth, found: Mapping[int, Detections]) -> list[dict[str, object]]:
    every = [
        {"image_id": place, "category_id": int(label), "bbox": box.tolist(), "iscrowd": int(crowd)}
        for place in found
        for image in (truth.images[place],)
        for box, label, crowd in zip(image.boxes, image.classes, image.crowds, strict=True)
    ]
    return [{**one, "id": k, "area": float(np.prod(one["bbox"][2:]))} for k, one in enumerate(every, 1)]
