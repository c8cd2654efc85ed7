"""Local search: the set of units kept high that loses least within a cost.

The losses of all sets of some units are estimated from the sets measured so far, and the most promising sets are
measured; further units stay as they are. An estimate decides nothing.

The outputs' error is about the sum of the errors of the INT8 layers, and a loss grows with the square of a small error:
``loss = constant + sum over pairs (i, j) of INT8 units of G[i, j]``. G, fitted by least squares, covers errors that add
up and errors that cancel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, islice

import numpy as np

from trt_bisect.driver.search_space import (
    Batches,
    Kept,
    MeasuredSets,
    Sensitivities,
    Space,
    all_sets,
    saved,
    sensitivities,
)

_RIDGE = 1e-6
FEW_UNITS = 16
"""The number of units of which all sets are estimated."""
_AT_ONCE = 32
_PATIENCE = 8
"""With many units, the batches without a better set after which the search ends."""
_ROUNDED = 1e-9
_LESS = 1e-6
_HOPE = 2.0
"""The most that a set's estimated loss may be, as a multiple of the current set's, for it to be measured."""
_TRIED = 24
"""The number of units tried as the next one to keep high: those that gained most when last tried."""


def fit(
    measured: Mapping[Kept, float], units: Sequence[int], fixed: Kept, budget: float
) -> Callable[[np.ndarray], np.ndarray]:
    """Fits the losses of sets of ``units``.

    Args:
        measured: losses by the units kept high. Sets with other high units than ``fixed``, and losses that are not
            finite, are left out.
        units: those that may be kept high or not.
        fixed: other units, which stay high.
        budget: losses near it and below have the largest weights.

    Returns:
        A function from bool ``[count, units]``, true for a low unit, to the losses, float64 ``[count]``.
    """
    finite = {kept: loss for kept, loss in measured.items() if np.isfinite(loss) and kept.difference(units) == fixed}
    low = np.array([[unit not in kept for unit in units] for kept in finite], bool).reshape(-1, len(units))
    losses = np.fromiter(finite.values(), np.float64, len(finite))
    weights = 1.0 / (np.abs(losses) + budget)
    first, second = np.triu_indices(len(units))
    features = np.concatenate([np.ones((len(low), 1)), low[:, first] & low[:, second]], axis=1) * weights[:, None]
    square = features.T @ features
    square[np.diag_indices_from(square)] += _RIDGE * np.trace(square) / len(square)
    fitted = np.linalg.solve(square, features.T @ (losses * weights))
    upper = np.zeros((len(units), len(units)))
    upper[first, second] = fitted[1:]
    pairs = (upper + upper.T) / 2.0

    def surrogate(low: np.ndarray) -> np.ndarray:
        inside = low.astype(np.float64)
        return np.asarray(float(fitted[0]) + np.einsum("ci,ij,cj->c", inside, pairs, inside, optimize=True))

    return surrogate


def _better(measured: MeasuredSets, best: Kept, alone: Sensitivities, most: float) -> Batches[Kept | None]:
    """Returns a set that was measured to lose less than the best one and costs no more than ``most``; None without any.

    Args:
        measured: the measurements, and the number of plans that may still be measured.
        alone: the sensitivities; they choose the units to change where there are many.
    """
    few = len(measured.space.units) <= FEW_UNITS
    units = sorted(measured.space.all) if few else _candidates(measured, best, alone)
    patience = measured.plans_left if few else _PATIENCE
    enough = measured.losses[best] * (1.0 - _LESS)
    while measured.plans_left and patience:
        waiting = _worth_measuring(measured, units, best, most)[: measured.plans_left]
        if not waiting:
            return None
        measured.plans_left -= len(waiting)
        losses = yield from measured.ask(waiting)
        better = [kept for kept, loss in zip(waiting, losses, strict=True) if loss <= enough]
        if better:
            return min(better, key=measured.order)
        patience -= 1
    return None


def _worth_measuring(measured: MeasuredSets, units: Sequence[int], best: Kept, most: float) -> list[Kept]:
    """Returns the sets to measure next, which differ from the best one in ``units``, by estimated loss."""
    high, space, fixed = all_sets(len(units)), measured.space, best.difference(units)
    near, inside = space.costs_near(best), [unit in best for unit in units]
    costs = space.cost(best) + (high.astype(float) - np.array(inside)) @ np.array([near[unit] for unit in units])
    losses = fit(measured.losses, units, fixed, space.budget)(~high)
    places = np.flatnonzero((losses <= _HOPE * measured.losses[best]) & (costs <= most))
    rows = places[np.argsort(losses[places], kind="stable")]
    sets = (fixed.union(units[column] for column in np.flatnonzero(high[row]).tolist()) for row in rows)
    new = (kept for kept in sets if kept not in measured.losses and space.cost(kept) <= most)
    return list(islice(new, _AT_ONCE))


def _candidates(measured: MeasuredSets, kept: Kept, alone: Sensitivities) -> list[int]:
    """Returns the units to change: the most expensive of the current set, and those that then gain or lose most."""
    costs = measured.space.costs
    orders = (
        lambda unit: -alone.gains[unit] / costs[unit],
        lambda unit: -alone.gains[unit],
        lambda unit: -alone.losses[unit] / costs[unit],
        lambda unit: -alone.losses[unit],
    )
    others = measured.space.all - kept
    most_expensive = sorted(kept, key=lambda unit: (-costs[unit], unit))[: FEW_UNITS // 2]
    tiers = zip(*(sorted(others, key=order) for order in orders), strict=True)
    return sorted(islice(dict.fromkeys(chain(most_expensive, *tiers)), FEW_UNITS))


def within(space: Space, most: float, limit: int) -> Batches[Kept]:
    """Searches the set of units to keep high that loses least and costs no more than ``most``.

    Args:
        limit: the number of plans tried to improve the set.
    """
    measured, most = MeasuredSets(space, limit), most + _ROUNDED
    yield from measured.ask([frozenset(), space.all])
    if not measured.losses[frozenset()] > 0.0:
        return frozenset()
    alone = yield from sensitivities(measured)
    for per_cost in (True, False):
        yield from _grown(measured, alone, most, per_cost=per_cost)

    best = min((kept for kept in measured.losses if space.cost(kept) <= most), key=measured.order)
    while measured.losses[best] > 0.0:
        better = yield from _better(measured, best, alone, most)
        if better is None:
            break
        best = better
    return best


def _grown(measured: MeasuredSets, alone: Sensitivities, most: float, *, per_cost: bool) -> Batches[None]:
    """Begins with all units low and keeps the unit high that gains most, until none can be paid for.

    Gains usually shrink as other units are kept high, so only units with the largest gains so far are tried.

    Args:
        per_cost: rank units by gain for their cost.
    """
    space = measured.space
    prices = space.costs if per_cost else (1.0,) * len(space.units)
    gains = dict(enumerate(alone.gains))
    kept: Kept = frozenset()
    while measured.losses[kept] > 0.0:
        payable = [unit for unit in space.all - kept if space.cost(kept | {unit}) <= most]
        tried = sorted(payable, key=lambda unit: (-gains[unit] / prices[unit], -alone.losses[unit], unit))[:_TRIED]
        if not tried:
            return
        losses = yield from measured.ask([kept | {unit} for unit in tried])
        for unit, loss in zip(tried, losses, strict=True):
            gains[unit] = saved(measured.losses[kept], loss)
        best = max(tried, key=lambda unit: (gains[unit] / prices[unit], alone.losses[unit]))
        if gains[best] <= 0.0:
            best = max(tried, key=lambda unit: alone.losses[unit])
        kept |= {best}
