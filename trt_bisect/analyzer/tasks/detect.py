"""Detection: the detections of FP32 that are kept, lost and invented.

The heads of detectors, which say how outputs are read as detections, are found from their shapes and FP32 values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import zip_longest
from statistics import fmean

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

from trt_bisect.analyzer.classes import sigmoid, softmax
from trt_bisect.analyzer.metrics import AGREEMENT
from trt_bisect.analyzer.tasks.task import AGREED, ITEMS, AskedTask, Counts, Judge, Task, each_input, not_told
from trt_bisect.builder.base import Outputs
from trt_bisect.errors import BadInput

_NEARBY = (0.5, 0.6, 0.7, 0.8, 0.9, 1.1, 1.2, 1.3, 1.4, 1.5)
"""The other score thresholds of ``NEARBY``, as factors of the one asked for."""


def detect(asked: AskedTask, reference: Sequence[Outputs]) -> Task:
    """Returns the task for outputs of a detector; see ``find_head``.

    The agreement is ``kept / (kept + lost + invented)``.

    Raises:
        BadInput: the kind of head cannot be found from the outputs.
    """
    head = find_head(reference)
    if head is None:
        raw = undecoded(reference)
        if raw:
            raise BadInput(
                f"--task detect cannot read '{raw}': its scores are probabilities, and its boxes are not decoded.",
                "Export the network with its decoding (YOLOX: --decode_in_inference), or leave out --task.",
            )
        raise not_told(asked.name, reference[0], SUPPORTED)

    def count(before: Sequence[Detections], after: Sequence[Detections]) -> Counts:
        pairs = list(zip_longest(before, after, fillvalue=NO_DETECTIONS))
        kept = sum(number_kept(*pair, asked.iou) for pair in pairs)
        lost = sum(len(wanted) for wanted, _ in pairs) - kept
        invented = sum(len(found) for _, found in pairs) - kept
        return {AGREED: kept, ITEMS: kept + lost + invented, "kept": kept, "lost": lost, "invented": invented}

    def further(total: Counts) -> dict[str, float]:
        return {name: total[name] for name in ("kept", "lost", "invented")}

    def judge_at(threshold: float, reference: Sequence[Outputs]) -> Judge:
        def read(outputs: Outputs) -> list[Detections]:
            above = [image.above(threshold) for image in head.read(outputs)]
            return [suppressed(image, asked.iou) for image in above] if head.needs_nms else above

        return each_input(head.names, read, count, further)(reference)

    def nearby(reference: Sequence[Outputs]) -> Callable[[Sequence[Outputs]], float]:
        judges = [judge_at(factor * asked.score_threshold, reference) for factor in _NEARBY]
        return lambda outputs: fmean(
            judge(dict(enumerate(outputs))).values.get(AGREEMENT.name, 0.0) for judge in judges
        )

    nms = "after NonMaxSuppression" if head.needs_nms else "without NonMaxSuppression"
    note = (
        f"--task {asked.name} reads {head.note}, {nms}; score at least {asked.score_threshold:g}, IoU {asked.iou:g} "
        "or more"
    )
    return Task(asked.entry, note, head.names, partial(judge_at, asked.score_threshold), nearby)


MOST = 3000
"""The most candidates of an image, the best by score; so that outputs that are all noise take no hours."""
_OPSET, _IR = 11, 7


@dataclass(frozen=True)
class Detections:
    """The detections in one image.

    Attributes:
        boxes: two opposite corners, x and y each, in any unit; float64 ``[n, 4]``.
        scores: float64 ``[n]``.
        classes: int64 ``[n]``.
    """

    boxes: np.ndarray
    scores: np.ndarray
    classes: np.ndarray

    def __len__(self) -> int:
        return len(self.scores)

    def at(self, places: np.ndarray) -> Detections:
        """Returns some of the detections, by indices or by a mask."""
        return Detections(self.boxes[places], self.scores[places], self.classes[places])

    def above(self, threshold: float) -> Detections:
        """Returns the detections that score at least ``threshold``, at most ``MOST``, the best first."""
        order = np.argsort(-self.scores, kind="stable")
        return self.at(order[self.scores[order] >= threshold][:MOST])


NO_DETECTIONS = Detections(np.zeros((0, 4)), np.zeros(0), np.zeros(0, np.int64))


def corners(centred: np.ndarray) -> np.ndarray:
    """Returns boxes given as centre and size, ``[n, 4]``, as two corners."""
    middle, half = centred[:, :2], centred[:, 2:] / 2.0
    return np.concatenate([middle - half, middle + half], axis=-1)


def suppressed(found: Detections, iou: float) -> Detections:
    """Returns the detections that ONNX Runtime's NonMaxSuppression keeps, each class by itself.

    Args:
        found: candidates with scores above 0.
        iou: a box that overlaps a better one of its class by more than this is removed.
    """
    if not len(found):
        return found
    known, rows = np.unique(found.classes, return_inverse=True)
    scores = np.zeros((1, len(known), len(found)), np.float32)
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
    """Returns a session of the operator NonMaxSuppression alone."""
    types = {"boxes": TensorProto.FLOAT, "scores": TensorProto.FLOAT, "most": TensorProto.INT64}
    types |= {"iou": TensorProto.FLOAT, "least": TensorProto.FLOAT}
    inputs = [helper.make_tensor_value_info(name, kind, None) for name, kind in types.items()]
    chosen = helper.make_tensor_value_info("chosen", TensorProto.INT64, [None, 3])
    graph = helper.make_graph([helper.make_node("NonMaxSuppression", list(types), ["chosen"])], "nms", inputs, [chosen])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR)
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def overlaps(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Returns intersection over union of each box with each other box.

    Args:
        one: two corners, ``[n, 4]``.
        other: likewise, ``[m, 4]``.

    Returns:
        float64 ``[n, m]``; 0 where both boxes have no area.
    """
    low, high = np.maximum(one[:, None, :2], other[:, :2]), np.minimum(one[:, None, 2:], other[:, 2:])
    shared = np.prod(np.maximum(high - low, 0.0), axis=-1)
    areas = [np.prod(np.maximum(boxes[:, 2:] - boxes[:, :2], 0.0), axis=-1) for boxes in (one, other)]
    union = areas[0][:, None] + areas[1] - shared
    return np.asarray(np.divide(shared, union, out=np.zeros_like(shared), where=union > 0.0))


