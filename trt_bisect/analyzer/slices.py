"""The slices of an output: groups of places along an axis whose FP32 magnitudes are far apart.

A detector writes boxes in pixels and scores from 0 to 1 into one output, of which a relative metric sees only the
boxes. So each group is judged as an output of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise

import numpy as np

from trt_bisect.analyzer.classes import LEAST_SCORE, OWN, Classes
from trt_bisect.builder.base import Outputs

FACTOR = 30.0
"""The ratio of largest FP32 magnitudes above which an output is cut."""
_LONGEST_AXIS = 1024
"""A longer axis holds anchors, pixels or words, which are one quantity."""
_LEAST_VALUES = 16
"""A place with fewer FP32 values over all inputs has no known magnitude: vectors stay whole if inputs are few."""
_ROUNDING_NOISE = 1e-5
"""A place below this share of the output's largest magnitude is near float32's rounding: it forms no group."""
_LEAST_SEPARATED = 0.5
"""Groups are cut only if they differ by ``FACTOR`` at this share of the positions on the other axes."""
_MOST_RUNS = 8
"""With more runs of neighbouring places, all runs of a magnitude are one group."""
_SHOWN_SPANS = 3
_NUMBERS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six", 7: "seven", 8: "eight"}


@dataclass(frozen=True)
class Slice:
    """A group of places along an axis of an output.

    Attributes:
        axis: from 1; axis 0 is the batch.
        spans: the places, each span from its first to one after its last.
        largest: the largest magnitude of FP32's values in the group.
        scores: its FP32 values all lie in 0..1.
    """

    output: str
    axis: int
    spans: tuple[tuple[int, int], ...]
    largest: float
    scores: bool

    @property
    def name(self) -> str:
        """The name, as NumPy shows the axis: ``output0[:, 4:84]``; of two spans ``output0[:, 0:4+5:7]``."""
        return f"{self.output}[{':, ' * self.axis}{self.places}]"

    @property
    def places(self) -> str:
        """The spans as text; of many the first ones."""
        more = len(self.spans) - _SHOWN_SPANS
        shown = "+".join(f"{first}:{end}" for first, end in self.spans[:_SHOWN_SPANS])
        return f"{shown}+{more} more" if more > 0 else shown

    @property
    def classes(self) -> Classes | None:
        """The classes of a group of several scores."""
        places = sum(end - first for first, end in self.spans)
        return Classes(self.axis, OWN) if self.scores and places > 1 else None

    def of(self, array: np.ndarray) -> np.ndarray:
        """Returns the group's part of an output; an output of another rank unchanged."""
        if array.ndim <= self.axis:
            return array
        before = (slice(None),) * self.axis
        parts = [array[before + (slice(first, end),)] for first, end in self.spans]  # noqa: RUF005
        return parts[0] if len(parts) == 1 else np.concatenate(parts, self.axis)

    def faint_inputs(self, parts: Sequence[np.ndarray]) -> tuple[int, ...]:
        """Returns the inputs on which a group's scores predict nothing; ``parts`` are its FP32 values by input."""
        if not self.scores:
            return ()
        return tuple(k for k, part in enumerate(parts) if part[np.isfinite(part)].max(initial=0.0) < LEAST_SCORE)


@dataclass(frozen=True)
class Slices:
    """The slices of all outputs.

    Attributes:
        by_output: the groups of outputs that are cut.
        apart: groups are judged as outputs; if false, whole outputs are judged, and groups only raise doubts.
    """

    by_output: Mapping[str, tuple[Slice, ...]] = field(default_factory=dict)
    apart: bool = True

    def with_groups(self, outputs: Outputs) -> Outputs:
        """Returns the outputs, each followed by its groups."""
        parts: Outputs = {}
        for name, value in outputs.items():
            parts[name] = value
            parts.update({group.name: group.of(np.asarray(value)) for group in self.by_output.get(name, ())})
        return parts

    def names(self, outputs: Iterable[str]) -> tuple[str, ...]:
        """Returns the names under which these outputs are judged."""
        groups = self.by_output if self.apart else {}
        names = ([group.name for group in groups.get(name, ())] or [name] for name in outputs)
        return tuple(chain.from_iterable(names))

    def group(self, name: str) -> Slice | None:
        """Returns the group with a name; None for a whole output."""
        return next((g for groups in self.by_output.values() for g in groups if g.name == name), None)

    def notes(self) -> list[str]:
        """Returns a sentence on each output that is judged in groups."""
        notes = []
        for output, groups in self.by_output.items() if self.apart else ():
            parts = ", ".join(f"[{':, ' * group.axis}{group.places}] up to {group.largest:.3g}" for group in groups)
            notes.append(f"output '{output}' is judged as {_NUMBERS.get(len(groups), len(groups))}: {parts}")
        return notes


def output_of(name: str) -> str:
    """Returns the output of a name in a trial's figures: ``output0`` for ``output0[:, 4:84]``."""
    return name.rpartition("[")[0] or name if name.endswith("]") else name


def find_slices(reference: Sequence[Outputs], outputs: Iterable[str], *, apart: bool = True) -> Slices:
    """Finds the slices of the named outputs, from all FP32 outputs by input.

    A float output is cut along one axis after the first (of several, that with the fewest groups). For each place on
    the axis, the largest magnitude over all inputs is taken; the output is cut where two neighbours in their sorted
    order differ by more than a factor of ``FACTOR``. Places whose values all lie in 0..1 are scores: they count with
    the largest magnitude of all scores, so that classes stay together, and form a group of their own.
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
    return tuple(
        Slice(name, axis, spans, float(max(largest[a:b].max() for a, b in spans)), bool(scores[slice(*spans[0])].all()))
        for spans in _spans(_filled(np.where(level < 0, -1, 2 * level + scores)))
    )


def _rows(array: np.ndarray, axis: int) -> np.ndarray:
    finite = array if np.isfinite(array).all() else np.where(np.isfinite(array), array, 0)
    moved = np.moveaxis(finite, axis, -1)
    return moved.reshape(-1, moved.shape[-1])


def _levels(largest: np.ndarray, scores: np.ndarray) -> np.ndarray | None:
    """Returns the magnitude level of each place, int64 ``[places]``, -1 for a place without one; None if there is only
    one level.
    """
    magnitude = np.asarray(largest, np.float64).copy()
    magnitude[scores] = largest[scores].max(initial=0.0)
    silent = (largest == 0.0) | (magnitude < _ROUNDING_NOISE * magnitude.max()) | (scores & (magnitude < LEAST_SCORE))
    loud = np.unique(magnitude[~silent])
    borders = loud[1:][loud[1:] > FACTOR * loud[:-1]]
    return np.where(silent, -1, np.searchsorted(borders, magnitude, side="right")) if borders.size else None


def _is_separated(rows: Sequence[np.ndarray], level: np.ndarray) -> bool:
    """True if each level differs from the next at most positions, not by a few peaks alone."""
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
    """Returns the spans of each group. A group is one run of equal kinds; with more than ``_MOST_RUNS`` runs, all runs
    of a kind.
    """
    borders = [0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), len(kinds)]
    runs = list(pairwise(borders))
    if len(runs) <= _MOST_RUNS:
        return [(run,) for run in runs]
    of_kind: dict[int, list[tuple[int, int]]] = {}
    for run in runs:
        of_kind.setdefault(int(kinds[run[0]]), []).append(run)
    return [tuple(spans) for spans in of_kind.values()]
