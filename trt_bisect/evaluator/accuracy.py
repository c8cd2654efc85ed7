from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from trt_bisect.builder.base import Engine
from trt_bisect.data.datasets import Dataset
from trt_bisect.data.feeds import DAMAGED, Feeds
from trt_bisect.errors import BadInput, TrialFailed, first_line
from trt_bisect.evaluator.evaluators import RebuildEvaluator
from trt_bisect.evaluator.trial import MEASURED, OutputFigures, Trial, TrialKey
from trt_bisect.evaluator.workers import tried
from trt_bisect.precision import PrecisionPlan

RunNetwork = Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]
"""Runs a network: feeds by name in, outputs by name out."""
ACCURACY = "accuracy"
_REFERENCE = "reference"
# A line of labels: a file's name and class.
_NAME_AND_CLASS = re.compile(r"(?P<name>[^,;\t]*[^,;\s])\s*[,;\s]\s*(?P<label>\d+)")


@dataclass(frozen=True)
class Accuracy:
    """The user's measure of accuracy on labelled data.

    Attributes:
        function: runs the network and returns a number, higher for better, or several by name, of which ``accuracy``
            decides.
        code: a text that identifies function and data, for the keys of trials.
        chance: accuracy of the same answer for all samples; None if unknown.
    """

    function: Callable[[RunNetwork], float | Mapping[str, float]]
    code: str
    chance: float | None = None

    def of(self, infer: RunNetwork) -> dict[str, float]:
        """Returns the accuracy of a network, and other figures by name.

        Raises:
            BadInput: the function fails, or does not return a finite number.
            TrialFailed: the network does not run.
        """
        try:
            result = self.function(infer)
            figures = result if isinstance(result, Mapping) else {ACCURACY: result}
            values = {name: float(figure) for name, figure in figures.items()}
            value = values[ACCURACY]
        except (TrialFailed, BadInput):
            raise
        except Exception as error:
            raise BadInput(
                f"The accuracy function fails: {type(error).__name__}: {first_line(error)}",
                "It is called with a function from feeds to outputs, both by name, and returns a number.",
            ) from error
        if not math.isfinite(value):
            raise BadInput(f"The accuracy function returned {value}.", "It has to return a finite number.")
        return values


def refuse_other_classes(labels: np.ndarray, classes: int, what: str = "labels") -> None:
    """Raises BadInput if a label is no class of the network; messages call the labels ``what``."""
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        first = int(labels.ravel()[wrong[0]])
        raise BadInput(
            f"{len(wrong)} of {labels.size} {what} are none of the network's {classes} classes, which are 0 to "
            f"{classes - 1}: the first is {first}.",
            "Number the classes as the network does, from 0 on, or give the labels of this network.",
        )


def chance_of(labels: np.ndarray, classes: int) -> float:
    """Returns the accuracy of predicting the commonest label for all; 1 / ``classes`` if all labels are the same."""
    _, counts = np.unique(labels, return_counts=True)
    return float(counts.max() / counts.sum()) if len(counts) > 1 else 1.0 / classes


def accuracy_by_labels(
    samples: Dataset,
    labels: np.ndarray,
    output: str,
    predicted: Callable[[np.ndarray], np.ndarray],
    how: str = "",
    chance: float | None = None,
) -> Accuracy:
    """Returns the accuracy by labels: the share of rows with the right class.

    Args:
        samples: one or more rows each.
        labels: integers, one for each row of all samples.
        predicted: returns the class of each row from the values of ``output``.
        how: a text that identifies ``predicted``.
        chance: accuracy of the same answer for all rows; None if unknown.
    """

    def counted(infer: RunNetwork) -> float:
        right = start = 0
        for feeds in samples:
            classes = predicted(np.asarray(infer(feeds)[output]))
            expected = labels[start : start + len(classes)]
            if len(expected) != len(classes):
                raise BadInput(
                    f"There are {len(labels)} labels, and the data set has more samples.", "Give one label per sample."
                )
            right += int((classes == expected).sum())
            start += len(classes)
        if start != len(labels):
            raise BadInput(f"There are {len(labels)} labels for {start} samples.", "Give one label per sample.")
        return right / len(labels)

    sha = hashlib.sha256(f"{output} {how} {samples.digest()} ".encode() + labels.astype(np.int64).tobytes())
    return Accuracy(counted, sha.hexdigest(), chance)