def number_kept(before: Detections, after: Detections, iou: float) -> int:
    """Returns the number of detections of ``before`` that ``after`` has too.

    From the best score on, each takes the free detection of its class that overlaps it most, by ``iou`` at least.
    """
    if not len(before) or not len(after):
        return 0
    same = before.classes[:, None] == after.classes
    shared = np.where(same, overlaps(before.boxes, after.boxes), 0.0)
    kept = 0
    for place in np.argsort(-before.scores, kind="stable"):
        best = int(shared[place].argmax())
        if shared[place, best] >= iou:
            kept += 1
            shared[:, best] = 0.0
    return kept


SUPPORTED = (
    "YOLO v5 [B, N, 5 + C], YOLO v8 to v11 [B, 4 + C, N], boxes [B, N, 4] with scores [B, N, C] (SSD, DETR, RT-DETR), "
    "and final detections: [B, N, 6], [N, 7], or boxes, scores and labels"
)
QUERIES = 1000
"""Up to so many candidates with boxes in 0..1 are the queries of a DETR, which need no NonMaxSuppression."""
_TOLERANCE = 1e-3
_NEARLY_ALL = 0.99
_MIDDLE = 0.1
"""The median of the candidates' centres is at least this part of the largest one, on both axes."""

Read = Callable[[Outputs], list[Detections]]


@dataclass(frozen=True)
class Head:
    """A way to read outputs as detections.

    Attributes:
        names: the outputs that are read.
        note: the way they are read, for the user.
        read: from the outputs for one input to the candidates in each image, each with its best class alone.
        needs_nms: the candidates of one object are many.
        is_ready: the candidates are detections, which the network has chosen itself.
    """

    names: tuple[str, ...]
    note: str
    read: Read
    needs_nms: bool
    is_ready: bool = False


def find_head(reference: Sequence[Outputs]) -> Head | None:
    """Returns the head that fits the FP32 outputs of every input; None if none does."""
    for fitting in (_lists, _table, _boxes_and_scores, _yolo):
        head = fitting(reference)
        if head is not None:
            return head
    return None


def _rows(reference: Sequence[Outputs], name: str) -> np.ndarray:
    """Returns the values of an output for all inputs together, float64 ``[rows, last axis]``."""
    each = [np.asarray(outputs[name], np.float64) for outputs in reference]
    return np.concatenate([array.reshape(-1, array.shape[-1]) for array in each])


def _differ(reference: Sequence[Outputs], name: str, axis: int) -> bool:
    """Returns true if an axis of an output has not the same length for all inputs."""
    return len({outputs[name].shape[axis] for outputs in reference}) > 1


def _integral(values: np.ndarray) -> bool:
    return bool((values == np.round(values)).all() and (values >= -1).all())


def _shares(values: np.ndarray) -> bool:
    return bool(((values >= -_TOLERANCE) & (values <= 1.0 + _TOLERANCE)).all())


