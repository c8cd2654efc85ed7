"""The front of accuracy against cost: from all layers low to none, by way of the recipe, every plan measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from trt_bisect.answer.answer import AnswerSearch
from trt_bisect.answer.result import Answer
from trt_bisect.driver.search import Loss
from trt_bisect.driver.search_space import Point, knee, pareto, path
from trt_bisect.evaluator.trial import Trial
from trt_bisect.precision import Precision, PrecisionPlan
from trt_bisect.preparation.experiment import Experiment
from trt_bisect.report.answer import ALL_HIGH, KNEE, RECIPE, FrontPoint, Move

_POINTS, _POINTS_DEAR = 12, 8
"""The number of plans between the ends of a front; the second where each takes an engine or an accuracy."""
_TO_TWO_DECIMALS = 0.01
"""From this cost on two decimals of a per cent are told: layers that cost nothing count a millionth each, which would
make 100.0011 % of all layers."""


def measure_front(answering: AnswerSearch, answer: Answer) -> tuple[FrontPoint, ...]:
    """Measures plans on all inputs given; returns those that no other one beats and those with a name.

    Args:
        answering: the search that found the answer.
        answer: the answer; the front has the scales of its recipe.
    """
    plans, target, ranges = answering.plans, answering.target, answer.experiment.ranges
    space = replace(answer.space, others={})
    few = not plans.switches or answer.by_accuracy
    alone = answering.alone.sensitivities(space, ranges)
    steps = path(space, answer.kept, alone, _POINTS_DEAR if few else _POINTS)
    plans.setup.progress.stage("Measuring the front", None)
    all_high = space.plan(space.all)
    ends = {
        f"all {answer.experiment.network.low.title}": (plans.full, answer.full),
        ALL_HIGH: (all_high, plans.whole(all_high, answer.experiment, plans.inputs.given, "all inputs")),
        RECIPE: (answer.plan, answer.restored),
    }

    def losses(batch: Sequence[PrecisionPlan]) -> list[Loss]:
        if answer.by_accuracy:
            return target.losses(batch, ranges)
        return plans.losses(batch, ranges, plans.inputs.counting, to_the_end=True)

    def on_own_engine(plan: PrecisionPlan, trial: Trial) -> Loss:
        return losses([plan])[0] if answer.by_accuracy else answer.experiment.rule.loss(trial)

    known = {plan: on_own_engine(plan, trial) for plan, trial in ends.values()}
    others = [plan for plan in dict.fromkeys(map(space.plan, steps)) if plan not in known]
    known |= dict(zip(others, losses(others), strict=True))
    points = [Point(plan, plans.price(plan), math.inf if loss is None else loss) for plan, loss in known.items()]
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
            _high(answer.experiment, point.plan),
        )
        for point in sorted(points, key=lambda point: (point.cost, point.loss))
        if point in front or point.plan in names
    )


def _high(experiment: Experiment, plan: PrecisionPlan) -> Mapping[str, str]:
    network = experiment.network
    high: dict[str, Precision] = {
        network.layers[k].name: plan.precisions[k] for k in network.quantizable if k not in plan.lowered
    }
    return {name: str(precision) for name, precision in high.items()}


def moves_of(answer: Answer) -> tuple[Move, ...]:
    """Returns the tensors that a recipe gives the scale of another calibrator than that of its ranges."""
    ranges, tried = answer.experiment.ranges, [row.ranges for row in answer.tried]
    before = next((candidate.scales for candidate in tried if candidate.calibrator == ranges.calibrator), ranges.scales)
    return tuple(
        Move(
            tensor,
            next(candidate.origin for candidate in tried if candidate.scales.get(tensor) == scale),
            float(before[tensor]),
            float(scale),
        )
        for tensor, scale in ranges.scales.items()
        if scale != before[tensor]
    )
