"""The cheapest set of units to keep high, by estimated losses that every measured plan corrects.

Lowering units one after another takes thousands of plans on a network where many small errors add up. Here a plan is
measured only where an estimate says that it may hold and costs less than the best one so far.

The estimate. Close to the target, the loss of a plan on an input is about the sum of the losses that its low units add:

    input              unit 0   unit 1   unit 2   ...         plan: unit 1 high, the others low
    cat.png             0.003    0.020    0.001               0.003 + 0.001 + ...  on cat.png
    dog.png             0.001    0.035    0.002               0.001 + 0.002 + ...  on dog.png

It begins with the loss of each unit alone in the low precision, measured on a few inputs. Errors also cancel and
reinforce one another, so that the sums are wrong by up to a factor of four. Each measured plan tells by how much: the
row of an input is a Gaussian whose mean and covariance a Kalman step corrects with the measured loss (Kalman, A new
approach to linear filtering and prediction problems, 1960). A unit with a large loss alone is corrected most.

A step:

    estimates --knapsack--> cheapest set whose estimate is within e^boldness of the limit on every input
        ^                                                      |
        '---- losses on the inputs <---- measure the plan <----'

The knapsack is solved by a greedy choice, which is then improved by taking units out and choosing again. After a plan
that holds, the next one has to cost less. Boldness falls where plans miss and rises where no cheaper set is left.

Invariants: an estimate decides nothing: each set that is returned was measured to hold on the judged inputs. No set is
measured twice. All choices are seeded: the same measurements lead to the same sets, so that a run that goes on repeats
its steps from the journal.

Tried and dropped: output errors instead of losses, added as vectors (no better near the target); the gains of units
alone high (far off near the target); Thompson sampling (no cheaper sets on two networks).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from trt_bisect.driver.search_space import Kept, Sensitivities, Space

_PRIOR = 0.7
"""The standard deviation of a unit's loss among other low units, as a share of its loss alone."""
_NOISE = 0.3
"""The same of a plan's loss beside the estimate."""
_LEAST_PRIOR, _LEAST_NOISE = 0.02, 0.1
"""The least of these, as shares of the limit."""
_LARGEST = 10.0
"""Losses count as so many limits at most: a larger one says that the output is destroyed, not by how much."""
_CHEAPER = 0.998
"""A set is tried if it costs no more than this share of the best one."""
_BOLDER, _SHYER, _BOLDEST, _SHYEST = 0.08, 0.12, 1.5, -6.0
"""The steps of the boldness, the natural logarithm of the estimate over the limit, and its bounds."""
_CHOICES = 12
"""The number of times that a set is changed to find a cheaper one."""
_VARIED, _SPREAD = 4, 0.3
"""Estimates of a set that was measured already are multiplied by the exponentials of normal numbers of this standard
deviation, in all attempts but the first."""
_SEED = 1
_OUT = 4
"""At most so many units less one are taken out of a set at a time."""


@dataclass(frozen=True)
class Measured:
    """A plan that was measured.

    Attributes:
        holds: it meets the target on the judged inputs, with the margin that it has to leave.
        losses: by the place of the input, the loss on those that it was run on.
    """

    holds: bool
    losses: Mapping[int, float]


