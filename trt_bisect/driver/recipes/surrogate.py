"""Estimates the losses of plans from the measured ones. It only chooses the next plans to measure; it decides nothing.

The outputs' error is about the sum of the errors of the INT8 layers, and a loss grows with the square of a small error:
``loss = constant + sum over pairs (i, j) of INT8 units of G[i, j]``. G is fitted by least squares; it covers errors
that add up and errors that cancel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trt_bisect.driver.recipes.search_space import Kept

_RIDGE = 1e-6
_SEED = 20261121
_WALKS, _STEPS, _FLIPS = 16, 1500, 3
_HOT, _COLD = 0.3, 0.01

Energy = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""The distance of plans from the goal, by their costs and their losses."""


@dataclass(frozen=True)
class Surrogate:
    """The fitted losses of sets of units; every unit outside ``units`` is low.

    Attributes:
        units: those that may be kept high.
        constant: the loss with all of them high.
        pairs: float64 ``[units, units]``, symmetric.
    """

    units: tuple[int, ...]
    constant: float
    pairs: np.ndarray

    def losses(self, low: np.ndarray) -> np.ndarray:
        """The losses of plans, float64 ``[count]``.

        Args:
            low: bool ``[count, units]``, true for a unit in the low precision.
        """
        inside = low.astype(np.float64)
        return np.asarray(self.constant + np.einsum("ci,ij,cj->c", inside, self.pairs, inside, optimize=True))


def all_sets(units: int) -> np.ndarray:
    """Every set of units, a row each, bool ``[2 ** units, units]``."""
    numbers = np.arange(1 << units, dtype=np.int64)
    return (numbers[:, None] >> np.arange(units) & 1).astype(bool)


def fit(measured: Mapping[Kept, float], units: Sequence[int], budget: float) -> Surrogate:
    """Fits the losses of sets of ``units``.

    Args:
        measured: losses by the units kept high. Sets with other units, and losses that are not finite, are left out.
        units: those that may be kept high.
        budget: losses near it and below have the largest weights.
    """
    looked_at = frozenset(units)
    known = {kept: loss for kept, loss in measured.items() if np.isfinite(loss) and kept <= looked_at}
    low = np.array([[unit not in kept for unit in units] for kept in known], bool).reshape(-1, len(units))
    losses = np.fromiter(known.values(), np.float64, len(known))
    weights = 1.0 / (np.abs(losses) + budget)
    first, second = np.triu_indices(len(units))
    features = np.concatenate([np.ones((len(low), 1)), low[:, first] & low[:, second]], axis=1) * weights[:, None]
    square = features.T @ features
    square[np.diag_indices_from(square)] += _RIDGE * np.trace(square) / len(square)
    fitted = np.linalg.solve(square, features.T @ (losses * weights))
    pairs = np.zeros((len(units), len(units)))
    pairs[first, second] = fitted[1:]
    return Surrogate(tuple(units), float(fitted[0]), (pairs + pairs.T) / 2.0)


def walks(
    surrogate: Surrogate, costs: np.ndarray, start: Kept, energy: Energy
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the sets that simulated annealing visits on the fitted losses; the same at each call.

    Args:
        surrogate: the fitted losses.
        costs: the cost of each of its units in the high precision, float64 ``[units]``.
        start: the set that every walk begins with.
        energy: the function to make small.

    Returns:
        The sets, each once, bool ``[count, units]``, true for a unit kept high; their fitted losses, and their costs.
    """
    random = np.random.default_rng(_SEED)
    count, pairs = len(surrogate.units), surrogate.pairs
    low = np.tile([float(unit not in start) for unit in surrogate.units], (_WALKS, 1))
    loss, cost = surrogate.losses(low > 0), (1.0 - low) @ costs
    here = energy(cost, loss)
    seen = [np.concatenate([low, loss[:, None], cost[:, None]], axis=1)]
    walkers = np.arange(_WALKS)[:, None]
    for step in range(_STEPS):
        flips = random.integers(0, count, (_WALKS, _FLIPS))
        flips = np.where(np.arange(_FLIPS) <= random.integers(0, _FLIPS, (_WALKS, 1)), flips, flips[:, :1])
        change = np.zeros_like(low)
        change[walkers, flips] = 1.0 - 2.0 * low[walkers, flips]
        then = loss + np.sum((change @ pairs) * (2.0 * low + change), axis=1)
        dearer = cost - change @ costs
        there = energy(dearer, then)
        heat = _HOT * (_COLD / _HOT) ** (step / _STEPS)
        taken = random.random(_WALKS) < np.exp(np.minimum((here - there) / heat, 0.0))
        low[taken] += change[taken]
        loss, cost, here = (np.where(taken, *both) for both in ((then, loss), (dearer, cost), (there, here)))
        seen.append(np.concatenate([low, loss[:, None], cost[:, None]], axis=1)[taken])
    rows = np.concatenate(seen)
    _, first = np.unique(rows[:, :count] > 0, axis=0, return_index=True)
    return rows[first, :count] == 0, rows[first, count], rows[first, count + 1]
