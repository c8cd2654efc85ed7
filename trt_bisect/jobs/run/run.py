"""Finds the culprits and a recipe for a network. The command line calls this too."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from trt_bisect.analyzer.judge import make_rule
from trt_bisect.analyzer.metrics import find_metric
from trt_bisect.analyzer.overflow import base_overflow_notes, overflow_notes, overflows_of
from trt_bisect.builder.base import EMULATED
from trt_bisect.data.named import content_of
from trt_bisect.driver.suspects.curves import ADAPTIVE
from trt_bisect.errors import NothingMeasured
from trt_bisect.evaluator.branch import BranchEvaluator
from trt_bisect.evaluator.speed import measure_latencies
from trt_bisect.jobs.accuracy import accuracies, asked_accuracy, fp32_accuracy, refuse_accuracy
from trt_bisect.jobs.answer.answer import AnswerSearch, answer_search
from trt_bisect.jobs.answer.each_alone import priced
from trt_bisect.jobs.answer.facts import refused_by_default
from trt_bisect.jobs.answer.result import Answer
from trt_bisect.jobs.experiment import Experiment, all_trials
from trt_bisect.jobs.options.concerns import EXPLAIN_NOTHING
from trt_bisect.jobs.options.measuring import RunOptions
from trt_bisect.jobs.options.signatures import takes
from trt_bisect.jobs.preparation import Preparation
from trt_bisect.jobs.recipe_of import recipe_of, setting_of
from trt_bisect.jobs.run.build_report import asked_report, build_report, question_of, seconds_of
from trt_bisect.jobs.run.live import Live, SoFar
from trt_bisect.jobs.run.save_tensors import refuse_tensors, save_tensors
from trt_bisect.jobs.run.search import Curve, search
from trt_bisect.jobs.workspace import working_in
from trt_bisect.model.network import Network
from trt_bisect.recipe.files import FOLDER
from trt_bisect.report.model import REPORT, SO_FAR, Report
from trt_bisect.report.network_graph import NETWORK, graph_of
from trt_bisect.report.next_step import BUILD, RECIPE, next_step
from trt_bisect.report.older import read_report
from trt_bisect.report.page.headline import headline
from trt_bisect.report.summary import INTERRUPTED, TIME_LIMIT, UNEXPLAINED, accuracy_line, base_misses, stopped_line
from trt_bisect.report.tensorboard.board import Board, open_board
from trt_bisect.support.codec import write
from trt_bisect.support.machine import peak_bytes
from trt_bisect.support.notes import ADAPTIVE_CURVE, PASSES_BROKE, TENSORS, Note, noted
from trt_bisect.support.progress import TimeLimited, TimeUp, default_progress, lifted

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
        StoppedRun: the user interrupted it, and a report says what is known.
    """
    metric, low = find_metric(options.metric, options.direction), options.low_precision.precision
    make_rule(metric, options.threshold, options.share, low=low)
    refuse_accuracy(options)
    output = content_of(options.output)
    folder = None if output is None else Path(output)
    board = open_board(options.tensorboard, options.tensorboard_channels)
    progress = options.progress or default_progress()
    with working_in(folder, progress, options.history) as display, Live(folder) as live:
        limit = options.time_limit_seconds
        shown = display if limit is None else TimeLimited(display, limit)
        network = options.network(model, options.shapes)
        preparation = Preparation(options, network, folder, shown)
        try:
            return _Run(preparation, options, asked or options, command, folder, live, board).report()
        except TimeUp as end:
            raise NothingMeasured(
                f"--time-limit {options.time_limit} ended the run before full {network.low.title} was measured.",
                "Give a longer one: the same command goes on from what was measured.",
            ) from end


class StoppedRun(KeyboardInterrupt):
    """The user interrupted a run after full INT8 was measured.

    Attributes:
        report: the report so far; its ``summary`` ends with what was not done.
    """

    def __init__(self, report: Report) -> None:
        super().__init__(report.summary)
        self.report = report


