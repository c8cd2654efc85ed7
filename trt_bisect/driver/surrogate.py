"""What plans that were not measured may lose, from those that were: to choose what is measured next, never to decide.

The outputs' error is about the sum of what each INT8 layer adds, and the losses of small errors go with its square:
``loss = sum over pairs (i, j) of INT8 units of G[i, j]``. G is fitted by least squares, so that errors that cancel and
errors that meet are both in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations_with_replacement

import numpy as np

_RIDGE = 1e-6


def all_sets(units: int) -> np.ndarray:
    """Every set of units, a row each, bool ``[2 ** units, units]``."""
    numbers = np.arange(1 << units, dtype=np.int64)
    return (numbers[:, None] >> np.arange(units) & 1).astype(bool)


def predicted(measured: Mapping[frozenset[int], float], sets: np.ndarray, budget: float) -> np.ndarray:
    """The losses that sets of units left high may have.

    Args:
        measured: losses by the units left high; those that are not finite are left out.
        sets: bool ``[count, units]``, true for a unit left high.
        budget: losses near it, and below, count most in the fit.

    Returns:
        float64 ``[count]``.
    """
    units = sets.shape[1]
    known = {kept: loss for kept, loss in measured.items() if np.isfinite(loss)}
    rows = np.array([[unit not in kept for unit in range(units)] for kept in known], bool).reshape(-1, units)
    losses = np.fromiter(known.values(), np.float64, len(known))
    weights = 1.0 / (np.abs(losses) + budget)
    features = _pairs(rows) * weights[:, None]
    square = features.T @ features
    square[np.diag_indices_from(square)] += _RIDGE * np.trace(square) / len(square)
    fitted = np.linalg.solve(square, features.T @ (losses * weights))
    return np.asarray(_pairs(~sets) @ fitted, np.float64)


def _pairs(inside: np.ndarray) -> np.ndarray:
    """For each row and pair of units whether both are inside, float64 ``[count, units * (units + 1) / 2]``."""
    first, second = np.array(list(combinations_with_replacement(range(inside.shape[1]), 2))).T
    return np.asarray(inside[:, first] & inside[:, second], np.float64)
