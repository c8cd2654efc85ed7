"""Finds the culprits and a recipe for a network. The command line calls this too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import perf_counter, time

from trt_bisect.analyzer.judge import make_rule
from trt_bisect.analyzer.metrics import find_metric
from trt_bisect.analyzer.overflow import base_overflows, overflow_notes, overflows_of, sets_to_keep
from trt_bisect.answer.accuracy import AskedAccuracy, asked_accuracy, chance_warning, fp32_accuracy, refuse_accuracy
from trt_bisect.answer.answer import AnswerSearch, answer_search, measure_front
from trt_bisect.answer.candidates import with_changes
from trt_bisect.answer.each_alone import in_fp16_alone, priced
from trt_bisect.answer.on_engines import NoKernels, OnEngines, Trials
from trt_bisect.answer.result import Answer, latencies_of, setting_of
from trt_bisect.answer.search import foreseen_times, predicted_times
from trt_bisect.builder.base import EMULATED
from trt_bisect.builder.engines import ONNXRUNTIME, choose_engine
from trt_bisect.commands.losses import with_most_sensitive
from trt_bisect.commands.run import build_report as reporting, live as under_way
from trt_bisect.commands.run.build_report import Searched
from trt_bisect.commands.run.save_tensors import refuse_tensors, save_boundaries, save_tensors
from trt_bisect.commands.run.search import Curve, CurveSearch
from trt_bisect.errors import NothingMeasured, lacks_room
from trt_bisect.evaluator.accuracy import ACCURACY
from trt_bisect.evaluator.trial import UNTRIED
from trt_bisect.model.network import GivenModel, Network
from trt_bisect.options.concerns import EMULATION, EXPLAIN_NOTHING, RunOptions
from trt_bisect.options.declare import takes
from trt_bisect.options.kinds import parse_time
from trt_bisect.precision import Precision
from trt_bisect.preparation.asked_network import asked_network
from trt_bisect.preparation.experiment import Experiment, Setup
from trt_bisect.preparation.preparation import prepared
from trt_bisect.preparation.workspace import working_in
from trt_bisect.recipe.files import FOLDER, PLAN
from trt_bisect.report import summary
from trt_bisect.report.model import Report, read_report
from trt_bisect.report.network_graph import NETWORK, graph_of
from trt_bisect.report.parts import NOT_TRIED, REPORT, SO_FAR, UNMEASURED
from trt_bisect.report.summary import BUILD, FP16_INSTEAD, RECIPE, headline, next_step
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
from trt_bisect.support.text import TENSORS, listed, noted


@takes(RunOptions)
def run(model: GivenModel, options: RunOptions, command: str = "") -> Report:
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
    # ``command`` is for the report
    metric, low = find_metric(options.metric), options.low_precision.precision
    threshold = None if options.threshold is None else float(options.threshold)
    rule = make_rule(metric, threshold, low=low)
    refuse_accuracy(options)
    options = with_most_sensitive(model, options)
    folder = None if options.output is None else Path(options.output)
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
            engine = choose_engine(options.engine)
            return _Run(setup, options, command, folder, live, board, blank, engine).report()
        except TimeUp as end:
            raise NothingMeasured(
                f"--time-limit {options.time_limit} ended the run before full {network.low.title} was measured.",
                "Give a longer one: the same command goes on from what was measured.",
            ) from end


@dataclass
class _Run:
    """A run: its question, what it knows, and where its results go.

    Attributes:
        blank: returns the report with nothing measured, before the experiment is ready.
        engine: the engine that decides.
        written: the texts of the recipe whose files this run has written; None without them.
        kept_until: a cheaper recipe is not written before then, as that would take too large a share of the time.
        latest: the report so far and the answer that it has; None before full INT8 is known on all inputs.
        searched: what is measured; None before the experiment is ready.
        search: the search of the answer; None before it is ready.
        accuracy: the accuracy that is told or decides; None without labels or an accuracy function.
        changes: a network that loses less is being searched.
        on_engines: engines are deciding.
        engine_trials: the trials of engines before the network was changed, see ``OnEngines``.
        verdict: the report with its verdict; None before there is one.
        is_explained: nothing is missing in ``verdict``.
    """

    setup: Setup
    options: RunOptions
    command: str
    folder: Path | None
    live: under_way.Live
    board: Board | None
    blank: Callable[[], Report]
    engine: str
    written: Mapping[str, str] | None = None
    kept_until: float = 0.0
    latest: tuple[Report, Answer] | None = None
    searched: Searched | None = None
    search: AnswerSearch | None = None
    accuracy: AskedAccuracy | None = None
    changes: bool = False
    on_engines: OnEngines | None = None
    engine_trials: Trials = field(default_factory=dict)
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
        """Returns the report of a run that nobody stops: all of it, again where the engine refuses layers in INT8."""
        while True:
            try:
                return self._measured_once(stack)
            except NoKernels as refused:
                stack.close()
                self.engine_trials = refused.trials
                self._keep_high(refused.reasons)

    def _keep_high(self, reasons: Mapping[int, str]) -> None:
        """Keeps layers high in all plans, and says so."""
        setup = self.setup
        names = [setup.read.layers[k].name for k in reasons]
        (reason,) = dict.fromkeys(reasons.values())
        setup.read = setup.read.refusing(reasons, self.options.high_precision)
        setup.progress.say(f"NO KERNEL: {listed(names, 4)} high in all plans: {reason}")
        self.searched = self.search = self.on_engines = self.latest = None

    def _measured_once(self, stack: ExitStack) -> Report:
        first = stack.enter_context(prepared(self.setup, emulated=True))
        searched = self.searched = Searched(self._asked(first), first, first)
        self._continue(searched)
        self._announce(first)
        refuse_tensors(self.options, self.folder, self.engine)
        search = self._answer_search(stack, first)
        deploying = self._find_answer(search, searched)
        with lifted(self.setup.progress):
            self._measure_accuracy(searched)
            self._measure_beside(searched)
        report = self._told(searched)
        try:
            report = self._with_front(deploying, searched, report)
            report = self._with_curve(search, searched, report)
            report = self._explained(search, searched, report)
        except Exception as error:
            if not lacks_room(error):
                self._saved(report, searched)
            raise
        self.is_explained = True
        with lifted(self.setup.progress):
            report = self._saved(self._pictured(searched, report), searched)
            self._write_logs(searched, report)
        return report

    def _continue(self, searched: Searched) -> None:
        """Counts the seconds of earlier sittings; lets the report so far of a killed run stand if it knows a recipe.

        A recipe that answered another question loses its plan, as no report will name it.
        """
        if self.folder is None:
            return
        blank, before = searched.report, read_report(self.folder / SO_FAR)
        if searched.first.store.resumed:
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
        return reporting.asked_report(self.setup, experiment, self.options, self.command, self.engine)

    def _announce(self, experiment: Experiment) -> None:
        if self.folder is not None:
            write(self.folder / NETWORK, graph_of(experiment.network, experiment.ranges.scales))
        self._watch(experiment)

    def _watch(self, experiment: Experiment) -> None:
        assert self.searched is not None
        report, answer = self.latest or (self._asked(experiment), None)
        self.live.watch(under_way.SoFar(self.setup, report, self.searched.first, experiment, answer))

    def _answer_search(self, stack: ExitStack, first: Experiment) -> AnswerSearch:
        options = self.options
        accuracy = asked_accuracy(self.setup, first, options)
        fp32 = None if accuracy is None else fp32_accuracy(accuracy, first)
        search = self.search = stack.enter_context(answer_search(self.setup, first, options))
        if accuracy is not None and fp32 is not None:
            self._warn(chance_warning(accuracy, fp32[ACCURACY]))
            least = None if options.drop is None else options.least_accuracy(fp32[ACCURACY])
            self.accuracy = AskedAccuracy(search.plans, accuracy, fp32, least)
            if least is not None:
                search.target = self.accuracy
        layers, inputs = len(first.network.movable), search.plans.inputs
        explains = options.explain != EXPLAIN_NOTHING
        self.setup.forecast.left = other_stages(layers, len(inputs.given), len(inputs.first), explains=explains)
        search.on_answer = self._so_far
        if times := foreseen_times(options, first):
            self.setup.progress.say(times)
        return search

    def _warn(self, warnings: tuple[str, ...]) -> None:
        """Says warnings on the data, which the report tells first."""
        assert self.searched is not None
        for warning in warnings:
            self.setup.progress.say(f"DATA: {warning}")
        report = self.searched.report
        inputs = replace(report.inputs, warnings=(*report.inputs.warnings, *warnings))
        self.searched.report = replace(report, inputs=inputs)

    def _find_answer(self, search: AnswerSearch, searched: Searched) -> AnswerSearch:
        """Searches the answer: the ranges, the set of layers that stay high, its check, each layer put back.

        The curve comes before the set only where the search of the set starts from its suspects.

        Returns:
            The search that found the recipe: it is another one where the recipe has a changed network.
        """
        searched.of_curve = search.choose_ranges()
        if searched.of_curve.key != searched.first.key:
            self._announce(searched.of_curve)
        curve_first = not search.alone.can_measure(search.space)
        if curve_first:
            self._measure_curve(search, searched)
        searched.answer = search.finish(searched.suspects)
        answer = searched.answer = priced(search.plans, searched.answer)
        if curve_first:
            searched.gains = search.alone.gains(answer, searched.suspects)
        deploying = search
        if not self.options.as_is:
            self.changes = True
            deploying, searched.answer = with_changes(search, answer) or (search, answer)
            self.changes = False
        if self.engine == ONNXRUNTIME:
            searched.answer = replace(searched.answer, fp16=in_fp16_alone(search.plans, searched.answer))
        else:
            self._decide_on_engines(deploying, search, searched)
        return deploying

    def _decide_on_engines(self, deploying: AnswerSearch, search: AnswerSearch, searched: Searched) -> None:
        """Builds engines for the answer of the emulation, which is the report so far until they have decided."""
        accuracy = self.accuracy if search.target is self.accuracy else None
        deploying.plans.give_back()
        self.on_engines = OnEngines(deploying, search, searched.found, self.engine, accuracy, self.engine_trials)
        self._so_far(self.on_engines.so_far())
        searched.answer = self.on_engines.decide()
        self.on_engines = None

    def _measure_curve(self, search: AnswerSearch, searched: Searched) -> None:
        search.plans.give_back()
        searched.curve = CurveSearch(searched.of_curve, self.setup.progress).curve()
        self.setup.forecast.ends(CURVE)

    def _measure_accuracy(self, searched: Searched) -> None:
        if self.accuracy is not None:
            self.setup.progress.stage("Measuring the accuracy", None)
            searched.report = replace(searched.report, accuracy=self.accuracy.accuracies(searched.found))

    def _measure_beside(self, searched: Searched) -> None:
        """Measures the latencies of the answer, and its overflows."""
        experiment, plan, memory = searched.found.experiment, searched.found.recipe.plan, self.options.memory_bytes
        network, emulated = experiment.network, experiment.builder.arithmetic == EMULATED
        latency = latencies_of(searched.found)
        predicted = predicted_times(self.options, experiment, plan)
        overflows = overflows_of(network, experiment.feeds, memory)
        notes = (*searched.report.notes, *overflow_notes(network, overflows, emulated=emulated))
        searched.report = replace(
            searched.report, latency=latency, predicted=predicted, overflows=overflows, notes=notes
        )
        self._measure_base(searched)

    def _measure_base(self, searched: Searched) -> None:
        """Looks for the tensors that overflow in the base, if it alone misses, or if FP16 as a base does."""
        experiment, around = searched.found.experiment, searched.found.around_fp16
        network, rule = experiment.network, experiment.rule
        emulated = experiment.builder.arithmetic == EMULATED
        engines = searched.found.engines
        nothing = searched.curve.nothing if searched.curve else UNTRIED
        if engines is not None:
            nothing = engines.base
        if around is not None and (around.similarity is None or rule.metric.loss(around.similarity) > rule.budget):
            network = replace(network, base=Precision.FP16)
        is_base = network is experiment.network
        if is_base and not summary.base_misses(network, rule, nothing):
            return
        memory = self.options.memory_bytes
        notes, overflows = base_overflows(network, experiment.feeds, memory, emulated=emulated)
        searched.report = replace(searched.report, notes=(*searched.report.notes, *notes))
        if is_base:
            kept = next((layers for layers in sets_to_keep(overflows) if self._holds_with(layers, experiment)), ())
            searched.report = replace(searched.report, base_high=kept)

    def _holds_with(self, layers: Sequence[str], experiment: Experiment) -> bool:
        """Returns true if full INT8 with these layers in FP32 meets the threshold, on all inputs given and held out."""
        if not layers or self.search is None:
            return False
        network, plans = experiment.network, self.search.plans
        network = network.fixing({network.layer_named(name).index: Precision.FP32 for name in layers})
        moved = self.setup.with_ranges(experiment, experiment.ranges, network)
        trials = [plans.whole(network.full(Precision.FP32), moved)]
        if plans.unseen is not None and experiment.rule.meets(trials[0]):
            trials.append(plans.whole(network.full(Precision.FP32), moved, plans.unseen, "unseen inputs"))
        return all(map(experiment.rule.meets, trials))

    def _told(self, searched: Searched) -> Report:
        """Says and keeps the verdict, saves the tensors, and returns the report with what was noted on them."""
        shown, report = self.setup.progress, self._report(searched)
        shown.say(headline(report))
        self.verdict = report
        self._keep(report, partial(self.live.keep, report))
        notes = [] if self.folder is None else save_tensors(self.options, searched.found, self.folder, shown)
        self.verdict = report.changed(notes=(*report.notes, *noted(TENSORS, notes)))
        return self.verdict

    def _with_front(self, deploying: AnswerSearch, searched: Searched, report: Report) -> Report:
        if not self.options.front:
            return report
        searched.report = replace(searched.report, front=measure_front(deploying, searched.found.emulated))
        deploying.plans.give_back()
        return self._with_more(searched, report)

    def _with_curve(self, search: AnswerSearch, searched: Searched, report: Report) -> Report:
        """Measures the curve, unless it came first, with the ranges of the recipe; returns the report with it.

        The outputs of the boundaries are saved, if the user asks for them.
        """
        of_user, shown = searched.found.of_user, self.setup.progress
        if searched.curve is None:
            self.setup.forecast.begins(CURVE)
            self.latest = report, of_user
            searched.of_curve = self._with_curve_of(searched.found)
            self._announce(searched.of_curve)
            self._measure_curve(search, searched)
            searched.gains = search.alone.gains(of_user, searched.suspects)
            with lifted(shown):
                self._measure_base(searched)
            report = self._with_more(searched, report)
        if self.folder is not None and searched.curve is not None:
            notes = save_boundaries(self.options, of_user, searched.curve.findings, self.folder, shown)
            report = self.verdict = report.changed(notes=(*report.notes, *noted(TENSORS, notes)))
        return report

    def _with_curve_of(self, answer: Answer) -> Experiment:
        """Returns the experiment that measures the curve: whole engines where the strategy asks for them."""
        strategy = self.options.asked_strategy
        if answer.engines is None or strategy == EMULATION:
            return self.setup.with_curve(answer.emulated.of_user.experiment)
        experiment = answer.of_user.experiment
        curve = self.options.curve_of(strategy, len(experiment.network.movable))
        return replace(experiment, strategy=strategy, curve=curve)

    def _with_more(self, searched: Searched, report: Report) -> Report:
        """Returns a report with all that was measured since its verdict, and keeps it."""
        renewed, tensors = self._report(searched), [note for note in report.notes if note.kind == TENSORS]
        report = self.verdict = renewed.changed(notes=(*renewed.notes, *tensors))
        self.live.keep(report)
        return report

    def _explained(self, search: AnswerSearch, searched: Searched, report: Report) -> Report:
        """Returns the report with its explanation; ``explained`` is imported here: runs without it start sooner."""
        if self.options.explain == EXPLAIN_NOTHING:
            return report
        from trt_bisect.commands.run.explain import explained

        self.setup.forecast.begins(EXPLAINING)
        self.verdict = explained(search.plans, searched.found.emulated.of_user, report, self.options)
        return self.verdict

    def _pictured(self, searched: Searched, report: Report) -> Report:
        if self.options.explain == EXPLAIN_NOTHING or report.exit_code not in (0, 1):
            return report
        from trt_bisect.commands.run.pictures import pictured

        self.verdict = pictured(searched.found.emulated, report, self.folder, self.setup.progress)
        return self.verdict

    def _write_logs(self, searched: Searched, report: Report) -> None:
        if self.board is None or self.search is None:
            return
        from trt_bisect.report.tensorboard_logs import RunLogs, steps_of

        answer, first, curve = searched.found.of_user, searched.first, searched.curve or Curve()
        experiment, recipe = answer.experiment, answer.recipe
        RunLogs(
            self.board,
            report,
            experiment,
            curve.findings,
            recipe.plan,
            trials={**first.store.trials, **searched.of_curve.store.trials},
            reported={experiment.network.full(experiment.whole.high): answer.full, recipe.plan: answer.restored},
            measured=partial(
                steps_of, experiment.store.trials, first.store.trials, experiment.rule, experiment.ranges.digest()
            ),
            price=self.search.plans.price,
            accuracy=None if self.accuracy is None else partial(self.accuracy.of_plan, experiment),
            memory=self.options.memory_bytes,
        ).write(self.setup.progress)

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
        searched, report = self.searched, self.verdict
        if searched is not None and report is not None and not self.is_explained:
            with suppress(Exception):
                report = self.live.known() or report
            report = under_way.stopped_report(report, kind, self._rest(searched, report))
        elif report is None:
            searched = self._stopped_search(kind, measures=measures)
            if searched is None:
                so_far: Report | None = None
                with suppress(Exception):
                    so_far = self.live.known()
                return self._saved(under_way.without_verdict(so_far or self.blank(), kind), None)
            if measures:
                self._measure_beside(searched)
            report = self._told(searched) if measures else self._report(searched)
        assert searched is not None
        report = self._saved(report, searched)
        if measures:
            self._write_logs(searched, report)
        return report

    def _stopped_search(self, kind: str, *, measures: bool) -> Searched | None:
        """Returns what a stopped search knows; None if full INT8 is not known on all inputs. See ``_left``."""
        if self.searched is None or self.search is None:
            return None
        if self.on_engines is not None:
            answer: Answer | None = self.on_engines.so_far()
        else:
            answer = self.searched.answer or self.search.so_far(measures=measures)
        return None if answer is None else self._with_answer(self.searched, answer, kind, measures=measures)

    def _so_far(self, answer: Answer) -> None:
        """Keeps an answer from which the search goes on: in the report so far, and its recipe as files."""
        searched, began = self.searched, perf_counter()
        if self.folder is None or searched is None or began < self.kept_until:
            return
        so_far = self._with_answer(searched, answer, measures=False)
        report = self._report(so_far, files=answer.meets)
        if not answer.meets:
            report = reporting.without_recipe(report)
        self.latest = report, so_far.found
        self._keep(report, partial(self._watch, searched.of_curve))
        if answer.meets:
            self.kept_until = perf_counter() + (perf_counter() - began) / under_way.SHARE

    def _with_answer(self, searched: Searched, answer: Answer, stopped: str = "", *, measures: bool) -> Searched:
        """Returns what is measured with the answer of a search that is not at its end, or was stopped."""
        report = replace(searched.report, stopped=stopped)
        if self.accuracy is not None and answer.by_accuracy:
            report = replace(report, accuracy=self.accuracy.accuracies(answer, measures=measures))
        not_done = (*answer.not_done, *self._rest(searched))
        return replace(searched, report=report, answer=replace(answer, not_done=not_done))

    def _rest(self, searched: Searched, report: Report | None = None) -> list[str]:
        """Returns what was not done after the answer, a clause each; ``report`` may have a part of the curve."""
        rows = () if report is None else report.layers
        is_begun = any(row.quantizable and row.outcome != NOT_TRIED for row in rows)
        front = [summary.FRONT_MISSING] if self.options.front and not searched.report.front else []
        part = summary.CURVE_IN_PART if is_begun else summary.CURVE_MISSING
        curve = [] if searched.curve and searched.curve.findings.steps else [part]
        explanation = [] if self.options.explain == EXPLAIN_NOTHING else [summary.UNEXPLAINED]
        changes = [summary.UNCHANGED] if self.changes else []
        return [*changes, *front, *curve, *explanation]

    def _report(self, searched: Searched, *, files: bool = True) -> Report:
        return reporting.build_report(self.setup, self.options, searched, files=files)

    def _keep(self, report: Report, tell: Callable[[], None]) -> None:
        """Writes a report so far, by ``tell``, and the files of its recipe: a run that is killed later has both."""
        files = report.attached.files
        if self.folder is None or files is None or files.texts == self.written:
            tell()
            return
        self.written = None
        files.write(self.folder / FOLDER, tell)
        self.written = files.texts

    def _saved(self, report: Report, searched: Searched | None) -> Report:
        """Returns the report with the step to go on with, and saves it if there is a folder.

        There is no step without an answer, and for an experiment that no engine runs; without a folder it has no
        command.
        """
        options, files = self.options, report.attached.files
        is_experiment = options.low_precision.wide or any(line.kind == summary.EXPERIMENT for line in report.lines)
        if searched is not None and not is_experiment:
            setting = setting_of(searched.found.of_user.experiment, self.options, report)
            step = next_step(report, setting, accept=options.accept)
            if step is not None and (files is not None or step.kind not in (RECIPE, BUILD, FP16_INSTEAD)):
                report = report.changed(next=replace(step, command="") if self.folder is None else step)
        report = report.changed(peak_bytes=peak_bytes())
        is_new = files is None or files.texts != self.written
        return under_way.save_report(report, self.folder, self.live, self.setup.progress, recipe=is_new)