@dataclass
class _Searched:
    """The results of a search, also of one that was stopped.

    Attributes:
        of_curve: the experiment that the curve is measured on.
        curve: the curve; an empty one if it was not measured.
        answer: the answer; None if full INT8 was not measured.
        gains: by layer index, the loss that full INT8 sheds when the layer alone stays high.
        stopped: see ``Report``.
    """

    of_curve: Experiment
    curve: Curve = field(default_factory=Curve)
    answer: Answer | None = None
    gains: Mapping[int, float] = field(default_factory=dict)
    stopped: str = ""


@dataclass
class _Run:
    """A run: its question, and where its results go.

    Attributes:
        preparation: the stages before plans are measured.
        options: the options of the run.
        repeated: those that suggested commands repeat.
        command: the command line.
        folder: the run folder; None without one.
        live: writes the report so far.
        board: TensorBoard's folder; None without one.
        has_recipe: the folder has the recipe's files.
    """

    preparation: Preparation
    options: RunOptions
    repeated: RunOptions
    command: str
    folder: Path | None
    live: Live
    board: Board | None
    has_recipe: bool = False

    def report(self) -> Report:
        """Measures; returns the report, which is saved if there is a folder: the answer, its causes, the logs.

        Raises:
            StoppedRun: the user interrupted it, and a report says what is known.
            TimeUp: the time was over before full INT8 was measured.
        """
        options, shown = self.options, self.preparation.progress
        with ExitStack() as stack:
            first = stack.enter_context(self.preparation.opened(options.calibration, options.inputs, options.dataset))
            self.preparation.began -= self._seconds_before(first)
            asked = self._announce(first, first)
            refuse_tensors(options, self.folder, first.builder.engine)
            accuracy = asked_accuracy(self.preparation, first, options)
            fp32 = None if accuracy is None else fp32_accuracy(accuracy, first)
            answering = stack.enter_context(answer_search(self.preparation, first))
            found = self._searched(answering, first, asked)
            answer = found.answer
            assert answer is not None
            with lifted(shown):
                report = self._answered(found, first)
                if accuracy is not None and fp32 is not None and not found.stopped:
                    shown.stage("Measuring the accuracy", None)
                    measured = accuracies(accuracy, fp32, answer)
                    report = report.changed(accuracy=measured, lines=(*report.lines, accuracy_line(measured)))
            if found.stopped == INTERRUPTED:
                raise StoppedRun(self._saved(report, answer))
            shown.say(headline(report))
            self._keep_recipe(report)
            try:
                notes = [] if self.folder is None else save_tensors(options, answer, self.folder, shown)
                report = report.changed(notes=(*report.notes, *noted(TENSORS, notes)))
                if options.explain != EXPLAIN_NOTHING and not found.stopped:
                    report = self._explained(answering, answer, report)
            except TimeUp:
                report = _unexplained(report, TIME_LIMIT)
            except KeyboardInterrupt as stop:
                raise StoppedRun(self._saved(_unexplained(report, INTERRUPTED), answer)) from stop
            except Exception:
                self._saved(report, answer)
                raise
            report = self._saved(report, answer)
            if self.board is not None:
                with lifted(shown):
                    self._write_logs(self.board, found, answer, first, report)
            return report

    def _seconds_before(self, first: Experiment) -> float:
        """Returns the seconds of earlier sittings of this run, as the reports in its folder have them."""
        if self.folder is None or not first.store.resumed:
            return 0.0
        made_of = _without_ranges(asked_report(self.preparation, first, self.command))
        reports = (read_report(self.folder / name) for name in (REPORT, SO_FAR))
        known = [report.seconds.total for report in reports if report and _without_ranges(report) == made_of]
        return max(known, default=0.0)

    def _announce(self, first: Experiment, experiment: Experiment) -> Report:
        """Writes the graph and begins to write the report so far; returns the report with nothing measured.

        Args:
            first: the experiment with the first ranges.
            experiment: the experiment that the curve is measured on.
        """
        asked = asked_report(self.preparation, experiment, self.command)
        if self.folder is not None:
            write(self.folder / NETWORK, graph_of(experiment.network, experiment.ranges.scales))
        curve = self.options.curve_of(experiment.strategy, len(experiment.network.movable))
        question = question_of(self.preparation, experiment)
        self.live.watch(SoFar(self.preparation, asked, first, experiment, curve, question))
        return asked

    def _searched(self, answering: AnswerSearch, first: Experiment, asked: Report) -> _Searched:
        """Searches the ranges, the suspects and the recipe. A search that was stopped returns what is known.

        Raises:
            TimeUp, KeyboardInterrupt: the search was stopped before full INT8 was measured.
        """
        shown, found = self.preparation.progress, _Searched(answering.experiment)
        try:
            experiment = found.of_curve = answering.choose_ranges()
            if experiment.key != asked.fingerprint:
                self._announce(first, experiment)
            answering.plans.give_back()
            found.curve = search(
                self.options.curve_of(experiment.strategy, len(experiment.network.movable)),
                question_of(self.preparation, experiment),
                experiment.evaluator,
                experiment.rule,
                [layer.name for layer in experiment.network.layers],
                shown,
            )
            suspects = found.curve.findings.suspects
            found.answer = answering.finish(suspects)
            found.gains = answering.alone.gains(found.answer, suspects)
            found.answer = priced(answering.plans, found.answer)
        except (TimeUp, KeyboardInterrupt) as stop:
            found.stopped = TIME_LIMIT if isinstance(stop, TimeUp) else INTERRUPTED
            with lifted(shown):
                answer = found.answer or answering.so_far(measures=found.stopped == TIME_LIMIT)
            if answer is None:
                raise
            rest = [] if found.curve.findings.steps else ["the curve was not measured"]
            found.answer = replace(answer, not_done=(*answer.not_done, *rest, UNEXPLAINED))
        return found

    def _answered(self, found: _Searched, first: Experiment) -> Report:
        """Returns the report on an answer, with the latencies, which are measured."""
        answer, options, preparation = found.answer, self.options, self.preparation
        assert answer is not None
        experiment, interrupted = answer.experiment, found.stopped == INTERRUPTED
        network, memory = experiment.network, options.memory_bytes
        trials = all_trials(first, found.of_curve, experiment)
        latency = None
        if not interrupted:
            timed = (experiment.feeds[0], preparation.progress)
            latency = measure_latencies(experiment.builder, network, answer.plan, options.high_precision, *timed)
        overflows = () if interrupted else overflows_of(network, experiment.feeds, memory)
        emulated = experiment.builder.arithmetic == EMULATED
        notes = [*preparation.notes, *overflow_notes(network, overflows, emulated=emulated)]
        if base_misses(network, experiment.rule, found.curve.nothing):
            notes += base_overflow_notes(network, experiment.feeds, memory, emulated=emulated)
        notes += [*_broken_off(found.of_curve), *self._not_measured(found), *refused_by_default(answer)]
        files = recipe_of(options, answer, answer.plan)
        asked = asked_report(preparation, found.of_curve, self.command)
        report = build_report(
            replace(asked, notes=tuple(dict.fromkeys(notes))),
            answer,
            found.curve,
            found.of_curve,
            first,
            gains=found.gains,
            seconds=seconds_of(trials, preparation.data.calibrated, perf_counter() - preparation.began),
            stopped=found.stopped,
            latency=latency,
            overflows=overflows,
            files=files,
        )
        return report.changed(files=files, graph=graph_of(network, experiment.ranges.scales))

    def _not_measured(self, found: _Searched) -> list[Note]:
        """A note on the boundaries that an adaptive curve leaves out."""
        steps, network = found.curve.findings.steps, found.of_curve.network
        measured, layers = len(steps), sum(len(step.layers) for step in steps)
        curve = self.options.curve_of(found.of_curve.strategy, len(network.movable))
        if curve != ADAPTIVE or measured == layers:
            return []
        text = (
            f"the curve is adaptive: {measured} of {layers} boundaries were measured, all of them where the loss "
            "changes; the others have no figure (--curve full measures them)"
        )
        return [Note(ADAPTIVE_CURVE, text)]

    def _keep_recipe(self, report: Report) -> None:
        """Writes the recipe's files and the verdict: a run that is killed later has them."""
        if self.folder is not None and report.attached.files is not None:
            report.attached.files.write(self.folder / FOLDER)
            self.has_recipe = True
            self.live.keep(report)

    def _explained(self, answering: AnswerSearch, answer: Answer, report: Report) -> Report:
        """Calls ``explained``, imported only here, so that a run without an explanation starts sooner."""
        from trt_bisect.jobs.run.explain import explained

        return explained(answering.plans, answer, report, self.repeated)

    def _write_logs(self, board: Board, found: _Searched, answer: Answer, first: Experiment, report: Report) -> None:
        """Writes TensorBoard's logs; ``first`` is the experiment that has the trials on each input."""
        from trt_bisect.report.tensorboard.run_logs import plans_to_show, write_run
        from trt_bisect.report.tensorboard.steps import steps_of

        experiment = answer.experiment
        ranges, rule, network = experiment.ranges, experiment.rule, experiment.network
        steps = steps_of(experiment.store.trials, first.store.trials, rule, ranges.digest())
        trials = {**first.store.trials, **found.of_curve.store.trials}
        reported = {network.full(experiment.whole.high): answer.full, answer.plan: answer.restored}
        plans = plans_to_show(
            found.curve.findings, answer.plan, network, experiment.whole, rule, trials, reported, report.accuracy
        )
        memory, shown = self.options.memory_bytes, self.preparation.progress
        write_run(board, network, ranges.scales, experiment.feeds, rule, plans, steps, report, shown, memory)

    def _saved(self, report: Report, answer: Answer) -> Report:
        """Returns the report with the step to go on with, and saves it if there is a folder.

        The report of an earlier run with the same question that knows more stays, and is returned.
        """
        report = self._with_next(report, answer.experiment).changed(peak_bytes=peak_bytes())
        if self.folder is None:
            return report
        before = read_report(self.folder / REPORT) if report.stopped == INTERRUPTED else None
        if before is not None and _question(before) == _question(report) and _knows_more(before, report):
            self.preparation.progress.say(f"The report in {self.folder} stays: it is of the same run, and knows more")
            report = before
        else:
            report.save(self.folder, recipe=not self.has_recipe)
        self.live.end()
        return report

    def _with_next(self, report: Report, experiment: Experiment) -> Report:
        """Returns ``report`` with the step to go on with; there is none for an experiment that no engine runs.

        Without a folder it has no command.
        """
        options, files = self.options, report.attached.files
        if options.low_precision.wide:
            return report
        step = next_step(report, setting_of(experiment, self.repeated, report), accept=options.accept)
        if step is None or (files is None and step.kind in (RECIPE, BUILD)):
            return report
        return report.changed(next=replace(step, command="") if self.folder is None else step)


