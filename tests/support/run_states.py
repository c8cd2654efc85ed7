"""Folders of runs that go on or were killed, the reports that they write meanwhile, and the data that a page holds."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from trt_bisect import Report
from trt_bisect.commands.run.build_report import report_of
from trt_bisect.commands.run.live import Live
from trt_bisect.commands.run.state import RunState
from trt_bisect.report.parts import REPORT, SO_FAR
from trt_bisect.runs import progress_file
from trt_bisect.runs.progress_file import PROGRESS
from trt_bisect.support.codec import write
from trt_bisect.support.progress import Progress, Silent

_STEP = {"stage": "Measuring plans", "total": 9, "done": 3, "what": "ip1", "seconds": 1.0}


def interrupted(folder: Path, so_far: Report) -> None:
    """Turns a finished run's folder into that of a killed run."""
    (folder / REPORT).unlink(missing_ok=True)
    write(folder / SO_FAR, so_far)
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    progress = {"pid": int(dead.stdout), "born": 1, "host": socket.gethostname(), "began": 0.0, **_STEP}
    (folder / PROGRESS).write_text(json.dumps(progress))


def running(folder: Path, **changed) -> None:
    """Writes the progress of a run that goes on in this process."""
    me = {"pid": os.getpid(), "born": progress_file._born(os.getpid()), "host": socket.gethostname(), "began": 0.0}
    (folder / PROGRESS).write_text(json.dumps({**me, **_STEP, **changed}))


class Looking(Silent):
    """Looks at the report so far whenever the run begins a step.

    Attributes:
        kept: those with more trials than the one before, each with the trials that the stores had.
        state: the state that was watched last.
    """

    def __init__(self):
        self.kept: list[tuple[Report, set[str]]] = []
        self.state: RunState | None = None
        self._count = -1

    def watch(self, state):
        self.step("")
        self.state, self._count = state, -1
        self.step("")

    def stage(self, title, total):
        self.step(title)

    def step(self, what, size=1):
        if self.state is not None and self.state.trials() != self._count:
            self._count = self.state.trials()
            self.kept.append((report_of(self.state, files=False), set(self.state.of_curve.store.trials)))


def looked_at(run: Callable[[Progress], Report]) -> tuple[Report, Looking]:
    """Runs with a display that looks at each report so far; returns the report at the end and what it saw."""
    looking, watch = Looking(), Live.watch

    def looked(self, state, report=None):
        looking.watch(state)
        watch(self, state, report)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Live, "watch", looked)
        return run(looking), looking


def embedded(html: str) -> dict:
    """Returns the data inside a page."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)[1])
