"""The cheapest set of units to keep high, by estimates that every measured plan corrects.

Idea. Near the threshold, the loss of a plan on an input is about the sum of the losses that its low units add:

    input              unit 0   unit 1   unit 2   ...         plan: unit 1 high, the others low
    cat.png             0.003    0.020    0.001               0.003 + 0.001 + ...  on cat.png
    dog.png             0.001    0.035    0.002               0.001 + 0.002 + ...  on dog.png

The table begins with the losses of the plans with one low unit, on a few inputs. Errors also cancel and reinforce one
another, so the sums are wrong by up to a factor of four. So each row is a Gaussian over the losses that the units add,
and every plan measured on that input corrects it by a Kalman step (Kalman, 1960). A set of high units holds if the loss
of its plan stays within a limit. The chance for this is that of a lognormal sum on the worst input.

    estimates --greedy sets--> candidates --largest saving x chance--> measure that set
        ^                                                                   |
        '----------- its losses on the inputs that it was run on <----------'

A candidate saves the price (the cost, plus a little for each unit) of the best set so far less its own price. If fewer
sets held than expected so far, all chances are lowered by that ratio. The search ends when the largest expected saving
is not worth a plan. Each calibrator has a table, and candidates of all calibrators compete.

A set whose errors cancel looks bad in any sum. So sets of few units, and parts of a small best set, have a least
chance. It falls with the distance of the sum from the limit, or hopeless sets, which are the cheapest, would come
first.

The least loss within a cost (``LeastLoss``) is searched with the same estimates: the limit is the least loss so far.

Figures that jump, as the number of detections does, do not add up. For them the table holds the noise to signal ratio
of the outputs, and the search learns up to which noise plans hold (``NoiseEstimates``).

Invariants. An estimate decides nothing: ``best`` was measured to hold. No set is measured twice with one calibrator.
The same measurements lead to the same sets, so a resumed run repeats its steps from the journal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations

import numpy as np

from trt_bisect.driver.search_space import Kept, Space, all_sets

# Relative standard deviations: of a unit's loss among other low units on an input where it was measured alone, and on
# another input; of all units together; and of a plan's loss around the sum.
APART, ELSEWHERE, IN_STEP, NOISE = 0.7, 1.5, 0.5, 0.2
# A loss further than this many standard deviations from its estimate shows that the estimates of an input are too sure.
SURPRISE = 4.0
LEAST, MOST = 0.02, 10.0  # losses are clipped to these shares of the limit, beyond which they tell nothing more
FEW = 13  # with at most this many units, all sets are candidates
FACTORS = np.geomspace(0.15, 4.0, 9)  # multiples of the limit up to which the estimated sums of proposed sets may go
LIMITS = np.geomspace(0.02, 2.0, 40)  # the noise limits considered where figures jump, as shares of full INT8's noise
LIMIT_SPREAD = 0.5  # the standard deviation of the logarithm of a plan's noise around the sum
# The least chance of a part of a best set of at most ``SMALL`` units, and of a set of few units whose sum is the limit.
LEAST_CHANCE = 0.01
WIDE = 1.0  # the standard deviation of the logarithm with which the least chance falls for larger sums
SMALL = 5
TOGETHER = -1  # the key in ``Measured.losses`` of a loss over all inputs, such as that of the outputs' variation
# The least relative difference between the losses of sets within a cost: layers without a cost change the last digits.
LESS = 1e-3
# The part of the price that each high unit costs: it changes types twice, and a short list names the culprits.
EACH = 3e-3


@dataclass(frozen=True)
class Measured:
    """The losses of a measured plan.

    Attributes:
        loss: largest loss over all inputs and settings in which the plan was run; infinite if it cannot run.
        losses: loss on each judged input, by index; under the key ``TOGETHER`` the loss over all inputs.
        mean: mean loss over all given inputs; infinite if the plan was not run on all.
    """

    loss: float
    losses: Mapping[int, float]
    mean: float = math.inf


class Estimates:
    """For each input, a Gaussian over the losses that the units add in the low precision.

    Args:
        places: indices of the inputs on which the plans with one low unit were measured.
        alone: float64 ``[units, places]``, the loss with only this unit low.
        full: by input, the loss with all units low, which scales the estimates for other inputs.
        limit: largest loss with which a set holds.
    """

    def __init__(self, places: Sequence[int], alone: np.ndarray, full: Mapping[int, float], limit: float) -> None:
        self.limit = limit
        self._alone = np.clip(np.nan_to_num(alone, nan=np.inf), 0.0, MOST * limit)
        self._places = list(places)
        self._full = full
        self._rows: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def sums(self, places: Sequence[int]) -> np.ndarray:
        """Returns the estimated loss that each low unit adds on the inputs ``places``, float64 ``[units, places]``,
        none below 0.
        """
        return np.stack([self._row(place)[0] for place in places], axis=1).clip(min=0.0)

    def usual(self, limit: float) -> float:
        """Returns the sum of the low units' estimates up to which a plan's loss probably stays within ``limit``."""
        return limit

    def learn(self, low: np.ndarray, measured: Measured, _limit: float) -> None:
        """Corrects the estimates by the losses of a measured plan; ``low``, bool ``[units]``, is true for its low
        units.
        """
        inside = low.astype(np.float64)
        for place, measured_loss in measured.losses.items():
            mean, covariance = self._row(place)
            loss = min(measured_loss, MOST * self.limit)
            noise = (NOISE * loss) ** 2 + (LEAST * self.limit) ** 2
            error = loss - inside @ mean
            variance = inside @ covariance @ inside
            if variance > 0.0 and error**2 > SURPRISE**2 * (variance + noise):
                # The estimates are too sure: full INT8 may lose little on an input because errors cancel.
                covariance = covariance * (error**2 / variance)
            spread = covariance @ inside
            gain = spread / (inside @ spread + noise)
            self._rows[place] = mean + gain * error, covariance - np.outer(gain, spread)

    def chances(self, low: np.ndarray, places: Sequence[int], limit: float) -> tuple[np.ndarray, np.ndarray]:
        """Returns two chances of each set, float64 ``[sets]``, that its loss stays within ``limit`` on the worst of the
        inputs ``places``. The loss is lognormal around the estimated sum; the standard deviation of its logarithm is
        the estimated one for the first chance, ``WIDE`` for the second.

        Args:
            low: bool ``[sets, units]``, true for the units that are low.
        """
        inside = low.astype(np.float64)
        least = LEAST * self.limit / 4
        by_place = np.empty((2, len(inside), len(places)))
        for k, place in enumerate(places):
            mean, covariance = self._row(place)
            total = np.maximum(inside @ mean.clip(min=0.0), least)
            variance = np.einsum("su,su->s", inside @ covariance, inside).clip(min=0.0)
            variance += (NOISE * total) ** 2 + least**2
            deviation = np.sqrt(np.log1p(variance / total**2))
            room = np.log(limit / total)
            by_place[0, :, k] = _normal_below(room / deviation)
            by_place[1, :, k] = _normal_below(room / WIDE)
        chances, misled = by_place.min(axis=2)
        return chances, misled

    def _row(self, place: int) -> tuple[np.ndarray, np.ndarray]:
        # Where no unit was measured alone, the means are scaled from the other inputs.
        if place not in self._rows:
            most = MOST * self.limit
            apart = APART
            if place in self._places:
                mean = self._alone[:, self._places.index(place)]
            else:
                apart = ELSEWHERE
                usual = float(np.mean([min(self._full.get(k, most), most) for k in self._places]))
                ratio = min(self._full.get(place, usual), most) / usual if usual else 1.0
                mean = self._alone.mean(axis=1) * ratio
            mean = np.minimum(mean, most)
            own = np.diag((apart * mean) ** 2 + (LEAST * self.limit) ** 2)
            self._rows[place] = mean, own + np.outer(mean, mean) * IN_STEP**2
        return self._rows[place]


class NoiseEstimates(Estimates):
    """Estimates for figures that jump, such as numbers of detections: the noise that each low unit adds to the outputs,
    and the noise up to which plans hold. The other arguments are those of ``Estimates``, with noise in place of loss.

    Args:
        limits: for each of ``LIMITS``, the probability that plans hold up to this noise; all calibrators share and
            correct it.
    """

    def __init__(self, places: Sequence[int], alone: np.ndarray, full: Mapping[int, float], limits: np.ndarray) -> None:
        super().__init__(places, alone, full, max(full.values(), default=1.0) or 1.0)
        self._limits = limits

    def usual(self, _limit: float) -> float:
        """Returns a quarter of full INT8's noise, up to which plans probably hold."""
        return self.limit / 4

    def learn(self, low: np.ndarray, measured: Measured, limit: float) -> None:
        """Corrects the probabilities of the noise limits after a plan was measured; it held if its loss is at most
        ``limit``.
        """
        (below,) = self._below(low[None], list(self._full))
        self._limits *= (below if measured.loss <= limit else 1.0 - below) + 1e-9
        self._limits /= self._limits.sum()

    def chances(self, low: np.ndarray, places: Sequence[int], _limit: float) -> tuple[np.ndarray, np.ndarray]:
        """Returns for each set, float64 ``[sets]``, the chance that its noise is below the noise limit; and 0.5."""
        return self._below(low, places) @ self._limits, np.full(len(low), 0.5)

    def _below(self, low: np.ndarray, places: Sequence[int]) -> np.ndarray:
        noise = (low @ self.sums(places)).max(axis=1) / self.limit
        return _normal_below(np.log(LIMITS[None] / np.maximum(noise, 1e-9)[:, None]) / LIMIT_SPREAD)


