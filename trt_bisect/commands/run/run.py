"""Finds the culprits and a recipe for a network. The command line calls this too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter, time

from trt_bisect.analyzer.judge import make_rule
from trt_bisect.analyzer.metrics import find_metric
from trt_bisect.analyzer.overflow import base_overflow_notes, overflow_notes, overflows_of
from trt_bisect.answer.accuracy import (
    AccuracyTarget,
    accuracies,
    accuracy_of,
    asked_accuracy,
    fp32_accuracy,
    refuse_accuracy,
)
from trt_bisect.answer.answer import AnswerSearch, answer_search, measure_front
from trt_bisect.answer.candidates import with_changes
from trt_bisect.answer.each_alone import priced
from trt_bisect.answer.result import Answer, recipe_of, refused_by_default, setting_of
from trt_bisect.answer.search import predicted_times
from trt_bisect.builder.base import EMULATED
from trt_bisect.commands.run import build_report as reporting, live as under_way
from trt_bisect.commands.run.build_report import Searched
from trt_bisect.commands.run.save_tensors import refuse_tensors, save_boundaries, save_tensors
from trt_bisect.commands.run.search import CurveSearch
from trt_bisect.data.named import content_of
from trt_bisect.driver.curves import ADAPTIVE
from trt_bisect.errors import NothingMeasured, lacks_room
from trt_bisect.evaluator.accuracy import ACCURACY
from trt_bisect.evaluator.evaluators import BranchEvaluator
from trt_bisect.evaluator.speed import measure_latencies
from trt_bisect.model.network import GivenModel, Network
from trt_bisect.options.concerns import EXPLAIN_NOTHING, RunOptions
from trt_bisect.options.declare import takes
from trt_bisect.options.kinds import parse_time
from trt_bisect.precision import Precision
from trt_bisect.preparation.asked_network import asked_network
from trt_bisect.preparation.experiment import Experiment, Setup, all_trials
from trt_bisect.preparation.preparation import prepared
from trt_bisect.preparation.workspace import working_in
from trt_bisect.recipe.files import FOLDER, PLAN
from trt_bisect.report import summary
from trt_bisect.report.answer import Accuracies
from trt_bisect.report.model import NOT_TRIED, REPORT, SO_FAR, UNMEASURED, Report, read_report
from trt_bisect.report.network_graph import NETWORK, graph_of
from trt_bisect.report.summary import BUILD, RECIPE, headline, next_step
from trt_bisect.report.tensorboard_board import Board, open_board
from trt_bisect.support.codec import write
from trt_bisect.support.machine import peak_bytes
from trt_bisect.support.progress import (
    CURVE,
    EXPLANATION as EXPLAINING,
    TimeLimited,
    TimeUp,
    default_progress,
    lifted,
    other_stages,
)
from trt_bisect.support.text import ADAPTIVE_CURVE, PASSES_BROKE, TENSORS, Note, noted


@takes(RunOptions)
def run(model: GivenModel, options: RunOptions, command: str = "", asked: RunOptions | None = None) -> Report:
    """Finds the layers that lose the network's accuracy in INT8, and a plan that restores it.

    Args:
        model: an FP32 ONNX file of opset 9 or later, or a loaded network.
        options: as listed.

    Raises:
        BadInput: something given cannot be used.
        EngineUnavailable: the engine cannot be used here.
        NothingMeasured: the FP32 network itself could not be run.
        StoppedRun: the user interrupted it, and a report says what is known.
    """
    # ``command`` is for the report; suggested commands repeat ``asked``, where a run on a cluster has other options
    metric, low = find_metric(options.metric), options.low_precision.precision
    threshold = None if options.threshold is None else float(options.threshold)
    rule = make_rule(metric, threshold, low=low)
    refuse_accuracy(options)
    output = content_of(options.output)
    folder = None if output is None else Path(output)
    board = open_board(options.tensorboard, options.tensorboard_detail)
    progress = options.progress or default_progress()
    with working_in(folder, progress, options.history) as display, under_way.Live(folder) as live:
        limit = options.time_limit
        shown = display if limit is None else TimeLimited(display, parse_time(limit))
        blank, started = partial(reporting.unmeasured_report, options, rule, command=command), time()
        try:
            network = asked_network(options, model, options.shapes)
            setup = Setup.of(options, network, folder, shown)
        except KeyboardInterrupt as stop:
            source = model.source if isinstance(model, Network) else str(model)
            report = under_way.without_verdict(blank(model=source, network=None, started=started), summary.INTERRUPTED)
            raise under_way.StoppedRun(under_way.save_report(report, folder, live, shown)) from stop
        try:
            blank = partial(blank, model=network.source, network=network, started=setup.started)
            return _Run(setup, options, asked or options, command, folder, live, board, blank).report()
        except TimeUp as end:
            raise NothingMeasured(
                f"--time-limit {options.time_limit} ended the run before full {network.low.title} was measured.",
                "Give a longer one: the same command goes on from what was measured.",
            ) from end


@dataclass
class _Run:
    """A run: its question, and where its results go.

    Attributes:
        repeated: the options that suggested commands repeat.
        blank: returns the report with nothing measured, before the experiment is ready.
        written: the texts of the recipe whose files this run has written; None without them.
        kept_until: a cheaper recipe is not written before then, as that would take too large a share of the time.
        latest: the report so far and the answer that it has; None before full INT8 is known on all inputs.
        first: the experiment with the first ranges.
        accuracies: returns the accuracies of an answer; None without labels or an accuracy function.
        accuracy: returns the accuracy of a plan with the ranges of an answer; None likewise.
        verdict: the report with its verdict.
        is_explained: nothing is missing in ``verdict``.
    """

    setup: Setup
    options: RunOptions
    repeated: RunOptions
    command: str
    folder: Path | None
    live: under_way.Live
    board: Board | None
    blank: Callable[[], Report]
    written: Mapping[str, str] | None = None
    kept_until: float = 0.0
    latest: tuple[Report, Answer] | None = None
    first: Experiment | None = None
    answering: AnswerSearch | None = None
    accuracies: Callable[..., Accuracies] | None = None
    accuracy: Callable[..., float | None] | None = None
    searched: Searched | None = None
    verdict: Report | None = None
    is_explained: bool = False

    def report(self) -> Report:
        """Measures answer, curve and causes; returns the report, which is saved with the logs if there is a folder.

        A run that is stopped at any moment leaves the best report that is known then.

        Raises:
            StoppedRun: the user interrupted it, and a report says what is known.
            TimeUp: the time was over before full INT8 was measured.
            NoRoom, OSError: the disk is full.
        """
        with ExitStack() as stack:
            try:
                return self._measured(stack)
            except under_way.STOPS as stop:
                return self._end(stop)

    def _measured(self, stack: ExitStack) -> Report:
        """Returns the report of a run that nobody stops: all of it, from start to end."""
        first = self.first = stack.enter_context(prepared(self.setup))
        self._continue(first)
        self._announce(first)
        refuse_tensors(self.options, self.folder, first.builder.engine)
        answering = self._asked_search(stack, first)
        searched = self.searched = Searched(answering.experiment)
        deploying, answer = self._search(answering, searched)
        with lifted(self.setup.progress):
            if self.accuracies is not None:
                self.setup.progress.stage("Measuring the accuracy", None)
                searched.accuracy = self.accuracies(answer)
            report = self._answered(searched)
        report = self._told(report, searched)
        try:
            report = self._with_front(deploying, searched, report)
            report = self._with_curve(answering, searched, report)
            report = self.verdict = self._explained(answering, answer.of_user, report)
        except Exception as error:
            if not lacks_room(error):
                self._saved(report, answer.of_user.experiment)
            raise
        self.is_explained = True
        with lifted(self.setup.progress):
            report = self.verdict = self._pictured(answer, report)
        report = self._saved(report, answer.of_user.experiment)
        with lifted(self.setup.progress):
            self._write_logs(searched, report)
        return report

    def _asked_search(self, stack: ExitStack, first: Experiment) -> AnswerSearch:
        options = self.options
        accuracy = asked_accuracy(self.setup, first, options)
        fp32 = None if accuracy is None else fp32_accuracy(accuracy, first)
        answering = self.answering = stack.enter_context(answer_search(self.setup, first, options))
        if accuracy is not None and fp32 is not None:
            least = None if options.drop is None else options.least_accuracy(fp32[ACCURACY])
            self.accuracies, self.accuracy = partial(accuracies, accuracy, fp32, least), partial(accuracy_of, accuracy)
            if least is not None:
                answering.target = AccuracyTarget(answering.plans, accuracy, fp32[ACCURACY], least)
        layers, inputs = len(first.network.movable), answering.plans.inputs
        explains = options.explain != EXPLAIN_NOTHING
        self.setup.forecast.left = other_stages(layers, len(inputs.given), len(inputs.first), explains=explains)
        return answering

    def _end(self, stop: BaseException, *, again: bool = True) -> Report:
        """Saves what is known when a run is stopped, and ends it: a report after a time limit, else an error.

        Args:
            again: what stops this too is treated in the same way, once.
        """
        kind = under_way.stopped_by(stop)
        if not kind:
            raise stop
        try:
            with lifted(self.setup.progress):
                report = self._left(kind, measures=again and kind == summary.TIME_LIMIT)
        except under_way.STOPS as stopped_again:
            if kind == summary.NO_ROOM:
                raise stop from stopped_again
            if not again:
                raise
            return self._end(stopped_again, again=False)
        if kind == summary.TIME_LIMIT and report.verdict != UNMEASURED:
            return report
        if kind == summary.INTERRUPTED:
            raise under_way.StoppedRun(report) from stop
        raise stop

    def _left(self, kind: str, *, measures: bool) -> Report:
        """Returns the best report of a run that was stopped, and saves it; ``kind``: see ``Report.stopped``.

        With ``measures``, full INT8 and the best recipes are measured to the end.
        """
        if self.verdict is not None:
            searched, report = self.searched, self.verdict
            if searched is not None and not self.is_explained:
                with suppress(Exception):
                    report = self.live.known() or report
                report = under_way.stopped_report(report, kind, self._rest(searched, report))
        else:
            searched = self._stopped_search(kind, measures=measures)
            if searched is None:
                so_far: Report | None = None
                with suppress(Exception):
                    so_far = self.live.known()
                return self._saved(under_way.without_verdict(so_far or self.blank(), kind), None)
            report = self._answered(searched)
            if measures:
                report = self._told(report, searched)
        assert searched is not None
        assert searched.answer is not None
        report = self._saved(report, searched.answer.of_user.experiment)
        if measures:
            self._write_logs(searched, report)
        return report

    def _continue(self, first: Experiment) -> None:
        """Counts the seconds of earlier sittings; lets the report so far of a killed run stand if it knows a recipe.

        A recipe that answered another question loses its plan, as no report will name it.
        """
        if self.folder is None:
            return
        blank, before = self._asked(first), read_report(self.folder / SO_FAR)
        if first.store.resumed:
            made_of = under_way.without_ranges(blank)
            reports = [report for report in (read_report(self.folder / REPORT), before) if report]
            seconds = [report.seconds.total for report in reports if under_way.without_ranges(report) == made_of]
            self.setup.began -= max(seconds, default=0.0)
        if before is not None:
            same = under_way.question_in(before) == under_way.question_in(blank)
            self.live.earlier = same and before.recipe.meets
            if not self.live.earlier:
                (self.folder / FOLDER / PLAN).unlink(missing_ok=True)

    def _asked(self, experiment: Experiment) -> Report:
        return reporting.asked_report(self.setup, experiment, self.options, self.command)

    def _announce(self, experiment: Experiment) -> None:
        if self.folder is not None:
            write(self.folder / NETWORK, graph_of(experiment.network, experiment.ranges.scales))
        self._watch(experiment)

    def _watch(self, experiment: Experiment) -> None:
        assert self.first is not None
        report, answer = self.latest or (self._asked(experiment), None)
        curve = self.options.curve_of(experiment.strategy, len(experiment.network.movable))
        question = reporting.question_of(self.setup, experiment)
        self.live.watch(under_way.SoFar(self.setup, report, self.first, experiment, curve, question, answer))

    def _search(self, answering: AnswerSearch, searched: Searched) -> tuple[AnswerSearch, Answer]:
        """Searches the answer: the ranges, the set of layers that stay high, its check, each layer put back.

        The search that found the recipe is returned: it is another one where the recipe has a changed network.
        The curve comes before the set only where the search of the set starts from its suspects.
        """
        assert self.first is not None
        answering.on_answer = self._so_far
        experiment = searched.of_curve = answering.choose_ranges()
        if experiment.key != self.first.key:
            self._announce(experiment)
        curve_first = not answering.alone.can_measure(answering.space)
        if curve_first:
            self._measure_curve(answering, searched)
        answer = searched.answer = answering.finish(searched.curve.findings.suspects)
        answer = searched.answer = priced(answering.plans, answer)
        if curve_first:
            searched.gains = answering.alone.gains(answer, searched.curve.findings.suspects)
        if self.options.as_is:
            return answering, answer
        searched.changes = True
        deploying, searched.answer = with_changes(answering, answer) or (answering, answer)
        searched.changes = False
        return deploying, searched.answer

    def _with_front(self, answering: AnswerSearch, searched: Searched, report: Report) -> Report:
        if not self.options.front:
            return report
        assert searched.answer is not None
        searched.front = measure_front(answering, searched.answer)
        answering.plans.give_back()
        return self._with_more(report, searched)

    def _so_far(self, answer: Answer) -> None:
        """Keeps an answer from which the search goes on: in the report so far, and its recipe as files."""
        searched, began = self.searched, perf_counter()
        if self.folder is None or searched is None or began < self.kept_until:
            return
        so_far = replace(answer, not_done=(*answer.not_done, *self._rest(searched)))
        accuracy = self.accuracies(answer, measures=False) if self.accuracies and answer.by_accuracy else None
        report = self._report(replace(searched, answer=so_far, accuracy=accuracy), files=answer.meets)
        if not answer.meets:
            report = reporting.without_recipe(report)
        self.latest = report, so_far
        self._keep(report, partial(self._watch, searched.of_curve))
        if answer.meets:
            self.kept_until = perf_counter() + (perf_counter() - began) / under_way.SHARE

    def _rest(self, searched: Searched, report: Report | None = None) -> list[str]:
        """Returns what was not done after the answer, a clause each; ``report`` may have a part of the curve."""
        rows = () if report is None else report.layers
        is_begun = any(row.quantizable and row.outcome != NOT_TRIED for row in rows)
        front = [summary.FRONT_MISSING] if self.options.front and not searched.front else []
        part = summary.CURVE_IN_PART if is_begun else summary.CURVE_MISSING
        curve = [] if searched.curve.findings.steps else [part]
        explanation = [] if self.options.explain == EXPLAIN_NOTHING else [summary.UNEXPLAINED]
        changes = [summary.UNCHANGED] if searched.changes else []
        return [*changes, *front, *curve, *explanation]

    def _with_curve(self, answering: AnswerSearch, searched: Searched, report: Report) -> Report:
        """Measures the curve, unless it came first, with the ranges of the recipe; returns the report with it."""
        answer = searched.answer
        assert answer is not None
        if searched.has_curve:
            return self._with_boundaries(searched, report)
        self.setup.forecast.begins(CURVE)
        self.latest = report, answer.of_user
        searched.of_curve = self.setup.in_pieces(answer.of_user.experiment)
        self._announce(searched.of_curve)
        self._measure_curve(answering, searched)
        searched.gains = answering.alone.gains(answer.of_user, searched.curve.findings.suspects)
        with lifted(self.setup.progress):
            self._measure_base(searched)
        return self._with_boundaries(searched, self._with_more(report, searched))

    def _with_boundaries(self, searched: Searched, report: Report) -> Report:
        """Saves the outputs of the boundaries, if the user asks for them; returns the report with what was noted."""
        if self.folder is None or searched.answer is None:
            return report
        of_user, curve, shown = searched.answer.of_user, searched.curve.findings, self.setup.progress
        saved = save_boundaries(self.options, of_user, curve, self.folder, shown)
        self.verdict = report.changed(notes=(*report.notes, *noted(TENSORS, saved))) if saved else report
        return self.verdict

    def _with_more(self, report: Report, searched: Searched) -> Report:
        """Returns a report with all that was measured since its verdict, and keeps it."""
        with lifted(self.setup.progress):
            renewed = self._report(searched)
        tensors = (note for note in report.notes if note.kind == TENSORS)
        report = self.verdict = renewed.changed(notes=(*renewed.notes, *tensors))
        self.live.keep(report)
        return report

    def _measure_curve(self, answering: AnswerSearch, searched: Searched) -> None:
        experiment = searched.of_curve
        answering.plans.give_back()
        names = [layer.name for layer in experiment.network.layers]
        searching = CurveSearch(
            reporting.question_of(self.setup, experiment), experiment.rule, names, self.setup.progress
        )
        curve = self.options.curve_of(experiment.strategy, len(experiment.network.movable))
        searched.curve = searching.curve(curve, experiment.evaluator)
        searched.has_curve = True
        self.setup.forecast.ends(CURVE)

    def _stopped_search(self, kind: str, *, measures: bool) -> Searched | None:
        """Returns what a stopped search knows; None if full INT8 is not known on all inputs. See ``_left``."""
        if self.searched is None or self.answering is None:
            return None
        searched = replace(self.searched, stopped=kind, measures=measures)
        answer = searched.answer or self.answering.so_far(measures=measures)
        if answer is None:
            return None
        if self.accuracies is not None and answer.by_accuracy:
            searched.accuracy = self.accuracies(answer, measures=measures)
        return replace(searched, answer=replace(answer, not_done=(*answer.not_done, *self._rest(searched))))

    def _answered(self, searched: Searched) -> Report:
        """Returns the report on an answer; the latencies and the overflows are measured."""
        answer, setup = searched.answer, self.setup
        assert answer is not None
        if searched.measures:
            experiment, memory = answer.experiment, self.options.memory_bytes
            network, high = experiment.network, self.options.high_precision
            timed = (experiment.feeds[0], setup.progress)
            searched.latency = measure_latencies(experiment.builder, network, answer.recipe.plan, high, *timed)
            searched.predicted = predicted_times(self.options, experiment, answer.recipe.plan)
            searched.overflows = overflows_of(network, experiment.feeds, memory)
            emulated = experiment.builder.arithmetic == EMULATED
            searched.notes = tuple(overflow_notes(network, searched.overflows, emulated=emulated))
            self._measure_base(searched)
        return self._report(searched)

    def _measure_base(self, searched: Searched) -> None:
        """Looks for the tensors that overflow in the base, if it alone misses, or if FP16 as a base does."""
        assert searched.answer is not None
        experiment, around = searched.answer.experiment, searched.answer.around_fp16
        network, rule = experiment.network, experiment.rule
        emulated = experiment.builder.arithmetic == EMULATED
        if around is not None and (around.similarity is None or rule.metric.loss(around.similarity) > rule.budget):
            network = replace(network, base=Precision.FP16)
        if network is not experiment.network or summary.base_misses(network, rule, searched.curve.nothing):
            notes = base_overflow_notes(network, experiment.feeds, self.options.memory_bytes, emulated=emulated)
            searched.notes = (*searched.notes, *notes)

    def _report(self, searched: Searched, *, files: bool = True) -> Report:
        """Returns the report on an answer, with the files of the recipe and the graph; nothing is measured."""
        answer, options, setup, first = searched.answer, self.options, self.setup, self.first
        assert answer is not None
        assert first is not None
        experiment = answer.experiment
        trials = all_trials(first, searched.of_curve, answer.of_user.experiment, experiment)
        notes = [*setup.notes, *searched.notes, *self._notes_on_curve(searched), *refused_by_default(answer)]
        recipe = recipe_of(options, answer) if files else None
        seconds = reporting.seconds_of(trials, setup.data.calibrated, perf_counter() - setup.began)
        blank = replace(self._asked(searched.of_curve), notes=tuple(dict.fromkeys(notes)))
        report = reporting.build_report(blank, searched, first, seconds, recipe)
        if not files:
            return report
        of_user = answer.of_user.experiment
        return report.changed(files=recipe, graph=graph_of(of_user.network, of_user.ranges.scales))

    def _notes_on_curve(self, searched: Searched) -> list[Note]:
        """Notes on passes that could not be finished, and on the boundaries that an adaptive curve leaves out."""
        evaluator, steps, notes = searched.of_curve.evaluator, searched.curve.findings.steps, list[Note]()
        failures = evaluator.failures if isinstance(evaluator, BranchEvaluator) else []
        if failures:
            text = f"{len(failures)} passes in pieces broke off, and whole engines took over: "
            notes.append(Note(PASSES_BROKE, text + failures[0].splitlines()[0]))
        measured, layers = len(steps), sum(len(step.layers) for step in steps)
        curve = self.options.curve_of(searched.of_curve.strategy, len(searched.of_curve.network.movable))
        if curve == ADAPTIVE and measured != layers:
            text = (
                f"the curve is adaptive: {measured} of {layers} boundaries were measured, all of them where the loss "
                "changes; the others have no figure (--curve full measures them)"
            )
            notes.append(Note(ADAPTIVE_CURVE, text))
        return notes

    def _told(self, report: Report, searched: Searched) -> Report:
        """Says and keeps the verdict, saves the tensors, and returns the report with what was noted on them."""
        shown, answer = self.setup.progress, searched.answer
        assert answer is not None
        shown.say(headline(report))
        self.verdict = report
        self._keep(report, partial(self.live.keep, report))
        notes = [] if self.folder is None else save_tensors(self.options, answer, self.folder, shown)
        report = self.verdict = report.changed(notes=(*report.notes, *noted(TENSORS, notes)))
        return report

    def _keep(self, report: Report, tell: Callable[[], None]) -> None:
        """Writes a report so far, by ``tell``, and the files of its recipe: a run that is killed later has both."""
        files = report.attached.files
        if self.folder is None or files is None or files.texts == self.written:
            tell()
            return
        self.written = None
        files.write(self.folder / FOLDER, tell)
        self.written = files.texts

    def _explained(self, answering: AnswerSearch, answer: Answer, report: Report) -> Report:
        """Returns the report with its explanation; ``explained`` is imported here: runs without it start sooner."""
        if self.options.explain == EXPLAIN_NOTHING:
            return report
        from trt_bisect.commands.run.explain import explained

        self.setup.forecast.begins(EXPLAINING)
        return explained(answering.plans, answer, report, self.repeated)

    def _pictured(self, answer: Answer, report: Report) -> Report:
        if self.options.explain == EXPLAIN_NOTHING or report.exit_code not in (0, 1):
            return report
        from trt_bisect.commands.run.pictures import pictured

        return pictured(answer, report, self.folder, self.setup.progress)

    def _write_logs(self, searched: Searched, report: Report) -> None:
        from trt_bisect.report.tensorboard_logs import RunLogs, steps_of

        first, answering = self.first, self.answering
        if self.board is None or searched.answer is None or first is None or answering is None:
            return
        answer = searched.answer.of_user
        experiment = answer.experiment
        RunLogs(
            self.board,
            report,
            experiment,
            searched.curve.findings,
            answer.recipe.plan,
            trials={**first.store.trials, **searched.of_curve.store.trials},
            reported={experiment.network.full(experiment.whole.high): answer.full, answer.recipe.plan: answer.restored},
            measured=partial(
                steps_of, experiment.store.trials, first.store.trials, experiment.rule, experiment.ranges.digest()
            ),
            price=answering.plans.price,
            accuracy=None if self.accuracy is None else partial(self.accuracy, answer),
            memory=self.options.memory_bytes,
        ).write(self.setup.progress)

    def _saved(self, report: Report, experiment: Experiment | None) -> Report:
        """Returns the report with the step to go on with, and saves it if there is a folder.

        There is no step for an experiment that no engine runs; without a folder it has no command.
        """
        options, files = self.options, report.attached.files
        is_experiment = options.low_precision.wide or any(line.kind == summary.EXPERIMENT for line in report.lines)
        if experiment is not None and not is_experiment:
            step = next_step(report, setting_of(experiment, self.repeated, report), accept=options.accept)
            if step is not None and (files is not None or step.kind not in (RECIPE, BUILD)):
                report = report.changed(next=replace(step, command="") if self.folder is None else step)
        report = report.changed(peak_bytes=peak_bytes())
        is_new = files is None or files.texts != self.written
        return under_way.save_report(report, self.folder, self.live, self.setup.progress, recipe=is_new)
