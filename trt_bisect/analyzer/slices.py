"""Parts of an output: indices along one axis, cut where FP32's magnitudes are far apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise

import numpy as np

from trt_bisect.analyzer.classes import LEAST_SCORE, OWN, Classes
from trt_bisect.builder.base import Outputs

FACTOR = 30.0  # of the FP32 magnitudes of indices between which an output is cut
_LONGEST_AXIS = 1024  # A longer axis holds anchors, pixels or words: one quantity.
_LEAST_VALUES = 16  # With fewer FP32 values, an index has no known magnitude.
_ROUNDING_NOISE = 1e-5  # Indices below this share of the largest magnitude hold float32's rounding errors.
_LEAST_SEPARATED = 0.5  # The least share of positions (on the other axes) at which groups differ by FACTOR.
_MOST_RUNS = 8  # With more runs of neighbouring indices, a group is all runs of one magnitude.
_SHOWN_SPANS = 3
_NUMBERS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six", 7: "seven", 8: "eight"}


@dataclass(frozen=True)
class Slice:
    """A part of an output: some indices along one axis.

    Attributes:
        axis: 1 or more; axis 0 is the batch.
        spans: the indices, as half-open ranges.
        largest: the largest FP32 magnitude.
        scores: true if all FP32 values lie in 0..1.
    """

    output: str
    axis: int
    spans: tuple[tuple[int, int], ...]
    largest: float
    scores: bool

    @property
    def name(self) -> str:
        """The part as NumPy indexes it: ``output0[:, 4:84]``."""
        return f"{self.output}[{':, ' * self.axis}{self.places}]"

    @property
    def places(self) -> str:
        """The indices of the part as text, ``0:4+5:7``; the first three spans of many."""
        more = len(self.spans) - _SHOWN_SPANS
        shown = "+".join(f"{first}:{end}" for first, end in self.spans[:_SHOWN_SPANS])
        return f"{shown}+{more} more" if more > 0 else shown

    @property
    def classes(self) -> Classes | None:
        """The classes, if the part has two or more scores; else None."""
        places = sum(end - first for first, end in self.spans)
        return Classes(self.axis, OWN) if self.scores and places > 1 else None

    def of(self, array: np.ndarray) -> np.ndarray:
        """Returns this part of an output; an array without the axis unchanged."""
        if array.ndim <= self.axis:
            return array
        before = (slice(None),) * self.axis
        parts = [array[before + (slice(first, end),)] for first, end in self.spans]  # noqa: RUF005
        return parts[0] if len(parts) == 1 else np.concatenate(parts, self.axis)

    def faint_inputs(self, parts: Sequence[np.ndarray]) -> tuple[int, ...]:
        """Returns the indices of inputs on which all scores of the part are below 0.05, from its FP32 values by input;
        empty for a part without scores.
        """
        if not self.scores:
            return ()
        return tuple(k for k, part in enumerate(parts) if part[np.isfinite(part)].max(initial=0.0) < LEAST_SCORE)


@dataclass(frozen=True)
class Slices:
    """The parts of all outputs.

    Attributes:
        apart: true to judge parts instead of their outputs; if false, parts only raise doubts.
    """

    by_output: Mapping[str, tuple[Slice, ...]] = field(default_factory=dict)
    apart: bool = True

    def with_groups(self, outputs: Outputs) -> Outputs:
        """Returns the outputs, each followed by its parts."""
        parts: Outputs = {}
        for name, value in outputs.items():
            parts[name] = value
            parts.update({group.name: group.of(np.asarray(value)) for group in self.by_output.get(name, ())})
        return parts

    def names(self, outputs: Iterable[str]) -> tuple[str, ...]:
        """Returns the names under which ``outputs`` are judged: those of their parts if ``apart``, else their own."""
        groups = self.by_output if self.apart else {}
        names = ([group.name for group in groups.get(name, ())] or [name] for name in outputs)
        return tuple(chain.from_iterable(names))

    def group(self, name: str) -> Slice | None:
        """Returns the part called ``name``; None for a whole output."""
        return next((g for groups in self.by_output.values() for g in groups if g.name == name), None)

    def notes(self) -> list[str]:
        """Returns a sentence on each output judged in parts."""
        notes = []
        for output, groups in self.by_output.items() if self.apart else ():
            parts = ", ".join(f"[{':, ' * group.axis}{group.places}] up to {group.largest:.3g}" for group in groups)
            notes.append(f"output '{output}' is judged as {_NUMBERS.get(len(groups), len(groups))}: {parts}")
        return notes


def output_of(name: str) -> str:
    """Returns the output of a part: ``output0`` for ``output0[:, 4:84]``; other names unchanged."""
    return name.rpartition("[")[0] or name if name.endswith("]") else name


def find_slices(reference: Sequence[Outputs], outputs: Iterable[str], *, apart: bool = True) -> Slices:
    """Finds the parts of the named outputs, from the FP32 outputs of all inputs.

    Args:
        apart: ``Slices.apart``.
    """
    by_output = {name: _groups(name, [np.asarray(arrays[name]) for arrays in reference]) for name in outputs}
    return Slices({name: groups for name, groups in by_output.items() if groups}, apart)


def _groups(name: str, arrays: Sequence[np.ndarray]) -> tuple[Slice, ...]:
    rank = arrays[0].ndim
    if any(array.ndim != rank or array.dtype.kind != "f" or not array.size for array in arrays):
        return ()
    return min(filter(None, (_along(name, arrays, axis) for axis in range(1, rank))), key=len, default=())


def _along(name: str, arrays: Sequence[np.ndarray], axis: int) -> tuple[Slice, ...]:
    length = arrays[0].shape[axis]
    values = sum(array.size for array in arrays) // length
    if not (2 <= length <= _LONGEST_AXIS and values >= _LEAST_VALUES and all(a.shape[axis] == length for a in arrays)):
        return ()
    rows = [_rows(array, axis) for array in arrays]
    largest = np.max([np.abs(row).max(axis=0) for row in rows], axis=0)
    scores = (largest <= 1.001) & (np.min([row.min(axis=0) for row in rows], axis=0) >= 0.0)
    level = _levels(largest, scores)
    if level is None or not _is_separated(rows, level):
        return ()
    groups = []
    for spans in _spans(_filled(np.where(level < 0, -1, 2 * level + scores))):
        peak = max(largest[first:end].max() for first, end in spans)
        groups.append(Slice(name, axis, spans, float(peak), bool(scores[slice(*spans[0])].all())))
    return tuple(groups)


def _rows(array: np.ndarray, axis: int) -> np.ndarray:
    finite = array if np.isfinite(array).all() else np.where(np.isfinite(array), array, 0)
    moved = np.moveaxis(finite, axis, -1)
    return moved.reshape(-1, moved.shape[-1])


def _levels(largest: np.ndarray, scores: np.ndarray) -> np.ndarray | None:
    magnitude = np.asarray(largest, np.float64).copy()
    magnitude[scores] = largest[scores].max(initial=0.0)
    silent = (largest == 0.0) | (magnitude < _ROUNDING_NOISE * magnitude.max()) | (scores & (magnitude < LEAST_SCORE))
    loud = np.unique(magnitude[~silent])
    borders = loud[1:][loud[1:] > FACTOR * loud[:-1]]
    if borders.size:
        return np.where(silent, -1, np.searchsorted(borders, magnitude, side="right"))
    return None


def _is_separated(rows: Sequence[np.ndarray], level: np.ndarray) -> bool:
    for lower in range(level.max()):
        apart = counting = 0
        for positions in rows:
            below = np.abs(positions[:, level == lower]).max(axis=1)
            above = np.median(np.abs(positions[:, level == lower + 1]), axis=1)
            counting += int(((below > 0) | (above > 0)).sum())
            apart += int((above > FACTOR * below).sum())
        if apart < _LEAST_SEPARATED * counting:
            return False
    return True


def _filled(kinds: np.ndarray) -> np.ndarray:
    loud = np.flatnonzero(kinds >= 0)
    before = np.searchsorted(loud, np.arange(len(kinds)), side="right") - 1
    return np.asarray(kinds[loud[np.maximum(before, 0)]])


def _spans(kinds: np.ndarray) -> list[tuple[tuple[int, int], ...]]:
    borders = [0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), len(kinds)]
    runs = list(pairwise(borders))
    if len(runs) <= _MOST_RUNS:
        return [(run,) for run in runs]
    of_kind: dict[int, list[tuple[int, int]]] = {}
    for run in runs:
        of_kind.setdefault(int(kinds[run[0]]), []).append(run)
    return [tuple(spans) for spans in of_kind.values()]
