"""The cheapest set of units to keep high such that a plan meets the budget, by lowering and then by local search.

No losses are added up: every set that is accepted was measured as a whole plan. Lowering begins with all units high and
lowers them in an order, many together where that is good. A group of units that cannot go low together is halved, as
delta debugging does (Zeller and Hildebrandt, Simplifying and isolating failure-inducing input, 2002). So c units that
must stay high among N take about 2 c log2(N / c) plans.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, islice

from trt_bisect.driver.local_search import FEW_UNITS, BetterSet, improved
from trt_bisect.driver.search import Loss, Result
from trt_bisect.driver.search_space import Batches, Kept, MeasuredSets, Sensitivities, Space, saved
from trt_bisect.precision import PrecisionPlan

_EQUAL = 0.01
"""Sets whose costs differ by less than this share of the smaller one are equally good."""
_LITTLE_MORE = 1.1
"""A set that costs at most so many times as much costs little more."""
_MOST_HIGH = 32
"""Of many units, each one that has to stay high takes about 2 log2(N) plans to find. After so many of them the small
errors of all units matter, and those left are lowered by their number: log2(N) more plans."""
FEW_NEEDED = 4
"""A larger set can be made cheaper as a rule. So it is not tried to show that each of its units is needed."""
_PAIRS = 64
"""The number of pairs that are tried at the end: all of them with up to eleven units."""
_HOPE = 3.0
"""A set is measured if its estimated loss is at most so many budgets."""


def lowered(
    measured: MeasuredSets,
    start: Kept,
    order: Iterable[int],
    too_many: Callable[[Kept], bool] = lambda _stays: False,
    smallest: int = 1,
    most: float = math.inf,
) -> Batches[Kept | None]:
    """Lowers units of a set that meets the budget, in an order; a unit stays high if it cannot go low any more.

    Args:
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
        enough: it is known that so many can go low.
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


def side_by_side(searches: Sequence[Batches[Result]]) -> Batches[list[Result]]:
    """Runs searches in step: their questions of one step are asked together; no plan is asked for twice."""
    results: dict[int, Result] = {}
    loss_of: dict[PrecisionPlan, Loss] = {}
    waiting: dict[int, Sequence[PrecisionPlan] | None] = dict.fromkeys(range(len(searches)))
    while waiting:
        for index, batch in list(waiting.items()):
            search = searches[index]
            try:
                waiting[index] = next(search) if batch is None else search.send([loss_of[plan] for plan in batch])
            except StopIteration as end:
                results[index] = end.value
                del waiting[index]
        plans = dict.fromkeys(plan for batch in waiting.values() for plan in batch or ())
        new = [plan for plan in plans if plan not in loss_of]
        if new:
            loss_of.update(zip(new, (yield new), strict=True))
    return [results[index] for index in range(len(searches))]


def orders(space: Space, alone: Sensitivities | None = None) -> list[tuple[int, ...]]:
    """The orders in which units are lowered: the dearest first, and those that lose least for their cost.

    Args:
        alone: the loss of each unit alone low, and its gain alone high; without it there is one order.
    """
    units, cost = range(len(space.units)), space.costs
    rankings = [sorted(units, key=lambda unit: (-cost[unit], unit))]
    for figures in () if alone is None else (alone.losses, alone.gains):
        rank = [(figures[unit] / cost[unit], -cost[unit], unit) for unit in units]
        rankings.append(sorted(units, key=rank.__getitem__))
    return list(dict.fromkeys(map(tuple, rankings)))


@dataclass(frozen=True)
class Cheapest:
    """The result of a search.

    Attributes:
        kept: the units kept high. Unless there are many units it is 1-minimal: with any one of them low, the plan was
            measured to miss.
        meets: true if the plan meets the budget; else ``kept`` is the set with the smallest loss that was measured.
        taken_back: by unit of ``kept``, the loss with that unit low as well.
        equals: other 1-minimal sets that cost the same within one per cent.
        near: other sets that were measured to meet the budget and cost little more, with their losses; none where there
            are few units, which are soon searched again.
    """

    kept: Kept
    meets: bool = True
    taken_back: dict[int, float] = field(default_factory=dict)
    equals: tuple[Kept, ...] = ()
    near: Mapping[Kept, float] = field(default_factory=dict)


def cheapest(
    space: Space,
    rankings: Sequence[Sequence[int]],
    limit: int,
    alone: Sensitivities | None = None,
    dearest: float = math.inf,
) -> Batches[Cheapest]:
    """Lowers the units in several orders, side by side, and improves the cheapest set that this gives.

    Args:
        limit: the number of plans tried to find a cheaper set by local search; 0 for none.
        dearest: an order ends as soon as its set would cost more; if all do, the result has all units high.
    """
    measured = MeasuredSets(space, limit)
    yield from measured.ask([frozenset(), space.all])
    if measured.meets(frozenset()):
        return Cheapest(frozenset())
    if not measured.meets(space.all):
        return Cheapest(min(measured.losses, key=lambda kept: (measured.losses[kept], space.price(kept))), False)
    starts = yield from _lowered_in(measured, rankings, dearest)
    if not starts:
        return Cheapest(space.all)
    if space.has_many:
        return Cheapest(starts[0])
    sets = yield from side_by_side([reduced(measured, start) for start in starts])
    best = min(sets, key=space.price)
    while limit and alone is not None:
        better = yield from improved(measured, best, alone, _cheaper(space, best))
        if better is None:
            break
        best = yield from reduced(measured, better)
        sets.append(best)
    return _settled(measured, best, sets)