def place_finder(samples: Dataset, names: Sequence[str], what: str) -> Callable[[int], int]:
    """Returns a function from a sample's position to the index of its label among ``names``.

    Samples from files are found by name, others by position. Messages call the label ``what``. BadInput is raised, also
    by the function, for a sample without a label or with several.
    """
    places = places_of(samples.names, names, what)

    def place_of(position: int) -> int:
        index = samples.place(position)
        label_index = places.get(index) if samples.names else index
        if label_index is None or label_index >= len(names):
            empty = " An image without boxes has an empty text file." if what == "box" else ""
            raise BadInput(f"There is no {what} for {samples.label(index)}.", f"Give --labels of all samples.{empty}")
        return label_index

    return place_of


def places_of(files: Sequence[str], names: Sequence[str], what: str) -> dict[int, int]:
    """Returns the index in ``names`` of each file, by the file's index; files without a name are left out.

    Endings do not count, and folders only where files or names would be equal without them.

    Raises:
        BadInput: a file matches several names.
    """
    file_stems = [Path(file).stem for file in files]
    by_stem: dict[str, list[int]] = {}
    for k, name in enumerate(names):
        by_stem.setdefault(Path(name).stem, []).append(k)
    counts, label_of_file = Counter(file_stems), dict[int, int]()
    for file_index, stem in enumerate(file_stems):
        alike = by_stem.get(stem, [])
        if len(alike) > 1 or (alike and counts[stem] > 1):
            shared = {k: _shared_end(Path(files[file_index]), Path(names[k])) for k in alike}
            alike = [k for k in alike if shared[k] == max(shared.values()) > 1]
            if len(alike) != 1:
                raise BadInput(
                    f"It is not clear which {what} is that of '{files[file_index]}': {counts[stem]} pictures and "
                    f"{len(by_stem[stem])} labels are named '{stem}'.",
                    "Name the folder of each picture in the labels, as in 'cats/1.png'.",
                )
        if alike:
            label_of_file[file_index] = alike[0]
    return label_of_file


