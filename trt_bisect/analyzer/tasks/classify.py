"""Classification: the share of rows whose class is that of FP32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from trt_bisect.analyzer.classes import Classes, find_classes
from trt_bisect.analyzer.tasks.task import AGREED, ITEMS, AskedTask, Counts, Task, each_input, not_told, share
from trt_bisect.builder.base import Outputs

SUPPORTED = "outputs of floats with an axis of classes, which --class-axis can name"
_TOP = 5


def classify(asked: AskedTask, reference: Sequence[Outputs]) -> Task:
    """Returns the task for outputs of class scores; see ``find_classes`` for the class axis. Rows of all outputs count.

    Raises:
        BadInput: no output has a class axis.
    """
    found = classes_of_floats(asked, reference)
    if not found:
        raise not_told(asked.name, reference[0], SUPPORTED)
    axes = ", ".join(f"'{name}' (axis {classes.axis})" for name, classes in found.items())

    def read(outputs: Outputs) -> dict[str, np.ndarray]:
        return {name: np.asarray(outputs[name], np.float64) for name in found}

    def count(before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray]) -> Counts:
        each = [_counted(classes, before[name], after[name]) for name, classes in found.items()]
        return {key: sum(one[key] for one in each) for key in each[0]}

    def further(total: Counts) -> dict[str, float]:
        top5 = {"top5": share(total["in_five"], total["rows_of_six"])} if total["rows_of_six"] else {}
        return {"top1": share(total[AGREED], total[ITEMS]), **top5}

    note = f"--task {asked.name} compares the class with the largest score of {axes}"
    return Task(asked.entry, note, tuple(found), each_input(list(found), read, count, further))


def classes_of_floats(asked: AskedTask, reference: Sequence[Outputs]) -> dict[str, Classes]:
    """Returns the classes of each output of floats whose class axis is known."""
    floats = [name for name, value in reference[0].items() if value.dtype.kind == "f" and value.ndim]
    axis = asked.class_axis
    fits = {name: axis is None or -reference[0][name].ndim <= axis < reference[0][name].ndim for name in floats}
    found = {name: find_classes([each[name] for each in reference], axis) for name in floats if fits[name]}
    return {name: classes for name, classes in found.items() if classes.axis is not None}


def _counted(classes: Classes, before: np.ndarray, after: np.ndarray) -> dict[str, float]:
    """Returns the counts of one output; rows that only one of both has do not agree."""
    wanted, found = classes.predicted(before), classes.predicted(after)
    both, rows = min(len(wanted), len(found)), max(len(wanted), len(found))
    wanted, found = wanted[:both], found[:both]
    scores = classes.rows(after)[:both]
    has_five = scores.shape[-1] > _TOP
    largest = np.argsort(-scores, axis=-1, kind="stable")[:, :_TOP] if has_five else scores[:, :0]
    return {
        AGREED: float((wanted == found).sum()),
        ITEMS: float(rows),
        "in_five": float((largest == wanted[:, None]).any(axis=-1).sum()),
        "rows_of_six": float(rows if has_five else 0),
    }
