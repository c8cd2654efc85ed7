"""Sparklines: small charts of figures over runs, in one line of text."""

from __future__ import annotations

from collections.abc import Sequence

_BARS = "▁▂▃▄▅▆▇█"


def heights(values: Sequence[float]) -> list[float]:
    """Returns the values scaled from the least (0) to the largest (1); 0.5 each if all are equal."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    return [0.5 if high == low else (value - low) / (high - low) for value in values]


def spark_text(values: Sequence[float | None]) -> str:
    """Returns one bar for each value, and a space for each missing value.

    >>> spark_text([0.0, None, 2.0])
    '▁ █'
    """
    drawn = iter(heights([value for value in values if value is not None]))
    return "".join(" " if value is None else _BARS[round(next(drawn) * (len(_BARS) - 1))] for value in values)
