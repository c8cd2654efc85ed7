"""A task, and the figures of its agreement with FP32."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np

from trt_bisect.analyzer.integers import FEW_ELEMENTS, kappa
from trt_bisect.analyzer.metrics import AGREEMENT, KAPPA
from trt_bisect.builder.base import Outputs
from trt_bisect.errors import BadInput
from trt_bisect.evaluator.trial import OutputFigures

ITEMS = "items"
"""The key of ``Counts`` for the number of compared things."""
NEARBY = "nearby"
"""The key of ``OutputFigures.values`` for the mean agreement at other score thresholds."""
AGREED, FOUND = "agreed", "found"
"""The keys of ``Counts`` for agreement, and for FP32's findings if these can be fewer than ``ITEMS``."""
OBJECTS, LOST_OBJECTS, INVENTED_OBJECTS = "objects", "lost_objects", "invented_objects"
"""The keys of ``Counts``, by class: objects FP32 is sure of, lost objects, objects FP32 lacks."""
IN_FP32, AFTER = "in_fp32", "after"
"""The keys of ``Counts`` for the number of items by class: in FP32, and in the other plan."""
LIKENESS_KEYS = {"IoU": "mean_iou", "OKS": "mean_oks", "mask IoU": "mean_mask_iou"}
"""By name of a likeness, the key of its mean over kept detections."""
_LEAST_SHARE = 0.005  # A class counts if it has this share of all objects.
_EDITION = 8  # Increase it when a task counts otherwise: figures of earlier editions are not reused.
_Read = TypeVar("_Read")

Judge = Callable[[Mapping[int, Outputs]], OutputFigures]
"""Maps outputs by index of the input to their agreement with FP32."""
Counts = Mapping[str, Any]
"""Counts on an input, which ``+`` joins: numbers, arrays or lists by ``AGREED``, ``ITEMS`` and other keys."""

Scaling = Callable[[Outputs, tuple[int, int]], np.ndarray]
"""Maps one input's outputs, and the picture's width and height, to pixels per unit of the boxes in x and y."""


@dataclass(frozen=True)
class AskedTask:
    """The task that the user asks for.

    Attributes:
        score_threshold: detections with lower scores do not count.
        iou: detections with this IoU, or more, are the same.
        class_axis: the axis of the classes; None to find it.
        head: the value of ``--head``, the way to read the outputs; None to find it.
    """

    name: str
    score_threshold: float = 0.3
    iou: float = 0.5
    class_axis: int | None = None
    head: str | None = None

    @property
    def entry(self) -> str:
        """The name of the task's figures, such as ``task detect``."""
        return f"task {self.name}"

    def facts(self) -> dict[str, Any]:
        """Returns all facts that the task's figures depend on, as JSON types."""
        facts = {name: value for name, value in asdict(self).items() if name != "head" or value is not None}
        return {**facts, "edition": _EDITION}


@dataclass(frozen=True)
class Task:
    """A task on the outputs of one network.

    Attributes:
        entry: the name of the task's figures, such as ``task detect``.
        note: a sentence on how the outputs are read.
        judge: from FP32's outputs by input, returns the function that judges other outputs for any of these inputs.
        shown: returns the findings in each image, from the outputs for one input: ``Detections``, the class of each
            pixel (integers ``[H, W]``), its depth (floats ``[H, W]``), a text, or the classes of its characters. None
            if nothing can be shown.
        nearby: from FP32's outputs by input, returns a function from other outputs by input to the mean agreement at
            several score thresholds; None without a score threshold.
        pairs: from the detections of FP32 and of another plan, returns the index of each FP32 detection's partner, or
            -1; None without detections.
        scaling: returns the scaling of the boxes to pixels, from FP32's outputs; None without boxes.
        letters: returns the character of each class, from a list of characters; None without text.
    """

    entry: str
    note: str
    reads: tuple[str, ...]
    judge: Callable[[Sequence[Outputs]], Judge]
    shown: Callable[[Outputs], Sequence[Any]] | None = None
    nearby: Callable[[Sequence[Outputs]], Callable[[Sequence[Outputs]], float]] | None = None
    pairs: Callable[[Any, Any], np.ndarray] | None = None
    scaling: Callable[[Sequence[Outputs]], Scaling] | None = None
    letters: Callable[[str], tuple[str, ...]] | None = None

    def check(self, reference: Sequence[Outputs]) -> None:
        """Raises BadInput unless FP32 finds something to compare on at least one input."""
        if finds_nothing(self.judge(reference)(dict(enumerate(reference))).values):
            raise BadInput(
                f"There is nothing to judge for '{self.entry}': FP32 finds nothing on the judged inputs.",
                "Give --input with inputs on which FP32 finds something, or lower --score-threshold.",
            )


