"""The reference of a night: a baseline, a run, a report, or an earlier night."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trt_bisect.errors import BadInput, first_line
from trt_bisect.jobs.regress.nightly_folders import BASELINE, NIGHT, NightlyRuns
from trt_bisect.jobs.regress.run_figures import figures_of, origin_of
from trt_bisect.jobs.regress.suite import NetworkTask, Suite
from trt_bisect.results.baseline import NetworkBaseline, baseline_of, read_baseline
from trt_bisect.results.run_report import REPORT, Report

LATEST = "latest"


@dataclass(frozen=True)
class ReferenceRun:
    """The reference that a night is compared with.

    Attributes:
        said: what it is, for a person; empty where there is nothing yet.
        networks: by their name in the suite.
        folder: where ``--update-baseline`` writes it, None where only the night keeps it.
        is_latest: a night that passes hands it on to the next.
    """

    said: str
    networks: Mapping[str, NetworkBaseline]
    folder: Path | None = None
    is_latest: bool = False


def find_reference(baseline: str | Path, nights: NightlyRuns, suite: Suite, *, must_exist: bool) -> ReferenceRun:
    """Finds the reference that ``--baseline`` names.

    Raises:
        BadInput: it is not there though it ``must_exist``, it cannot be read, or a run is of none of the networks.
    """
    if str(baseline) == LATEST:
        night = nights.latest_baseline()
        if night is None:
            return ReferenceRun("", {}, is_latest=True)
        return ReferenceRun(f"night {night.number} ({night.began})", read_baseline(night.baseline), is_latest=True)
    path = Path(baseline)
    report = _report_in(path)
    if report is not None:
        return ReferenceRun(str(path), _of_run(report, suite))
    is_night = (path / NIGHT).is_file()
    networks = read_baseline(path / BASELINE if is_night else path)
    if not networks and must_exist:
        raise BadInput(
            f"There is no baseline in '{path}'.",
            "Make one with --update-baseline, or give a run folder, a report.json, or 'latest'.",
        )
    return ReferenceRun(str(path) if networks else "", networks, None if is_night else path)


def refuse_update(baseline: str | Path) -> None:
    """Raises BadInput where ``baseline`` is nothing that can be written over: a run, a report, a night."""
    path = Path(baseline)
    if str(baseline) != LATEST and (_report_in(path) is not None or (path / NIGHT).is_file() or path.is_file()):
        raise BadInput(
            f"'{path}' is a run or a night, and stays as it was measured.",
            "Give --update-baseline with 'latest', or with a --baseline folder of its own.",
        )


def _report_in(path: Path) -> Path | None:
    """The report that a path names, itself or by its run folder."""
    if path.is_dir():
        return path / REPORT if (path / REPORT).is_file() else None
    return path if path.is_file() else None


def _of_run(path: Path, suite: Suite) -> dict[str, NetworkBaseline]:
    try:
        report = Report.from_json(json.loads(path.read_bytes()))
        task = _task_of(report, path, suite)
        return {task.name: baseline_of(task.name, origin_of(report), [figures_of(report, task.direction)])}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadInput(
            f"'{path}' is no report: {type(error).__name__}: {first_line(error)}",
            "Give a report.json that 'run' wrote.",
        ) from error


def _task_of(report: Report, path: Path, suite: Suite) -> NetworkTask:
    """The network that a report is of: by its model's file, or by the folder's name; a suite of one has no other."""
    if len(suite.networks) == 1:
        return suite.networks[0]
    model = Path(report.model).name
    found = [task for task in suite.networks if Path(task.keywords["model"]).name == model]
    found = [task for task in found if path.parent.name == task.stem] or found
    if len(found) != 1:
        raise BadInput(
            f"'{path}' is of '{model}', which is the model of {len(found) or 'none'} of the suite's networks.",
            "Give a baseline of the whole suite; --update-baseline makes one.",
        )
    return found[0]
