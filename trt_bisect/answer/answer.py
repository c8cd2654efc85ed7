from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from trt_bisect.answer.each_alone import EachAlone
from trt_bisect.answer.plans import HALF_NUDGE, AnswerPlans, answer_inputs
from trt_bisect.answer.recipe_search import (
    FEW_UNITS,
    JUDGED,
    allowed,
    in_fp16,
    in_half,
    most_accurate,
    searched,
    with_all_put_back,
)
from trt_bisect.answer.result import Answer
from trt_bisect.answer.search import (
    PROMISING,
    SAFETY,
    CalibratorTried,
    answer_plans,
    choose_ranges,
    make_space,
    with_confirmed,
    with_recipe,
)
from trt_bisect.answer.steps_back import with_more_high
from trt_bisect.answer.validation import (
    NOT_CHECKED,
    PutBack,
    Recipe,
    SimilarityTarget,
    Target,
    deciding_settings,
    with_unquantized_rounded,
)
from trt_bisect.calibration.ranges import Ranges
from trt_bisect.driver.search import Loss
from trt_bisect.driver.search_space import Kept, Point, Space, knee, pareto, path
from trt_bisect.errors import BadInput
from trt_bisect.evaluator.trial import Trial
from trt_bisect.options.concerns import AUTO, DEFAULT, QUICK, THOROUGH, RunOptions
from trt_bisect.precision import Precision, PrecisionPlan
from trt_bisect.preparation.experiment import Experiment, Setup
from trt_bisect.report.answer import ALL_HIGH, HALF, KNEE, PLAIN, RECIPE, UNQUANTIZED, FrontPoint
from trt_bisect.report.choices import kept_speed
from trt_bisect.report.words import over_inputs
from trt_bisect.support.progress import CHECKS
from trt_bisect.support.text import counted, percent, together

_CHECKED_AT_END = 4  # the number of candidate sets that are checked on all inputs after ``--time-limit``
# The number of plans between the ends of a Pareto front; the second if each plan takes an engine or an accuracy.
_POINTS, _FEW_POINTS = 12, 8
# Costs above this are rounded to 0.01 %: layers without a cost count 1e-6 each, so the sum can exceed 100 %.
_TO_TWO_DECIMALS = 0.01


