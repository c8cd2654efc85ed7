"""From the recipe that was sought to the report on it: the front, the figures, the files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from time import perf_counter
from typing import Any

from trt_bisect._version import versions
from trt_bisect.analyzer.front import Point, knee, pareto
from trt_bisect.driver.culprits.search import Loss
from trt_bisect.driver.recipes.front_path import path
from trt_bisect.evaluator.speed import Latencies, measure_latencies
from trt_bisect.jobs.experiment import Experiment
from trt_bisect.jobs.preparation import Preparation
from trt_bisect.jobs.recipe_of import recipe_of
from trt_bisect.jobs.recover.recalibration import Recalibrations
from trt_bisect.jobs.recover.recipe_search import Costs, RecipeGoal, RecipeResult, plan_cost
from trt_bisect.jobs.recover.targets import AccuracyTarget, Target
from trt_bisect.model.network import Network
from trt_bisect.precision import Precision, PrecisionPlan
from trt_bisect.results.network_graph import network_facts
from trt_bisect.results.recovery import (
    ALL_HIGH,
    ALL_INT8,
    ALL_INT8_ANEW,
    KNEE,
    RECIPE,
    FrontPoint,
    LeftHigh,
    Move,
    Recovery,
)
from trt_bisect.results.recovery_summary import recovery_summary
from trt_bisect.results.summary import memory_notes

_POINTS, _POINTS_DEAR = 24, 8
_MEASURED_AGAIN = 32


@dataclass(frozen=True)
class Found:
    """A recipe, and what it was found on.

    Attributes:
        experiment: with the ranges that the recipe needs.
        full: what full INT8 measures with the ranges as they came, and the loss of that.
        moves: the scales that were chosen anew.
    """

    experiment: Experiment
    target: Target
    sought: RecipeResult
    full: tuple[float | None, Loss]
    moves: Recalibrations


def recovery_verdict(
    preparation: Preparation, found: Found, before: Experiment, aim: RecipeGoal, costs: Costs, origin: str
) -> Recovery:
    """The report on a recipe.

    Args:
        preparation: that it was found in.
        found: the recipe.
        before: the experiment with the ranges as they came.
        aim: what was wanted.
        costs: of leaving layers high, from ``origin``.
        origin: ``macs``, ``measured`` or a file.
    """
    experiment = found.experiment
    front = _front(preparation, found, costs)
    latencies = measure_latencies(
        experiment.builder,
        experiment.network,
        found.sought.plan,
        experiment.whole.high,
        experiment.feeds[0],
        preparation.progress,
    )
    return _recovery(preparation, found, before, aim, costs, origin, front, latencies)


def stopped_recovery(
    preparation: Preparation, found: Found, before: Experiment, aim: RecipeGoal, costs: Costs, origin: str
) -> Recovery:
    """The report on a recipe as far as it is known when a run is stopped; nothing is measured.

    The arguments are those of ``recovery_verdict``.
    """
    target, sought = found.target, found.sought
    loss = math.inf if sought.loss is None else sought.loss
    known = {RECIPE: (sought.plan, target.figure(sought.plan), loss)}
    named = {**known, ALL_HIGH: (sought.space.plan(sought.space.all), None, math.inf)}
    front = tuple(
        FrontPoint(plan_cost(plan, costs), figure, loss, (name,), _high(found.experiment.network, plan))
        for name, (plan, figure, loss) in named.items()
    )
    recovery = _recovery(preparation, found, before, aim, costs, origin, front, None)
    note = "stopped before the front and the latencies were measured: the same command goes on from here"
    return replace(recovery, stopped=True, notes=(*recovery.notes, note))


def _recovery(
    preparation: Preparation,
    found: Found,
    before: Experiment,
    aim: RecipeGoal,
    costs: Costs,
    origin: str,
    front: tuple[FrontPoint, ...],
    latencies: Latencies | None,
) -> Recovery:
    experiment, target, sought = found.experiment, found.target, found.sought
    network = experiment.network
    files = recipe_of(preparation.options, experiment, sought.plan)
    trials = [trial for store in dict.fromkeys((before.store, experiment.store)) for trial in store.trials.values()]
    named = {name: point for point in front for name in point.names}
    recovery = Recovery(
        model=network.source,
        engine=experiment.builder.engine,
        typing=experiment.builder.typing,
        arithmetic=experiment.builder.arithmetic,
        metric=experiment.rule.metric.name,
        target=_target(experiment, target, aim),
        figure="accuracy" if isinstance(target, AccuracyTarget) else experiment.rule.metric.name,
        costs=origin,
        precision="mixed" if len(aim.high) > 1 else str(aim.high[0]),
        measured={
            "int8": found.full[0],
            "recipe": target.figure(sought.plan),
            "high": named[ALL_HIGH].figure,
        },
        by_input=_by_input(found, before),
        meets=sought.meets,
        minimal=sought.minimal,
        cost=plan_cost(sought.plan, costs),
        high=_left_high(network, target, sought, costs),
        moves=_moves(found, before),
        front=front,
        latency=None if latencies is None else {p: None if t is None else asdict(t) for p, t in latencies.items()},
        plans=len(trials),
        builds=sum(trial.builds for trial in trials),
        inferences=sum(trial.inferences for trial in trials),
        seconds=perf_counter() - preparation.began,
        notes=tuple(dict.fromkeys([*preparation.notes, *memory_notes(trials), *files.notes])),
        summary="",
        versions={**versions(), **experiment.builder.versions},
        fingerprint=experiment.key,
        started=preparation.started,
        files=files,
        graph=network_facts(network, before.ranges.scales),
    )
    return replace(recovery, summary=recovery_summary(recovery))


def _by_input(found: Found, before: Experiment) -> dict[str, Mapping[str, Any]]:
    """Notes on the similarity of the worst of several inputs, for full INT8 and the recipe."""
    if isinstance(found.target, AccuracyTarget):
        return {}
    everything, experiment = found.sought.space.plan(frozenset()), found.experiment
    both = {"int8": before.whole.measure(everything), RECIPE: experiment.whole.measure(found.sought.plan)}
    judged = {plan: experiment.rule.by_input(trial) for plan, trial in both.items()}
    return {plan: figures.facts() for plan, figures in judged.items() if figures is not None}


def _target(experiment: Experiment, target: Target, aim: RecipeGoal) -> dict[str, Any]:
    wanted: dict[str, Any] = {} if aim.most is None else {"most": aim.most}
    if isinstance(target, AccuracyTarget):
        return {"kind": "accuracy", "least": target.least, "reference": target.reference, **wanted}
    return {
        "kind": "similarity",
        "least": experiment.rule.threshold,
        "reference": experiment.rule.metric.perfect,
        **wanted,
    }


def _left_high(network: Network, target: Target, sought: RecipeResult, costs: Costs) -> tuple[LeftHigh, ...]:
    rows = []
    for unit in sought.kept:
        plan, loss = sought.back[unit]
        figure = None if loss is None else target.figure(plan)
        for k in sought.space.units[unit]:
            precision, layer = sought.plan.precisions[k], network.layers[k]
            rows.append((k, LeftHigh(layer.name, layer.op_type, str(precision), costs[k][precision], figure)))
    return tuple(row for _, row in sorted(rows, key=lambda pair: pair[0]))


def _moves(found: Found, before: Experiment) -> tuple[Move, ...]:
    scales, anew = before.ranges.scales, found.experiment.ranges.scales
    return tuple(
        Move(tensor, str(calibrator), float(scales[tensor]), float(anew[tensor]))
        for tensor, calibrator in found.moves.items()
    )


def _front(preparation: Preparation, found: Found, costs: Costs) -> tuple[FrontPoint, ...]:
    """The plans that no measured plan beats, each on a whole engine, with those that have a name.

    Where scales were chosen anew the plans are measured with these, and full INT8 without them stands first.
    """
    target, sought = found.target, found.sought
    space, budget = sought.space, sought.space.budget
    preparation.progress.stage("Measuring the front", None)
    on_the_way = path(space, sought.chosen, _POINTS if target.cheap else _POINTS_DEAR)
    plans = [space.plan(kept) for kept in {**dict.fromkeys(on_the_way), **dict.fromkeys(sought.chosen.losses)}]
    rough = target.choose(plans, lambda _: preparation.progress.step("a plan of the front"))
    likely = pareto(_points(plans, rough, costs))
    full = ALL_INT8_ANEW if found.moves else ALL_INT8
    named = {full: space.plan(frozenset()), ALL_HIGH: space.plan(space.all), RECIPE: sought.plan}
    again = list(dict.fromkeys([*named.values(), *(point.plan for point in _spread(likely))]))
    points = _points(again, _exactly(target, again, preparation), costs)
    front = pareto(points)
    bend = knee(front, budget)
    names: dict[PrecisionPlan, list[str]] = {}
    for name, plan in (*named.items(), *([(KNEE, bend.plan)] if bend else [])):
        names.setdefault(plan, []).append(name)
    shown = {point.plan: point for point in points if point in front or point.plan in names}
    figure, loss = found.full
    as_it_came = FrontPoint(0.0, figure, math.inf if loss is None else loss, (ALL_INT8,), {})
    measured = tuple(
        FrontPoint(
            point.cost,
            None if math.isinf(point.loss) else target.figure(point.plan),
            point.loss,
            tuple(names.get(point.plan, ())),
            _high(found.experiment.network, point.plan),
        )
        for point in sorted(shown.values(), key=lambda point: (point.cost, point.loss))
    )
    return (as_it_came, *measured) if found.moves else measured


def _exactly(target: Target, plans: Sequence[PrecisionPlan], preparation: Preparation) -> list[Loss]:
    return [target.exact([plan], lambda _: preparation.progress.step("a plan of the front"))[0] for plan in plans]


def _points(plans: Sequence[PrecisionPlan], losses: Sequence[Loss], costs: Costs) -> list[Point]:
    return [
        Point(plan, plan_cost(plan, costs), math.inf if loss is None else loss)
        for plan, loss in zip(plans, losses, strict=True)
    ]


def _spread(front: Sequence[Point]) -> list[Point]:
    """As many points of a front as are measured again, the ends among them."""
    if len(front) <= _MEASURED_AGAIN:
        return list(front)
    return [front[round(place * (len(front) - 1) / (_MEASURED_AGAIN - 1))] for place in range(_MEASURED_AGAIN)]


def _high(network: Network, plan: PrecisionPlan) -> dict[str, str]:
    return {
        network.layers[k].name: str(plan.precisions[k])
        for k in network.quantizable
        if plan.precisions[k] is not Precision.INT8
    }
