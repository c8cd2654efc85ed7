"""Segmentation: the share of pixels whose class is that of FP32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from trt_bisect.analyzer.classes import OWN, Classes, find_classes
from trt_bisect.analyzer.tasks.task import AGREED, ITEMS, AskedTask, Counts, Task, each_input, not_told
from trt_bisect.builder.base import Outputs

SUPPORTED = (
    "images of class scores ([N, C, H, W]; --class-axis names another axis), of one channel ([N, 1, H, W] or [N, H, W] "
    "in 0..1), or of integer labels"
)
_LABELS = "labels"


def segment(asked: AskedTask, reference: Sequence[Outputs]) -> Task:
    """Returns the task for outputs of images: scores with a class axis, one channel, or integer labels.

    A pixel of one channel belongs to the object above 0.5, or above 0 if the values are logits.

    Raises:
        BadInput: no output is such an image.
    """
    found = {name: classes for name in reference[0] if (classes := _classes(name, asked, reference)) is not None}
    if not found:
        raise not_told(asked.name, reference[0], SUPPORTED)
    sizes = {name: _number_of_classes(name, classes, reference) for name, classes in found.items()}

    def read(outputs: Outputs) -> dict[str, np.ndarray]:
        return {name: _labels(classes, outputs[name]) for name, classes in found.items()}

    def count(before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray]) -> Counts:
        each = [_counted(before[name], after[name], sizes[name]) for name in found]
        areas = {key: np.concatenate([one[key] for one in each]) for key in ("intersections", "unions")}
        return {AGREED: sum(one[AGREED] for one in each), ITEMS: sum(one[ITEMS] for one in each), **areas}

    how = ", ".join(f"'{name}' ({_how(classes)})" for name, classes in found.items())
    note = f"--task {asked.name} compares the class of each pixel of {how}"
    return Task(asked.entry, note, tuple(found), each_input(list(found), read, count, _miou))


def _classes(name: str, asked: AskedTask, reference: Sequence[Outputs]) -> Classes | None:
    """Returns the classes of an output, its axis None for one channel; None if it is no image."""
    arrays = [each[name] for each in reference]
    first = arrays[0]
    if first.ndim < 2 or np.sum(np.array(first.shape) > 1) < 2:
        return None
    if first.dtype.kind in "iub":
        return Classes(None, _LABELS)
    classes = find_classes(arrays, asked.class_axis if _has(first, asked.class_axis) else None)
    if first.ndim == 4 and 1 in (first.shape[1], first.shape[-1]):
        return Classes(None, classes.kind)
    if first.ndim == 3 and classes.axis is None and classes.kind == OWN:
        return Classes(None, OWN)
    spatial = first.ndim - 1 - (first.ndim > 3)
    return classes if classes.axis is not None and spatial >= 2 else None


def _has(array: np.ndarray, axis: int | None) -> bool:
    return axis is not None and -array.ndim <= axis < array.ndim


def _number_of_classes(name: str, classes: Classes, reference: Sequence[Outputs]) -> int:
    if classes.kind == _LABELS:
        return int(max(each[name].max(initial=0) for each in reference)) + 1
    return 2 if classes.axis is None else int(reference[0][name].shape[classes.axis])


def _labels(classes: Classes, output: np.ndarray) -> np.ndarray:
    """Returns the class of each pixel, int64, of the output's shape without the class axis."""
    if classes.kind == _LABELS:
        return output.astype(np.int64)
    values = np.where(np.isnan(output), -np.inf, output)
    found = values > classes.middle if classes.axis is None else values.argmax(axis=classes.axis)
    return np.asarray(found, np.int64)


def _counted(before: np.ndarray, after: np.ndarray, classes: int) -> dict[str, np.ndarray]:
    """Returns the counts of one output. Other labels than FP32's are a class of their own, which FP32 has nowhere."""
    if before.shape != after.shape:
        after = np.full_like(before, -1)
    labels = [np.where((image < 0) | (image >= classes), classes, image).ravel() for image in (before, after)]
    same = labels[0] == labels[1]
    areas = partial(np.bincount, minlength=classes + 1)
    intersections = areas(labels[0][same])
    unions = areas(labels[0]) + areas(labels[1]) - intersections
    counts = {AGREED: same.sum(), ITEMS: same.size, "intersections": intersections, "unions": unions}
    return {key: np.asarray(value, np.float64) for key, value in counts.items()}


def _miou(total: Counts) -> dict[str, float]:
    """Returns the mean over the classes that either side has of intersection over union, all pixels together."""
    present = total["unions"] > 0
    return {"miou": float(np.mean(total["intersections"][present] / total["unions"][present]))}


def _how(classes: Classes) -> str:
    if classes.kind == _LABELS:
        return "labels"
    return f"one channel, above {classes.middle:g}" if classes.axis is None else f"largest along axis {classes.axis}"
