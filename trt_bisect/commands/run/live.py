"""The report of a run so far, kept in ``run.json``; and the ways in which a run is stopped."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from dataclasses import replace
from math import inf
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any

from trt_bisect.commands.run import build_report as reporting
from trt_bisect.commands.run.build_report import missing_in, stopped_report
from trt_bisect.commands.run.state import Phase, RunState
from trt_bisect.errors import NoRoom, lacks_room
from trt_bisect.report import summary
from trt_bisect.report.explanation import EXPLANATION, PICTURES
from trt_bisect.report.model import Report, read_report
from trt_bisect.report.network_graph import NETWORK
from trt_bisect.report.parts import LAYERS, REPORT, SO_FAR, UNMEASURED
from trt_bisect.runs.progress_file import RUNNING
from trt_bisect.support.codec import encode, write
from trt_bisect.support.files import write_whole
from trt_bisect.support.progress import Progress, TimeUp

_EVERY = 1.0  # the least seconds between two reports
SHARE = 0.05  # the largest share of a run's time that goes into writing reports so far and their recipes


class Live:
    """Writes ``run.json`` from its own thread while a run goes on. An error in the writing does not stop the run.

    A run that is killed, or that ends without a report, leaves the file. Without a folder nothing is written.

    Attributes:
        earlier: true while ``run.json`` is of a killed run of the same network, data and options that found a recipe:
            that file stays until this run has a recipe that costs no more, or a verdict.
        cost_before: the cost of the cheapest recipe that earlier runs with the same question left in the folder.
    """

    def __init__(self, folder: Path | None) -> None:
        self.earlier, self.cost_before = False, inf
        self._path = None if folder is None else folder / SO_FAR
        self._state: RunState | None = None
        self._written, self._seconds = -1, 0.0
        self._writing, self._ended = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._write_often, name="trt-bisect report", daemon=True)

    def __enter__(self) -> Live:
        if self._path is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def watch(self, state: RunState, report: Report | None = None) -> None:
        """Writes ``run.json`` at once (``report``, or that of ``state`` if None), and again whenever the run has more
        trials.
        """
        with self._writing:
            self.earlier = self.earlier and state.phase < Phase.VERDICT and not state.known.stopped
            self._state, self._written = state, -1
            self._write_changed(report)

    def end(self) -> None:
        """Removes ``run.json``; called when the final report is saved."""
        with self._writing:
            self._state = None
            if self._path is not None:
                with suppress(OSError):
                    self._path.unlink(missing_ok=True)

    def _write_often(self) -> None:
        while not self._ended.wait(max(_EVERY, self._seconds / SHARE)):
            with self._writing:
                self._write_changed()

    def _write_changed(self, report: Report | None = None) -> None:
        state, path = self._state, self._path
        if state is None or path is None or (trials := state.trials()) == self._written:
            return
        began = perf_counter()
        try:
            report = report or reporting.report_of(state, files=False)
            self.earlier = self.earlier and cost_of(report) > self.cost_before
            if not self.earlier:
                write(path, replace(report, state=RUNNING))
            self._written = trials
        except Exception:
            logging.getLogger(__name__).debug("no report so far", exc_info=True)
        self._seconds = perf_counter() - began


STOPS = (KeyboardInterrupt, TimeUp, NoRoom, OSError)  # the errors that may stop a run; ``stopped_by`` tells which do


class StoppedRun(KeyboardInterrupt):
    """Raised if the user interrupts a run. ``report`` is the report so far, the error's text its summary."""

    def __init__(self, report: Report) -> None:
        super().__init__(report.summary)
        self.report = report


def stopped_by(error: BaseException) -> str:
    """Returns the reason for which an error stops a run: ``interrupted``, ``time limit`` or ``no room``; empty if it
    does not stop runs.
    """
    if isinstance(error, KeyboardInterrupt):
        return summary.INTERRUPTED
    if isinstance(error, TimeUp):
        return summary.TIME_LIMIT
    return summary.NO_ROOM if lacks_room(error) else ""


def save_report(report: Report, folder: Path | None, live: Live, shown: Progress, *, recipe: bool = True) -> Report:
    """Saves a report and returns it; without a folder only returns it.

    If the run was stopped, and the folder has an earlier report with a verdict or a cheaper recipe, this
    earlier report stays and is returned. If the disk is full, only ``report.json`` is written, if there is room for it,
    and NoRoom or OSError is raised.

    Args:
        recipe: false if the folder has the recipe's files already.
    """
    if folder is None:
        return report
    earlier = [read_report(folder / name) for name in (REPORT, SO_FAR)] if report.stopped else []
    others = [saved for saved in earlier if saved is not None and saved.started != report.started]
    before = next((saved for saved in others if _knows_more(saved, report)), None)
    if before is not None:
        shown.say(f"The report in {folder} stays: it is of an earlier run, and knows more")
        report = before if before.state != RUNNING else stopped_report(before, report.stopped, [missing_in(before)])
    if before is None or report is not before:
        try:
            report.save(folder, recipe=recipe)
        except (NoRoom, OSError) as error:
            if lacks_room(error):
                _save_alone(stopped_report(report, summary.NO_ROOM, ["not all of its files are there"]), folder, live)
            raise
    live.end()
    return report


def _save_alone(report: Report, folder: Path, live: Live) -> None:
    # without room, the files go first that the next run would rewrite
    in_the_way = [folder / name for name in (LAYERS, EXPLANATION, PICTURES, NETWORK)]
    for remove in (lambda: None, *(path.unlink for path in in_the_way), live.end):
        with suppress(OSError):
            remove()
        with suppress(NoRoom):
            write_whole(folder / REPORT, encode(report))
            return


def _knows_more(before: Report, report: Report) -> bool:
    # A verdict counts most. Of two with the same question, a finished report or the cheaper recipe knows more; of two
    # without a verdict, the one with more trials.
    if UNMEASURED in (before.verdict, report.verdict):
        return report.verdict == UNMEASURED and (before.verdict != UNMEASURED or before.plans > report.plans)
    is_better = not before.stopped or cost_of(before) < cost_of(report)
    return is_better and question_in(before) == question_in(report)


def cost_of(report: Report) -> float:
    """Returns the cost of the report's recipe; infinite without one that passes."""
    return report.answer.cost if report.answer is not None and report.recipe.meets else inf


def question_in(report: Report) -> dict[str, Any]:
    """Returns the facts that must be equal for two runs to be compared, by name: the fingerprint's parts (without the
    ranges), metric, threshold, strategy and goal.
    """
    parts = ("metric", "threshold", "share", "strategy", "goal")
    return {**without_ranges(report), **{name: getattr(report, name) for name in parts}}


def without_ranges(report: Report) -> dict[str, Any]:
    """Returns the parts of the report's fingerprint, with the part ``ranges`` empty, which the run chooses itself."""
    return {**report.made_of, "ranges": ""}
