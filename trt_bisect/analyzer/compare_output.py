"""One output compared with FP32's, each input by itself; all that FP32's values alone decide is found out once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median_low

import numpy as np

from trt_bisect.analyzer.classes import OF_CLASSES, Classes, find_classes
from trt_bisect.analyzer.metrics import RELATIVE, Metric
from trt_bisect.builder.base import Outputs
from trt_bisect.evaluator.trial import OutputFigures

FAINT_OCTAVES = 10
"""An output whose norm is so many powers of two below the median's says nothing by a relative metric."""
_SILENT = -(1 << 12)
"""The octave of an output of zeros: below that of any number."""


class OutputJudge:
    """Compares one output with FP32's on the same inputs."""

    def __init__(
        self, reference: Sequence[np.ndarray], metrics: Mapping[str, Metric], classes: Classes | None = None
    ) -> None:
        """Gets ready.

        Args:
            reference: FP32's output for each input.
            metrics: by name.
            classes: how the output holds classes; found out where it is not given.
        """
        self._reference = [np.asarray(array).astype(np.float64) for array in reference]
        self._classes = classes or find_classes(self._reference)
        self._metrics = [metric for metric in metrics.values() if self._classes.serves(metric.name)]
        faint = faint_places([(octave(finite_norm(array)),) for array in self._reference])
        self.faint = frozenset(faint if len(self._reference) > 1 else ())

    def figures(self, outputs: Sequence[np.ndarray]) -> OutputFigures:
        """The figures of the output for each input, in the reference's order; the worst of each metric decides.

        Shapes that differ are compared where both have values. Places where the reference is not finite are left out.
        """
        notes: dict[str, None] = {}
        found = [self._values(r, np.asarray(o), notes) for r, o in zip(self._reference, outputs, strict=True)]
        finite = None not in found
        inputs = {metric.name: self._by_input(metric, found) for metric in self._metrics}
        worst = {
            metric.name: metric.worst(value for value in inputs[metric.name] if value is not None)
            for metric in self._metrics
        }
        return OutputFigures(
            {name: value for name, value in worst.items() if finite and not math.isnan(value)},
            finite,
            "; ".join([*notes, *(() if finite else ("NaN or infinite values",))]),
            inputs if len(found) > 1 else {},
        )

    def _by_input(self, metric: Metric, found: Sequence[Mapping[str, float] | None]) -> tuple[float | None, ...]:
        passed_over = self.faint if metric.name in RELATIVE else ()
        return tuple(
            None if place in passed_over else (values or {}).get(metric.name, math.nan)
            for place, values in enumerate(found)
        )

    def _values(self, reference: np.ndarray, output: np.ndarray, notes: dict[str, None]) -> dict[str, float] | None:
        """Each metric's value on one input; None where the output is not finite."""
        r, o = _comparable(reference, output, notes)
        kept = np.isfinite(r)
        if not (np.isfinite(o) | ~kept).all():
            return None
        if not kept.any():
            notes["no values to compare"] = None
            equal = reference.shape == output.shape
            return {m.name: m.perfect for m in self._metrics if m.perfect is not None} if equal else {}
        rows = rows_of(r, kept), rows_of(o, kept)
        return {
            metric.name: metric.function(r, o, self._classes) if metric.name in OF_CLASSES else metric.function(*rows)
            for metric in self._metrics
        }


def faint_places(octaves: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The places of the inputs with an output that is almost zero, beside those of the others.

    Args:
        octaves: for each input, of the norm of each output.
    """
    medians = [median_low(column) for column in zip(*octaves, strict=True)]
    return tuple(
        place
        for place, own in enumerate(octaves)
        if any(one < middle - FAINT_OCTAVES for one, middle in zip(own, medians, strict=True))
    )


def faint_in_reference(reference: Sequence[Outputs], judged: Iterable[str]) -> list[str]:
    """What is to be said of inputs on which FP32's output is almost zero, by output.

    Args:
        reference: FP32's outputs for each input.
        judged: the outputs that count.
    """
    said = []
    for name in judged:
        places = faint_places([(octave(finite_norm(found[name])),) for found in reference])
        if places:
            said.append(
                f"output '{name}' is almost zero in FP32 on {len(places)} of {len(reference)} inputs, number "
                f"{places[0]} first: a relative metric says nothing there, and they are not judged by it"
            )
    return said


def finite_norm(array: np.ndarray) -> float:
    """The norm of an array's finite values."""
    values = np.asarray(array, np.float64)
    return float(np.linalg.norm(values[np.isfinite(values)]))


def octave(norm: float) -> int:
    """The power of two above a norm."""
    return math.frexp(norm)[1] if norm > 0 else _SILENT


def _comparable(reference: np.ndarray, output: np.ndarray, notes: dict[str, None]) -> tuple[np.ndarray, np.ndarray]:
    """Both arrays as float64, cut to the region that both have."""
    r, o = reference, output.astype(np.float64)
    if r.shape == o.shape:
        return r, o
    notes[f"shape {list(o.shape)} instead of {list(r.shape)}, compared where both have values"] = None
    if r.ndim != o.ndim:
        return r.reshape(-1)[:0], o.reshape(-1)[:0]
    region = tuple(slice(0, min(sizes)) for sizes in zip(r.shape, o.shape, strict=True))
    return r[region], o[region]


def finite_rows(array: np.ndarray) -> np.ndarray:
    """An output as a user's metric gets it: float64 ``[rows, last axis]``, a value a row where some are not finite."""
    values = np.asarray(array, np.float64)
    return rows_of(values, np.isfinite(values))


def rows_of(array: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """``[rows, last axis]``; a value a row where some are not ``kept``."""
    if not kept.all():
        return np.asarray(array[kept].reshape(-1, 1))
    return array.reshape(-1, max(array.shape[-1] if array.ndim else 1, 1))
