"""Poses, oriented boxes and instance masks: detections compared by more than the overlap of boxes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from trt_bisect.analyzer.tasks.detect import placed_head, ready_lists
from trt_bisect.analyzer.tasks.detections import (
    FINEST,
    Detections,
    Head,
    areas_of,
    found_task,
    over_union,
    rotated,
    shortest_side,
)
from trt_bisect.analyzer.tasks.layouts import (
    BINS,
    NEARLY_ALL,
    READY,
    Layout,
    MakeLayouts,
    Placed,
    about_boxes,
    are_shares,
    fitting_layouts,
    named_layout,
    parse_layout,
    raw_head,
    turned,
)
from trt_bisect.analyzer.tasks.task import AskedTask, Task, not_told
from trt_bisect.builder.base import Outputs
from trt_bisect.errors import BadInput

POSE_OUTPUTS = (
    "YOLO v8 to v11 [B, 4 + C + 3 K, N] or [B, 4 + C + 2 K, N], and final poses, [B, N, 6 + 3 K] or [B, N, 6 + 2 K], "
    "in pixels, and boxes, scores, labels and keypoints [N, K, 3], or the columns that you name: --head "
    "xywh,classes:1,keypoints:17x3; of raw maps --head dfl:16,classes:1,keypoints:17x3"
)
# The spread of people's annotations of COCO's 17 keypoints, in thousandths of an object's size.
_COCO = (26, 25, 25, 35, 35, 79, 79, 72, 72, 62, 62, 107, 107, 87, 87, 89, 89)
_AREA = 0.53  # The area of an object as a share of its box's, as in Ultralytics.
SEEN = 0.5


def pose(asked: AskedTask, reference: Sequence[Outputs]) -> Task:
    """Returns the task for poses in FP32's outputs by input: two poses are the same if their object keypoint similarity
    is ``asked.iou`` or more. Raises BadInput if no layout with keypoints fits, or several do.
    """

    def layouts(rows: np.ndarray, last: bool) -> Iterator[Layout]:
        classes = next((k for k in range(4, rows.shape[1]) if not are_shares(rows[:, k])), rows.shape[1])
        for values in (3, 2):
            for before in (READY, *_scored(classes - 4, last)):
                points = (rows.shape[1] - Layout(before).width) // values
                if points > 0:
                    yield Layout(f"{before},keypoints:{points}x{values}")

    head = _beside_lists(asked, reference, "keypoints") or _raw(asked, reference, "keypoints")
    if head is None:
        placed = _placed(asked, reference, "keypoints", layouts)
        count, _ = placed.layout.shapes["keypoints"]
        sigmas = "sigmas of COCO" if count == len(_COCO) else f"sigmas of 1/{count}"
        head = placed_head(placed, f" ({count} keypoints, {sigmas})", "keypoints")
    return found_task(asked, head, "OKS", key_similarity, reference[0])


def key_similarity(before: Detections, after: Detections) -> np.ndarray:
    """Returns COCO's object keypoint similarity of each pose in ``before`` with each in ``after``, ``[n, m]``.

    Keypoints visible in neither pose do not count, unless none is visible in ``before``; one visible in only one pose
    has similarity 0.
    """
    points, others = before.more, after.more
    sigmas = sigmas_of(points.shape[1])
    areas = _AREA * areas_of(before.boxes)
    squares = np.sum((points[:, None, :, :2] - others[None, :, :, :2]) ** 2, axis=-1)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        near = np.exp(-squares / (8 * sigmas**2 * areas[:, None, None]))
    near = np.where(squares == 0.0, 1.0, near)
    seen, other_seen = ((poses[..., 2:] >= SEEN).any(axis=-1) for poses in (points[:, None], others[None]))
    counts = seen | other_seen | ~seen.any(axis=-1, keepdims=True)
    alike = np.where(counts & (seen == other_seen), near, 0.0)
    return np.asarray(alike.sum(axis=-1) / counts.sum(axis=-1))


def sigmas_of(count: int) -> np.ndarray:
    """Returns the tolerance of each keypoint as a share of an object's size: COCO's for 17, else 1 / count."""
    if count == len(_COCO):
        return np.array(_COCO) / 1000
    return np.full(count, 1 / count)


OBB_OUTPUTS = (
    "YOLO v8 to v11 [B, 4 + C + 1, N], and final oriented boxes, [B, N, 7]: cx cy w h score class angle, or the "
    "columns that you name: --head xywh,classes:15,angle; of raw maps --head dfl:16,classes:15,angle"
)


def obb(asked: AskedTask, reference: Sequence[Outputs]) -> Task:
    """Returns the task for oriented boxes in FP32's outputs by input: two boxes are the same if their IoU is
    ``asked.iou`` or more. Raises BadInput if no layout with angles fits, or several do.
    """

    def layouts(rows: np.ndarray, last: bool) -> Iterator[Layout]:
        yield Layout("xywh,score,class,angle")
        for before in _scored(rows.shape[1] - 5, last):
            yield Layout(f"{before},angle")

    head = _raw(asked, reference, "angle")
    if head is None:
        head = placed_head(_placed(asked, reference, "angle", layouts), " (angles in radians)", "angle")
    return found_task(asked, replace(head, suppress=_turned_suppressed), "IoU", turned_overlaps_of, reference[0])


def turned_overlaps_of(before: Detections, after: Detections) -> np.ndarray:
    """Returns the IoU of each oriented box in ``before`` with each in ``after``, ``[n, m]``."""
    boxes, others = np.array(before.more, np.float64), np.array(after.more, np.float64)
    shortest = shortest_side(boxes[:, :4])
    for sides in (boxes[:, 2:4], others[:, 2:4]):
        np.maximum(sides, shortest, out=sides)
    return np.array([_turned_overlaps(box, others) for box in boxes]).reshape(len(before), len(after))


def _turned_suppressed(candidates: Detections, iou: float) -> Detections:
    is_better = np.tri(len(candidates), k=-1, dtype=bool) & (candidates.classes[:, None] == candidates.classes)
    # Those that are removed remove others too, as in Ultralytics.
    return candidates.at(~((likely_overlaps(candidates.more) > iou) & is_better).any(axis=1))


def likely_overlaps(boxes: np.ndarray) -> np.ndarray:
    """Returns the ProbIoU (Murrugarra-Llerena et al. 2021) of each oriented box ``[n, 5]`` with each other, ``[n, n]``:
    1 minus the Hellinger distance of the boxes as normal distributions.
    """
    wide, high = (boxes[:, 2:4] ** 2 / 12).T
    cosines, sines = np.cos(boxes[:, 4]), np.sin(boxes[:, 4])
    xx, yy = wide * cosines**2 + high * sines**2, wide * sines**2 + high * cosines**2
    xy = (wide - high) * cosines * sines
    (a, b, c), determinants = (values[:, None] + values for values in (xx, yy, xy)), np.maximum(xx * yy - xy**2, 0.0)
    x, y = (values[:, None] - values for values in boxes[:, :2].T)
    determinant = a * b - c**2
    with np.errstate(divide="ignore", invalid="ignore"):
        apart = (a * y**2 + b * x**2 - 2 * c * x * y) / (4 * determinant)
        apart += np.log(determinant / (4 * np.sqrt(determinants[:, None] * determinants))) / 2
    return np.asarray(1 - np.sqrt(1 - np.exp(-np.nan_to_num(np.maximum(apart, 0.0), nan=np.inf))))


def _turned_overlaps(box: np.ndarray, others: np.ndarray) -> np.ndarray:
    # An oriented box is (cx, cy, w, h, angle).
    shares = np.zeros(len(others))
    reach = np.hypot(*box[2:4]) + np.hypot(*others[:, 2:4].T)
    near = np.flatnonzero(2 * np.hypot(*(others[:, :2] - box[:2]).T) < reach)
    others = others[near]
    boxes = np.broadcast_to(box, others.shape)
    areas = [np.prod(sides, axis=-1) for sides in (boxes[:, 2:4], others[:, 2:4])]
    shares[near] = over_union(_shared_area(boxes, others), *areas)
    return np.clip(shares, 0.0, 1.0)


def _shared_area(boxes_a: np.ndarray, boxes_b: np.ndarray) -> np.ndarray:
    # Its corners are those of each box in the other one and the crossings of their edges.
    edges = []
    points, is_corner = [], []
    for boxes, others in ((boxes_a, boxes_b), (boxes_b, boxes_a)):
        corners = turned_corners(boxes)
        edges.append((corners, np.roll(corners, -1, axis=1) - corners))
        half = np.maximum(others[:, None, 2:4], 0.0) / 2
        within = rotated(corners - others[:, None, :2], -others[:, 4:5])
        points.append(corners)
        is_corner.append((np.abs(within) <= half + 1e-9 * (1 + half)).all(axis=-1))
    (start, along), (other_start, other_along) = edges
    gap = other_start[:, None] - start[:, :, None]
    across = _cross(along[:, :, None], other_along[:, None])
    with np.errstate(divide="ignore", invalid="ignore"):
        at = _cross(gap, other_along[:, None]) / across
        other_at = _cross(gap, along[:, :, None]) / across
    is_crossing = (across != 0) & (at >= 0) & (at <= 1) & (other_at >= 0) & (other_at <= 1)
    crossings = start[:, :, None] + np.where(is_crossing, at, 0.0)[..., None] * along[:, :, None]
    every = np.concatenate([*points, crossings.reshape(len(boxes_a), 16, 2)], axis=1)
    counts = np.concatenate([*is_corner, is_crossing.reshape(len(boxes_a), 16)], axis=1)
    middle = (every * counts[..., None]).sum(axis=1) / np.maximum(counts.sum(axis=1), 1)[:, None]
    first = np.take_along_axis(every, counts.argmax(axis=1)[:, None, None], axis=1)
    around = np.where(counts[..., None], every, first) - middle[:, None]
    order = np.argsort(np.arctan2(around[..., 1], around[..., 0]), axis=1)
    around = np.take_along_axis(around, order[..., None], axis=1)
    return np.asarray(np.abs(_cross(around, np.roll(around, -1, axis=1)).sum(axis=1)) / 2 * counts.any(axis=1))


def turned_corners(boxes: np.ndarray) -> np.ndarray:
    """Returns the four corners, in order, of boxes ``[p, 5]`` with centre, size and angle: ``[p, 4, 2]``."""
    half = np.maximum(boxes[:, None, 2:4], 0.0) / 2 * np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]])
    return np.asarray(boxes[:, None, :2] + rotated(half, boxes[:, 4:5]))


def _cross(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.asarray(a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0])


INSTANCES_OUTPUTS = (
    "prototypes [B, M, H, W] next to YOLO v8 to v11 [B, 4 + C + M, N] or final detections [B, N, 6 + M], and boxes, "
    "scores, labels and masks [N, 1, H, W] of the whole image, or the columns that you name: --head "
    "xywh,classes:80,masks:32; of raw maps --head dfl:16,classes:80,masks:32"
)
_STRIDE = 4  # The pixels of an image along a prototype's pixel, in every export of Ultralytics.
_WITHIN = 1.1


def instances(asked: AskedTask, reference: Sequence[Outputs]) -> Task:
    """Returns the task for instance masks in FP32's outputs by input: two masks are the same if their IoU is
    ``asked.iou`` or more. Raises BadInput if no outputs with masks fit, or several do.
    """
    head = _beside_lists(asked, reference, "masks") or _head_with_prototypes(asked, reference)
    return found_task(asked, head, "mask IoU", mask_overlaps, reference[0])


def _head_with_prototypes(asked: AskedTask, reference: Sequence[Outputs]) -> Head:
    sizes = {n: v.shape[1] for n, v in reference[0].items() if v.ndim == 4 and v.dtype.kind == "f" and v.shape[1] > 1}

    def layouts(rows: np.ndarray, last: bool) -> Iterator[Layout]:
        for size in sorted(set(sizes.values())):
            for before in (READY, *_scored(rows.shape[1] - 4 - size, last)):
                yield Layout(f"{before},masks:{size}")

    if asked.head is not None or not fitting_layouts(reference, layouts):
        raw = _raw_instances(asked, reference, sizes)
        if raw is not None:
            return raw
    placed = _placed(asked, reference, "masks", layouts)
    names = [name for name, size in sizes.items() if (size,) == placed.layout.shapes["masks"]]
    if len(names) != 1:
        raise not_told(asked, reference, INSTANCES_OUTPUTS)
    head = placed_head(placed, f" (masks of '{names[0]}')", "masks")
    return _with_prototypes(head, names[0], _mask_scale(placed, names[0], reference))


def _with_prototypes(head: Head, name: str, scale: tuple[float, float]) -> Head:
    def finish(outputs: Outputs, chosen: list[Detections]) -> list[Detections]:
        images = zip(chosen, np.asarray(outputs[name], np.float64), strict=True)
        masked = [replace(image, more=prototype_masks(image, prototypes, scale)) for image, prototypes in images]
        return [image.at(np.flatnonzero(image.more.any(axis=(1, 2)))) for image in masked]

    return replace(head, names=(*head.names, name), finish=finish)


def _raw_instances(asked: AskedTask, reference: Sequence[Outputs], sizes: Mapping[str, int]) -> Head | None:
    # Without --head the finest scale must have a map of 64 channels (distances), a map of the classes and, unless one
    # output has the coefficients of all scales, a map with a coefficient for each prototype.
    shapes = {name: reference[0][name].shape for name in sizes}
    name = max(shapes, key=lambda n: shapes[n][2:], default="")
    if not name or [shape[2:] for shape in shapes.values()].count(shapes[name][2:]) > 1:
        return None
    if asked.head is None:
        others = [shape for n, shape in shapes.items() if n != name]
        finest = max((shape[2:] for shape in others), default=())
        counts = [shape[1] for shape in others if shape[2:] == finest]
        classes = set(counts) - {4 * BINS, sizes[name]}
        if len(classes) != 1 or len(set(counts)) < len(counts) or 4 * BINS not in counts or sizes[name] == 4 * BINS:
            return None
        asked = replace(asked, head=f"dfl:{BINS},classes:{classes.pop()},masks:{sizes[name]}")
    head = _raw(asked, reference, "masks", (name,))
    if head is None:
        return None
    cells = FINEST * np.array(reference[0][head.finest].shape[2:])
    height, width = np.array(shapes[name][2:]) / cells
    return _with_prototypes(head, name, (float(width), float(height)))


def _mask_scale(placed: Placed, prototypes: str, reference: Sequence[Outputs]) -> tuple[float, float]:
    # Boxes are in shares of the image, or in pixels of an image four times as large as the prototypes.
    height, width = reference[0][prototypes].shape[2:]
    boxes = placed.layout.boxes(np.concatenate([turned(outputs[placed.output], placed.last) for outputs in reference]))
    largest = np.quantile((boxes[:, :2] + boxes[:, 2:]) / 2, NEARLY_ALL, axis=0)
    if (largest <= _WITHIN).all():
        return float(width), float(height)
    if (largest <= _WITHIN * _STRIDE * np.array([width, height])).all():
        return 1 / _STRIDE, 1 / _STRIDE
    raise BadInput(
        f"--task instances cannot place the boxes of '{placed.output}' on the prototypes of '{prototypes}'.",
        f"Prototypes of {height}x{width} belong to an image of {_STRIDE * height}x{_STRIDE * width}. Export the "
        "network again, or leave out --task.",
    )


def prototype_masks(image: Detections, prototypes: np.ndarray, scale: tuple[float, float]) -> np.ndarray:
    """Returns the mask of each detection, a sum of prototypes cut to its box, bool ``[n, H, W]``.

    Args:
        image: detections with the factors of the prototypes as ``more``.
        prototypes: ``[M, H, W]``.
        scale: the prototype's pixels per unit of the boxes, in x and y.
    """
    count, height, width = prototypes.shape
    if not len(image):
        return np.zeros((0, height, width), bool)
    masks = (image.more @ prototypes.reshape(count, -1)).reshape(-1, height, width) > 0.0
    x1, y1, x2, y2 = (image.boxes * np.tile(scale, 2)).T[:, :, None]
    columns, rows = np.arange(width)[None], np.arange(height)[None]
    return np.asarray(masks & ((columns >= x1) & (columns < x2))[:, None] & ((rows >= y1) & (rows < y2))[:, :, None])


def mask_overlaps(before: Detections, after: Detections) -> np.ndarray:
    """Returns the IoU of each mask in ``before`` with each in ``after``, ``[n, m]``; 1 if both are empty."""
    if before.more.shape[1:] != after.more.shape[1:]:
        return np.zeros((len(before), len(after)))
    pixels = int(np.prod(before.more.shape[1:]))
    masks, others = (image.more.reshape(-1, pixels).astype(np.float32) for image in (before, after))
    shared = (masks @ others.T).astype(np.float64)
    areas, other_areas = masks.sum(axis=1, dtype=np.float64)[:, None], others.sum(axis=1, dtype=np.float64)
    return np.where(areas + other_areas > 0.0, over_union(shared, areas, other_areas), 1.0)


def _beside_lists(asked: AskedTask, reference: Sequence[Outputs], kind: str) -> Head | None:
    fits = _are_masks if kind == "masks" else _are_keypoints
    head = ready_lists(reference) if asked.head is None else None
    if head is None or reference[0][head.names[0]].ndim != 2:
        return None
    boxes = head.names[0]
    corners = np.concatenate([outputs[boxes] for outputs in reference])
    for name, first in reference[0].items():
        if first.ndim < 3 or first.dtype.kind != "f" or len({outputs[name].shape[1:] for outputs in reference}) > 1:
            continue
        values = np.concatenate([outputs[name] for outputs in reference])
        if len(values) == len(corners) and (corners[:, 2:] > 2).any() and fits(corners, values):
            note = f"{head.note}, '{name}' as {kind}"
            return replace(head, names=(*head.names, name), note=note, read=partial(_with_more, head, name))
    return None


def _are_masks(boxes: np.ndarray, values: np.ndarray) -> bool:
    # Masks [n, 1, H, W] of a whole image that holds the boxes.
    is_placed = values.ndim == 4 and values.shape[1] == 1 and (boxes[:, 2:] <= np.array(values.shape[:1:-1]) + 1).all()
    return bool(is_placed) and are_shares(values)


def _are_keypoints(boxes: np.ndarray, values: np.ndarray) -> bool:
    # Keypoints [n, K, 3] about their boxes; the third column is visibility.
    is_seen = values.ndim == 3 and values.shape[2] == 3 and are_shares(values[..., 2])
    return is_seen and float(np.mean(about_boxes(boxes, values))) >= NEARLY_ALL


def _with_more(head: Head, name: str, outputs: Outputs) -> list[Detections]:
    values = outputs[name]
    more = np.asarray(values, np.float64) if values.ndim == 3 else values[:, 0] > SEEN
    return [replace(image, more=more) for image in head.read(outputs)]


def _scored(classes: int, last: bool) -> Iterator[str]:
    # Only rows (last) may have an objectness, as in YOLO v5.
    if classes > 0:
        yield f"xywh,classes:{classes}"
    if classes > 1 and last:
        yield f"xywh,objectness,classes:{classes - 1}"


_SUPPORTED = {"keypoints": POSE_OUTPUTS, "angle": OBB_OUTPUTS, "masks": INSTANCES_OUTPUTS}


def _raw(asked: AskedTask, reference: Sequence[Outputs], kind: str, without: Sequence[str] = ()) -> Head | None:
    layout = None if asked.head is None or not asked.head.startswith("dfl") else parse_layout(asked.head)
    if layout is None or kind not in layout.shapes:
        return None
    head = raw_head(reference, layout, without)
    if head is None:
        raise not_told(asked, reference, _SUPPORTED[kind])
    return head


def _placed(asked: AskedTask, reference: Sequence[Outputs], kind: str, layouts: MakeLayouts) -> Placed:
    if asked.head is not None:
        layout = parse_layout(asked.head)
        if kind not in layout.shapes:
            raise BadInput(
                f"--head {layout} has no {kind}, which --task {asked.name} reads.", f"Name their columns: {kind}."
            )
        return named_layout(layout, reference)
    places = fitting_layouts(reference, layouts)
    places = [placed for placed in places if placed.layout.is_ready] or places
    if len(places) != 1:
        raise not_told(asked, reference, _SUPPORTED[kind], [str(placed.layout) for placed in places])
    return places[0]
