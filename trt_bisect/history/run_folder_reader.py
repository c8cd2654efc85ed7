"""Reads a run folder for the history: its reports, finished or not, and the trials in its journal."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from trt_bisect.analyzer.judge import Rule
from trt_bisect.analyzer.metrics import JUDGING
from trt_bisect.errors import BadInput
from trt_bisect.evaluator.accuracy import ACCURACY, accuracy_in
from trt_bisect.evaluator.trial import Trial
from trt_bisect.report.model import REPORT, SO_FAR, Report
from trt_bisect.report.older import read_report
from trt_bisect.report.recovery import RECOVERY, Recovery, read_recovery
from trt_bisect.runs.journal import JOURNAL, complete_lines, records_of, trial_of
from trt_bisect.runs.progress_file import FINISHED, INTERRUPTED, RUNNING, runs_in

_NAMES = (SO_FAR, REPORT, RECOVERY, JOURNAL)
_LAST = datetime(9999, 1, 1, tzinfo=timezone.utc).timestamp()


@dataclass(frozen=True)
class StoredReport:
    """A report in a run folder.

    Attributes:
        report: with the parts of the fingerprint as far as they are known; without figures if it is not finished.
        state: ``finished``, ``running`` or ``interrupted``.
        started: the time of the start in seconds since the epoch.
    """

    report: Report
    state: str
    started: float


@dataclass(frozen=True)
class StoredTrial:
    """A trial in a journal.

    Attributes:
        fingerprint: the fingerprint of its measurement.
        place: its number in the journal.
        trial: the trial.
        metric: the name of the metric; None if the files of the folder do not say by which metric the run judges.
        figure: the metric on the worst output; None if it has no value.
    """

    fingerprint: str
    place: int
    trial: Trial
    metric: str | None
    figure: float | None


@dataclass(frozen=True)
class StoredRun:
    """The content of a run folder.

    Attributes:
        folder: its absolute path.
        journal: the id of the journal, which stays the same when the folder is moved or copied.
        reports: the reports of ``run`` and of ``recover``.
        trials: the last trial of each plan.
        made_of: by fingerprint its parts, as far as they are known.
    """

    folder: Path
    journal: str
    reports: tuple[StoredReport, ...]
    trials: tuple[StoredTrial, ...]
    made_of: Mapping[str, Mapping[str, Any]]


def read_run_folder(folder: Path) -> StoredRun:
    """Reads a run folder. The run may be running.

    Raises:
        BadInput: the folder has no readable file of a run.
    """
    manifest, report, recovery = _files(folder)
    records = _records(folder)
    if not records and manifest is None and report is None and recovery is None:
        raise BadInput(f"There is no run in '{folder}'.", "Give the folder that 'run' or 'recover' wrote into.")
    made_of = {record["run"]: record["about"] for record in records if isinstance(record.get("about"), dict)}
    reports = [*_run_reports(folder, manifest, report), *_recovery_reports(folder, recovery)]
    known = [replace(each, report=_with_parts(each.report, made_of)) for each in reports]
    made_of.update({each.report.fingerprint: each.report.made_of for each in known})
    trials = _trials(records, _rule(manifest, report, recovery))
    made_of.update({each.fingerprint: {} for each in trials if each.fingerprint not in made_of})
    ids = [record["id"] for record in records if isinstance(record.get("id"), str)]
    journal = ids[0] if ids else f"in {folder.absolute()}"
    return StoredRun(folder.absolute(), journal, tuple(known), trials, made_of)


def holds_run(folder: Path) -> bool:
    """Returns true if a folder has a file of a run."""
    return any((folder / name).is_file() for name in _NAMES)


def run_folders(places: Iterable[Path]) -> list[Path]:
    """Returns the run folders among ``places`` and under them, the oldest run first. Links are not followed.

    Raises:
        BadInput: one of the places has no run folder.
    """
    found: dict[Path, float] = {}
    for place in places:
        here = [Path(folder) for folder, _, _ in os.walk(place) if holds_run(Path(folder))]
        dated = {folder: began for folder in here if (began := _began(folder)) is not None}
        if not dated:
            raise BadInput(f"There is no run in '{place}'.", "Give a run folder, or one above several.")
        found.update(dated)
    return sorted(found, key=lambda folder: (found[folder], folder))


def _began(folder: Path) -> float | None:
    """Returns the start of the oldest report in a folder, or the last write of its journal; None without both."""
    manifest, report, recovery = _files(folder)
    reports = (*_run_reports(folder, manifest, report), *_recovery_reports(folder, recovery))
    started = [each.started for each in reports]
    return min(started) if started else (folder / JOURNAL).stat().st_mtime if _records(folder) else None


def _files(folder: Path) -> tuple[Report | None, Report | None, Recovery | None]:
    return (
        read_report(folder / SO_FAR),
        read_report(folder / REPORT),
        read_recovery(folder / RECOVERY),
    )


def _records(folder: Path) -> list[dict[str, Any]]:
    """Returns the records in the complete lines of the journal."""
    try:
        content = (folder / JOURNAL).read_bytes()
    except OSError:
        return []
    lines = complete_lines(content).splitlines()
    return [record for record in records_of(lines) if isinstance(record.get("run"), str)]


def _run_reports(folder: Path, manifest: Report | None, report: Report | None) -> Iterator[StoredReport]:
    """Yields the finished report, and the run after it that has no report yet."""
    started = None
    if report is not None:
        started = report.started or _begun(folder / REPORT, report)
        yield StoredReport(report, INTERRUPTED if report.stopped == INTERRUPTED else FINISHED, _time(started))
    if manifest is not None and manifest.started != started:
        yield StoredReport(manifest, RUNNING if runs_in(folder) else INTERRUPTED, _time(manifest.started))


def _recovery_reports(folder: Path, recovery: Recovery | None) -> Iterator[StoredReport]:
    """Yields the result of ``recover`` as a report, with that command's exit code."""
    if recovery is not None:
        report = recovery.as_report(None)
        status = INTERRUPTED if recovery.stopped else FINISHED
        yield StoredReport(report, status, _time(report.started or _begun(folder / RECOVERY, report)))


