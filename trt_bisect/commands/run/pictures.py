"""The pictures of a run: the worst images, with what each plan finds in them.

A picture is the network's own input, with its values scaled linearly to 0..255.
"""

from __future__ import annotations

import ast
import base64
import colorsys
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from trt_bisect.analyzer.metrics import AGREEMENT
from trt_bisect.analyzer.tasks.detections import NO_DETECTIONS, Detections
from trt_bisect.analyzer.tasks.find import spelled
from trt_bisect.analyzer.tasks.objects import SEEN, turned_corners
from trt_bisect.analyzer.tasks.task import Scaling, Task
from trt_bisect.answer.accuracy import letters_in
from trt_bisect.answer.result import Answer
from trt_bisect.builder.base import Engine, Outputs
from trt_bisect.data.feeds import Feeds, read_archive
from trt_bisect.errors import first_line, lacks_room
from trt_bisect.evaluator.trial import Trial
from trt_bisect.precision import PrecisionPlan
from trt_bisect.preparation.workspace import SAMPLE, TENSORS
from trt_bisect.report.explanation import FP32, INVENTED, KEPT, LOST, Drawing, Mark, Picture, Pictures
from trt_bisect.report.model import Report
from trt_bisect.support.progress import Progress
from trt_bisect.support.text import EXPLANATION, Note

MOST = 6  # the most pictures of a run
_SIDE = 320  # the most pixels along a side of a picture in the file
_MARKS = 100  # the most detections in a picture, the best by score; the counts include all of them
_NOT_FINITE = "NaN or infinite values"
_CLASS_OPACITY, _OTHER_CLASS = 110, (200, 30, 24, 255)  # red: pixels whose class differs from FP32's; no class is red
_COLOURS = {"": (60, 140, 240, 120), KEPT: (60, 140, 240, 120), INVENTED: (200, 30, 24, 150)}


def pictured(answer: Answer, report: Report, folder: Path | None, progress: Progress) -> Report:
    """Returns ``report`` with the pictures of the worst images, or with a note if they could not be drawn."""
    try:
        return report.changed(pictures=worst_pictures(answer, folder, progress))
    except Exception as error:
        if lacks_room(error):
            raise
        text = f"the worst images could not be drawn: {type(error).__name__}: {first_line(error)}"
        return report.changed(notes=(*report.notes, Note(EXPLANATION, text)))


def worst_pictures(answer: Answer, folder: Path | None, progress: Progress) -> Pictures | None:
    """Returns at most six pictures: of the inputs with the largest loss in full INT8, of equals those with the largest
    loss in the recipe.

    None if the inputs are no images, the task cannot be shown, or no input has a loss. Outputs come from the tensors of
    ``--save-tensors`` in ``folder``, else plans run again.

    Raises:
        TrialFailed: a plan cannot be built or run.
    """
    experiment, inputs = answer.experiment, answer.inputs.given
    task = experiment.task
    if task is None or task.shown is None or not len(inputs) or not frames_of(inputs.feeds[0]):
        return None
    losses = list(zip(*(_losses(answer, trial) for trial in (answer.of_user.full, answer.restored)), strict=True))
    with_losses = [input_index for input_index, pair in enumerate(losses) if max(pair) > 0.0]
    worst = sorted(with_losses, key=losses.__getitem__, reverse=True)[:MOST]
    if not worst:
        return None
    progress.stage("Drawing the worst images", None)
    of_user, full = answer.of_user, experiment.network.full(experiment.whole.high)
    plans = {"int8": (of_user, full), "recipe": (answer, answer.recipe.plan)}
    if of_user is answer and answer.recipe.plan == full:
        del plans["recipe"]
    by_name = {name: list(_outputs(of, name, plan, worst, folder)) for name, (of, plan) in plans.items()}
    references = [inputs.references[input_index] for input_index in worst]
    scaling = None if task.scaling is None else task.scaling(references)
    letters = letters_in(task, experiment.network) or class_names(experiment.network.properties)
    pictures: list[Picture] = []
    for number, input_index in enumerate(worst):
        by_plan = {FP32: references[number], **{name: outputs[number] for name, outputs in by_name.items()}}
        pictures += pictures_of(inputs.labels[input_index], inputs.feeds[input_index], by_plan, task, scaling, letters)
    return Pictures(task.entry.removeprefix("task "), task.note, tuple(pictures[:MOST])) if pictures else None


