"""A metric's values and losses as text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from trt_bisect.analyzer.metrics import FRACTIONS, JUDGING
from trt_bisect.support.table import FIGURE, LOSS
from trt_bisect.support.text import percent

ACCURACY = "accuracy"
"""The figure of labelled data: a share of 1."""
PERCENTAGES = (*FRACTIONS, ACCURACY)
"""The figures that are shares of 1, written in percent."""


def figure_text(metric: str, value: float | None, threshold: float | None = None) -> str:
    """Returns a metric's value as the screen, the page and the tables write it; ``-`` for None.

    Args:
        metric: its name; the value of a metric that is not built in has six significant digits.
        value: the metric's.
        threshold: see ``support.text.percent``.
    """
    if value is None:
        return "-"
    if metric in PERCENTAGES:
        return percent(value, threshold)
    known = JUDGING.get(metric)
    return known.text(value) if known else f"{value:.6g}"


def threshold_text(metric: str, value: float) -> str:
    """Returns a threshold of a metric with the digits that it was given with: ``99.5%``."""
    return f"{100 * value:.6g}%" if metric in PERCENTAGES else figure_text(metric, value)


def loss_text(metric: str, loss: float | None) -> str:
    """Returns a loss as text, in the units of the metric's loss; ``-`` for None."""
    if loss is None:
        return "-"
    return percent(loss) if metric in PERCENTAGES else f"{loss:.3g}"


def metric_texts(metric: str, threshold: float | None = None) -> Mapping[str, Callable[[Any], str]]:
    """Returns by kind of column what writes the figures and the losses of a metric; see ``support.table``."""
    return {FIGURE: partial(figure_text, metric, threshold=threshold), LOSS: partial(loss_text, metric)}
