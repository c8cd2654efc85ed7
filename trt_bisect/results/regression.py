"""What a night found against its baseline, as the contract of ``regression.json`` has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trt_bisect.analyzer.changes import TARGET, Change
from trt_bisect.analyzer.differences import Difference
from trt_bisect.analyzer.figures import Figures
from trt_bisect.errors import NothingMeasured
from trt_bisect.results.baseline import NetworkBaseline
from trt_bisect.results.presentable import Presentable
from trt_bisect.results.saving import Saved
from trt_bisect.support.files import write_whole
from trt_bisect.support.plain_json import plain

SCHEMA = 1
REGRESSION, JUNIT, SUMMARY = "regression.json", "junit.xml", "summary.md"
FILES = (REGRESSION, JUNIT, SUMMARY)
PASSED, FAILED, ERROR = "passed", "failed", "error"


@dataclass(frozen=True)
class NetworkResult:
    """One network tonight.

    Attributes:
        name: as the suite has it.
        run: the run folder, relative to the night's.
        seconds: what measuring it took, repeats included.
        figures: None where nothing could be measured; then ``message`` says why.
        baseline: what it was compared with; None for a network that is new.
        changes: those that a repeat confirmed, and missed targets.
        noise: changes that the repeat did not show again.
        differs: what the two runs are made of, as far as it differs; None where that is not known.
        accepted: the changes are taken as they are, only a target fails.
        targets: by ``int8`` and ``recipe``.
    """

    name: str
    run: str
    seconds: float
    figures: Figures | None = None
    baseline: NetworkBaseline | None = None
    changes: tuple[Change, ...] = ()
    noise: tuple[Change, ...] = ()
    differs: tuple[Difference, ...] | None = None
    accepted: bool = False
    targets: Mapping[str, float] | None = None
    message: str = ""

    @property
    def failures(self) -> tuple[Change, ...]:
        """The changes that fail the night."""
        return tuple(change for change in self.changes if change.fails_even_if(self.accepted))

    @property
    def status(self) -> str:
        """``passed``, ``failed``, or ``error`` where nothing could be measured."""
        if self.figures is None:
            return ERROR
        return FAILED if self.failures else PASSED

    def range_of(self, plan: str) -> tuple[float, ...]:
        """The baseline's similarities of ``int8`` or ``recipe``, those that were measured."""
        runs = self.baseline.runs if self.baseline else ()
        return tuple(value for run in runs if (value := run.similarity.get(plan)) is not None)

    def to_json(self) -> dict[str, Any]:
        """In JSON's types; of the figures the overall ones, the layers' are in the run folder."""
        return {
            "name": self.name,
            "status": self.status,
            "message": self.message,
            "run": self.run,
            "seconds": self.seconds,
            "targets": dict(self.targets or {}),
            "tonight": _overall(self.figures),
            "baseline": None if self.baseline is None else [_overall(run) for run in self.baseline.runs],
            "repeats": None if self.baseline is None else self.baseline.repeats,
            "changes": [{**asdict(change), "fails": change.fails_even_if(self.accepted)} for change in self.changes],
            "noise": [asdict(change) for change in self.noise],
            "differs": None if self.differs is None else [asdict(difference) for difference in self.differs],
        }


@dataclass(frozen=True)
class Regression(Saved, Presentable):
    """A night.

    Attributes:
        suite: the path of its file.
        folder: the night's.
        number: of the night in its folder.
        began: in UTC, ISO 8601.
        baseline: what it was compared with, for a person; empty where there was nothing.
        accepted: the night was taken as a baseline, by ``--update-baseline`` or because it is the first one.
        networks: in the suite's order.
        gone: networks of the baseline that the suite has no longer.
        baseline_folder: that ``--baseline`` named, to be updated; None for ``latest``, a run, a report or a night.
    """

    PRESENTER = "regression"
    JSON = REGRESSION

    suite: str
    folder: Path
    number: int
    began: str
    baseline: str
    accepted: bool
    networks: tuple[NetworkResult, ...]
    gone: tuple[str, ...] = ()
    baseline_folder: Path | None = None

    @property
    def status(self) -> str:
        """``failed`` where a network failed, else ``error`` where one could not be measured, else ``passed``."""
        found = {result.status for result in self.networks}
        return next((status for status in (FAILED, ERROR) if status in found), PASSED)

    @property
    def exit_code(self) -> int:
        """0 passed; 1 worse than the baseline, or a target missed; 3 a network could not be measured, none is worse."""
        return {PASSED: 0, FAILED: 1, ERROR: NothingMeasured.exit_code}[self.status]

    @property
    def is_worse(self) -> bool:
        """Whether something is worse than in the baseline, which ``--update-baseline`` would accept."""
        return any(change.kind != TARGET for result in self.networks for change in result.failures)

    def named(self, status: str) -> tuple[str, ...]:
        """The networks of a status."""
        return tuple(result.name for result in self.networks if result.status == status)

    def to_json(self) -> dict[str, Any]:
        """The contract of ``regression.json``: JSON types only, no NaN and no infinity."""
        record = {
            "schema": SCHEMA,
            "suite": self.suite,
            "night": self.folder.name,
            "number": self.number,
            "began": self.began,
            "baseline": self.baseline,
            "accepted": self.accepted,
            "status": self.status,
            "exit_code": self.exit_code,
            "networks": [result.to_json() for result in self.networks],
            "gone": self.gone,
        }
        types = plain(record)
        assert isinstance(types, dict)
        return types

    def _write_files(self, folder: Path) -> None:
        super()._write_files(folder)
        write_whole(folder / JUNIT, self._present("junit_xml"))
        write_whole(folder / SUMMARY, self._present("markdown").encode())


def of_kinds(changes: Sequence[Change], *kinds: str) -> list[Change]:
    """The changes of some kinds, in their order."""
    return [change for change in changes if change.kind in kinds]


def _overall(figures: Figures | None) -> dict[str, Any] | None:
    if figures is None:
        return None
    record = {name: value for name, value in figures.to_json().items() if name != "layers"}
    return {**record, "metric": figures.judge.name, "culprits": list(figures.culprits)}
