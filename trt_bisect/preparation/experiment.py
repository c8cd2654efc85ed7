"""An experiment: a network, and everything that is needed to measure its plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trt_bisect.analyzer.classes import Classes
from trt_bisect.analyzer.judge import Comparer, Rule, comparison
from trt_bisect.analyzer.slices import Slices
from trt_bisect.analyzer.tasks.task import Task
from trt_bisect.builder.base import Builder, Outputs
from trt_bisect.calibration.ranges import Ranges
from trt_bisect.data.datasets import Dataset
from trt_bisect.data.feeds import Feeds
from trt_bisect.evaluator.branch import BranchEvaluator
from trt_bisect.evaluator.rebuild import Compare, RebuildEvaluator
from trt_bisect.evaluator.trial import Trial
from trt_bisect.model.network import Network
from trt_bisect.report.model import JudgedInputs
from trt_bisect.runs.journal import Journal, MemoryStore


@dataclass(frozen=True)
class Experiment:
    """A network on which plans can be measured.

    Attributes:
        network: its unusable layers kept high, its shapes those on the first input.
        feeds: the inputs that are judged together.
        references: the outputs of the reference for them.
        about: what the report says of the judged inputs.
        data: the calibration data; None if the ranges were given.
        more: all data given: a recipe has to hold on all its samples.
        compare: from outputs to figures.
        parts: the parts of the fingerprint.
        whole: measures on whole engines; ``evaluator`` as the strategy wants it.
        key: the fingerprint.
        strategy: the strategy that chooses the plans; never ``auto``.
        classes: the class axis of each judged output.
        slices: the groups of places in outputs that are judged apart.
        task: the task that is judged instead of the metric; None without one.
    """

    network: Network
    ranges: Ranges
    feeds: list[Feeds]
    references: Sequence[Outputs]
    about: JudgedInputs
    builder: Builder
    rule: Rule
    store: Journal | MemoryStore
    whole: RebuildEvaluator
    evaluator: RebuildEvaluator | BranchEvaluator
    key: str
    data: Dataset | None
    more: tuple[Dataset, ...]
    compare: Compare
    parts: Mapping[str, Any]
    strategy: str
    classes: Mapping[str, Classes]
    slices: Slices
    task: Task | None

    def comparison_with(self, references: Sequence[Outputs], *, deciding: bool = False) -> Comparer:
        """Returns the comparison of outputs for other inputs with FP32's.

        Args:
            references: FP32's outputs for these inputs.
            deciding: only by what decides, without the other metrics.
        """
        metric = self.rule.metric
        only = metric if deciding else None
        return comparison(references, metric, self.classes, self.slices, self.task, only=only, with_facts=not deciding)


def all_trials(*experiments: Experiment) -> list[Trial]:
    """Returns the trials of experiments; those of a store that several of them share count once."""
    stores = dict.fromkeys(experiment.store for experiment in experiments)
    return [trial for store in stores for trial in tuple(store.trials.values())]
