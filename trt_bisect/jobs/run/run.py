"""Finds the culprits and a recipe for a network. The command line calls this too."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trt_bisect.analyzer.judge import make_rule
from trt_bisect.analyzer.metrics import find_metric
from trt_bisect.data.staged import content_of
from trt_bisect.errors import NothingMeasured
from trt_bisect.jobs.accuracy import accuracies, asked_accuracy, fp32_accuracy, refuse_accuracy
from trt_bisect.jobs.answer.answer import AnswerSearch, answer_search
from trt_bisect.jobs.answer.result import Answer
from trt_bisect.jobs.experiment import Experiment
from trt_bisect.jobs.options.concerns import EXPLAIN_NOTHING
from trt_bisect.jobs.options.measuring import RunOptions
from trt_bisect.jobs.options.signatures import takes
from trt_bisect.jobs.preparation import Preparation
from trt_bisect.jobs.recipe_of import target_version
from trt_bisect.jobs.run.find_culprits import announce, verdict
from trt_bisect.jobs.run.save_tensors import refuse_tensors, save_tensors
from trt_bisect.jobs.run.setting import setting_of
from trt_bisect.jobs.workspace import working_in
from trt_bisect.model.network import Network
from trt_bisect.recipe.trtexec import Build
from trt_bisect.report.model import REPORT, Report
from trt_bisect.report.network_graph import network_facts
from trt_bisect.report.next_step import BUILD, RECIPE, next_step
from trt_bisect.report.page.headline import headline
from trt_bisect.report.run_files import read_as
from trt_bisect.report.search_result import Measured
from trt_bisect.report.summary import INTERRUPTED, TIME_LIMIT, UNEXPLAINED, accuracy_line, stopped_line
from trt_bisect.report.tensorboard.board import Board, open_board
from trt_bisect.support.machine import peak_bytes
from trt_bisect.support.plain_json import plain
from trt_bisect.support.progress import Progress, TimeLimited, TimeUp, default_progress, lifted

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from trt_bisect.jobs.options.keywords import RunKeywords


@takes(RunOptions)
def run(
    model: str | Path | Network, calibration: Any = None, inputs: Any = None, **options: Unpack[RunKeywords]
) -> Report:
    """Finds the layers that lose the network's accuracy in INT8, and a plan that restores it.

    Args:
        model: an FP32 ONNX file of opset 9 or later, or a loaded network.
        options: as listed.

    Raises:
        BadInput: something given cannot be used.
        EngineUnavailable: the engine cannot be used here.
        NothingMeasured: the FP32 network itself could not be run.
    """
    return run_with(model, RunOptions.given("run", {"calibration": calibration, "inputs": inputs, **options}))


def run_with(
    model: str | Path | Network, options: RunOptions, command: str = "", asked: RunOptions | None = None
) -> Report:
    """Does what ``run`` does.

    Args:
        model: as for ``run``.
        options: the options of the run.
        command: the command line that asks for the run, for the report.
        asked: the options that suggested commands repeat, if a run on a cluster has other ones.

    Raises:
        TrtBisectError: as for ``run``.
    """
    make_rule(
        find_metric(options.metric, options.direction),
        options.threshold,
        options.share,
        low=options.low_precision.precision,
    )
    refuse_accuracy(options)
    output = content_of(options.output)
    folder = None if output is None else Path(output)
    board = open_board(options.tensorboard, options.tensorboard_channels)
    with working_in(folder, options.progress or default_progress(), options.history) as shown:
        if options.time_limit_seconds is not None:
            shown = TimeLimited(shown, options.time_limit_seconds)
        network = options.network(model, options.shapes)
        preparation = Preparation(options, network, folder, shown)
        try:
            report = _reported(preparation, options, command, asked or options, board)
        except TimeUp as end:
            raise NothingMeasured(
                f"--time-limit {options.time_limit} ended the run before full {network.low.title} was measured.",
                "Give a longer one: the same command goes on from what was measured.",
            ) from end
    return report


class StoppedRun(KeyboardInterrupt):
    """The user interrupted a run after full INT8 was measured.

    Attributes:
        report: the report so far; its ``summary`` ends with what was not done.
    """

    def __init__(self, report: Report) -> None:
        super().__init__(report.summary)
        self.report = report


def _reported(
    preparation: Preparation, options: RunOptions, command: str, asked: RunOptions, board: Board | None
) -> Report:
    """Measures, and saves the report of a run: first the verdict with the recipe, then all of it.

    Raises:
        StoppedRun: the user interrupted it, and a report says what is known.
        TimeUp: the time was over before full INT8 was measured.
    """
    folder, shown = preparation.folder, preparation.progress
    with ExitStack() as stack:
        first = stack.enter_context(preparation.opened(options.calibration, options.inputs, options.dataset))
        manifest = announce(preparation, first, command)
        refuse_tensors(options, folder, first.builder.engine)
        accuracy = asked_accuracy(preparation, first, options)
        fp32 = None if accuracy is None else fp32_accuracy(accuracy, first)
        answering = stack.enter_context(answer_search(preparation, first))
        found, measured, answer = verdict(answering, manifest)
        experiment = answer.experiment
        graph = network_facts(experiment.network, experiment.ranges.scales)
        found = replace(_with_next(found, experiment, asked, options, folder), graph=graph)
        if found.stopped == INTERRUPTED:
            if (before := _better_before(found, folder)) is not None:
                shown.say(f"The report in {folder} stays: it is of the same run, and knows more")
                raise StoppedRun(before)
            raise StoppedRun(_save_with_peak(found, folder, with_recipe=True))
        if accuracy is not None and fp32 is not None and not found.stopped:
            with lifted(shown):
                shown.stage("Measuring the accuracy", None)
                found = _with_accuracy(found, accuracies(accuracy, fp32, answer))
        shown.say(headline(found))
        saved = _save_with_peak(found, folder, with_recipe=True)
        try:
            notes = [] if folder is None else save_tensors(options, answer, folder, shown)
            report = replace(saved, notes=(*saved.notes, *notes)) if notes else saved
            if options.explain != EXPLAIN_NOTHING and not found.stopped:
                report = _explained(answering, answer, report, asked)
                report = _with_next(report, experiment, asked, options, folder)
        except TimeUp:
            report = _unexplained(saved, TIME_LIMIT)
        except KeyboardInterrupt as stop:
            raise StoppedRun(_save_with_peak(_unexplained(saved, INTERRUPTED), folder)) from stop
    if report is not saved:
        report = _save_with_peak(report, folder)
    if board is not None:
        with lifted(shown):
            _write_logs(board, experiment, first, measured, report, shown, options.memory_bytes)
        report = _save_with_peak(report, folder)
    return report


def _unexplained(report: Report, stopped: str) -> Report:
    """Returns the report of a run that was stopped after its verdict."""
    line = stopped_line(stopped, [UNEXPLAINED])
    return replace(report, stopped=stopped, summary=f"{report.summary}\n{line}")


def _better_before(found: Report, folder: Path | None) -> Report | None:
    """Returns the report in a folder if it answers the question of a run that was interrupted, and better."""
    before = None if folder is None else read_as(Report.from_json, folder / REPORT)
    if before is None or _question(before) != _question(found):
        return None
    return before if not before.stopped or _recipe_cost(before) < _recipe_cost(found) else None


def _recipe_cost(report: Report) -> float:
    """The cost of the recipe; infinite if it does not hold."""
    return report.answer.cost if report.answer is not None and report.recipe["meets"] else inf


def _question(report: Report) -> dict[str, Any]:
    """Returns the question of a run, without the ranges, which it chooses."""
    same = {name: getattr(report, name) for name in ("metric", "threshold", "share", "strategy")}
    return {**plain(report.made_of), **same, "ranges": ""}


def _write_logs(
    board: Board,
    experiment: Experiment,
    first: Experiment,
    measured: Measured,
    report: Report,
    progress: Progress,
    memory: int,
) -> None:
    """Writes TensorBoard's logs of a run; ``first`` is the experiment that has the trials on each input."""
    from trt_bisect.report.tensorboard.run_logs import write_run
    from trt_bisect.report.tensorboard.steps import steps_of

    ranges, rule = experiment.ranges, experiment.rule
    steps = steps_of(experiment.store.trials, first.store.trials, rule, ranges.digest())
    network, feeds = experiment.network, experiment.feeds
    write_run(board, network, ranges.scales, feeds, rule, measured, steps, report, progress, memory)


