"""Searches the recipe where one ONNX Runtime session runs all plans: five passes over one state.

State: the measurements of each set of units with each calibrator, and the estimates made from them. The units of a set
are high, all other units are low.

    1 alone      measure the plans with one low unit, by each calibrator, on the inputs on which full INT8 loses most
    2 cheaper    measure the set with the largest expected saving, until no set is worth a plan (``driver.estimated``)
    3 check      measure the cheapest set on all inputs in all settings; the search judges inputs on which it misses too
    4 put back   put each unit of the set back, the most expensive first; it goes low if the plan still passes.
                 Passes 2 to 4 repeat until no set is cheaper
    5 reserve    passes 2 to 4 with half of the budget, among sets that cost at most a quarter more

Reserve. The cheapest set uses all of the budget on the worst given input, and other inputs lose more. So a set that
leaves half of the budget unused becomes the recipe if it costs little more. Without such a set, the one with the
smallest mean loss becomes the recipe, among the sets measured to hold that cost little more.

Calibrators. Each promising calibrator is measured unit by unit, because one unit may cause all that full INT8 loses.

FP16. Units stay high in FP16 if the plan with all units in FP16 loses little. Otherwise they stay high in FP32, and a
second search among the recipe's units, with FP16 as the low precision, finds those for which FP16 suffices.

Large networks. With more than 500 layers, the units are groups of neighbours first. Then the same passes search the
layers of the groups that stay high, one by one or in smaller groups.

                 . . . . [. . . .] . . . . . . . .        groups: the second one stays high
                          . [.] . .                       its layers: one stays high, which is the recipe

``--budget``. The least loss within a cost is searched on the same state, with one calibrator at a time: the next set
measured is the one most likely to lose less than the best so far.

``--accuracy``. The same passes judge by the user's accuracy, with ``NoiseEstimates``.

Invariants. A recipe that passes was measured as a whole plan on all given inputs in all settings, and once more with
each of its units put back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from trt_bisect.answer.in_fp16 import may_be_in_fp16, middle_space, with_units_in
from trt_bisect.answer.plans import AnswerPlans
from trt_bisect.answer.steps_back import with_faster
from trt_bisect.answer.validation import PutBack, Recipe, SimilarityTarget, Target
from trt_bisect.calibration.ranges import Ranges
from trt_bisect.driver.estimated import TOGETHER, Estimates, LeastLoss, Measured, NoiseEstimates, SetSearch, even_limits
from trt_bisect.driver.search_space import MANY_UNITS, Kept, Space
from trt_bisect.model.cost import Costs
from trt_bisect.options.concerns import DEFAULT, MIXED, QUICK, THOROUGH
from trt_bisect.precision import Precision, PrecisionPlan
from trt_bisect.preparation.experiment import Experiment
from trt_bisect.report.answer import AS_CHEAP, OWN

JUDGED = 32  # the number of inputs that the search judges at first: the worst in full INT8
_MOST_ENGINES = 32  # the most units of a search where each plan takes an engine
ALONE = 2  # the number of inputs on which each unit is measured alone
# By effort, the least expected saving that is worth a plan, as a share of the best set's price (``SetSearch.price``).
WORTH = {QUICK: 0.05, DEFAULT: 0.002, THOROUGH: 0.0002}
# By effort, the most inferences of a search (one input each), as a multiple of units times given inputs.
SWEEPS = {QUICK: 1.0, DEFAULT: 2.0, THOROUGH: math.inf}
FEW_UNITS = 16
# The inferences that a search may always take; the second number is for at most ``FEW_UNITS`` units.
LEAST_ALLOWED, OF_FEW = 400, 3000
PATIENCE = 32  # a search within a cost ends after this many sets in a row without less loss
_ROUNDED = 1e-9
ROUNDS = 5  # the most searches within a cost; each also judges the inputs on which the set found before loses more.
RESERVED = 0.3  # the share of the allowed inferences that is left for putting units back
# The highest price of a recipe with a reserve (``--margin``), as a multiple of the cheapest recipe's price. On eight
# networks 12 of 171 held-out inputs missed with a reserve, and 19 without.
LITTLE_MORE = 1.25
# A recipe is reported during the search if its price is at most this share of the last reported recipe's.
SO_MUCH = 0.25
EQUAL = 0.01  # sets whose prices differ by less than this share are equally good
# The factor on the limit of the search after a set misses only in a setting that the search does not measure.
CLOSER = 0.97
# By ``--precision``, the least cost that FP16 has to save for units to stay high in FP16 instead of FP32.
FP16_SAVES = {MIXED: 0.0, None: AS_CHEAP}
FP16_LOSES = 0.25  # units stay high in FP16 if the plan with all units in FP16 loses at most this share of the budget


def allowed(effort: str, units: int, inputs: int) -> float:
    """Returns the number of inferences that a search may take, by ``--effort``; infinite for ``thorough``."""
    least = OF_FEW if units <= FEW_UNITS and effort == DEFAULT else LEAST_ALLOWED
    return max((SWEEPS[effort] * inputs - 1.0) * units, least)


def searched(
    plans: AnswerPlans,
    target: Target,
    space: Space,
    ranges: Sequence[Ranges],
    effort: str,
    on_recipe: Callable[[Recipe], None],
) -> tuple[Recipe, Mapping[str, Kept]]:
    """Searches the recipe; its units are in FP16 where that is good enough. Each layer of ``space`` is a unit.

    The arguments are those of ``RecipeSearch``.

    Returns:
        The recipe, which misses if every set misses; and the cheapest set measured to pass with each calibrator, by
        the digest of its ranges.
    """
    most = MANY_UNITS if plans.switches else _MOST_ENGINES
    size = math.ceil(len(space.units) / most)
    groups = space if size <= 1 else in_groups(space, space.all, size)

    def on_found(recipe: Recipe) -> None:
        on_recipe(_by_layer(recipe, space, plans.costs))

    while True:
        recipe, sets = _searched(plans, target, groups, ranges, effort, on_found)
        if size <= 1 or not recipe.holds:
            break
        kept = _same_layers(groups, recipe.kept, space)
        # A smaller size each time: where all groups are needed, the same groups would be searched for ever.
        size = min(math.ceil(len(kept) / most), size // 2)
        groups = in_groups(space, kept, max(size, 1))
    by_digest = {digest: _same_layers(groups, kept, space) for digest, kept in sets.items()}
    recipe = _by_layer(recipe, space, plans.costs)
    # With units in FP16 the recipe may cost less than the set that was cheaper in FP32.
    if recipe.cheapest is not None and recipe.cheapest.cost >= recipe.cost:
        recipe = replace(recipe, cheapest=None)
    return recipe, by_digest


def cheaper_than(most: float, plans: AnswerPlans, space: Space, ranges: Ranges) -> Recipe | None:
    """Returns the cheapest recipe that a quick search finds at a cost below ``most``, if any."""
    plans.allowed = plans.taken + allowed(QUICK, len(space.units), len(plans.inputs.counting))
    search = RecipeSearch(plans, SimilarityTarget(plans), space, [ranges], QUICK, lambda _: None)
    search.sets.most = most
    recipe = search.cheapest()
    return recipe if recipe.holds and recipe.cost < most else None


def most_accurate(
    plans: AnswerPlans, target: Target, space: Space, ranges: Sequence[Ranges], effort: str, most: float
) -> tuple[Kept, Ranges]:
    """Returns the units to keep in high precision, and the ranges, so that the plan loses least at a cost of at most
    ``most``.

    Args:
        ranges: ranges of each calibrator. With those in use, the first, the search begins. The set found is measured
            with the others too; while it loses less with some of them, a search with these follows.
        effort: with ``thorough``, searches with all ranges.
    """

    def loss_of(choice: tuple[Kept, Ranges]) -> float:
        kept, of = choice
        (loss,) = target.losses([space.plan(kept)], of, to_the_end=True)
        return math.inf if loss is None else loss

    first, *left = ranges
    best = _most_accurate(plans, target, space, first, most), first
    while left:
        same_set = [(best[0], of) for of in left]
        better = min(same_set, key=loss_of)
        if effort != THOROUGH and loss_of(better) >= loss_of(best):
            break
        del left[same_set.index(better)]
        found = (_most_accurate(plans, target, space, better[1], most), better[1])
        # The search judges more inputs by now: all are compared on these.
        best = min(best, found, better, key=loss_of)
    return best


def _most_accurate(plans: AnswerPlans, target: Target, space: Space, ranges: Ranges, most: float) -> Kept:
    groups = in_groups(space, space.all, math.ceil(len(space.units) / MANY_UNITS)) if space.has_many else space
    for _ in range(ROUNDS):
        plans.allowed = plans.taken + allowed(plans.options.effort, len(groups.units), len(plans.inputs.counting))
        kept = RecipeSearch(plans, target, groups, [ranges], DEFAULT, lambda _: None).most_accurate(most + _ROUNDED)
        if not plans.join(target.worse(groups.plan(kept), ranges)):
            break
    return _same_layers(groups, kept, space)


def in_groups(space: Space, units: Kept, size: int) -> Space:
    """Returns a space whose units are groups of ``size`` neighbours among ``units``; other units are in low
    precision.
    """
    ordered = sorted(units)
    groups = [ordered[start : start + size] for start in range(0, len(ordered), size)]
    layers = tuple(tuple(space.layers(group)) for group in groups)
    costs = tuple(math.fsum(space.costs[unit] for unit in group) for group in groups)
    return replace(space, base=space.plan(units), units=layers, costs=costs)


def _by_layer(recipe: Recipe, space: Space, costs: Costs) -> Recipe:
    if recipe.space.units == space.units:
        return recipe
    for unit in recipe.kept & recipe.space.others.keys():
        layers = _same_layers(recipe.space, frozenset({unit}), space)
        space = with_units_in(space, layers, recipe.space.others[unit], costs)
    cheapest = None if recipe.cheapest is None else _by_layer(recipe.cheapest, space, costs)
    kept = _same_layers(recipe.space, recipe.kept, space)
    return replace(recipe, space=space, kept=kept, equals=(), cheapest=cheapest)


def _same_layers(groups: Space, kept: Kept, space: Space) -> Kept:
    layers = set(groups.layers(kept))
    return frozenset(unit for unit, (layer,) in enumerate(space.units) if layer in layers)


def _searched(
    plans: AnswerPlans,
    target: Target,
    space: Space,
    ranges: Sequence[Ranges],
    effort: str,
    on_recipe: Callable[[Recipe], None],
) -> tuple[Recipe, Mapping[str, Kept]]:
    saves = FP16_SAVES.get(plans.options.precision)
    half = in_half(plans, target, space, ranges[0])
    if half is not None:
        assert saves is not None
        search = RecipeSearch(plans, target, half, ranges, effort, on_recipe)
        recipe = search.found()
        in_fp32 = replace(recipe, space=space)
        if recipe.holds and in_fp32.cost <= recipe.cost + saves:
            in_fp32 = in_fp32.checked_by(target)
            recipe = in_fp32 if in_fp32.checked.worst <= recipe.aim else recipe
        if recipe.holds:
            return recipe, search.sets_by_calibrator()
    search = RecipeSearch(plans, target, space, ranges, effort, on_recipe)
    recipe = search.found()
    if saves is not None and may_be_in_fp16(plans, space, space.all):
        recipe = _partly_in_fp16(recipe, plans, target, effort, saves) or recipe
    return recipe, search.sets_by_calibrator()


def in_half(plans: AnswerPlans, target: Target, space: Space, ranges: Ranges) -> Space | None:
    """Returns ``space`` with FP16 as the high precision of all units; None if the units must be in FP32, or if the plan
    with all units in FP16 loses too much.
    """
    if plans.options.precision not in FP16_SAVES or not may_be_in_fp16(plans, space, space.all):
        return None
    half = with_units_in(space, space.all, Precision.FP16, plans.costs)
    (loss,) = target.losses([half.plan(space.all)], ranges)
    return half if loss is not None and loss <= FP16_LOSES * space.budget else None


def in_fp16(recipe: Recipe, plans: AnswerPlans, target: Target) -> Recipe:
    """Returns the recipe with FP16 in place of FP32 if that is allowed, passes and lowers the cost enough; else the
    recipe unchanged.
    """
    saves = FP16_SAVES.get(plans.options.precision)
    if saves is None or not may_be_in_fp16(plans, recipe.space, recipe.kept):
        return recipe
    changed = replace(recipe, space=with_units_in(recipe.space, recipe.kept, Precision.FP16, plans.costs))
    if changed.cost > recipe.cost - saves:
        return recipe
    changed = changed.checked_by(target)
    return changed if changed.holds else recipe


def _partly_in_fp16(recipe: Recipe, plans: AnswerPlans, target: Target, effort: str, saves: float) -> Recipe | None:
    space, units = recipe.space, sorted(recipe.kept)
    if not recipe.holds or not units:
        return None
    # FP16 must not use up the recipe's reserve.
    middle = replace(middle_space(space, units, plans.costs), budget=recipe.aim)
    high = RecipeSearch(plans, target, middle, [recipe.experiment.ranges], effort, lambda _: None).cheapest()
    lowered = {unit for number, unit in enumerate(units) if number not in high.kept}
    changed = replace(recipe, space=with_units_in(space, lowered, Precision.FP16, plans.costs))
    if not high.holds or not lowered or changed.cost > recipe.cost - saves:
        return None
    changed = changed.checked_by(target)
    return changed if changed.checked.worst <= recipe.aim else None


@dataclass
class RecipeSearch:
    """Searches a recipe with the ranges of one or more calibrators.

    Attributes:
        ranges: ranges of each calibrator, those in use first.
        on_recipe: called with each checked recipe that is cheaper than the one before.
    """

    plans: AnswerPlans
    target: Target
    space: Space
    ranges: Sequence[Ranges]
    effort: str
    on_recipe: Callable[[Recipe], None]

    def __post_init__(self) -> None:
        self._by_similarity = isinstance(self.target, SimilarityTarget)
        self._jumps = self.plans.experiment.rule.metric.jumps or not self._by_similarity
        self._limits = even_limits()
        self.sets = SetSearch(self.space, [], self._measure, self.plans.judged, self.space.budget)
        self._failed: set[tuple[int, Kept]] = set()
        self._told = math.inf

    def found(self) -> Recipe:
        """Returns the recipe that leaves ``--margin`` of the budget unused if that costs little more, else the
        cheapest; if every set misses, a recipe that misses.
        """
        cheapest = self.cheapest()
        cheapest = replace(cheapest, equals=self._equal_to(cheapest))
        share = float(self.plans.setup.options.margin)
        if not share or self._jumps or not cheapest.kept or not cheapest.holds:
            return cheapest
        return self._with_reserve(cheapest, share)

    def _equal_to(self, recipe: Recipe) -> tuple[Kept, ...]:
        most = self.sets.price(recipe.kept) * (1.0 + EQUAL)
        digest = recipe.experiment.ranges.digest()
        holding = [kept for number, kept in self.sets.holding() if self.ranges[number].digest() == digest]
        return tuple(kept for kept in holding if not kept >= recipe.kept and self.sets.price(kept) <= most)

    def cheapest(self) -> Recipe:
        """Returns the cheapest recipe, which needs each of its units; if every set of units misses, a recipe that
        misses.
        """
        everything = self._checked(0, self.space.all)
        if not everything.holds:
            return replace(everything, meets=False)
        for ranges in self.ranges:
            # With few inputs the estimates of all calibrators would leave no inference for a set.
            if self.sets.estimates and self.plans.left(RESERVED) < 2 * ALONE * len(self.space.units):
                break
            self.sets.estimates.append(self._estimates(ranges, self.space.budget))
        self.plans.setup.progress.stage("Searching for the cheapest recipe", None)
        cheapest = self._cheapest(everything)
        if cheapest is everything and math.isinf(self.sets.most):
            # Every smaller set missed, maybe only in a setting that the search does not measure: go down from the top.
            cheapest = self._without_unneeded(0, everything)
        return cheapest

    def sets_by_calibrator(self) -> dict[str, Kept]:
        """Returns the cheapest set of units in high precision that passed with each calibrator, by the digest of the
        ranges.
        """
        sets: dict[str, Kept] = {}
        for number, kept in sorted(self.sets.tried, key=lambda choice: self.sets.price(choice[1]), reverse=True):
            if self.sets.tried[number, kept].loss <= self.space.budget:
                sets[self.ranges[number].digest()] = kept
        return sets

    # Pass 1: alone, on the inputs on which full INT8 loses most

    def _estimates(self, ranges: Ranges, limit: float) -> Estimates:
        # the other units are in FP32 even where FP16 suffices for them: it adds little, and its emulation takes long
        plans, space = self.plans, replace(self.space, others={})
        plans.setup.progress.stage(f"Each layer alone with ranges of {ranges.origin}", len(space.units))
        evaluator = plans.noise(ranges) if self._jumps else plans.each(ranges)
        all_low = space.plan(frozenset())
        evaluator.losses([all_low], plans.judged, to_the_end=True)
        full = evaluator.by_place(all_low)
        places = sorted(plans.judged, key=lambda place: -full.get(place, 0.0))[:ALONE]
        alone = [space.plan(space.all - {unit}) for unit in sorted(space.all)]
        evaluator.losses(alone, places, lambda _: plans.setup.progress.step("", len(places)), to_the_end=True)
        losses = [evaluator.by_place(plan) for plan in alone]
        figures = np.array([[of_plan.get(place, math.inf) for place in places] for of_plan in losses])
        if self._jumps:
            return NoiseEstimates(places, figures, full, self._limits)
        return Estimates(places, figures, full, limit)

    # Pass 2: cheaper

    def _improve(self) -> None:
        while self.plans.left(RESERVED) > 0 and self.sets.step(WORTH[self.effort]):
            self._tell()

    def _tell(self) -> None:
        # So that a stopped run has the best recipe.
        if self.sets.best is None or self.sets.price(self.sets.best[1]) > SO_MUCH * self._told:
            return
        number, kept = self.sets.best
        recipe = self._checked(number, kept)
        if recipe.holds:
            self._told = self.sets.price(kept)
            self.on_recipe(recipe)

    def _measure(self, number: int, kept: Kept) -> Measured:
        plans, ranges, plan = self.plans, self.ranges[number], self.space.plan(kept)
        limit = self.space.budget
        loss = self._loss(plan, ranges)
        if not self._by_similarity:
            return Measured(loss, {})
        if loss <= limit:
            (of_all,) = plans.losses([plan], ranges, plans.inputs.counting)
            loss = math.inf if of_all is None else of_all
        losses = plans.each(ranges).by_place(plan)
        mean = math.inf
        if loss <= limit:
            mean = fmean(losses[place] for place in plans.inputs.counting)
            if ranges.scales and plans.switches:
                moved, losses = plans.nudged(plan, ranges)
                loss = max(loss, moved)
        plans.join(plans.exceeding(losses, self.sets.limit))
        on_judged = {place: losses[place] for place in plans.judged if place in losses}
        if max(losses.values(), default=math.inf) < loss and not self._jumps:
            on_judged[TOGETHER] = loss
        return Measured(loss, on_judged, mean)

    def _loss(self, plan: PrecisionPlan, ranges: Ranges) -> float:
        (loss,) = self.target.losses([plan], ranges)
        return math.inf if loss is None else loss

    def most_accurate(self, most: float) -> Kept:
        """Returns the set of units in high precision, cheaper than ``most``, that loses least on the inputs that the
        search runs.
        """
        self.plans.setup.progress.stage("Searching within the cost", None)
        sets = LeastLoss(self.space, [], self._measure_whole, self.plans.judged, self.space.budget, most)
        return sets.search(self._estimates_at, PATIENCE, self.plans.left)

    def _estimates_at(self, limit: float) -> Estimates:
        self._limits = even_limits()
        return self._estimates(self.ranges[0], limit)

    def _measure_whole(self, number: int, kept: Kept) -> Measured:
        plan, ranges = self.space.plan(kept), self.ranges[number]
        (loss,) = self.target.losses([plan], ranges, to_the_end=True)
        losses = self.plans.each(ranges).by_place(plan) if self._by_similarity else {}
        on_judged = {place: losses[place] for place in self.plans.judged if place in losses}
        return Measured(math.inf if loss is None else loss, on_judged)

    # Pass 3: check

    def _cheapest(self, otherwise: Recipe) -> Recipe:
        best, bound = otherwise, min(self.sets.most, self.sets.price(otherwise.kept))
        while True:
            self._improve()
            if self.sets.best is None or self.sets.price(self.sets.best[1]) >= bound:
                return best
            number, kept = self.sets.best
            candidate = self._checked(number, kept)
            if candidate.checked.worst > self.sets.limit:
                self._failed.add((number, kept))
                if not self.plans.join(candidate.checked.missed):
                    self.sets.limit *= CLOSER
                self.sets.choose_again(self._failed)
                continue
            best = self._without_unneeded(number, with_faster(self.target, candidate))
            bound = self.sets.price(best.kept)
            self.sets.best = number, best.kept
            self.on_recipe(best)

    # Pass 4: put back

    def _without_unneeded(self, number: int, recipe: Recipe) -> Recipe:
        space = self.space
        elsewhere = set[int]()
        while True:
            kept, gone = recipe.kept, list[int]()
            for unit in sorted(kept - elsewhere, key=lambda unit: -space.costs[unit]):
                smaller = kept - {unit}
                if space.cost(smaller) <= space.cost(kept) and self._holds(number, smaller):
                    kept = smaller
                    gone.append(unit)
            if not gone:
                return recipe
            recipe, needed = self._checked_without(recipe, gone)
            if needed is None:
                return recipe
            elsewhere.add(needed)

    def _holds(self, number: int, kept: Kept) -> bool:
        if (number, kept) not in self.sets.tried:
            return self.sets.take(number, kept)
        return self.sets.tried[number, kept].loss <= self.sets.limit

    def _checked_without(self, recipe: Recipe, gone: Sequence[int]) -> tuple[Recipe, int | None]:
        count, done, failing, smaller = len(gone), 0, len(gone) + 1, recipe
        while count > done:
            candidate = replace(recipe, kept=recipe.kept.difference(gone[:count])).checked_by(self.target)
            if candidate.checked.worst <= self.sets.limit:
                done, smaller = count, candidate
            else:
                failing = count
            count = done + (failing - done) // 2
        return smaller, gone[done] if done < len(gone) else None

    # Pass 5: reserve

    def _with_reserve(self, cheapest: Recipe, share: float) -> Recipe:
        most = LITTLE_MORE * self.sets.price(cheapest.kept)
        self.plans.setup.progress.stage("A recipe with a reserve", None)
        self.sets.aim(self.space.budget * (1.0 - share), most)
        everything = replace(cheapest, kept=self.space.all)
        reserved = self._cheapest(everything)
        if reserved is not everything:
            aim = self.space.budget * (1.0 - share)
            return replace(reserved, aim=aim, reserve=share, cheapest=self._cheaper(cheapest, reserved))
        self.sets.aim(self.space.budget)
        for number in range(len(self.sets.estimates)):
            self._holds(number, cheapest.kept)
        holding = [choice for choice in self.sets.holding() if self.sets.price(choice[1]) <= most]
        for number, kept in sorted(holding, key=lambda choice: self.sets.tried[choice].mean):
            if kept == cheapest.kept and self.ranges[number].digest() == cheapest.experiment.ranges.digest():
                return cheapest
            likelier = self._checked(number, kept)
            if likelier.holds:
                return replace(likelier, cheapest=self._cheaper(cheapest, likelier))
        return cheapest

    def _cheaper(self, cheapest: Recipe, taken: Recipe) -> Recipe | None:
        return cheapest if cheapest.cost < taken.cost else None

    def _checked(self, number: int, kept: Kept) -> Recipe:
        return Recipe(self.space, kept, self._experiment(number), self.space.budget).checked_by(self.target)

    def _experiment(self, number: int) -> Experiment:
        return self.plans.with_ranges(self.ranges[number])


def with_all_put_back(target: Target, recipe: Recipe) -> Recipe:
    """Measures the recipe on all inputs with one unit at a time back in low precision; returns the recipe with
    ``put_back`` and ``faster`` filled.
    """
    space, experiment = recipe.space, recipe.experiment
    put_back, faster = dict[int, PutBack](), set[int]()
    # All at once: plans that differ in late layers share what comes before these.
    target.losses([space.plan(recipe.kept - {unit}) for unit in recipe.kept], experiment.ranges, to_the_end=True)
    for unit in sorted(recipe.kept, key=lambda unit: -space.costs[unit]):
        smaller = recipe.kept - {unit}
        plan = space.plan(smaller)
        (loss,) = target.losses([plan], experiment.ranges)
        setting = OWN
        if loss is not None and loss <= space.budget:
            # With a reserve most units pass: only in FP16 settings differ by more than single levels.
            has_reserve = recipe.reserve or recipe.cheapest is not None
            jointly = not has_reserve or Precision.FP16 in plan.precisions
            again = target.check(experiment, plan, jointly=jointly)
            missed = [name for name, of_setting in again.losses.items() if of_setting > space.budget]
            if missed:
                setting = missed[0]
            elif space.cost(smaller) > recipe.cost:
                faster.add(unit)
        put_back[unit] = target.put_back(plan, experiment, setting)
    return replace(recipe, put_back=put_back, faster=frozenset(faster))
