"""Embeddings: the share of vectors whose nearest neighbour is that of FP32."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trt_bisect.analyzer.tasks.task import AskedTask, Judge, Task, agreement, finite_like, not_finite, not_told, share
from trt_bisect.builder.base import Outputs
from trt_bisect.evaluator.trial import OutputFigures

SUPPORTED = "one output of vectors, [D] or [N, D], or of vectors of tokens, [N, T, D]"
_LEAST = 3


def embed(asked: AskedTask, reference: Sequence[Outputs]) -> Task:
    """Returns the task for an output of vectors: the first of shape ``[N, D]`` or ``[D]``, else of ``[N, T, D]``.

    The vectors of the T tokens are averaged to one vector.

    Raises:
        BadInput: there is no such output.
    """
    ranks = {name: value.ndim for name, value in reference[0].items() if value.dtype.kind == "f" and _is_long(value)}
    name = next((name for wanted in ((1, 2), (3,)) for name, rank in ranks.items() if rank in wanted), None)
    if name is None:
        raise not_told(asked.name, reference[0], SUPPORTED)
    how = "each row is a vector" if ranks[name] < 3 else "the average over the tokens (axis 1) is the vector"

    def judge(reference: Sequence[Outputs]) -> Judge:
        wanted = [_vectors(outputs[name]) for outputs in reference]

        def figures(outputs: Sequence[Outputs]) -> OutputFigures:
            if not finite_like(reference, outputs, [name]):
                return not_finite(len(outputs))
            return _figures(wanted, [_vectors(each[name]) for each in outputs])

        return figures

    note = f"--task {asked.name} compares the nearest neighbours among the judged inputs by '{name}': {how}"
    return Task(asked.entry, note, judge)


def _is_long(value: np.ndarray) -> bool:
    return value.ndim > 0 and value.shape[-1] > 1


def _vectors(output: np.ndarray) -> np.ndarray:
    """Returns the vectors of an output, ``[N, D]``, of length 1; vectors of zeros stay so."""
    values = np.asarray(output, np.float64)
    rows = np.atleast_2d(values.mean(axis=1) if values.ndim == 3 else values)
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), np.finfo(np.float64).tiny))


def _figures(wanted: Sequence[np.ndarray], found: Sequence[np.ndarray]) -> OutputFigures:
    """Returns the agreement. With fewer than three vectors there are no neighbours, and it is the worst cosine."""
    cosines = [np.sum(before * after, axis=-1) for before, after in zip(wanted, found, strict=True)]
    every = np.concatenate(cosines)
    further = {"cosine": float(every.min()), "mean_cosine": float(every.mean())}
    if len(every) < _LEAST:
        worst = [float(each.min()) for each in cosines]
        return agreement(min(worst), len(every), worst, further, "too few vectors for neighbours: the cosine is judged")
    kept = _neighbours_kept(np.concatenate(wanted), np.concatenate(found))
    borders = np.cumsum([len(each) for each in cosines])[:-1]
    shares = [share(part.sum(), len(part)) for part in np.split(kept, borders)]
    return agreement(share(kept.sum(), len(kept)), len(kept), shares, further)


def _neighbours_kept(wanted: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Returns for each vector if its nearest neighbour in FP32 is also nearest among the other plan's vectors."""
    nearest = _similarities(wanted).argmax(axis=-1)
    similar = _similarities(found)
    return np.asarray(similar[np.arange(len(similar)), nearest] >= similar.max(axis=-1))


def _similarities(vectors: np.ndarray) -> np.ndarray:
    similar = vectors @ vectors.T
    np.fill_diagonal(similar, -np.inf)
    return np.asarray(similar)
