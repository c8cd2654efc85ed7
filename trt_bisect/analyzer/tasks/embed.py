"""Embeddings: the share of vectors that find themselves and their nearest neighbour among those of FP32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trt_bisect.analyzer.tasks.task import AGREED, ITEMS, AskedTask, Counts, Task, each_input, not_told
from trt_bisect.builder.base import Outputs

SUPPORTED = "one output of vectors, [D] or [N, D], or of vectors of tokens, [N, T, D]"
_SAME = 1e-6
"""FP32's cosines that are no further apart are equal: rows of a batch and inputs of their own differ by less."""


@dataclass(frozen=True)
class _Sought:
    """The vectors of one input in FP32, and what another plan's vectors have to find for each of them.

    Attributes:
        own: the vectors, ``[n, D]``.
        every: the vectors of all inputs, ``[N, D]``.
        nearest: for each vector the rows of ``every`` that are it or its nearest neighbour, all of equal ones; None
            where that is every row. Empty if it is so for the vectors of all inputs.
    """

    own: np.ndarray
    every: np.ndarray
    nearest: tuple[np.ndarray | None, ...]


def embed(asked: AskedTask, reference: Sequence[Outputs]) -> Task:
    """Returns the task for an output of vectors: the first of shape ``[N, D]`` or ``[D]``, else of ``[N, T, D]``.

    The vectors of the T tokens are averaged to one vector. A vector agrees if it is closer to its own FP32 vector and
    to that one's nearest neighbour than to all other FP32 vectors. Vectors that are all alike agree nowhere, and each
    input can be judged by itself. Without three different vectors the cosine is the agreement.

    Raises:
        BadInput: there is no such output.
    """
    ranks = {name: value.ndim for name, value in reference[0].items() if value.dtype.kind == "f" and _is_long(value)}
    name = next((name for wanted in ((1, 2), (3,)) for name, rank in ranks.items() if rank in wanted), None)
    if name is None:
        raise not_told(asked.name, reference[0], SUPPORTED)
    how = "each row is a vector" if ranks[name] < 3 else "the average over the tokens (axis 1) is the vector"

    def read(outputs: Outputs) -> np.ndarray:
        return _vectors(outputs[name])

    note = f"--task {asked.name} compares the nearest neighbours among FP32's vectors of the inputs by '{name}': {how}"
    return Task(asked.entry, note, (name,), each_input([name], read, _counted, _further, _sought))


def _is_long(value: np.ndarray) -> bool:
    return value.ndim > 0 and value.shape[-1] > 1


def _vectors(output: np.ndarray) -> np.ndarray:
    """Returns the vectors of an output, ``[N, D]``, of length 1; those that are zero or not finite are zero."""
    values = np.asarray(output, np.float64)
    rows = np.atleast_2d(values.mean(axis=1) if values.ndim == 3 else values)
    rows = np.where(np.isfinite(rows).all(axis=-1, keepdims=True), rows, 0.0)
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), np.finfo(np.float64).tiny))


def _sought(vectors: Sequence[np.ndarray]) -> list[_Sought]:
    """Returns for each input what is sought, from FP32's vectors of all inputs."""
    every, first, found = np.concatenate(vectors), 0, list[_Sought]()
    for own in vectors:
        cosines = own @ every.T
        rows = range(first, first + len(own))
        found.append(_Sought(own, every, tuple(_nearest(one, row) for one, row in zip(cosines, rows, strict=True))))
        first += len(own)
    if all(nearest is None for one in found for nearest in one.nearest):
        return [_Sought(one.own, every, ()) for one in found]
    return found


def _nearest(cosines: np.ndarray, row: int) -> np.ndarray | None:
    """Returns the rows that are the vector of ``row`` or its nearest neighbour; None if that is every row."""
    others = np.delete(cosines, row)
    is_near = cosines >= others.max(initial=-np.inf) - _SAME
    is_near[row] = True
    return None if is_near.all() else np.flatnonzero(is_near)


def _counted(before: _Sought, after: np.ndarray) -> Counts:
    """Returns the counts of one input; rows that only one of both has do not agree."""
    both, rows = min(len(before.own), len(after)), max(len(before.own), len(after))
    own = np.zeros(rows)
    own[:both] = np.sum(before.own[:both] * after[:both], axis=-1)
    if not before.nearest:
        return {AGREED: float(own.sum()), ITEMS: float(rows), "cosines": own.tolist()}
    kept = [_keeps(after[row] @ before.every.T, before.nearest[row]) for row in range(both)]
    counting = sum(one is not None for one in before.nearest) + rows - len(before.own)
    return {AGREED: float(sum(kept)), ITEMS: float(counting), "cosines": own.tolist()}


def _keeps(cosines: np.ndarray, nearest: np.ndarray | None) -> bool:
    return nearest is not None and bool(cosines[nearest].min() > np.delete(cosines, nearest).max())


def _further(total: Counts) -> dict[str, float]:
    return {"cosine": min(total["cosines"]), "mean_cosine": float(np.mean(total["cosines"]))}
