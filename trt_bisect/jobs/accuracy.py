"""The accuracy on labelled data: of FP32, of full INT8 and of the recipe."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from trt_bisect.analyzer.slices import output_of
from trt_bisect.data.datasets import Dataset
from trt_bisect.data.named import code_digest, is_reusable, load_function
from trt_bisect.errors import BadInput, NothingMeasured, TrialFailed
from trt_bisect.evaluator.accuracy import Accuracy, AccuracyEvaluator, accuracy_by_labels, accuracy_in, read_labels
from trt_bisect.jobs.answer.result import Answer
from trt_bisect.jobs.experiment import Experiment
from trt_bisect.jobs.options.commands import RunOptions
from trt_bisect.jobs.preparation import Preparation
from trt_bisect.precision import PrecisionPlan
from trt_bisect.report.answer import Accuracies
from trt_bisect.support.notes import ACCURACY, Note


def refuse_accuracy(options: RunOptions) -> None:
    """Raises BadInput if the accuracy function or the file of labels cannot be loaded: before anything is measured."""
    if isinstance(options.accuracy, str):
        load_function(options.accuracy, "accuracy function")
    if isinstance(options.labels, (str, Path)):
        read_labels(Path(options.labels))


def asked_accuracy(preparation: Preparation, experiment: Experiment, options: RunOptions) -> Accuracy | None:
    """Returns the accuracy of the user's function or labels; None without them.

    Raises:
        BadInput: the function or the labels cannot be used.
    """
    if options.accuracy is not None:
        own = options.accuracy
        function = load_function(own, "accuracy function") if isinstance(own, str) else own
        code = code_digest(function)
        if not is_reusable(code):
            text = "the accuracy function is a closure, or not from a source file: another run measures it again"
            preparation.notes.append(Note(ACCURACY, text))
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
            f"The class axis of output '{output}' is not clear.",
            "Give --class-axis, or --accuracy with your own function.",
        )
    samples, labels = _without_unseen(preparation, preparation.data.open(options.dataset), labels)
    return accuracy_by_labels(samples, labels, output, classes.predicted, str(classes))


def _without_unseen(preparation: Preparation, data: Dataset, labels: np.ndarray) -> tuple[Dataset, np.ndarray]:
    """The samples that may be judged, with their labels: as many for each sample as there are rows in it."""
    samples = preparation.data.without_unseen(data)
    holdout = preparation.data.holdout
    if samples is data or holdout is None or holdout.unseen is None:
        return data, labels
    places = [samples.place(position) for position in range(samples.length or 0)]
    total = len(holdout.whole.digests)
    return samples, labels if len(labels) % total else labels.reshape(total, -1)[places].reshape(-1)


def fp32_accuracy(accuracy: Accuracy, experiment: Experiment) -> float:
    """Returns the accuracy of the FP32 network.

    Raises:
        BadInput: the user's function fails.
        NothingMeasured: FP32 does not run.
    """
    try:
        return AccuracyEvaluator(accuracy, experiment.whole, experiment.store).reference()
    except TrialFailed as failure:
        raise NothingMeasured(
            f"The accuracy of the FP32 network cannot be measured: {failure.message}", "Check the data set."
        ) from failure


def accuracies(
    accuracy: Accuracy, fp32: float, least: float | None, answer: Answer, *, measures: bool = True
) -> Accuracies:
    """Returns the accuracy of FP32, full INT8 and the recipe, and of the base where the accuracy decides.

    Args:
        accuracy: the user's.
        fp32: FP32's.
        least: the lowest acceptable accuracy; None where the similarity decides.
        answer: the answer.
        measures: false tells only the accuracies that were measured.
    """
    experiment = answer.experiment
    network, high = experiment.network, experiment.whole.high
    evaluator = AccuracyEvaluator(accuracy, experiment.whole, experiment.store)

    def measured(plan: PrecisionPlan) -> float | None:
        trial = evaluator.measure(plan) if measures else evaluator.known(plan)
        return None if trial is None else accuracy_in(trial)

    has_base = least is not None and network.base_type is not None
    base = measured(network.plan((), network.base or high)) if has_base else None
    return Accuracies(fp32, measured(network.full(high)), measured(answer.plan), least, base)
