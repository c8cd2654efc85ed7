"""Prepares the search of the answer: costs, the units to choose from, and the ranges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import fmean
from time import perf_counter

from trt_bisect.analyzer.doubts import doubts
from trt_bisect.analyzer.tasks.task import NEARBY
from trt_bisect.answer.costs import layer_costs, time_costs
from trt_bisect.answer.plans import AnswerInputs, AnswerPlans, noise_losses
from trt_bisect.answer.validation import check
from trt_bisect.calibration.histogram import Calibrator
from trt_bisect.calibration.ranges import Ranges
from trt_bisect.driver.search import Loss
from trt_bisect.driver.search_space import Kept, Space
from trt_bisect.model.cost import Costs
from trt_bisect.options.concerns import QUICK, RunOptions
from trt_bisect.precision import Precision, PrecisionPlan
from trt_bisect.preparation.experiment import Experiment, Setup
from trt_bisect.support.text import duration

Units = tuple[tuple[int, ...], ...]
Measure = Callable[[Sequence[PrecisionPlan]], Sequence[Loss]]
EXPENSIVE_RECIPE = 0.3  # the layers that make most of the cost are named for a recipe that costs more than this
# The calibrators with which a recipe is searched besides the ranges in use; one of them usually gives the cheapest
# recipe.
PROMISING = (Calibrator("entropy"), Calibrator("mse"), Calibrator("percentile", 99.99))
CHEAP_RECIPE = 0.15  # for a recipe that costs at most this, no change of the network is tried (``answer.candidates``)
# For a recipe of at most this many layers, no change of the network is tried: its culprits can be fixed at their cause.
FEW_LAYERS = 4
_MOST_JUDGED = 16  # the most inputs that a search usually judges, for the forecast of its time
SAFETY = 0.95  # the search for ranges aims at this share of the budget, as a margin for the noise of kernels
# The ranges in use come first if full INT8 leaves at least this share of the budget unused with them.
_RESERVE_IN_USE = 0.2
_LEAST_FORECAST = 5.0  # the time of a search is not forecast below this many seconds


@dataclass(frozen=True)
class CalibratorTried:
    """Full INT8 with the ranges of one calibrator, and the recipe that these ranges lead to.

    Attributes:
        loss: largest loss of full INT8 on the inputs that were run; None if it cannot run.
        inputs: the number of inputs that were run.
        meets: full INT8 meets the threshold on all inputs.
        cost, kept, mean: the cost, the high units and the mean loss of the recipe; None if none was searched.
        confirmed: true if full INT8 passes in all settings, without a doubt, and on held-out inputs; false if not; None
            if not tested.
    """

    ranges: Ranges
    loss: Loss
    inputs: int
    meets: bool
    cost: float | None = None
    kept: Kept | None = None
    mean: float | None = None
    confirmed: bool | None = None


def answer_plans(
    setup: Setup, options: RunOptions, experiment: Experiment, inputs: AnswerInputs, user: AnswerPlans | None = None
) -> AnswerPlans:
    """Returns the object that measures plans of the experiment on the given inputs, with the layers' costs.

    Args:
        user: the same for the user's network, if ``experiment`` has a changed network.

    Raises:
        BadInput: the costs of the layers cannot be known as the options ask.
    """
    if user is not None and len(user.experiment.network.layers) == len(experiment.network.layers):
        plans = AnswerPlans(setup, options, experiment, inputs, user.costs, cost_of=user.cost_of)
    else:
        timed = time_costs(options, experiment, None if user is None else user.experiment)
        costs = layer_costs(setup, options, experiment, timed)
        by_plan = timed.cost if timed is not None and timed.by_plan and options.by_time else None
        plans = AnswerPlans(setup, options, experiment, inputs, costs, cost_of=by_plan)
    if user is not None:
        plans.held_out, plans.varying = user.held_out, user.varying
    return plans


def make_space(plans: AnswerPlans) -> Space:
    """Returns the units to choose from, with their costs and the largest loss allowed; layers that the user fixed are
    no units.
    """
    experiment, costs = plans.experiment, plans.costs
    network, high = experiment.network, experiment.whole.high
    units = tuple((k,) for k in network.movable)
    fixed = {k: precision for k in network.quantizable if (precision := network.layers[k].fixed) is not None}
    spent = sum(costs[k].get(precision, 0.0) for k, precision in fixed.items())
    base, low = network.plan((), high), network.low.precision
    unit_costs, budget = costs_of(units, costs, high), experiment.rule.budget
    return Space(base, units, unit_costs, budget, low, high, spent=spent, cost_of=plans.cost_of)


def costs_of(units: Units, costs: Costs, high: Precision) -> tuple[float, ...]:
    """Returns the cost of each unit in the precision ``high``."""
    return tuple(sum(costs[k][high] for k in unit) for unit in units)


def choose_ranges(
    plans: AnswerPlans, space: Space, candidates: Sequence[Ranges], named: bool
) -> tuple[Ranges, tuple[CalibratorTried, ...]]:
    """Returns the ranges with which the search begins, and full INT8's result with each calibrator.

    With the ranges returned, full INT8 meets the threshold on all inputs or, if it does with none, has the smallest
    loss.

    Args:
        candidates: the ranges in use, then the others.
        named: the user named the ranges in use, which are kept.
    """
    progress, low = plans.setup.progress, plans.experiment.network.low
    progress.stage(f"Full {low.title}{' with each calibrator' if low.needs_ranges else ''}", len(candidates))
    began = perf_counter()
    tried = [_full_int8(plans, ranges) for ranges in candidates]
    # without a budget a search usually takes as many inferences as one of each layer on each judged input
    plans.setup.forecast.search(len(space.units) * min(len(plans.inputs.counting), _MOST_JUDGED))
    if named or len(tried) == 1:
        return tried[0].ranges, tuple(tried)
    passing = _passing(plans, space.budget * SAFETY, tried)
    if passing is not None:
        return passing.ranges, tuple(tried)
    if plans.switches:
        _say_how_long(plans, space, perf_counter() - began, sum(row.inputs for row in tried))
    if plans.switches and plans.options.effort == QUICK:
        # No other calibrator is searched.
        least = _losing_least(plans, candidates)
        running = [row.ranges for row in tried if row.loss is not None]
        known = {ranges.digest(): plans.loss(plans.full, ranges) for ranges in running}
        return least, tuple(_row(plans, row.ranges, known.get(row.ranges.digest())) for row in tried)
    return min(tried, key=_loss).ranges, tuple(tried)


def with_recipe(tried: CalibratorTried, plans: AnswerPlans, space: Space, kept: Kept) -> CalibratorTried:
    """Returns a calibrator's result with the recipe found with its ranges; ``kept`` are its units in high precision."""
    mean = fmean(plans.on_judged(space.plan(kept), tried.ranges))
    return replace(tried, cost=space.cost(kept), kept=kept, mean=mean)