def even_limits() -> np.ndarray:
    """Returns the same probability for each of ``LIMITS``, with which a search begins."""
    return np.full(len(LIMITS), 1.0 / len(LIMITS))


def _normal_below(z: np.ndarray) -> np.ndarray:
    # Page, 1977
    below: np.ndarray = 0.5 * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (z + 0.044715 * z**3)))
    return below


@dataclass(frozen=True)
class _Offers:
    sets: _Sets
    chances: np.ndarray  # of each set, on the first ``judged`` inputs
    least: np.ndarray  # the lower bound of each chance
    judged: int


@dataclass(frozen=True)
class _Sets:
    kept: Sequence[Kept]  # the high units of each set
    low: np.ndarray  # bool [sets, units]
    prices: np.ndarray  # float64 [sets]


@dataclass
class SetSearch:
    """Searches the cheapest set of units in high precision with which a plan's loss stays within ``limit``.

    Attributes:
        estimates: one for each calibrator.
        measure: measures a set with a calibrator, given by its index in ``estimates``.
        judged: indices of the inputs that the search runs; the list may grow.
        limit: largest loss with which a set holds.
        most: sets of this price or more are not measured.
        each: part of the price that each high unit adds to the cost.
        best: a calibrator's index, and the cheapest set, of those whose measured loss stays within ``limit``; None if
            there is none.
        tried: measurements, by the calibrator's index and set.
    """

    space: Space
    estimates: list[Estimates]
    measure: Callable[[int, Kept], Measured]
    judged: list[int]
    limit: float
    most: float = math.inf
    each: float = EACH
    best: tuple[int, Kept] | None = None
    tried: dict[tuple[int, Kept], Measured] = field(default_factory=dict)
    _offered: dict[int, _Offers] = field(default_factory=dict)
    _prices: dict[Kept, float] = field(default_factory=dict)
    _expected: float = 1.0
    _held: float = 1.0
    _judges_together: bool = False

    def price(self, kept: Kept) -> float:
        """Returns the cost of a set plus ``each`` for every high unit."""
        if kept not in self._prices:
            self._prices[kept] = self.space.cost(kept) + self.each * len(kept)
        return self._prices[kept]

    def aim(self, limit: float, most: float = math.inf) -> None:
        """Changes the largest loss and the highest price, and chooses ``best`` again among the sets measured so far."""
        self.limit, self.most = limit, most
        self.choose_again()

    def choose_again(self, failed: Collection[tuple[int, Kept]] = ()) -> None:
        """Chooses ``best`` again among the sets measured so far, except ``failed``: pairs of a calibrator's index and a
        set that misses in a setting that ``measure`` leaves out.
        """
        self.best = None
        self._offered = {}
        for choice in sorted(self.holding(), key=lambda choice: self.price(choice[1])):
            if choice not in failed and self.price(choice[1]) < self.most:
                self.best = choice
                break

    @property
    def _places(self) -> list[int]:
        return [*self.judged, TOGETHER] if self._judges_together else self.judged

    def holding(self) -> list[tuple[int, Kept]]:
        """Returns pairs of a calibrator's index and a set: those whose measured loss stays within ``limit`` on all
        inputs judged now.
        """
        judged = set(self.judged)
        return [
            choice
            for choice, measured in self.tried.items()
            if measured.loss <= self.limit and (not measured.losses or measured.losses.keys() >= judged)
        ]

    def take(self, number: int, kept: Kept) -> bool:
        """Measures a set with the calibrator ``number``, corrects the estimates, and returns true if the set holds."""
        measured = self.tried[number, kept] = self.measure(number, kept)
        self._judges_together |= TOGETHER in measured.losses
        self.estimates[number].learn(self._low(kept), measured, self.limit)
        holds = measured.loss <= self.limit
        self._offered = {} if holds else {k: offers for k, offers in self._offered.items() if k != number}
        return holds

    def _low(self, kept: Kept) -> np.ndarray:
        low = np.ones(len(self.space.units), bool)
        low[sorted(kept)] = False
        return low

    def step(self, worth: float) -> bool:
        """Measures the set with the largest expected saving; returns false if none is worth a plan.

        Args:
            worth: least saving that is worth a plan, as a share of the best set's price.
        """
        best_price = min(self.most, self.price(self.space.all if self.best is None else self.best[1]))
        offers = list(self._offers(best_price))
        if not offers:
            return False
        expected, chance, number, kept = max(offers, key=lambda offer: offer[0])
        if expected < worth * best_price:
            return False
        holds = self.take(number, kept)
        self._expected += chance
        self._held += holds
        if holds:
            self.best = number, kept
        return True

    def _offers(self, best_price: float) -> Iterator[tuple[float, float, int, Kept]]:
        for number, estimates in enumerate(self.estimates):
            offers = self._offered.get(number)
            if offers is None or offers.judged != len(self._places):
                sets = self._cheaper(number, best_price)
                chances, misled = estimates.chances(sets.low, self._places, self.limit)
                least = self._least_chances(sets.low, misled)
                offers = self._offered[number] = _Offers(sets, chances, least, len(self._places))
            sets = offers.sets
            if not sets.kept:
                continue
            expected = offers.chances * min(1.0, self._held / self._expected)
            savings = np.maximum(expected, offers.least) * self._gains(sets.prices, best_price)
            first = int(savings.argmax())
            yield float(savings[first]), float(offers.chances[first]), number, sets.kept[first]

    def _gains(self, prices: np.ndarray, best_price: float) -> np.ndarray:
        return best_price - prices

    def _cheaper(self, number: int, price: float) -> _Sets:
        few = len(self.space.units) <= FEW
        sets = self._all_sets if few else self._with_prices(self._candidates(number))
        new = sets.prices < price
        new[new] = [(number, sets.kept[place]) not in self.tried for place in np.flatnonzero(new).tolist()]
        kept = [sets.kept[place] for place in np.flatnonzero(new).tolist()]
        return _Sets(kept, sets.low[new], sets.prices[new])

    @cached_property
    def _all_sets(self) -> _Sets:
        return self._with_prices([frozenset(np.flatnonzero(row).tolist()) for row in all_sets(len(self.space.units))])

    def _with_prices(self, sets: Sequence[Kept]) -> _Sets:
        low = np.array([self._low(kept) for kept in sets], bool).reshape(-1, len(self.space.units))
        prices = np.array([self.price(kept) for kept in sets])
        return _Sets(sets, low, prices)

    def _least_chances(self, low: np.ndarray, misled: np.ndarray) -> np.ndarray:
        few = len(self.space.units) <= FEW
        least = LEAST_CHANCE * np.minimum(2.0 * misled, 1.0) if few else np.zeros(len(low))
        if self.best is not None and len(self.best[1]) <= SMALL:
            # errors that cancel look bad alone, and no sum of estimates shows it
            others = sorted(self.space.all - self.best[1])
            least[low[:, others].all(axis=1)] = LEAST_CHANCE
        return least

    def _candidates(self, number: int) -> list[Kept]:
        estimates = self.estimates[number]
        best = None if self.best is None else self.best[1]
        costs = np.array(self.space.costs_near(best or frozenset())) + EACH
        rows = estimates.sums(self._places) + 1e-12
        usual = estimates.usual(self.limit)
        sets = dict.fromkeys(_covers(rows, costs, usual))
        if best is not None and self.best is not None and self.best[0] == number:
            for changed in self._near(best, rows, costs, usual):
                sets[changed] = None
        return list(sets)

    def _near(self, best: Kept, rows: np.ndarray, costs: np.ndarray, usual: float) -> Iterator[Kept]:
        others = [unit for unit in range(len(costs)) if unit not in best]
        limits = np.maximum(rows[others].sum(axis=0), usual)
        if len(best) <= SMALL:
            for count in range(len(best)):
                yield from map(frozenset, combinations(sorted(best), count))
        for unit in sorted(best):
            yield best - {unit}
            expensive = costs.copy()
            expensive[unit] = np.inf
            yield cover(rows, expensive, limits, best - {unit})


