"""Accuracy by the user's labels (classes, class folders, masks, boxes, texts) or function."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

import numpy as np

from trt_bisect.analyzer.classes import find_classes
from trt_bisect.analyzer.judge import numeric_outputs
from trt_bisect.analyzer.slices import output_of
from trt_bisect.analyzer.tasks.find import edit_distance, find_task, spelled
from trt_bisect.analyzer.tasks.task import AskedTask, Task
from trt_bisect.answer.mean_precision import KINDS, accuracy_by_boxes, at_pixels, input_size, read_truth
from trt_bisect.answer.plans import AnswerPlans
from trt_bisect.answer.result import Answer
from trt_bisect.answer.validation import Checked, PutBack
from trt_bisect.builder.base import Engine
from trt_bisect.calibration.ranges import Ranges
from trt_bisect.data.datasets import Dataset
from trt_bisect.data.named import code_digest, is_reusable, load_function
from trt_bisect.data.samples import image_files
from trt_bisect.driver.search import Loss
from trt_bisect.errors import BadInput, NothingMeasured, TrialFailed, first_line
from trt_bisect.evaluator.accuracy import (
    ACCURACY,
    Accuracy,
    AccuracyEvaluator,
    Labels,
    RunNetwork,
    accuracy_by_labels,
    accuracy_in,
    chance_of,
    place_finder,
    read_labels,
    refuse_other_classes,
)
from trt_bisect.model.network import Network
from trt_bisect.options.concerns import RunOptions
from trt_bisect.precision import Precision, PrecisionPlan
from trt_bisect.preparation.experiment import Experiment, Setup
from trt_bisect.report.answer import OWN, Accuracies
from trt_bisect.support import text
from trt_bisect.support.text import Note, noted

BOXES, CLASSES, FOLDERS, MASKS, TEXTS = "boxes", "classes", "class folders", "masks", "texts"
_TASKS: Mapping[str, Collection[str]] = {
    BOXES: KINDS,
    CLASSES: ("classify",),
    FOLDERS: ("classify",),
    MASKS: ("segment",),
    TEXTS: ("text",),
}
_VOID = 255  # the value of pixels in a mask that do not count
_BYTES = 256
_STILL_CHANCE = 0.01
_LETTERS = "character"  # the property of an ONNX file in which PaddleOCR lists the characters of its classes


def kind_of(labels: object, task: str | None) -> str:
    """Returns the kind of labels: ``boxes``, ``classes``, ``class folders``, ``masks`` or ``texts``.

    Args:
        labels: a path, whose ending or content tells the kind; or an array of classes.
        task: value of ``--task``, which alone tells ``texts``; None without it.

    Raises:
        BadInput: labels of this kind cannot judge the task.
    """
    kind = CLASSES
    if isinstance(labels, (str, Path)):
        path = Path(labels)
        if task in _TASKS[TEXTS]:
            kind = TEXTS
        elif path.suffix == ".json" or (path.is_dir() and any(path.glob("*.txt"))):
            kind = BOXES
        elif path.is_dir() and any(path.glob("*.png")):
            kind = MASKS
        elif path.is_dir():
            kind = FOLDERS if class_folders(path) else BOXES
    if task is not None and task not in _TASKS[kind]:
        raise BadInput(
            f"--task {task} is not judged by --labels with {kind}.",
            f"Give --task {'|'.join(_TASKS[kind])}, or --accuracy with your own function.",
        )
    return kind


def class_folders(folder: Path) -> list[str]:
    """Returns the sorted names of the subfolders of ``folder``, one for each class."""
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def labels_of_folders(folder: Path, samples: Dataset, pictures: object, classes: int) -> np.ndarray:
    """Returns the class of each picture, int64 ``[pictures]``, in the order of ``samples``: the number that names the
    picture's class folder or, if not all names are numbers, the folder's index among the sorted names.

    Args:
        folder: holds a folder for each class.
        pictures: ``folder``, or a folder or picture inside ``folder``.
        classes: number of the network's classes.

    Raises:
        BadInput: a picture is in no class folder, or the folders do not fit the network's classes.
    """
    names = class_folders(folder)
    are_numbers = all(name.isdecimal() for name in names)
    numbers = {name: int(name) if are_numbers else k for k, name in enumerate(names)}
    if max(numbers.values()) >= classes or (len(names) != classes and not are_numbers):
        raise BadInput(
            f"'{folder}' has {len(names)} class folders, up to '{names[-1]}', and the network {classes} classes.",
            "Give a folder for each class, empty ones too, named in the order of the classes or by their numbers.",
        )
    source = Path(pictures) if isinstance(pictures, (str, Path)) else folder / "?"
    files = image_files(source) if source.is_dir() else [source]
    labels = []
    for file in files:
        parts = file.resolve().relative_to(folder.resolve()).parts if folder.resolve() in file.resolve().parents else ()
        if len(parts) < 2:
            raise BadInput(f"'{file}' is in no class folder of '{folder}'.", "Give --dataset with pictures in these.")
        labels.append(numbers[parts[0]])
    return _of_whole_samples(np.array(labels, np.int64), samples)


def labels_in_order(labels: object, samples: Dataset, dataset: object) -> tuple[np.ndarray, list[str]]:
    """Returns the class of each sample, and a list of remarks: one if samples with names took labels without names,
    else none.

    Labels with names belong to the files of these names, other labels to the samples in order.

    Args:
        labels: a path, ``Labels``, or an array of classes.
        dataset: a folder of pictures, whose files name the samples, or other data.

    Raises:
        BadInput: the labels cannot be read, a sample has no label, or the order of the files is not clear.
    """
    labels = read_labels(Path(labels)) if isinstance(labels, (str, Path)) else labels
    pictures = image_files(Path(dataset)) if isinstance(dataset, (str, Path)) and Path(dataset).is_dir() else []
    files = [str(file) for file in pictures] or list(samples.names)
    if isinstance(labels, Labels) and labels.names:
        if files:
            return _of_whole_samples(labels.of(files), samples), []
        raise BadInput(
            f"The labels have names, such as '{labels.names[0]}', and the samples of {samples.source} have none.",
            "Give --dataset FOLDER with the pictures, or the classes alone in the order of the samples.",
        )
    classes = np.asarray(labels.classes if isinstance(labels, Labels) else labels)
    for by_name, by_number in zip(files, sorted(files, key=_by_numbers), strict=True):
        if by_name != by_number:
            first = Path(by_name).name
            raise BadInput(
                f"The labels have no names, and the order of the pictures is not clear: by name '{first}' comes before "
                f"'{Path(by_number).name}', by number after it.",
                f"Give labels with names, such as '{first},3' on each line, or write the numbers in the names of the "
                "pictures with the same number of digits.",
            )
    firsts = ", ".join(f"'{Path(file).name}'" for file in files[:3])
    return classes, [f"the labels have no names: they are taken in the order {firsts} and so on"] if files else []


def _by_numbers(file: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", file)]


def _of_whole_samples(labels: np.ndarray, samples: Dataset) -> np.ndarray:
    batch = samples.specs[0].shape[0] if len(samples.specs[0].shape) == 4 else 1
    return labels[: len(labels) - len(labels) % (batch or 1)]


def accuracy_by_masks(
    samples: Dataset, folder: Path, task: Task, *, letterbox: bool, classes: int | None = None
) -> Accuracy:
    """Returns the accuracy by masks: the mean intersection over union (mIoU) over the pixels of all masks together.

    Pixels of value 255 do not count; if all pixels are 0 or 255, 255 is class 1.

    Args:
        samples: one image each. Its mask has the same file name or, if the samples have no names, the same position.
        folder: a PNG for each image, of one channel or a palette, with the class of each pixel.
        letterbox: images keep their aspect ratio in the input.
        classes: number of the network's classes; None if unknown.

    Raises:
        BadInput: a mask cannot be read, or the masks do not fit the network's classes.
    """
    files = sorted(folder.glob("*.png"))
    place_of = place_finder(samples, [file.name for file in files], "mask")
    sha = hashlib.sha256(f"{task.note} {letterbox} {samples.digest()}".encode())
    pixels = np.zeros(_BYTES, np.int64)
    for file in files:
        mask = _mask(file)
        pixels += np.bincount(mask.ravel(), minlength=_BYTES)
        sha.update(f"{file.name} {mask.shape} ".encode() + mask.tobytes())
    is_object = bool(pixels[0]) and not pixels[1:_VOID].any()
    counting = pixels[[0, _VOID]] if is_object else pixels[:_VOID]
    present = np.flatnonzero(counting)
    if files and not len(present):
        raise BadInput(
            f"No pixel of the masks in '{folder}' has a class: all are {_VOID}, which does not count.",
            "Write the class of each pixel, from 0 on.",
        )
    if classes is not None:
        refuse_other_classes(present, classes, "values in the masks")
    chance = chance_of_masks(counting[present], classes)

    def counted(infer: RunNetwork) -> dict[str, float]:
        areas = np.zeros((3, _BYTES))
        for position, feeds in enumerate(samples):
            class_maps = _read(task, infer, feeds)
            if len(class_maps) != 1:
                raise BadInput(f"A sample holds {len(class_maps)} images.", "Give --dataset with one image a sample.")
            mask = _mask(files[place_of(position)])
            seen = at_pixels(np.clip(class_maps[0], 0, _BYTES - 1), mask.shape, input_size(feeds), letterbox=letterbox)
            mask, counts = (mask // _VOID, np.ones(mask.shape, bool)) if is_object else (mask, mask != _VOID)
            pairs = (mask[counts & (mask == seen)], mask[counts], seen[counts])
            areas += [np.bincount(pixels.ravel(), minlength=_BYTES) for pixels in pairs]
        same, right, seen = areas
        unions = right + seen - same
        return {
            ACCURACY: float(np.mean(same[unions > 0] / unions[unions > 0])),
            "pixels": float(same.sum() / right.sum()),
        }

    return Accuracy(counted, sha.hexdigest(), chance)


def chance_of_masks(pixels: np.ndarray, classes: int | None) -> float:
    """Returns the mIoU by chance: that of the commonest class everywhere or, if larger, that of classes drawn at random
    with the masks' shares, plus 0.01. If the masks have a single class: 1 / ``classes``, or 0 without ``classes``.

    Args:
        pixels: number of pixels of each class in the masks.
        classes: number of the network's classes; None if unknown.
    """
    if len(pixels) < 2:
        return 1.0 / classes if classes else 0.0
    shares = pixels / pixels.sum()
    return float(max(shares.max() / len(shares), np.mean(shares / (2 - shares)) + _STILL_CHANCE))


def _mask(file: Path) -> np.ndarray:
    from PIL import Image

    try:
        with Image.open(file) as image:
            mode, values = image.mode, np.asarray(image)
    except (OSError, SyntaxError, ValueError) as error:
        raise BadInput(f"The mask '{file}' cannot be read: {first_line(error)}", "Write it again.") from error
    if mode not in ("L", "P", "1"):
        raise BadInput(f"The mask '{file}' has pixels of the kind '{mode}'.", "Write the class as one byte a pixel.")
    return values.astype(np.uint8)


def _read(task: Task, infer: RunNetwork, feeds: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
    assert task.shown is not None
    return task.shown({name: np.asarray(value) for name, value in infer(feeds).items()})


@dataclass(frozen=True)
class Texts:
    """The right texts of a data set; ``names`` are those of the images, empty if the texts are in the order of the
    samples.
    """

    names: tuple[str, ...]
    lines: tuple[str, ...]


def read_texts(path: Path) -> Texts:
    """Reads a file in UTF-8 with one text a line, or with a name, a tab and a text on every line. Raises BadInput if it
    cannot be read or has no text.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(
            f"The texts '{path}' cannot be read: {first_line(error)}", "Give a file in UTF-8 with a text on each line."
        ) from error
    lines = [line.removesuffix("\r") for line in lines]
    if not any(lines):
        raise BadInput(f"'{path}' holds no texts.", "Give a file in UTF-8 with a text on each line.")
    if all("\t" in line for line in lines):
        names, texts = zip(*(line.split("\t", 1) for line in lines), strict=True)
        return Texts(names, texts)
    return Texts((), tuple(lines))


