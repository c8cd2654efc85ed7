"""The best recipe: the plan that meets a target at the least cost in speed, or the most accurate one within a cost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from trt_bisect.builder.base import MEASURED
from trt_bisect.data.named import content_of
from trt_bisect.driver.recipes.local_search import FEW_UNITS
from trt_bisect.driver.recipes.search_space import Space
from trt_bisect.errors import BadInput
from trt_bisect.evaluator.accuracy import Accuracy
from trt_bisect.evaluator.speed import measure_times
from trt_bisect.jobs.accuracy import asked_accuracy, refuse_accuracy
from trt_bisect.jobs.answer.answer import AnswerSearch, answer_search
from trt_bisect.jobs.answer.plans import AnswerPlans
from trt_bisect.jobs.answer.search import IMPROVEMENTS, Costs, make_space
from trt_bisect.jobs.experiment import Experiment
from trt_bisect.jobs.options.commands import RecoverOptions
from trt_bisect.jobs.options.concerns import AUTO, MACS, MEASURED_TIME, MIXED
from trt_bisect.jobs.options.declare import takes
from trt_bisect.jobs.preparation import Preparation
from trt_bisect.jobs.recover.accuracy_target import AccuracyTarget
from trt_bisect.jobs.recover.build_report import Found, recovery_verdict, stopped_recovery
from trt_bisect.jobs.workspace import working_in
from trt_bisect.model.cost import shares, times_by_macs, times_from_csv, units
from trt_bisect.model.network import Network
from trt_bisect.model.shapes import facts_for
from trt_bisect.precision import Precision
from trt_bisect.report.recovery import Recovery
from trt_bisect.report.tensorboard.board import open_board
from trt_bisect.report.tensorboard.recovery_logs import write_recovery
from trt_bisect.report.tensorboard.steps import steps_of
from trt_bisect.support.figures import percent
from trt_bisect.support.progress import default_progress

_PLANS_OF_FEW, _PLANS_DEAR = 400, 60
"""The number of plans by which the first recipe may be made cheaper: of at most ``FEW_UNITS`` units, and where each
plan takes an engine or an accuracy. Of more units as many as in ``run``: more only bring recipes so close to the target
that they miss it in the check. Figures: ``docs/benchmarks.md``."""


@takes(RecoverOptions)
def recover(model: str | Path | Network, options: RecoverOptions) -> Recovery:
    """Finds the plan that meets the target at the least cost in speed, every step back from it measured to miss.

    Args:
        model: an FP32 ONNX file of opset 9 or later, or a loaded network.
        options: as listed.

    Raises:
        BadInput: something given cannot be used.
        EngineUnavailable: the engine cannot be used here.
        NothingMeasured: the FP32 network itself could not be run.
    """
    return recover_with(model, options)


def recover_with(model: str | Path | Network, options: RecoverOptions) -> Recovery:
    """Does what ``recover`` does."""
    _check(options)
    refuse_accuracy(options)
    most = None if options.budget is None else _share(options.budget, "budget")
    output = content_of(options.output)
    folder = None if output is None else Path(output)
    board = open_board(options.tensorboard, options.tensorboard_channels)
    with working_in(folder, options.progress or default_progress(), options.history) as shown:
        network = options.network(model, options.shapes)
        preparation = Preparation(options, network, folder, shown)
        with preparation.opened(options.calibration, options.inputs, options.dataset) as experiment:
            found, chosen = _recovered(
                preparation, experiment, options, most, lambda known: folder and known.save(folder)
            )
        if folder is not None:
            found.save(folder)
        if board is not None:
            ranges = chosen.ranges.digest()
            steps = steps_of(chosen.store.trials, experiment.store.trials, chosen.rule, ranges)
            scales, memory = chosen.ranges.scales, options.memory_bytes
            write_recovery(board, chosen.network, scales, chosen.feeds, steps, found, shown, memory)
    return found


def _check(options: RecoverOptions) -> None:
    if options.accuracy is None and options.labels is None and (options.target is not None or options.drop is not None):
        raise BadInput("The target is an accuracy, and nothing measures it.", "Give --accuracy or --labels as well.")
    if options.target is not None and options.drop is not None:
        raise BadInput("--target and --drop exclude each other.", "Give one of --target and --drop.")


def _share(given: str | float, what: str) -> float:
    """``0.05``, or ``5%``."""
    text = str(given).strip()
    try:
        value = float(text[:-1]) / 100.0 if text.endswith("%") else float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        raise BadInput(f"The {what} '{given}' is not a share.", f"Give --{what} as 0.05 or 5%, from 0 to 100%.")
    return value


def _recovered(
    preparation: Preparation,
    experiment: Experiment,
    options: RecoverOptions,
    most: float | None,
    keep: Callable[[Recovery], object],
) -> tuple[Recovery, Experiment]:
    """The recovery, and the experiment with the recipe's ranges.

    Where it is stopped after the search, ``keep`` is given what is known: the recipe, above all.
    """
    costs, origin = _costs(preparation, experiment, options)
    accuracy = asked_accuracy(preparation, experiment, options)
    with answer_search(preparation, experiment) as answering:
        target = None if accuracy is None else _accuracy_target(answering.plans, accuracy, options)
        space = _space(answering.plans, options.together, costs, most)
        cheap = _PLANS_OF_FEW if len(space.units) <= FEW_UNITS else IMPROVEMENTS
        dear = target is not None or not answering.plans.switches
        answering.improvements = options.plans or (_PLANS_DEAR if dear else cheap)
        answering.single_scales = options.remedies
        answering.fp16 = costs if options.precision == MIXED else None
        answering.choose_ranges(space)
        if target is not None:
            answering.target = target
            _take_accurate_ranges(answering, target)
        chosen = answering.experiment
        answer = answering.finish() if most is None else answering.finish_within(most)
        precision = MIXED if options.precision == MIXED else str(options.high_precision)
        found = Found(answering.plans, answer, chosen, target, costs, origin, most, precision, answering.sensitivities)
        try:
            recovery = recovery_verdict(preparation, found)
        except KeyboardInterrupt:
            keep(stopped_recovery(preparation, found))
            preparation.progress.say("The recipe is written; the front and the latencies are not measured yet")
            raise
        answering.plans.give_back()
        return recovery, answer.experiment


def _space(plans: AnswerPlans, together: str, costs: Costs, most: float | None) -> Space:
    """The plans to choose from; raises BadInput if the layers that the user fixed leave no choice."""
    space = make_space(plans, units(plans.experiment.network, together), costs)
    if not space.units:
        raise BadInput("The precision of every layer is fixed, so there is nothing to search.", "Use 'trt-bisect run'.")
    if most is not None and space.spent > most:
        raise BadInput(
            f"The layers fixed in high precision cost {percent(space.spent)} of INT8's gain in speed, more than the "
            f"budget of {percent(most)}.",
            "Fix fewer layers, or give a larger --budget.",
        )
    return space


def _take_accurate_ranges(answering: AnswerSearch, target: AccuracyTarget) -> None:
    """Goes on with ranges with which full INT8 reaches the accuracy, if there are such."""
    full = answering.plans.full
    candidates = [] if answering.named else [one.ranges for one in answering.tried]
    for ranges in (answering.experiment.ranges, *candidates):
        if target.check(answering.plans.with_ranges(ranges), full).meets(target.budget):
            answering.take_ranges(ranges)
            break


def _costs(preparation: Preparation, experiment: Experiment, options: RecoverOptions) -> tuple[Costs, str]:
    network, low, cost, highs = experiment.network, experiment.network.low.precision, options.cost, options.highs
    measured, base = experiment.builder.arithmetic == MEASURED, options.gain_over(network)
    if cost == MEASURED_TIME or (cost == AUTO and measured):
        preparation.progress.stage("Timing the layers", None)
        high = {Precision.FP32, base, *highs}
        times = measure_times(experiment.builder, network, high, experiment.feeds[0])
        return shares(times, low, base), MEASURED_TIME
    if cost in (AUTO, MACS):
        return shares(times_by_macs(network, facts_for(network, experiment.feeds[0])), low, base), MACS
    times = times_from_csv(Path(cost), network)
    for k, by in times.items():
        for precision in (base, *highs):
            if precision not in by:
                raise BadInput(
                    f"'{cost}' has no time of layer '{network.layers[k].name}' in {precision}.",
                    f"Add a column {precision}, or use --precision fp32 and --base fp32.",
                )
    return shares(times, low, base), str(cost)


def _accuracy_target(plans: AnswerPlans, accuracy: Accuracy, options: RecoverOptions) -> AccuracyTarget:
    relative = isinstance(options.drop, str) and options.drop.strip().endswith("%")
    drop = 0.0 if options.drop is None else _share(options.drop, "drop")
    return AccuracyTarget(plans, accuracy, options.target, drop, relative=relative)