class Estimates:
    """By input, the loss that each unit adds in the low precision.

    Args:
        places: the inputs on which each unit was measured alone.
        alone: float64 ``[units, places]``, the losses of units alone low.
        full: by input, the loss with all units low; it scales the losses of other inputs.
        limit: the largest loss that is good.

    Attributes:
        alone: float64 ``[places, units]``, these losses, none above ``_LARGEST`` limits.
    """

    def __init__(self, places: Sequence[int], alone: np.ndarray, full: Mapping[int, float], limit: float) -> None:
        self.limit = limit
        self.alone = np.clip(np.nan_to_num(alone, nan=np.inf), 0.0, _LARGEST * limit).T
        self._places = list(places)
        self._full = full
        self._rows: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def rows(self, places: Sequence[int]) -> np.ndarray:
        """Returns the estimates for some inputs, float64 ``[units, places]``, none below 0."""
        return np.stack([self._row(input_index)[0] for input_index in places], axis=1).clip(min=0.0)

    def learn(self, low: np.ndarray, losses: Mapping[int, float]) -> None:
        """Corrects the estimates.

        Args:
            low: bool ``[units]``, true for the units of the plan that are low.
            losses: by input, the plan's loss.
        """
        inside = low.astype(np.float64)
        for input_index, loss in losses.items():
            mean, covariance = self._row(input_index)
            measured = min(loss, _LARGEST * self.limit)
            spread = covariance @ inside
            noise = (_NOISE * measured) ** 2 + (_LEAST_NOISE * self.limit) ** 2
            gain = spread / (inside @ spread + noise)
            self._rows[input_index] = mean + gain * (measured - inside @ mean), covariance - np.outer(gain, spread)

    def _row(self, input_index: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the mean and the covariance of an input; those of one that was not measured alone are scaled."""
        if input_index not in self._rows:
            if input_index in self._places:
                mean = self.alone[self._places.index(input_index)]
            else:
                most = _LARGEST * self.limit
                fulls = [min(self._full[index], most) for index in self._places if index in self._full]
                full, usual = min(self._full.get(input_index, 0.0), most), sum(fulls) / max(len(fulls), 1)
                mean = self.alone.mean(axis=0) * (full / usual if full and usual else 1.0)
            deviation = (_PRIOR * mean) ** 2 + (_LEAST_PRIOR * self.limit) ** 2
            self._rows[input_index] = mean.copy(), np.diag(deviation)
        return self._rows[input_index]


@dataclass
class EstimatedSearch:
    """A search with one set of ranges, which can go on with other judged inputs and limits.

    Attributes:
        measure: measures the plan that keeps a set high.
        judged: the places of the inputs that count.
        limit: the loss to aim at.
        learns: measured losses are in the unit of the estimates. A task's are not: then the boldness alone is learned.
        goes_on: asked before each plan: false ends the search.
        best: the cheapest set that holds; None until there is one.
    """

    space: Space
    estimates: Estimates
    measure: Callable[[Kept], Measured]
    judged: Sequence[int]
    limit: float
    learns: bool = True
    goes_on: Callable[[], bool] = lambda: True
    best: Kept | None = None
    _near: Kept | None = None
    _costs: tuple[float, ...] = ()
    _costs_near: Kept | None = None
    """The costs of units beside this set: see ``Space.costs_near``."""
    _tried: set[Kept] = field(default_factory=set)
    _boldness: float = 0.0
    _random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(_SEED))

    def expected(self) -> float:
        """Returns the cost of the cheapest set by the estimates."""
        costs, limits = np.array(self.space.costs), np.full(len(self.judged), self.limit)
        random = np.random.default_rng(_SEED)
        high = cheapest_within(self.estimates.rows(self.judged), costs, limits, random, self.best)
        return self.space.cost(np.flatnonzero(high).tolist())

    def sensitivities(self) -> Sensitivities:
        """Returns the losses of units alone as they were measured, for their gains too."""
        losses = tuple(self.estimates.alone.max(axis=0).tolist())
        return Sensitivities(losses, losses)

    def improved(self, bound: float, patience: int, *, once: bool = False) -> bool:
        """Looks for sets that hold and cost less than ``best`` and a bound; returns true if there is one.

        Args:
            bound: the cost that sets have to stay below.
            patience: the number of plans that may miss one after another.
            once: the first such set ends the search.
        """
        misses, step, cheaper = 0, _SHYER, False
        while misses < patience and self.goes_on() and not (once and cheaper):
            kept = self._proposed(bound if self.best is None else min(bound, self.space.cost(self.best)))
            if kept is None:
                break
            if self._holds(kept):
                self._boldness += _BOLDER / 4 if self._near is not None else step / 4
                self.best = self._near = kept
                misses, step, cheaper = 0, _SHYER, True
            else:
                misses += 1
                self._boldness -= step
                step = _SHYER if self._near is not None else min(2.0 * step, 1.0)
        return cheaper

    def refined(self, patience: int) -> bool:
        """Makes ``best`` cheaper: each unit of it is lowered, and what that tells is used for further sets.

        The estimates are most accurate around the plans that were measured. Returns true if ``best`` changed.
        """
        before, around = self.best, None
        while self.best is not None and self.best != around and self.goes_on():
            around = self.best
            for unit in sorted(around, key=lambda unit: (-self.space.costs[unit], unit)):
                kept = self.best - {unit}
                if self.goes_on() and kept not in self._tried and self._holds(kept):
                    self.best = self._near = kept
            self._boldness = 0.0
            self.improved(math.inf, patience)
        return self.best != before

    def corrected(self, losses: Mapping[int, float]) -> None:
        """Gives up ``best``, which misses on inputs or in settings that it was not judged in."""
        if self.best is not None and self.learns:
            self.estimates.learn(self._low(self.best), losses)
        self.best = None

    def _holds(self, kept: Kept) -> bool:
        self._tried.add(kept)
        result = self.measure(kept)
        if self.learns:
            self.estimates.learn(self._low(kept), result.losses)
        return result.holds

    def _low(self, kept: Kept) -> np.ndarray:
        return ~np.isin(np.arange(len(self.space.units)), sorted(kept))

    def _proposed(self, bound: float) -> Kept | None:
        """Returns the cheapest set by the estimates, as shy as possible; None if all cost too much, or were tried."""
        if self._costs_near != self._near:
            self._costs, self._costs_near = self.space.costs_near(self._near or frozenset()), self._near
        rows, costs = self.estimates.rows(self.judged), np.array(self._costs or self.space.costs)
        self._boldness = min(max(self._boldness, _SHYEST), _BOLDEST)
        while self._boldness <= _BOLDEST:
            limits = np.full(len(self.judged), self.limit * math.exp(self._boldness))
            for number in range(_VARIED):
                spread = _SPREAD if number else 0.0
                varied = rows * np.exp(spread * self._random.standard_normal((len(costs), 1)))
                high = cheapest_within(varied, costs, limits, self._random, self._near)
                kept = frozenset(np.flatnonzero(high).tolist())
                if self.space.cost(kept) > bound * _CHEAPER and not number:
                    break
                if kept not in self._tried and self.space.cost(kept) <= bound * _CHEAPER:
                    return kept
            self._boldness += _BOLDER
        return None


def cheapest_within(
    rows: np.ndarray, costs: np.ndarray, limits: np.ndarray, random: np.random.Generator, start: Collection[int] | None
) -> np.ndarray:
    """Returns a cheap set of units, bool ``[units]``, without which the sums of the rest are within the limits.

    Args:
        rows: float64 ``[units, inputs]``, what each unit adds if it is not in the set.
        costs: float64 ``[units]``.
        limits: float64 ``[inputs]``.
        start: a set to begin with, besides the empty one.
    """
    best = _completed(rows, costs, limits, np.zeros(len(costs), bool))
    least = float(np.add.reduce(costs[best]))
    if start is not None:
        high = np.zeros(len(costs), bool)
        high[sorted(start)] = True
        candidate = _completed(rows, costs, limits, high)
        if (cost := float(np.add.reduce(costs[candidate]))) < least:
            best, least = candidate, cost
    begun: set[tuple[int, bytes]] = set()
    for _ in range(_CHOICES):
        inside = np.flatnonzero(best)
        if not len(inside):
            break
        out = random.choice(inside, min(len(inside), int(random.integers(1, _OUT))), replace=False)
        changed = best.copy()
        changed[out] = False
        if (key := (int(out[0]), changed.tobytes())) in begun:
            continue  # it leads to the same set, which was no cheaper
        begun.add(key)
        dearer = costs.copy()
        dearer[out[0]] = np.inf
        candidate = _completed(rows, dearer, limits, changed)
        if (cost := float(np.add.reduce(costs[candidate]))) < least:
            best, least = candidate, cost
    return best


def _completed(rows: np.ndarray, costs: np.ndarray, limits: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Adds the units to a set that help most for their cost until the limits hold; then leaves out what it can.

    Most of a search's own time is spent here, on arrays so small that the calls count: hence ufuncs' own ``reduce``.
    """
    high = high.copy()
    open_costs = np.where(high, np.inf, costs)  # a unit in the set helps no more
    sums = np.add.reduce(rows[~high], axis=0)
    while np.maximum.reduce(over := sums - limits) > 0.0:
        helps = np.add.reduce(np.minimum(rows, np.maximum(over, 0.0)), axis=1) / open_costs
        unit = int(helps.argmax())
        if helps[unit] <= 0.0:
            return np.ones(len(costs), bool)
        high[unit], open_costs[unit] = True, np.inf
        sums = sums - rows[unit]
    inside = np.flatnonzero(high)
    spare = inside[np.logical_and.reduce(sums + rows[inside] <= limits, axis=1)]
    for unit in sorted(spare.tolist(), key=lambda unit: -float(costs[unit])):
        if np.logical_and.reduce((more := sums + rows[unit]) <= limits):
            high[unit], sums = False, more
    return high
