"""A network with all that its plans are measured with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trt_bisect.analyzer.classes import Classes
from trt_bisect.analyzer.judge import Rule
from trt_bisect.builder.base import Builder
from trt_bisect.calibration.ranges import Ranges
from trt_bisect.data.datasets import Dataset, Feeds
from trt_bisect.evaluator.branch import BranchEvaluator
from trt_bisect.evaluator.rebuild import Compare, RebuildEvaluator
from trt_bisect.model.network import Network
from trt_bisect.runs.journal import Journal, MemoryStore


@dataclass(frozen=True)
class Experiment:
    """A network on which plans can be measured.

    Attributes:
        network: its unusable layers kept high, its shapes those on the first input.
        feeds: the inputs that are judged together.
        about: what the report says of them.
        data: what the ranges come from, if that was data.
        more: the inputs given beside ``feeds``; a recipe has to hold on them too.
        compare: from outputs to figures.
        parts: what the fingerprint is made of.
        whole: measures on whole engines; ``evaluator`` as the strategy wants it.
        key: the fingerprint.
        strategy: how the plans are chosen; never ``auto``.
        classes: the class axis of each judged output.
    """

    network: Network
    ranges: Ranges
    feeds: list[Feeds]
    about: dict[str, Any]
    builder: Builder
    rule: Rule
    store: Journal | MemoryStore
    whole: RebuildEvaluator
    evaluator: RebuildEvaluator | BranchEvaluator
    key: str
    data: Dataset | None
    more: Dataset | None
    compare: Compare
    parts: Mapping[str, Any]
    strategy: str
    classes: Mapping[str, Classes]
