"""Detections: the objects that a head finds, NonMaxSuppression, and detections kept, lost and invented."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import zip_longest
from statistics import fmean

import numpy as np
import onnxruntime as ort
from onnx import parser

from trt_bisect.analyzer.metrics import AGREEMENT
from trt_bisect.analyzer.tasks.task import (
    AGREED,
    FOUND,
    ITEMS,
    LIKENESS_KEYS,
    LOST_OBJECTS,
    OBJECTS,
    AskedTask,
    Counts,
    Scaling,
    Task,
    lost_classes,
    task_of,
)
from trt_bisect.builder.base import Outputs
from trt_bisect.model.file import Written
from trt_bisect.model.session import CPU, make_session

MOST = 3000
_SHORTEST = 5e-4  # As a share of the largest coordinate of all boxes: a third of a pixel of 640.
FINEST = 8
"""The width of a cell of the finest raw map, in units of decoded boxes."""
# Boxes are shares of the image if the coordinates of the best candidates stay below the first number.
_LARGEST_SHARE, _BEST_CANDIDATES = 1.5, 300
_NMS = """<ir_version: 7, opset_import: ["": 11]>
nms (float[b, n, 4] boxes, float[b, c, n] scores, int64[1] most, float[1] iou, float[1] least) => (int64[k, 3] chosen) {
    chosen = NonMaxSuppression(boxes, scores, most, iou, least)
}"""


@dataclass(frozen=True)
class Detections:
    """The detections in an image.

    Attributes:
        boxes: two opposite corners, x and y each, in any unit; float64 ``[n, 4]``.
        scores: float64 ``[n]``.
        classes: int64 ``[n]``.
        more: further figures of each detection, such as keypoints, ``[n, ...]``; or empty.
    """

    boxes: np.ndarray
    scores: np.ndarray
    classes: np.ndarray
    more: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))

    def __len__(self) -> int:
        return len(self.scores)

    def at(self, places: np.ndarray) -> Detections:
        """Returns the detections at ``places``, which are indices or a mask."""
        more = self.more[places] if self.more.size else self.more
        return Detections(self.boxes[places], self.scores[places], self.classes[places], more)

    def above(self, threshold: float) -> Detections:
        """Returns the detections that score at least ``threshold``, the best first, at most 3000."""
        order = np.argsort(-self.scores, kind="stable")
        return self.at(order[self.scores[order] >= threshold][:MOST])


Alike = Callable[[Detections, Detections], np.ndarray]
"""A function that returns the likeness, from 0 to 1, of each of n detections with each of m others, ``[n, m]``."""
NO_DETECTIONS = Detections(np.zeros((0, 4)), np.zeros(0), np.zeros(0, np.int64))


def corners(centred: np.ndarray) -> np.ndarray:
    """Returns boxes of centre and size, ``[..., 4]``, as two corners."""
    middle, half = centred[..., :2], centred[..., 2:] / 2.0
    return np.concatenate([middle - half, middle + half], axis=-1)


def rotated(points: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """Returns points ``[..., 2]`` turned about zero by angles in radians, ``[...]``."""
    x, y, cosines, sines = points[..., 0], points[..., 1], np.cos(angles), np.sin(angles)
    return np.stack([x * cosines - y * sines, x * sines + y * cosines], axis=-1)


def suppressed(found: Detections, iou: float) -> Detections:
    """Returns the candidates with scores above 0 that remain after ONNX Runtime's NonMaxSuppression in each class, with
    ``iou`` as its threshold.
    """
    if not len(found):
        return found
    classes, rows = np.unique(found.classes, return_inverse=True)
    scores = np.zeros((1, len(classes), len(found)), np.float32)
    scores[0, rows, np.arange(len(found))] = found.scores
    feeds = {
        "boxes": found.boxes[None].astype(np.float32),
        "scores": scores,
        "most": np.array([len(found)], np.int64),
        "iou": np.array([iou], np.float32),
        "least": np.array([0.0], np.float32),
    }
    (chosen,) = _session().run(None, feeds)
    return found.at(np.sort(chosen[:, 2]))


@cache
def _session() -> ort.InferenceSession:
    return make_session(Written(parser.parse_model(_NMS), {}), CPU, threads=1)


def best_class(boxes: np.ndarray, shares: np.ndarray, *more: np.ndarray) -> Detections:
    """Returns a candidate for each row: its box, its best class by the scores ``shares`` ``[N, C]``, and further
    figures ``more``.
    """
    return Detections(boxes, shares.max(axis=-1), shares.argmax(axis=-1), *more)


def areas_of(boxes: np.ndarray) -> np.ndarray:
    """Returns the areas of boxes ``[n, 4]`` of two corners; shorter sides count as ``shortest_side(boxes)``."""
    starts, ends = _corners(boxes, shortest_side(boxes))
    return np.asarray(np.prod(ends - starts, axis=-1))


def over_union(shared: np.ndarray, areas: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Returns the IoU from the shared area and both areas; 0 if both are 0."""
    union = areas + others - shared
    return np.asarray(np.divide(shared, union, out=np.zeros_like(shared), where=union > 0.0))