def letters_in(task: Task, network: Network) -> tuple[str, ...]:
    """Returns the character of each class, from a property in which PaddleOCR lists them in the ONNX file; empty
    without this property, or if the task reads no texts.
    """
    return () if task.letters is None else task.letters(network.properties.get(_LETTERS, ""))


def accuracy_by_texts(samples: Dataset, texts: Texts, task: Task, letters: Sequence[str]) -> Accuracy:
    """Returns the accuracy by texts: 1 minus the character error rate (the edits of all lines divided by the number of
    right characters).

    Args:
        samples: one or more lines of text each.
        texts: right lines of all samples in order; or, with names, one line for each sample.
        letters: character of each class.
    """
    place_of = place_finder(samples, texts.names, "text")

    def counted(infer: RunNetwork) -> dict[str, float]:
        edits = characters = lines = exact = 0
        for position, feeds in enumerate(samples):
            read_lines = [spelled(tuple(line), letters) for line in _read(task, infer, feeds)]
            first = place_of(position) if texts.names else lines
            right = texts.lines[first : first + len(read_lines)]
            if len(right) != len(read_lines) or (texts.names and len(read_lines) != 1):
                raise BadInput(
                    f"There are {len(texts.lines)} texts, and the data set has more lines.",
                    "Give a text for each line.",
                )
            apart = [
                edit_distance(tuple(map(ord, expected)), tuple(map(ord, read)))
                for expected, read in zip(right, read_lines, strict=True)
            ]
            edits, characters = edits + sum(apart), characters + sum(map(len, right))
            exact, lines = exact + apart.count(0), lines + len(read_lines)
        if not texts.names and lines != len(texts.lines):
            raise BadInput(f"There are {len(texts.lines)} texts for {lines} lines.", "Give a text for each line.")
        return {ACCURACY: 1.0 - edits / max(characters, 1), "exact": exact / lines}

    sha = hashlib.sha256(f"{task.note} {samples.digest()} {texts} {letters}".encode())
    return Accuracy(counted, sha.hexdigest(), chance=0.0)


