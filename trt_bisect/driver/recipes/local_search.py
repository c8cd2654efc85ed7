"""Local search: improves a set of units kept high.

The losses of all sets of some units are estimated from the sets measured so far (see ``surrogate``), and the most
promising sets are measured. Where there are more units than that, the others stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trt_bisect.driver.recipes.search_space import Batches, Kept, MeasuredSets, Sensitivities
from trt_bisect.driver.recipes.surrogate import all_sets, fit

FEW_UNITS = 16
"""The number of units of which all sets are estimated."""
_AT_ONCE = 32
_PATIENCE = 8
"""The number of batches measured without a better set, after which the search ends where units are many."""
_ROUNDED = 1e-9


@dataclass(frozen=True)
class Goal:
    """The conditions for a set to be better than the current one.

    Attributes:
        most: the largest cost of an allowed set.
        allowed: returns true for a set that is better if its loss is small enough.
        enough: the largest loss of an allowed set that makes it better.
        hopeful: the largest estimated loss of a set that is worth measuring.
        key: the order of better sets: the one with the smallest key is taken.
    """

    most: float
    allowed: Callable[[Kept], bool]
    enough: float
    hopeful: float
    key: Callable[[Kept], Any]


def improved(known: MeasuredSets, kept: Kept, alone: Sensitivities, goal: Goal) -> Batches[Kept | None]:
    """Returns a better set, which was measured; None if none was found.

    Args:
        known: the measurements, and the number of plans that may still be measured.
        kept: the current set.
        alone: the sensitivities; they choose the units to change where there are many.
        goal: the conditions for a better set.
    """
    few = len(known.space.units) <= FEW_UNITS
    units = sorted(known.space.all) if few else _candidates(known, kept, alone)
    patience = known.left if few else _PATIENCE
    while known.left and patience:
        waiting = _worth_measuring(known, units, kept.difference(units), goal)[: known.left]
        if not waiting:
            return None
        known.left -= len(waiting)
        losses = yield from known.ask(waiting)
        better = [one for one, loss in zip(waiting, losses, strict=True) if loss <= goal.enough]
        if better:
            return min(better, key=goal.key)
        patience -= 1
    return None


def _worth_measuring(known: MeasuredSets, units: Sequence[int], fixed: Kept, goal: Goal) -> list[Kept]:
    """Returns the sets of units, with those that stay high, to measure next: the smallest estimated losses first."""
    high, space = all_sets(len(units)), known.space
    costs = space.cost(fixed) + high @ np.array([space.costs[unit] for unit in units])
    losses = fit(known.losses, units, fixed, space.budget).losses(~high)
    places = np.flatnonzero((losses <= goal.hopeful) & (costs <= goal.most + _ROUNDED))
    found: list[Kept] = []
    for place in places[np.argsort(losses[places], kind="stable")]:
        kept = fixed.union(units[column] for column in np.flatnonzero(high[place]).tolist())
        if kept not in known.losses and goal.allowed(kept):
            found.append(kept)
            if len(found) == _AT_ONCE:
                break
    return found


def _candidates(known: MeasuredSets, kept: Kept, alone: Sensitivities) -> list[int]:
    """Returns the units to change: the dearest of the current set, and those that gain or lose most beside them."""
    costs = known.space.costs
    orders = (
        lambda unit: -alone.gains[unit] / costs[unit],
        lambda unit: -alone.gains[unit],
        lambda unit: -alone.losses[unit] / costs[unit],
        lambda unit: -alone.losses[unit],
    )
    others = known.space.all - kept
    candidates = dict.fromkeys(sorted(kept, key=lambda unit: (-costs[unit], unit))[: FEW_UNITS // 2])
    for tier in zip(*(sorted(others, key=order) for order in orders), strict=True):
        for unit in tier:
            if len(candidates) < FEW_UNITS:
                candidates[unit] = None
    return sorted(candidates)