@dataclass
class LeastLoss(SetSearch):
    """Searches the set of units that loses least among the sets that cost less than ``most``, with one calibrator.
    ``best`` loses least so far.
    """

    each: float = 0.0

    def search(self, estimates_at: Callable[[float], Estimates], patience: int, left: Callable[[], float]) -> Kept:
        """Searches until ``patience`` sets in a row lose no less than the best, or no inference is left; returns the
        best set.

        Args:
            estimates_at: returns new estimates for a limit, made from plans with one low unit.
            left: returns the number of inferences left.
        """
        best: Kept = frozenset()
        self.best = 0, best
        self.tried[0, best] = self.measure(0, best)
        in_vain = 0
        while in_vain < patience and left() > 0:
            loss = self.tried[0, best].loss
            if not loss > 0.0:
                break
            if not in_vain:
                limit = loss if math.isfinite(loss) else self.space.budget
                self.estimates = [self._learned(estimates_at(limit), limit)]
            self.limit = math.nextafter(loss, 0.0) * (1.0 - LESS)
            offers = list(self._offers(self.most))
            if not offers:
                break
            _, _, _, kept = offers[0]
            in_vain += 1
            if self.take(0, kept):
                best, in_vain = kept, 0
                self.best = 0, best
        return self._without_idle(best)

    def _without_idle(self, best: Kept) -> Kept:
        most = self.tried[0, best].loss * (1.0 + LESS)
        for unit in sorted(best, key=lambda unit: (-self.space.costs[unit], unit)):
            smaller = best - {unit}
            if (0, smaller) not in self.tried:
                self.take(0, smaller)
            if self.tried[0, smaller].loss <= most:
                best = smaller
        return best

    def _learned(self, estimates: Estimates, limit: float) -> Estimates:
        for (_, kept), measured in self.tried.items():
            estimates.learn(self._low(kept), measured, limit)
        return estimates

    def _gains(self, prices: np.ndarray, _best_price: float) -> np.ndarray:
        return np.ones(len(prices))

    def _candidates(self, number: int) -> list[Kept]:
        assert self.best is not None
        rows, costs = self.estimates[number].sums(self._places) + 1e-12, np.array(self.space.costs)
        sets: dict[Kept, None] = {}
        helps = rows.max(axis=1) / costs
        for kept in _covers(rows, costs, self.limit):
            sets[kept] = None
            sets[self._cut(kept, helps)] = None
        _, best = self.best
        for other in sorted(self.space.all - best):
            sets[best | {other}] = None
        return list(sets)

    def _cut(self, kept: Kept, helps: np.ndarray) -> Kept:
        for unit in sorted(kept, key=lambda unit: float(helps[unit])):
            if self.price(kept) < self.most:
                break
            kept -= {unit}
        return kept