TIE = 1e-6  # the weight of the similarity next to an accuracy: it orders plans of equal accuracy


_READERS: Mapping[str, Callable[[Path], object]] = {CLASSES: read_labels, BOXES: read_truth, TEXTS: read_texts}


def refuse_accuracy(options: RunOptions) -> None:
    """Raises BadInput if the accuracy function or the labels cannot be loaded."""
    if isinstance(options.accuracy, str):
        load_function(options.accuracy, "accuracy function")
    kind = "" if options.labels is None else kind_of(options.labels, options.task)
    if isinstance(options.labels, (str, Path)) and kind in _READERS:
        _READERS[kind](Path(options.labels))


def asked_accuracy(setup: Setup, experiment: Experiment, options: RunOptions) -> Accuracy | None:
    """Returns the accuracy by the user's function or labels; None if the user gave neither.

    Raises:
        BadInput: the function or the labels cannot be used.
    """
    if options.accuracy is not None:
        accuracy = options.accuracy
        function = load_function(accuracy, "accuracy function") if isinstance(accuracy, str) else accuracy
        code = code_digest(function)
        if not is_reusable(code):
            closure = "the accuracy function is a closure, or not from a source file: another run measures it again"
            setup.notes.append(Note(text.ACCURACY, closure))
        return Accuracy(function, code)
    if options.labels is None:
        return None
    kind, data = kind_of(options.labels, options.task), setup.data.open(options.dataset)
    if kind in (BOXES, MASKS, TEXTS):
        return _by_task(kind, Path(options.labels), setup.data.without_held_out(data), experiment, options)
    output = output_of(experiment.rule.outputs[0]) if experiment.task is None else experiment.task.reads[0]
    classes = find_classes([outputs[output] for outputs in experiment.references], options.class_axis)
    if classes.axis is None:
        raise BadInput(
            f"The class axis of output '{output}' is not clear.",
            "Give --class-axis, or --accuracy with your own function.",
        )
    count = max(2, np.atleast_1d(experiment.references[0][output]).shape[classes.axis])
    if kind == FOLDERS:
        labels = labels_of_folders(Path(options.labels), data, options.dataset, count)
    else:
        labels, order = labels_in_order(options.labels, data, options.dataset)
        setup.notes += noted(text.ACCURACY, order)
        refuse_other_classes(labels, count)
    samples, holdout = setup.data.without_held_out(data), setup.data.holdout
    if samples is not data and holdout is not None and holdout.held_out is not None:
        places = [samples.place(position) for position in range(samples.length or 0)]
        total = len(holdout.whole.digests)
        # Each sample has as many labels as there are rows in it.
        labels = labels if len(labels) % total else labels.reshape(total, -1)[places].reshape(-1)
    else:
        samples = data
    return accuracy_by_labels(samples, labels, output, classes.predicted, str(classes), chance_of(labels, count))


