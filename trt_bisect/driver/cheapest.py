"""A cheap set of units to keep high, by lowering: all units are high at first, and go low in an order, many together.

A group that cannot go low together is halved, as in delta debugging (Zeller and Hildebrandt, Simplifying and isolating
failure-inducing input, 2002). So c units that must stay high among N take about 2 c log2(N / c) plans. Every set that
is accepted was measured as a whole plan.
"""

from __future__ import annotations

from trt_bisect.driver.search_space import Batches, Kept, MeasuredSets, Space


def least_cost(space: Space, limit: float) -> Batches[Kept | None]:
    """Lowers the units once, the most expensive first.

    Returns:
        The units that stay high; None as soon as they cost more than ``limit``, or if no set is good.
    """
    measured = MeasuredSets(space)
    yield from measured.ask([frozenset(), space.all])
    if measured.meets(frozenset()):
        return frozenset()
    if not measured.meets(space.all):
        return None
    kept, stays = space.all, frozenset[int]()
    groups = [sorted(space.all, key=lambda unit: (-space.costs[unit], unit))]
    while groups:
        group = groups.pop()
        yield from measured.ask([kept.difference(group)])
        if measured.meets(kept.difference(group)):
            kept = kept.difference(group)
        elif len(group) > 1:
            middle = (len(group) + 1) // 2
            groups += [group[middle:], group[:middle]]
        else:
            stays = stays.union(group)
            if space.cost(stays) > limit:
                return None
    return kept