def _sum_to_one(rows: np.ndarray) -> bool:
    return _shares(rows) and np.allclose(rows.sum(axis=-1), 1.0, rtol=0.0, atol=1e-2)


def _are_classes(reference: Sequence[Outputs], name: str) -> bool:
    """Returns true if an output has probabilities alone, of classes along one of its last two axes."""
    arrays = [np.asarray(outputs[name], np.float64) for outputs in reference]
    return any(all(_sum_to_one(array.swapaxes(axis, -1)) for array in arrays) for axis in (-1, -2))


def ends_with(best: Iterable[np.ndarray], last: int) -> bool:
    """Returns true if a class ends sequences: it stands behind the other classes of each, and nowhere else.

    Args:
        best: the best class of each step, an array for each sequence.
        last: the class.
    """
    others = [np.flatnonzero(steps != last) for steps in best]
    return any(map(len, others)) and all(not len(places) or places[-1] == len(places) - 1 for places in others)


def _spread(centres: np.ndarray) -> bool:
    """Returns true if centres ``[n, 2]`` are spread over the image, as those of candidates: scores are near 0."""
    return bool((np.median(centres, axis=0) >= _MIDDLE * centres.max(axis=0)).all()) if len(centres) else True


def _in_order(boxes: np.ndarray) -> bool:
    """Returns true if the second corners of nearly all boxes lie behind the first."""
    return bool(np.mean((boxes[:, 2:] >= boxes[:, :2]).all(axis=-1)) >= _NEARLY_ALL) if len(boxes) else True


def _sized(boxes: np.ndarray) -> bool:
    """Returns true if the last two values of nearly all boxes can be sizes."""
    return bool(np.mean((boxes[:, 2:] >= 0.0).all(axis=-1)) >= _NEARLY_ALL) if len(boxes) else True


# Detections that are ready, each column an output of its own.


def _lists(reference: Sequence[Outputs]) -> Head | None:
    first = reference[0]
    boxes = next((n for n, v in first.items() if v.ndim in (2, 3) and v.shape[-1] == 4 and v.dtype.kind == "f"), None)
    if boxes is None:
        return None
    fitting = {n: _flat(reference, n) for n, v in first.items() if n != boxes and v.shape == first[boxes].shape[:-1]}
    whole = [n for n, values in fitting.items() if _integral(values)]
    labels = next((n for n in whole if first[n].dtype.kind in "iu"), whole[0] if whole else None)
    scores = next((n for n in fitting if n != labels and first[n].dtype.kind == "f" and _shares(fitting[n])), None)
    if labels is None or scores is None or not _in_order(_rows(reference, boxes)):
        return None
    images = len(first[boxes]) if first[boxes].ndim == 3 else 1
    rest = [n for n in first if n not in (boxes, labels, scores) and first[n].size == images]
    number = next((n for n in rest if _integral(_flat(reference, n))), None)

    def read(outputs: Outputs) -> list[Detections]:
        each = [outputs[name] if outputs[boxes].ndim == 3 else outputs[name][None] for name in (boxes, scores, labels)]
        counts = [None] * len(each[0]) if number is None else [int(n) for n in np.ravel(outputs[number])]
        images = zip(*each, counts, strict=True)
        return [_detections(own[:n], scored[:n], named[:n]) for own, scored, named, n in images]

    names = tuple(name for name in (boxes, scores, labels, number) if name is not None)
    return Head(names, f"'{boxes}', '{scores}', '{labels}' as boxes, scores and labels", read, False, True)


def _flat(reference: Sequence[Outputs], name: str) -> np.ndarray:
    return np.concatenate([np.ravel(outputs[name]).astype(np.float64) for outputs in reference])


def _detections(boxes: np.ndarray, scores: np.ndarray, labels: np.ndarray) -> Detections:
    return Detections(np.asarray(boxes, np.float64), np.asarray(scores, np.float64), labels.astype(np.int64))


# Detections that are ready, as rows of one output.


@dataclass(frozen=True)
class _Columns:
    """The columns of a row: of the first box value, the score, the label, and the image, if there is one."""

    width: int
    box: int
    score: int
    label: int
    image: int | None = None


_COLUMNS = {
    "x1 y1 x2 y2 score class": _Columns(6, 0, 4, 5),
    "class score x1 y1 x2 y2": _Columns(6, 2, 1, 0),
    "image x1 y1 x2 y2 class score": _Columns(7, 1, 6, 5, 0),
    "image class score x1 y1 x2 y2": _Columns(7, 3, 2, 1, 0),
}


