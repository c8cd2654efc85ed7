"""Layouts: the columns of the rows in which a head writes what it finds, told from values or named by the user.

A layout is read only if the values can be of no other one: the columns of scores, keypoints, angles and coefficients
are told apart by FP32's values on all inputs. Otherwise the user names the columns.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from trt_bisect.analyzer.tasks.detections import Detections, corners
from trt_bisect.builder.base import Outputs
from trt_bisect.errors import BadInput

NEARLY_ALL = 0.99
_MOSTLY = 0.75
_TOLERANCE = 1e-3
_MIDDLE = 0.1
"""The median of the candidates' centres is at least this part of the largest one, on both axes."""
_LARGEST_ANGLE = 2 * math.pi + _TOLERANCE
_BOXES = ("xywh", "xyxy", "dfl")
_WIDTHS = {"xywh": 4, "xyxy": 4, "score": 1, "class": 1, "objectness": 1, "angle": 1}
_GROUP = re.compile(
    r"(xywh|xyxy|score|class|objectness|angle|classes:\d{1,5}|masks:\d{1,4}|dfl:\d{1,3}|keypoints:\d{1,4}x[23])\Z"
)
LAYOUT = "xywh,classes:1,keypoints:17x3"
"""An example of a layout."""


def are_integral(values: np.ndarray) -> bool:
    """Returns true if all values are whole numbers from -1 on."""
    return bool((values == np.round(values)).all() and (values >= -1).all())


def are_shares(values: np.ndarray) -> bool:
    """Returns true if all values are from 0 to 1."""
    return bool(((values >= -_TOLERANCE) & (values <= 1.0 + _TOLERANCE)).all())


def sums_of_one(rows: np.ndarray) -> bool:
    """Returns true if all values are shares, and those of each row sum to 1."""
    return are_shares(rows) and np.allclose(rows.sum(axis=-1), 1.0, rtol=0.0, atol=1e-2)


def are_spread(centres: np.ndarray) -> bool:
    """Returns true if centres ``[n, 2]`` are spread over the image, as those of candidates: scores are near 0."""
    return bool((np.median(centres, axis=0) >= _MIDDLE * centres.max(axis=0)).all()) if len(centres) else True


def are_in_order(boxes: np.ndarray) -> bool:
    """Returns true if the second corners of nearly all boxes lie behind the first."""
    return bool(np.mean((boxes[:, 2:] >= boxes[:, :2]).all(axis=-1)) >= NEARLY_ALL) if len(boxes) else True


def are_corners(boxes: np.ndarray) -> bool:
    """Returns true if boxes can be two corners each: in order, or mostly so in pixels.

    Boxes in pixels can be little else, and a head without DFL (YOLO26) gives some of them negative sizes.
    """
    in_order = (boxes[:, 2:] >= boxes[:, :2]).all(axis=-1)
    return are_in_order(boxes) or bool(not are_shares(boxes) and np.mean(in_order) >= _MOSTLY)


def are_sized(boxes: np.ndarray) -> bool:
    """Returns true if the last two values of nearly all boxes can be sizes."""
    return bool(np.mean((boxes[:, 2:] >= 0.0).all(axis=-1)) >= NEARLY_ALL) if len(boxes) else True


def turned(value: np.ndarray, last: bool) -> np.ndarray:
    """Returns the candidates of all images as float64 ``[rows, columns]``.

    Args:
        value: ``[B, N, columns]`` if ``last``, else ``[B, columns, N]``.
        last: the columns are the last axis.
    """
    rows = value if last else value.transpose(0, 2, 1)
    return np.asarray(rows.reshape(-1, rows.shape[-1]), np.float64)


def surest(rows: np.ndarray) -> np.ndarray:
    """Returns the tenth of the candidates with the highest scores: a head without DFL trains no other boxes."""
    scores = rows[:, 4:].max(axis=-1)
    return np.asarray(rows[scores >= np.quantile(scores, 0.9)])


