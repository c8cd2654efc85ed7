"""The front of accuracy against cost: plans to measure for it, and those that no other plan beats in both."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trt_bisect.driver.recipes.search_space import Kept, Sensitivities, Space
from trt_bisect.precision import PrecisionPlan

_FLOOR = 1e-2
"""Losses below this share of the budget count as this share."""


@dataclass(frozen=True)
class Point:
    """One plan.

    Attributes:
        cost: the share of the speed gain of INT8 that the plan gives up.
        loss: the measured loss.
    """

    plan: PrecisionPlan
    cost: float
    loss: float


def pareto(points: Iterable[Point]) -> tuple[Point, ...]:
    """Returns the points of the Pareto front, the cheapest first. Of equal points the first one is kept."""
    front: list[Point] = []
    for point in sorted(points, key=lambda point: (point.cost, point.loss)):
        if math.isfinite(point.loss) and (not front or point.loss < front[-1].loss):
            front.append(point)
    return tuple(front)


def knee(front: Sequence[Point], budget: float) -> Point | None:
    """Returns the point after which more cost reduces the loss only little; None if there are fewer than three points.

    Method: Kneedle (Satopää and others, Finding a "kneedle" in a haystack, 2011). The knee is the point with the
    largest distance from the line between the ends, with cost and the logarithm of the loss both scaled to 0..1.

    Args:
        front: the cheapest point first.
        budget: the loss that the threshold allows.
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


def path(space: Space, chosen: Kept, alone: Sensitivities | None, points: int) -> list[Kept]:
    """Returns sets of units, each part of the next: chosen units first, and those that gain most for their cost first.

    Args:
        alone: the sensitivities; None where they were not measured.
        points: the largest number of sets, the empty one and the whole one included.
    """
    units = sorted(space.all)

    def worth(unit: int) -> tuple[bool, float, int]:
        figures = (alone.gains if unit in chosen else alone.losses) if alone else (0.0,) * len(units)
        return unit not in chosen, -figures[unit] / space.costs[unit], unit

    order = sorted(units, key=worth)
    sizes = {round(place * len(order) / (points - 1)) for place in range(points)} | {len(chosen)}
    return [frozenset(order[:size]) for size in sorted(sizes)]