def _table(reference: Sequence[Outputs]) -> Head | None:
    for name, value in reference[0].items():
        if value.ndim < 2 or value.dtype.kind != "f" or _differ(reference, name, -1):
            continue
        for title, columns in _COLUMNS.items():
            if value.shape[-1] == columns.width and _fits(_rows(reference, name), columns):
                return _table_head(name, title, columns)
    return None


def _fits(rows: np.ndarray, columns: _Columns) -> bool:
    found = rows[rows[:, columns.score] > 0.0]
    boxes = found[:, columns.box : columns.box + 4]
    whole = [columns.label] if columns.image is None else [columns.label, columns.image]
    return _shares(rows[:, columns.score]) and _integral(found[:, whole]) and bool(_in_order(boxes))


def _table_head(name: str, title: str, columns: _Columns) -> Head:
    def read(outputs: Outputs) -> list[Detections]:
        values = outputs[name]
        if columns.image is None:
            images = list(values.reshape(-1, *values.shape[-2:]))
        else:
            rows = values.reshape(-1, columns.width)
            images = [rows[rows[:, columns.image] == k] for k in range(int(rows[:, columns.image].max(initial=0)) + 1)]
        return [
            _detections(rows[:, columns.box : columns.box + 4], rows[:, columns.score], rows[:, columns.label])
            for rows in images
        ]

    return Head((name,), f"'{name}' as rows of {title}", read, False, True)


# Candidates: boxes in one output, scores in another.


def _boxes_and_scores(reference: Sequence[Outputs]) -> Head | None:
    first = reference[0]
    fours = [n for n, v in first.items() if v.dtype.kind == "f" and v.ndim in (3, 4) and v.shape[-1] == 4]
    forms = {
        name: "corners" if _in_order(rows) else "centres" if _sized(rows) else None
        for name, rows in ((name, _rows(reference, name)) for name in fours)
    }
    for boxes in sorted(fours, key=lambda name: (_sum_to_one(_rows(reference, name)), forms[name] != "corners")):
        form, many = forms[boxes], _candidates(first[boxes])
        rows = _rows(reference, boxes)
        if form is None or not _spread((rows[:, :2] + rows[:, 2:]) / 2 if form == "corners" else rows[:, :2]):
            continue
        others = {name: value for name, value in first.items() if name != boxes}
        fitting = [n for n, v in others.items() if v.dtype.kind == "f" and v.ndim == 3 and many in v.shape[1:]]
        fitting.sort(key=lambda name: not _shares(_flat(reference, name)))
        head = _separate_head(reference, boxes, fitting[0], form) if fitting else None
        if head is not None:
            return head
    return None


def _candidates(boxes: np.ndarray) -> int:
    """Returns N of boxes ``[B, N, 4]`` or ``[B, N, 1, 4]``."""
    return int(np.prod(boxes.shape[1:-1]))


def _separate_head(reference: Sequence[Outputs], boxes: str, scores: str, form: str) -> Head | None:
    """Returns the head for boxes and scores; None if the scores are those of a sequence's steps, as of table tokens."""
    many = _candidates(reference[0][boxes])

    def by_candidate(outputs: Outputs) -> np.ndarray:
        values = np.asarray(outputs[scores], np.float64)
        return values if values.shape[1] == outputs[boxes].shape[1] else values.transpose(0, 2, 1)

    columns = np.concatenate(
        [by_candidate(outputs).reshape(-1, by_candidate(outputs).shape[-1]) for outputs in reference]
    )
    kind, background = _kind_of_scores(columns)
    steps = [row for outputs in reference for row in by_candidate(outputs).argmax(axis=-1)]
    if kind == "probabilities" and background is not None and ends_with(steps, background):
        return None
    make = _TO_SHARES[kind]

    def read(outputs: Outputs) -> list[Detections]:
        images = np.asarray(outputs[boxes], np.float64).reshape(len(outputs[boxes]), -1, 4)
        shares = make(by_candidate(outputs))
        if background is not None:
            shares[..., background] = 0.0
        placed = map(corners, images) if form == "centres" else images
        return [_best_class(each, own) for each, own in zip(placed, shares, strict=True)]

    queries = _are_queries(_rows(reference, boxes), many)
    last = "" if background is None else f", class {background} the background"
    note = f"'{boxes}' as boxes ({form}) and '{scores}' as scores ({kind}{last})"
    return Head((boxes, scores), note, read, not (queries and form == "centres"))


def _are_queries(boxes: np.ndarray, many: int) -> bool:
    within_image = ((boxes >= -0.05) & (boxes <= 1.05)).all(axis=-1)
    return many <= QUERIES and bool(np.mean(within_image) >= _NEARLY_ALL)


