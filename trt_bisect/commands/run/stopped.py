"""Runs that are stopped: by what, what their reports say, and which report stays in the folder."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

from trt_bisect.commands.run.live import Live
from trt_bisect.errors import NoRoom, lacks_room
from trt_bisect.report.explanation import EXPLANATION
from trt_bisect.report.model import LAYERS, REPORT, SO_FAR, UNMEASURED, Report
from trt_bisect.report.network_graph import NETWORK
from trt_bisect.report.older import read_report
from trt_bisect.report.pictures import PICTURES
from trt_bisect.report.summary import (
    INTERRUPTED,
    NO_ROOM,
    STOPPED,
    TIME_LIMIT,
    UNEXPLAINED,
    above_verdict,
    stopped_line,
)
from trt_bisect.runs.progress_file import FINISHED, RUNNING
from trt_bisect.support.codec import encode
from trt_bisect.support.files import write_whole
from trt_bisect.support.progress import Progress, TimeUp

STOPS = (KeyboardInterrupt, TimeUp, NoRoom, OSError)
"""The errors among which are all that stop a run; see ``stopped_by``."""


class StoppedRun(KeyboardInterrupt):
    """The user interrupted a run.

    Attributes:
        report: the report so far; its ``summary`` ends with what was not done.
    """

    def __init__(self, report: Report) -> None:
        super().__init__(report.summary)
        self.report = report


def stopped_by(error: BaseException) -> str:
    """Returns the way in which an error stops a run, as ``Report.stopped`` has it; empty for another error."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, TimeUp):
        return TIME_LIMIT
    return NO_ROOM if lacks_room(error) else ""


def stopped_report(report: Report, stopped: str, not_done: Sequence[str]) -> Report:
    """Returns the report of a run that was stopped after its verdict."""
    answer = report.answer
    known = answer.not_done if answer is not None else ()
    lines = [line for line in report.lines if line.kind != STOPPED]
    state = FINISHED if stopped == TIME_LIMIT else INTERRUPTED
    missing = tuple(dict.fromkeys([*known, *not_done]))
    answer = None if answer is None else replace(answer, not_done=missing)
    return report.changed(stopped=stopped, state=state, answer=answer, lines=(*lines, stopped_line(stopped, missing)))


def without_verdict(report: Report, stopped: str) -> Report:
    """Returns the report of a run that was stopped before full INT8 was measured on all inputs."""
    line = stopped_line(stopped, [missing_in(report)])
    return report.changed(state=INTERRUPTED, stopped=stopped, lines=(*above_verdict(report.inputs), line))


def missing_in(report: Report) -> str:
    """Returns what the report of a stopped run lacks first."""
    full = f"full {report.low.upper()} was not measured on all inputs"
    return full if report.verdict == UNMEASURED else UNEXPLAINED


def save_report(report: Report, folder: Path | None, live: Live, shown: Progress, *, recipe: bool = True) -> Report:
    """Saves a report, and returns it. A report in the folder that knows more than one of a stopped run stays.

    Args:
        report: the report.
        folder: the run folder; None to save nothing.
        live: wrote the report so far.
        shown: says what stays.
        recipe: see ``Report.save``.

    Raises:
        NoRoom, OSError: the disk is full; the report alone is written, if there is room for that.
    """
    if folder is None:
        return report
    earlier = [read_report(folder / name) for name in (REPORT, SO_FAR)] if report.state == INTERRUPTED else []
    others = [one for one in earlier if one is not None and one.started != report.started]
    before = next((one for one in others if _knows_more(one, report)), None)
    if before is not None:
        shown.say(f"The report in {folder} stays: it is of an earlier run, and knows more")
        report = before if before.state != RUNNING else stopped_report(before, report.stopped, [missing_in(before)])
    if before is None or report is not before:
        try:
            report.save(folder, recipe=recipe)
        except (NoRoom, OSError) as error:
            if lacks_room(error):
                _save_alone(stopped_report(report, NO_ROOM, ["not all of its files are there"]), folder, live)
            raise
    live.end()
    return report


def _save_alone(report: Report, folder: Path, live: Live) -> None:
    """Writes ``report.json`` where there is no room for more; if need be, what the next run makes anew is removed."""
    in_the_way = [folder / name for name in (LAYERS, EXPLANATION, PICTURES, NETWORK)]
    for remove in (lambda: None, *(path.unlink for path in in_the_way), live.end):
        with suppress(OSError):
            remove()
        with suppress(NoRoom):
            write_whole(folder / REPORT, encode(report))
            return


def _knows_more(before: Report, report: Report) -> bool:
    """Returns true if an earlier report knows more than one of a stopped run.

    It is of a run with the same question that came to its end, or has a cheaper recipe; any verdict is more than none.
    """
    if UNMEASURED in (before.verdict, report.verdict):
        return report.verdict == UNMEASURED and (before.verdict != UNMEASURED or before.plans > report.plans)
    same = question_in(before) == question_in(report)
    return same and (not before.stopped or _recipe_cost(before) < _recipe_cost(report))


def _recipe_cost(report: Report) -> float:
    """The cost of the recipe; infinite if it does not hold."""
    return report.answer.cost if report.answer is not None and report.recipe.meets else inf


def question_in(report: Report) -> dict[str, Any]:
    """Returns the question of a run, without the ranges, which it chooses."""
    same = {name: getattr(report, name) for name in ("metric", "threshold", "share", "strategy", "goal")}
    return {**without_ranges(report), **same}


def without_ranges(report: Report) -> dict[str, Any]:
    """Returns what a run is made of, without the ranges, which it chooses."""
    return {**report.made_of, "ranges": ""}
