"""The Pareto front: the plans that no other plan beats in both loss and cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trt_bisect.precision import PrecisionPlan

_FLOOR = 1e-2
"""Losses below so much of the budget are as good as none."""


@dataclass(frozen=True)
class Point:
    """One plan.

    Attributes:
        cost: the share of INT8's gain in speed that it gives up.
        loss: measured.
    """

    plan: PrecisionPlan
    cost: float
    loss: float


def pareto(points: Iterable[Point]) -> tuple[Point, ...]:
    """Those that no other beats, the cheapest first; of equal ones the first."""
    front: list[Point] = []
    for point in sorted(points, key=lambda point: (point.cost, point.loss)):
        if math.isfinite(point.loss) and (not front or point.loss < front[-1].loss):
            front.append(point)
    return tuple(front)


def knee(front: Sequence[Point], budget: float) -> Point | None:
    """The point where more cost begins to give little; None on a front of fewer than three points.

    Kneedle (Satopää and others, Finding a "kneedle" in a haystack, 2011): the largest distance from the line between
    the ends, cost and the logarithm of the loss both taken from 0 to 1.

    Args:
        front: the cheapest first.
        budget: the loss that is tolerated.
    """
    if len(front) < 3:
        return None
    heights = [math.log10(max(point.loss, _FLOOR * budget)) for point in front]
    width, height = front[-1].cost - front[0].cost, heights[0] - heights[-1]
    if width <= 0.0 or height <= 0.0:
        return None
    below = [
        1.0 - (point.cost - front[0].cost) / width - (level - heights[-1]) / height
        for point, level in zip(front, heights, strict=True)
    ]
    return front[max(range(len(front)), key=below.__getitem__)]