def _passing(plans: AnswerPlans, aim: float, tried: Sequence[CalibratorTried]) -> CalibratorTried | None:
    doubted, meeting = [], _meeting(plans, aim, tried)
    for row in meeting:
        holds, is_doubted = holds_in_all_settings(plans, plans.full, row.ranges)
        if holds and not is_doubted:
            return row
        doubted += [row] if holds else []
    return next(iter((*doubted, *meeting)), None)


def with_confirmed(plans: AnswerPlans, aim: float, tried: Sequence[CalibratorTried]) -> tuple[CalibratorTried, ...]:
    """Returns the calibrators' results, in their order, with ``confirmed`` set for those tested. The best is tested
    first; the tests end once full INT8 is confirmed.

    Args:
        aim: a loss: if full INT8 with the ranges in use loses at most 80 % of it, these ranges are tested first.
    """
    rows = list(tried)
    for row in _meeting(plans, aim, tried):
        holds, is_doubted = holds_in_all_settings(plans, plans.full, row.ranges)
        held_out = plans.loss_on_held_out(plans.full, row.ranges) if holds and not is_doubted else inf
        confirmed = held_out <= plans.experiment.rule.budget
        rows[rows.index(row)] = replace(row, confirmed=confirmed)
        if confirmed:
            break
    return tuple(rows)


