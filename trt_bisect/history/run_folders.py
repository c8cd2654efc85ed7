"""Reads run folders for the history: their reports, finished or not."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from trt_bisect.errors import BadInput
from trt_bisect.history.queries import HistoryEntry
from trt_bisect.report.model import REPORT, SO_FAR, Report
from trt_bisect.report.older import read_report
from trt_bisect.runs.journal import JOURNAL, complete_lines, records_of
from trt_bisect.runs.progress_file import INTERRUPTED, RUNNING, runs_in

_EPOCH = datetime.fromtimestamp(0, timezone.utc)


def holds_run(folder: Path) -> bool:
    """Returns true if a folder has the file of a report."""
    return any((folder / name).is_file() for name in (SO_FAR, REPORT))


def run_folders(places: Iterable[Path]) -> list[Path]:
    """Returns the run folders among ``places`` and under them, the oldest run first. Links are not followed.

    Raises:
        BadInput: one of the places has no run folder.
    """
    began: dict[Path, datetime] = {}
    for place in places:
        folders = [Path(folder) for folder, _, _ in os.walk(place) if holds_run(Path(folder))]
        entries = [entry for folder in folders for entry in _reports_in(folder)]
        if not entries:
            raise BadInput(
                f"There is no run in '{place}'.", "Give a run folder, or the folder above several run folders."
            )
        for entry in entries:
            began[Path(entry.folder)] = min(began.get(Path(entry.folder), entry.started), entry.started)
    return sorted(began, key=lambda folder: (began[folder], folder))


def entries_in(folder: Path) -> list[HistoryEntry]:
    """Returns the reports in a run folder, finished or not. The run may be running.

    Raises:
        BadInput: the folder has no readable report.
    """
    entries = list(_reports_in(folder))
    if not entries:
        raise BadInput(f"There is no run in '{folder}'.", "Give the folder that 'run' wrote into.")
    run, made_of = _run_of(folder)
    for place, entry in enumerate(entries):
        report = entry.report
        known = report.made_of or made_of.get(report.fingerprint) or {"versions": dict(report.versions)}
        entries[place] = replace(entry, run=run, report=replace(report, made_of=known))
    return entries


def _reports_in(folder: Path) -> Iterator[HistoryEntry]:
    """Yields the report, and that of a later run which is not finished."""
    report, so_far = read_report(folder / REPORT), read_report(folder / SO_FAR)
    if report is not None:
        yield _entry(folder / REPORT, report)
    if so_far is not None and (report is None or so_far.started != report.started):
        yield _entry(folder / SO_FAR, replace(so_far, state=RUNNING if runs_in(folder) else INTERRUPTED))


def _entry(path: Path, report: Report) -> HistoryEntry:
    """Returns the report in a file as an entry without label and run. A report of an old version has no start."""
    started = report.started or path.stat().st_mtime - report.seconds.total
    try:
        when = datetime.fromtimestamp(started, timezone.utc)
    except (OverflowError, ValueError, OSError):
        when = _EPOCH
    return HistoryEntry(0, "", str(path.parent.absolute()), "", when, _EPOCH, report)


def _run_of(folder: Path) -> tuple[str, dict[str, Mapping[str, Any]]]:
    """Returns the id of the folder's journal, and by fingerprint its parts as the journal has them."""
    try:
        lines = complete_lines((folder / JOURNAL).read_bytes()).splitlines()
    except OSError:
        lines = []
    heads = [r for r in records_of(line for line in lines if b'"about"' in line) if isinstance(r.get("about"), dict)]
    ids = [head["id"] for head in heads if isinstance(head.get("id"), str)]
    return ids[0] if ids else f"in {folder.absolute()}", {str(head.get("run")): head["about"] for head in heads}
