"""The rows of the history, as they are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class PastReport:
    """One report.

    Attributes:
        id: in the order of recording, whatever the clock said.
        run: tells the folder's measurements from others; the trials have it too.
        label: the network's name in a suite, else the model file's stem.
        state: ``finished``, ``running`` or ``interrupted`` when it was recorded.
        started: and ``recorded``, in UTC.
        strategy: ``recover`` for what ``recover`` found.
        int8: the metric on the worst output in full INT8, ``recipe`` in the recipe; None where not measured.
        meets: the recipe meets the threshold; None where the report is not finished. So ``exit_code``.
        high: the layers that the recipe leaves high.
        fp32_ms: and so on, the mean milliseconds of an inference; None where none was timed.
        made_of: the fingerprint's parts, as far as they are known.
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

    def is_of(self, model: str) -> bool:
        """Whether ``model`` is its model's path, file name or stem."""
        path = Path(self.model)
        return model in (self.model, path.name, path.stem)


@dataclass(frozen=True)
class PastTrial:
    """One plan that was tried.

    Attributes:
        run: that of the reports on it.
        place: its number in the journal.
        plan: its key.
        figure: the metric on the worst output; None where there is none.
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
    """One quantizable layer in a report; see ``LayerRow``."""

    report: int
    layer: int
    name: str
    outcome: str
    similarity: float | None
    drop: float | None
    culprit: bool
    ran: str
