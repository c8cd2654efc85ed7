"""Lowering: begins with all units high and lowers them in an order, many together where that is good.

A group of units that cannot go low together is halved, as delta debugging does (Zeller and Hildebrandt, Simplifying and
isolating failure-inducing input, 2002). So c units that must stay high among N take about 2 c log2(N / c) plans.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from trt_bisect.driver.recipes.search_space import Batches, Kept, MeasuredSets, Sensitivities, Space
from trt_bisect.driver.suspects.search import Loss
from trt_bisect.precision import PrecisionPlan

Result = TypeVar("Result")


def lowered(
    known: MeasuredSets,
    start: Kept,
    order: Iterable[int],
    too_many: Callable[[Kept], bool] = lambda _stays: False,
    smallest: int = 1,
    most: float = math.inf,
) -> Batches[Kept | None]:
    """Lowers units of a set that meets the budget, in an order; a unit stays high if it cannot go low any more.

    Args:
        known: the measurements.
        start: the set; it meets the budget.
        order: the order of the units; those outside ``start`` are passed over.
        too_many: asked with the units found so far that stay high: true ends the search.
        smallest: groups of so many units stay high as a whole.
        most: so many groups stay high; then as many of the units left go low together as halving their number shows.

    Returns:
        The smaller set; None if ``too_many`` ended the search.
    """
    kept, stays, count = start, frozenset[int](), 0
    groups = [tuple(unit for unit in order if unit in start)]
    while groups and count < most:
        group = groups.pop()
        if not group:
            continue
        yield from known.ask([kept.difference(group)])
        if known.meets(kept.difference(group)):
            kept = kept.difference(group)
        elif len(group) > smallest:
            middle = (len(group) + 1) // 2
            groups += [group[middle:], group[:middle]]
        else:
            stays, count = stays.union(group), count + 1
            if too_many(stays):
                return None
    return (yield from without_most(known, kept, [unit for group in reversed(groups) for unit in group]))


def without_most(known: MeasuredSets, kept: Kept, ranked: Sequence[int], enough: int = 0) -> Batches[Kept]:
    """Returns a set that meets the budget without as many first units of a ranking as can go low.

    Args:
        known: the measurements.
        kept: the set.
        ranked: the ranking.
        enough: it is known that so many can go low.
    """
    too_many = len(ranked) + 1
    count = len(ranked)
    while enough < count:
        yield from known.ask([kept.difference(ranked[:count])])
        if known.meets(kept.difference(ranked[:count])):
            enough = count
        else:
            too_many = count
        count = (enough + too_many) // 2
    return kept.difference(ranked[:enough])


def side_by_side(searches: Sequence[Batches[Result]]) -> Batches[list[Result]]:
    """Runs searches in step: their questions of one step are asked together; no plan is asked for twice."""
    results: dict[int, Result] = {}
    waiting: dict[int, Sequence[PrecisionPlan]] = {}
    known: dict[PrecisionPlan, Loss] = {}

    def advance(place: int, losses: Sequence[Loss] | None) -> None:
        try:
            waiting[place] = next(searches[place]) if losses is None else searches[place].send(losses)
        except StopIteration as end:
            waiting.pop(place, None)
            results[place] = end.value

    for place in range(len(searches)):
        advance(place, None)
    while waiting:
        asked = dict(waiting)
        new = [plan for plan in dict.fromkeys(plan for batch in asked.values() for plan in batch) if plan not in known]
        if new:
            known.update(zip(new, (yield new), strict=True))
        for place, batch in asked.items():
            advance(place, [known[plan] for plan in batch])
    return [results[place] for place in range(len(searches))]


def orders(space: Space, alone: Sensitivities | None = None) -> list[tuple[int, ...]]:
    """The orders in which units are lowered: the dearest first, and those that lose least for their cost.

    Args:
        space: the units.
        alone: the loss of each unit alone low, and its gain alone high; without it there is one order.
    """
    units, cost = range(len(space.units)), space.costs
    found = [sorted(units, key=lambda unit: (-cost[unit], unit))]
    for figures in () if alone is None else (alone.losses, alone.gains):
        rank = [(figures[unit] / cost[unit], -cost[unit], unit) for unit in units]
        found.append(sorted(units, key=rank.__getitem__))
    return list(dict.fromkeys(map(tuple, found)))