def _losses(answer: Answer, trial: Trial) -> list[float]:
    task, name = answer.experiment.task, AGREEMENT.name
    figures = None if task is None else trial.outputs.get(task.entry)
    if figures is None:
        return [0.0] * len(answer.inputs.given)
    values = figures.inputs.get(name, (figures.values.get(name, math.nan),) * len(answer.inputs.given))
    losses = []
    for value in values:
        if value is None:
            losses.append(0.0)
        else:
            losses.append(1.0 - value if math.isfinite(value) else 1.0)
    return losses


def _outputs(
    answer: Answer, name: str, plan: PrecisionPlan, indices: list[int], folder: Path | None
) -> Iterator[Outputs]:
    saved = Path() if folder is None else folder / TENSORS / name
    experiment = answer.experiment
    with ExitStack() as stack:
        engine: Engine | None = None
        for input_index in indices:
            path = saved / SAMPLE.format(input_index)
            if folder is not None and path.is_file():
                yield read_archive(path)
                continue
            if engine is None:
                engine = stack.enter_context(experiment.builder.build(experiment.whole.canonical(plan)))
            yield engine.infer(answer.inputs.given.feeds[input_index])


def frames_of(feeds: Feeds) -> list[np.ndarray]:
    """Returns the pictures in an input as uint8, ``[H, W, 3]``; empty if the input has no picture.

    A picture has 1 or 3 channels, before or behind its height and width, which are above 1.
    """
    for values in feeds.values():
        array = np.asarray(values)
        if array.ndim != 4 or array.dtype.kind not in "fiu":
            continue
        if array.shape[1] in (1, 3):
            array = array.transpose(0, 2, 3, 1)
        elif array.shape[3] not in (1, 3):
            continue
        if min(array.shape[1:3]) > 1:
            return [_as_bytes(np.broadcast_to(frame, (*frame.shape[:2], 3))) for frame in array]
    return []


def _as_bytes(values: np.ndarray) -> np.ndarray:
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    scaled = (np.nan_to_num(values.astype(np.float64), nan=low, posinf=high, neginf=low) - low) / ((high - low) or 1.0)
    return np.asarray(np.round(255 * scaled), np.uint8)