def _by_task(kind: str, path: Path, samples: Dataset, experiment: Experiment, options: RunOptions) -> Accuracy:
    first = experiment.references[0]
    names = [name for name in numeric_outputs(first) if name in (options.outputs or first)]
    reference = [{name: outputs[name] for name in names} for outputs in experiment.references]
    if kind == BOXES:
        by_boxes = AskedTask(options.task or "detect", head=options.head)
        return accuracy_by_boxes(samples, read_truth(path), by_boxes, reference, letterbox=options.letterbox)
    if kind == MASKS:
        task = find_task(AskedTask("segment", class_axis=options.class_axis), reference)
        classes = _classes_of_pixels(task, reference, options.class_axis)
        return accuracy_by_masks(samples, path, task, letterbox=options.letterbox, classes=classes)
    task = find_task(AskedTask("text", head=options.head), reference)
    letters = letters_in(task, experiment.network)
    if not letters:
        raise BadInput(
            "The network does not say which characters its classes are.",
            "List them, one a line, in the property 'character' of the ONNX file: onnx.helper.set_model_props(model, "
            "{'character': '\\n'.join(characters)}), without the blank.",
        )
    return accuracy_by_texts(samples, read_texts(path), task, letters)


def _classes_of_pixels(task: Task, reference: Sequence[Mapping[str, np.ndarray]], axis: int | None) -> int | None:
    arrays = [outputs[task.reads[0]] for outputs in reference]
    # Labels and queries do not tell the number of classes.
    if arrays[0].dtype.kind != "f" or len(task.reads) > 1:
        return None
    classes = find_classes(arrays, axis)
    return 2 if classes.axis is None else max(2, arrays[0].shape[classes.axis])


