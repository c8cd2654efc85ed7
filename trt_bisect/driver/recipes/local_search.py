"""Better sets than the one at hand.

What a set may lose is reckoned from the losses measured so far (see ``surrogate``); the likeliest are measured, and
those without hope never. Of a few units all sets are looked at, of many those that annealing comes by.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trt_bisect.driver.recipes.search_space import Alone, Batches, Kept, Known
from trt_bisect.driver.recipes.surrogate import Energy, Surrogate, all_sets, fit, walks

_FEW_UNITS = 16
_LOOKED_AT = 48
_AT_ONCE = 32
_PATIENCE = 8
"""How many batches may be measured in vain."""


@dataclass(frozen=True)
class Goal:
    """What makes a set better than the one at hand.

    Attributes:
        allowed: told from a set alone: it may be taken if its loss is small enough.
        enough: the largest loss that makes an allowed set better.
        hopeful: the largest loss reckoned for a set that is worth measuring.
        key: of several better sets the one with the smallest is taken.
        energy: how far a plan is from it.
    """

    allowed: Callable[[Kept], bool]
    enough: float
    hopeful: float
    key: Callable[[Kept], Any]
    energy: Energy


def improved(known: Known, kept: Kept, alone: Alone, goal: Goal) -> Batches[Kept | None]:
    """A better set, measured; None where none was found.

    Args:
        known: what was measured, and how much more may be.
        kept: the set at hand.
        alone: the sensitivities, by which units are looked at where there are many.
        goal: what is better.
    """
    few = len(known.space.units) <= _FEW_UNITS
    units = sorted(known.space.all) if few else _looked_at(known, kept, alone)
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


def _among_all(known: Known, surrogate: Surrogate, goal: Goal) -> list[Kept]:
    """The sets worth measuring, the likeliest first."""
    high = all_sets(len(surrogate.units))
    losses = surrogate.losses(~high)
    return _worth_measuring(known, goal, surrogate.units, high, losses, np.argsort(losses, kind="stable"))


def _annealed(known: Known, surrogate: Surrogate, kept: Kept, goal: Goal) -> list[Kept]:
    """The sets worth measuring that are nearest to what is wanted."""
    costs = np.array([known.space.costs[unit] for unit in surrogate.units])
    high, losses, dear = walks(surrogate, costs, kept, goal.energy)
    nearest = np.argsort(goal.energy(dear, losses), kind="stable")
    return _worth_measuring(known, goal, surrogate.units, high, losses, nearest)


def _worth_measuring(
    known: Known, goal: Goal, units: Sequence[int], high: np.ndarray, losses: np.ndarray, order: np.ndarray
) -> list[Kept]:
    found: list[Kept] = []
    for place in order[losses[order] <= goal.hopeful]:
        kept = frozenset(units[column] for column in np.flatnonzero(high[place]).tolist())
        if kept not in known.losses and goal.allowed(kept):
            found.append(kept)
            if len(found) == _AT_ONCE:
                break
    return found


def _looked_at(known: Known, kept: Kept, alone: Alone) -> list[int]:
    """The units of the set at hand, and those that gain or lose most, as they are and for their price."""
    costs = known.space.costs
    orders = (
        lambda unit: -alone.gains[unit] / costs[unit],
        lambda unit: -alone.gains[unit],
        lambda unit: -alone.losses[unit] / costs[unit],
        lambda unit: -alone.losses[unit],
    )
    rankings = [sorted(known.space.all, key=order) for order in orders]
    looked_at = dict.fromkeys(sorted(kept))
    for tier in zip(*rankings, strict=True):
        for unit in tier:
            if len(looked_at) < max(_LOOKED_AT, len(kept)):
                looked_at[unit] = None
    return sorted(looked_at)
