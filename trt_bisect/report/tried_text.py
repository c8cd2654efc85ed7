"""A remedy that was measured, as a sentence."""

from __future__ import annotations

from trt_bisect.report.advice import Tried
from trt_bisect.report.figure_text import figure_text
from trt_bisect.support.figures import percent


def tried_text(tried: Tried, metric: str) -> str:
    """Returns the measured result of a remedy in words, without a full stop.

    Args:
        tried: the remedy.
        metric: the name of the metric of its similarity.
    """
    if tried.similarity is None:
        return f"{tried.what} gives no figure (not finite or not measured)"
    meets = "meets the threshold" if tried.meets else "misses the threshold"
    return f"{tried.what} gives {figure_text(metric, tried.similarity)}{_with_high(tried)}, which {meets}"


def _with_high(tried: Tried) -> str:
    if not tried.high:
        return ""
    layers = "1 layer" if tried.high == 1 else f"{tried.high} layers"
    return f" with {layers} high ({percent(tried.cost)} % of INT8's gain)"
