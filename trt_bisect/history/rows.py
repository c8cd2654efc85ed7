"""The rows of the history as dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from trt_bisect.report.model import RECOVER
from trt_bisect.report.verdict import verdict_in


@dataclass(frozen=True)
class PastReport:
    """One report in the history.

    Attributes:
        id: in the order of recording, independent of the clock.
        run: the number of the run, the same for its trials.
        label: the network's name in a suite, else the model file's stem.
        state: ``finished``, ``running`` or ``interrupted`` when it was recorded.
        started: the time of its beginning, in UTC.
        recorded: the time of its recording, in UTC.
        strategy: ``recover`` for a report of ``recover``.
        int8: the metric on the worst output in full INT8; None if not measured.
        recipe: the same for the recipe.
        meets: the recipe meets the threshold; None if the report is not finished.
        high: the layers that the recipe leaves high.
        fp32_ms: the mean milliseconds of one inference in FP32; None if not timed. The same for ``fp16_ms``,
            ``int8_ms`` and ``recipe_ms``.
        exit_code: None if the report is not finished.
        made_of: the parts of the fingerprint, as far as they are known.
        schema: the schema of ``report.json``; 1 if an older version recorded it.
    """

    id: int
    run: int
    folder: str
    label: str
    state: str
    started: datetime
    recorded: datetime
    model: str
    engine: str
    typing: str
    strategy: str
    arithmetic: str
    metric: str
    threshold: float | None
    share: float | None
    precision: str
    int8: float | None
    recipe: float | None
    meets: bool | None
    culprits: tuple[str, ...]
    high: tuple[str, ...]
    fp32_ms: float | None
    fp16_ms: float | None
    int8_ms: float | None
    recipe_ms: float | None
    plans: int
    builds: int
    inferences: int
    calibrate_seconds: float | None
    build_seconds: float | None
    infer_seconds: float | None
    total_seconds: float | None
    peak_bytes: int
    exit_code: int | None
    command: str
    fingerprint: str
    made_of: Mapping[str, Any]
    schema: int

    @property
    def verdict(self) -> str:
        """The verdict as the report had it: a word of ``report.verdict``; empty if the report is not finished."""
        asked = self.strategy == RECOVER or not self.high
        return "" if self.exit_code is None else verdict_in(self.exit_code, meets=bool(asked and self.meets))

    def is_of(self, model: str) -> bool:
        """Returns true if ``model`` is the path, the file name or the stem of the report's model."""
        path = Path(self.model)
        return model in (self.model, path.name, path.stem)


@dataclass(frozen=True)
class PastTrial:
    """One trial in the history.

    Attributes:
        run: the number of the run.
        place: its number in the journal.
        plan: the key of the plan.
        figure: the metric on the worst output; None if it has no value.
    """

    run: int
    label: str
    folder: str
    fingerprint: str
    place: int
    plan: str
    outcome: str
    metric: str | None
    figure: float | None
    build_seconds: float
    infer_seconds: float
    message: str


@dataclass(frozen=True)
class PastLayer:
    """One quantizable layer of a report in the history; see ``LayerRow``."""

    report: int
    layer: int
    name: str
    outcome: str
    similarity: float | None
    drop: float | None
    culprit: bool
    ran: str
