"""Facts beside the metrics, for doubts on a pass: how far an output's values go, and the classes that it lost.

They are counted over all inputs together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from trt_bisect.analyzer.classes import LOGITS, Classes

_TOP_LEVEL = 0.99
"""Values from this share of the largest magnitude on are at it: INT8's levels -128 and 127 are 0.8 % apart."""
_BEYOND = 1.05
"""An FP32 value this much larger than an output's largest was clipped, not rounded."""
_SURE = 3.0
"""FP32 is sure of a class that is at least this many times as probable as the next one."""
_LEAST_SHARE = 0.005
"""A class counts if this share of all sure rows has it; a single row counts only where an input has no other."""


@dataclass(frozen=True)
class OutputFacts:
    """Facts of one output beside its metrics; see ``OutputFigures``."""

    reach: float | None = None
    clipped: float = 0.0
    vanished: tuple[int, ...] = ()


class ReachOfOutput:
    """Counts the facts of one output.

    Args:
        reference: the FP32 output for each input.
        classes: the classes of the output, the axis known; None where it has none.
    """

    def __init__(self, reference: Sequence[np.ndarray], classes: Classes | None) -> None:
        self._reference = reference
        self._classes = classes
        self._largest = largest_magnitude(reference)

    def facts(self, outputs: Sequence[np.ndarray]) -> OutputFacts:
        """Returns the facts of an output, given for each input; none if shapes differ or FP32 is all zero."""
        same = all(r.shape == o.shape for r, o in zip(self._reference, outputs, strict=True))
        if not same or self._largest == 0.0 or not math.isfinite(self._largest):
            return OutputFacts()
        top = largest_magnitude(outputs)
        return OutputFacts(top / self._largest, self._clipped(outputs, top), self._vanished(outputs))

    def _clipped(self, outputs: Sequence[np.ndarray], top: float) -> float:
        """The share of FP32's large values that lie beyond ``top`` while the output's are at it.

        Large are those from half of the largest magnitude on. 0 if most of the output's values are at ``top``: it is
        constant then, and not clipped.
        """
        if top * _BEYOND >= self._largest:
            return 0.0
        large = clipped = at_top = count = 0
        for reference, output in zip(self._reference, outputs, strict=True):
            magnitude = np.abs(reference)
            large += int((magnitude >= 0.5 * self._largest).sum())
            is_at_top = np.abs(output) >= _TOP_LEVEL * top
            clipped += int(((magnitude > _BEYOND * top) & is_at_top).sum())
            at_top += int(is_at_top.sum())
            count += is_at_top.size
        return min(1.0, clipped / large) if at_top <= 0.5 * count else 0.0

    def _vanished(self, outputs: Sequence[np.ndarray]) -> tuple[int, ...]:
        """The classes that FP32 is sure of in some rows, and that the output predicts in none of these rows."""
        if self._classes is None:
            return ()
        kept: set[int] = set()
        for (places, expected), output in zip(self._sure_rows, outputs, strict=True):
            kept.update(expected[self._classes.rows(output)[places].argmax(axis=-1) == expected].tolist())
        return tuple(sorted(self._sure_classes - kept))

    @cached_property
    def _sure_rows(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """For each input the rows that FP32 is sure of, and their classes, both int64 of one length."""
        assert self._classes is not None
        return [_sure(self._classes.rows(array), self._classes.kind) for array in self._reference]

    @cached_property
    def _sure_classes(self) -> set[int]:
        """The classes that FP32 predicts often enough to count."""
        assert self._classes is not None
        found, counts = np.unique(np.concatenate([classes for _, classes in self._sure_rows]), return_counts=True)
        single = all(len(self._classes.rows(array)) == 1 for array in self._reference)
        least = 1 if single else max(2, math.ceil(_LEAST_SHARE * counts.sum()))
        return set(found[counts >= least].tolist())


def largest_magnitude(arrays: Sequence[np.ndarray]) -> float:
    """Returns the largest magnitude of the finite values; 0 without any."""
    return max((_largest(np.asarray(array)) for array in arrays), default=0.0)


def _largest(array: np.ndarray) -> float:
    if not array.size:
        return 0.0
    both = max(abs(float(array.max())), abs(float(array.min())))
    return both if math.isfinite(both) else float(np.abs(array[np.isfinite(array)]).max(initial=0.0))


def _sure(rows: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the indices of the rows with a sure class, and these classes."""
    if rows.shape[-1] < 2 or not np.isfinite(rows).all():
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    second, first = np.partition(rows, -2, axis=-1)[:, -2:].T
    sure = first - second >= math.log(_SURE) if kind == LOGITS else (first >= _SURE * second) & (first >= 0.5)
    places = np.flatnonzero(sure)
    return places, rows[places].argmax(axis=-1)
