"""The result of ``regress``: the networks of a nightly run against their baselines, and ``regression.json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trt_bisect.analyzer.changes import TARGET, Change
from trt_bisect.analyzer.differences import Difference
from trt_bisect.analyzer.figures import Figures
from trt_bisect.errors import NothingMeasured
from trt_bisect.report.regression.baseline import NetworkBaseline
from trt_bisect.report.saving import Saved
from trt_bisect.support.files import write_whole
from trt_bisect.support.plain_json import plain

SCHEMA = 1
REGRESSION, JUNIT, SUMMARY = "regression.json", "junit.xml", "summary.md"
FILES = (REGRESSION, JUNIT, SUMMARY)
PASSED, FAILED, ERROR = "passed", "failed", "error"


@dataclass(frozen=True)
class NetworkResult:
    """One network of a nightly run.

    Attributes:
        name: the name in the suite.
        run: the run folder, relative to the nightly folder.
        seconds: the time measuring it took, repeats included.
        figures: None where nothing could be measured; ``message`` has the reason.
        baseline: the runs that it was compared with; None for a new network.
        changes: the changes that a repeat confirmed, and missed targets.
        noise: changes that the repeat did not confirm.
        differs: the parts that differ between the two runs; None where they are not known.
        accepted: the changes are accepted, so that only a missed target fails.
        targets: the targets of ``int8`` and ``recipe``.
        message: the reason why nothing could be measured.
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
        """The changes that fail the nightly run."""
        return tuple(change for change in self.changes if change.fails_even_if(self.accepted))

    @property
    def status(self) -> str:
        """``passed``, ``failed``, or ``error`` where nothing could be measured."""
        if self.figures is None:
            return ERROR
        return FAILED if self.failures else PASSED

    def range_of(self, plan: str) -> tuple[float, ...]:
        """Returns the similarities of ``int8`` or ``recipe`` that were measured in the baseline."""
        runs = self.baseline.runs if self.baseline else ()
        return tuple(value for run in runs if (value := run.similarity.get(plan)) is not None)

    def to_json(self) -> dict[str, Any]:
        """Returns the entry of ``regression.json``: the overall figures; those of layers are in the run folder."""
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
class Regression(Saved):
    """A nightly run.

    Attributes:
        suite: the path of its file.
        folder: the folder of this nightly run.
        number: the number of the nightly run in its folder.
        began: the time of its start in UTC, ISO 8601.
        baseline: a description of the baseline; empty without one.
        accepted: this run became the baseline, by ``--update-baseline`` or as the first one that passed.
        networks: the networks in the suite's order.
        gone: networks of the baseline that the suite no longer has.
        baseline_folder: the folder that ``--baseline`` named and that can be updated; None for ``latest``, a run, a
            report or a nightly run.
    """

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
        """``failed`` if a network failed, else ``error`` if one could not be measured, else ``passed``."""
        found = {result.status for result in self.networks}
        return next((status for status in (FAILED, ERROR) if status in found), PASSED)

    @property
    def exit_code(self) -> int:
        """0: passed. 1: worse than the baseline, or a target missed. 3: a network not measured, and none worse."""
        return {PASSED: 0, FAILED: 1, ERROR: NothingMeasured.exit_code}[self.status]

    @property
    def is_worse(self) -> bool:
        """True if a figure is worse than in the baseline, which ``--update-baseline`` would accept."""
        return any(change.kind != TARGET for result in self.networks for change in result.failures)

    def named(self, status: str) -> tuple[str, ...]:
        """Returns the names of the networks with a status."""
        return tuple(result.name for result in self.networks if result.status == status)

    def to_json(self) -> dict[str, Any]:
        """Returns the content of ``regression.json``: JSON types, no NaN and no infinity."""
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
        """Writes ``regression.json``, ``junit.xml`` and ``summary.md``."""
        from trt_bisect.report.regression.junit import junit_xml
        from trt_bisect.report.regression.markdown import markdown

        super()._write_files(folder)
        write_whole(folder / JUNIT, junit_xml(self))
        write_whole(folder / SUMMARY, markdown(self).encode())


def of_kinds(changes: Sequence[Change], *kinds: str) -> list[Change]:
    """Returns the changes of the given kinds, in their order."""
    return [change for change in changes if change.kind in kinds]


def _overall(figures: Figures | None) -> dict[str, Any] | None:
    if figures is None:
        return None
    record = {name: value for name, value in figures.to_json().items() if name != "layers"}
    return {**record, "metric": figures.judge.name, "culprits": list(figures.culprits)}
