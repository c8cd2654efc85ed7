"""One look at a run folder: its report as far as there is one, and whether the run goes on."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from trt_bisect.results.empty_report import empty_report
from trt_bisect.results.manifest import ASKED, RunManifest
from trt_bisect.results.recovery import RECOVERY
from trt_bisect.results.run_files import read_as, recovered_in
from trt_bisect.results.run_report import REPORT, Report
from trt_bisect.runs.progress_file import FINISHED, INTERRUPTED, PROGRESS, RUNNING, is_running
from trt_bisect.support.json_files import read_record
from trt_bisect.view.file_tail import JournalTail, Replaced, stamp_of
from trt_bisect.view.replay import Replay

_SHOWN = ("stage", "done", "total", "seconds", "what")
_AT_ONCE = 1.0
"""Seconds: a run that asked longer ago than this before a progress began is another run."""


@dataclass(frozen=True)
class Snapshot:
    """What is known of a run.

    Attributes:
        report: the finished one, that of a ``recover`` without a run, or what the journal says so far; nothing in it
            for a run that calibrates yet.
        status: ``finished``, ``running`` or ``interrupted``.
        progress: of a run that goes on: ``stage``, ``done``, ``total``, ``seconds``, ``what``.
        when: the run began, in seconds since the epoch; of an old folder, when it ended.
        whole: the report is a finished run's, with explanation and recipe beside it.
    """

    report: Report
    status: str
    progress: Mapping[str, Any] | None
    when: float
    whole: bool


class Gone(Exception):
    """There is no run in the folder, or no more."""


class RunFolder:
    """A run folder that is looked at again and again; only what changed is read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._asked = Replaced(path / ASKED, partial(read_as, RunManifest.from_json))
        self._report = Replaced(path / REPORT, partial(read_as, Report.from_json))
        self._recovered = Replaced(path / RECOVERY, recovered_in)
        self._replayed: _Replayed | None = None

    def look(self) -> Snapshot:
        """What is known now.

        Raises:
            Gone: nothing that a run has written can be read.
        """
        asked, report, running = self._asked.content(), self._report.content(), self._running()
        if asked is None and report is None:
            report = self._recovered.content()
        if asked is None and report is None and running is None:
            raise Gone(self.path)
        began = 0.0 if running is None else running["began"]
        progress = None if running is None else {name: running[name] for name in _SHOWN}
        prepares = asked is None or asked.started < began - _AT_ONCE
        if asked is None or (prepares and report is not None):
            status = FINISHED if running is None else RUNNING
            return Snapshot(
                report or empty_report(self.path.name), status, progress, began or self._ended(), report is not None
            )
        if report is not None and asked.answered_by(report) and (running is None or self._is_newer()):
            return Snapshot(report, FINISHED if running is None else RUNNING, progress, asked.started, whole=True)
        status = INTERRUPTED if running is None else RUNNING
        return Snapshot(self._so_far(asked), status, progress, asked.started, whole=False)

    def _running(self) -> dict[str, Any] | None:
        """What a run that goes on has written of itself."""
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
        """The report was written after the run asked."""
        return bool(self._report.stamp and self._asked.stamp and self._report.stamp[0] >= self._asked.stamp[0])

    def _so_far(self, asked: RunManifest) -> Report:
        if self._replayed is None or self._replayed.asked is not asked:
            self._replayed = _Replayed(self.path, asked)
        return self._replayed.report()


class _Replayed:
    """What the journal says of one question."""

    def __init__(self, folder: Path, asked: RunManifest) -> None:
        self.asked = asked
        self._tail = JournalTail(folder, asked.blank.fingerprint)
        self._replay = Replay(asked)
        self._changed = 0
        self._report: Report | None = None

    def report(self) -> Report:
        """The report as far as the journal goes now."""
        if self._tail.read() or self._report is None:
            if self._tail.changed != self._changed:
                self._replay, self._changed = Replay(self.asked), self._tail.changed
            self._report = self._replay.go_on(self._tail.trials)
        return self._report
