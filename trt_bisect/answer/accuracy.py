"""The accuracy on labelled data: of FP32, of full INT8 and of the recipe; and as the judge of plans."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np

from trt_bisect.analyzer.classes import find_classes
from trt_bisect.analyzer.judge import numeric_outputs
from trt_bisect.analyzer.slices import output_of
from trt_bisect.analyzer.tasks.find import find_task
from trt_bisect.analyzer.tasks.task import AskedTask
from trt_bisect.answer.labels import (
    BOXES,
    CLASSES,
    FOLDERS,
    MASKS,
    TEXTS,
    accuracy_by_masks,
    accuracy_by_texts,
    kind_of,
    labels_in_order,
    labels_of_folders,
    letters_in,
    read_texts,
)
from trt_bisect.answer.mean_precision import accuracy_by_boxes, read_truth
from trt_bisect.answer.plans import AnswerPlans
from trt_bisect.answer.result import Answer
from trt_bisect.answer.validation import Checked
from trt_bisect.calibration.ranges import Ranges
from trt_bisect.data.datasets import Dataset
from trt_bisect.data.named import code_digest, is_reusable, load_function
from trt_bisect.driver.suspects.search import Loss
from trt_bisect.errors import BadInput, NothingMeasured, TrialFailed
from trt_bisect.evaluator.accuracy import (
    Accuracy,
    AccuracyEvaluator,
    accuracy_by_labels,
    accuracy_in,
    read_labels,
)
from trt_bisect.options.commands import RunOptions
from trt_bisect.precision import PrecisionPlan
from trt_bisect.preparation.experiment import Experiment, Setup
from trt_bisect.report.answer import OWN, Accuracies
from trt_bisect.support.text import ACCURACY, Note, noted

TIE = 1e-6
"""The weight of the similarity beside an accuracy: it decides between plans of the same accuracy."""


_READERS: Mapping[str, Callable[[Path], object]] = {CLASSES: read_labels, BOXES: read_truth, TEXTS: read_texts}


def refuse_accuracy(options: RunOptions) -> None:
    """Raises BadInput if the accuracy function or the file of labels cannot be loaded: before anything is measured."""
    if isinstance(options.accuracy, str):
        load_function(options.accuracy, "accuracy function")
    kind = "" if options.labels is None else kind_of(options.labels, options.task)
    if isinstance(options.labels, (str, Path)) and kind in _READERS:
        _READERS[kind](Path(options.labels))


def asked_accuracy(setup: Setup, experiment: Experiment, options: RunOptions) -> Accuracy | None:
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
            setup.notes.append(Note(ACCURACY, text))
        return Accuracy(function, code)
    if options.labels is None:
        return None
    kind, data = kind_of(options.labels, options.task), setup.data.open(options.dataset)
    if kind in (BOXES, MASKS, TEXTS):
        return _by_task(kind, Path(options.labels), setup.data.without_unseen(data), experiment, options)
    output = output_of(experiment.rule.outputs[0]) if experiment.task is None else experiment.task.reads[0]
    classes = find_classes([outputs[output] for outputs in experiment.references], options.class_axis)
    if classes.axis is None:
        raise BadInput(
            f"The class axis of output '{output}' is not clear.",
            "Give --class-axis, or --accuracy with your own function.",
        )
    if kind == FOLDERS:
        count = max(2, experiment.references[0][output].shape[classes.axis])
        labels = labels_of_folders(Path(options.labels), data, options.dataset, count)
    else:
        labels, order = labels_in_order(options.labels, data, options.dataset)
        setup.notes += noted(ACCURACY, order)
    samples, labels = _without_unseen(setup, data, labels)
    return accuracy_by_labels(samples, labels, output, classes.predicted, str(classes))


def _by_task(kind: str, path: Path, samples: Dataset, experiment: Experiment, options: RunOptions) -> Accuracy:
    """Returns the accuracy by labels that a task's reading of the outputs is compared with."""
    first = experiment.references[0]
    names = [name for name in numeric_outputs(first) if name in (options.outputs or first)]
    reference = [{name: outputs[name] for name in names} for outputs in experiment.references]
    if kind == BOXES:
        asked = AskedTask(options.task or "detect", head=options.head)
        return accuracy_by_boxes(samples, read_truth(path), asked, reference, letterbox=options.letterbox)
    if kind == MASKS:
        task = find_task(AskedTask("segment", class_axis=options.class_axis), reference)
        return accuracy_by_masks(samples, path, task, letterbox=options.letterbox)
    task = find_task(AskedTask("text"), reference)
    letters = letters_in(task, experiment.network)
    if not letters:
        raise BadInput(
            "The network does not say which characters its classes are.",
            "List them, one a line, in the property 'character' of the ONNX file: onnx.helper.set_model_props(model, "
            "{'character': '\\n'.join(characters)}), without the blank.",
        )
    return accuracy_by_texts(samples, read_texts(path), task, letters)