def _shared_end(path: Path, other: Path) -> int:
    pairs = zip(reversed(path.with_suffix("").parts), reversed(other.with_suffix("").parts), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


@dataclass(frozen=True)
class Labels:
    """The right class of each sample.

    Attributes:
        classes: index of each sample's class, int64 ``[count]``.
        names: the sample's file for each entry of ``classes``; empty if ``classes`` is in the order of the data.
    """

    classes: np.ndarray
    names: tuple[str, ...] = ()

    def of(self, files: Sequence[str]) -> np.ndarray:
        """Returns the class of each file; raises BadInput if a file matches no label or several."""
        places = places_of(files, self.names, "label")
        missing = [file for k, file in enumerate(files) if k not in places]
        if missing:
            raise BadInput(
                f"{len(missing)} of {len(files)} pictures have no label, such as '{missing[0]}'; the labels name "
                f"{len(self.names)} files, such as '{self.names[0]}'.",
                "Give a label for each picture by its file name.",
            )
        return self.classes[[places[k] for k in range(len(files))]]


def read_labels(path: Path) -> Labels:
    """Reads labels from ``.npy``, or from text: on each line a class, or a file's name and its class.

    Name and class are separated by a comma, semicolon, tab or space; the first line may hold titles.

    Raises:
        BadInput: the file cannot be read, or does not hold integers.
    """
    try:
        if path.suffix == ".npy":
            values = np.load(path, allow_pickle=False)
        elif (labels_of_files := _named_labels(path)) is not None:
            return labels_of_files
        else:
            values = np.loadtxt(path, np.int64, ndmin=1)
    except DAMAGED as error:
        raise BadInput(
            f"The labels '{path}' cannot be read: {first_line(error)}",
            "Give .npy, or a text file with a class on each line, or a file name and its class: a.png,3.",
        ) from error
    labels = np.asarray(values).reshape(-1)
    if labels.dtype.kind not in "iu" or not labels.size:
        raise BadInput(f"'{path}' holds {labels.size} values of type {labels.dtype}.", "Labels are whole numbers.")
    return Labels(labels.astype(np.int64))


def _named_labels(path: Path) -> Labels | None:
    lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    rows = [_NAME_AND_CLASS.fullmatch(line) for line in lines if line]
    rows = rows[1:] if rows and rows[0] is None else rows
    labels = [(row["name"].strip("\"'"), int(row["label"])) for row in rows if row is not None]
    if not labels or len(labels) < len(rows) or (len(labels) == 1 and labels[0][0].isdecimal()):
        return None
    return Labels(np.array([label for _, label in labels], np.int64), tuple(name for name, _ in labels))


class AccuracyEvaluator:
    """Measures plans by the user's accuracy, on an engine for each plan; no plan is measured twice."""

    def __init__(self, accuracy: Accuracy, whole: RebuildEvaluator) -> None:
        self._accuracy = accuracy
        self._whole = whole
        self._store = whole.store
        self._measured_in = f"accuracy {accuracy.code[:16]}"

    def reference(self) -> dict[str, float]:
        """Returns the accuracy and the other figures of FP32, by name; raises TrialFailed if FP32 does not run."""
        key = TrialKey(_REFERENCE, self._measured_in).text
        trial = self._store.find(key)
        if trial is None:
            trial = replace(self._tried(key, self._whole.builder.reference), ran={})  # its key names no plan
            if trial.failed:
                raise TrialFailed(trial.outcome, trial.message)
            self._store.keep(trial)
        return dict(trial.outputs[ACCURACY].values)

    def figures(self, plan: PrecisionPlan) -> dict[str, float]:
        """Returns the accuracy and the other figures of a plan, by name; empty if not measured."""
        trial = self.known(plan)
        return {} if trial is None or trial.failed else dict(trial.outputs[ACCURACY].values)

    def known(self, plan: PrecisionPlan) -> Trial | None:
        """Returns the trial with a plan's accuracy; None if not measured."""
        canonical = self._whole.canonical(plan)
        return self._whole.store_of(canonical).find(self._key(canonical))

    def measure(self, plan: PrecisionPlan) -> Trial:
        """Returns the trial with a plan's accuracy, under the output ``accuracy``."""
        return self.measure_as_is(self._whole.canonical(plan))

    def measure_as_is(self, plan: PrecisionPlan) -> Trial:
        """Returns the trial with the accuracy of exactly this plan; ``measure`` first moves unquantized layers to the
        base precision.
        """
        store = self._whole.store_of(plan)
        trial = store.find(self._key(plan))
        if trial is None:
            trial = self._tried(self._key(plan), lambda: self._whole.builder.build(plan))
            store.keep(trial)
        return trial

    def measure_open(self, plan: PrecisionPlan, engine: Engine) -> None:
        """Measures and stores the accuracy of a plan whose engine is open already; raises TrialFailed if an inference
        fails.
        """
        values, count = self._of_engine(engine)
        trial = Trial(self._key(plan), MEASURED, ran=dict(engine.ran), inferences=count, builds=0)
        self._whole.store_of(plan).keep(trial.judged({ACCURACY: OutputFigures(values)}))

    def _key(self, plan: PrecisionPlan) -> str:
        return TrialKey(plan.key(), self._measured_in).text

    def _of_engine(self, engine: Engine) -> tuple[dict[str, float], int]:
        count = 0

        def infer(feeds: Mapping[str, Any]) -> Feeds:
            nonlocal count
            count += 1
            return engine.infer(dict(feeds) if isinstance(feeds, Mapping) else feeds)

        return self._accuracy.of(infer), count

    def _tried(self, key: str, build: Callable[[], Engine]) -> Trial:
        trial, measured = tried(key, build, self._of_engine)
        if measured is None:
            return trial
        values, count = measured
        return replace(trial, inferences=count).judged({ACCURACY: OutputFigures(values)})


def accuracy_in(trial: Trial) -> float | None:
    """Returns the accuracy in a trial; None if it failed."""
    return None if trial.failed else trial.outputs[ACCURACY].values[ACCURACY]
