"""The cheapest plan that meets the threshold.

From both ends: rankings of the layers are cut where what is left high just suffices, and from full INT8 the layer that
gains most is left high, again and again. What comes of that is made 1-minimal, as delta debugging defines it (Zeller
and Hildebrandt, Simplifying and isolating failure-inducing input, 2002): no single unit can go back to INT8. Then
cheaper sets are tried. Nothing is added up: every set that is accepted was measured as a whole plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from trt_bisect.driver.recipes.local_search import Goal, improved
from trt_bisect.driver.recipes.search_space import Alone, Batches, Kept, Known, Space, saved, sensitivities

PLANS = 600
"""How many plans a search tries to find better ones than the one it has."""
_TOO_MUCH = 2.0
"""What a budget overdrawn twice weighs against the cost."""
_AT_ONCE = 24
"""How many units are tried as the next one to be left high, those that gained most when they were last tried."""
_AT_LEAST = 8
_BEAM, _BEAM_UNITS = 3, 128
"""How many sets grow side by side, and how many units are tried with each."""
_HOPE = 3.0
"""A set is measured if its loss is reckoned to be at most so many budgets."""


@dataclass(frozen=True)
class Chosen:
    """What a search chose.

    Attributes:
        kept: the units left high.
        loss: measured.
        meets: it is within the budget.
        alone: the sensitivities; None where all units can be low.
        losses: of all sets that were asked for, infinite where one could not be measured.
    """

    kept: Kept
    loss: float
    meets: bool
    alone: Alone | None
    losses: dict[Kept, float]


def minimal(space: Space, limit: int = PLANS, alone: Alone | None = None) -> Batches[Chosen]:
    """The cheapest set of units to leave high such that the loss is within the budget; it is 1-minimal.

    Args:
        space: what can be chosen.
        limit: how many plans are tried to find cheaper sets than the one it has. To find that one, and to make it
            1-minimal, it asks for as many as it takes.
        alone: sensitivities by another measure, where plans are dear: it begins with rankings by these alone.
    """
    known = Known(space, limit)
    dear = alone is not None
    yield from known.ask([frozenset(), space.all])
    if known.meets(frozenset()):
        return chosen(known, frozenset(), alone)
    if alone is None:
        alone = yield from sensitivities(known)
    if not known.meets(space.all):
        return chosen(known, min(known.losses, key=lambda kept: (known.losses[kept], space.price(kept))), alone)
    starts = yield from cut_rankings(known, _rankings(space, alone))
    found = []
    for start in dict.fromkeys(starts):
        found.append((yield from reduced(known, start)))
    best = min(found, key=space.price)
    for grow in () if dear else (grown, beamed):
        room = Room(space.cost(best), max(2 * len(best), _AT_LEAST), limit)
        start = yield from grow(known, alone, known.meets, room)
        if known.meets(start):
            best = min(best, (yield from reduced(known, start)), key=space.price)
    while True:
        better = yield from improved(known, best, alone, _cheaper(space, best))
        if better is None:
            return chosen(known, best, alone)
        best = yield from reduced(known, better)


def _cheaper(space: Space, kept: Kept) -> Goal:
    price, budget = space.price(kept), space.budget

    def energy(cost: np.ndarray, loss: np.ndarray) -> np.ndarray:
        return np.asarray(cost / price[0] + _TOO_MUCH * np.maximum(loss / budget - 1.0, 0.0))

    return Goal(lambda other: space.price(other) < price, budget, _HOPE * budget, space.price, energy)


def chosen(known: Known, kept: Kept, alone: Alone | None) -> Chosen:
    """The choice of a set that was measured."""
    return Chosen(kept, known.losses[kept], known.meets(kept), alone, known.losses)


def reduced(known: Known, kept: Kept) -> Batches[Kept]:
    """A 1-minimal part of a set that is enough: as many units as can go back together, until none can."""
    space = known.space
    while True:
        units = sorted(kept)
        losses = yield from known.ask([kept - {unit} for unit in units])
        rises = {
            unit: max(-saved(known.losses[kept], loss), 0.0)
            for unit, loss in zip(units, losses, strict=True)
            if loss <= space.budget
        }
        if not rises:
            return kept
        ranked = sorted(rises, key=lambda unit: (rises[unit] / space.costs[unit], -space.costs[unit], unit))
        kept = yield from _without_most(known, kept, ranked)


def _without_most(known: Known, kept: Kept, ranked: Sequence[int]) -> Batches[Kept]:
    """The set without as many of the first units of a ranking as can go; it is known that the first can."""
    enough, too_many = 1, len(ranked) + 1
    count = len(ranked)
    while enough < count:
        yield from known.ask([kept.difference(ranked[:count])])
        if known.meets(kept.difference(ranked[:count])):
            enough = count
        else:
            too_many = count
        count = (enough + too_many) // 2
    return kept.difference(ranked[:enough])


def _rankings(space: Space, alone: Alone) -> list[tuple[int, ...]]:
    """The units by what they cost alone and by what they give back, each as it is and for its price."""
    units = range(len(space.units))
    rankings = []
    for figures, others in ((alone.losses, alone.gains), (alone.gains, alone.losses)):
        for prices in ([1.0] * len(units), space.costs):
            worth = [(-figures[u] / prices[u], -others[u] / prices[u], u) for u in units]
            rankings.append(tuple(sorted(units, key=worth.__getitem__)))
    return list(dict.fromkeys(rankings))


def cut_rankings(known: Known, rankings: Sequence[Sequence[int]]) -> Batches[list[Kept]]:
    """For each ranking a first part of it that is enough and one unit less is not, all halved at the same time."""
    enough = [len(ranking) for ranking in rankings]
    too_few = [0] * len(rankings)
    while True:
        middles = {
            place: (enough[place] + too_few[place]) // 2
            for place in range(len(rankings))
            if enough[place] - too_few[place] > 1
        }
        if not middles:
            return [frozenset(ranking[:count]) for ranking, count in zip(rankings, enough, strict=True)]
        sets = {place: frozenset(rankings[place][:middle]) for place, middle in middles.items()}
        yield from known.ask(sets.values())
        for place, middle in middles.items():
            (enough if known.meets(sets[place]) else too_few)[place] = middle


@dataclass(frozen=True)
class Room:
    """How far a set may grow: the largest cost, the largest number of units, and how many plans that may take."""

    cost: float
    units: int
    plans: int


def grown(
    known: Known, alone: Alone, stop: Callable[[Kept], bool], room: Room, *, per_cost: bool = True
) -> Batches[Kept]:
    """From all units low, the one that gains most is left high, until that is enough or there is no room for more.

    Gains shrink as others are left high, as a rule, so only the units with the largest gains so far are tried again.

    Args:
        known: what was measured.
        alone: the sensitivities.
        stop: told of a measured set whether it is enough.
        room: how far it may grow.
        per_cost: by gain for its price, not by gain.
    """
    space = known.space
    prices = space.costs if per_cost else [1.0] * len(space.units)
    gains = dict(enumerate(alone.gains))
    kept: Kept = frozenset()
    while not stop(kept) and len(kept) < room.units:
        payable = [unit for unit in space.all - kept if space.cost(kept | {unit}) <= room.cost]
        tried = sorted(payable, key=lambda unit: (-gains[unit] / prices[unit], -alone.losses[unit], unit))[:_AT_ONCE]
        if not tried:
            return kept
        losses = yield from known.ask([kept | {unit} for unit in tried])
        for unit, loss in zip(tried, losses, strict=True):
            gains[unit] = saved(known.losses[kept], loss)
        finishing = [unit for unit in tried if stop(kept | {unit})]
        if finishing:
            return kept | {min(finishing, key=lambda unit: space.price(frozenset({unit})))}
        best = max(tried, key=lambda unit: (gains[unit] / prices[unit], alone.losses[unit]))
        if gains[best] <= 0.0:
            best = max(tried, key=lambda unit: alone.losses[unit])
        kept |= {best}
    return kept


def beamed(known: Known, alone: Alone, stop: Callable[[Kept], bool], room: Room) -> Batches[Kept]:
    """From all units low, several sets grow side by side, of each size those that lose least, until one is enough.

    Losses of layers whose errors meet and cancel do not rank a layer by what it gains with the best set of the size
    below, so every unit that has room is tried with each of them. The arguments are those of ``grown``.
    """
    space = known.space
    sets: list[Kept] = [frozenset()]
    asked = len(known.losses) + room.plans
    for _ in range(room.units):
        wider = dict.fromkeys(
            kept | {unit}
            for kept in sets
            for unit in sorted(space.all - kept, key=lambda unit: (-alone.gains[unit], unit))[:_BEAM_UNITS]
            if space.cost(kept | {unit}) <= room.cost
        )
        if not wider or len(known.losses) + len(wider) > asked:
            break
        yield from known.ask(wider)
        enough = [kept for kept in wider if stop(kept)]
        if enough:
            return min(enough, key=space.price)
        sets = sorted(wider, key=lambda kept: (known.losses[kept], space.price(kept), sorted(kept)))[:_BEAM]
    return sets[0]
