"""Runs that are not finished: what is known so far, kept in ``run.json``; by what a run is stopped, and what stays."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf, nan
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any

from trt_bisect.answer.result import Answer, reason_for
from trt_bisect.commands.run.build_report import RunTrials, counts, figures_of, layer_rows, seconds_of
from trt_bisect.commands.run.search import Curve
from trt_bisect.driver.curves import CULPRITS, search_for
from trt_bisect.driver.search import Findings, Loss, Search, Step
from trt_bisect.errors import NoRoom, lacks_room
from trt_bisect.evaluator.trial import UNTRIED, Trial, TrialStore
from trt_bisect.precision import PrecisionPlan
from trt_bisect.preparation.experiment import Experiment, Setup
from trt_bisect.report import summary
from trt_bisect.report.explanation import EXPLANATION, PICTURES
from trt_bisect.report.model import Report, read_report
from trt_bisect.report.network_graph import NETWORK
from trt_bisect.report.parts import LAYERS, REPORT, SO_FAR, UNMEASURED, ByPlan
from trt_bisect.runs.progress_file import FINISHED, RUNNING
from trt_bisect.support.codec import encode, write
from trt_bisect.support.files import write_whole
from trt_bisect.support.machine import peak_bytes
from trt_bisect.support.progress import Progress, TimeUp

UNDECIDED = "not decided yet: the run has still to measure which layers the recipe needs"
"""The reason why a suspect is no culprit, as long as the search is under way."""
_EVERY = 1.0
"""Seconds between two reports; more where making one takes a larger share of the time."""
SHARE = 0.05
"""The largest share of the time that goes into a report so far, and the recipe that it names."""


@dataclass(frozen=True)
class SoFar:
    """A search under way, of which ``without_curve`` is the report so far.

    ``experiment`` measures the curve; there is no ``answer`` before full INT8 is known.
    """

    setup: Setup
    without_curve: Report
    first: Experiment
    experiment: Experiment
    answer: Answer | None = None

    def trials(self) -> int:
        """Returns the number of trials: with more of them the report is another one."""
        return sum(len(store.trials) for store in self._stores())

    def _stores(self) -> set[TrialStore]:
        return {self.first.store, self.experiment.store}

    def report(self) -> Report:
        """Returns the report so far: what is known of the answer, and the curve as far as it is measured."""
        experiment, rule, answer = self.experiment, self.experiment.rule, self.answer
        known_trials = RunTrials(dict(experiment.store.trials), experiment)
        curve, full = curve_so_far(known_trials)
        decided = () if answer is None else answer.members
        reasons = {
            k: UNDECIDED if answer is None or answer.not_done else reason_for(answer, k, None)
            for k in curve.findings.suspects
            if k not in decided
        }
        trials = [trial for store in self._stores() for trial in tuple(store.trials.values())]
        plans, builds, inferences = counts(trials)
        report = self.without_curve
        if answer is None:
            report = replace(
                report,
                similarity=ByPlan(rule.similarity(full), None),
                by_input=ByPlan(rule.by_input(full), None),
                outputs=ByPlan(figures_of(full), {}),
            )
        return report.changed(
            state=RUNNING,
            layers=layer_rows(report.layers, known_trials, curve, reasons),
            plans=plans,
            builds=builds,
            inferences=inferences,
            peak_bytes=peak_bytes(),
            seconds=seconds_of(self.setup, trials),
        )


def curve_so_far(trials: RunTrials) -> tuple[Curve, Trial | None]:
    """Returns the curve so far, and the trial of full INT8, None without one.

    The drivers are run again on the trials so far, up to the first plan without one. That takes as many steps as
    there are layers, and measures nothing.
    """
    experiment = trials.experiment
    question, rule, curve = experiment.question, experiment.rule, experiment.curve
    full, steps = trials.of_plan(question.all_but(())), list[Step]()
    losses, ended = _driven(search_for(curve, question, steps), trials.of_plan, rule.loss)
    findings = ended or Findings.so_far(rule.loss(full or UNTRIED), steps)
    if ended is None and curve == CULPRITS:
        settled = {*findings.suspects, *findings.set_aside}
        unsettled = [  # the plans measured that are not yet part of a step, and leave the suspects high
            Step((max(plan.lowered),), nan, loss, plan)
            for plan, loss in losses.items()
            if plan.lowered and not plan.lowered & settled
        ]
        findings = replace(findings, steps=(*unsettled, *findings.steps))
    return Curve(findings, trials.of_plan(question.prefix(-1)) or UNTRIED), full


def _driven(
    search: Search[Findings], measured: Callable[[PrecisionPlan], Trial | None], loss: Callable[[Trial], Loss]
) -> tuple[dict[PrecisionPlan, Loss], Findings | None]:
    """Runs a driver on the trials so far; returns the losses by plan, and the findings.

    The findings are None if it waits for a plan that is not measured yet.
    """
    losses: dict[PrecisionPlan, Loss] = {}
    plan = next(search)
    try:
        while (trial := measured(plan)) is not None:
            losses[plan] = loss(trial)
            plan = search.send(losses[plan])
    except StopIteration as end:
        return losses, end.value
    return losses, None


class Live:
    """Writes ``run.json`` from a thread of its own, while a run goes on. An error in that does not stop the run.

    At most a twentieth of the time goes into it. A run that is killed, or that ends without a report, leaves the file.

    Args:
        folder: the run folder; None to write nothing.

    Attributes:
        earlier: the recipe in the folder is of a killed run with the same question, whose report so far is there: it
            stays until this run has a recipe, or its verdict.
    """

    def __init__(self, folder: Path | None) -> None:
        self.earlier = False
        self._path = None if folder is None else folder / SO_FAR
        self._so_far: SoFar | None = None
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

    def watch(self, so_far: SoFar) -> None:
        """Writes the report of a search at once, and again when it has more trials."""
        with self._writing:
            self._so_far, self._written = so_far, -1
            self._write_changed()

    def keep(self, report: Report) -> None:
        """Writes a report that stays as it is: the verdict is known, and the run goes on."""
        with self._writing:
            self._so_far, self.earlier = None, False
            self._write(report)

    def known(self) -> Report | None:
        """Returns the report so far; None before a search is watched, and after its verdict."""
        with self._writing:
            so_far = self._so_far
        return None if so_far is None else so_far.report()

    def end(self) -> None:
        """Removes the file: the report is saved."""
        with self._writing:
            self._so_far = None
            if self._path is not None:
                with suppress(OSError):
                    self._path.unlink(missing_ok=True)

    def _write_often(self) -> None:
        while not self._ended.wait(max(_EVERY, self._seconds / SHARE)):
            with self._writing:
                self._write_changed()

    def _write_changed(self) -> None:
        so_far = self._so_far
        if so_far is None or (trials := so_far.trials()) == self._written:
            return
        began = perf_counter()
        try:
            self._write(so_far.report())
            self._written = trials
        except Exception:
            logging.getLogger(__name__).debug("no report so far", exc_info=True)
        self._seconds = perf_counter() - began

    def _write(self, report: Report) -> None:
        self.earlier = self.earlier and not report.recipe.meets
        if self._path is not None and not self.earlier:
            try:
                write(self._path, replace(report, state=RUNNING))
            except Exception:
                logging.getLogger(__name__).debug("no report so far", exc_info=True)


STOPS = (KeyboardInterrupt, TimeUp, NoRoom, OSError)
"""The errors among which are all that stop a run; see ``stopped_by``."""


class StoppedRun(KeyboardInterrupt):
    """The user interrupted a run; the ``summary`` of its report so far ends with what was not done."""

    def __init__(self, report: Report) -> None:
        super().__init__(report.summary)
        self.report = report


def stopped_by(error: BaseException) -> str:
    """Returns the way in which an error stops a run, as ``Report.stopped`` has it; empty for another error."""
    if isinstance(error, KeyboardInterrupt):
        return summary.INTERRUPTED
    if isinstance(error, TimeUp):
        return summary.TIME_LIMIT
    return summary.NO_ROOM if lacks_room(error) else ""


def stopped_report(report: Report, stopped: str, not_done: Sequence[str]) -> Report:
    """Returns the report of a run that was stopped after its verdict."""
    answer = report.answer
    lines = [line for line in report.lines if line.kind != summary.STOPPED]
    state = FINISHED if stopped == summary.TIME_LIMIT else summary.INTERRUPTED
    missing = tuple(dict.fromkeys([*(answer.not_done if answer else ()), *not_done]))
    answer = None if answer is None else replace(answer, not_done=missing)
    return report.changed(
        stopped=stopped, state=state, answer=answer, lines=(*lines, summary.stopped_line(stopped, missing))
    )


def without_verdict(report: Report, stopped: str) -> Report:
    """Returns the report of a run that was stopped before full INT8 was measured on all inputs."""
    line = summary.stopped_line(stopped, [missing_in(report)])
    return report.changed(state=summary.INTERRUPTED, stopped=stopped, lines=(*summary.above_verdict(report), line))


def missing_in(report: Report) -> str:
    """Returns what the report of a stopped run lacks first."""
    full = f"full {report.low.upper()} was not measured on all inputs"
    return full if report.verdict == UNMEASURED else summary.UNEXPLAINED


def save_report(report: Report, folder: Path | None, live: Live, shown: Progress, *, recipe: bool = True) -> Report:
    """Saves a report, and returns it. A report in the folder that knows more than one of a stopped run stays.

    Args:
        folder: the run folder; None to save nothing.
        recipe: see ``Report.save``.

    Raises:
        NoRoom, OSError: the disk is full; the report alone is written, if there is room for that.
    """
    if folder is None:
        return report
    earlier = [read_report(folder / name) for name in (REPORT, SO_FAR)] if report.state == summary.INTERRUPTED else []
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
    """Writes ``report.json`` where there is no room for more; if need be, what the next run makes anew is removed."""
    in_the_way = [folder / name for name in (LAYERS, EXPLANATION, PICTURES, NETWORK)]
    for remove in (lambda: None, *(path.unlink for path in in_the_way), live.end):
        with suppress(OSError):
            remove()
        with suppress(NoRoom):
            write_whole(folder / REPORT, encode(report))
            return


def _knows_more(before: Report, report: Report) -> bool:
    """Returns true for a report of a run with the same question that came to its end, or has a cheaper recipe.

    Any verdict is more than none.
    """
    if UNMEASURED in (before.verdict, report.verdict):
        return report.verdict == UNMEASURED and (before.verdict != UNMEASURED or before.plans > report.plans)
    cost, now = (of_run.answer.cost if of_run.answer and of_run.recipe.meets else inf for of_run in (before, report))
    return question_in(before) == question_in(report) and (not before.stopped or cost < now)


def question_in(report: Report) -> dict[str, Any]:
    """Returns the question of a run, without the ranges, which it chooses."""
    parts = ("metric", "threshold", "share", "strategy", "goal")
    return {**without_ranges(report), **{name: getattr(report, name) for name in parts}}


def without_ranges(report: Report) -> dict[str, Any]:
    """Returns what a run is made of, without the ranges, which it chooses."""
    return {**report.made_of, "ranges": ""}