def task_of(
    asked: AskedTask,
    how: str,
    reads: Sequence[str],
    read: Callable[[Outputs], _Read],
    count: Callable[[Any, _Read], Counts],
    further: Callable[[Counts], Mapping[str, float]] = dict,
    *,
    compared_with: Callable[[Sequence[Outputs]], Sequence[Any]] | None = None,
    vanished: Callable[[Counts], tuple[int, ...]] = lambda _: (),
    shown: Callable[[Outputs], Sequence[Any]] | None = None,
) -> Task:
    """Returns a task whose counts on single inputs add up.

    Args:
        how: the task's note, without ``--task`` and the name before it.
        read: reads the outputs for one input, such as classes or detections.
        count: returns the counts on one input, from what ``read`` gives for FP32 and for another plan.
        further: returns further figures, from the counts of all inputs.
        compared_with: returns the first argument of ``count`` for each input, from FP32's outputs; default: ``read``
            does.
        vanished: returns the lost classes from the counts of all inputs.
        shown: ``Task.shown``.
    """

    def judge(reference: Sequence[Outputs]) -> Judge:
        fp32 = [read(outputs) for outputs in reference] if compared_with is None else compared_with(reference)

        def figures(outputs: Mapping[int, Outputs]) -> OutputFigures:
            arrays = ((reference[index][name], after[name]) for index, after in outputs.items() for name in reads)
            if not all(np.isfinite(after).all() or not np.isfinite(before).all() for before, after in arrays):
                values = {AGREEMENT.name: (float("nan"),) * len(outputs)} if len(outputs) > 1 else {}
                return OutputFigures({}, False, "NaN or infinite values", values)
            counts = [count(fp32[index], read(after)) for index, after in outputs.items()]
            total = {name: sum((more[name] for more in counts[1:]), start=counts[0][name]) for name in counts[0]}
            shares = [share(count[AGREED], count[ITEMS]) if count[ITEMS] else None for count in counts]
            agreement, items = share(total[AGREED], total[ITEMS]), float(total[ITEMS])
            others = {name: float(value) for name, value in further(total).items()}
            if FOUND in total:
                others[FOUND] = float(total[FOUND])
            found = tuple(float(count.get(FOUND, count[ITEMS])) for count in counts)
            inputs = {AGREEMENT.name: tuple(shares), FOUND: found} if len(counts) > 1 else {}
            together = {AGREEMENT.name: agreement, ITEMS: items, **others}
            return OutputFigures(together, inputs=inputs, vanished=vanished(total))

        return figures

    return Task(asked.entry, f"--task {asked.name} {how}", tuple(reads), judge, shown)


def lost_classes(total: Counts, fewest: int = 1) -> tuple[int, ...]:
    """Returns the indices of classes with all objects lost, by the counts ``total`` of all inputs; those with under
    ``fewest`` objects, or 0.5 % of all, do not count.
    """
    objects, lost = total[OBJECTS], total[LOST_OBJECTS]
    least = max(fewest, math.ceil(_LEAST_SHARE * objects.total()))
    return tuple(sorted(name for name, count in objects.items() if count >= least and lost[name] == count))


def beyond_chance(total: Counts) -> dict[str, float]:
    """Returns Cohen's kappa of an agreement of classes, by ``KAPPA``: 0 if FP32 gives all items one class; empty with
    fewer than 20 items.
    """
    if total[ITEMS] < FEW_ELEMENTS:
        return {}
    if len(total[IN_FP32]) == 1:
        return {KAPPA: 0.0}
    return {KAPPA: kappa(total[IN_FP32], total[AFTER], float(total[AGREED]))}


def share(agreed: float, items: float) -> float:
    """Returns the agreement ``agreed / items``; 1 without items."""
    return float(agreed / items) if items else 1.0


def finds_nothing(values: Mapping[str, float]) -> bool:
    """Returns true if, by a task's figures, FP32 finds nothing on any input."""
    return values.get(FOUND, values.get(ITEMS, 1.0)) == 0.0


def not_told(asked: AskedTask, reference: Sequence[Outputs], supported: str, heads: Sequence[str] = ()) -> BadInput:
    """Returns the error for FP32's outputs that a task cannot read, or can read in several layouts. ``supported`` names
    the outputs that it can read, ``heads`` the fitting layouts.
    """
    shapes = ", ".join(f"'{name}' {list(np.shape(value))}" for name, value in reference[0].items())
    if heads:
        return BadInput(
            f"--task {asked.name} can read the outputs {shapes} in {len(heads)} ways.",
            f"Say which: {', or '.join(f'--head {head}' for head in heads)}. Or name the output with --outputs.",
        )
    return BadInput(
        f"--task {asked.name} cannot read the outputs {shapes}.",
        f"Supported outputs: {supported}. Name the outputs with --outputs, or leave out --task to judge the numbers.",
    )
