"""The cheapest plan that meets the threshold.

The search begins at both ends: it cuts rankings of the layers where the part kept high is just enough, and from full
INT8 it keeps the layer high that gains most, again and again. The sets are made 1-minimal, as delta debugging defines
it (Zeller and Hildebrandt, Simplifying and isolating failure-inducing input, 2002): no single unit can go back to INT8.
Then cheaper sets are tried. No losses are added up: every set that is accepted was measured as a whole plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

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

PLANS = 600
"""The number of plans that a search tries to improve a set that meets the budget."""
_TOO_MUCH = 2.0
"""The weight, against the cost, of a loss of twice the budget."""
_AT_ONCE = 24
"""The number of units tried as the next one to keep high: those that gained most when they were last tried."""
_AT_LEAST = 8
_BEAM, _BEAM_UNITS = 3, 128
"""The number of sets that grow side by side, and the number of units tried with each."""
_HOPE = 3.0
"""A set is measured if its estimated loss is at most so many budgets."""


@dataclass(frozen=True)
class Chosen:
    """The choice of a search.

    Attributes:
        kept: the units kept high.
        loss: the measured loss.
        meets: true if it is within the budget.
        alone: the sensitivities; None if all units can be low.
        losses: of all sets measured, infinite for a set that could not be measured.
    """

    kept: Kept
    loss: float
    meets: bool
    alone: Sensitivities | None
    losses: dict[Kept, float]


def minimal(space: Space, limit: int = PLANS, alone: Sensitivities | None = None) -> Batches[Chosen]:
    """Searches the cheapest set of units to keep high such that the loss is within the budget; it is 1-minimal.

    Args:
        space: the units to choose from.
        limit: the number of plans tried to find a cheaper set. The number of plans to find a first set and to make it
            1-minimal is not limited.
        alone: sensitivities by another measure, if plans are expensive: the search then begins with rankings by these.
    """
    known = MeasuredSets(space, limit)
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
        growth = GrowthLimit(space.cost(best), max(2 * len(best), _AT_LEAST), limit)
        start = yield from grow(known, alone, known.meets, growth)
        if known.meets(start):
            best = min(best, (yield from reduced(known, start)), key=space.price)
    while True:
        better = yield from improved(known, best, alone, cheaper(space, best))
        if better is None:
            return chosen(known, best, alone)
        best = yield from reduced(known, better)


def cheaper(space: Space, kept: Kept) -> Goal:
    """Returns the goal of a set that costs less than ``kept``."""
    price, budget = space.price(kept), space.budget

    def energy(cost: np.ndarray, loss: np.ndarray) -> np.ndarray:
        return np.asarray(cost / price[0] + _TOO_MUCH * np.maximum(loss / budget - 1.0, 0.0))

    return Goal(lambda other: space.price(other) < price, budget, _HOPE * budget, space.price, energy)


def chosen(known: MeasuredSets, kept: Kept, alone: Sensitivities | None) -> Chosen:
    """Returns the choice of a set that was measured."""
    return Chosen(kept, known.losses[kept], known.meets(kept), alone, known.losses)


def reduced(known: MeasuredSets, kept: Kept) -> Batches[Kept]:
    """Returns a 1-minimal part of a set that meets the budget: units go low, many together, until none can."""
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


def _without_most(known: MeasuredSets, kept: Kept, ranked: Sequence[int]) -> Batches[Kept]:
    """Returns the set without as many first units of a ranking as can go low; it is known that the first can."""
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


def _rankings(space: Space, alone: Sensitivities) -> list[tuple[int, ...]]:
    """The units ranked by loss alone low and by gain alone high, each in all and for the cost."""
    units = range(len(space.units))
    rankings = []
    for figures, others in ((alone.losses, alone.gains), (alone.gains, alone.losses)):
        for prices in ([1.0] * len(units), space.costs):
            worth = [(-figures[u] / prices[u], -others[u] / prices[u], u) for u in units]
            rankings.append(tuple(sorted(units, key=worth.__getitem__)))
    return list(dict.fromkeys(rankings))


def cut_rankings(known: MeasuredSets, rankings: Sequence[Sequence[int]]) -> Batches[list[Kept]]:
    """Returns for each ranking a first part that is enough while one unit less is not; all are halved together."""
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
class GrowthLimit:
    """The limits of a growing set.

    Attributes:
        cost: the largest cost of the set.
        units: the largest number of units in it.
        plans: the largest number of plans measured for it.
    """

    cost: float
    units: int
    plans: int


def grown(
    known: MeasuredSets,
    alone: Sensitivities,
    stop: Callable[[Kept], bool],
    limit: GrowthLimit,
    *,
    per_cost: bool = True,
) -> Batches[Kept]:
    """Begins with all units low and keeps the one high that gains most, until that is enough or a limit is reached.

    Gains become smaller as other units are kept high, as a rule: so only units with the largest gains so far are tried.

    Args:
        known: the measurements.
        alone: the sensitivities.
        stop: returns true for a measured set that is enough.
        limit: of the set.
        per_cost: rank units by gain for their cost, not by gain.
    """
    space = known.space
    prices = space.costs if per_cost else [1.0] * len(space.units)
    gains = dict(enumerate(alone.gains))
    kept: Kept = frozenset()
    while not stop(kept) and len(kept) < limit.units:
        payable = [unit for unit in space.all - kept if space.cost(kept | {unit}) <= limit.cost]
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


def beamed(
    known: MeasuredSets, alone: Sensitivities, stop: Callable[[Kept], bool], limit: GrowthLimit
) -> Batches[Kept]:
    """Begins with all units low and grows several sets side by side, those that lose least, until one is enough.

    Where errors of layers add up or cancel, a unit's gain depends on the set that it joins: so every unit within the
    limit is tried with each set. The arguments are those of ``grown``.
    """
    space = known.space
    sets: list[Kept] = [frozenset()]
    asked = len(known.losses) + limit.plans
    for _ in range(limit.units):
        wider = dict.fromkeys(
            kept | {unit}
            for kept in sets
            for unit in sorted(space.all - kept, key=lambda unit: (-alone.gains[unit], unit))[:_BEAM_UNITS]
            if space.cost(kept | {unit}) <= limit.cost
        )
        if not wider or len(known.losses) + len(wider) > asked:
            break
        yield from known.ask(wider)
        enough = [kept for kept in wider if stop(kept)]
        if enough:
            return min(enough, key=space.price)
        sets = sorted(wider, key=lambda kept: (known.losses[kept], space.price(kept), sorted(kept)))[:_BEAM]
    return sets[0]
