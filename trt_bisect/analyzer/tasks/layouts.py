"""Layouts: the meaning of the columns of a detector's outputs, found from their values or named by the user.

Raw maps have undecoded boxes and classes for each cell, in several sizes. Decoded boxes are in eighths of the smallest
cell.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from trt_bisect.analyzer.classes import sigmoid, softmax
from trt_bisect.analyzer.tasks.detections import FINEST, Detections, Head, Read, best_class, corners, rotated
from trt_bisect.builder.base import Outputs
from trt_bisect.errors import BadInput

NEARLY_ALL = 0.99
_MOSTLY = 0.75
_TOLERANCE = 1e-3
_MIDDLE = 0.1  # The median of the candidates' centres is at least this share of the largest coordinate, on both axes.
_LARGEST_ANGLE = 2 * math.pi + _TOLERANCE
_BOXES = ("xywh", "xyxy", "dfl")
_GROUP = re.compile(
    r"(xywh|xyxy|score|class|objectness|angle|classes:\d{1,5}|masks:\d{1,4}|dfl:\d{1,3}|keypoints:\d{1,4}x[23])\Z"
)
LAYOUT = "xywh,classes:1,keypoints:17x3"
BINS = 16
"""The number of bins of a distance in every known export."""
_LEAST_MAPS = 2
BACKGROUND = 0.3
"""A detector's candidates are mostly background: the median of their best scores is below this."""
_QUARTER = math.pi / 4
ANCHORS: Mapping[str, tuple[tuple[int, ...], ...]] = {
    "yolov5": ((10, 13, 16, 30, 33, 23), (30, 61, 62, 45, 59, 119), (116, 90, 156, 198, 373, 326)),
    "yolov7": ((12, 16, 19, 36, 40, 28), (36, 75, 76, 55, 72, 146), (142, 110, 192, 243, 459, 401)),
}
"""By value of ``--head``, width and height of each scale's three anchors in pixels."""


def are_integral(values: np.ndarray) -> bool:
    """Returns true if all values are whole numbers from -1 on."""
    return bool((values == np.round(values)).all() and (values >= -1).all())


def are_shares(values: np.ndarray) -> bool:
    """Returns true if all values are from 0 to 1."""
    return bool(((values >= -_TOLERANCE) & (values <= 1.0 + _TOLERANCE)).all())


def sums_of_one(rows: np.ndarray) -> bool:
    """Returns true if all values are from 0 to 1, and each row sums to 1."""
    return are_shares(rows) and np.allclose(rows.sum(axis=-1), 1.0, rtol=0.0, atol=1e-2)


def are_spread(centres: np.ndarray) -> bool:
    """Returns true if centres ``[n, 2]`` are spread over the image, as those of candidates."""
    if len(centres):
        return bool((np.median(centres, axis=0) >= _MIDDLE * centres.max(axis=0)).all())
    return True


def are_in_order(boxes: np.ndarray) -> bool:
    """Returns true if nearly all boxes ``[n, 4]`` have the second corner right of and below the first."""
    if len(boxes):
        return bool(np.mean((boxes[:, 2:] >= boxes[:, :2]).all(axis=-1)) >= NEARLY_ALL)
    return True


def are_corners(boxes: np.ndarray) -> bool:
    """Returns true if the second corner is right of and below the first in nearly all boxes ``[n, 4]`` or, for pixels,
    in 75 %.
    """
    in_order = (boxes[:, 2:] >= boxes[:, :2]).all(axis=-1)
    # Boxes in pixels can be little else, and a head without DFL (YOLO26) gives some negative sizes.
    return are_in_order(boxes) or bool(not are_shares(boxes) and np.mean(in_order) >= _MOSTLY)


def are_sized(boxes: np.ndarray) -> bool:
    """Returns true if the last two values of nearly all boxes ``[n, 4]`` can be width and height."""
    if len(boxes):
        return bool(np.mean((boxes[:, 2:] >= 0.0).all(axis=-1)) >= NEARLY_ALL)
    return True