def _without_unseen(setup: Setup, data: Dataset, labels: np.ndarray) -> tuple[Dataset, np.ndarray]:
    """The samples that may be judged, with their labels: as many for each sample as there are rows in it."""
    samples = setup.data.without_unseen(data)
    holdout = setup.data.holdout
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
    full = network.full(high)
    figures = Accuracies(fp32, measured(full), measured(answer.plan), least, base)
    also = {"fp32": evaluator.further(None), "int8": evaluator.further(full), "recipe": evaluator.further(answer.plan)}
    return replace(figures, also={name: values for name, values in also.items() if values})


def accuracy_of(accuracy: Accuracy, answer: Answer, plan: PrecisionPlan) -> float | None:
    """Returns the accuracy of a plan with the ranges of an answer; None if it cannot be run."""
    experiment = answer.experiment
    return accuracy_in(AccuracyEvaluator(accuracy, experiment.whole, experiment.store).measure(plan))


class AccuracyTarget:
    """The accuracy of the data set, and beside it a little of the similarity.

    Args:
        plans: measures the similarity.
        accuracy: the user's function, or the share of samples with the right class.
        reference: FP32's accuracy.
        least: the lowest acceptable accuracy.
    """

    def __init__(self, plans: AnswerPlans, accuracy: Accuracy, reference: float, least: float) -> None:
        self._plans = plans
        self._accuracy = accuracy
        self._reference = reference
        self._by_ranges: dict[str, AccuracyEvaluator] = {}
        self.budget = reference - least + TIE

    def losses(self, asked: Sequence[PrecisionPlan], ranges: Ranges, *, to_the_end: bool = False) -> list[Loss]:
        """Returns the losses of plans: the part of FP32's accuracy that is lost."""
        similar = self._plans.losses(asked, ranges, self._plans.inputs.first, to_the_end=to_the_end)
        losses: list[Loss] = []
        for plan, tie in zip(asked, similar, strict=True):
            figure = self._measured(plan, ranges)
            losses.append(None if figure is None or tie is None else self._reference - figure + TIE * min(tie, 1.0))
        return losses

    def check(self, experiment: Experiment, plan: PrecisionPlan, **_: object) -> Checked:
        """Measures a plan: accuracies are measured on its own engine, always."""
        (loss,) = self.losses([plan], experiment.ranges)
        return Checked({OWN: inf if loss is None else loss})

    def known(self, experiment: Experiment, plan: PrecisionPlan) -> Checked | None:
        """Returns the check of a plan that was measured; None if its accuracy or its similarity is not known."""
        trial = self._evaluator(experiment.ranges).known(plan)
        if trial is None or self._plans.known(plan, experiment) is None:
            return None
        figure = accuracy_in(trial)
        return Checked({OWN: inf if figure is None else self._reference - figure})

    def worse(self, *_: object) -> tuple[int, ...]:
        """Returns no input: all of the data set count together."""
        return ()

    def figure(self, plan: PrecisionPlan, loss: Loss, ranges: Ranges, /) -> float | None:
        """Returns the accuracy of a plan; None if it cannot be run."""
        return None if loss is None or loss == inf else self._measured(plan, ranges)

    def _measured(self, plan: PrecisionPlan, ranges: Ranges) -> float | None:
        return accuracy_in(self._evaluator(ranges).measure(plan))

    def _evaluator(self, ranges: Ranges) -> AccuracyEvaluator:
        key = ranges.digest()
        if key not in self._by_ranges:
            experiment = self._plans.with_ranges(ranges)
            self._by_ranges[key] = AccuracyEvaluator(self._accuracy, experiment.whole, experiment.store)
        return self._by_ranges[key]