def surely_cheapest(space: Space, dearest: float = math.inf) -> Batches[Cheapest | None]:
    """Lowers the units once, and returns the set if each of its few units is needed in every set that costs as little.

    It is None without such a set. A unit is needed if the plan misses with it low and all others high that such a set
    can pay for. Then a set without it could only meet the budget if the loss were smaller with fewer units high. It
    takes a plan for each unit of the set, and no sensitivities.

    Args:
        dearest: the search ends as soon as the set would cost more.
    """
    measured = MeasuredSets(space)
    kept = yield from _lowered_once(measured, lambda stays: len(stays) > FEW_NEEDED or space.cost(stays) > dearest)
    if kept is None:
        return None
    most = space.cost(kept) * (1.0 + _EQUAL)
    payable = frozenset(unit for unit in space.all if space.cost({unit}) <= most)
    for unit in sorted(kept, key=lambda unit: (space.costs[unit], unit)):
        yield from measured.ask([payable - {unit}])
        if measured.meets(payable - {unit}):
            return None
    return _settled(measured, (yield from reduced(measured, kept)), [])


def cheaper_few(space: Space, kept: Kept, alone: Sensitivities | None) -> Batches[list[Kept]]:
    """Measures the single units, and pairs of them, that cost less than a set.

    A search aims below the budget, and lower again where its sets miss in a check: then it passes over sets that only
    just meet the budget.

    Args:
        space: the units to choose from, with the budget itself.
        kept: the set; of singles, all that cost less are measured.
        alone: of pairs, those that cost less and whose units have the largest gains are measured; None for no pairs.

    Returns:
        Those that meet the budget, the cheapest first.
    """
    measured, price = MeasuredSets(space), space.price(kept)
    yield from measured.ask([single for unit in sorted(space.all) if space.price(single := frozenset({unit})) < price])
    if alone is not None:
        price = min([price, *(space.price(single) for single in measured.losses if measured.meets(single))])
        cheap = [unit for unit in sorted(space.all) if space.price(frozenset({unit})) < price]
        pairs = sorted(combinations(cheap, 2), key=lambda pair: -sum(alone.gains[unit] for unit in pair))
        cheaper_pairs = (frozenset(pair) for pair in pairs if space.price(frozenset(pair)) < price)
        yield from measured.ask(islice(cheaper_pairs, _PAIRS))
    return sorted(filter(measured.meets, measured.losses), key=space.price)


def _lowered_in(measured: MeasuredSets, rankings: Sequence[Sequence[int]], dearest: float) -> Batches[list[Kept]]:
    """Returns the sets that lowering in some orders gives, which cost at most ``dearest``; of many units the cheapest.

    Of many units, an order ends as soon as its set would cost more than that of an order which is done.
    """
    space, costs = measured.space, [dearest]
    few, most = len(space.units) <= FEW_UNITS, most_high(space)

    def too_dear(stays: Kept) -> bool:
        return space.cost(stays) > (dearest if few else min(costs))

    def lowest(ranking: Sequence[int]) -> Batches[Kept | None]:
        kept = yield from lowered(measured, space.all, ranking, too_dear, most=most)
        if kept is not None:
            costs.append(space.cost(kept))
        return kept

    sets = yield from side_by_side([lowest(ranking) for ranking in rankings])
    distinct = dict.fromkeys(kept for kept in sets if kept is not None)
    return sorted(distinct, key=space.price)[: None if few else 1]


def _settled(measured: MeasuredSets, best: Kept, sets: Sequence[Kept]) -> Cheapest:
    space, cost = measured.space, measured.space.cost(best)
    others = [kept for kept in dict.fromkeys(sets) if kept != best]
    near = [kept for kept in measured.losses if kept != best and measured.meets(kept)]
    return Cheapest(
        best,
        True,
        taken_back={unit: measured.losses[best - {unit}] for unit in sorted(best)},
        equals=tuple(kept for kept in others if space.cost(kept) <= cost * (1.0 + _EQUAL)),
        near={kept: measured.losses[kept] for kept in near if space.cost(kept) <= _LITTLE_MORE * cost}
        if len(space.units) > FEW_UNITS
        else {},
    )


def least_cost(space: Space, dearest: float) -> Batches[Kept | None]:
    """Lowers the units once, the dearest first; returns None as soon as the set would cost more than ``dearest``."""
    return (yield from _lowered_once(MeasuredSets(space), lambda stays: space.cost(stays) > dearest))


def _lowered_once(measured: MeasuredSets, too_many: Callable[[Kept], bool]) -> Batches[Kept | None]:
    """Lowers the units, the dearest first; returns None if no set is good, or as soon as too many stay high."""
    space = measured.space
    yield from measured.ask([frozenset(), space.all])
    if measured.meets(frozenset()):
        return frozenset()
    if not measured.meets(space.all):
        return None
    return (yield from lowered(measured, space.all, orders(space)[0], too_many, most=most_high(space)))


def most_high(space: Space) -> float:
    """Returns how many units are found one by one to have to stay high; unlimited unless there are many units."""
    return _MOST_HIGH if space.has_many else math.inf


def _cheaper(space: Space, kept: Kept) -> BetterSet:
    price, budget = space.price(kept), space.budget
    return BetterSet(price[0], lambda candidate: space.price(candidate) < price, budget, _HOPE * budget, space.price)


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
