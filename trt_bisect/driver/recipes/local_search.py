"""Local search: improves a set of units kept high.

The losses of sets are estimated from those measured so far (see ``surrogate``), and the most promising sets are
measured. Of few units all sets are estimated; of many, the sets that simulated annealing visits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trt_bisect.driver.recipes.search_space import Batches, Kept, MeasuredSets, Sensitivities
from trt_bisect.driver.recipes.surrogate import Energy, Surrogate, all_sets, fit, walks

FEW_UNITS = 16
"""With at most this many units, all sets are estimated."""
_CANDIDATES = 48
_AT_ONCE = 32
_PATIENCE = 8
"""The number of batches measured without a better set, after which the search ends."""


@dataclass(frozen=True)
class Goal:
    """The conditions for a set to be better than the current one.

    Attributes:
        allowed: returns true for a set that is better if its loss is small enough.
        enough: the largest loss of an allowed set that makes it better.
        hopeful: the largest estimated loss of a set that is worth measuring.
        key: the order of better sets: the one with the smallest key is taken.
        energy: the distance of plans from this goal.
    """

    allowed: Callable[[Kept], bool]
    enough: float
    hopeful: float
    key: Callable[[Kept], Any]
    energy: Energy


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
        surrogate = fit(known.losses, units, known.space.budget)
        likely = _among_all(known, surrogate, goal) if few else _annealed(known, surrogate, kept, goal)
        waiting = likely[: min(_AT_ONCE, known.left)]
        if not waiting:
            return None
        known.left -= len(waiting)
        losses = yield from known.ask(waiting)
        better = [one for one, loss in zip(waiting, losses, strict=True) if loss <= goal.enough]
        if better:
            return min(better, key=goal.key)
        patience -= 1
    return None


def _among_all(known: MeasuredSets, surrogate: Surrogate, goal: Goal) -> list[Kept]:
    """The sets worth measuring, those with the smallest estimated loss first."""
    high = all_sets(len(surrogate.units))
    losses = surrogate.losses(~high)
    return _worth_measuring(known, goal, surrogate.units, high, losses, np.argsort(losses, kind="stable"))


def _annealed(known: MeasuredSets, surrogate: Surrogate, kept: Kept, goal: Goal) -> list[Kept]:
    """The sets worth measuring that annealing visits, those nearest to the goal first."""
    costs = np.array([known.space.costs[unit] for unit in surrogate.units])
    high, losses, dear = walks(surrogate, costs, kept, goal.energy)
    nearest = np.argsort(goal.energy(dear, losses), kind="stable")
    return _worth_measuring(known, goal, surrogate.units, high, losses, nearest)


def _worth_measuring(
    known: MeasuredSets, goal: Goal, units: Sequence[int], high: np.ndarray, losses: np.ndarray, order: np.ndarray
) -> list[Kept]:
    found: list[Kept] = []
    for place in order[losses[order] <= goal.hopeful]:
        kept = frozenset(units[column] for column in np.flatnonzero(high[place]).tolist())
        if kept not in known.losses and goal.allowed(kept):
            found.append(kept)
            if len(found) == _AT_ONCE:
                break
    return found


def _candidates(known: MeasuredSets, kept: Kept, alone: Sensitivities) -> list[int]:
    """The units of the current set, and those that gain or lose most, in all and for their cost."""
    costs = known.space.costs
    orders = (
        lambda unit: -alone.gains[unit] / costs[unit],
        lambda unit: -alone.gains[unit],
        lambda unit: -alone.losses[unit] / costs[unit],
        lambda unit: -alone.losses[unit],
    )
    rankings = [sorted(known.space.all, key=order) for order in orders]
    candidates = dict.fromkeys(sorted(kept))
    for tier in zip(*rankings, strict=True):
        for unit in tier:
            if len(candidates) < max(_CANDIDATES, len(kept)):
                candidates[unit] = None
    return sorted(candidates)
