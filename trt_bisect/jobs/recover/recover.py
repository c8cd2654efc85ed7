"""The best recipe: the plan that meets a target at the least cost in speed, or the most accurate one within a cost."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trt_bisect.analyzer.judge import Rule
from trt_bisect.analyzer.slices import output_of
from trt_bisect.analyzer.user_code import code_digest, is_reusable
from trt_bisect.builder.base import MEASURED
from trt_bisect.calibration.collect import recalibrated
from trt_bisect.data.datasets import Dataset, open_dataset
from trt_bisect.data.staged import content_of
from trt_bisect.data.user_functions import load_function
from trt_bisect.driver.culprits.search import Loss
from trt_bisect.errors import BadInput
from trt_bisect.evaluator.accuracy import Accuracy, AccuracyEvaluator, read_labels, top1
from trt_bisect.evaluator.speed import measure_times
from trt_bisect.jobs.experiment import Experiment
from trt_bisect.jobs.options.commands import MACS, MEASURED_TIME, RecoverOptions
from trt_bisect.jobs.options.concerns import AUTO
from trt_bisect.jobs.options.signatures import takes
from trt_bisect.jobs.preparation import Preparation
from trt_bisect.jobs.recover.build_report import Found, recovery_verdict, stopped_recovery
from trt_bisect.jobs.recover.recalibration import Recalibrations, needed, suggest
from trt_bisect.jobs.recover.recipe_search import Costs, RecipeGoal, RecipeResult, make_space, seek
from trt_bisect.jobs.recover.targets import AccuracyTarget, SimilarityTarget, Target
from trt_bisect.jobs.workspace import working_in
from trt_bisect.model.cost import shares, times_by_macs, times_from_csv
from trt_bisect.model.network import Network, load_network
from trt_bisect.model.shapes import facts_for
from trt_bisect.model.together import units
from trt_bisect.precision import Precision, PrecisionPlan
from trt_bisect.results.recovery import Recovery
from trt_bisect.results.summary import listed
from trt_bisect.support.files import make_folder
from trt_bisect.support.progress import default_progress

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from trt_bisect.jobs.options.keywords import RecoverKeywords


@takes(RecoverOptions)
def recover(
    model: str | Path | Network, calibration: Any = None, inputs: Any = None, **options: Unpack[RecoverKeywords]
) -> Recovery:
    """Finds the plan that meets the target at the least cost in speed, every step back from it measured to miss.

    Args:
        model: an FP32 ONNX file of opset 11 or later, or a loaded network.
        options: as listed.

    Raises:
        BadInput: something given cannot be used.
        EngineUnavailable: the engine cannot be used here.
        NothingMeasured: the FP32 network itself could not be run.
    """
    given = {"calibration": calibration, "inputs": inputs, **options}
    return recover_with(model, RecoverOptions.given("recover", given))


def recover_with(model: str | Path | Network, options: RecoverOptions) -> Recovery:
    """Does what ``recover`` does."""
    _check(options)
    budget = None if options.budget is None else _share(options.budget, "budget")
    goal = RecipeGoal(options.highs, budget, options.blocks, options.plans)
    output = content_of(options.output)
    folder = None if output is None else make_folder(Path(output))
    with working_in(folder, options.progress or default_progress(), options.history) as shown:
        network = model if isinstance(model, Network) else load_network(model, options.shapes)
        preparation = Preparation(options, network, folder, shown)
        with preparation.opened(options.calibration, options.inputs, options.dataset) as experiment:
            found = _recovered(preparation, experiment, options, goal, lambda known: folder and known.save(folder))
        if folder is not None:
            found.save(folder)
    return found


def _check(options: RecoverOptions) -> None:
    if options.accuracy is not None and options.labels is not None:
        raise BadInput("Both an accuracy function and labels were given.", "Give one of --accuracy and --labels.")
    if options.labels is not None and options.dataset is None:
        raise BadInput("There are labels and no data set that they belong to.", "Give --dataset with its samples.")
    if options.accuracy is None and options.labels is None and (options.target is not None or options.drop is not None):
        raise BadInput(
            "An accuracy to reach was given, and nothing to measure it with.", "Give --accuracy or --labels as well."
        )
    if options.target is not None and options.drop is not None:
        raise BadInput("Both a least accuracy and a drop were given.", "Give one of --target and --drop.")


def _share(given: str | float, what: str) -> float:
    """``0.05``, or ``5%``."""
    text = str(given).strip()
    try:
        value = float(text[:-1]) / 100.0 if text.endswith("%") else float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        raise BadInput(f"The {what} '{given}' is no share.", f"Give --{what} as 0.05 or 5%, from 0 to 100%.")
    return value


def _recovered(
    preparation: Preparation,
    experiment: Experiment,
    options: RecoverOptions,
    goal: RecipeGoal,
    keep: Callable[[Recovery], object],
) -> Recovery:
    """The recovery. Where it is stopped after the search, ``keep`` is given what is known: the recipe, above all."""
    costs, origin = _costs(preparation, experiment, options.cost, goal)
    similarity = SimilarityTarget(experiment)
    accuracy = _accuracy(preparation, experiment, options)
    target = _target(experiment, similarity, accuracy, options)
    groups = units(experiment.network, options.together)
    space = make_space(experiment.network, groups, costs, goal, target.budget)
    sought = seek(experiment.network, space, costs, goal, target, similarity, preparation.progress)
    full = space.plan(frozenset())
    (loss,) = target.exact([full], lambda _: None)
    found = Found(experiment, target, sought, (target.figure(full), loss), {})
    try:
        if options.remedies and sought.kept and goal.most is None and preparation.calibration is not None:
            found = _recalibrated(preparation, found, options, goal, accuracy, costs)
        return recovery_verdict(preparation, found, experiment, goal, costs, origin)
    except KeyboardInterrupt:
        keep(stopped_recovery(preparation, found, experiment, goal, costs, origin))
        preparation.progress.say(
            "The recipe is written as it was found; the front and the latencies are not measured yet"
        )
        raise


def _costs(preparation: Preparation, experiment: Experiment, cost: str | Path, goal: RecipeGoal) -> tuple[Costs, str]:
    network = experiment.network
    measured = experiment.builder.arithmetic == MEASURED
    if cost == MEASURED_TIME or (cost == AUTO and measured):
        preparation.progress.stage("Timing the layers", None)
        high = {Precision.FP32, *goal.high}
        return shares(measure_times(experiment.builder, network, high, experiment.feeds[0])), MEASURED_TIME
    if cost in (AUTO, MACS):
        return shares(times_by_macs(network, facts_for(network, experiment.feeds[0]))), MACS
    times = times_from_csv(Path(cost), network)
    for k, by in times.items():
        for precision in goal.high:
            if precision not in by:
                raise BadInput(
                    f"'{cost}' has no time of layer '{network.layers[k].name}' in {precision}.",
                    "Add a column fp16, or use --precision fp32.",
                )
    return shares(times), str(cost)


def _accuracy(preparation: Preparation, experiment: Experiment, options: RecoverOptions) -> Accuracy | None:
    if options.accuracy is not None:
        own = options.accuracy
        function = load_function(own, "accuracy function") if isinstance(own, str) else own
        code = code_digest(function)
        if not is_reusable(code):
            preparation.notes.append("what the accuracy function uses cannot all be seen: another run measures it anew")
        return Accuracy(function, code)
    if options.labels is None:
        return None
    labels = (
        read_labels(Path(options.labels)) if isinstance(options.labels, (str, Path)) else np.asarray(options.labels)
    )
    output = output_of(experiment.rule.outputs[0])
    classes = experiment.classes[output]
    if classes.axis is None:
        raise BadInput(
            f"Which axis of output '{output}' holds its classes cannot be told.",
            "Give --class-axis, or --accuracy with a function of yours.",
        )
    samples, labels = _without_unseen(preparation, open_dataset(options.dataset, experiment.network.inputs), labels)
    return top1(samples, labels, output, classes.predicted, str(classes))


def _without_unseen(preparation: Preparation, data: Dataset, labels: np.ndarray) -> tuple[Dataset, np.ndarray]:
    """The samples that may be judged, with their labels: as many for each sample as there are rows in it."""
    samples = preparation.without_unseen(data)
    holdout = preparation.holdout
    if samples is data or holdout is None or holdout.unseen is None:
        return data, labels
    places = [samples.place(position) for position in range(samples.length or 0)]
    total = len(places) + (holdout.unseen.length or 0)
    return samples, labels if len(labels) % total else labels.reshape(total, -1)[places].reshape(-1)


def _target(
    experiment: Experiment, similarity: SimilarityTarget, accuracy: Accuracy | None, options: RecoverOptions
) -> Target:
    if accuracy is None:
        return similarity
    evaluator = AccuracyEvaluator(accuracy, experiment.whole, experiment.store)
    relative = isinstance(options.drop, str) and options.drop.strip().endswith("%")
    drop = 0.0 if options.drop is None else _share(options.drop, "drop")
    return AccuracyTarget(evaluator, similarity, options.target, drop, relative=relative)


def _recalibrated(
    preparation: Preparation,
    found: Found,
    options: RecoverOptions,
    goal: RecipeGoal,
    accuracy: Accuracy | None,
    costs: Costs,
) -> Found:
    """The recipe with scales chosen anew, if that makes it cheaper; else the one that was found."""
    experiment, sought = found.experiment, found.sought
    seen = preparation.magnitudes
    assert seen is not None

    def other(moves: Recalibrations) -> tuple[Experiment, Target, SimilarityTarget]:
        changed = preparation.in_pieces(
            preparation.with_ranges(experiment, recalibrated(experiment.ranges, seen, moves))
        )
        similarity = SimilarityTarget(changed)
        return changed, _target(changed, similarity, accuracy, options), similarity

    def measure(moves: Recalibrations, plan: PrecisionPlan) -> Loss:
        whole = (
            preparation.with_ranges(experiment, recalibrated(experiment.ranges, seen, moves)).whole
            if moves
            else experiment.whole
        )
        return experiment.rule.loss(whole.measure(plan))

    preparation.progress.stage("Trying other scales", None)
    best = found
    for moves in suggest(experiment.network, experiment.ranges, seen, sought, measure, preparation.progress.step):
        changed, target, similarity = other(moves)
        again = seek(experiment.network, sought.space, costs, goal, target, similarity, preparation.progress)
        if not _beats(again, best.sought):
            continue
        better = _fewest_recalibrations(
            replace(found, experiment=changed, target=target, sought=again, moves=moves), other
        )
        if accuracy or _holds_elsewhere(preparation, found, better):
            best = better
    return best


def _beats(one: RecipeResult, other: RecipeResult) -> bool:
    """Returns true if a recipe meets the target where the other misses it, or is cheaper."""
    if one.meets != other.meets:
        return one.meets
    return one.space.price(frozenset(one.kept)) < other.space.price(frozenset(other.kept))


def _fewest_recalibrations(
    found: Found, other: Callable[[Recalibrations], tuple[Experiment, Target, SimilarityTarget]]
) -> Found:
    """The same recipe without the single moves that it does not need."""
    plan, budget = found.sought.plan, found.sought.space.budget

    def good(moves: Recalibrations) -> bool:
        (loss,) = other(moves)[1].exact([plan], lambda _: None)
        return loss is not None and loss <= budget

    moves = needed(found.moves, good) if found.sought.meets else found.moves
    if moves == found.moves:
        return found
    changed, target, _ = other(moves)
    back = found.sought.back
    losses = target.exact([plan, *(each for each, _ in back.values())], lambda _: None)
    sought = replace(
        found.sought,
        loss=losses[0],
        back={unit: (each, loss) for (unit, (each, _)), loss in zip(back.items(), losses[1:], strict=True)},
    )
    return replace(found, experiment=changed, target=target, sought=sought, moves=moves)


def _holds_elsewhere(preparation: Preparation, found: Found, better: Found) -> bool:
    """Returns true if new scales are good on the whole data set too, or as good there as the old ones."""
    data, rule = found.experiment.data, found.experiment.rule
    assert data is not None
    worst = []
    for each in (found, better):
        high = [k for k in each.experiment.network.quantizable if k not in each.sought.plan.int8]
        preparation.progress.stage("Judging the recipe on all samples", data.length)
        builder = preparation.builder_for(each.experiment.builder.engine, each.experiment.ranges, data)
        worst.append(preparation.find_worst(builder, data, 1, high))
    losses = [max(map(_loss(rule), each.similarities)) for each in worst]
    if losses[1] <= max(losses[0], rule.budget):
        return True
    preparation.notes.append(
        f"other scales for {listed(tuple(better.moves), 3)} would make the recipe cheaper, but with them sample "
        f"{data.place(worst[1].places[0])} of {data.source} is worse than the threshold: they are not taken"
    )
    return False


def _loss(rule: Rule) -> Callable[[float], float]:
    return lambda value: math.inf if math.isnan(value) else rule.metric.loss(value)
