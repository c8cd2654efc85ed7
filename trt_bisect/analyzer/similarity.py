"""One figure for two sets of outputs, for use in a notebook."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from trt_bisect.analyzer.judge import compare_arrays
from trt_bisect.analyzer.metrics import find_metric


def similarity(
    reference: np.ndarray | Mapping[str, np.ndarray],
    output: np.ndarray | Mapping[str, np.ndarray],
    metric: str | Callable[..., Any] = "cosine",
    direction: str = "higher",
) -> float:
    """The metric of ``output`` against ``reference``: of two arrays, or of the worst output of two dictionaries.

    NaN where the output is not finite or nothing can be compared.

    Raises:
        BadInput: the metric is unknown.
        KeyError: ``output`` lacks an output of ``reference``.
    """
    chosen = find_metric(metric, direction)
    if isinstance(reference, Mapping) != isinstance(output, Mapping):
        raise TypeError("reference and output must both be arrays or both be dictionaries of arrays")
    if not isinstance(reference, Mapping) or not isinstance(output, Mapping):
        return compare_arrays([np.asarray(reference)], [np.asarray(output)], {"it": chosen}).values.get(
            chosen.name, float("nan")
        )
    figures = []
    for name in reference:
        known = chosen.knowing_perfect(np.atleast_2d(np.asarray(reference[name], np.float64)))
        value = compare_arrays([reference[name]], [output[name]], {"it": known}).values.get(chosen.name, float("nan"))
        figures.append((known.loss(value), value))
    return max(figures, key=lambda figure: figure[0])[1]
