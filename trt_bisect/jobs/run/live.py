"""The report of a run under way, kept in its folder while it goes on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import perf_counter

from trt_bisect.errors import BadInput
from trt_bisect.report.model import SO_FAR, Report
from trt_bisect.support.codec import write
from trt_bisect.support.progress import Progress

_EVERY = 1.0
"""Seconds between two reports; more where making one takes more than a twentieth of that."""
_SHARE = 0.05


class Live:
    """A display that also writes ``run.json``: what is known so far. An error in that does not stop the run.

    Args:
        shown: the display.
        folder: the run folder; None to write nothing.
    """

    def __init__(self, shown: Progress, folder: Path | None) -> None:
        self._shown, self._folder = shown, folder
        self._so_far: Callable[[], Report] | None = None
        self._due = 0.0

    def watch(self, so_far: Callable[[], Report] | None) -> None:
        """Begins to write what a function returns, at once and with the steps that follow; None ends that."""
        self._so_far, self._due = so_far, 0.0
        self._write()

    def keep(self, report: Report) -> None:
        """Writes a report, which stays."""
        self.watch(lambda: report)
        self._so_far = None

    def stage(self, title: str, total: int | None) -> None:
        """Begins a stage."""
        self._shown.stage(title, total)

    def step(self, what: str, size: int = 1) -> None:
        """Begins a step."""
        self._shown.step(what, size)
        self._write()

    def say(self, text: str) -> None:
        """Shows a permanent line."""
        self._shown.say(text)

    def close(self) -> None:
        """Ends the display."""
        self._shown.close()

    def _write(self) -> None:
        began = perf_counter()
        if self._folder is None or self._so_far is None or began < self._due:
            return
        with suppress(OSError, BadInput):
            write(self._folder / SO_FAR, self._so_far())
        self._due = perf_counter() + max(_EVERY, (perf_counter() - began) / _SHARE)
