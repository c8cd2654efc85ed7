"""The most accurate plan within a cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from trt_bisect.driver.recipes.local_search import Goal, improved
from trt_bisect.driver.recipes.minimal import PLANS, Chosen, GrowthLimit, chosen, grown
from trt_bisect.driver.recipes.search_space import Batches, Kept, MeasuredSets, Space, sensitivities

_TOO_MUCH = 4.0
_LESS = 1e-6
_ROUNDED = 1e-9
_HOPE = 2.0
"""A set is measured if its estimated loss is at most so many times that of the current set."""


def within(space: Space, most: float, limit: int = PLANS) -> Batches[Chosen]:
    """Searches the set of units to keep high that loses least and costs no more than ``most``.

    Args:
        space: the units to choose from.
        most: the largest cost.
        limit: the number of plans tried to improve the set.
    """
    known, most = MeasuredSets(space, limit), most + _ROUNDED
    yield from known.ask([frozenset(), space.all])
    if not known.losses[frozenset()] > 0.0:
        return chosen(known, frozenset(), None)
    alone = yield from sensitivities(known)
    for per_cost in (True, False):
        growth = GrowthLimit(most, len(space.units), limit)
        yield from grown(known, alone, lambda kept: not known.losses[kept] > 0.0, growth, per_cost=per_cost)

    def payable(kept: Kept) -> bool:
        return space.cost(kept) <= most

    def order(kept: Kept) -> tuple[float, tuple[float, int]]:
        return known.losses[kept], space.price(kept)

    best = min(filter(payable, known.losses), key=order)
    while known.losses[best] > 0.0:
        better = yield from improved(known, best, alone, _more_accurate(known.losses[best], most, payable, order))
        if better is None:
            break
        best = better
    return chosen(known, best, alone)


def _more_accurate(loss: float, most: float, payable: Callable[[Kept], bool], key: Callable[[Kept], Any]) -> Goal:
    def energy(cost: np.ndarray, reckoned: np.ndarray) -> np.ndarray:
        return np.asarray(reckoned / loss + _TOO_MUCH * np.maximum(cost / max(most, _LESS) - 1.0, 0.0))

    return Goal(payable, loss * (1.0 - _LESS), _HOPE * loss, key, energy)
