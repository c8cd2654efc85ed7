"""The most accurate plan within a cost."""

from __future__ import annotations

from dataclasses import dataclass

from trt_bisect.driver.recipes.local_search import Goal, improved
from trt_bisect.driver.recipes.search_space import (
    Batches,
    Kept,
    MeasuredSets,
    Sensitivities,
    Space,
    saved,
    sensitivities,
)

_LESS = 1e-6
_ROUNDED = 1e-9
_HOPE = 2.0
"""A set is measured if its estimated loss is at most so many times that of the current set."""
_AT_ONCE = 24
"""The number of units tried as the next one to keep high: those that gained most when they were last tried."""


@dataclass(frozen=True)
class MostAccurate:
    """The result of a search within a cost.

    Attributes:
        kept: the units kept high.
        losses: the losses of all sets measured, infinite for a set that could not be measured.
    """

    kept: Kept
    losses: dict[Kept, float]


def within(space: Space, most: float, limit: int) -> Batches[MostAccurate]:
    """Searches the set of units to keep high that loses least and costs no more than ``most``.

    Args:
        space: the units to choose from.
        most: the largest cost.
        limit: the number of plans tried to improve the set.
    """
    known, most = MeasuredSets(space, limit), most + _ROUNDED
    yield from known.ask([frozenset(), space.all])
    if not known.losses[frozenset()] > 0.0:
        return MostAccurate(frozenset(), known.losses)
    alone = yield from sensitivities(known)
    for per_cost in (True, False):
        yield from _grown(known, alone, most, per_cost=per_cost)

    def payable(kept: Kept) -> bool:
        return space.cost(kept) <= most

    def order(kept: Kept) -> tuple[float, tuple[float, int]]:
        return known.losses[kept], space.price(kept)

    best = min(filter(payable, known.losses), key=order)
    while known.losses[best] > 0.0:
        loss = known.losses[best]
        goal = Goal(most, payable, loss * (1.0 - _LESS), _HOPE * loss, order)
        better = yield from improved(known, best, alone, goal)
        if better is None:
            break
        best = better
    return MostAccurate(best, known.losses)


def _grown(known: MeasuredSets, alone: Sensitivities, most: float, *, per_cost: bool) -> Batches[None]:
    """Begins with all units low and keeps the one high that gains most, until no other can be paid for.

    Gains become smaller as other units are kept high, as a rule: so only units with the largest gains so far are tried.

    Args:
        known: the measurements.
        alone: the sensitivities.
        most: the largest cost.
        per_cost: rank units by gain for their cost, not by gain.
    """
    space = known.space
    prices = space.costs if per_cost else (1.0,) * len(space.units)
    gains = dict(enumerate(alone.gains))
    kept: Kept = frozenset()
    while known.losses[kept] > 0.0:
        payable = [unit for unit in space.all - kept if space.cost(kept | {unit}) <= most]
        tried = sorted(payable, key=lambda unit: (-gains[unit] / prices[unit], -alone.losses[unit], unit))[:_AT_ONCE]
        if not tried:
            return
        losses = yield from known.ask([kept | {unit} for unit in tried])
        for unit, loss in zip(tried, losses, strict=True):
            gains[unit] = saved(known.losses[kept], loss)
        best = max(tried, key=lambda unit: (gains[unit] / prices[unit], alone.losses[unit]))
        if gains[best] <= 0.0:
            best = max(tried, key=lambda unit: alone.losses[unit])
        kept |= {best}