def _broken_off(experiment: Experiment) -> list[Note]:
    """Notes on passes that could not be finished."""
    failures = experiment.evaluator.failures if isinstance(experiment.evaluator, BranchEvaluator) else []
    if not failures:
        return []
    first = failures[0].splitlines()[0]
    return [Note(PASSES_BROKE, f"{len(failures)} passes in pieces broke off, and whole engines took over: {first}")]


def _unexplained(report: Report, stopped: str) -> Report:
    """Returns the report of a run that was stopped after its verdict."""
    return report.changed(
        stopped=stopped,
        state=INTERRUPTED if stopped == INTERRUPTED else report.state,
        lines=(*report.lines, stopped_line(stopped, [UNEXPLAINED])),
    )


def _knows_more(before: Report, report: Report) -> bool:
    """Returns true if an earlier report is of a run that came to its end, or has a cheaper recipe."""
    return not before.stopped or _recipe_cost(before) < _recipe_cost(report)


def _recipe_cost(report: Report) -> float:
    """The cost of the recipe; infinite if it does not hold."""
    return report.answer.cost if report.answer is not None and report.recipe.meets else inf


def _question(report: Report) -> dict[str, Any]:
    """Returns the question of a run, without the ranges, which it chooses."""
    same = {name: getattr(report, name) for name in ("metric", "threshold", "share", "strategy")}
    return {**_without_ranges(report), **same}


def _without_ranges(report: Report) -> dict[str, Any]:
    """Returns what a run is made of, without the ranges, which it chooses."""
    return {**report.made_of, "ranges": ""}