def overlaps(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Returns the IoU of boxes ``[n, 4]`` with others ``[m, 4]``, as two corners, as ``[n, m]``."""
    shortest = shortest_side(boxes)
    (starts, ends), (other_starts, other_ends) = (_corners(side, shortest) for side in (boxes[:, None], others[None]))
    shared = np.maximum(np.minimum(ends, other_ends) - np.maximum(starts, other_starts), 0.0)
    lengths = shared, ends - starts, other_ends - other_starts
    return over_union(*(np.prod(sides, axis=-1) for sides in lengths))


def shortest_side(boxes: np.ndarray) -> float:
    """Returns the length that shorter sides of ``boxes`` count as: 1/2000 of the largest coordinate."""
    return _SHORTEST * (float(np.abs(boxes).max(initial=0.0)) or 1.0)


def _corners(boxes: np.ndarray, shortest: float) -> tuple[np.ndarray, np.ndarray]:
    starts, ends = np.asarray(boxes[..., :2], np.float64), np.asarray(boxes[..., 2:], np.float64)
    is_short = ends - starts < shortest
    middles = (starts + ends) / 2
    return np.where(is_short, middles - shortest / 2, starts), np.where(is_short, middles + shortest / 2, ends)


def box_overlaps(before: Detections, after: Detections) -> np.ndarray:
    """Returns the IoU of each box in ``before`` with each in ``after``, ``[n, m]``."""
    return overlaps(before.boxes, after.boxes)


def matched(before: Detections, after: Detections, least: float, alike: Alike) -> tuple[np.ndarray, np.ndarray]:
    """Returns two arrays with a value for each detection of ``before``: the index of its partner in ``after``, -1
    without one; and the likeness of the two, or 0.

    By score, the best first, each of ``before`` takes the most similar free one of its class in ``after``, if their
    likeness by ``alike`` is ``least`` or more.
    """
    partners, kept = np.full(len(before), -1), np.zeros(len(before))
    if not len(before) or not len(after):
        return partners, kept
    likeness = np.where(before.classes[:, None] == after.classes, alike(before, after), 0.0)
    for k in np.argsort(-before.scores, kind="stable"):
        best = int(likeness[k].argmax())
        if likeness[k, best] >= least:
            partners[k], kept[k] = best, likeness[k, best]
            likeness[:, best] = 0.0
    return partners, kept


Read = Callable[[Outputs], list[Detections]]


@dataclass(frozen=True)
class Head:
    """A detection head: reads outputs as detections.

    Attributes:
        read: returns the candidates in each image, each with its best class, from the outputs for one input.
        needs_nms: true if NonMaxSuppression has to choose among the candidates of an object.
        is_ready: true if the network applies NonMaxSuppression itself.
        suppress: from candidates and an IoU, returns the candidates without those that overlap better ones by more.
        finish: returns the detections to compare, from the outputs for one input and each image's chosen candidates.
        finest: the output with the smallest cells, if boxes are decoded outside the network; else empty.
    """

    names: tuple[str, ...]
    note: str
    read: Read
    needs_nms: bool
    is_ready: bool = False
    suppress: Callable[[Detections, float], Detections] = suppressed
    finish: Callable[[Outputs, list[Detections]], list[Detections]] = lambda _, chosen: chosen
    finest: str = ""

    def scaling(self, reference: Sequence[Outputs]) -> Scaling:
        """Returns the scaling of the boxes to pixels; FP32's outputs by input (``reference``) tell the unit."""
        surest = [image.above(0.0).boxes[:_BEST_CANDIDATES] for outputs in reference for image in self.read(outputs)]
        is_share = not self.finest and all((np.abs(boxes) <= _LARGEST_SHARE).all() for boxes in surest)

        def scale(outputs: Outputs, size: tuple[int, int]) -> np.ndarray:
            cells = FINEST * np.array(outputs[self.finest].shape[3:1:-1]) if self.finest else size
            return np.array(size, np.float64) / (1.0 if is_share else cells)

        return scale


# The score from which FP32 is sure of a detection; and the fewest such detections of a lost class.
_SURE, _FEWEST = 0.5, 2
# The factors of the score threshold at which NEARBY is the mean agreement.
_NEARBY = (0.5, 0.6, 0.7, 0.8, 0.9, 1.1, 1.2, 1.3, 1.4, 1.5)


def found_task(asked: AskedTask, head: Head, likeness: str, alike: Alike, outputs: Iterable[str]) -> Task:
    """Returns the task that counts the detections kept, lost and invented.

    Args:
        asked: detections are the same if their likeness is at least ``asked.iou``.
        likeness: the name of ``alike``: ``IoU``, ``OKS`` or ``mask IoU``.
        alike: returns the likeness of each detection with each of another run.
        outputs: all outputs, read or not.
    """
    nms = "after NonMaxSuppression" if head.needs_nms else "without NonMaxSuppression"
    unread = ", ".join(f"'{name}'" for name in outputs if name not in head.names)
    how = f"reads {head.note}, {nms}; score at least {asked.score_threshold:g}, {likeness} {asked.iou:g} or more"
    if unread:
        how += f"; not judged: {unread}"

    def count(before: Sequence[Detections], after: Sequence[Detections]) -> Counts:
        kept, like = 0, 0.0
        objects, losses = Counter[int](), Counter[int]()
        for image, other in zip_longest(before, after, fillvalue=NO_DETECTIONS):
            partners, likenesses = matched(image, other, asked.iou, alike)
            kept, like = kept + int((partners >= 0).sum()), like + float(likenesses.sum())
            is_sure = image.scores >= _SURE
            objects.update(image.classes[is_sure].tolist())
            losses.update(image.classes[is_sure & (partners < 0)].tolist())
        found, lost, invented = sum(map(len, before)), sum(map(len, before)) - kept, sum(map(len, after)) - kept
        counts = {AGREED: kept, ITEMS: found + invented, FOUND: found, OBJECTS: objects, LOST_OBJECTS: losses}
        return {**counts, "kept": kept, "lost": lost, "invented": invented, "like": like}

    def further(total: Counts) -> dict[str, float]:
        mean = {LIKENESS_KEYS[likeness]: total["like"] / total["kept"]} if total["kept"] else {}
        return {**{name: total[name] for name in ("kept", "lost", "invented")}, **mean}

    def read(outputs: Outputs) -> list[Detections]:
        above = [image.above(asked.score_threshold) for image in head.read(outputs)]
        chosen = [head.suppress(image, asked.iou) for image in above] if head.needs_nms else above
        return head.finish(outputs, chosen)

    def nearby(reference: Sequence[Outputs]) -> Callable[[Sequence[Outputs]], float]:
        at_others = [replace(asked, score_threshold=factor * asked.score_threshold) for factor in _NEARBY]
        judges = [found_task(each, head, likeness, alike, outputs).judge(reference) for each in at_others]
        return lambda after: fmean(judge(dict(enumerate(after))).values.get(AGREEMENT.name, 0.0) for judge in judges)

    def pairs(before: Detections, after: Detections) -> np.ndarray:
        return matched(before, after, asked.iou, alike)[0]

    vanished = partial(lost_classes, fewest=_FEWEST)
    task = task_of(asked, how, head.names, read, count, further, vanished=vanished, shown=read)
    return replace(task, nearby=nearby, pairs=pairs, scaling=head.scaling)
