"""Better sets than the one at hand.

Of a few units all sets are looked at, of many those that come of the set at hand by a few moves. What a set may lose is
reckoned from the losses measured so far; the likeliest are measured, and those without hope never.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from trt_bisect.driver.space import Batches, Kept, Known, saved
from trt_bisect.driver.surrogate import all_sets, predicted

_FEW_UNITS = 16
_AT_ONCE = 32
_TRIES = 256


@dataclass(frozen=True)
class Goal:
    """What makes a set better than the one at hand.

    Attributes:
        allowed: told from a set alone: it may be taken if its loss is small enough.
        enough: the largest loss that makes an allowed set better.
        hopeful: the largest loss reckoned for a set that is worth measuring.
        key: of several better sets the one with the smallest is taken.
    """

    allowed: Callable[[Kept], bool]
    enough: float
    hopeful: float
    key: Callable[[Kept], Any]


def improved(known: Known, kept: Kept, goal: Goal) -> Batches[Kept | None]:
    """A better set, measured; None where none was found within the known limit."""
    if len(known.space.units) <= _FEW_UNITS:
        return (yield from _among_all(known, goal))
    return (yield from _by_moves(known, kept, goal))


def _among_all(known: Known, goal: Goal) -> Batches[Kept | None]:
    sets = [(row, kept) for row, kept in _sets(len(known.space.units)) if goal.allowed(kept)]
    if not sets:
        return None
    rows = np.array([row for row, _ in sets])
    while known.left:
        losses = predicted(known.losses, rows, known.space.budget)
        likely = (sets[place][1] for place in np.argsort(losses, kind="stable") if losses[place] <= goal.hopeful)
        waiting: list[Kept] = []
        for kept in likely:
            if len(waiting) == min(_AT_ONCE, known.left):
                break
            if kept not in known.losses:
                waiting.append(kept)
        if not waiting:
            return None
        found = yield from _best_of(known, waiting, goal)
        if found is not None:
            return found
    return None


def _sets(units: int) -> Iterator[tuple[np.ndarray, Kept]]:
    for row in all_sets(units):
        yield row, frozenset(np.flatnonzero(row).tolist())


def _best_of(known: Known, sets: list[Kept], goal: Goal) -> Batches[Kept | None]:
    losses = yield from known.ask(sets)
    better = [kept for kept, loss in zip(sets, losses, strict=True) if loss <= goal.enough]
    return min(better, key=goal.key, default=None)


def _by_moves(known: Known, kept: Kept, goal: Goal) -> Batches[Kept | None]:
    """Tries sets that differ in up to four units, by what they would lose if losses added up."""
    space, here = known.space, known.losses[kept]
    inside = sorted(kept)
    outside = sorted(space.all - kept, key=lambda unit: space.costs[unit])[: max(known.left - len(inside), 0)]
    if not outside:
        return None
    taken = yield from known.ask([kept - {unit} for unit in inside])
    added = yield from known.ask([kept | {unit} for unit in outside])
    rises = {unit: -saved(here, loss) for unit, loss in zip(inside, taken, strict=True)}
    gains = {unit: saved(here, loss) for unit, loss in zip(outside, added, strict=True)}
    best = sorted(gains, key=lambda unit: -gains[unit])[:_AT_ONCE]
    likely: list[tuple[float, tuple[float, int], list[int]]] = []
    for out, into in _moves(inside, best):
        other = kept.difference(out).union(into)
        loss = here + sum(rises[unit] for unit in out) - sum(gains[unit] for unit in into)
        if loss <= goal.hopeful and other not in known.losses and goal.allowed(other):
            likely.append((loss, space.price(other), sorted(other)))
    hopeful = [frozenset(units) for _, _, units in sorted(likely)[: min(known.left, _TRIES)]]
    for start in range(0, len(hopeful), _AT_ONCE):
        found = yield from _best_of(known, hopeful[start : start + _AT_ONCE], goal)
        if found is not None:
            return found
    return None


def _moves(inside: list[int], outside: list[int]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Which units leave the set, and which come into it: up to two each."""
    for leaving in range(3):
        for out in combinations(inside, leaving):
            for coming in range(3):
                for into in combinations(outside, coming):
                    yield out, into