def _time(given: object) -> float:
    """Returns a time in seconds since the epoch, rounded to microseconds as in the history; 0 if it is not a time."""
    return round(float(given), 6) if isinstance(given, (int, float)) and 0 <= given < _LAST else 0.0


def _begun(path: Path, report: Report) -> float:
    """Estimates the start of a run for a report without it: the time of the file less the duration of the run."""
    return path.stat().st_mtime - report.seconds.total


def _with_parts(report: Report, made_of: Mapping[str, Mapping[str, Any]]) -> Report:
    """Returns a report with the parts of its fingerprint, from the journal if the report has none."""
    known = report.made_of or made_of.get(report.fingerprint) or {"versions": dict(report.versions)}
    return replace(report, made_of=known)


def _rule(manifest: Report | None, report: Report | None, recovery: Recovery | None) -> Rule | None:
    """Returns the rule that judges the trials; None if the files of the folder do not say it."""
    report = report or manifest
    metric = report.metric if report else recovery.metric if recovery else ""
    return Rule(JUDGING[metric], report.threshold if report else 0.0) if metric in JUDGING else None


def _trials(records: list[dict[str, Any]], rule: Rule | None) -> tuple[StoredTrial, ...]:
    found: dict[tuple[str, str], StoredTrial] = {}
    for place, record in enumerate(records):
        trial = trial_of(record)
        if trial is not None:
            metric, figure = _figure(trial, rule)
            found[record["run"], trial.plan] = StoredTrial(record["run"], place, trial, metric, figure)
    return tuple(found.values())


def _figure(trial: Trial, rule: Rule | None) -> tuple[str | None, float | None]:
    if set(trial.outputs) == {ACCURACY} and set(trial.outputs[ACCURACY].values) == {ACCURACY}:
        return ACCURACY, accuracy_in(trial)
    return (None, None) if rule is None else (rule.metric.name, rule.similarity(trial))
