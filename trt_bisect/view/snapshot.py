"""Snapshots of a run folder: the report so far and the status of the run."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from trt_bisect.report.empty_report import empty_report
from trt_bisect.report.manifest import MANIFEST, RunManifest
from trt_bisect.report.model import REPORT, Report
from trt_bisect.report.recovery import RECOVERY
from trt_bisect.report.run_files import read_as, recovered_in
from trt_bisect.runs.progress_file import FINISHED, INTERRUPTED, PROGRESS, RUNNING, is_running
from trt_bisect.support.json_files import read_record
from trt_bisect.view.file_tail import JournalTail, Replaced, stamp_of
from trt_bisect.view.replay import Replay

_SHOWN = ("stage", "done", "total", "seconds", "what")
_AT_ONCE = 1.0
"""Seconds: a manifest that is older than the progress file by more than this is of another run."""


@dataclass(frozen=True)
class Snapshot:
    """The state of a run at one moment.

    Attributes:
        report: the finished report, that of a ``recover`` without a run, or that of the journal so far; empty while a
            run still calibrates.
        status: ``finished``, ``running`` or ``interrupted``.
        progress: the progress of a running run: ``stage``, ``done``, ``total``, ``seconds``, ``what``.
        when: the start of the run, in seconds since the epoch; the end for an old folder.
        whole: true if the report is of a finished run, with explanation and recipe in its folder.
    """

    report: Report
    status: str
    progress: Mapping[str, Any] | None
    when: float
    whole: bool


class Gone(Exception):
    """The folder has no run, or no longer has one."""


class RunFolder:
    """A run folder that is read repeatedly; a file is read again only if it changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._manifest = Replaced(path / MANIFEST, partial(read_as, RunManifest.from_json))
        self._report = Replaced(path / REPORT, partial(read_as, Report.from_json))
        self._recovered = Replaced(path / RECOVERY, recovered_in)
        self._journal: _JournalReport | None = None

    def snapshot(self) -> Snapshot:
        """Returns the current state.

        Raises:
            Gone: no file of a run can be read.
        """
        manifest, report, running = self._manifest.content(), self._report.content(), self._running()
        if manifest is None and report is None:
            report = self._recovered.content()
        if manifest is None and report is None and running is None:
            raise Gone(self.path)
        began = 0.0 if running is None else running["began"]
        progress = None if running is None else {name: running[name] for name in _SHOWN}
        prepares = manifest is None or manifest.started < began - _AT_ONCE
        if manifest is None or (prepares and report is not None):
            status = FINISHED if running is None else RUNNING
            when = began or (report.started if report else 0.0) or self._ended()
            return Snapshot(report or empty_report(self.path.name), status, progress, when, report is not None)
        if report is not None and manifest.answered_by(report) and (running is None or self._is_newer()):
            ended = INTERRUPTED if report.stopped == INTERRUPTED else FINISHED
            return Snapshot(report, ended if running is None else RUNNING, progress, manifest.started, whole=True)
        status = INTERRUPTED if running is None else RUNNING
        return Snapshot(self._so_far(manifest), status, progress, manifest.started, whole=False)

    def recovered(self) -> Snapshot | None:
        """Returns the state of a finished ``recover`` in the folder of a ``run``; None without one or the other."""
        found, report = self._recovered.content(), self._report.content()
        if found is None or report is None or Path(found.model).name != Path(report.model).name:
            return None
        stamp = self._recovered.stamp
        when = found.started or (stamp[0] / 1e9 if stamp else 0.0)
        return Snapshot(found, FINISHED, None, when, whole=True)

    def _running(self) -> dict[str, Any] | None:
        """Returns the progress file of a running run, None if no run is running."""
        path = self.path / PROGRESS
        record, stamp = read_record(path), stamp_of(path)
        if record is None or stamp is None or not {*_SHOWN, "began"} <= set(record):
            return None
        if not isinstance(record["began"], (int, float)):
            return None
        return record if is_running(record, time.time() - stamp[0] / 1e9) else None

    def _ended(self) -> float:
        stamp = self._report.stamp or self._recovered.stamp
        return stamp[0] / 1e9 if stamp else 0.0

    def _is_newer(self) -> bool:
        """Returns true if the report was written after the manifest."""
        return bool(self._report.stamp and self._manifest.stamp and self._report.stamp[0] >= self._manifest.stamp[0])

    def _so_far(self, manifest: RunManifest) -> Report:
        if self._journal is None or self._journal.manifest is not manifest:
            self._journal = _JournalReport(self.path, manifest)
        return self._journal.report()


class _JournalReport:
    """The report of a run under way, made from its journal."""

    def __init__(self, folder: Path, manifest: RunManifest) -> None:
        self.manifest = manifest
        self._tail = JournalTail(folder, manifest.blank.fingerprint)
        self._replay = Replay(manifest)
        self._changed = 0
        self._report: Report | None = None

    def report(self) -> Report:
        """Returns the report of the trials in the journal so far."""
        if self._tail.read() or self._report is None:
            if self._tail.changed != self._changed:
                self._replay, self._changed = Replay(self.manifest), self._tail.changed
            self._report = self._replay.report(self._tail.trials)
        return self._report