def data_uri(image: np.ndarray, *, smooth: bool = True) -> str:
    """Returns an image, uint8 ``[H, W, 3 or 4]``, as PNG in a data URI, no side longer than 320 pixels.

    Args:
        smooth: average when shrinking, else take the nearest pixel.
    """
    from PIL import Image

    shown, largest = Image.fromarray(image), max(image.shape[:2])
    if largest > _SIDE:
        size = tuple(max(1, round(side * _SIDE / largest)) for side in shown.size)
        shown = shown.resize(size, Image.Resampling.BOX if smooth else Image.Resampling.NEAREST)
    file = io.BytesIO()
    shown.save(file, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def pictures_of(
    name: str, feeds: Feeds, plans: Mapping[str, Outputs], task: Task, scaling: Scaling | None, letters: Sequence[str]
) -> list[Picture]:
    """Returns a picture for each image of an input; empty if there are none, or the outputs are not of these images.

    Args:
        name: the input's name in the report.
        plans: outputs by plan, FP32's first.
        scaling: returns the factors from the boxes' coordinates to pixels; None for a task without boxes.
        letters: characters of a text's classes, or the names of the boxes' classes; empty if unknown.
    """
    frames, read = frames_of(feeds), task.shown
    assert read is not None
    judge = task.judge([plans[FP32]])
    seen = {
        plan: read(outputs) if all(np.isfinite(outputs[name]).all() for name in task.reads) else None
        for plan, outputs in plans.items()
    }
    before = seen[FP32]
    most = max((len(images) for images in seen.values() if images is not None), default=0)
    if not before or most > len(frames) or (most < len(frames) and not isinstance(before[0], Detections)):
        return []
    agreements = {plan: judge({0: outputs}).values.get(AGREEMENT.name) for plan, outputs in plans.items()}
    pictures = []
    for k, frame in enumerate(frames):
        height, width = frame.shape[:2]
        scale = np.ones(2) if scaling is None else scaling(plans[FP32], (width, height))
        drawn = []
        for plan, images in seen.items():
            agreement = None if plan == FP32 else agreements[plan]
            if images is None:
                drawn.append(Drawing(plan, agreement, {}, text=_NOT_FINITE))
                continue
            image, reference = _at(images, k), _at(before, k)
            if isinstance(image, Detections):
                drawn.append(_detections(plan, agreement, reference, image, task, scale, letters))
            elif isinstance(image, np.ndarray):
                overlay = _classes if image.dtype.kind in "iu" else _depths
                drawn.append(Drawing(plan, agreement, {}, overlay=overlay(reference, image)))
            else:
                text = image if isinstance(image, str) else spelled(image, letters)
                drawn.append(Drawing(plan, agreement, {}, text=text))
        pictures.append(
            Picture(name if len(frames) == 1 else f"{name}, image {k}", width, height, data_uri(frame), (*drawn,))
        )
    return pictures


def _at(images: Sequence[Any], image_index: int) -> Any:
    # there are no entries behind the last image with detections
    return images[image_index] if image_index < len(images) else NO_DETECTIONS


def class_names(properties: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the class names in the ONNX property of Ultralytics' exports, ``{0: 'person', ...}``; empty without this
    property.
    """
    try:
        names = ast.literal_eval(properties.get("names", "{}"))
        return tuple(str(names[k]) for k in range(len(names)))
    except (ValueError, SyntaxError, KeyError, TypeError, MemoryError, RecursionError):
        return ()


def _detections(
    plan: str,
    agreement: float | None,
    before: Detections,
    after: Detections,
    task: Task,
    scale: np.ndarray,
    names: Sequence[str],
) -> Drawing:
    if plan == FP32 or task.pairs is None:
        kinds = [""] * len(after)
        return Drawing(plan, agreement, {}, _marks(after, kinds, scale, names), _masks(after, kinds))
    pairs = task.pairs(before, after)
    kinds = [KEPT if k in pairs else INVENTED for k in range(len(after))]
    lost = before.at(np.flatnonzero(pairs < 0))
    marks = (*_marks(lost, [LOST] * len(lost), scale, names), *_marks(after, kinds, scale, names))
    counts = {KEPT: kinds.count(KEPT), LOST: len(lost), INVENTED: kinds.count(INVENTED)}
    return Drawing(plan, agreement, counts, marks[:_MARKS], _masks(after, kinds))


def _marks(detections: Detections, kinds: Sequence[str], scale: np.ndarray, names: Sequence[str]) -> tuple[Mark, ...]:
    low, high = detections.boxes[:, :2], detections.boxes[:, 2:]
    outlines = np.stack([low, np.stack([high[:, 0], low[:, 1]], -1), high, np.stack([low[:, 0], high[:, 1]], -1)], 1)
    more, points = detections.more, [np.zeros((0, 2))] * len(detections)
    if more.dtype != bool and more.ndim == 3:
        points = [pose[pose[:, 2] >= SEEN, :2] if pose.shape[1] == 3 else pose for pose in more]
    elif more.dtype != bool and more.shape[-1] == 5:
        outlines = turned_corners(more)
    labels = [names[k] if k < len(names) else str(k) for k in detections.classes.tolist()]
    return tuple(
        Mark(kind, f"{label} {score:.2f}", _rounded(outline * scale), _rounded(seen * scale))
        for kind, label, score, outline, seen in zip(
            kinds, labels, detections.scores.tolist(), outlines, points, strict=True
        )
    )


def _rounded(points: np.ndarray) -> tuple[tuple[float, float], ...]:
    return tuple((round(x, 1), round(y, 1)) for x, y in np.nan_to_num(points).tolist())


def _masks(detections: Detections, kinds: Sequence[str]) -> str:
    if detections.more.dtype != bool or not len(detections):
        return ""
    image = np.zeros((*detections.more.shape[1:], 4), np.uint8)
    for kind, mask in zip(kinds, detections.more, strict=True):
        image[mask] = _COLOURS[kind]
    return data_uri(image, smooth=False)


def _classes(before: np.ndarray, after: np.ndarray) -> str:
    # FP32's most frequent class has no colour
    labels, counts = np.unique(before, return_counts=True)
    image = np.zeros((*after.shape, 4), np.uint8)
    for label in np.unique(after).tolist():
        hue = 1 / 6 + 2 / 3 * (label * 0.618 % 1)
        red, green, blue = (round(255 * part) for part in colorsys.hsv_to_rgb(hue, 0.9, 0.9))
        if label != labels[counts.argmax()]:
            image[after == label] = (red, green, blue, _CLASS_OPACITY)
    image[after != before if after.shape == before.shape else ...] = _OTHER_CLASS
    return data_uri(image, smooth=False)


def _depths(before: np.ndarray, after: np.ndarray) -> str:
    clipped = np.clip(after, before.min(), before.max())
    shares = (clipped - before.min()) / (float(np.ptp(before)) or 1.0)
    return data_uri(np.repeat(np.asarray(np.round(255 * shares), np.uint8)[..., None], 3, axis=-1))
