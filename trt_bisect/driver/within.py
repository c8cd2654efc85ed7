"""The most accurate plan within a cost."""

from __future__ import annotations

from trt_bisect.driver.improve import Goal, improved
from trt_bisect.driver.minimal import PLANS, Chosen, chosen, grown
from trt_bisect.driver.space import Batches, Kept, Known, Space, sensitivities


def within(space: Space, most: float, limit: int = PLANS) -> Batches[Chosen]:
    """The set of units to leave high that loses least and costs no more than ``most``.

    Args:
        space: what can be chosen.
        most: the largest cost.
        limit: how many plans are asked for before it stops looking for a better set than the one it has.
    """
    known = Known(space, limit)
    yield from known.ask([frozenset(), space.all])
    if not known.losses[frozenset()] > 0.0:
        return chosen(known, frozenset(), None)
    alone = yield from sensitivities(known)
    for per_cost in (True, False):
        yield from grown(known, alone, lambda kept: not known.losses[kept] > 0.0, per_cost=per_cost, most=most)

    def payable(kept: Kept) -> bool:
        return space.cost(kept) <= most

    def order(kept: Kept) -> tuple[float, tuple[float, int]]:
        return known.losses[kept], space.price(kept)

    better: Kept | None = min(filter(payable, known.losses), key=order)
    while better is not None:
        best, loss = better, known.losses[better]
        better = yield from improved(known, best, Goal(payable, loss * (1.0 - 1e-9), loss, order))
    return chosen(known, best, alone)
