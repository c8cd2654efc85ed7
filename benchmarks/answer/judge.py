"""A recipe's file judged outside trt-bisect: plain ONNX Runtime, and the cosine by NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnxruntime

from tests.support.quantized import plain_session

Feeds = dict[str, np.ndarray]
Outputs = dict[str, np.ndarray]
Cuts = Mapping[str, Sequence[int]]
"""By output the places on axis 1 where it is cut, and each piece is judged by itself."""
MODES: Mapping[str, Mapping[str, bool]] = {
    "off": {"optimised": False, "integers": True},
    "on": {"integers": True},
    "float": {},
}
"""Graph optimisations off; on, as a plain session has them, with integer kernels; on without integer kernels."""


def session(path: Path, mode: str) -> onnxruntime.InferenceSession:
    """A session on the CPU; ``mode`` is one of ``MODES``."""
    return plain_session(path, **MODES[mode])


def read_samples(path: Path, opened: onnxruntime.InferenceSession) -> list[Feeds]:
    """The samples of an ``.npz``: arrays stacked on a first axis of their own, or on the input's first axis."""
    ranks = {spec.name: len(spec.shape) for spec in opened.get_inputs()}
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    count = len(next(iter(arrays.values())))
    return [
        {name: array[k] if array.ndim > ranks[name] else array[k : k + 1] for name, array in arrays.items()}
        for k in range(count)
    ]


def infer(opened: onnxruntime.InferenceSession, feeds: Feeds) -> Outputs:
    names = [spec.name for spec in opened.get_outputs()]
    return dict(zip(names, opened.run(names, feeds), strict=True))


def cosine(reference: np.ndarray, output: np.ndarray) -> float:
    """The cosine in float64: 1 for two zeros, 0 where one of both is zero or a value is not finite.

    A single value has no direction: 1 minus its relative error is taken, as ``docs/concepts/metrics.md`` says.
    """
    a, b = np.ravel(reference).astype(np.float64), np.ravel(output).astype(np.float64)
    if not np.isfinite(b).all():
        return 0.0
    if a.size == 1 and a[0] != b[0]:
        return float(1.0 - abs(a[0] - b[0]) / max(abs(a[0]), abs(b[0])))
    sizes = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / sizes if sizes else float(np.array_equal(a, b))


def worst(reference: Outputs, outputs: Outputs, cuts: Cuts | None = None) -> float:
    """The worst output's cosine; outputs in ``cuts`` are judged in pieces."""
    figures = []
    for name, exact in reference.items():
        pieces, others = [exact], [outputs[name]]
        if cuts and name in cuts:
            pieces, others = (np.split(array, list(cuts[name]), axis=1) for array in (exact, outputs[name]))
        figures += [cosine(a, b) for a, b in zip(pieces, others, strict=True)]
    return min(figures)


def judged(original: Path, recipe: Path, samples: Path, cuts: Cuts | None = None) -> dict[str, list[float]]:
    """Returns the worst output's cosine on each sample, by mode, and by ``MODE, cut`` if there are cuts.

    The reference is the FP32 file, run with the same optimisations.
    """
    figures: dict[str, list[float]] = {}
    for mode in MODES:
        exact, rounded = session(original, mode), session(recipe, mode)
        for feeds in read_samples(samples, exact):
            reference, outputs = infer(exact, feeds), infer(rounded, feeds)
            figures.setdefault(mode, []).append(worst(reference, outputs))
            if cuts:
                figures.setdefault(f"{mode}, cut", []).append(worst(reference, outputs, cuts))
    return figures