def turned(value: np.ndarray, last: bool) -> np.ndarray:
    """Returns candidates ``[B, N, columns]`` (not ``last``: ``[B, columns, N]``) as float64 ``[B N, columns]``."""
    rows = value if last else value.transpose(0, 2, 1)
    return np.asarray(rows.reshape(-1, rows.shape[-1]), np.float64)


def surest(rows: np.ndarray) -> np.ndarray:
    """Returns the tenth of the rows ``[n, 4 + classes]`` with the highest scores."""
    # Without DFL, training leaves the other boxes arbitrary.
    scores = rows[:, 4:].max(axis=-1)
    return np.asarray(rows[scores >= np.quantile(scores, 0.9)])


def about_boxes(boxes: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Returns bool ``[n, K]``, true for keypoints ``[n, K, 2 or 3]`` inside their box made twice as wide and high."""
    middle, size = (boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]
    return np.asarray((np.abs(points[..., :2] - middle[:, None]) <= size[:, None]).all(axis=-1))


@dataclass(frozen=True)
class Layout:
    """The columns of a row in groups, as ``--head`` names them, such as ``xywh,classes:1,keypoints:17x3``."""

    text: str

    def __str__(self) -> str:
        return self.text

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each group of columns, by the group's name."""
        shapes = {}
        for group in filter(None, self.text.split(",")):
            name, _, shape = group.partition(":")
            shapes[name] = tuple(map(int, shape.split("x"))) if shape else ()
        return shapes

    @property
    def width(self) -> int:
        """The number of columns of a row."""
        return sum(_width(name, shape) for name, shape in self.shapes.items())

    @property
    def more_width(self) -> int:
        """The number of columns of keypoints, angle or masks."""
        return sum(_width(name, shape) for name, shape in self.shapes.items() if name in BEHIND)

    @property
    def is_ready(self) -> bool:
        """True if rows are chosen detections, not candidates."""
        return "class" in self.shapes

    def of(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Returns the columns of the group ``name``, ``[n, columns]``; ``[n, 0]`` if the layout lacks it."""
        first = 0
        for group, shape in self.shapes.items():
            if group == name:
                return rows[:, first : first + _width(group, shape)]
            first += _width(group, shape)
        return rows[:, :0]

    def boxes(self, rows: np.ndarray) -> np.ndarray:
        """Returns the boxes of rows as two corners, ``[n, 4]``."""
        if "xywh" in self.shapes:
            return corners(self.of("xywh", rows))
        return self.of("xyxy", rows)

    def scores(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the score and the class of each row; for a candidate, those of its best class."""
        if self.is_ready:
            return self.of("score", rows)[:, 0], self.of("class", rows)[:, 0].astype(np.int64)
        shares = self.of("classes", rows)
        if "objectness" in self.shapes:
            shares = shares * self.of("objectness", rows)
        return shares.max(axis=-1), shares.argmax(axis=-1)

    def read(self, rows: np.ndarray, kind: str) -> Detections:
        """Returns the detections in an image from its rows, ``[n, columns]``.

        The columns ``kind``, such as ``keypoints``, become ``Detections.more``; for ``angle`` this is cx, cy, w, h and
        angle.
        """
        scores, classes = self.scores(rows)
        more = self.of(kind, rows)
        if kind == "angle":
            more = np.concatenate([self.of("xywh", rows), more], axis=-1)
        elif kind == "keypoints":
            more = more.reshape(len(rows), *self.shapes[kind])
        return Detections(self.boxes(rows), scores, classes, more)

    def fits(self, rows: np.ndarray) -> bool:
        """Returns true if the values of rows ``[n, columns]`` fit this layout, and its keypoints, angle or masks cannot
        be class scores.
        """
        if not np.isfinite(rows).all():
            return False
        scores, _ = self.scores(np.clip(rows, -1e9, 1e9))
        sure = rows[scores > 0.0] if self.is_ready else rows[scores >= np.quantile(scores, 0.9)]
        if not len(sure) or not are_shares(np.concatenate([self.of(n, rows) for n in _SHARES], axis=-1)):
            return False
        if "xyxy" in self.shapes:
            is_placed = are_corners(self.of("xyxy", sure))
        else:
            is_placed = are_sized(self.of("xywh", sure)) and (self.is_ready or are_spread(self.of("xywh", rows)[:, :2]))
        labels = self.of("class", sure)
        if not is_placed or not (are_integral(labels) and (labels >= 0).all()):
            return False
        angles = self.of("angle", rows)
        if angles.size and (are_integral(angles) or (np.abs(angles) > _LARGEST_ANGLE).any()):
            return False
        if any(are_shares(column) for column in np.concatenate([angles, self.of("masks", rows)], axis=-1).T):
            return False
        return "keypoints" not in self.shapes or self._are_keypoints(rows, sure)

    def _are_keypoints(self, rows: np.ndarray, sure: np.ndarray) -> bool:
        # Coordinates are in pixels, third columns are shares; with two columns, half of the points lie near their
        # boxes.
        points = self.of("keypoints", rows).reshape(len(rows), *self.shapes["keypoints"])
        coordinates = points[..., :2].reshape(len(rows), -1)
        if any(are_shares(column) for column in coordinates.T):
            return False
        if points.shape[-1] == 3:
            return are_shares(points[..., 2])
        return bool(about_boxes(self.boxes(sure), self.of("keypoints", sure).reshape(len(sure), -1, 2)).mean() >= 0.5)


READY = "xyxy,score,class"
"""The columns of detections that the network has chosen itself."""


def _width(name: str, shape: tuple[int, ...]) -> int:
    return (4 if name in _BOXES else 1) * math.prod(shape)


BEHIND = ("keypoints", "angle", "masks")
_RAW = {"dfl", "classes", *BEHIND}
_SHARES = ("score", "objectness", "classes")


def parse_layout(text: str) -> Layout:
    """Returns a layout such as ``xywh,classes:1,keypoints:17x3``; raises BadInput for another text."""
    groups = list(map(str.strip, text.split(",")))
    for group in groups:
        if not _GROUP.match(group):
            raise BadInput(
                f"--head has no columns '{group}'.",
                "Give the columns in their order: xywh or xyxy, then classes:N, or score and class, and what follows "
                "of objectness, angle, keypoints:Kx3, keypoints:Kx2 and masks:N; of raw maps dfl:N and classes:N, or "
                f"yolov5 or yolov7. An example: {LAYOUT}.",
            )
    layout = Layout(",".join(groups))
    boxes = [name for name in layout.shapes if name in _BOXES]
    is_scored = ("classes" in layout.shapes) != ("score" in layout.shapes and "class" in layout.shapes)
    halves = ("score" in layout.shapes) == ("class" in layout.shapes)
    if len(layout.shapes) < len(groups) or len(boxes) != 1 or not (is_scored and halves) or layout.width < 5:
        raise BadInput(
            f"--head '{text}' names no complete row.",
            f"Give the box once (xywh or xyxy), and classes:N, or score and class. An example: {LAYOUT}.",
        )
    if any(0 in shape for shape in layout.shapes.values()):
        raise BadInput(f"--head '{text}' has columns of no length.", "Give lengths of 1 or more.")
    is_raw = list(layout.shapes)[:2] == ["dfl", "classes"] and len(groups) <= 3
    if "dfl" in layout.shapes and not (is_raw and layout.shapes.keys() <= _RAW):
        raise BadInput(
            f"--head '{text}' is no raw map.",
            "Raw maps are dfl:16,classes:80: bins, then classes, then keypoints:Kx3, angle or masks:N.",
        )
    if "angle" in layout.shapes and boxes == ["xyxy"]:
        raise BadInput(f"--head '{text}' turns corners.", "A box with an angle is xywh.")
    return layout


@dataclass(frozen=True)
class Placed:
    """A layout and the name of its output; ``last`` is true if the columns are the last axis, not the middle one."""

    output: str
    layout: Layout
    last: bool

    def read(self, outputs: Outputs, kind: str) -> list[Detections]:
        """Returns the candidates in each image, with the columns ``kind`` as ``Detections.more``."""
        return [self.layout.read(turned(image[None], self.last), kind) for image in outputs[self.output]]


def named_layout(layout: Layout, reference: Sequence[Outputs]) -> Placed:
    """Returns the only output and axis that fit a layout; raises BadInput for none or several."""
    places = []
    for name, value in reference[0].items():
        if value.ndim != 3 or value.dtype.kind != "f":
            continue
        for axis in (1, 2):
            if all(outputs[name].shape[axis] == layout.width for outputs in reference):
                places.append(Placed(name, layout, axis == 2))
    if len(places) != 1:
        shapes = ", ".join(f"'{name}' {list(value.shape)}" for name, value in reference[0].items())
        raise BadInput(
            f"--head {layout} has {layout.width} columns, and {'several' if places else 'no'} axes of the outputs "
            f"{shapes} have that length.",
            "Name the output with --outputs, and all columns of its rows with --head.",
        )
    return places[0]


MakeLayouts = Callable[[np.ndarray, bool], Iterable[Layout]]
"""A function from rows ``[n, columns]``, and true if columns are the last axis, to the layouts to try."""


def fitting_layouts(reference: Sequence[Outputs], make: MakeLayouts) -> list[Placed]:
    """Returns the layouts that FP32's values fit, each with its output. ``make`` gives the layouts to try for an
    output's rows.
    """
    return [
        Placed(name, layout, last)
        for name, last, many, rows in rows_either_way(reference)
        if len(rows) and rows.shape[1] >= 6
        for layout in make(rows, last)
        if layout.width == rows.shape[1] and (last if layout.is_ready else many >= layout.width) and layout.fits(rows)
    ]


def rows_either_way(reference: Sequence[Outputs]) -> Iterator[tuple[str, bool, int, np.ndarray]]:
    """Yields each output of three axes twice: with columns along the last axis, then along the middle axis. Each time:
    its name, true for the last axis, the number of rows of an image, and the rows of all inputs, float64 ``[n,
    columns]``.
    """
    for name, value in reference[0].items():
        if value.ndim != 3 or value.dtype.kind != "f" or any(outputs[name].ndim != 3 for outputs in reference):
            continue
        for axis in (2, 1):
            if len({outputs[name].shape[axis] for outputs in reference}) == 1:
                rows = np.concatenate([turned(outputs[name], axis == 2) for outputs in reference])
                yield name, axis == 2, value.shape[3 - axis], rows


@dataclass(frozen=True)
class _Scale:
    distances: str
    scores: str
    bins: int
    first: int  # The index of the first of the score channels.
    classes: int
    stride: float  # The width of a cell in units of the boxes.
    more: str = ""  # The output of the task's further channels, if any.
    begin: int = 0  # Its first channel or, in an output [B, channels, N] of all scales, its first cell.


_ANY = Layout("")


def raw_head(reference: Sequence[Outputs], layout: Layout = _ANY, without: Sequence[str] = ()) -> Head | None:
    """Returns the detection head for raw (undecoded) maps of two or more sizes, each half the one before; None for
    other outputs.

    Each size has a map of distances (64 channels) and a map of classes, or a map of both, whose layout the user must
    name.

    Args:
        layout: ``dfl:16,classes:80`` for maps of both; further channels, such as ``keypoints:17x3``, are in maps of
            each size, or in one output ``[B, channels, N]`` of all cells.

    Raises:
        BadInput: without a ``layout``, another output has channels for each cell too.
    """
    maps = {n: v for n, v in reference[0].items() if v.ndim == 4 and v.dtype.kind == "f" and n not in without}
    sizes = _sizes(maps)
    if len(sizes) < _LEAST_MAPS:
        return None
    scales, cells, of_all = [], 0, _of_all(reference[0], layout, sizes)
    for k, size in enumerate(sizes):
        channels = {name: value.shape[1] for name, value in maps.items() if value.shape[2:] == size}
        scale = _scale(channels, layout, FINEST * 2.0**k, of_all, cells)
        if scale is None:
            return None
        cells += math.prod(size)
        scales.append(scale)
    classes = {scale.classes for scale in scales}
    if len(classes) != 1:
        return None
    if layout is _ANY:
        _refuse_more(reference, scales, cells)
    every_scores = [_scores(scale, outputs) for scale in scales for outputs in reference]
    to_shares = np.asarray if all(map(are_shares, every_scores)) else sigmoid
    if not _mostly_background([to_shares(scores.max(axis=1)) for scores in every_scores]):
        return None

    def read(outputs: Outputs) -> list[Detections]:
        parts = [_decoded(scale, layout, outputs, to_shares) for scale in scales]
        images = zip(*(np.concatenate(of_scales, axis=1) for of_scales in zip(*parts, strict=True)), strict=True)
        return [best_class(*image) for image in images]

    if layout.more_width and not _is_raw(scales, layout, reference, read):
        return None
    names = tuple(dict.fromkeys(n for scale in scales for n in (scale.distances, scale.scores, scale.more) if n))
    shown = ", ".join(f"{height}x{width}" for height, width in sizes)
    columns = str(layout) or f"dfl:{scales[0].bins},classes:{classes.pop()}"
    note = f"raw maps of {shown} as {columns}, decoded outside the network"
    return Head(names, note, read, True, finest=scales[0].scores)


def _sizes(maps: Mapping[str, np.ndarray]) -> list[tuple[int, ...]]:
    sizes = sorted({value.shape[2:4] for value in maps.values()}, reverse=True)
    if all(b == tuple(-(-side // 2) for side in a) for a, b in pairwise(sizes)):
        return sizes
    return []


def _of_all(outputs: Outputs, layout: Layout, sizes: Sequence[tuple[int, ...]]) -> str:
    # Returns the output [B, channels, N] of a task's further channels at all cells, if any.
    shape = (layout.more_width, sum(map(math.prod, sizes)))
    names = [name for name, value in outputs.items() if shape[0] and value.ndim == 3 and value.shape[1:] == shape]
    return names[0] if len(names) == 1 else ""


def _scale(channels: dict[str, int], layout: Layout, stride: float, of_all: str, cells: int) -> _Scale | None:
    if layout is _ANY:
        distances = [name for name, count in channels.items() if count == 4 * BINS]
        others = [name for name, count in channels.items() if count != 4 * BINS]
        # A third map is the sum of the class scores, as in RKNN's exports.
        if len(others) == 2:
            others = [name for name in others if channels[name] > 1]
        is_pair = len(distances) == len(others) == 1
        if is_pair:
            return _Scale(distances[0], others[0], BINS, 0, channels[others[0]], stride)
        return None
    (bins,), (classes,) = layout.shapes["dfl"], layout.shapes["classes"]
    named = {count: name for name, count in channels.items()}
    apart, extra, more, begin = 4 * bins + classes, of_all, layout.more_width, cells if of_all else 0
    if len(named) < len(channels):
        return None
    if more and not of_all:
        if apart + more in named:
            name = named[apart + more]
            return _Scale(name, name, bins, 4 * bins, classes, stride, name, apart)
        if more not in named or more in (4 * bins, classes, apart):
            return None
        extra = named[more]
    if apart in named:
        return _Scale(named[apart], named[apart], bins, 4 * bins, classes, stride, extra, begin)
    if 4 * bins in named and classes in named and classes != 4 * bins:
        return _Scale(named[4 * bins], named[classes], bins, 0, classes, stride, extra, begin)
    return None


def _refuse_more(reference: Sequence[Outputs], scales: Sequence[_Scale], cells: int) -> None:
    read = {name for scale in scales for name in (scale.distances, scale.scores)}
    sums = [_scores(scale, reference[0]).sum(axis=1, keepdims=True) for scale in scales]
    more: dict[str, int] = {}
    for name, value in reference[0].items():
        if name in read or value.dtype.kind != "f" or value.ndim not in (3, 4):
            continue
        alike = [total for total in sums if total.shape == value.shape]
        is_sum = any(np.allclose(value, t, rtol=1e-3, atol=1e-3) for total in alike for t in (total, total.clip(0, 1)))
        if value.shape[2:] in {total.shape[2:] for total in sums} | {(cells,)} and not is_sum:
            more[name] = value.shape[1]
    if more:
        maps, width = f"dfl:{scales[0].bins},classes:{scales[0].classes}", max(more.values())
        columns = {1: "angle"}.get(width, f"masks:{width}" if width % 3 else f"keypoints:{width // 3}x3")
        task = {"angle": "obb", "masks": "instances", "keypoints": "pose"}[columns.split(":")[0]]
        raise BadInput(
            f"--task detect cannot tell what {', '.join(map(repr, more))} next to the raw maps are.",
            f"Name their columns, as --task {task} --head {maps},{columns} does. To judge the upright boxes alone: "
            f"--task detect --head {maps}.",
        )


def _scores(scale: _Scale, outputs: Outputs) -> np.ndarray:
    return np.asarray(outputs[scale.scores][:, scale.first : scale.first + scale.classes], np.float64)


def _mostly_background(best: Sequence[np.ndarray]) -> bool:
    return bool(np.median(np.concatenate([image.ravel() for image in best])) < BACKGROUND)


def _decoded(
    scale: _Scale, layout: Layout, outputs: Outputs, to_shares: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, ...]:
    # Returns boxes [B, H * W, 4], scores [B, H * W, C], and further channels.
    logits = np.asarray(outputs[scale.distances][:, : 4 * scale.bins], np.float64)
    images, _, height, width = logits.shape
    bins, is_direct = logits.reshape(images, 4, scale.bins, -1).swapaxes(2, 3), scale.bins == 1
    sides = np.moveaxis(bins[..., 0] if is_direct else softmax(bins) @ np.arange(scale.bins), 1, -1)
    y, x = (grid.ravel() + 0.5 for grid in np.mgrid[:height, :width])
    middle = np.stack([x, y], axis=-1)
    scores = to_shares(_scores(scale, outputs)).reshape(images, -1, height * width).swapaxes(1, 2)
    boxes = np.concatenate([middle - sides[..., :2], middle + sides[..., 2:]], axis=-1)
    more = _beside(scale, layout, outputs) if scale.more else scores[..., :0]
    if "angle" in layout.shapes:
        angles = more if is_direct else (sigmoid(more) - 0.25) * np.pi
        moved = rotated((sides[..., 2:] - sides[..., :2]) / 2, angles[..., 0])
        centred = np.concatenate([middle + moved, sides[..., :2] + sides[..., 2:]], axis=-1)
        boxes, more = corners(centred), np.concatenate([scale.stride * centred, angles], axis=-1)
    elif "keypoints" in layout.shapes:
        more = more.reshape(images, -1, *layout.shapes["keypoints"])
        offsets = more[..., :2] + 0.5 if is_direct else 2.0 * more[..., :2]
        points = scale.stride * (offsets + (middle - 0.5)[:, None])
        more = np.concatenate([points, sigmoid(more[..., 2:])], axis=-1)
    return scale.stride * boxes, scores, more


def _beside(scale: _Scale, layout: Layout, outputs: Outputs) -> np.ndarray:
    values, columns = np.asarray(outputs[scale.more], np.float64), layout.more_width
    cells = math.prod(outputs[scale.distances].shape[2:])
    part = values[:, scale.begin :][:, :columns] if values.ndim == 4 else values[:, :, scale.begin :][..., :cells]
    return np.asarray(part.reshape(len(values), columns, cells).swapaxes(1, 2))


def _is_raw(scales: Sequence[_Scale], layout: Layout, reference: Sequence[Outputs], read: Read) -> bool:
    # True if the further channels can be undecoded.
    kind, *_ = [name for name in layout.shapes if name in BEHIND]
    beside = [_beside(scale, layout, outputs) for scale in scales for outputs in reference]
    every = np.concatenate([values.reshape(-1, layout.more_width) for values in beside])
    # Undecoded angles exceed decoded ones, unless the head decodes none.
    if kind == "angle" and scales[0].bins > 1:
        return bool((every < -_QUARTER).any() or (every > 3 * _QUARTER).any())
    if kind in ("angle", "masks"):
        return True
    points, size = layout.shapes[kind]
    if size == 3 and are_shares(every.reshape(-1, points, 3)[..., 2]):
        return False
    sure = [image.at(image.scores >= BACKGROUND) for outputs in reference for image in read(outputs)]
    return all(not len(image) or float(np.mean(about_boxes(image.boxes, image.more))) >= 0.5 for image in sure)


def anchored_head(reference: Sequence[Outputs], name: str) -> Head | None:
    """Returns the detection head for the three maps of YOLO v5 or v7 (``name``), ``[B, 3 * (5 + C), H, W]`` or ``[B, 3,
    H, W, 5 + C]``, each half the size of the one before; else None.
    """
    every = {n: value for n, value in reference[0].items() if value.ndim in (4, 5) and value.dtype.kind == "f"}
    sizes, widths = _sizes(every), {_cells(value).shape[-1] for value in every.values() if _has_anchors(value)}
    if not (len(every) == len(sizes) == 3 and len(widths) == 1 and all(map(_has_anchors, every.values()))):
        return None
    names = sorted(every, key=lambda n: every[n].shape[2:4], reverse=True)
    maps = [_cells(outputs[n]) for n in names for outputs in reference]
    to_shares = np.asarray if all(map(are_shares, maps)) else sigmoid
    shares = [to_shares(cells[..., 4:]) for cells in maps]
    if not _mostly_background([s[..., 0] * s[..., 1:].max(axis=-1) for s in shares]):
        return None

    def read(outputs: Outputs) -> list[Detections]:
        parts = []
        for k, (output, sides) in enumerate(zip(names, ANCHORS[name], strict=True)):
            values, stride = to_shares(_cells(outputs[output])), FINEST * 2**k
            y, x = np.mgrid[: values.shape[2], : values.shape[3]]
            centres = stride * (2.0 * values[..., :2] - 0.5 + np.stack([x, y], axis=-1))
            extents = (2.0 * values[..., 2:4]) ** 2 * np.reshape(sides, (3, 1, 1, 2))
            scores = values[..., 5:] * values[..., 4:5]
            parts.append(np.concatenate([centres, extents, scores], -1).reshape(len(values), -1, values.shape[-1] - 1))
        return [best_class(corners(rows[:, :4]), rows[:, 4:]) for rows in np.concatenate(parts, axis=1)]

    shown = ", ".join(f"{height}x{width}" for height, width in sizes)
    note = f"raw maps of {shown} with the anchors of {name}, {widths.pop() - 5} classes, decoded outside the network"
    return Head(tuple(names), note, read, True, finest=names[0])


def _has_anchors(value: np.ndarray) -> bool:
    if value.ndim == 5:
        return bool(value.shape[1] == 3 and value.shape[4] > 5)
    return bool(value.shape[1] % 3 == 0 and value.shape[1] > 15)


def _cells(value: np.ndarray) -> np.ndarray:
    array = np.asarray(value, np.float64)
    if array.ndim == 5:
        return array
    images, channels, height, width = array.shape
    return np.asarray(array.reshape(images, 3, channels // 3, height, width).transpose(0, 1, 3, 4, 2))