def _covers(rows: np.ndarray, costs: np.ndarray, usual: float) -> Iterator[Kept]:
    for factor in FACTORS:
        yield cover(rows, costs, np.full(rows.shape[1], usual * factor))


def cover(rows: np.ndarray, costs: np.ndarray, limits: np.ndarray, start: Collection[int] = ()) -> Kept:
    """Returns a cheap set of units to keep in high precision, so that the losses of the others add up to at most
    ``limits`` on each input. The choice is greedy, by the loss removed for the cost.

    Args:
        rows: float64 ``[units, places]``, the loss that each low unit adds on each input.
        limits: float64 ``[places]``, the largest sum on each input.
        start: units that are in the set from the beginning.
    """
    high = np.zeros(len(costs), bool)
    high[list(start)] = True
    sums = rows[~high].sum(axis=0)
    while ((over := sums - limits) > 0.0).any():
        helps = np.minimum(rows, over.clip(min=0.0)).sum(axis=1) / costs
        helps[high] = -1.0
        unit = int(helps.argmax())
        if helps[unit] <= 0.0:
            return frozenset(range(len(costs)))
        high[unit] = True
        sums = sums - rows[unit]
    for unit in sorted(np.flatnonzero(high).tolist(), key=lambda unit: -costs[unit]):
        if (sums + rows[unit] <= limits).all():
            high[unit] = False
            sums = sums + rows[unit]
    return frozenset(np.flatnonzero(high).tolist())