def _best_class(boxes: np.ndarray, shares: np.ndarray) -> Detections:
    """Returns a candidate for each row of class scores ``[N, C]``, with its best class alone."""
    return Detections(boxes, shares.max(axis=-1), shares.argmax(axis=-1))


def _kind_of_scores(scores: np.ndarray) -> tuple[str, int | None]:
    """Returns the kind of class scores ``[n, C]``, and the class that is the background, if there is one.

    Probabilities that sum to 1 have a background, the more frequent of the first and the last class. Logits have one,
    and go through a softmax, if that class is the largest and above 0 in more than half of the rows; otherwise they go
    through a sigmoid each.
    """
    ends = (0, scores.shape[-1] - 1)
    best = scores.argmax(axis=-1)
    often = [float(np.mean((best == end) & (scores[:, end] > 0.0))) for end in ends]
    end = ends[int(np.argmax(often))]
    if _shares(scores):
        return "probabilities", end if scores.shape[-1] > 1 and _sum_to_one(scores) else None
    return ("logits, softmax", end) if scores.shape[-1] > 1 and max(often) > 0.5 else ("logits, sigmoid", None)


_TO_SHARES: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "probabilities": np.array,
    "logits, softmax": softmax,
    "logits, sigmoid": sigmoid,
}

# Candidates as rows or columns of one output.


def _yolo(reference: Sequence[Outputs]) -> Head | None:
    first = reference[0]
    for name, value in first.items():
        if value.dtype.kind != "f" or value.ndim != 3 or _are_classes(reference, name):
            continue
        masks = [other.shape[1] for other in first.values() if other.ndim == 4]
        for last in (True, False):
            many, axis = value.shape[1 if last else 2], 2 if last else 1
            if _differ(reference, name, axis):
                continue
            rows = np.concatenate([_turned(outputs[name], last) for outputs in reference])
            heads = (_yolo_head(name, rows[:, : rows.shape[-1] - extra], last, many, extra) for extra in (0, *masks))
            head = next((head for head in heads if head is not None), None)
            if head is not None:
                return head
    return None


def undecoded(reference: Sequence[Outputs]) -> str:
    """Returns the output ``[B, N, 4 + ...]``, or turned, with scores that are probabilities and boxes that are none.

    Their sizes are negative: they are offsets to anchors or logarithms. Empty if there is no such output.
    """
    for name, value in reference[0].items():
        for last in (True, False):
            if value.ndim != 3 or value.dtype.kind != "f" or _differ(reference, name, 2 if last else 1):
                continue
            rows = np.concatenate([_turned(outputs[name], last) for outputs in reference])
            width = rows.shape[-1]
            if 5 <= width <= value.size // width and _shares(rows[:, 4:]) and not _sized(_surest(rows)[:, :4]):
                return name
    return ""


def _turned(value: np.ndarray, last: bool) -> np.ndarray:
    """Returns the candidates of all images as float64 ``[rows, columns]``."""
    rows = value if last else value.transpose(0, 2, 1)
    return np.asarray(rows.reshape(-1, rows.shape[-1]), np.float64)


def _surest(rows: np.ndarray) -> np.ndarray:
    """Returns the tenth of the candidates with the highest scores: a head without DFL trains no other boxes."""
    scores = rows[:, 4:].max(axis=-1)
    return np.asarray(rows[scores >= np.quantile(scores, 0.9)])


def _yolo_head(name: str, rows: np.ndarray, last: bool, many: int, extra: int) -> Head | None:
    """Returns the head for candidates ``[rows, columns]``, masks' coefficients left out; None if they are none."""
    width = rows.shape[-1]
    if width < 5 or many < width or not (_sized(_surest(rows)[:, :4]) and _shares(rows[:, 4:])):
        return None
    if not _spread(rows[:, :2]):
        return None
    queries = _are_queries(rows[:, :4], many)
    objectness = last and width > 5 and not queries

    def read(outputs: Outputs) -> list[Detections]:
        images = []
        for candidates in (_turned(image[None], last) for image in outputs[name]):
            scores = candidates[:, 4:width]
            shares = scores[:, 1:] * scores[:, :1] if objectness else scores
            images.append(_best_class(corners(candidates[:, :4]), shares))
        return images

    classes = width - 4 - objectness
    what = "YOLO v5 candidates: cx cy w h, objectness" if objectness else "candidates: cx cy w h"
    unread = f"; {extra} mask coefficients are not judged" if extra else ""
    return Head((name,), f"'{name}' as {what}, {classes} classes{unread}", read, not queries)
