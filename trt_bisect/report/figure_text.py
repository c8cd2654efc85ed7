"""A metric's value as text."""

from __future__ import annotations

from trt_bisect.analyzer.metrics import FRACTIONS, JUDGING


def figure_text(metric: str, value: float | None) -> str:
    """Returns a metric's value as the screen, the page and the tables write it; ``-`` for None.

    Args:
        metric: its name; the value of a metric that is not built in has six significant digits.
        value: the metric's.
    """
    if value is None:
        return "-"
    known = JUDGING.get(metric)
    return known.text(value) if known else f"{value:.6g}"


def threshold_text(metric: str, value: float) -> str:
    """Returns a threshold of a metric with the digits that it was given with: ``99.5%``."""
    return f"{100 * value:.6g}%" if metric in FRACTIONS else figure_text(metric, value)
