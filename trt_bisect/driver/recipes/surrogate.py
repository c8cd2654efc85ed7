"""Estimates the losses of plans from the measured ones. It only chooses the next plans to measure; it decides nothing.

The outputs' error is about the sum of the errors of the INT8 layers, and a loss grows with the square of a small error:
``loss = constant + sum over pairs (i, j) of INT8 units of G[i, j]``. G is fitted by least squares; it covers errors
that add up and errors that cancel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trt_bisect.driver.recipes.search_space import Kept

_RIDGE = 1e-6


@dataclass(frozen=True)
class Surrogate:
    """The fitted losses of sets of units; the units outside ``units`` stay as they are.

    Attributes:
        units: those that may be kept high or not.
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


def fit(measured: Mapping[Kept, float], units: Sequence[int], fixed: Kept, budget: float) -> Surrogate:
    """Fits the losses of sets of ``units``.

    Args:
        measured: losses by the units kept high. Sets in which other units than ``fixed`` are kept high besides, and
            losses that are not finite, are left out.
        units: those that may be kept high or not.
        fixed: other units, which stay high.
        budget: losses near it and below have the largest weights.
    """
    known = {kept: loss for kept, loss in measured.items() if np.isfinite(loss) and kept.difference(units) == fixed}
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