def chance_warning(accuracy: Accuracy, fp32: float) -> tuple[str, ...]:
    """Returns a tuple of one sentence if ``fp32``, FP32's accuracy, is not above chance; else an empty tuple."""
    if accuracy.chance is None or fp32 > accuracy.chance:
        return ()
    chance = f"not above chance ({text.percent(accuracy.chance)})"
    check = "Check that they are those of the samples, in the network's classes."
    return (f"FP32's accuracy on the labels is {text.percent(max(fp32, 0.0))}, {chance}. {check}",)


def fp32_accuracy(accuracy: Accuracy, experiment: Experiment) -> dict[str, float]:
    """Returns by name FP32's accuracy, and the further figures that the user's function returns.

    Raises:
        BadInput: the user's function fails.
        NothingMeasured: FP32 does not run.
    """
    try:
        return AccuracyEvaluator(accuracy, experiment.whole).reference()
    except TrialFailed as failure:
        raise NothingMeasured(
            f"The accuracy of the FP32 network cannot be measured: {failure.message}", "Check the data set."
        ) from failure


class AskedAccuracy:
    """The accuracy by the user's labels or function; if a least accuracy is given, the goal of the search. The
    similarity orders plans of equal accuracy.

    Args:
        fp32: result of ``fp32_accuracy``.
        least: lowest acceptable accuracy; None if the similarity decides.
    """

    def __init__(self, plans: AnswerPlans, accuracy: Accuracy, fp32: Mapping[str, float], least: float | None) -> None:
        self._plans, self._accuracy, self._fp32, self._least = plans, accuracy, fp32, least
        self.reference = fp32[ACCURACY]
        self._by_ranges: dict[str, AccuracyEvaluator] = {}
        self.budget = 0.0 if least is None else self.reference - least + TIE

    def accuracies(self, answer: Answer, *, measures: bool = True) -> Accuracies:
        """Returns the accuracy of FP32, FP16, full INT8 and the recipe and, if the accuracy decides with a base in
        FP16 or BF16, of the network without INT8.

        ``measures``: if false, nothing is run, and accuracies not measured before are None.
        """
        network, high = answer.experiment.network, answer.experiment.whole.high
        evaluator = self._of(answer.experiment)

        def measured(plan: PrecisionPlan) -> float | None:
            trial = evaluator.measure(plan) if measures else evaluator.known(plan)
            return None if trial is None else accuracy_in(trial)

        has_base = self._least is not None and network.base_type is not None
        base = measured(network.plan((), network.base or high)) if has_base else None
        fp16 = None
        if answer.fp16 is not None and measures:
            fp16 = accuracy_in(evaluator.measure_as_is(network.all_in(Precision.FP16)))
        plans = {"int8": network.full(high)}
        if answer.meets or answer.most is not None or answer.recipe.plan != plans["int8"]:
            plans["recipe"] = answer.recipe.plan
        by_plan = {name: measured(plan) for name, plan in plans.items()}
        every = {"fp32": self._fp32} | {name: evaluator.figures(plan) for name, plan in plans.items()}
        also = {name: more for name, row in every.items() if (more := {k: v for k, v in row.items() if k != ACCURACY})}
        return Accuracies(self.reference, by_plan["int8"], by_plan.get("recipe"), self._least, base, fp16, also)

    def of_plan(self, experiment: Experiment, plan: PrecisionPlan) -> float | None:
        """Returns a plan's accuracy with the ranges of an experiment; None if the plan cannot run."""
        return accuracy_in(self._of(experiment).measure(plan))

    def loss_on(self, experiment: Experiment, plan: PrecisionPlan) -> Loss:
        """Returns FP32's accuracy less a plan's; None if the plan cannot run."""
        figure = self.of_plan(experiment, plan)
        return None if figure is None else self.reference - figure

    def measure_open(self, experiment: Experiment) -> Callable[[PrecisionPlan, Engine], None]:
        """Returns a function that measures and stores a plan's accuracy, given the plan and its open engine."""
        return self._of(experiment).measure_open

    def losses(self, plans: Sequence[PrecisionPlan], ranges: Ranges, *, to_the_end: bool = False) -> list[Loss]:
        """Returns for each plan FP32's accuracy less the plan's, plus 1e-6 of its loss of similarity, which orders
        plans of equal accuracy; None for a plan that cannot run.

        ``to_the_end``: for the similarity, run all inputs, not only up to a miss.
        """
        similar = self._plans.losses(plans, ranges, self._plans.inputs.first, to_the_end=to_the_end)
        losses: list[Loss] = []
        for plan, tie in zip(plans, similar, strict=True):
            figure = self._measured(plan, ranges)
            losses.append(None if figure is None or tie is None else self.reference - figure + TIE * min(tie, 1.0))
        return losses

    def check(self, experiment: Experiment, plan: PrecisionPlan, **_: object) -> Checked:
        """Returns a plan's check: the accuracy that it loses on the whole data set. Other keywords are ignored."""
        (loss,) = self.losses([plan], experiment.ranges)
        return Checked({OWN: inf if loss is None else loss})

    def put_back(self, plan: PrecisionPlan, experiment: Experiment, setting: str = OWN, **_: object) -> PutBack:
        """Returns the accuracy that ``plan``, a recipe with one unit back in INT8, loses on the whole data set;
        ``setting`` is only noted in the result, other keywords are ignored.
        """
        (loss,) = self.losses([plan], experiment.ranges)
        return PutBack(loss, setting, None)

    def known(self, experiment: Experiment, plan: PrecisionPlan) -> Checked | None:
        """Returns the check of a plan that was measured before; None if its accuracy or similarity is unknown."""
        trial = self._evaluator(experiment.ranges).known(plan)
        if trial is None or self._plans.known(plan, experiment) is None:
            return None
        figure = accuracy_in(trial)
        return Checked({OWN: inf if figure is None else self.reference - figure})

    def worse(self, *_: object) -> tuple[int, ...]:
        """Returns an empty tuple: the accuracy is of the whole data set, not of single inputs."""
        return ()

    def figure(self, plan: PrecisionPlan, loss: Loss, ranges: Ranges, /) -> float | None:
        """Returns a plan's accuracy; None if ``loss`` is None or infinite, for a plan that cannot run."""
        return None if loss is None or loss == inf else self._measured(plan, ranges)

    def _measured(self, plan: PrecisionPlan, ranges: Ranges) -> float | None:
        return accuracy_in(self._evaluator(ranges).measure(plan))

    def _evaluator(self, ranges: Ranges) -> AccuracyEvaluator:
        key = ranges.digest()
        if key not in self._by_ranges:
            self._by_ranges[key] = self._of(self._plans.with_ranges(ranges))
        return self._by_ranges[key]

    def _of(self, experiment: Experiment) -> AccuracyEvaluator:
        return AccuracyEvaluator(self._accuracy, experiment.whole)
