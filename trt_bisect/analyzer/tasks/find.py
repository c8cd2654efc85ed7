"""The tasks by name, and what outputs look like."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from trt_bisect.analyzer.classes import LOGITS, OWN, SHARES, find_classes
from trt_bisect.analyzer.tasks.classify import classify
from trt_bisect.analyzer.tasks.detect import detect
from trt_bisect.analyzer.tasks.embed import embed
from trt_bisect.analyzer.tasks.heads import find_head
from trt_bisect.analyzer.tasks.segment import segment
from trt_bisect.analyzer.tasks.task import AskedTask, Task
from trt_bisect.analyzer.tasks.text import blank_of, text
from trt_bisect.builder.base import Outputs

TASKS: dict[str, Callable[[AskedTask, Sequence[Outputs]], Task]] = {
    "classify": classify,
    "detect": detect,
    "segment": segment,
    "embed": embed,
    "text": text,
}
_FEW_CLASSES = 10
_SURE = 0.9


def find_task(asked: AskedTask, reference: Sequence[Outputs]) -> Task:
    """Returns the task that the user asks for, as it is on these outputs.

    Args:
        asked: its name is a key of ``TASKS``.
        reference: the FP32 outputs for each input, arrays of numbers alone.

    Raises:
        BadInput: the outputs are not those of this task.
    """
    return TASKS[asked.name](asked, reference)


def suggestion(reference: Sequence[Outputs]) -> str:
    """Returns a sentence on the task that the outputs look like; empty if they look like none.

    Args:
        reference: the FP32 outputs for each input, arrays of numbers alone.
    """
    for name in reference[0]:
        arrays = [each[name] for each in reference]
        task, what = _looks_like(name, reference, arrays)
        if task:
            return f"output '{name}' looks like {what}: --task {task} judges {_JUDGED[task]}"
    head = find_head(reference)
    return f"the outputs look like detections ({head.note}): --task detect judges {_JUDGED['detect']}" if head else ""


_JUDGED: Mapping[str, str] = {
    "classify": "the classes themselves",
    "detect": "the detections themselves",
    "segment": "the class of each pixel",
    "embed": "the nearest neighbours",
    "text": "the text itself",
}


def _looks_like(name: str, reference: Sequence[Outputs], arrays: Sequence[np.ndarray]) -> tuple[str, str]:
    """Returns the task and the kind of an output; empty texts if it looks like none, or like detections."""
    first = arrays[0]
    if first.dtype.kind != "f" or not all(array.ndim == first.ndim and np.isfinite(array).all() for array in arrays):
        return "", ""
    classes = find_classes(arrays)
    if classes.kind == SHARES and first.ndim == 3 and classes.axis == 2:
        is_text = first.shape[-1] > _FEW_CLASSES and blank_of(name, reference) is not None
        return ("text", "CTC scores of text") if is_text else ("", "")
    if classes.kind == SHARES and first.ndim == 2:
        return "classify", "class probabilities"
    if first.ndim == 4 and min(first.shape[2:]) > 1:
        is_mask = first.shape[1] == 1 and classes.kind == OWN and _is_sure(arrays)
        is_map = first.shape[1] > 1 and classes.kind == SHARES and classes.axis == 1
        return ("segment", "masks") if is_mask or is_map else ("", "")
    if first.ndim == 2 and first.shape[-1] > _FEW_CLASSES and classes.kind == LOGITS and _have_length_one(arrays):
        return "embed", "vectors of length 1"
    return "", ""


def _is_sure(arrays: Sequence[np.ndarray]) -> bool:
    """Returns true if most values are near 0 or 1, and both ends occur."""
    values = np.concatenate([array.ravel() for array in arrays])
    return bool(np.mean((values < 1.0 - _SURE) | (values > _SURE)) > _SURE and values.max() > 0.5 > values.min())


def _have_length_one(arrays: Sequence[np.ndarray]) -> bool:
    return all(np.allclose(np.linalg.norm(array.astype(np.float64), axis=-1), 1.0, atol=1e-2) for array in arrays)
