"""Detection: the detections that are kept, lost and invented, compared with FP32's."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from trt_bisect.analyzer.classes import sigmoid, softmax
from trt_bisect.analyzer.tasks.detections import Detections, Head, best_class, box_overlaps, corners, found_task
from trt_bisect.analyzer.tasks.layouts import (
    ANCHORS,
    NEARLY_ALL,
    READY,
    Layout,
    Placed,
    anchored_head,
    are_corners,
    are_in_order,
    are_integral,
    are_shares,
    are_sized,
    are_spread,
    fitting_layouts,
    named_layout,
    parse_layout,
    raw_head,
    rows_either_way,
    sums_of_one,
    surest,
)
from trt_bisect.analyzer.tasks.task import AskedTask, Task, not_told
from trt_bisect.builder.base import Outputs
from trt_bisect.errors import BadInput


def detect(asked: AskedTask, reference: Sequence[Outputs]) -> Task:
    """Returns the detection task for FP32's outputs by input; the agreement is ``kept / (kept + lost + invented)``.
    Raises BadInput if no detection head fits.
    """
    return found_task(asked, detector_head(asked, reference), "IoU", box_overlaps, reference[0])


def detector_head(asked: AskedTask, reference: Sequence[Outputs]) -> Head:
    """Returns the detection head that the user names (``asked.head``), or that fits FP32's outputs by input; raises
    BadInput if there is none.
    """
    named = asked.head or ""
    layout = parse_layout(named) if named and named not in (*ANCHORS, *SCORES) else None
    if named in ANCHORS:
        head = anchored_head(reference, named)
    elif named in SCORES:
        head = _boxes_and_scores(reference, named)
    elif layout is None:
        head = find_head(reference)
    elif "dfl" in layout.shapes:
        head = raw_head(reference, layout)
    else:
        head = placed_head(named_layout(layout, reference))
    if head is None:
        raw = undecoded(reference)
        if raw:
            raise BadInput(
                f"--task detect cannot read '{raw}': its scores are probabilities, and its boxes are not decoded.",
                "Export the network with its decoding (YOLOX: --decode_in_inference), or leave out --task.",
            )
        ways = [] if named else [kind for kind in SCORES if _boxes_and_scores(reference, kind) is not None]
        raise not_told(asked, reference, SUPPORTED, ways)
    return head


SCORES = ("sigmoid", "background-first", "background-last")
"""The values of ``--head`` for boxes and scores: independent probabilities, or the class that is the background."""
SUPPORTED = (
    "YOLO v5 [B, N, 5 + C], YOLO v8 to v11 [B, 4 + C, N], boxes [B, N, 4] with scores [B, N, C] (SSD, DETR, RT-DETR), "
    "final detections: [B, N, 6], [N, 7], or boxes, scores and labels, and raw maps of several scales, [B, 64, H, W] "
    "next to [B, C, H, W], or [B, 64 + C, H, W] with --head dfl:16,classes:C, or [B, 3 * (5 + C), H, W] or "
    "[B, 3, H, W, 5 + C] with --head yolov5 or yolov7"
)
_Y_FIRST = "detection_boxes"
QUERIES = 1000
"""Up to this many candidates with boxes in 0..1 can be queries of a DETR, which need no NonMaxSuppression."""


def find_head(reference: Sequence[Outputs]) -> Head | None:
    """Returns the first known detection head that fits the FP32 outputs of every input; None if none fits. Raises
    BadInput if another output has channels for each cell of raw maps.
    """
    for fitting in (ready_lists, _table, _rows_with_masks, _boxes_and_scores, _yolo, raw_head):
        head = fitting(reference)
        if head is not None:
            return head
    return None


def _rows(reference: Sequence[Outputs], name: str) -> np.ndarray:
    arrays = [np.asarray(outputs[name], np.float64) for outputs in reference]
    return np.concatenate([array.reshape(-1, array.shape[-1]) for array in arrays])


def _are_classes(reference: Sequence[Outputs], name: str) -> bool:
    arrays = [np.asarray(outputs[name], np.float64) for outputs in reference]
    return any(all(sums_of_one(array.swapaxes(axis, -1)) for array in arrays) for axis in (-1, -2))


def ends_with(best: Iterable[np.ndarray], last: int) -> bool:
    """Returns true if class ``last`` only fills the ends of sequences: no other class follows it, and some sequence has
    another. ``best`` has each sequence's best class at each step.
    """
    others = [np.flatnonzero(steps != last) for steps in best]
    return any(map(len, others)) and all(not len(places) or places[-1] == len(places) - 1 for places in others)


# Detections that are ready, each column an output of its own.


def ready_lists(reference: Sequence[Outputs]) -> Head | None:
    """Returns the head for final detections with boxes, scores and labels in three outputs; None for other outputs."""
    first = reference[0]
    boxes = next((n for n, v in first.items() if v.ndim in (2, 3) and v.shape[-1] == 4 and v.dtype.kind == "f"), None)
    if boxes is None:
        return None
    fitting = {n: _flat(reference, n) for n, v in first.items() if n != boxes and v.shape == first[boxes].shape[:-1]}
    # Corners are x first, except in outputs named as TensorFlow's object detection does.
    integral = [n for n, values in fitting.items() if are_integral(values)]
    labels = min(integral, key=lambda n: first[n].dtype.kind not in "iu", default=None)
    scored = [n for n in fitting if n != labels and first[n].dtype.kind == "f" and are_shares(fitting[n])]
    if labels is None or len(scored) != 1 or not are_in_order(_rows(reference, boxes)):
        return None
    scores = scored[0]
    images = len(first[boxes]) if first[boxes].ndim == 3 else 1
    of_image = [n for n in first if n not in (boxes, labels, scores) and first[n].size == images]
    number = next((n for n in of_image if are_integral(_flat(reference, n))), None)
    order = [1, 0, 3, 2] if boxes.startswith(_Y_FIRST) else [0, 1, 2, 3]

    def read(outputs: Outputs) -> list[Detections]:
        lists = [outputs[name] if outputs[boxes].ndim == 3 else outputs[name][None] for name in (boxes, scores, labels)]
        counts = [None] * len(lists[0]) if number is None else [int(n) for n in np.ravel(outputs[number])]
        return [_detections(b[:n, order], s[:n], c[:n]) for b, s, c, n in zip(*lists, counts, strict=True)]

    names = tuple(name for name in (boxes, scores, labels, number) if name is not None)
    return Head(names, f"'{boxes}', '{scores}', '{labels}' as boxes, scores and labels", read, False, True)


def _flat(reference: Sequence[Outputs], name: str) -> np.ndarray:
    return np.concatenate([np.ravel(outputs[name]).astype(np.float64) for outputs in reference])


def _detections(boxes: np.ndarray, scores: np.ndarray, labels: np.ndarray) -> Detections:
    return Detections(np.asarray(boxes, np.float64), np.asarray(scores, np.float64), labels.astype(np.int64))


# Detections that are ready, as rows of one output.


# The columns of a row, in groups, for each known table. Boxes of centre and size are shares of the image.
_TABLES = {
    "x1 y1 x2 y2 score class": READY,
    "class score x1 y1 x2 y2": "class,score,xyxy",
    "image x1 y1 x2 y2 class score": "image,xyxy,class,score",
    "image class score x1 y1 x2 y2": "image,class,score,xyxy",
    "cx cy w h score class": "xywh,score,class",
}


def _table(reference: Sequence[Outputs]) -> Head | None:
    for name, value in reference[0].items():
        if value.ndim > 1 and value.dtype.kind == "f" and len({outputs[name].shape[-1] for outputs in reference}) == 1:
            rows = _rows(reference, name)
            for title in _TABLES:
                head = _table_head(name, title, rows)
                if head is not None:
                    return head
    return None


def _table_head(name: str, title: str, every: np.ndarray) -> Head | None:
    layout = Layout(_TABLES[title])
    if every.shape[-1] != layout.width:
        return None
    scores = layout.of("score", every)
    chosen = every[scores[:, 0] > 0.0]
    are_placed = are_shares(layout.of("xywh", chosen)) and are_corners(layout.of("xyxy", chosen))
    are_whole = are_integral(layout.of("class", chosen)) and are_integral(layout.of("image", chosen))
    if not (are_placed and are_shares(scores) and are_whole):
        return None

    def read(outputs: Outputs) -> list[Detections]:
        values = np.asarray(outputs[name], np.float64)
        images = list(values.reshape(-1, *values.shape[-2:]))
        if "image" in layout.shapes:
            rows = values.reshape(-1, layout.width)
            of_image = layout.of("image", rows)[:, 0]
            images = [rows[of_image == k] for k in range(int(of_image.max(initial=0)) + 1)]
        return [layout.read(rows, "") for rows in images]

    return Head((name,), f"'{name}' as rows of {title}", read, False, True)


def _rows_with_masks(reference: Sequence[Outputs]) -> Head | None:
    sizes = {value.shape[1] for value in reference[0].values() if value.ndim == 4}
    columns = [Layout(f"{READY},masks:{size}") for size in sizes if size > 1]
    places = fitting_layouts(reference, lambda *_: columns)
    if len(places) != 1:
        return None
    return placed_head(places[0], f"; {places[0].layout.more_width} mask coefficients are not judged")


def placed_head(placed: Placed, remark: str = "", kind: str = "") -> Head:
    """Returns the detection head for an output with a known layout. ``remark`` is added to the head's note for the
    user; the columns ``kind``, such as ``keypoints``, become ``Detections.more`` (empty: none).
    """
    is_ready, note = placed.layout.is_ready, f"'{placed.output}' as rows of {placed.layout}{remark}"
    return Head((placed.output,), note, lambda o: placed.read(o, kind), not is_ready, is_ready)


# Candidates: boxes in one output, scores in another.


def _boxes_and_scores(reference: Sequence[Outputs], kind: str = "") -> Head | None:
    first = reference[0]
    fours = [n for n, v in first.items() if v.dtype.kind == "f" and v.ndim in (3, 4) and v.shape[-1] == 4]
    by_name = {name: _rows(reference, name) for name in fours}
    for boxes in sorted(fours, key=lambda name: (sums_of_one(by_name[name]), not are_in_order(by_name[name]))):
        form, many, rows = "corners", math.prod(first[boxes].shape[1:-1]), by_name[boxes]
        centres = (rows[:, :2] + rows[:, 2:]) / 2
        if not are_in_order(rows):
            form, centres = "centres", rows[:, :2]
        if not (form == "corners" or are_sized(rows)) or not are_spread(centres):
            continue
        others = {name: value for name, value in first.items() if name != boxes}
        fitting = [n for n, v in others.items() if v.dtype.kind == "f" and v.ndim == 3 and many in v.shape[1:]]
        heads = {name: head for name in fitting if (head := _separate_head(reference, boxes, name, form, kind))}
        if len(heads) > 1:
            heads = {name: head for name, head in heads.items() if name not in fours}
        if heads:
            return next(iter(heads.values())) if len(heads) == 1 else None
    return None


def _separate_head(reference: Sequence[Outputs], boxes: str, scores: str, form: str, asked_kind: str) -> Head | None:
    # None if the scores look like those of a sequence's steps, or are of unclear kind.

    def by_candidate(outputs: Outputs) -> np.ndarray:
        values = np.asarray(outputs[scores], np.float64)
        is_last = values.shape[1] == outputs[boxes].shape[1]
        return values if is_last else values.transpose(0, 2, 1)

    scored = [by_candidate(outputs) for outputs in reference]
    columns = np.concatenate([values.reshape(-1, values.shape[-1]) for values in scored])
    kind, background = _kind_of_scores(columns, asked_kind)
    steps = [image.argmax(axis=-1) for values in scored for image in values]
    if not kind or (kind == "probabilities" and background is not None and ends_with(steps, background)):
        return None
    make = _TO_SHARES[kind]
    queries = form == "centres" and _are_queries(_rows(reference, boxes), math.prod(reference[0][boxes].shape[1:-1]))
    best = _best_pairs if queries and background is None else best_class

    def read(outputs: Outputs) -> list[Detections]:
        images = np.asarray(outputs[boxes], np.float64).reshape(len(outputs[boxes]), -1, 4)
        shares = make(by_candidate(outputs))
        if background is not None:
            shares[..., background] = 0.0
        placed = map(corners, images) if form == "centres" else images
        return [best(*image) for image in zip(placed, shares, strict=True)]

    last = "" if background is None else f", class {background} the background"
    note = f"'{boxes}' as boxes ({form}) and '{scores}' as scores ({kind}{last})"
    return Head((boxes, scores), note, read, not queries)


def _are_queries(boxes: np.ndarray, many: int) -> bool:
    within_image = ((boxes >= -0.05) & (boxes <= 1.05)).all(axis=-1)
    return many <= QUERIES and bool(np.mean(within_image) >= NEARLY_ALL)


def _best_pairs(boxes: np.ndarray, shares: np.ndarray) -> Detections:
    # As many pairs of row and class as rows, the best. Source: RT-DETR, Deformable DETR and D-FINE.
    order = np.argsort(-shares.ravel(), kind="stable")[: len(boxes)]
    rows, classes = np.divmod(order, shares.shape[-1])
    return Detections(boxes[rows], shares[rows, classes], classes)


def _kind_of_scores(scores: np.ndarray, named: str = "") -> tuple[str, int | None]:
    last = scores.shape[-1] - 1
    shares = are_shares(scores)
    if named or not last:
        background = {"background-first": 0, "background-last": last}.get(named)
    else:
        # Scores that sum to 1, and logits for a softmax, have a background: the first or last class, the best in most
        # candidates. Training keeps the mean of a candidate's logits, so the best logit of a softmax is mostly above 0,
        # of a sigmoid below.
        above, best = shares | (scores.max(axis=-1) > 0.0), scores.argmax(axis=-1)
        background = next((end for end in (0, last) if np.mean((best == end) & above) > 0.5), None)
        if background is None and (sums_of_one(scores) if shares else np.mean(above) > 0.5):
            return "", None
    if shares:
        return "probabilities", background if named or sums_of_one(scores) else None
    return ("logits, sigmoid" if background is None else "logits, softmax"), background


_TO_SHARES: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "probabilities": np.array,
    "logits, softmax": softmax,
    "logits, sigmoid": sigmoid,
}

# Candidates as rows or columns of one output.


_REACH = 0.5  # The centres of a grid of candidates, as shares of the image, reach at least this far on both axes.


def _yolo(reference: Sequence[Outputs]) -> Head | None:
    masks = [value.shape[1] for value in reference[0].values() if value.ndim == 4]
    for name, last, many, rows in rows_either_way(reference):
        if _are_classes(reference, name):
            continue
        for extra in (0, *masks):
            head = _yolo_head(name, rows[:, : rows.shape[-1] - extra], last, many, extra)
            if head is not None:
                return head
    return None


def undecoded(reference: Sequence[Outputs]) -> str:
    """Returns the name of an output with scores as probabilities, but undecoded boxes; empty without one."""
    for name, _, _, rows in rows_either_way(reference):
        width = rows.shape[-1]
        # Undecoded sizes are offsets to anchors or logarithms, and can be negative.
        is_wide = 5 <= width <= reference[0][name].size // width
        if is_wide and are_shares(rows[:, 4:]) and not are_sized(surest(rows)[:, :4]):
            return name
    return ""


def _yolo_head(name: str, rows: np.ndarray, last: bool, many: int, extra: int) -> Head | None:
    # rows: all values without mask coefficients, [rows, columns].
    width = rows.shape[-1]
    if width < 5 or many < width or not (are_sized(surest(rows)[:, :4]) and are_shares(rows[:, 4:])):
        return None
    if not are_spread(rows[:, :2]) or (last and width > 5 and are_integral(rows[:, 5])):
        return None
    centres = rows[:, :2]
    if are_shares(centres) and (np.ptp(centres, axis=0) < _REACH).any():
        return None  # shares that stay together are scores
    queries = _are_queries(rows[:, :4], many)
    objectness = last and width > 5 and not queries
    classes = width - 4 - objectness
    before, what = "xywh", "candidates: cx cy w h"
    if objectness:
        before, what = "xywh,objectness", "YOLO v5 candidates: cx cy w h, objectness"
    placed = Placed(name, Layout(f"{before},classes:{classes}"), last)
    unread = f"; {extra} mask coefficients are not judged" if extra else ""
    note = f"'{name}' as {what}, {classes} classes{unread}"
    return Head((name,), note, lambda outputs: placed.read(outputs, ""), not queries)
