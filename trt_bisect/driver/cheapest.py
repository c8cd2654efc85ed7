"""A cheap set of units to keep high, where each plan takes an engine or units are many: by lowering, by halves.

Every set that is accepted was measured as a whole plan. Lowering begins with all units high and lowers them in an
order, many together. A group that cannot go low together is halved, as in delta debugging (Zeller and Hildebrandt,
Simplifying and isolating failure-inducing input, 2002). So c units that must stay high among N take about 2 c log2(N /
c) plans.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from trt_bisect.driver.search_space import Batches, Kept, MeasuredSets, Space, saved

_MOST_HIGH = 32
"""The most units found one by one, at about 2 log2(N) plans each. After them the small errors of all units matter, and
the rest is lowered by number: log2(N) more plans.
"""


@dataclass(frozen=True)
class Cheapest:
    """The result of a search.

    Attributes:
        kept: the units kept high. Unless there are many units it is 1-minimal: with any one of them low, the plan was
            measured to miss.
        meets: true if the plan meets the budget; else ``kept`` is the measured set with the smallest loss.
    """

    kept: Kept
    meets: bool = True


def most_expensive_first(space: Space) -> list[int]:
    """Returns the units in the order in which they are lowered: the most expensive first."""
    return sorted(space.all, key=lambda unit: (-space.costs[unit], unit))


def cheapest(space: Space, order: Sequence[int]) -> Batches[Cheapest]:
    """Lowers the units in an order, then every unit that the others make unnecessary."""
    measured = MeasuredSets(space)
    kept = yield from _lowered_once(measured, order)
    if kept is None:
        return Cheapest(min(measured.losses, key=lambda kept: (measured.losses[kept], space.price(kept))), False)
    if not space.has_many:
        kept = yield from reduced(measured, kept)
    return Cheapest(kept)


def least_cost(space: Space, limit: float) -> Batches[Kept | None]:
    """Lowers the units once; None as soon as the set would cost more than ``limit``, or if no set is good."""
    measured = MeasuredSets(space)
    return (yield from _lowered_once(measured, most_expensive_first(space), lambda stays: space.cost(stays) > limit))


def _lowered_once(
    measured: MeasuredSets, order: Sequence[int], too_many: Callable[[Kept], bool] = lambda _stays: False
) -> Batches[Kept | None]:
    """Lowers the units in an order; returns None if no set is good, or as soon as too many stay high."""
    space = measured.space
    yield from measured.ask([frozenset(), space.all])
    if measured.meets(frozenset()):
        return frozenset()
    if not measured.meets(space.all):
        return None
    most = _MOST_HIGH if space.has_many else math.inf
    return (yield from lowered(measured, space.all, order, too_many, most=most))


def lowered(
    measured: MeasuredSets,
    start: Kept,
    order: Iterable[int],
    too_many: Callable[[Kept], bool] = lambda _stays: False,
    smallest: int = 1,
    most: float = math.inf,
) -> Batches[Kept | None]:
    """Lowers units of a set that meets the budget, in an order; a unit stays high if it cannot go low.

    Args:
        start: the set; it meets the budget.
        order: the order of the units; those outside ``start`` are passed over.
        too_many: asked with the units found so far that stay high: true ends the search.
        smallest: the size at which a group of units stays high as a whole.
        most: the groups that stay high before the rest is lowered by number, found by halving.

    Returns:
        The smaller set; None if ``too_many`` ended the search.
    """
    kept, stays, count = start, frozenset[int](), 0
    groups = [tuple(unit for unit in order if unit in start)]
    while groups and count < most:
        group = groups.pop()
        if not group:
            continue
        yield from measured.ask([kept.difference(group)])
        if measured.meets(kept.difference(group)):
            kept = kept.difference(group)
        elif len(group) > smallest:
            middle = (len(group) + 1) // 2
            groups += [group[middle:], group[:middle]]
        else:
            stays, count = stays.union(group), count + 1
            if too_many(stays):
                return None
    return (yield from without_most(measured, kept, [unit for group in reversed(groups) for unit in group]))


def without_most(measured: MeasuredSets, kept: Kept, ranked: Sequence[int], enough: int = 0) -> Batches[Kept]:
    """Returns a set that meets the budget without as many first units of a ranking as can go low.

    Args:
        enough: a number of units known to go low.
    """
    too_many = len(ranked) + 1
    count = len(ranked)
    while enough < count:
        yield from measured.ask([kept.difference(ranked[:count])])
        if measured.meets(kept.difference(ranked[:count])):
            enough = count
        else:
            too_many = count
        count = (enough + too_many) // 2
    return kept.difference(ranked[:enough])


def reduced(measured: MeasuredSets, kept: Kept) -> Batches[Kept]:
    """Returns a 1-minimal part of a set that meets the budget: units go low, many together, until none can."""
    space = measured.space
    while True:
        units = sorted(kept)
        losses = yield from measured.ask([kept - {unit} for unit in units])
        rises = {
            unit: max(-saved(measured.losses[kept], loss), 0.0)
            for unit, loss in zip(units, losses, strict=True)
            if loss <= space.budget
        }
        if not rises:
            return kept
        ranked = sorted(rises, key=lambda unit: (rises[unit] / space.costs[unit], -space.costs[unit], unit))
        kept = yield from without_most(measured, kept, ranked, enough=1)
