"""Recognised text: the edit distance between the lines that greedy CTC decoding reads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trt_bisect.analyzer.tasks.task import AGREED, ITEMS, AskedTask, Counts, Task, each_input, not_told
from trt_bisect.builder.base import Outputs

SUPPORTED = "one output of CTC scores, [N, T, C] or [T, 1, C], whose blank is the first or the last class"
Line = tuple[int, ...]


def text(asked: AskedTask, reference: Sequence[Outputs]) -> Task:
    """Returns the task for an output of CTC scores.

    The blank is the class of FP32 that is the largest most often; it must be the first or the last one.

    Raises:
        BadInput: there is no such output.
    """
    found = next(((name, blank) for name in reference[0] if (blank := blank_of(name, reference)) is not None), None)
    if found is None:
        raise not_told(asked.name, reference[0], SUPPORTED)
    name, blank = found

    def read(outputs: Outputs) -> list[Line]:
        return lines_of(outputs[name], blank)

    def further(total: Counts) -> dict[str, float]:
        return {"lines": total["lines"], "exact": total["exact"], "edits": total[ITEMS] - total[AGREED]}

    classes = reference[0][name].shape[-1]
    note = f"--task {asked.name} reads '{name}' as CTC scores of {classes} classes, of which {blank} is the blank"
    return Task(asked.entry, note, (name,), each_input([name], read, _counted, further))


def blank_of(name: str, reference: Sequence[Outputs]) -> int | None:
    """Returns the blank of an output of CTC scores; None if it is none, or its most frequent class is neither end."""
    arrays = [each[name] for each in reference]
    if arrays[0].dtype.kind != "f" or arrays[0].ndim != 3 or arrays[0].shape[-1] < 2:
        return None
    classes = arrays[0].shape[-1]
    if any(array.shape[-1] != classes for array in arrays):
        return None
    counts = sum(np.bincount(array.argmax(axis=-1).ravel(), minlength=classes) for array in arrays)
    most = int(np.argmax(counts))
    return most if most in (0, classes - 1) else None


def lines_of(scores: np.ndarray, blank: int) -> list[Line]:
    """Returns the lines that greedy CTC decoding reads: the best class of each step, without repetitions and blanks.

    Args:
        scores: ``[N, T, C]``, or ``[T, 1, C]`` with more than one step.
        blank: the class that stands for no character.

    Source: Graves et al. 2006, "Connectionist Temporal Classification", best path decoding.
    """
    steps_first = scores.shape[1] == 1 and scores.shape[0] > 1
    best = np.where(np.isnan(scores), -np.inf, scores).argmax(axis=-1)
    rows = best.T if steps_first else best
    return [_line(row, blank) for row in rows]


def _line(best: np.ndarray, blank: int) -> Line:
    first = np.concatenate([[True], best[1:] != best[:-1]]) if best.size else np.zeros(0, bool)
    return tuple(int(one) for one in best[first & (best != blank)])


def _counted(before: Sequence[Line], after: Sequence[Line]) -> Counts:
    """Returns the counts of the lines of one input; a line that only one side has is empty on the other.

    The length of a pair is that of its longer line, so that no agreement is below 0.
    """
    pairs = [(_line_at(before, k), _line_at(after, k)) for k in range(max(len(before), len(after)))]
    lengths = [max(map(len, pair)) for pair in pairs]
    edits = [edit_distance(*pair) for pair in pairs]
    return {
        AGREED: float(sum(lengths) - sum(edits)),
        ITEMS: float(sum(lengths)),
        "lines": float(len(pairs)),
        "exact": float(edits.count(0)),
    }


def _line_at(lines: Sequence[Line], place: int) -> Line:
    """Returns a line; an empty one behind the end."""
    return lines[place] if place < len(lines) else ()


def edit_distance(one: Line, other: Line) -> int:
    """Returns the least number of characters to insert, delete and replace (Levenshtein 1966)."""
    row = list(range(len(other) + 1))
    for k, wanted in enumerate(one, 1):
        diagonal, row[0] = row[0], k
        for j, found in enumerate(other, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (wanted != found))
    return row[-1]
