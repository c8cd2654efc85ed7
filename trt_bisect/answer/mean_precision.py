"""Mean average precision (mAP50-95, as COCO counts it) on the user's boxes, poses or masks, by pycocotools."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from trt_bisect.analyzer.tasks.detections import NO_DETECTIONS, Detections
from trt_bisect.analyzer.tasks.find import find_task
from trt_bisect.analyzer.tasks.objects import sigmas_of
from trt_bisect.analyzer.tasks.task import AskedTask
from trt_bisect.builder.base import Outputs
from trt_bisect.data.datasets import Dataset
from trt_bisect.data.feeds import Feeds
from trt_bisect.errors import BadInput, first_line, install
from trt_bisect.evaluator.accuracy import ACCURACY, Accuracy, RunNetwork, place_finder

# The least score of detections that count, and the overlap above which they are suppressed, both as in Ultralytics.
_LEAST_SCORE, _IOU = 0.001, 0.7
_BOXES, _POSES, _MASKS = "bbox", "keypoints", "segm"
KINDS = {"detect": _BOXES, "pose": _POSES, "instances": _MASKS}  # by task, the annotation that pycocotools compares


@dataclass(frozen=True)
class TruthImage:
    """An image and its annotated boxes.

    Attributes:
        size: width and height; 1 and 1 where the boxes are shares of the image.
        boxes: ``[n, 4]``: left, top, width, height.
        classes: ``[n]``, the class of each box.
        crowds: ``[n]``, 1 for a box around many objects.
        more: each box's area, keypoints and outline from COCO's JSON; empty for other files.
    """

    name: str
    size: tuple[float, float]
    boxes: np.ndarray
    classes: np.ndarray
    crowds: np.ndarray
    more: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class Truth:
    """The annotated boxes of images, in the order of the file.

    Attributes:
        categories: number of classes; 0 if the file does not say it.
    """

    images: tuple[TruthImage, ...]
    categories: int
    digest: str


def read_truth(path: Path) -> Truth:
    """Reads boxes from COCO's JSON (categories are numbered in the order of their ids) or YOLO's text files.

    Raises:
        BadInput: the files cannot be read, hold no boxes, or pycocotools is not installed.
    """
    if importlib.util.find_spec("pycocotools") is None:
        raise BadInput("Boxes are judged by pycocotools, which is not installed.", install("coco"))
    try:
        truth = _yolo(path) if path.is_dir() else _coco(path)
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        problem = f"it has no {error}" if isinstance(error, KeyError) else first_line(error)
        raise BadInput(
            f"The boxes '{path}' cannot be read: {problem}",
            "Give COCO's JSON with images, annotations and categories, or a folder with a YOLO text file an image.",
        ) from error
    if not any(len(image.classes) for image in truth.images):
        raise BadInput(f"'{path}' holds no boxes.", "Give the boxes of the images of --dataset.")
    return truth


_FURTHER = ("area", "keypoints", "num_keypoints", "segmentation")


def _coco(path: Path) -> Truth:
    content = path.read_bytes()
    labels = json.loads(content)
    if not isinstance(labels, dict):
        raise ValueError("it is a list, not an object with images, annotations and categories")
    numbers = {key: k for k, key in enumerate(sorted(category["id"] for category in labels["categories"]))}
    rows: dict[object, list[tuple[float, ...]]] = {image["id"]: [] for image in labels["images"]}
    more: dict[object, list[Mapping[str, Any]]] = {image["id"]: [] for image in labels["images"]}
    for box in labels["annotations"]:
        rows[box["image_id"]].append((*box["bbox"], numbers[box["category_id"]], box.get("iscrowd", 0)))
        more[box["image_id"]].append({name: box[name] for name in _FURTHER if name in box})
    images = []
    for image in labels["images"]:
        size = float(image["width"]), float(image["height"])
        images.append(_image(str(image["file_name"]), size, rows[image["id"]], more[image["id"]]))
    return Truth(tuple(images), len(numbers), hashlib.sha256(content).hexdigest())


def _yolo(folder: Path) -> Truth:
    images, sha = [], hashlib.sha256()
    for file in sorted(folder.glob("*.txt")):
        content = file.read_text(encoding="utf-8")
        sha.update(f"{file.name}\n{content}\n".encode())
        rows = [[float(number) for number in line.split()] for line in content.splitlines() if line.strip()]
        if any(len(row) != 5 for row in rows):
            raise ValueError(f"a line of '{file.name}' is not the five numbers of a box: class, x, y, w, h")
        boxes = [(x - w / 2, y - h / 2, w, h, label, 0) for label, x, y, w, h in rows]
        images.append(_image(file.name, (1.0, 1.0), boxes))
    return Truth(tuple(images), 0, sha.hexdigest())


def _image(
    name: str, size: tuple[float, float], rows: Sequence[Sequence[float]], more: Sequence[Mapping[str, Any]] = ()
) -> TruthImage:
    table = np.array(rows, np.float64).reshape(-1, 6)
    classes, crowds = table[:, 4:].T.astype(np.int64)
    return TruthImage(name, size, table[:, :4], classes, crowds, tuple(more))


def accuracy_by_boxes(
    samples: Dataset, truth: Truth, reader: AskedTask, reference: Sequence[Outputs], *, letterbox: bool
) -> Accuracy:
    """Returns the accuracy in mAP50-95: of boxes, of poses by OKS, or of masks.

    Args:
        samples: one image each, found in ``truth`` by its name without ending or, without a name, by its position.
        reader: task that reads the detections: ``detect``, ``pose`` or ``instances``.
        reference: FP32's outputs for some inputs, which tell boxes in pixels from boxes in shares of the input.
        letterbox: images keep their aspect ratio in the input.

    Raises:
        BadInput: the task does not fit the outputs, or ``truth`` lacks keypoints, outlines or the images' sizes.
    """
    if letterbox and all(image.size == (1.0, 1.0) for image in truth.images):
        raise BadInput("YOLO's text files do not say how large the images are.", "Give COCO's JSON with --letterbox.")
    task, kind = find_task(replace(reader, score_threshold=_LEAST_SCORE, iou=_IOU), reference), KINDS[reader.name]
    read = task.shown
    assert read is not None
    assert task.scaling is not None
    scale = task.scaling(reference)
    needed = {_POSES: "keypoints", _MASKS: "segmentation"}.get(kind, "")
    if needed and not all(needed in more for image in truth.images for more in image.more or ({},)):
        raise BadInput(f"The labels have no '{needed}', which --task {reader.name} reads.", "Give COCO's JSON with it.")
    place_of = place_finder(samples, [image.name for image in truth.images], "box")

    def counted(infer: RunNetwork) -> dict[str, float]:
        detections: dict[int, Detections] = {}
        for position, feeds in enumerate(samples):
            outputs = {name: np.asarray(value) for name, value in infer(feeds).items()}
            images = read(outputs) or [NO_DETECTIONS]
            if len(images) != 1:
                raise BadInput(f"A sample holds {len(images)} images.", "Give --dataset with one image a sample.")
            size, k = input_size(feeds), place_of(position)
            detections[k] = _in_image(images[0], scale(outputs, size), size, truth.images[k].size, letterbox)
        return mean_precision(truth, detections, kind)

    sha = hashlib.sha256(f"{truth.digest} {task.note} {letterbox} {samples.digest()}".encode())
    return Accuracy(counted, sha.hexdigest(), chance=0.0)


def input_size(feeds: Feeds) -> tuple[int, int]:
    """Returns the width and the height of the picture among the feeds; raises BadInput if there is none."""
    shape = next((value.shape for value in feeds.values() if value.ndim == 4), None)
    if shape is None:
        raise BadInput(
            "No input is a picture, [N, C, H, W] or [N, H, W, C].", "Give --accuracy with your own function."
        )
    height, width = shape[2:] if shape[1] <= 4 else shape[1:3]
    return width, height


def _in_image(
    detected: Detections, scale: np.ndarray, size: tuple[int, int], image: tuple[float, float], letterbox: bool
) -> Detections:
    # The scale is the pixels of the input per unit of the boxes, in x and y.
    inside, border = inside_of(size, image, letterbox=letterbox)

    def placed(points: np.ndarray) -> np.ndarray:
        return np.asarray((points * scale - border) / inside * np.array(image))

    more = detected.more
    if more.dtype != bool and more.ndim == 3:
        seen = more[..., 2:] if more.shape[-1] == 3 else np.ones((*more.shape[:2], 1))
        more = np.concatenate([placed(more[..., :2]), seen], axis=-1)
    elif more.dtype == bool and more.ndim == 3:
        from pycocotools.mask import encode

        shape = int(image[1]), int(image[0])
        masks = (at_pixels(mask, shape, size, letterbox=letterbox).astype(np.uint8) for mask in more)
        more = np.array([dict(encode(np.asfortranarray(mask))) for mask in masks], object)
    return Detections(placed(detected.boxes.reshape(-1, 2, 2)).reshape(-1, 4), detected.scores, detected.classes, more)


def at_pixels(values: np.ndarray, shape: tuple[int, ...], size: tuple[int, int], *, letterbox: bool) -> np.ndarray:
    """Returns the value of a map at each pixel of an image.

    Args:
        values: ``[rows, columns]``, a map of the input in any resolution.
        shape: height and width of the image.
        size: width and height of the input.
        letterbox: the image keeps its aspect ratio in the input.
    """
    inside, border = inside_of(size, (float(shape[1]), float(shape[0])), letterbox=letterbox)
    places = []
    for axis, length in ((1, shape[0]), (0, shape[1])):
        cells = values.shape[1 - axis]
        share = (border[axis] + (np.arange(length) + 0.5) / length * inside[axis]) / size[axis]
        places.append(np.clip((share * cells).astype(np.int64), 0, cells - 1))
    return np.asarray(values[np.ix_(*places)])


def inside_of(size: tuple[int, int], image: tuple[float, float], *, letterbox: bool) -> tuple[np.ndarray, np.ndarray]:
    """Returns, each horizontal and vertical in pixels of the input: the size of an image inside the input, and the
    border left of and above the image.

    Args:
        size: width and height of the input.
        image: width and height of the image.
        letterbox: the image keeps its aspect ratio in the middle of the input; else it fills the input.
    """
    inside = np.array(size, np.float64)
    if letterbox:
        narrow = image[0] / image[1] < size[0] / size[1]
        inside[0 if narrow else 1] = round(image[0] / image[1] * size[1] if narrow else image[1] / image[0] * size[0])
    return inside, np.round((np.array(size) - inside) / 2)


def mean_precision(truth: Truth, detections: Mapping[int, Detections], kind: str = _BOXES) -> dict[str, float]:
    """Returns ``accuracy`` (mAP50-95) and ``map50`` by pycocotools, over the images that have ``detections``.

    Args:
        detections: by the image's index in ``truth``; each with its box (two corners) and, by ``kind``, its keypoints
            ``[K, 3]`` or its mask in pycocotools' form.
        kind: shapes compared: ``bbox``, ``keypoints`` or ``segm``.

    Raises:
        BadInput: a detection has a class that the labels do not have.
    """
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    rows = [row for k, in_image in detections.items() for row in _results(k, in_image, kind)]
    classes = np.concatenate([in_image.classes for in_image in detections.values()])
    if truth.categories and classes.max(initial=0) >= truth.categories:
        raise BadInput(
            f"The network finds class {classes.max()}, and the boxes have {truth.categories} categories.",
            "List in the JSON all categories that the network knows, or give --accuracy with your own function.",
        )
    if not len(classes):
        return {ACCURACY: 0.0, "map50": 0.0}
    count = next((in_image.more.shape[1] for in_image in detections.values() if len(in_image) and kind == _POSES), 0)
    if count and any(len(more["keypoints"]) != 3 * count for image in truth.images for more in image.more):
        raise BadInput(f"The network finds {count} keypoints, and the labels have others.", "Give labels of these.")
    categories = range(max(truth.categories, 1 + max(image.classes.max(initial=0) for image in truth.images)))
    with contextlib.redirect_stdout(io.StringIO()):
        right = COCO()
        right.dataset = {
            "images": [
                {"id": k, "width": int(truth.images[k].size[0]), "height": int(truth.images[k].size[1])}
                for k in detections
            ],
            "annotations": _annotations(truth, detections),
            "categories": [{"id": k} for k in categories],
        }
        right.createIndex()
        evaluation = COCOeval(right, right.loadRes(rows), kind)
        if count:
            evaluation.params.kpt_oks_sigmas = sigmas_of(count)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return {ACCURACY: float(evaluation.stats[0]), "map50": float(evaluation.stats[1])}


def _results(image_index: int, detections: Detections, kind: str) -> Iterator[dict[str, Any]]:
    boxes = np.concatenate([detections.boxes[:, :2], detections.boxes[:, 2:] - detections.boxes[:, :2]], axis=-1)
    for k in range(len(detections)):
        row = {"image_id": image_index, "category_id": int(detections.classes[k]), "score": float(detections.scores[k])}
        if kind == _BOXES:
            yield row | {"bbox": boxes[k].tolist()}
        elif kind == _POSES:
            yield row | {"keypoints": detections.more[k].ravel().tolist()}
        else:
            yield row | {"segmentation": detections.more[k]}


def _annotations(truth: Truth, detections: Mapping[int, Detections]) -> list[dict[str, Any]]:
    every = [
        {"image_id": image_index, "category_id": int(label), "bbox": box.tolist(), "iscrowd": int(crowd), **more}
        for image_index in detections
        for image in (truth.images[image_index],)
        for box, label, crowd, more in zip(
            image.boxes, image.classes, image.crowds, image.more or ({},) * len(image.classes), strict=True
        )
    ]
    return [{"area": float(np.prod(entry["bbox"][2:])), **entry, "id": k} for k, entry in enumerate(every, 1)]
