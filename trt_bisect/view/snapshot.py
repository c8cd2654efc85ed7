"""Snapshots of a run folder: the report so far and the status of the run."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trt_bisect._version import __version__
from trt_bisect.analyzer.judge import DEFAULT_SHARE
from trt_bisect.analyzer.metrics import DEFAULT_THRESHOLDS
from trt_bisect.precision import Precision
from trt_bisect.report.model import REPORT, SO_FAR, Report
from trt_bisect.report.older import read_report
from trt_bisect.report.recovery import RECOVERY, recovered_in
from trt_bisect.runs.progress_file import FINISHED, INTERRUPTED, PROGRESS, RUNNING, is_running
from trt_bisect.support.json_files import read_record
from trt_bisect.view.file_tail import Replaced, stamp_of

_SHOWN = ("stage", "done", "total", "seconds", "what")
_AT_ONCE = 1.0
"""Seconds: a report so far that began earlier than the progress file by more than this is of another run."""


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
        self._so_far = Replaced(path / SO_FAR, read_report)
        self._report = Replaced(path / REPORT, read_report)
        self._recovered = Replaced(path / RECOVERY, recovered_in)

    def snapshot(self) -> Snapshot:
        """Returns the current state.

        Raises:
            Gone: no file of a run can be read.
        """
        so_far, report, running = self._so_far.content(), self._report.content(), self._running()
        if so_far is None and report is None:
            report = self._recovered.content()
        if so_far is None and report is None and running is None:
            raise Gone(self.path)
        began = 0.0 if running is None else running["began"]
        progress = None if running is None else {name: running[name] for name in _SHOWN}
        prepares = so_far is None or so_far.started < began - _AT_ONCE
        if so_far is not None and not (prepares and report is not None):
            return Snapshot(so_far, INTERRUPTED if running is None else RUNNING, progress, so_far.started, whole=False)
        ended = report.state if report is not None else FINISHED
        when = began or (report.started if report else 0.0) or self._ended()
        status = ended if running is None else RUNNING
        return Snapshot(report or _unread(self.path.name), status, progress, when, report is not None)

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


def _unread(model: str) -> Report:
    """Returns the report of a run that has nothing but the name of its folder."""
    return Report(
        model=model,
        engine="",
        typing="",
        strategy="",
        arithmetic="",
        metric="cosine",
        threshold=DEFAULT_THRESHOLDS["cosine"],
        share=DEFAULT_SHARE,
        precision=str(Precision.FP32),
        versions={"trt_bisect": __version__},
        fingerprint="",
    )
