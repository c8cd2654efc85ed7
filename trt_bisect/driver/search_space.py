"""The plans from which a recipe is chosen. Each unit, a layer or a group of layers, is high or low."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from trt_bisect.precision import Precision, PrecisionPlan

# With more units the number of plans is bounded: measuring each unit alone would take longer than the search
# (docs/concepts/strategies.md).
MANY_UNITS = 500
_LEAST_COST = 1e-6  # the least cost of a unit given the others; a unit may even save changes of type
Kept = frozenset[int]
"""The numbers of the units in high precision."""


def all_sets(units: int) -> np.ndarray:
    """Returns every set of units, one a row, true for its units: bool ``[2 ** units, units]``."""
    numbers = np.arange(1 << units, dtype=np.int64)
    return (numbers[:, None] >> np.arange(units) & 1).astype(bool)


def are_many(units: int) -> bool:
    """Returns true if there are more than 500 units, too many to measure each of them."""
    return units > MANY_UNITS


@dataclass(frozen=True)
class Space:
    """The units from which a recipe chooses.

    Attributes:
        base: a plan with the precisions of the layers outside all units.
        units: indices of each unit's layers, which always have the same precision.
        costs: cost of each unit in high precision, above 0, as a share of the low precision's speedup over FP16.
        budget: largest loss that meets the threshold.
        others: by unit, its high precision if it is not ``high``.
        spent: cost of the layers outside all units.
        cost_of: returns the cost of a whole plan; None if it is the sum over its units.
    """

    base: PrecisionPlan
    units: tuple[tuple[int, ...], ...]
    costs: tuple[float, ...]
    budget: float
    low: Precision = Precision.INT8
    high: Precision = Precision.FP32
    others: Mapping[int, Precision] = field(default_factory=dict)
    spent: float = 0.0
    cost_of: Callable[[PrecisionPlan], float] | None = None

    @property
    def all(self) -> Kept:
        """The numbers of all units."""
        return frozenset(range(len(self.units)))

    @property
    def has_many(self) -> bool:
        """True for more than 500 units, too many to measure each of them."""
        return are_many(len(self.units))

    def layers(self, kept: Iterable[int]) -> list[int]:
        """Returns the indices of the layers of the units ``kept``."""
        return [layer for unit in kept for layer in self.units[unit]]

    def plan(self, kept: Kept) -> PrecisionPlan:
        """Returns the plan with the units ``kept`` high and the others low."""
        plan = self.base.keeping(self.layers(self.all - kept), self.low).keeping(self.layers(kept), self.high)
        for unit in kept & self.others.keys():
            plan = plan.keeping(self.units[unit], self.others[unit])
        return plan

    def cost(self, kept: Iterable[int]) -> float:
        """Returns the cost of the plan with the units ``kept`` high."""
        if self.cost_of is not None:
            return round(self.cost_of(self.plan(frozenset(kept))), 12)
        return round(math.fsum((self.spent, *(self.costs[unit] for unit in kept))), 12)

    def costs_near(self, kept: Kept) -> tuple[float, ...]:
        """Returns for each unit the cost of having it high rather than low, with all other units as in the set
        ``kept``.
        """
        if self.cost_of is None:
            return self.costs
        with_all = self.cost(kept)
        apart = [
            with_all - self.cost(kept - {unit}) if unit in kept else self.cost(kept | {unit}) - with_all
            for unit in range(len(self.units))
        ]
        return tuple(max(cost, _LEAST_COST) for cost in apart)

    def order(self, kept: Kept) -> tuple[float, int]:
        """Returns a key that sorts sets by cost, then by their number of layers."""
        return self.cost(kept), len(self.layers(kept))


@dataclass(frozen=True)
class Sensitivities:
    """The sensitivities of all units, in the order of the units.

    Attributes:
        losses: loss that the unit alone in low precision adds to the plan with all units in high precision.
        gains: loss that the plan with all units in low precision wins back with the unit alone in high precision.
    """

    losses: tuple[float, ...]
    gains: tuple[float, ...]


_FLOOR = 1e-2  # losses below this share of the budget count as this share


@dataclass(frozen=True)
class Point:
    """One plan, with its cost and its measured loss."""

    plan: PrecisionPlan
    cost: float
    loss: float


def pareto(points: Iterable[Point]) -> tuple[Point, ...]:
    """Returns the points of the Pareto front by rising cost. Of equal points the first one is kept."""
    front: list[Point] = []
    for point in sorted(points, key=lambda point: (point.cost, point.loss)):
        if math.isfinite(point.loss) and (not front or point.loss < front[-1].loss):
            front.append(point)
    return tuple(front)


def knee(front: Sequence[Point], budget: float) -> Point | None:
    """Returns the point of a Pareto front after which more cost reduces the loss only little; None for fewer than three
    points, or if all have the same cost or loss.

    Method: Kneedle (Satopää and others, 2011), with the logarithm of the loss.

    Args:
        front: the cheapest point first.
        budget: largest loss that meets the threshold; losses below 1 % of it count as 1 %.
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
    """Returns growing sets of units in high precision, from none to all: first the units ``chosen``, then the others.

    Args:
        alone: orders both groups by falling sensitivity per cost; None: by number.
        points: number of sets, in even steps; the set ``chosen`` is added.
    """
    units = sorted(space.all)

    def worth(unit: int) -> tuple[bool, float, int]:
        figure = 0.0
        if alone is not None:
            figure = alone.gains[unit] if unit in chosen else alone.losses[unit]
        return unit not in chosen, -figure / space.costs[unit], unit

    order = sorted(units, key=worth)
    sizes = {round(point * len(order) / (points - 1)) for point in range(points)} | {len(chosen)}
    return [frozenset(order[:size]) for size in sorted(sizes)]