def holds_in_all_settings(plans: AnswerPlans, plan: PrecisionPlan, ranges: Ranges) -> tuple[bool, bool]:
    """Returns two bools: a plan meets the threshold in all settings; the plan does so with a doubt."""
    experiment, rule = plans.with_ranges(ranges), plans.experiment.rule
    holds = check(plans, experiment, plan).meets(rule.budget)
    return holds, holds and bool(doubts(rule, plans.whole(plan, experiment)))


def _meeting(plans: AnswerPlans, aim: float, tried: Sequence[CalibratorTried]) -> list[CalibratorTried]:
    jumps = plans.experiment.rule.metric.of_sums is None
    meeting = sorted((row for row in tried if row.meets), key=_loss)
    if tried[0].meets and not jumps and _loss(tried[0]) <= aim * (1.0 - _RESERVE_IN_USE):
        meeting.sort(key=lambda row: row is not tried[0])
    if jumps and sum(_loss(row) == _loss(meeting[0]) for row in meeting) > 1:
        meeting.sort(key=lambda row: (_loss(row), *_finer(plans, row.ranges)))
    return meeting


def _finer(plans: AnswerPlans, ranges: Ranges) -> tuple[float, float]:
    trial = plans.whole(plans.full, plans.with_ranges(ranges))
    task, apart = plans.experiment.task, 0.0
    if task is not None:
        apart = 1.0 - trial.outputs[task.entry].values.get(NEARBY, 1.0) if task.entry in trial.outputs else 1.0
    return apart, max(noise_losses(plans.experiment, trial.outputs), default=inf)


def _say_how_long(plans: AnswerPlans, space: Space, seconds: float, inferences: int) -> None:
    pace = seconds / max(inferences, 1)
    bound, counting = plans.allowed * pace, len(plans.inputs.counting)
    if space.has_many or plans.experiment.store.resumed or not _LEAST_FORECAST < bound < inf:
        return
    plans.setup.progress.say(
        f"The search will take up to {duration(bound)}: {len(space.units)} layers, {counting} inputs, "
        f"{1000 * pace:.0f} ms an inference (--effort; --time-limit ends it with the best recipe found)"
    )


def _loss(tried: CalibratorTried) -> float:
    return inf if tried.loss is None else tried.loss


def _losing_least(plans: AnswerPlans, candidates: Sequence[Ranges]) -> Ranges:
    # The inputs run so far are the worst of the ranges in use. So the ranges that look best run all inputs, and the
    # others the worst of these, until the ranges that look best are ones that ran all.
    ran_all = set[str]()
    while True:
        losses = [plans.losses([plans.full], ranges, plans.inputs.counting)[0] for ranges in candidates]
        bounds = [inf if loss is None else loss for loss in losses]
        best = candidates[bounds.index(min(bounds))]
        if best.digest() in ran_all:
            return best
        ran_all.add(best.digest())
        worst = plans.worst(plans.full, best)[:1]
        for ranges in candidates:
            plans.to_the_end([plans.full], ranges, worst)


def _full_int8(plans: AnswerPlans, ranges: Ranges) -> CalibratorTried:
    (loss,) = plans.losses([plans.full], ranges, plans.inputs.first)
    if loss is not None and loss <= plans.experiment.rule.budget:
        (loss,) = plans.losses([plans.full], ranges, plans.inputs.counting)
    return _row(plans, ranges, loss)


def _row(plans: AnswerPlans, ranges: Ranges, loss: Loss) -> CalibratorTried:
    meets = loss is not None and loss <= plans.experiment.rule.budget
    inputs = plans.each(ranges).by_place(plans.full).keys() - plans.inputs.given.empty
    return CalibratorTried(ranges, loss, len(inputs), meets)
