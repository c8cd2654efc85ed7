"""What a run folder holds for the history: its reports, finished or not, and the trials in its journal."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from trt_bisect.analyzer.judge import Rule
from trt_bisect.analyzer.metrics import BUILT_IN
from trt_bisect.errors import BadInput
from trt_bisect.evaluator.accuracy import ACCURACY, accuracy_in
from trt_bisect.evaluator.trial import Trial
from trt_bisect.results.empty_report import recovered_report
from trt_bisect.results.manifest import MANIFEST, RunManifest
from trt_bisect.results.recovery import RECOVERY, Recovery
from trt_bisect.results.run_files import read_as
from trt_bisect.results.run_report import REPORT, Report
from trt_bisect.runs.journal import JOURNAL, records_of, trial_of
from trt_bisect.runs.progress_file import FINISHED, INTERRUPTED, RUNNING, runs_in

_NAMES = (MANIFEST, REPORT, RECOVERY, JOURNAL)
_LAST = datetime(9999, 1, 1, tzinfo=timezone.utc).timestamp()


@dataclass(frozen=True)
class StoredReport:
    """A report as it stands in a run folder.

    Attributes:
        report: with ``made_of``, as far as it is known; nothing measured in it where it is not finished.
        state: ``finished``, ``running`` or ``interrupted``.
        started: when, in seconds since the epoch.
    """

    report: Report
    state: str
    started: float


@dataclass(frozen=True)
class StoredTrial:
    """A trial as it stands in a journal.

    Attributes:
        fingerprint: that it was measured under.
        place: its number in the journal.
        metric: that ``figure`` is of; None where the folder does not tell by which the run judges.
        figure: the metric on the worst output; None where there is none.
    """

    fingerprint: str
    place: int
    trial: Trial
    metric: str | None
    figure: float | None


@dataclass(frozen=True)
class StoredRun:
    """What a run folder holds.

    Attributes:
        journal: tells these measurements from all others, wherever the folder is moved or copied to.
        made_of: by fingerprint the parts that it is the digest of, as far as they are known.
        trials: the last one of each plan.
    """

    folder: Path
    journal: str
    reports: tuple[StoredReport, ...]
    trials: tuple[StoredTrial, ...]
    made_of: Mapping[str, Mapping[str, Any]]


def take(folder: Path) -> StoredRun:
    """Reads a run folder; the run may go on meanwhile.

    Raises:
        BadInput: there is nothing of a run in it that can be read.
    """
    asked, report, recovery = _files(folder)
    records = _records(folder)
    if not records and asked is None and report is None and recovery is None:
        raise BadInput(f"There is no run in '{folder}'.", "Give the folder that 'run' or 'recover' wrote into.")
    made_of = {record["run"]: record["about"] for record in records if isinstance(record.get("about"), dict)}
    reports = [*_run_reports(folder, asked, report), *_recovered(folder, recovery)]
    known = [replace(each, report=_knowing_parts(each.report, made_of)) for each in reports]
    made_of.update({each.report.fingerprint: each.report.made_of for each in known})
    trials = _trials(records, _rule(asked, report, recovery))
    made_of.update({each.fingerprint: {} for each in trials if each.fingerprint not in made_of})
    ids = [record["id"] for record in records if isinstance(record.get("id"), str)]
    journal = ids[0] if ids else f"in {folder.absolute()}"
    return StoredRun(folder.absolute(), journal, tuple(known), trials, made_of)


def holds_run(folder: Path) -> bool:
    """Whether a folder holds something of a run that can be taken in."""
    return any((folder / name).is_file() for name in _NAMES)


def run_folders(places: Iterable[Path]) -> list[Path]:
    """The run folders among ``places`` and under them, the oldest run first; links are not followed.

    Raises:
        BadInput: there is none in one of the places.
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
    """When the oldest report in a folder began, or its journal was written last; None where neither can be read."""
    asked, report, recovery = _files(folder)
    started = [each.started for each in (*_run_reports(folder, asked, report), *_recovered(folder, recovery))]
    return min(started) if started else (folder / JOURNAL).stat().st_mtime if _records(folder) else None


def _files(folder: Path) -> tuple[RunManifest | None, Report | None, Recovery | None]:
    return (
        read_as(RunManifest.from_json, folder / MANIFEST),
        read_as(Report.from_json, folder / REPORT),
        read_as(Recovery.from_json, folder / RECOVERY),
    )


def _records(folder: Path) -> list[dict[str, Any]]:
    """The journal's records as far as it is written to the end of a line."""
    try:
        content = (folder / JOURNAL).read_bytes()
    except OSError:
        return []
    whole = content[: content.rfind(b"\n") + 1].splitlines()
    return [record for record in records_of(whole) if isinstance(record.get("run"), str)]


def _run_reports(folder: Path, asked: RunManifest | None, report: Report | None) -> Iterator[StoredReport]:
    """The finished report, and what was asked after it and is not answered."""
    started = None
    if report is not None:
        answers = asked is not None and not report.started and asked.answered_by(report)
        started = asked.started if asked and answers else report.started or _begun(folder / REPORT, report)
        yield StoredReport(report, FINISHED, _time(started))
    if asked is not None and asked.started != started:
        yield StoredReport(asked.blank, RUNNING if runs_in(folder) else INTERRUPTED, _time(asked.started))


def _recovered(folder: Path, recovery: Recovery | None) -> Iterator[StoredReport]:
    """What ``recover`` found, with its own exit code."""
    if recovery is not None:
        report = replace(recovered_report(recovery, None), exit_code=0 if recovery.meets else 1)
        status = INTERRUPTED if recovery.stopped else FINISHED
        yield StoredReport(report, status, _time(report.started or _begun(folder / RECOVERY, report)))


def _time(given: object) -> float:
    """Seconds since the epoch, to the microsecond as times are read again; 0 where a file says nonsense."""
    return round(float(given), 6) if isinstance(given, (int, float)) and 0 <= given < _LAST else 0.0


def _begun(path: Path, report: Report) -> float:
    """About when a run began whose report does not say it: as long before the report was written as it took."""
    return path.stat().st_mtime - report.seconds.get("total", 0.0)


def _knowing_parts(report: Report, made_of: Mapping[str, Mapping[str, Any]]) -> Report:
    """The report with its fingerprint's parts from the journal, where it does not know them itself."""
    known = report.made_of or made_of.get(report.fingerprint) or {"versions": dict(report.versions)}
    return replace(report, made_of=known)


def _rule(asked: RunManifest | None, report: Report | None, recovery: Recovery | None) -> Rule | None:
    """What the trials are judged by, as far as the folder tells."""
    if asked is not None:
        return asked.rule
    metric = report.metric if report else recovery.metric if recovery else ""
    return Rule(BUILT_IN[metric], report.threshold if report else 0.0) if metric in BUILT_IN else None


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
