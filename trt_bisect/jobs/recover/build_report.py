"""Builds the report on the recipe that was found: the front, the figures, the files."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

from trt_bisect._version import versions
from trt_bisect.analyzer.doubts import NOT_LOW
from trt_bisect.analyzer.judge import ByInput
from trt_bisect.driver.recipes.front import Point, knee, pareto, path
from trt_bisect.driver.recipes.search_space import Sensitivities, Space
from trt_bisect.driver.suspects.search import Loss
from trt_bisect.evaluator.speed import Latencies, measure_latencies
from trt_bisect.evaluator.trial import Trial
from trt_bisect.jobs.answer.facts import answer_facts, obedience, similarity_of
from trt_bisect.jobs.answer.plans import AnswerPlans
from trt_bisect.jobs.answer.result import Answer
from trt_bisect.jobs.answer.search import Costs
from trt_bisect.jobs.experiment import Experiment, all_trials
from trt_bisect.jobs.preparation import Preparation
from trt_bisect.jobs.recipe_of import recipe_of
from trt_bisect.jobs.recover.accuracy_target import AccuracyTarget
from trt_bisect.model.network import Network
from trt_bisect.precision import PrecisionPlan
from trt_bisect.report.figure_text import ACCURACY
from trt_bisect.report.model import Accuracies, AnswerFacts, ByPlan
from trt_bisect.report.network_graph import graph_of
from trt_bisect.report.precision_check import dla_notes, float_kernel_notes, obedience_notes
from trt_bisect.report.recovery import (
    ALL_HIGH,
    KNEE,
    RECIPE,
    FrontPoint,
    LeftHigh,
    Measured,
    Move,
    Recovery,
    Target,
    recovery_lines,
)
from trt_bisect.report.summary import STOPPED, above_verdict, accuracy_line, base_line, fixed_lines, memory_notes
from trt_bisect.support.notes import RECIPE as RECIPE_NOTES
from trt_bisect.support.notes import Line, Note, noted

_POINTS, _POINTS_DEAR = 12, 8


@dataclass(frozen=True)
class Found:
    """A recipe, and what it was found on.

    Attributes:
        plans: measures.
        answer: the recipe.
        chosen: the experiment with the ranges that were chosen for the whole network.
        target: the accuracy that decides; None where the similarity does.
        costs: the costs of leaving layers high, from ``origin``.
        origin: ``macs``, ``measured`` or a file.
        most: the largest cost, where one was given.
        precision: the precision that layers may be left in, or ``mixed``.
        sensitivities: measures each unit alone, if that was not done yet; None if that is not done here.
    """

    plans: AnswerPlans
    answer: Answer
    chosen: Experiment
    target: AccuracyTarget | None
    costs: Costs
    origin: str
    most: float | None
    precision: str
    sensitivities: Callable[[], Sensitivities | None]

    @property
    def full(self) -> PrecisionPlan:
        """Every quantizable layer low."""
        return self.plans.full

    @property
    def space(self) -> Space:
        """The plans, in which layers that stay high are all in the highest precision."""
        return replace(self.answer.space, others={})

    def losses(self, asked: Sequence[PrecisionPlan]) -> list[Loss]:
        """Returns the losses of plans on all inputs."""
        ranges, counting = self.answer.experiment.ranges, self.plans.inputs.counting
        if self.target is not None:
            return self.target.losses(asked, ranges)
        return self.plans.losses(asked, ranges, counting, to_the_end=True)

    def figure_of(self, plan: PrecisionPlan, loss: Loss) -> float | None:
        """Returns the figure of a plan with a loss: the similarity, or the accuracy."""
        if loss is None or math.isinf(loss):
            return None
        if self.target is not None:
            return self.target.figure(plan, self.answer.experiment.ranges)
        return similarity_of(self.answer.experiment.rule, loss)

    def exactly(self, plan: PrecisionPlan, trial: Trial) -> Loss:
        """Returns the loss of a plan on its own engine, which its trial on all inputs has measured."""
        return self.answer.experiment.rule.loss(trial) if self.target is None else self.losses([plan])[0]


def recovery_verdict(preparation: Preparation, found: Found) -> Recovery:
    """Returns the report on a recipe, with the front and the latencies.

    Args:
        preparation: the preparation that it was found with.
        found: the recipe.
    """
    experiment = found.answer.experiment
    front = _front(preparation, found)
    latencies = measure_latencies(
        experiment.builder,
        experiment.network,
        found.answer.plan,
        experiment.whole.high,
        experiment.feeds[0],
        preparation.progress,
    )
    recovery = _recovery(preparation, found, front, latencies)
    return recovery.changed(lines=(*_base_lines(found, recovery.text), *recovery.lines))


def _base_lines(found: Found, text: Callable[[float | None], str]) -> list[Line]:
    """A line if the base, FP16 or BF16, is measured to miss the target with no layer low."""
    experiment = found.answer.experiment
    network = experiment.network
    if network.base_type is None:
        return []
    nothing = network.plan((), network.base or experiment.whole.high)
    (loss,) = found.losses([nothing])
    budget = experiment.rule.budget if found.target is None else found.target.budget
    if loss is not None and loss <= budget:
        return []
    figure = found.figure_of(nothing, loss)
    return [base_line(network, "no figure" if figure is None else text(figure))]


def stopped_recovery(preparation: Preparation, found: Found) -> Recovery:
    """Returns the report on a recipe as far as it is known when a run is stopped; nothing is measured.

    Args:
        preparation: the preparation that it was found with.
        found: the recipe.
    """
    answer = found.answer
    loss = _finite(found.exactly(answer.plan, answer.restored))
    network, all_high = answer.experiment.network, found.space.plan(found.space.all)
    front = (
        FrontPoint(
            plan_cost(answer.plan, found.costs),
            found.figure_of(answer.plan, loss),
            loss,
            (RECIPE,),
            _high(network, answer.plan),
        ),
        FrontPoint(plan_cost(all_high, found.costs), None, math.inf, (ALL_HIGH,), _high(network, all_high)),
    )
    recovery = _recovery(preparation, found, front, None)
    note = "stopped before the front and the latencies were measured: the same command continues"
    return recovery.changed(stopped=True, notes=(*recovery.notes, Note(STOPPED, note)))


def _recovery(
    preparation: Preparation, found: Found, front: tuple[FrontPoint, ...], latencies: Latencies | None
) -> Recovery:
    answer, first = found.answer, found.plans.experiment
    experiment, network = answer.experiment, answer.experiment.network
    files = recipe_of(preparation.options, answer, answer.plan)
    trials = all_trials(first, found.chosen, experiment)
    named, facts = {name: point for point in front for name in point.names}, _facts(found)
    obeyed = [*obedience_notes(network, trials, {}), *dla_notes(network, answer.full)]
    obeyed += float_kernel_notes(network, answer.full, answer.restored, latencies)
    recovery = Recovery(
        model=network.source,
        engine=experiment.builder.engine,
        typing=experiment.builder.typing,
        arithmetic=experiment.builder.arithmetic,
        metric=experiment.rule.metric.name,
        target=_target(found),
        figure=experiment.rule.metric.name if found.target is None else ACCURACY,
        costs=found.origin,
        precision=found.precision,
        measured=Measured(
            found.figure_of(found.full, found.exactly(found.full, answer.full)),
            found.figure_of(answer.plan, found.exactly(answer.plan, answer.restored)),
            named[ALL_HIGH].figure,
        ),
        by_input=_by_input(found),
        meets=answer.meets,
        minimal=answer.meets
        and not answer.untested
        and all(_misses(loss, answer) for loss in answer.taken_back.values()),
        cost=plan_cost(answer.plan, found.costs),
        high=_left_high(network, found),
        moves=_moves(found),
        front=front,
        latency=latencies,
        plans=len(trials),
        builds=sum(trial.builds for trial in trials),
        inferences=sum(trial.inferences for trial in trials),
        seconds=perf_counter() - preparation.began,
        notes=tuple(
            dict.fromkeys([*preparation.notes, *memory_notes(trials), *obeyed, *noted(RECIPE_NOTES, files.notes)])
        ),
        lines=(),
        versions={**versions(), **experiment.builder.versions},
        fingerprint=first.key,
        started=preparation.started,
        answer=facts,
        low=str(network.low.precision),
        part=network.part,
        accepted=preparation.options.accept,
        doubts=(*experiment.about.warnings, *(doubt.text for doubt in facts.doubts)),
    )
    above = [*above_verdict(experiment.about), *fixed_lines(network)]
    return recovery.changed(
        lines=(*above, *recovery_lines(recovery), *_accuracy_lines(recovery)),
        files=files,
        graph=graph_of(network, experiment.ranges.scales),
    )


def _accuracy_lines(found: Recovery) -> list[Line]:
    """The line on accuracies where an accuracy decides."""
    if found.figure != ACCURACY:
        return []
    return [accuracy_line(Accuracies(found.target.reference, found.measured.int8, found.measured.recipe))]


def _facts(found: Found) -> AnswerFacts:
    """The facts of the answer. Where an accuracy decides, no input is said to hold by itself."""
    facts = answer_facts(found.answer)
    if found.target is None:
        return facts
    doubts = tuple(Line(NOT_LOW, text) for text in obedience(found.answer)) if found.answer.meets else ()
    return replace(facts, given=None, unseen=None, settings={}, doubts=doubts)


def _by_input(found: Found) -> ByPlan[ByInput | None]:
    """The similarity on each of several inputs, for full INT8 and the recipe."""
    if found.target is not None:
        return ByPlan(None, None)
    rule = found.answer.experiment.rule
    return ByPlan(rule.by_input(found.answer.full), rule.by_input(found.answer.restored))


def _target(found: Found) -> Target:
    if found.target is not None:
        return Target(ACCURACY, found.target.least, found.target.reference, found.most)
    rule = found.answer.experiment.rule
    return Target("similarity", rule.threshold, rule.metric.perfect, found.most)


def _left_high(network: Network, found: Found) -> tuple[LeftHigh, ...]:
    answer, rows = found.answer, []
    for unit in answer.kept:
        loss = answer.taken_back.get(unit)
        figure = found.figure_of(answer.space.plan(answer.kept - {unit}), loss)
        for k in answer.space.units[unit]:
            precision, layer = answer.plan.precisions[k], network.layers[k]
            rows.append((k, LeftHigh(layer.name, layer.op_type, str(precision), found.costs[k][precision], figure)))
    return tuple(row for _, row in sorted(rows, key=lambda pair: pair[0]))


def _moves(found: Found) -> tuple[Move, ...]:
    """The scales of single tensors that another calibrator gives."""
    before, after = found.chosen.ranges.scales, found.answer.experiment.ranges.scales
    return tuple(
        Move(tensor, _origin(found, tensor), float(before[tensor]), float(scale))
        for tensor, scale in after.items()
        if scale != before[tensor]
    )


def _origin(found: Found, tensor: str) -> str:
    scale = found.answer.experiment.ranges.scales[tensor]
    return next(one.ranges.origin for one in found.answer.tried if one.ranges.scales.get(tensor) == scale)


def _front(preparation: Preparation, found: Found) -> tuple[FrontPoint, ...]:
    """The plans that no measured plan beats, with those that have a name; these are measured on their own engines."""
    answer, space, plans = found.answer, found.space, found.plans
    cheap = plans.switches and found.target is None
    steps = path(space, answer.kept, found.sensitivities(), _POINTS if cheap else _POINTS_DEAR)
    preparation.progress.stage("Measuring the front", None)
    all_high = space.plan(space.all)
    trials = {
        f"all {answer.experiment.network.low.title}": (found.full, answer.full),
        ALL_HIGH: (all_high, plans.whole(all_high, answer.experiment, plans.inputs.given, "all inputs")),
        RECIPE: (answer.plan, answer.restored),
    }
    known = {plan: found.exactly(plan, trial) for plan, trial in trials.values()}
    others = [plan for plan in dict.fromkeys(map(space.plan, steps)) if plan not in known]
    known |= dict(zip(others, found.losses(others), strict=True))
    points = [Point(plan, plan_cost(plan, found.costs), _finite(loss)) for plan, loss in known.items()]
    front = pareto(points)
    bend = knee(front, space.budget)
    names: dict[PrecisionPlan, list[str]] = {}
    for name, plan in (*((name, plan) for name, (plan, _) in trials.items()), *([(KNEE, bend.plan)] if bend else [])):
        names.setdefault(plan, []).append(name)
    network = answer.experiment.network
    return tuple(
        FrontPoint(
            point.cost,
            found.figure_of(point.plan, point.loss),
            point.loss,
            tuple(names.get(point.plan, ())),
            _high(network, point.plan),
        )
        for point in sorted(points, key=lambda point: (point.cost, point.loss))
        if point in front or point.plan in names
    )


def plan_cost(plan: PrecisionPlan, costs: Costs) -> float:
    """Returns the share of the low precision's gain in speed that a plan gives up."""
    return sum(by.get(plan.precisions[k], 0.0) for k, by in costs.items())


def _misses(loss: Loss, answer: Answer) -> bool:
    """True if a plan cannot be run, or loses more than the target and its margin allow."""
    return loss is None or loss > answer.space.budget * (1.0 - answer.margin.share)


def _finite(loss: Loss) -> float:
    return math.inf if loss is None else loss


def _high(network: Network, plan: PrecisionPlan) -> dict[str, str]:
    return {network.layers[k].name: str(plan.precisions[k]) for k in network.quantizable if k not in plan.lowered}