class AnswerSearch:
    """Searches the answer in stages: call ``choose_ranges``, measure the curve elsewhere, call ``finish``.

    Attributes:
        effort: value of ``--effort``; becomes ``thorough`` from ``default`` for at most 16 units, and from any
            value if an accuracy decides or ``--budget`` is given.
        most: largest cost of a recipe (``--budget``), within which the most accurate plan is searched; None: the
            cheapest recipe is searched.
        target: judges plans, by default by similarity.
        on_answer: called with the answer so far, when full INT8 is known on all inputs and at each cheaper recipe.
        recipe: cheapest recipe so far; None without one.
    """

    space: Space

    def __init__(self, plans: AnswerPlans) -> None:
        options = plans.options
        self.plans, self.experiment = plans, plans.experiment
        self.effort, self.most = options.effort, options.most
        self.alone = EachAlone(plans)
        self.target: Target = SimilarityTarget(plans)
        self.on_answer: Callable[[Answer], None] | None = None
        self.tried: tuple[CalibratorTried, ...] = ()
        self.recipe: Recipe | None = None

    def choose_ranges(self) -> Experiment:
        """Chooses the ranges with which full INT8 passes or, if it misses with all ranges, loses least; returns the
        experiment with the ranges chosen.

        If an accuracy is the goal, the first ranges with which full INT8 reaches it are taken.

        Raises:
            BadInput: the layers that the user fixed in high precision cost more than ``--budget``.
        """
        plans, current = self.plans, self.experiment.ranges
        self.space = space = make_space(plans)
        if self.most is not None and space.spent > self.most:
            low = plans.experiment.network.low.precision
            raise BadInput(
                f"With the layers fixed in high precision the network {kept_speed(space.spent, low)}, "
                f"and the budget is {percent(self.most)}.",
                "Fix fewer layers, or give a larger --budget.",
            )
        if plans.switches:
            self._say_full()
        plans.judged = list(plans.inputs.first)
        candidates = plans.setup.data.candidates if space.units else ()
        others = [ranges for ranges in candidates if ranges.calibrator != current.calibrator]
        is_usual = self._by_similarity and self.most is None
        if not is_usual:
            self.effort = THOROUGH
        if plans.switches:
            plans.allowed = allowed(self.effort, len(space.units), len(plans.inputs.counting))
        if self.effort == DEFAULT and len(space.units) <= FEW_UNITS:
            self.effort = THOROUGH
        ranges, self.tried = choose_ranges(plans, space, [current, *others], self.named)
        self._take_ranges(ranges)
        if not self._by_similarity:
            for ranges in (self.experiment.ranges, *(row.ranges for row in self.tried if not self.named)):
                if self.target.check(plans.with_ranges(ranges), plans.full).meets(self.target.budget):
                    self._take_ranges(ranges)
                    break
        return self.experiment

    def _found_recipe(self, recipe: Recipe) -> None:
        layers, cost = len(recipe.high), recipe.cost
        if self.recipe is not None and cost >= self.recipe.cost:
            return
        self._know(recipe)
        self.recipe = recipe
        low, count = recipe.experiment.network.low.precision, len(self.plans.inputs.told)
        passes = f"passes on all {count} inputs" if self._by_similarity else "keeps the accuracy"
        self.plans.setup.progress.say(
            f"A recipe {passes}: with {counted(layers, 'layer')} in high precision it {kept_speed(cost, low)}"
        )
        self._tell()

    def _know(self, recipe: Recipe) -> None:
        # A stopped run needs these trials for its answer.
        self.plans.whole(self.plans.full, recipe.experiment)
        if not self._by_similarity:
            self.plans.whole(recipe.plan, recipe.experiment)

    def _tell(self) -> None:
        if self.on_answer is None:
            return
        space = self.space
        answer = self.so_far()
        self.space = space
        if answer is not None:
            self.on_answer(answer)

    def _say_full(self) -> None:
        plans, experiment, rule = self.plans, self.experiment, self.experiment.rule
        trial = plans.whole(plans.full, experiment)
        value = rule.similarity(trial)
        over = over_inputs(rule.by_input(trial), value, rule.text)
        figure = "no figure" if value is None else rule.text(value)
        low = experiment.network.low
        ranges, of_calibrator = experiment.ranges, experiment.ranges.calibrator is not None
        origin = f" with {'calibrator ' if of_calibrator else ''}{ranges.origin}" if low.needs_ranges else ""
        plans.setup.progress.say(f"Full {low.title}{origin}: {figure}{over}")
        self._tell()

    def _take_ranges(self, ranges: Ranges) -> None:
        if ranges.digest() != self.experiment.ranges.digest():
            changed = self.plans.setup.with_ranges(self.experiment, ranges)
            self._go_on_with(self.plans.setup.with_curve(changed))

    def _go_on_with(self, experiment: Experiment) -> None:
        if self.plans.switches:
            self.plans.whole(self.plans.full, experiment)  # for the answer of a stopped run
        self.experiment = experiment

    def _worst_inputs(self, count: int) -> list[int]:
        counting = self.plans.inputs.counting
        if len(counting) <= count:
            return list(counting)
        return sorted(self.plans.worst(self.plans.full, self.experiment.ranges)[:count])

    def finish(self) -> Answer:
        """Returns the answer: a recipe checked on all inputs, and for each of its layers the loss with this layer back
        in INT8.
        """
        if self.most is not None:
            return self._within(self.most)
        plans, target, budget = self.plans, self.target, self.target.budget
        self.space = replace(self.space, budget=budget)
        none_high = Recipe(self.space, frozenset(), self.experiment, budget).checked_by(target)
        if none_high.holds or not self.space.units:
            return self._answer(replace(none_high, meets=none_high.holds))
        plans.judged = sorted({*plans.judged, *self._worst_inputs(JUDGED)})
        plans.join(none_high.checked.missed)
        return self._answer(self._searched())

    def _searched(self) -> Recipe:
        plans = self.plans
        ranges = [self.experiment.ranges, *self._other_ranges(self.effort)]
        recipe, sets = searched(plans, self.target, self.space, ranges, self.effort, self._found_recipe)
        self.tried = tuple(
            with_recipe(row, plans, self.space, kept) if (kept := sets.get(row.ranges.digest())) else row
            for row in self.tried
        )
        if recipe.experiment is not self.experiment:
            self._go_on_with(recipe.experiment)
        if not recipe.holds:
            return recipe
        self._know(recipe)
        low = recipe.experiment.network.low.title
        plans.setup.progress.stage(f"Each layer of the recipe put back in {low}", len(recipe.kept))
        return with_all_put_back(self.target, recipe)

    def _other_ranges(self, effort: str) -> list[Ranges]:
        if self.named or effort == QUICK:
            return []
        in_use, all_of = self.experiment.ranges.digest(), effort == THOROUGH
        others = [row.ranges for row in self.tried if all_of or row.ranges.calibrator in PROMISING]
        return [ranges for ranges in others if ranges.digest() != in_use]

    def _within(self, most: float) -> Answer:
        plans, target, experiment, effort = self.plans, self.target, self.experiment, self.plans.options.effort
        self.space = space = replace(self.space, budget=target.budget)
        if effort == DEFAULT and len(space.units) <= FEW_UNITS and self._by_similarity:
            effort = THOROUGH
        others = self._other_ranges(effort)
        if others and target.check(experiment, plans.full).meets(target.budget):
            # The verdict is of full INT8 with the ranges of the plan: it must go on to pass.
            checks = [target.check(plans.with_ranges(ranges), plans.full) for ranges in others]
            others = [of for of, check in zip(others, checks, strict=True) if check.meets(target.budget)]
        plans.judged = sorted({*plans.judged, *self._worst_inputs(JUDGED)})
        space = in_half(plans, target, space, experiment.ranges) or space
        kept, ranges = most_accurate(plans, target, space, [experiment.ranges, *others], effort, most)
        if ranges is not experiment.ranges:
            experiment = plans.with_ranges(ranges)
            self._go_on_with(experiment)
        recipe = Recipe(space, kept, experiment, target.budget).checked_by(target)
        put_back = dict[int, PutBack]()
        if recipe.holds:
            self._found_recipe(recipe)
        # If the plan misses, putting a layer back shows nothing.
        for unit in sorted(kept) if recipe.holds else ():
            put_back[unit] = target.put_back(space.plan(kept - {unit}), experiment)
        return self._answer(in_fp16(replace(recipe, meets=recipe.holds, put_back=put_back), plans, target))

    def so_far(self, settled: Recipe | None = None) -> Answer | None:
        """Returns the answer of a stopped search; None if full INT8 or the recipe was not measured on all inputs.

        Args:
            settled: result of ``settle``: those of its layers without which it is known to miss are measured back
                in INT8 on all inputs. None: nothing is measured, and the recipe is the cheapest plan known to pass on
                all inputs in at least one setting.
        """
        plans = self.plans
        if self.target.known(self.experiment, plans.full) is None:
            return None
        self.space = replace(self.space, budget=self.target.budget)
        recipe, put_back = settled or self._known_recipe(), dict[int, PutBack]()
        if recipe.meets and self._by_similarity:
            experiment, kept = recipe.experiment, recipe.kept
            for unit in sorted(kept):
                plan = recipe.space.plan(kept - {unit})
                loss = plans.each(experiment.ranges).least_loss(plan, plans.inputs.counting)
                if loss is not None and loss > self.space.budget:
                    put_back[unit] = self.target.put_back(plan, experiment, to_the_end=bool(settled))
        recipe = replace(recipe, aim=self.space.budget, put_back=put_back, reserve=0.0, cheapest=None)
        answer = self._made(recipe, plans.known)
        return None if answer is None else replace(answer, not_done=tuple(self._not_done(answer)))

    def settle(self) -> Recipe:
        """Returns the recipe of a search that ran out of time, measured on all inputs: the cheapest plan tried that
        passes; else a plan with more layers in high precision, which may miss.
        """
        plans, target, in_use = self.plans, self.target, self.experiment.ranges
        plans.whole(plans.full, self.experiment)
        target.figure(plans.full, 0.0, in_use)
        self.space = space = replace(self.space, budget=target.budget)
        recipe, sets = self.recipe, self._sets_that_hold(plans.judged or plans.inputs.counting)
        for kept, ranges in sets[:_CHECKED_AT_END]:
            checked = Recipe(space, kept, plans.with_ranges(ranges), space.budget).checked_by(target)
            if checked.holds:
                recipe = checked
                break
        if recipe is None:
            kept, ranges = sets[0] if sets else (frozenset[int](), in_use)
            start = Recipe(space, kept, plans.with_ranges(ranges), space.budget)
            by_unit = {unit: plans.each(ranges).by_place(space.plan(space.all - {unit})) for unit in space.all}
            alone = {unit: max(losses.values()) for unit, losses in by_unit.items() if losses}
            larger = with_more_high(target, start, math.inf if self.most is None else self.most, alone)
            recipe = replace(larger, meets=larger.holds)
        for plan in (plans.full, recipe.plan):
            plans.whole(plan, recipe.experiment)
        return recipe

    def _known_recipe(self) -> Recipe:
        plans, target, space = self.plans, self.target, self.space
        counting, in_use = plans.inputs.counting, self.experiment.ranges
        for kept, ranges in self._sets_that_hold(counting):
            experiment = plans.with_ranges(ranges)
            checked = target.known(experiment, space.plan(kept))
            is_known = plans.known(plans.full, experiment) is not None or not self._by_similarity
            if is_known and checked is not None and checked.meets(space.budget):
                return Recipe(space, kept, experiment, space.budget, checked)
        if self.recipe is not None:
            return self.recipe
        checked = target.known(self.experiment, plans.full) or NOT_CHECKED
        least = plans.each(in_use).least_loss(plans.full, counting) if self._by_similarity else None
        meets = checked.meets(space.budget) and (least is None or least <= space.budget)
        return Recipe(space, frozenset(), self.experiment, space.budget, checked, meets)

    def _sets_that_hold(self, among: Sequence[int]) -> list[tuple[Kept, Ranges]]:
        plans, space, in_use = self.plans, self.space, self.experiment.ranges
        if self._by_similarity:
            others = () if self.named else (*(row.ranges for row in self.tried), *plans.setup.data.candidates)
            by_digest = {ranges.digest(): ranges for ranges in (in_use, *others)}
            sets = [
                (self._kept_high(plan), ranges)
                for ranges in by_digest.values()
                for plan in plans.meeting(ranges, among)
            ]
        else:
            sets = [(frozenset[int](), in_use)]
        most = math.inf if self.most is None else self.most
        # The set of all units is measured only to learn whether a recipe exists.
        below = (math.inf, 0) if self.recipe is None else self.recipe.space.order(self.recipe.kept)
        sets = [
            (kept, ranges)
            for kept, ranges in sets
            if kept != space.all and space.cost(kept) <= most and space.order(kept) < below
        ]
        return sorted(sets, key=lambda pair: space.order(pair[0]))

    def _kept_high(self, plan: PrecisionPlan) -> Kept:
        return frozenset(unit for unit, layers in enumerate(self.space.units) if plan.lowered.isdisjoint(layers))

    def _not_done(self, answer: Answer) -> Iterator[str]:
        if not answer.meets:
            yield "no recipe was found yet"
        elif answer.recipe.kept:
            yield f"the recipe was not shown to be the {'cheapest' if self.most is None else 'most accurate'}"
        if answer.untested:
            yield f"not tested by putting them back: {len(answer.untested)} of its {len(answer.recipe.high)} layers"
        if answer.meets and self._by_similarity:
            recipe = answer.recipe
            settings = [
                *deciding_settings(self.plans, recipe.experiment),
                *self._further_settings(recipe.plan, recipe.experiment),
            ]
            missing = [name for name in settings if name not in recipe.checked.losses]
            if missing:
                yield f"{answer.plan} was not checked with {together(missing)}"
        if self.plans.setup.data.held_out is not None:
            yield "held-out inputs were not measured"

    @property
    def _by_similarity(self) -> bool:
        return isinstance(self.target, SimilarityTarget)

    @property
    def named(self) -> bool:
        """True if the user named a calibrator or gave ranges; the search then tries no others."""
        setup = self.plans.setup
        return setup.options.calibrator != AUTO or not setup.data.candidates

    def _answer(self, recipe: Recipe) -> Answer:
        plans, experiment = self.plans, recipe.experiment
        plans.setup.forecast.begins(CHECKS)
        plan = recipe.plan
        held_out = None if plans.held_out is None else plans.whole(plan, experiment, plans.held_out, "held-out inputs")
        meets = recipe.meets and recipe.holds
        if self._by_similarity and (recipe.kept or not meets):
            self.tried = with_confirmed(plans, recipe.space.budget * SAFETY, self.tried)
        recipe = replace(recipe, meets=meets)
        answer = self._made(recipe, plans.whole)
        assert answer is not None
        further = {setting: measure() for setting, measure in self._further_settings(plan, experiment).items()}
        answer = replace(
            answer, plain=further.get(PLAIN), unquantized=further.get(UNQUANTIZED), half=further.get(HALF, (None,))[0]
        )
        return replace(answer, held_out=held_out, held_out_inputs=plans.held_out)

    def _further_settings(self, plan: PrecisionPlan, experiment: Experiment) -> dict[str, Callable[[], Any]]:
        plans, measures = self.plans, dict[str, Callable[[], Any]]()
        if plans.switches and plans.has_plain(plan, experiment):
            measures[PLAIN] = partial(plans.plain, plan, experiment)
        if not self._by_similarity:
            return measures
        rounding = with_unquantized_rounded(plans.setup.options, experiment, plan)
        if rounding is not None:
            build = partial(rounding.build, plan)
            measures[UNQUANTIZED] = partial(plans.whole, plan, experiment, kind="unquantized", build=build)
        has_half = not {Precision.FP16, Precision.BF16}.isdisjoint(plan.precisions)
        if has_half and plans.switches and experiment.ranges.scales:
            measures[HALF] = partial(plans.nudged, plan, experiment.ranges, to_the_end=True, by=HALF_NUDGE)
        return measures

    def _made(self, recipe: Recipe, trial_of: Callable[[PrecisionPlan, Experiment], Trial | None]) -> Answer | None:
        # both trials are of the recipe's experiment, so that their ranges are the same
        full, restored = (trial_of(plan, recipe.experiment) for plan in (self.plans.full, recipe.plan))
        if full is None or restored is None:
            return None
        space = recipe.space
        return Answer(
            recipe=recipe,
            full=full,
            restored=restored,
            put_back={
                unit: self.target.figure(space.plan(recipe.kept - {unit}), back.loss, recipe.experiment.ranges)
                for unit, back in recipe.put_back.items()
                if back.loss is not None
            },
            tried=self.tried,
            inputs=self.plans.inputs,
            judged=len({*self.plans.judged}.intersection(self.plans.inputs.told)),
            has_held_out=self.plans.setup.data.held_out is not None,
            most=self.most,
            by_accuracy=not self._by_similarity,
        )


