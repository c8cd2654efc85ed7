"""The recipes of a run by estimated losses: a first one that holds on all inputs given, then cheaper ones.

The number of single inferences is bounded, see ``SWEEPS``. Part of them is reserved for the steps back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

import numpy as np

from trt_bisect.answer.plans import AnswerPlans
from trt_bisect.answer.search import (
    CLOSER,
    CLOSEST,
    DEAR_RECIPE,
    FOR_MARGIN,
    PROMISING,
    SAFETY,
    CalibratorTried,
    with_recipe,
)
from trt_bisect.answer.steps_back import with_more_high
from trt_bisect.answer.validation import Recipe, Target
from trt_bisect.calibration.ranges import Ranges
from trt_bisect.driver.estimated import EstimatedSearch, Estimates, Measured
from trt_bisect.driver.search_space import Kept, Sensitivities, Space
from trt_bisect.evaluator.each_input import NO_MARGIN
from trt_bisect.options.concerns import DEFAULT, QUICK, THOROUGH
from trt_bisect.report.summary import TOO_DEAR

SWEEPS = {QUICK: 1.0, DEFAULT: 2.0, THOROUGH: math.inf}
"""By effort, the single inferences that a search may take, as a multiple of the layers that can be low and the inputs
given."""
_LEAST_ALLOWED = 400
"""A search may always take so many."""
_RESERVED = 0.3
"""The share of these that is left for the check of the recipe and the steps back."""
_USUAL = 0.7
"""The share of the inferences allowed that a search takes as a rule."""
_LONG = 2.0
"""A search without a bound takes so many times the inferences allowed by default, as a rule."""
_ALONE = 2
"""The number of inputs on which each unit is measured alone."""
_ALONE_SHARE = 0.1
"""The share of the inferences allowed that this may take for each calibrator."""
JUDGED = 32
"""The number of inputs that plans are judged on at first: the worst ones in full INT8."""
_PATIENCE, _MORE_PATIENCE = 16, 24
"""The number of plans that may miss one after another, for the first recipes and for cheaper ones."""
_REFINED = 2
"""The number of calibrators whose recipes are refined: those with the cheapest ones."""
_CHECKS = 5
"""The number of sets of one search that are checked, until one holds."""
_LITTLE_MORE, _LITTLE = 1.1, 0.01
"""With few inputs, such a recipe may cost so many times as much, and this share of INT8's gain more."""
_JUMPS = 4.0
"""If figures jump, the limit of the estimates is the noise of full INT8 over this number; the boldness is learned."""


@dataclass
class _Calibrated:
    """A search with the ranges of a calibrator, and the loss that its plans may have."""

    ranges: Ranges
    search: EstimatedSearch
    aim: float


