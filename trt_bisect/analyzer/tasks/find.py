"""All tasks, by name, and the search for a task that outputs look like.

The agreement is the share of rows or pixels with FP32's class, or of characters that need no edit after greedy CTC
decoding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import groupby, zip_longest

import numpy as np

from trt_bisect.analyzer.classes import LOGITS, OWN, SHARES, Classes, find_classes, sigmoid, softmax
from trt_bisect.analyzer.tasks.detect import detect, ends_with, find_head
from trt_bisect.analyzer.tasks.detections import Head
from trt_bisect.analyzer.tasks.layouts import BACKGROUND
from trt_bisect.analyzer.tasks.objects import instances, obb, pose
from trt_bisect.analyzer.tasks.task import (
    AFTER,
    AGREED,
    FOUND,
    IN_FP32,
    INVENTED_OBJECTS,
    ITEMS,
    LOST_OBJECTS,
    OBJECTS,
    AskedTask,
    Counts,
    Task,
    beyond_chance,
    lost_classes,
    not_told,
    share,
    task_of,
)
from trt_bisect.builder.base import Outputs
from trt_bisect.data.feeds import TensorSpec
from trt_bisect.errors import BadInput

_FEW_CLASSES = 10
_SURE = 0.9

CLASSIFY_OUTPUTS = "outputs of floats with an axis of classes, which --class-axis can name"
_TOP = 5


def classify(asked: AskedTask, reference: Sequence[Outputs]) -> Task:
    """Returns the task for class scores in FP32's outputs by input. The class axis is ``asked.class_axis`` or, if None,
    found. Raises BadInput if no output has a class axis or, without ``asked.class_axis``, the outputs look like
    detections.
    """
    axis = asked.class_axis
    floats = {name: value for name, value in reference[0].items() if value.dtype.kind == "f" and value.ndim}
    fitting = [name for name, value in floats.items() if axis is None or -value.ndim <= axis < value.ndim]
    found = {name: find_classes([outputs[name] for outputs in reference], axis) for name in fitting}
    classes_of = {name: classes for name, classes in found.items() if classes.axis is not None}
    if not classes_of or (axis is None and _are_detections(reference)):
        raise not_told(asked, reference, CLASSIFY_OUTPUTS)
    axes = ", ".join(f"'{name}' (axis {classes.axis})" for name, classes in classes_of.items())

    def read(outputs: Outputs) -> dict[str, np.ndarray]:
        return {name: np.asarray(outputs[name], np.float64) for name in classes_of}

    def count(before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray]) -> Counts:
        counts = [_counted_classify(classes, before[name], after[name]) for name, classes in classes_of.items()]
        return {key: sum((count[key] for count in counts[1:]), start=counts[0][key]) for key in counts[0]}

    def further(total: Counts) -> dict[str, float]:
        top5 = {"top5": share(total["in_five"], total["rows_of_six"])} if total["rows_of_six"] else {}
        return {"top1": share(total[AGREED], total[ITEMS]), **top5, **beyond_chance(total)}

    def names(outputs: Outputs) -> list[str]:
        name, classes = next(iter(classes_of.items()))
        return [f"class {index}" for index in classes.predicted(np.asarray(outputs[name], np.float64)).tolist()]

    how = f"compares the class with the largest score of {axes}"
    return task_of(asked, how, [*classes_of], read, count, further, shown=names)


def _counted_classify(classes: Classes, before: np.ndarray, after: np.ndarray) -> Counts:
    # Rows that only one side has do not agree.
    expected, predicted = classes.predicted(before), classes.predicted(after)
    shared, rows = sorted((len(expected), len(predicted)))
    expected, predicted, scores = expected[:shared], predicted[:shared], classes.rows(after)[:shared]
    has_five = scores.shape[-1] > _TOP
    largest = np.argsort(-scores, axis=-1, kind="stable")[:, :_TOP] if has_five else scores[:, :0]
    return {
        AGREED: float((expected == predicted).sum()),
        ITEMS: float(rows),
        "in_five": float((largest == expected[:, None]).any(axis=-1).sum()),
        "rows_of_six": float(rows if has_five else 0),
        IN_FP32: Counter(expected.tolist()),
        AFTER: Counter(predicted.tolist()),
    }


SEGMENT_OUTPUTS = (
    "images of class scores ([N, C, H, W]; --class-axis names another axis), of one channel ([N, 1, H, W] or [N, H, W] "
    "in 0..1), or of integer labels, or masks of queries [N, Q, H, W] next to their classes [N, Q, C + 1] (MaskFormer)"
)
_LABELS = "labels"
# A class of this many pixels, and this share of all pixels, in an image is an object.
_FEWEST_PIXELS, _LEAST_OBJECT = 8, 0.002
_OBJECTS = (OBJECTS, LOST_OBJECTS, INVENTED_OBJECTS)
_BY_CLASS = (*_OBJECTS, IN_FP32, AFTER)


def segment(asked: AskedTask, reference: Sequence[Outputs]) -> Task:
    """Returns the task for images in FP32's outputs by input: of scores with a class axis, of classes and masks of
    queries, of scores in one channel, or of integer labels.

    In one channel, a pixel above 0.5, or above 0 for logits, belongs to the object. Raises BadInput if there are no
    such outputs or, without ``asked.class_axis``, the outputs look like detections.
    """
    queries = _queries(reference) if asked.class_axis is None else None
    images: Callable[[Outputs], Outputs] = dict
    reads: tuple[str, ...]
    if queries is not None:
        classes_of, reads, images = {"queries": Classes(1, OWN)}, queries, partial(_of_queries, *queries)
        how = f"queries: classes in '{queries[0]}', masks in '{queries[1]}'"
    else:
        found = {name: _classes(name, asked, reference) for name in reference[0]}
        classes_of = {name: classes for name, classes in found.items() if classes is not None}
        if not classes_of or (asked.class_axis is None and _are_detections(reference)):
            raise not_told(asked, reference, SEGMENT_OUTPUTS)
        reads, how = tuple(classes_of), ", ".join(f"'{name}' ({_how(classes)})" for name, classes in classes_of.items())
    sizes: dict[str, int] = {}
    for name, classes in classes_of.items():
        if classes.kind == _LABELS:
            sizes[name] = int(max(outputs[name].max(initial=0) for outputs in reference)) + 1
        else:
            sizes[name] = 2 if classes.axis is None else images(reference[0])[name].shape[classes.axis]

    def read(outputs: Outputs) -> dict[str, np.ndarray]:
        return {name: _labels(classes_of[name], value) for name, value in images(outputs).items() if name in classes_of}

    def compared_with(reference: Sequence[Outputs]) -> list[dict[str, _Pixels]]:
        compared = []
        for arrays in map(images, reference):
            compared.append(
                {name: (_labels(of, arrays[name]), _sure(of, arrays[name])) for name, of in classes_of.items()}
            )
        return compared

    def count(before: Mapping[str, _Pixels], after: Mapping[str, np.ndarray]) -> Counts:
        counts = [_counted_segment(before[name], after[name], sizes[name]) for name in classes_of]
        totals = {key: sum(count[key] for count in counts) for key in (AGREED, ITEMS)}
        totals |= {key: sum((count[key] for count in counts), Counter()) for key in _BY_CLASS}
        return totals | {key: np.concatenate([count[key] for count in counts]) for key in ("intersections", "unions")}

    def pixels(outputs: Outputs) -> list[np.ndarray]:
        labels = next(iter(read(outputs).values()))
        return list(labels.reshape(-1, *labels.shape[-2:]))

    how = f"compares the class of each pixel of {how}"
    task = task_of(asked, how, reads, read, count, _of_pixels, compared_with=compared_with, vanished=lost_classes)
    return replace(task, shown=pixels)


def _queries(reference: Sequence[Outputs]) -> tuple[str, str] | None:
    floats = {name: value.shape for name, value in reference[0].items() if value.dtype.kind == "f"}
    pairs = [
        (classes, masks)
        for masks, shape in floats.items()
        for classes, scores in floats.items()
        if len(shape) == 4 and len(scores) == 3 and shape[:2] == scores[:2] and min(shape[1:]) > 1 and scores[2] > 1
    ]
    return pairs[0] if len(pairs) == 1 else None


def _of_queries(classes: str, masks: str, outputs: Outputs) -> Outputs:
    # Returns the scores of each pixel's classes. Each query has a mask and class scores, the last for "no object".
    # Source: Cheng et al. 2021, "Per-Pixel Classification is Not All You Need for Semantic Segmentation".
    shares = softmax(np.asarray(outputs[classes], np.float64))[..., :-1]
    pixels = sigmoid(np.asarray(outputs[masks], np.float64))
    return {"queries": np.asarray(np.einsum("nqc,nqhw->nchw", shares, pixels))}


def _classes(name: str, asked: AskedTask, reference: Sequence[Outputs]) -> Classes | None:
    # Returns None if the output is no image; an image of one channel has axis None.
    arrays = [outputs[name] for outputs in reference]
    first = arrays[0]
    if first.ndim < 2 or np.sum(np.array(first.shape) > 1) < 2:
        return None
    if first.dtype.kind in "iub":
        return Classes(None, _LABELS)
    has_axis = asked.class_axis is not None and -first.ndim <= asked.class_axis < first.ndim
    classes = find_classes(arrays, asked.class_axis if has_axis else None)
    if first.ndim == 4 and 1 in (first.shape[1], first.shape[-1]):
        is_depth = classes.kind == LOGITS and all((array >= 0.0).all() for array in arrays)
        return None if is_depth else Classes(None, classes.kind)
    if first.ndim == 3 and classes.axis is None and classes.kind == OWN:
        return Classes(None, OWN)
    sides = [side for axis, side in enumerate(first.shape) if axis != classes.axis and (axis or first.ndim < 4)]
    if classes.axis is not None and sum(side > 1 for side in sides) >= 2:
        return classes
    return None


def _labels(classes: Classes, output: np.ndarray) -> np.ndarray:
    if classes.kind == _LABELS:
        return output.astype(np.int64)
    values = np.where(np.isnan(output), -np.inf, output)
    labels = values > classes.middle if classes.axis is None else values.argmax(axis=classes.axis)
    return np.asarray(labels, np.int64)


def _sure(classes: Classes, output: np.ndarray) -> np.ndarray:
    if classes.kind == _LABELS:
        return np.ones(output.size, bool)
    if classes.axis is None:
        return Classes(-1, classes.kind).sure(output[..., None])
    return classes.sure(output)


_Pixels = tuple[np.ndarray, np.ndarray]  # The class of each pixel; and true for pixels whose class FP32 is sure of.


def _counted_segment(before: _Pixels, after: np.ndarray, classes: int) -> Counts:
    # Labels outside 0..classes - 1 form one class. A class is an object in an image if FP32 is sure of it in enough
    # pixels, and lost if the output has it in none of them. A class is invented if the output has it in enough pixels
    # of an image, and FP32 in none.
    in_fp32, sure = before
    shape = in_fp32.shape
    if after.shape != shape:
        after = np.full(shape, -1)
    labels = [np.where((image < 0) | (image >= classes), classes, image).ravel() for image in (in_fp32, after)]
    same = labels[0] == labels[1]
    areas = partial(np.bincount, minlength=classes + 1)
    intersections = areas(labels[0][same])
    sizes = [areas(image) for image in labels]
    unions = sizes[0] + sizes[1] - intersections
    objects, lost, invented = Counter[int](), Counter[int](), Counter[int]()
    pixels = max(1, int(np.prod(shape[-2:])))
    fewest = max(_FEWEST_PIXELS, _LEAST_OBJECT * pixels)
    for start in range(0, same.size, pixels):
        image = slice(start, start + pixels)
        expected, is_sure = labels[0][image], sure[image]
        is_object = areas(expected[is_sure]) >= fewest
        is_lost = is_object & (areas(expected[is_sure & same[image]]) == 0)
        is_invented = (areas(labels[1][image]) >= fewest) & (areas(expected) == 0)
        objects.update(np.flatnonzero(is_object).tolist())
        lost.update(np.flatnonzero(is_lost).tolist())
        invented.update(np.flatnonzero(is_invented).tolist())
    counts = {AGREED: same.sum(), ITEMS: same.size, "intersections": intersections, "unions": unions}
    numbers = {key: np.asarray(value, np.float64) for key, value in counts.items()}
    pixels_of = [Counter(dict(enumerate(of_all.tolist()))) for of_all in sizes]
    by_class = {IN_FP32: pixels_of[0], AFTER: pixels_of[1]}
    return {**numbers, **by_class, OBJECTS: objects, LOST_OBJECTS: lost, INVENTED_OBJECTS: invented}


def _of_pixels(total: Counts) -> dict[str, float]:
    present = total["unions"] > 0
    miou = float(np.mean(total["intersections"][present] / total["unions"][present]))
    return {"miou": miou, **{key: total[key].total() for key in _OBJECTS}, **beyond_chance(total)}


def _how(classes: Classes) -> str:
    if classes.kind == _LABELS:
        return "labels"
    if classes.axis is None:
        return f"one channel, above {classes.middle:g}"
    return f"largest along axis {classes.axis}"


DEPTH_OUTPUTS = (
    "one map of depths or disparities, [N, 1, H, W] or [N, H, W], from 0 on, 8 pixels or more along each side"
)
_LEAST_SIDE, _LONGEST = 8, 4
_LEAST_DEPTH = 1e-3  # Depths below this share of FP32's median count as this share, so that logarithms are finite.
_NEAR = 1.25


def depth(asked: AskedTask, reference: Sequence[Outputs]) -> Task:
    """Returns the task for maps of depths in FP32's outputs by input: the agreement of an image is 1 less its
    scale-invariant error: the standard deviation, over the pixels, of the difference of the logarithms.

    Raises BadInput unless exactly one output is such a map, or if the outputs look like detections.
    """
    names = [name for name in reference[0] if _is_depth([outputs[name] for outputs in reference])]
    if len(names) != 1 or _are_detections(reference):
        raise not_told(asked, reference, DEPTH_OUTPUTS)
    name = names[0]

    def read(outputs: Outputs) -> np.ndarray:
        return np.asarray(outputs[name], np.float64)

    def further(total: Counts) -> dict[str, float]:
        return {key: total[key] / total[ITEMS] for key in ("error", "near")}

    def images(outputs: Outputs) -> list[np.ndarray]:
        return list(read(outputs).reshape(-1, *outputs[name].shape[-2:]))

    how = f"compares '{name}' by the scale-invariant error of its logarithms"
    return task_of(asked, how, [name], read, _counted_depth, further, shown=images)


def _is_depth(arrays: Sequence[np.ndarray]) -> bool:
    first = arrays[0]
    if first.dtype.kind != "f" or not (first.ndim == 3 or (first.ndim == 4 and first.shape[1] == 1)):
        return False
    sides = sorted(first.shape[-2:])
    is_map = sides[0] >= _LEAST_SIDE and sides[1] <= _LONGEST * sides[0]
    values = [array for array in arrays if array.shape[-2:] == first.shape[-2:]]
    is_sane = len(values) == len(arrays) and all(np.isfinite(array).all() and (array >= 0).all() for array in arrays)
    is_varied = is_sane and all(array.max() > array.min() for array in arrays)
    return is_map and is_varied and find_classes(arrays).kind != SHARES


def _counted_depth(before: np.ndarray, after: np.ndarray) -> Counts:
    # An output of another shape has the largest error.
    images = len(before)
    if before.shape != after.shape:
        return {AGREED: 0.0, ITEMS: float(images), "error": float(images), "near": 0.0}
    before, after = before.reshape(images, -1), after.reshape(images, -1)
    least = _LEAST_DEPTH * np.maximum(np.median(before, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    apart = np.log(np.maximum(after, least)) - np.log(np.maximum(before, least))
    errors = apart.std(axis=1)
    near = np.abs(apart - np.median(apart, axis=1, keepdims=True)) < np.log(_NEAR)
    agreed = np.maximum(1.0 - errors, 0.0).sum()
    return {AGREED: agreed, ITEMS: float(images), "error": errors.sum(), "near": near.mean(axis=1).sum()}


EMBED_OUTPUTS = "one output of vectors, [D] or [N, D], or of vectors of tokens, [N, T, D]"
_SAME = 1e-6  # FP32's cosines that differ by less are equal: batched and single inputs differ by as much.


# FP32's vectors of one input [n, D] and of all inputs [N, D]; and for each of the n the rows that are the vector or its
# nearest neighbours (None: every row), empty if all are None.
_Sought = tuple[np.ndarray, np.ndarray, "list[np.ndarray | None]"]


def embed(asked: AskedTask, reference: Sequence[Outputs]) -> Task:
    """Returns the task for vectors in FP32's outputs by input: the first output of shape ``[N, D]`` or ``[D]``, else of
    ``[N, T, D]``, averaged over T. Raises BadInput if there is none, or the outputs look like detections.

    A vector agrees if it is closer to its own FP32 vector, and to that vector's nearest neighbour, than to all other
    FP32 vectors. With fewer than three different vectors the agreement is the cosine.
    """
    floats = {name: value for name, value in reference[0].items() if value.dtype.kind == "f"}
    ranks = {name: value.ndim for name, value in floats.items() if 1 <= value.ndim <= 3 and value.shape[-1] > 1}
    name = min(ranks, key=lambda name: ranks[name] == 3, default=None)
    if name is None or _are_detections(reference):
        raise not_told(asked, reference, EMBED_OUTPUTS)
    rows = "each row is a vector" if ranks[name] < 3 else "the average over the tokens (axis 1) is the vector"

    def further(total: Counts) -> dict[str, float]:
        return {"cosine": min(total["cosines"]), "mean_cosine": float(np.mean(total["cosines"]))}

    def read(outputs: Outputs) -> np.ndarray:
        return _vectors(outputs[name])

    def sought(reference: Sequence[Outputs]) -> list[_Sought]:
        return _sought([read(outputs) for outputs in reference])

    how = f"compares the nearest neighbours among FP32's vectors of the inputs by '{name}': {rows}"
    return task_of(asked, how, [name], read, _counted_embed, further, compared_with=sought)


def _vectors(output: np.ndarray) -> np.ndarray:
    # Returns [N, D], each vector of length 1; a vector that is zero or not finite becomes zero.
    values = np.asarray(output, np.float64)
    rows = np.atleast_2d(values.mean(axis=1) if values.ndim == 3 else values)
    rows = np.where(np.isfinite(rows).all(axis=-1, keepdims=True), rows, 0.0)
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), np.finfo(np.float64).tiny))


def _sought(vectors: Sequence[np.ndarray]) -> list[_Sought]:
    every = np.concatenate(vectors)
    nearest, first = list[list[np.ndarray | None]](), 0
    for of_input in vectors:
        nearest.append([_nearest(cosines, row) for row, cosines in enumerate(of_input @ every.T, first)])
        first += len(of_input)
    if all(near is None for of_input in nearest for near in of_input):
        nearest = [[] for _ in vectors]
    return [(of_input, every, near) for of_input, near in zip(vectors, nearest, strict=True)]


def _nearest(cosines: np.ndarray, row: int) -> np.ndarray | None:
    # Returns the rows that equal the vector of this row, or are its nearest neighbours; None for all rows.
    is_near = cosines >= np.delete(cosines, row).max(initial=-np.inf) - _SAME
    is_near[row] = True
    return None if is_near.all() else np.flatnonzero(is_near)


def _counted_embed(before: _Sought, after: np.ndarray) -> Counts:
    # Rows that only one side has do not agree.
    vectors, every, nearest = before
    shared, rows = sorted((len(vectors), len(after)))
    cosines = np.zeros(rows)
    cosines[:shared] = np.sum(vectors[:shared] * after[:shared], axis=-1)
    if not nearest:
        return {AGREED: float(cosines.sum()), ITEMS: float(rows), "cosines": cosines.tolist()}
    kept = 0.0
    for near, vector in zip(nearest, after, strict=False):
        to_all = vector @ every.T
        kept += near is not None and bool(to_all[near].min() > np.delete(to_all, near).max())
    counting = sum(near is not None for near in nearest) + rows - len(vectors)
    return {AGREED: kept, ITEMS: float(counting), "cosines": cosines.tolist()}


def _are_detections(reference: Sequence[Outputs]) -> bool:
    # Outputs of a detector can also look like classes, CTC scores, vectors or depths.
    # Six columns can be six classes, or detections: a single output of two axes is read as the asked task.
    if len(reference[0]) == 1 and next(iter(reference[0].values())).ndim < 3:
        return False
    try:
        return bool(_task_of_objects(reference) or _queries(reference) or find_head(reference))
    except BadInput:
        return True


def _task_of_objects(reference: Sequence[Outputs]) -> str:
    for task in ("instances", "pose", "obb"):
        with suppress(BadInput):
            TASKS[task](AskedTask(task), reference)
            return task
    return ""


TEXT_OUTPUTS = "one output of CTC scores, [N, T, C] or [T, 1, C], whose blank is the first or the last class"
_BLANKS = {"blank-first": 0, "blank-last": -1}  # The values of --head for text.
Line = tuple[int, ...]


def text(asked: AskedTask, reference: Sequence[Outputs]) -> Task:
    """Returns the task for CTC scores in FP32's outputs by input. The blank is named by ``asked.head`` or, if None,
    found from the values. Raises BadInput if no blank is found, or the outputs look like detections.
    """
    if asked.head not in (None, *_BLANKS):
        raise BadInput(f"--head '{asked.head}' names no blank.", f"Give --head {' or '.join(_BLANKS)}.")

    def scored(head: str | None) -> dict[str, int]:
        blanks = {name: blank_of(name, reference, head) for name in reference[0]}
        return {name: blank for name, blank in blanks.items() if blank is not None}

    found = scored(asked.head)
    if not found or _are_detections(reference):
        is_unclear = not found and bool(scored("blank-first"))
        raise not_told(asked, reference, TEXT_OUTPUTS, list(_BLANKS) if is_unclear else ())
    name, blank = next(iter(found.items()))

    def further(total: Counts) -> dict[str, float]:
        return {"lines": total["lines"], "exact": total["exact"], "edits": total[ITEMS] - total[AGREED]}

    def lines(outputs: Outputs) -> list[Line]:
        # Greedy decoding: best path of Graves et al. 2006, Connectionist Temporal Classification.
        steps = _best_of_steps(outputs[name])
        return [tuple(int(letter) for letter, _ in groupby(row.tolist()) if letter != blank) for row in steps]

    classes = reference[0][name].shape[-1]
    how = f"reads '{name}' as CTC scores of {classes} classes, of which {blank} is the blank"
    task = task_of(asked, how, [name], lines, _counted_text, further, shown=lines)
    return replace(task, letters=partial(letters_of, classes=classes, blank=blank))


def blank_of(name: str, reference: Sequence[Outputs], head: str | None = None) -> int | None:
    """Returns the index of the blank, the first or last class of the CTC scores in output ``name``: named by ``head``,
    such as ``blank-first``, or else by far FP32's most frequent class; None if unclear.
    """
    arrays = [outputs[name] for outputs in reference]
    classes = arrays[0].shape[-1] if arrays[0].ndim == 3 and arrays[0].dtype.kind == "f" else 0
    if classes < 2 or any(array.shape[-1] != classes for array in arrays):
        return None
    if head is not None:
        return int(_BLANKS[head] % classes)
    counts = np.bincount(np.concatenate([array.argmax(axis=-1).ravel() for array in arrays]), minlength=classes)
    *_, second, most = np.argsort(counts, kind="stable").tolist()
    if counts[most] >= 2 * counts[second] + 5 and most in (0, classes - 1):
        return int(most)
    return None


def letters_of(listed: str, classes: int, blank: int) -> tuple[str, ...]:
    """Returns the character of each class of CTC scores; empty if ``listed`` has another number of characters.

    Args:
        listed: the characters, one a line (PaddleOCR's ONNX property ``character``); a final space may be missing.
        classes: the number of classes, the blank included.
        blank: the index of the blank, whose text is empty.
    """
    letters = listed.rstrip("\n").split("\n")
    letters += [" "] * (len(letters) == classes - 2)
    letters.insert(0 if blank == 0 else len(letters), "")
    return tuple(letters) if listed and len(letters) == classes else ()


def spelled(line: Line, letters: Sequence[str]) -> str:
    """Returns a line of class indices as text; without ``letters``, as numbers."""
    if letters:
        return "".join(letters[index] for index in line)
    return " ".join(map(str, line))


def _best_of_steps(scores: np.ndarray) -> np.ndarray:
    # Scores are [N, T, C] or [T, 1, C]; returns [N, T].
    steps_first = scores.shape[1] == 1 and scores.shape[0] > 1
    best = np.where(np.isnan(scores), -np.inf, scores).argmax(axis=-1)
    return np.asarray(best.T if steps_first else best)


def _counted_text(before: Sequence[Line], after: Sequence[Line]) -> Counts:
    # A line that only one side has is compared with an empty line.
    pairs = list(zip_longest(before, after, fillvalue=()))
    # With the longer line of a pair no agreement is below 0.
    lengths = [max(map(len, pair)) for pair in pairs]
    edits = [edit_distance(*pair) for pair in pairs]
    letters = sum(lengths)
    found = sum(map(len, before))
    return {AGREED: letters - sum(edits), ITEMS: letters, FOUND: found, "lines": len(pairs), "exact": edits.count(0)}


def edit_distance(before: Line, after: Line) -> int:
    """Returns the fewest insertions, deletions and replacements that turn a line into another (Levenshtein 1966)."""
    row = list(range(len(after) + 1))
    for k, old in enumerate(before, 1):
        diagonal, row[0] = row[0], k
        for j, new in enumerate(after, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (old != new))
    return row[-1]


TASKS: dict[str, Callable[[AskedTask, Sequence[Outputs]], Task]] = {
    "classify": classify,
    "detect": detect,
    "segment": segment,
    "embed": embed,
    "text": text,
    "pose": pose,
    "obb": obb,
    "instances": instances,
    "depth": depth,
}
"""By task, the function that makes it from FP32's outputs for each input."""


_FEWEST_AXES = {"classify": 1, "embed": 1, "detect": 2}
"""By task, the fewest axes of an output that it can read; 3 for the others."""
_DETECTION_COLUMNS = (4, 6, 7)
"""The length of the last of two axes of detections: of boxes, or of the rows of a known table."""


def refuse_shapes(task: str, outputs: Sequence[TensorSpec]) -> None:
    """Raises BadInput if the outputs' shapes, as the file gives them, show that the task can read none of them."""
    if any(_can_read(task, output) for output in outputs):
        return
    remedy = "Leave out --task to judge the numbers."
    others = [f"--task {name}" for name in TASKS if any(_can_read(name, output) for output in outputs)]
    if others:
        remedy = f"Give {' or '.join(others)}, which can read such shapes, or leave out --task to judge the numbers."
    raise BadInput(f"--task {task} cannot read {', '.join(map(str, outputs))}: the shape does not fit.", remedy)


def _can_read(task: str, output: TensorSpec) -> bool:
    # False only if no values make the task read the output, by itself or with others.
    if not output.shape:
        return True  # The file gives no shape.
    if task == "segment":
        return sum(size != 1 for size in output.shape) >= 2
    if output.dtype.kind in "iub":
        return False
    if task == "detect" and len(output.shape) == 2:
        return output.shape[-1] in (None, *_DETECTION_COLUMNS)
    return len(output.shape) >= _FEWEST_AXES.get(task, 3)


def find_task(asked: AskedTask, reference: Sequence[Outputs]) -> Task:
    """Returns the task that the user asks for; ``reference`` are FP32's outputs by input, arrays of numbers.

    Raises:
        BadInput: the outputs do not fit the task; the remedy suggests a task that they fit.
    """
    try:
        return TASKS[asked.name](asked, reference)
    except BadInput as error:
        task, looks = _suggested(reference)
        if asked.head or task in ("", asked.name):
            raise
        raise BadInput(error.problem, f"{looks[0].upper()}{looks[1:]}. {error.remedy}") from error


def suggestion(reference: Sequence[Outputs]) -> str:
    """Returns a sentence that suggests a task for FP32's outputs; empty if they look like none."""
    return _suggested(reference)[1]


def _suggested(reference: Sequence[Outputs]) -> tuple[str, str]:
    # Names no task for raw maps whose layout the user must name.
    task = _task_of_objects(reference)
    if task:
        return task, f"the outputs look like {_JUDGED[task]}: --task {task} judges them"
    for name in reference[0]:
        task = _looks_like(name, reference)
        if task:
            return task, f"output '{name}' looks like {_LOOKS[task]}: --task {task} judges {_JUDGED[task]}"
    try:
        head = find_head(reference)
    except BadInput as error:
        return "", f"the outputs look like raw maps of a detector. {error.remedy.rstrip('.')}"
    if head is None or not _mostly_background(head, reference):
        return "", ""
    return "detect", f"the outputs look like detections ({head.note}): --task detect judges {_JUDGED['detect']}"


def _mostly_background(head: Head, reference: Sequence[Outputs]) -> bool:
    images = [image.scores for outputs in reference for image in head.read(outputs)]
    return head.is_ready or not images or bool(np.median(np.concatenate(images)) < BACKGROUND)


_JUDGED: Mapping[str, str] = {
    "classify": "the classes themselves",
    "detect": "the detections themselves",
    "segment": "the class of each pixel",
    "embed": "the nearest neighbours",
    "text": "the text itself",
    "pose": "poses",
    "obb": "oriented boxes",
    "instances": "instance masks",
}


_LOOKS: Mapping[str, str] = {
    "classify": "class probabilities",
    "segment": "masks",
    "embed": "vectors of length 1",
    "text": "CTC scores of text",
}


def _looks_like(name: str, reference: Sequence[Outputs]) -> str:
    arrays = [outputs[name] for outputs in reference]
    first = arrays[0]
    if first.dtype.kind != "f" or not all(array.ndim == first.ndim and np.isfinite(array).all() for array in arrays):
        return ""
    classes = find_classes(arrays)
    if classes.kind == SHARES and first.ndim == 3 and classes.axis == 2:
        blank = blank_of(name, reference) if first.shape[-1] > _FEW_CLASSES else None
        is_text = blank is not None and not ends_with([row for array in arrays for row in _best_of_steps(array)], blank)
        return "text" if is_text else ""
    if classes.kind == SHARES and first.ndim == 2:
        return "classify"
    if first.ndim == 4 and min(first.shape[2:]) > 1:
        is_mask = first.shape[1] == 1 and classes.kind == OWN and _is_sure(arrays)
        is_map = first.shape[1] > 1 and classes.kind == SHARES and classes.axis == 1
        return "segment" if is_mask or is_map else ""
    if first.ndim == 2 and first.shape[-1] > _FEW_CLASSES and classes.kind == LOGITS:
        lengths = np.concatenate([np.linalg.norm(array.astype(np.float64), axis=-1) for array in arrays])
        if np.allclose(lengths, 1.0, atol=1e-2):
            return "embed"
    return ""


def _is_sure(arrays: Sequence[np.ndarray]) -> bool:
    values = np.concatenate([array.ravel() for array in arrays])
    return bool(np.mean((values < 1.0 - _SURE) | (values > _SURE)) > _SURE and values.max() > 0.5 > values.min())