@contextmanager
def answer_search(setup: Setup, experiment: Experiment, options: RunOptions) -> Iterator[AnswerSearch]:
    """Yields the search of the answer, with FP32's outputs for all given inputs and the layers' costs.

    Raises:
        BadInput: the costs of the layers cannot be known as the options ask.
    """
    with answer_inputs(setup, experiment) as inputs:
        yield AnswerSearch(answer_plans(setup, options, experiment, inputs))


def measure_front(answering: AnswerSearch, answer: Answer) -> tuple[FrontPoint, ...]:
    """Measures plans between full INT8 and all layers in high precision. Returns, by rising cost, those on the Pareto
    front and those with a name (full INT8, all in high precision, the recipe, the knee).
    """
    plans, target, experiment = answering.plans, answering.target, answer.experiment
    recipe, ranges, network = answer.recipe, experiment.ranges, experiment.network
    space = replace(recipe.space, others={})
    few = not plans.switches or answer.by_accuracy
    alone = answering.alone.sensitivities(space, ranges)
    steps = path(space, recipe.kept, alone, _FEW_POINTS if few else _POINTS)
    plans.setup.progress.stage("Measuring the front", None)
    all_high = space.plan(space.all)
    ends = {
        f"all {network.low.title}": (plans.full, answer.full),
        ALL_HIGH: (all_high, plans.whole(all_high, experiment)),
        RECIPE: (recipe.plan, answer.restored),
    }

    def losses(batch: Sequence[PrecisionPlan]) -> list[Loss]:
        if answer.by_accuracy:
            return target.losses(batch, ranges)
        return plans.losses(batch, ranges, plans.inputs.counting, to_the_end=True)

    by_plan = {
        plan: losses([plan])[0] if answer.by_accuracy else experiment.rule.loss(trial) for plan, trial in ends.values()
    }
    others = [plan for plan in dict.fromkeys(map(space.plan, steps)) if plan not in by_plan]
    by_plan |= dict(zip(others, losses(others), strict=True))
    points = [Point(plan, plans.cost(plan), math.inf if loss is None else loss) for plan, loss in by_plan.items()]
    front = pareto(points)
    bend = knee(front, space.budget)
    names: dict[PrecisionPlan, list[str]] = {}
    for name, plan in (*((name, plan) for name, (plan, _) in ends.items()), *([(KNEE, bend.plan)] if bend else [])):
        names.setdefault(plan, []).append(name)
    return tuple(
        FrontPoint(
            round(point.cost, 4) if point.cost > _TO_TWO_DECIMALS else point.cost,
            target.figure(point.plan, point.loss, ranges),
            point.loss,
            tuple(names.get(point.plan, ())),
            {
                network.layers[k].name: str(point.plan.precisions[k])
                for k in network.quantizable
                if k not in point.plan.lowered
            },
        )
        for point in sorted(points, key=lambda point: (point.cost, point.loss))
        if point in front or point.plan in names
    )