def _explained(answering: AnswerSearch, answer: Answer, report: Report, options: RunOptions) -> Report:
    """Calls ``explained``, imported only here, so that a run without an explanation starts sooner."""
    from trt_bisect.jobs.run.explain import explained

    return explained(answering.plans, answer, report, options)


def _with_accuracy(report: Report, accuracy: Mapping[str, float | None]) -> Report:
    return replace(report, accuracy=accuracy, summary="\n".join([report.summary, accuracy_line(accuracy)]))


def _with_next(
    report: Report, experiment: Experiment, asked: RunOptions, options: RunOptions, folder: Path | None
) -> Report:
    """Returns ``report`` with the step to go on with; there is none for an experiment that no engine runs.

    Without a folder it has no command.
    """
    if options.low_precision.wide:
        return report
    build = report.files.build if report.files else Build(target_version(options, experiment.builder))
    step = next_step(report, setting_of(experiment, asked, build), accept=options.accept)
    if step is None or (report.files is None and step.kind in (RECIPE, BUILD)):
        return report
    command = "" if folder is None else step.command
    return replace(report, next_kind=step.kind, next_step=step.what, next_command=command)


def _save_with_peak(report: Report, folder: Path | None, *, with_recipe: bool = False) -> Report:
    """Returns ``report`` with the peak memory of this process up to now, and saves it if there is a folder.

    Args:
        report: the report of the run.
        folder: the folder of the run.
        with_recipe: the recipe's files and the graph are written too.
    """
    report = replace(report, peak_bytes=peak_bytes())
    if folder is not None:
        (report if with_recipe else replace(report, files=None, graph=None)).save(folder)
    return report