def about_boxes(boxes: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Returns true for each keypoint ``[n, K, 2 or 3]`` in a box of twice the size of its own, bool ``[n, K]``."""
    middle, size = (boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]
    return np.asarray((np.abs(points[..., :2] - middle[:, None]) <= size[:, None]).all(axis=-1))


@dataclass(frozen=True)
class Layout:
    """The groups of columns of a row, in order; each has a name and a shape."""

    groups: tuple[tuple[str, tuple[int, ...]], ...]

    def __str__(self) -> str:
        return ",".join(f"{name}:{'x'.join(map(str, shape))}" if shape else name for name, shape in self.groups)

    @property
    def width(self) -> int:
        """The number of columns."""
        return sum(_width(name, shape) for name, shape in self.groups)

    @property
    def more_width(self) -> int:
        """The number of columns behind the box and the scores."""
        return sum(_width(name, shape) for name, shape in self.groups if name in BEHIND)

    @property
    def is_ready(self) -> bool:
        """The network has chosen the detections itself, and names the class of each."""
        return "class" in self.shapes

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each group by its name."""
        return dict(self.groups)

    def of(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Returns the columns of a group, ``[n, columns]``; no columns if there is no such group."""
        first = 0
        for each, shape in self.groups:
            end = first + _width(each, shape)
            if each == name:
                return rows[:, first:end]
            first = end
        return rows[:, :0]

    def boxes(self, rows: np.ndarray) -> np.ndarray:
        """Returns the two corners of each box."""
        return corners(self.of("xywh", rows)) if "xywh" in self.shapes else self.of("xyxy", rows)

    def scores(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the score and the class of each row."""
        if self.is_ready:
            return self.of("score", rows)[:, 0], self.of("class", rows)[:, 0].astype(np.int64)
        shares = self.of("classes", rows)
        if "objectness" in self.shapes:
            shares = shares * self.of("objectness", rows)
        return shares.max(axis=-1), shares.argmax(axis=-1)

    def read(self, rows: np.ndarray, kind: str) -> Detections:
        """Returns the detections of one image.

        Args:
            rows: ``[n, columns]``.
            kind: the group that each detection has beside its box; ``angle`` for rotated boxes: cx, cy, w, h, angle.
        """
        scores, classes = self.scores(rows)
        more = self.of(kind, rows)
        if kind == "angle":
            more = np.concatenate([self.of("xywh", rows), more], axis=-1)
        elif kind == "keypoints":
            more = more.reshape(len(rows), *self.shapes[kind])
        return Detections(self.boxes(rows), scores, classes, more)

    def fits(self, rows: np.ndarray) -> bool:
        """Returns true if the values of all rows can be of this layout, and tell each of its groups from a score."""
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
        """Returns true if coordinates are pixels, and third columns shares.

        With two columns a keypoint, half of them must lie in a box of twice the size of their own.
        """
        points = self.of("keypoints", rows).reshape(len(rows), *self.shapes["keypoints"])
        coordinates = points[..., :2].reshape(len(rows), -1)
        if any(are_shares(column) for column in coordinates.T):
            return False
        if points.shape[-1] == 3:
            return are_shares(points[..., 2])
        return bool(about_boxes(self.boxes(sure), self.of("keypoints", sure).reshape(len(sure), -1, 2)).mean() >= 0.5)


def _width(name: str, shape: tuple[int, ...]) -> int:
    return _WIDTHS.get(name, 4 if name == "dfl" else 1) * math.prod(shape)


BEHIND = ("keypoints", "angle", "masks")
_RAW = {"dfl", "classes", *BEHIND}
_SHARES = ("score", "objectness", "classes")


def parse_layout(text: str) -> Layout:
    """Returns the layout that a user names: ``xywh,classes:1,keypoints:17x3``.

    Raises:
        BadInput: it is none.
    """
    names = [name.strip() for name in text.split(",")]
    groups: list[tuple[str, tuple[int, ...]]] = []
    for name in names:
        if not _GROUP.match(name):
            raise BadInput(
                f"--head has no columns '{name}'.",
                "Give the columns in their order: xywh or xyxy, then classes:N, or score and class, and what follows "
                "of objectness, angle, keypoints:Kx3, keypoints:Kx2 and masks:N; of raw maps dfl:N and classes:N, or "
                f"yolov5 or yolov7. An example: {LAYOUT}.",
            )
        kind, _, shape = name.partition(":")
        groups.append((kind, tuple(int(one) for one in shape.split("x")) if shape else ()))
    layout = Layout(tuple(groups))
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
    """A layout, the output that has it, and whether its columns are the last axis."""

    output: str
    layout: Layout
    last: bool

    @property
    def note(self) -> str:
        """The way that the output is read, for the user."""
        return f"'{self.output}' as rows of {self.layout}"

    def rows(self, reference: Sequence[Outputs]) -> np.ndarray:
        """Returns the rows of all inputs, ``[n, columns]``."""
        return np.concatenate([turned(outputs[self.output], self.last) for outputs in reference])

    def read(self, outputs: Outputs, kind: str) -> list[Detections]:
        """Returns the candidates in each image; see ``Layout.read``."""
        return [self.layout.read(turned(image[None], self.last), kind) for image in outputs[self.output]]


def named_layout(layout: Layout, reference: Sequence[Outputs]) -> Placed:
    """Returns the one place where outputs can have the layout that the user names.

    Raises:
        BadInput: there is no such place, or there are several.
    """
    places = [
        Placed(name, layout, axis == 2)
        for name, value in reference[0].items()
        if value.ndim == 3 and value.dtype.kind == "f"
        for axis in (1, 2)
        if all(outputs[name].shape[axis] == layout.width for outputs in reference)
    ]
    if len(places) != 1:
        shapes = ", ".join(f"'{name}' {list(value.shape)}" for name, value in reference[0].items())
        raise BadInput(
            f"--head {layout} has {layout.width} columns, and {'several' if places else 'no'} axes of the outputs "
            f"{shapes} have that length.",
            "Name the output with --outputs, and all columns of its rows with --head.",
        )
    return places[0]


def fitting_layouts(reference: Sequence[Outputs], make: Callable[[np.ndarray, bool], Iterable[Layout]]) -> list[Placed]:
    """Returns the layouts that the values of the outputs can have.

    Args:
        reference: the FP32 outputs for each input.
        make: from rows, and whether columns are the last axis, to the layouts to try.
    """
    found = []
    for name, value in reference[0].items():
        if value.ndim != 3 or value.dtype.kind != "f" or any(outputs[name].ndim != 3 for outputs in reference):
            continue
        for last in (True, False):
            if len({outputs[name].shape[2 if last else 1] for outputs in reference}) > 1:
                continue
            rows = np.concatenate([turned(outputs[name], last) for outputs in reference])
            many, width = value.shape[1 if last else 2], rows.shape[1]
            if not len(rows) or width < 6:
                continue
            found += [
                Placed(name, layout, last)
                for layout in make(rows, last)
                if layout.width == width and (last if layout.is_ready else many >= width) and layout.fits(rows)
            ]
    return found
