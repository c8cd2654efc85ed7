"""``run``: finds the culprits of a network and a recipe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from pathlib import Path
from time import perf_counter, time
from typing import Any

from trt_bisect.analyzer.judge import make_rule
from trt_bisect.analyzer.metrics import find_metric
from trt_bisect.analyzer.overflow import Overflow, base_overflows, overflow_notes, overflows_of, sets_to_keep
from trt_bisect.answer.accuracy import AskedAccuracy, asked_accuracy, chance_warning, fp32_accuracy, refuse_accuracy
from trt_bisect.answer.answer import AnswerSearch, answer_search, measure_front
from trt_bisect.answer.candidates import with_changes
from trt_bisect.answer.costs import foreseen_times, predicted_times, time_costs
from trt_bisect.answer.each_alone import networks_alone, with_costs, with_fp16, with_hidden_nan
from trt_bisect.answer.on_engines import NoKernels, OnEngines, Trials
from trt_bisect.answer.result import Answer, latencies_of, setting_of
from trt_bisect.builder.base import EMULATED
from trt_bisect.builder.engines import ONNXRUNTIME, choose_engine
from trt_bisect.commands.losses import with_most_sensitive
from trt_bisect.commands.run import build_report as reporting, live as under_way
from trt_bisect.commands.run.save_tensors import refuse_tensors, save_boundaries, save_tensors
from trt_bisect.commands.run.search import Curve, CurveSearch
from trt_bisect.commands.run.state import Phase, RunState
from trt_bisect.data.named import name_of
from trt_bisect.errors import NothingMeasured, lacks_room
from trt_bisect.evaluator.accuracy import ACCURACY
from trt_bisect.evaluator.trial import Trial
from trt_bisect.model.network import GivenModel, Network
from trt_bisect.options.concerns import EMULATION, EXPLAIN_NOTHING, RunOptions
from trt_bisect.options.declare import takes
from trt_bisect.options.kinds import parse_time
from trt_bisect.precision import Precision
from trt_bisect.preparation.asked_network import asked_network, logged_layers
from trt_bisect.preparation.experiment import Experiment, Setup
from trt_bisect.preparation.preparation import file_figure_noted, prepared
from trt_bisect.preparation.workspace import working_in
from trt_bisect.recipe.files import FOLDER, PLAN
from trt_bisect.recipe.given import without_pairs
from trt_bisect.report import summary
from trt_bisect.report.choices import FP16_INSTEAD
from trt_bisect.report.given import EXPERIMENT, base_misses
from trt_bisect.report.model import Report, read_report
from trt_bisect.report.network_graph import NETWORK, graph_of
from trt_bisect.report.next_step import BUILD, GO_ON, next_step
from trt_bisect.report.parts import REPORT, SO_FAR, UNMEASURED
from trt_bisect.report.summary import RECIPE
from trt_bisect.report.tensorboard_board import Board, open_board
from trt_bisect.report.words import headline
from trt_bisect.support.codec import write
from trt_bisect.support.progress import (
    CURVE,
    EXPLANATION as EXPLAINING,
    Progress,
    TimeLimited,
    TimeUp,
    default_progress,
    lifted,
    other_stages,
)
from trt_bisect.support.text import FILE, TENSORS, listed, noted


@takes(RunOptions)
def run(model: GivenModel, options: RunOptions, command: str = "", began: float | None = None) -> Report:
    """Finds the layers that lose the network's accuracy in INT8, and a plan that restores it.

    Args:
        model: an FP32 ONNX file of opset 9 or later, a ``torch.nn.Module``, or a loaded network.
        options: fields of ``RunOptions``, as keywords.

    Raises:
        BadInput: an argument cannot be used.
        EngineUnavailable: the engine cannot be used here.
        NothingMeasured: the FP32 network itself could not be run.
        StoppedRun: the user interrupted the run; its report says what is known.
    """
    # ``command`` is for the report, and the time limit counts from ``began``
    metric, low = find_metric(options.metric), options.low_precision.precision
    threshold = None if options.threshold is None else float(options.threshold)
    rule = make_rule(metric, threshold, low=low)
    refuse_accuracy(options)
    options = with_most_sensitive(model, options)
    folder = options.folder
    board = open_board(options.tensorboard, options.tensorboard_detail)
    progress = options.progress or default_progress()
    source = model.source if isinstance(model, Network) else name_of(model) or type(model).__name__
    with working_in(folder, progress, options.history) as display, under_way.Live(folder) as live:
        asked = reporting.asked_report(options, rule, source, command, time())
        with time_limited(options, display, began) as shown:
            return _Run(options, folder, live, board, shown, RunState(asked, options)).report(model)


@contextmanager
def time_limited(options: RunOptions, display: Progress, began: float | None = None) -> Iterator[Progress]:
    """Yields a progress display whose stages and steps raise TimeUp after ``--time-limit``.

    The time counts from ``began``, on the clock of ``perf_counter``; None: from now. Raises NothingMeasured if TimeUp
    ends the block: full INT8 was not measured in time.
    """
    limit, low = options.time_limit, options.low_precision.precision
    try:
        if limit is None:
            yield display
        else:
            spent = 0.0 if began is None else perf_counter() - began
            yield TimeLimited(display, parse_time(limit) - spent)
    except TimeUp as end:
        raise NothingMeasured(
            f"--time-limit {limit} ended the run before full {low.upper()} was measured.",
            "Give a longer one: the same command goes on from what was measured.",
        ) from end


@dataclass
class _Run:
    """A run: its measurements, and where results go."""

    options: RunOptions
    folder: Path | None
    live: under_way.Live
    board: Board | None
    shown: Progress
    state: RunState
    engine: str = ""
    written: Mapping[str, str] | None = None
    kept_until: float = 0.0  # the time before which no cheaper recipe is written
    search: AnswerSearch | None = None
    accuracy: AskedAccuracy | None = None
    on_engines: OnEngines | None = None
    engine_trials: Trials = field(default_factory=dict)  # of the attempts before, which an engine refused

    @property
    def setup(self) -> Setup:
        assert self.state.setup is not None
        return self.state.setup

    @property
    def found(self) -> Answer:
        assert self.state.answer is not None
        return self.state.answer

    @property
    def of_curve(self) -> Experiment:
        assert self.state.of_curve is not None
        return self.state.of_curve

    def _now(self, **measured: Any) -> None:
        self.state = replace(self.state, **measured)

    def _know(self, **fields: Any) -> None:
        self._now(known=self.state.known.changed(**fields))

    def report(self, model: GivenModel) -> Report:
        """Measures everything and returns the report, saved if there is a folder; a stopped run saves the report known
        by then.
        """
        with ExitStack() as stack:
            try:
                network = asked_network(self.options, model, self.options.shapes)
                self.board = logged_layers(self.board, network)
                self._know(**reporting.facts_of_network(network, self.options))
                self._now(setup=Setup(self.options, network, self.folder, self.shown))
                self.engine = choose_engine(self.options.engine)
                return self._measured(stack)
            except under_way.STOPS as stop:
                return self._end(stop)

    def _measured(self, stack: ExitStack) -> Report:
        # begins again, with the layers high that the engine refuses
        asked = self.state
        while True:
            try:
                return self._measured_once(stack)
            except NoKernels as refused:
                stack.close()
                self.engine_trials = refused.trials
                self.search = self.on_engines = None
                self.state = asked
                self._keep_high(refused.reasons)

    def _keep_high(self, reasons: Mapping[int, str]) -> None:
        setup = self.setup
        names = [setup.read.layers[k].name for k in reasons]
        (reason,) = dict.fromkeys(reasons.values())
        setup.read = setup.read.refusing(reasons, self.options.high_precision)
        self.shown.say(f"NO KERNEL: {listed(names, 4)} high in all plans: {reason}")

    def _measured_once(self, stack: ExitStack) -> Report:
        first = stack.enter_context(prepared(self.setup, emulated=True))
        self._now(first=first, of_curve=first)
        self._know(**reporting.facts_of_experiment(self.setup, first, self.options, self.engine))
        self._continue(first)
        self._announce()
        refuse_tensors(self.options, self.folder, self.engine)
        search = self._answer_search(stack, first)
        deploying = self._find_answer(search)
        with lifted(self.shown):
            self._measure_accuracy()
            self._measure_beside()
        self._now(phase=Phase.VERDICT)
        self._tell_verdict()
        try:
            self._measure_front(deploying)
            self._measure_curve_last(search)
            self._explain(search)
            self._now(phase=Phase.COMPLETE)
        except Exception as error:
            if not lacks_room(error):
                self._now(phase=Phase.COMPLETE)
                self._saved()
            raise
        with lifted(self.shown):
            self._draw_pictures()
            report = self._saved()
            self._write_logs(report)
        return report

    def _continue(self, first: Experiment) -> None:
        # counts the seconds of an earlier run in the folder, and keeps its recipe if the question is the same
        if self.folder is None:
            return
        asked, before = self.state.known, read_report(self.folder / SO_FAR)
        reports = [report for report in (read_report(self.folder / REPORT), before) if report]
        if first.store.resumed:
            made_of = under_way.without_ranges(asked)
            seconds = [report.seconds.total for report in reports if under_way.without_ranges(report) == made_of]
            self.setup.began -= max(seconds, default=0.0)
        alike = [report for report in reports if under_way.question_in(report) == under_way.question_in(asked)]
        self.live.cost_before = min(map(under_way.cost_of, alike), default=inf)
        if before is not None:
            self.live.earlier = before in alike and before.recipe.meets
            if not self.live.earlier:
                (self.folder / FOLDER / PLAN).unlink(missing_ok=True)

    def _announce(self) -> None:
        if self.folder is not None:
            write(self.folder / NETWORK, graph_of(self.of_curve.network, self.of_curve.ranges.scales))
        self.live.watch(self.state)

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
        if times := foreseen_times(time_costs(options, first)):
            self.shown.say(times)
        return search

    def _warn(self, warnings: tuple[str, ...]) -> None:
        for warning in warnings:
            self.shown.say(f"DATA: {warning}")
        inputs = self.state.known.inputs
        self._know(inputs=replace(inputs, warnings=(*inputs.warnings, *warnings)))

    def _find_answer(self, search: AnswerSearch) -> AnswerSearch:
        of_curve = search.choose_ranges()
        is_other = of_curve.key != self.of_curve.key
        self._now(of_curve=of_curve)
        if is_other:
            self._announce()
        self._now(answer=search.finish())
        answer = with_costs(search.plans, self.found)
        self._now(answer=answer)
        deploying = search
        if not self.options.as_is:
            self._now(phase=Phase.CHANGES)
            deploying, answer = with_changes(search, answer) or (search, answer)
            self._now(answer=answer, phase=Phase.SEARCH)
        if self.engine == ONNXRUNTIME:
            self._now(answer=with_hidden_nan(search.plans, with_fp16(search.plans, answer)))
        else:
            self._decide_on_engines(deploying, search)
        return deploying

    def _decide_on_engines(self, deploying: AnswerSearch, search: AnswerSearch) -> None:
        accuracy = self.accuracy if search.target is self.accuracy else None
        deploying.plans.give_back()
        self.on_engines = OnEngines(deploying, search, self.found, self.engine, accuracy, self.engine_trials)
        self._so_far(self.on_engines.so_far())
        self._now(answer=self.on_engines.decide())
        self.on_engines = None

    def _measure_curve(self, search: AnswerSearch) -> None:
        search.plans.give_back()
        self._now(curve=CurveSearch(self.of_curve, self.shown).curve())
        self.setup.forecast.ends(CURVE)

    def _measure_accuracy(self) -> None:
        if self.accuracy is not None:
            self.shown.stage("Measuring the accuracy", None)
            self._know(accuracy=self.accuracy.accuracies(self.found))

    def _measure_beside(self) -> None:
        found, memory = self.found, self.options.memory_bytes
        experiment = found.experiment
        network, emulated = experiment.network, experiment.builder.arithmetic == EMULATED
        overflows = overflows_of(network, experiment.feeds, memory)
        measured = found.recipe.plan, experiment.feeds, experiment.compare, experiment.rule, self.setup.build_options()
        kept = [each.name for each in network.layers if each.roundings and each.index not in found.recipe.plan.lowered]
        is_mended = bool(found.recipe.high) and without_pairs(network, kept) is not None
        in_file = file_figure_noted(network, *measured) if is_mended else []
        self._know(
            networks=() if self.search is None else networks_alone(self.search.plans, found),
            latency=latencies_of(found),
            predicted=predicted_times(self.options, experiment, found.recipe.plan),
            overflows=overflows,
            notes=(
                *self.state.known.notes,
                *noted(FILE, in_file),
                *overflow_notes(network, overflows, emulated=emulated),
            ),
        )
        around, rule = found.around_fp16, experiment.rule
        if around is not None and (around.similarity is None or rule.metric.loss(around.similarity) > rule.budget):
            self._note_overflows(replace(network, base=Precision.FP16))
        elif found.engines is not None:
            self._measure_base(found.engines.base)

    def _measure_base(self, nothing: Trial) -> None:
        # if the base misses with no layer low, tensors overflow in it
        experiment = self.found.experiment
        if base_misses(experiment.network, experiment.rule, nothing):
            overflows = self._note_overflows(experiment.network)
            kept = next((layers for layers in sets_to_keep(overflows) if self._holds_with(layers, experiment)), ())
            self._know(base_high=kept)

    def _note_overflows(self, network: Network) -> tuple[Overflow, ...]:
        experiment, memory = self.found.experiment, self.options.memory_bytes
        emulated = experiment.builder.arithmetic == EMULATED
        notes, overflows = base_overflows(network, experiment.feeds, memory, emulated=emulated)
        self._know(notes=(*self.state.known.notes, *notes))
        return overflows

    def _holds_with(self, layers: Sequence[str], experiment: Experiment) -> bool:
        if not layers or self.search is None:
            return False
        network, plans = experiment.network, self.search.plans
        network = network.fixing({network.layer_named(name).index: Precision.FP32 for name in layers})
        moved = self.setup.with_ranges(experiment, experiment.ranges, network)
        trials = [plans.whole(network.full(Precision.FP32), moved)]
        if plans.held_out is not None and experiment.rule.meets(trials[0]):
            trials.append(plans.whole(network.full(Precision.FP32), moved, plans.held_out, "held-out inputs"))
        return all(map(experiment.rule.meets, trials))

    def _tell_verdict(self) -> None:
        report = reporting.report_of(self.state)
        self.shown.say(headline(report.titled))
        self._keep(self.state, report)
        if self.folder is not None:
            self._note_on_tensors(save_tensors(self.options, self.found, self.folder, self.shown))

    def _note_on_tensors(self, notes: Sequence[str]) -> None:
        self._know(notes=(*self.state.known.notes, *noted(TENSORS, notes)))

    def _measure_front(self, deploying: AnswerSearch) -> None:
        if self.options.front:
            self._know(front=measure_front(deploying, self.found.emulated))
            deploying.plans.give_back()
            self.live.watch(self.state)

    def _measure_curve_last(self, search: AnswerSearch) -> None:
        of_user = self.found.of_user
        self.setup.forecast.begins(CURVE)
        self._now(of_curve=self._with_curve_of(self.found, search))
        self._announce()
        self._measure_curve(search)
        self._now(alone=search.alone.gains(of_user, self.state.suspects))
        curve = self.state.curve
        if curve is not None and self.found.engines is None:
            with lifted(self.shown):
                self._measure_base(self.found.base or curve.nothing)
        self.live.watch(self.state)
        if self.folder is not None and curve is not None:
            self._note_on_tensors(save_boundaries(self.options, of_user, curve.findings, self.folder, self.shown))
        # The explanation has sessions of its own.
        search.plans.close()

    def _with_curve_of(self, answer: Answer, search: AnswerSearch) -> Experiment:
        strategy = self.options.asked_strategy
        if answer.engines is None or strategy == EMULATION:
            return self.setup.with_curve(answer.emulated.of_user.experiment, search.plans.session)
        experiment = answer.of_user.experiment
        curve = self.options.curve_of(strategy, len(experiment.network.movable))
        return replace(experiment, strategy=strategy, curve=curve)

    def _explain(self, search: AnswerSearch) -> None:
        # ``explained`` is imported here: runs without it start sooner
        if self.options.explain == EXPLAIN_NOTHING:
            return
        from trt_bisect.commands.run.explain import explained

        self.setup.forecast.begins(EXPLAINING)
        report = reporting.report_of(self.state)
        answer, known = self.found.emulated.of_user, self.state.known
        self._know(**explained(search.plans, answer, search.target, report, known, self.options))

    def _draw_pictures(self) -> None:
        if self.options.explain == EXPLAIN_NOTHING:
            return
        from trt_bisect.commands.run.pictures import pictured

        self._now(known=pictured(self.found.emulated, self.state.known, self.folder, self.shown))

    def _write_logs(self, report: Report) -> None:
        if self.board is None or self.search is None or self.state.answer is None:
            return
        from trt_bisect.report.tensorboard_logs import RunLogs

        first, answer, curve = self.state.first, self.found.of_user, self.state.curve or Curve()
        assert first is not None
        experiment, recipe = answer.experiment, answer.recipe
        RunLogs(
            self.board,
            report,
            experiment,
            curve.findings,
            recipe.plan,
            trials={**first.store.trials, **self.of_curve.store.trials},
            reported={experiment.network.full(experiment.whole.high): answer.full, recipe.plan: answer.restored},
            shared=first.store.trials,
            cost=self.search.plans.cost,
            accuracy=None if self.accuracy is None else partial(self.accuracy.of_plan, experiment),
            memory=self.options.memory_bytes,
        ).write(self.shown)

    def _end(self, stop: BaseException, *, again: bool = True) -> Report:
        # Saves the report of a stopped run, and returns it after a time limit. If the run is stopped again meanwhile,
        # it saves again without measuring.
        kind = under_way.stopped_by(stop)
        if not kind:
            raise stop
        try:
            with lifted(self.shown):
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
        # with ``measures``, full INT8 and the best recipes are measured to the end
        is_searching = self.state.phase < Phase.VERDICT
        if is_searching and self.search is not None:
            self._take_best(self.search, measures=measures)
        if self.state.phase is not Phase.COMPLETE:
            self._know(stopped=kind)
        if is_searching and measures and self.state.answer is not None:
            self._measure_beside()
            self._tell_verdict()
        report = self._saved()
        if measures:
            self._write_logs(report)
        return report

    def _take_best(self, search: AnswerSearch, *, measures: bool) -> None:
        # the answer of a complete search stays
        known = self.state.answer
        if self.on_engines is not None:
            answer: Answer | None = self.on_engines.so_far()
        elif known is not None and not known.not_done:
            answer = known
        else:
            answer = search.so_far(search.settle() if measures else None)
        if answer is not None:
            self.state = self._with_answer(answer, measures=measures)

    def _so_far(self, answer: Answer) -> None:
        began = perf_counter()
        if self.folder is None or began < self.kept_until:
            return
        state = self._with_answer(answer, measures=False)
        self._keep(state, reporting.report_of(state, files=answer.meets))
        self.state = state
        if answer.meets:
            self.kept_until = perf_counter() + (perf_counter() - began) / under_way.SHARE

    def _with_answer(self, answer: Answer, *, measures: bool) -> RunState:
        known = self.state.known
        if self.accuracy is not None and answer.by_accuracy:
            known = known.changed(accuracy=self.accuracy.accuracies(answer, measures=measures))
        return replace(self.state, known=known, answer=answer)

    def _keep(self, state: RunState, report: Report) -> None:
        # the files of the recipe stay if the run is killed
        tell, files = partial(self.live.watch, state, report), report.files
        has_better = state.phase < Phase.VERDICT and under_way.cost_of(report) > self.live.cost_before
        if self.folder is None or files is None or has_better or files.texts == self.written:
            tell()
            return
        self.written = None
        files.write(self.folder / FOLDER, tell)
        self.written = files.texts

    def _saved(self) -> Report:
        options, report = self.options, reporting.report_of(self.state)
        files = report.files
        is_experiment = options.low_precision.wide or any(line.kind == EXPERIMENT for line in report.lines)
        if self.state.answer is not None and not is_experiment:
            setting = setting_of(self.found.of_user.experiment, options, report)
            step = next_step(report, setting, accept=options.accept)
            if step is not None and (files is not None or step.kind not in (RECIPE, BUILD, FP16_INSTEAD)):
                # A pipeline has several recipes: recipe/README.md has the command of each.
                has_command = self.folder is not None and (self.setup.read.pipeline is None or step.kind == GO_ON)
                report = report.changed(next=step if has_command else replace(step, command=""))
        is_new = files is None or files.texts != self.written
        return under_way.save_report(report, self.folder, self.live, self.shown, recipe=is_new)