class EstimatedRecipes:
    """Searches recipes with the promising calibrators.

    Args:
        space: the units to choose from, with the budget of the threshold.
        on_recipe: called with each recipe that is cheaper than the one before.

    Attributes:
        best: the cheapest recipe so far; None without one.
    """

    def __init__(self, plans: AnswerPlans, target: Target, space: Space, on_recipe: Callable[[Recipe], None]) -> None:
        self.best: Recipe | None = None
        self._plans = plans
        self._target = target
        self._space = space
        self._on_recipe = on_recipe
        self._searches: dict[str, _Calibrated] = {}
        self._sets: dict[str, Kept] = {}
        self._jumps = plans.experiment.rule.metric.jumps

    def search(self, tried: Sequence[CalibratorTried], *, named: bool, first_only: bool) -> list[CalibratorTried]:
        """Searches with each promising calibrator; returns the calibrators with the costs of their sets.

        Args:
            tried: full INT8 with each calibrator; the first is the one in use.
            named: the user named the calibrator in use: no other one is searched.
            first_only: only the first recipe is searched, with the calibrator that full INT8 loses least with.
        """
        plans, space = self._plans, self._space
        forecast, progress = plans.setup.forecast, plans.setup.progress
        usual = allowed(DEFAULT, len(space.units), len(plans.inputs.counting))
        forecast.search(_USUAL * min(plans.left(), usual))
        promising = [k for k, row in enumerate(tried) if k == 0 or row.ranges.calibrator in PROMISING]
        losses = [math.inf if row.loss is None else row.loss for row in tried]
        order = [0] if named else sorted(promising, key=losses.__getitem__)
        candidates = {(ranges := tried[k].ranges).digest(): ranges for k in order}
        plans.leave(plans.usual_margin())
        for calibrated in self._by_expected_cost(candidates):
            origin = calibrated.ranges.origin
            progress.stage(f"A cheaper recipe with ranges of {origin}" if self.best else "A first recipe", None)
            self._improve(calibrated)
            if calibrated.search.best is not None:
                self._sets.setdefault(calibrated.ranges.digest(), calibrated.search.best)
            if first_only and self.best is not None:
                break
        if self.best is not None and not first_only:
            self._refine()
            self._decide_margin()
            self._take_likeliest(candidates)
        forecast.search(min(plans.left(), _RESERVED * plans.allowed) if plans.allowed < math.inf else _LONG * usual)
        rows = list(tried)
        for k, row in enumerate(rows):
            kept = self._sets.get(row.ranges.digest())
            if kept is not None:
                rows[k] = with_recipe(row, plans, space, kept)
        return rows

    def _take_likeliest(self, candidates: dict[str, Ranges]) -> None:
        """Goes on with the ranges with which the best set has the smallest mean loss: it is the likeliest to hold on
        other inputs."""
        assert self.best is not None
        plan, in_use, means = self.best.plan, self.best.experiment.ranges.digest(), dict[str, float]()
        for digest, ranges in candidates.items():
            (loss,) = self._target.losses([plan], ranges)
            if digest == in_use or (loss is not None and loss <= self._space.budget * SAFETY):
                means[digest] = fmean(self._plans.on_judged(plan, ranges))
        for digest in sorted(means, key=means.__getitem__):
            if digest == in_use or self._take_if_it_holds(self.best.kept, candidates[digest]):
                break

    def _take_if_it_holds(self, kept: Kept, ranges: Ranges) -> bool:
        """Checks a set and takes it if it holds; inputs on which it misses join the judged ones."""
        experiment, aim = self._plans.with_ranges(ranges), self._space.budget * SAFETY
        recipe = Recipe(self._space, kept, experiment, aim).checked_by(self._target)
        if not recipe.holds:
            self._plans.join(recipe.checked.missed)
            return False
        return self._take(recipe)

    def _by_expected_cost(self, candidates: dict[str, Ranges]) -> list[_Calibrated]:
        """Begins a search with each calibrator, as long as that can be paid for; the cheapest estimate comes first."""
        plans, units = self._plans, len(self._space.units)
        payable = int(_ALONE_SHARE * min(plans.allowed, 1e12) / max(units, 1))
        alone_on = max(1, min(_ALONE, payable, len(plans.judged)))
        for digest, ranges in candidates.items():
            if not self._searches or plans.left(_RESERVED) > 2.0 * alone_on * units:
                self._searches[digest] = self._begun(ranges, plans.judged[:alone_on])
        return sorted(self._searches.values(), key=lambda calibrated: calibrated.search.expected())

    def sensitivities(self) -> Sensitivities | None:
        """Returns the losses of units alone as they were measured, for their gains too, with the best ranges."""
        calibrated = None if self.best is None else self._searches.get(self.best.experiment.ranges.digest())
        return None if calibrated is None else calibrated.search.sensitivities()

    @property
    def _bound(self) -> float:
        return math.inf if self.best is None else self.best.cost

    def _begun(self, ranges: Ranges, places: Sequence[int]) -> _Calibrated:
        """Measures each unit alone on the worst inputs; returns the search that begins with it."""
        plans, space, progress = self._plans, self._space, self._plans.setup.progress
        progress.stage(f"Each layer alone with ranges of {ranges.origin}", len(space.units))
        evaluator = plans.noise(ranges) if self._jumps else plans.each(ranges)
        alone = [space.plan(space.all - {unit}) for unit in sorted(space.all)]
        evaluator.losses([plans.full, *alone], places, lambda _: progress.step("", len(places)), to_the_end=True)
        by_unit = map(evaluator.by_place, alone)
        figures = np.array([[losses.get(input_index, math.inf) for input_index in places] for losses in by_unit])
        full = evaluator.by_place(plans.full)
        aim = space.budget * SAFETY
        limit = max(full.values(), default=1.0) / _JUMPS if self._jumps else space.budget
        search = EstimatedSearch(
            space,
            Estimates(places, figures, full, limit),
            partial(self._measured, ranges),
            plans.judged,
            limit if self._jumps else self._limit(aim),
            learns=not self._jumps,
            goes_on=lambda: plans.left(_RESERVED) > 0,
        )
        return _Calibrated(ranges, search, aim)

    def _limit(self, aim: float) -> float:
        return aim * (1.0 - self._plans.margin.share)

    def _measured(self, ranges: Ranges, kept: Kept) -> Measured:
        plan, aim = self._space.plan(kept), self._searches[ranges.digest()].aim
        (loss,) = self._target.losses([plan], ranges)
        return Measured(loss is not None and loss <= aim, self._plans.each(ranges).by_place(plan))

    def _improve(self, calibrated: _Calibrated) -> None:
        if self.best is None:
            calibrated.search.improved(self._bound, _PATIENCE, once=True)
            self._check(calibrated)
        while calibrated.search.improved(self._bound, _PATIENCE) and self._check(calibrated):
            pass

    def _check(self, calibrated: _Calibrated) -> bool:
        """Checks the best set of a search, and takes it if it holds; after a miss the search goes on with what that
        tells."""
        plans, space, search, bound = self._plans, self._space, calibrated.search, self._bound
        experiment, start = plans.with_ranges(calibrated.ranges), frozenset[int]()
        for _ in range(_CHECKS):
            if search.best is None:
                break
            start = search.best
            if space.cost(start) >= bound:
                return False
            recipe = Recipe(space, start, experiment, calibrated.aim).checked_by(self._target)
            if recipe.holds:
                return self._take(recipe)
            judged = frozenset(plans.judged)
            if not plans.join(recipe.checked.missed):
                calibrated.aim *= max(min(space.budget / recipe.checked.worst, 1.0) * CLOSER, CLOSEST)
                if not self._jumps:
                    search.limit = self._limit(calibrated.aim)
            losses = plans.each(calibrated.ranges).by_place(recipe.plan)
            search.corrected({index: loss for index, loss in losses.items() if index not in judged})
            search.improved(bound, _PATIENCE, once=True)
        larger = with_more_high(self._target, Recipe(space, start, experiment, calibrated.aim), bound)
        if not larger.holds or larger.cost >= bound:
            return False
        search.best = larger.kept
        return self._take(larger)

    def _take(self, recipe: Recipe) -> bool:
        self.best = replace(recipe, margin=self._plans.margin)
        self._sets[recipe.experiment.ranges.digest()] = recipe.kept
        self._on_recipe(self.best)
        return True

    def _refine(self) -> None:
        searches = [calibrated for calibrated in self._searches.values() if calibrated.search.best is not None]
        searches.sort(key=lambda calibrated: self._space.price(calibrated.search.best or frozenset()))
        for calibrated in searches[:_REFINED]:
            origin = calibrated.ranges.origin
            self._plans.setup.progress.stage(f"A cheaper recipe with ranges of {origin}", None)
            if calibrated.search.refined(_MORE_PATIENCE):
                self._check(calibrated)

    def _decide_margin(self) -> None:
        """Takes a recipe without the margin where one with it costs too much; with few inputs, one with it where it
        costs little more."""
        assert self.best is not None
        plans, best = self._plans, self.best
        digest = best.experiment.ranges.digest()
        calibrated = self._searches.get(digest)
        if calibrated is None:
            return
        search, small = calibrated.search, plans.usual_margin(few=True)
        if plans.margin.share > 0.0 and best.cost > DEAR_RECIPE:
            plans.leave(NO_MARGIN)
            plans.setup.progress.stage("A recipe without a margin", None)
            search.limit = self._limit(calibrated.aim)
            self._improve(calibrated)
            most = max(min(FOR_MARGIN * self._bound, TOO_DEAR), DEAR_RECIPE)
            if best.cost <= most:
                plans.leave(best.margin)
                self.best = best
            else:
                self.best = replace(self.best, refused=most)
        elif small.share and best.kept:
            bound = _LITTLE_MORE * best.cost + _LITTLE
            plans.leave(small)
            plans.setup.progress.stage("A recipe with a margin", None)
            search.limit, search.best, self.best = self._limit(calibrated.aim), None, None
            kept = search.best if search.improved(bound, _PATIENCE) else None
            if kept is None or self._space.cost(kept) > bound or not self._take_if_it_holds(kept, calibrated.ranges):
                plans.leave(NO_MARGIN)
                self.best = best
                self._sets[digest] = best.kept


def allowed(effort: str, units: int, inputs: int) -> float:
    """Returns the number of single inferences that a search may take; each unit's gain takes one more after it."""
    return max((SWEEPS[effort] * inputs - 1.0) * units, _LEAST_ALLOWED)
