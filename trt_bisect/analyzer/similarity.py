"""The similarity of two sets of outputs, for use in a notebook."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from trt_bisect.analyzer.classes import classes_of
from trt_bisect.analyzer.compare_output import OutputJudge
from trt_bisect.analyzer.metrics import find_metric


def similarity(
    reference: np.ndarray | Mapping[str, np.ndarray],
    output: np.ndarray | Mapping[str, np.ndarray],
    metric: str | Callable[..., Any] = "cosine",
    direction: str = "higher",
    class_axis: int | None = None,
) -> float:
    """Returns the metric of ``output`` against ``reference``; of dictionaries, that of the worst output.

    The result is NaN if the output is not finite or nothing can be compared.

    Args:
        reference: one array, or several by name.
        output: the same for the other run.
        metric: the name of a built-in metric, ``module:function``, or a function.
        direction: for a function, which values are better, ``higher`` or ``lower``.
        class_axis: for ``kl`` and ``top1``: the class axis; found from ``reference`` by default.

    Raises:
        BadInput: the metric is unknown, or needs a class axis that is not known.
        KeyError: ``output`` lacks an output of ``reference``.
        TypeError: one is an array and the other a dictionary.
    """
    chosen = find_metric(metric, direction)
    if isinstance(reference, Mapping) != isinstance(output, Mapping):
        raise TypeError("reference and output must both be arrays or both be dictionaries of arrays")
    if not isinstance(reference, Mapping) or not isinstance(output, Mapping):
        reference, output = {"array": np.asarray(reference)}, {"array": np.asarray(output)}
    classes, _ = classes_of([dict(reference)], reference, chosen.name, class_axis)
    figures = []
    for name in reference:
        known = chosen.knowing_perfect(np.atleast_2d(np.asarray(reference[name], np.float64)))
        judge = OutputJudge([reference[name]], {"it": known}, classes.get(name))
        value = judge.figures([output[name]]).values.get(chosen.name, float("nan"))
        figures.append((known.loss(value), value))
    return max(figures, key=lambda figure: figure[0])[1]
