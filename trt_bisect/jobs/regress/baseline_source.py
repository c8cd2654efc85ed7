"""The reference of a nightly run: a baseline folder, a run, a report, or an earlier nightly run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trt_bisect.errors import BadInput, first_line
from trt_bisect.jobs.regress.nightly_folders import BASELINE, NIGHTLY_RUN, RUNNING, NightlyRun, NightlyRuns
from trt_bisect.jobs.regress.suite import NetworkTask, Suite
from trt_bisect.report.model import REPORT, Report
from trt_bisect.report.older import report_of
from trt_bisect.report.regression.baseline import NetworkBaseline, baseline_of, read_baseline
from trt_bisect.report.regression.result import PASSED
from trt_bisect.report.regression.run_changes import figures_of, origin_of
from trt_bisect.support.codec import Malformed

LATEST = "latest"
_NAMED = 3
"""The most failed nightly runs that a description names."""


@dataclass(frozen=True)
class ReferenceRun:
    """The figures with which a nightly run is compared.

    Attributes:
        description: the description for the user; empty if there is no reference yet.
        networks: the baselines by the network's name in the suite.
        folder: ``--update-baseline`` writes the baseline here; None if it is written into the nightly run only.
        is_latest: the reference is the latest nightly run; a nightly run that passes becomes the next reference.
    """

    description: str
    networks: Mapping[str, NetworkBaseline]
    folder: Path | None = None
    is_latest: bool = False


def find_reference(baseline: str | Path, nightly_runs: NightlyRuns, suite: Suite, *, must_exist: bool) -> ReferenceRun:
    """Returns the reference that ``--baseline`` names.

    Args:
        baseline: ``latest``, a baseline folder, the folder of a nightly run or a run, or a ``report.json``.
        nightly_runs: the nightly runs of the suite.
        suite: the suite.
        must_exist: it is an error if there is no baseline in the folder.

    Raises:
        BadInput: there is no baseline although it ``must_exist``, it cannot be read, or a run is of another network.
    """
    if str(baseline) == LATEST:
        nightly_run = nightly_runs.latest_baseline()
        if nightly_run is None:
            return ReferenceRun("", {}, is_latest=True)
        description = f"{nightly_run.title}, {_why(nightly_run, nightly_runs.all())}"
        return ReferenceRun(description, read_baseline(nightly_run.baseline), is_latest=True)
    path = Path(baseline)
    report = _report_in(path)
    if report is not None:
        return ReferenceRun(str(path), _of_run(report, suite))
    is_nightly_run = (path / NIGHTLY_RUN).is_file()
    networks = read_baseline(path / BASELINE if is_nightly_run else path)
    if not networks and must_exist:
        raise BadInput(
            f"There is no baseline in '{path}'.",
            "Make one with --update-baseline, or give a run folder, a report.json, or 'latest'.",
        )
    return ReferenceRun(str(path) if networks else "", networks, None if is_nightly_run else path)


def _why(chosen: NightlyRun, nightly_runs: list[NightlyRun]) -> str:
    """Returns the reason why the latest baseline is that of a nightly run, in words."""
    later = [each for each in nightly_runs if each.number > chosen.number and each.status not in (RUNNING, PASSED)]
    failed = ", ".join(f"{each.number} ({each.status})" for each in later[-_NAMED:])
    reason = "the newest that passed or was accepted"
    return f"{reason}; not nightly run {failed}" if failed else reason


def refuse_update(baseline: str | Path) -> None:
    """Raises BadInput if ``baseline`` must not be overwritten: a run, a report, or a nightly run."""
    path = Path(baseline)
    if str(baseline) != LATEST and (_report_in(path) is not None or (path / NIGHTLY_RUN).is_file() or path.is_file()):
        raise BadInput(
            f"'{path}' is a run or a nightly run and is not overwritten.",
            "Give --update-baseline with 'latest', or with a --baseline folder of its own.",
        )


def _report_in(path: Path) -> Path | None:
    """Returns the report that a path or its run folder names; None if there is none."""
    if path.is_dir():
        return path / REPORT if (path / REPORT).is_file() else None
    return path if path.is_file() else None


def _of_run(path: Path, suite: Suite) -> dict[str, NetworkBaseline]:
    try:
        report = report_of(path.read_bytes())
        task = _task_of(report, path, suite)
        return {task.name: baseline_of(task.name, origin_of(report), [figures_of(report, task.direction)])}
    except (OSError, Malformed, RecursionError) as error:
        raise BadInput(
            f"'{path}' is not a report: {type(error).__name__}: {first_line(error)}",
            "Give a report.json that 'run' wrote.",
        ) from error


def _task_of(report: Report, path: Path, suite: Suite) -> NetworkTask:
    """Returns the network of a report, found by the name of the model file or of the run folder.

    Raises:
        BadInput: none or several networks of the suite have that model.
    """
    if len(suite.networks) == 1:
        return suite.networks[0]
    model = Path(report.model).name
    found = [task for task in suite.networks if Path(task.keywords["model"]).name == model]
    found = [task for task in found if path.parent.name == task.stem] or found
    if len(found) != 1:
        raise BadInput(
            f"The model '{model}' of '{path}' is the model of {len(found) or 'none'} of the suite's networks.",
            "Give a baseline of the whole suite; --update-baseline makes one.",
        )
    return found[0]
