"""Builds the report of a run: the question, the curve so far, and the answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import msgspec

from trt_bisect._version import versions
from trt_bisect.analyzer.doubts import is_destroyed
from trt_bisect.analyzer.judge import Rule
from trt_bisect.analyzer.metrics import AGREEMENT
from trt_bisect.analyzer.structure.graph import FileGraph
from trt_bisect.analyzer.structure.refusals import in_lines, refusals
from trt_bisect.answer.accuracy import TIE
from trt_bisect.answer.candidates import losses_in_words
from trt_bisect.answer.choices import choices_of
from trt_bisect.answer.result import (
    Answer,
    answer_facts,
    bound_on_unseen,
    moves_of,
    reason_for,
    recipe_of,
    refused_by_default,
    taken_back,
)
from trt_bisect.builder.base import UNPROVEN
from trt_bisect.builder.engines import ONNXRUNTIME
from trt_bisect.calibration.ranges import unusable_scales
from trt_bisect.commands.run.search import Curve
from trt_bisect.driver.curves import ADAPTIVE
from trt_bisect.driver.search import Step
from trt_bisect.evaluator.trial import MEASURED, PASSING, SWITCH, Trial, TrialKey
from trt_bisect.model.layers import Layer
from trt_bisect.model.network import Network
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.options.concerns import MIXED, RunOptions
from trt_bisect.precision import PrecisionPlan
from trt_bisect.preparation.experiment import Experiment, Setup, all_trials
from trt_bisect.report.answer import Goal, RecipeLayers
from trt_bisect.report.model import Report
from trt_bisect.report.network_graph import graph_of
from trt_bisect.report.parts import (
    FOLLOWS,
    NOT_JUDGED,
    NOT_TRIED,
    UNMEASURED,
    ByPlan,
    JudgedInputs,
    LayerRow,
    Part,
    RangesFacts,
    RoundedTensor,
    Seconds,
    Shape,
    verdict_of,
)
from trt_bisect.report.precision_check import dla_notes, float_kernel_notes, obedience_notes
from trt_bisect.report.summary import TIME_LIMIT, base_misses, memory_notes, ships_fp16, verdict_lines
from trt_bisect.runs.progress_file import FINISHED, INTERRUPTED, RUNNING
from trt_bisect.support.machine import peak_bytes
from trt_bisect.support.text import (
    ADAPTIVE_CURVE,
    DATA,
    FITTING_TASK,
    NETWORK,
    OUTPUTS,
    RANGES,
    RECIPE,
    Line,
    Note,
    noted,
)


@dataclass
class Searched:
    """The results of a search, also of one under way.

    Attributes:
        report: the report without the answer: the question, and what is not measured plan by plan, such as the front,
            latencies, accuracies and overflows.
        first: the experiment with the first ranges.
        of_curve: the experiment that the curve is measured on.
        curve: None as long as it is not measured.
        answer: None if full INT8 was not measured.
        gains: by layer index, the loss that full INT8 sheds when the layer alone stays high.
    """

    report: Report
    first: Experiment
    of_curve: Experiment
    curve: Curve | None = None
    answer: Answer | None = None
    gains: Mapping[int, float] = field(default_factory=dict)

    @property
    def found(self) -> Answer:
        """The answer, when there is one."""
        assert self.answer is not None
        return self.answer

    @property
    def suspects(self) -> tuple[int, ...]:
        """The suspects of the curve; none as long as it is not measured."""
        return self.curve.findings.suspects if self.curve else ()


@dataclass(frozen=True)
class RunTrials:
    """The trials of a run by plan key; ``experiment`` is that of the curve."""

    trials: Mapping[str, Trial]
    experiment: Experiment

    def of_plan(self, plan: PrecisionPlan) -> Trial | None:
        """Returns the trial of a plan as the curve measures it; None if there is none."""
        plan_key = self._canonical(plan)
        return self.trials.get(TrialKey(plan_key, SWITCH).text) or self.trials.get(plan_key)

    def whole(self, plan: PrecisionPlan) -> Trial | None:
        """Returns the trial of a plan on a whole engine, None if there is none."""
        return self.trials.get(self._canonical(plan))

    def that_ran(self, plan: PrecisionPlan) -> Trial | None:
        """Returns a trial of a plan that says what ran, on whatever engines; None if there is none."""
        key = self._canonical(plan)
        return next(
            (trial for text, trial in self.trials.items() if TrialKey.from_text(text).plan == key and trial.ran), None
        )

    def _canonical(self, plan: PrecisionPlan) -> str:
        """The key of the plan under which the trial of a plan is stored."""
        return self.experiment.whole.canonical(plan).key()


def asked_report(setup: Setup, experiment: Experiment, options: RunOptions, command: str, engine: str) -> Report:
    """Returns the report of a run that has measured nothing yet: its question; ``engine`` will decide."""
    network, builder = experiment.network, experiment.builder
    blank = unmeasured_report(options, experiment.rule, network.source, network, command, setup.started)
    return replace(
        blank,
        engine=builder.engine,
        typing=builder.typing,
        strategy=experiment.strategy,
        arithmetic=builder.arithmetic,
        versions={**versions(), **builder.versions},
        state=RUNNING,
        ranges=_ranges_facts(experiment, experiment),
        inputs=experiment.about,
        refused=_refused(experiment, options) if engine == ONNXRUNTIME else (),
        notes=tuple(dict.fromkeys(setup.notes)),
        network=setup.read.digest(),
        **_fingerprint(experiment),
    )


def _refused(experiment: Experiment, options: RunOptions) -> tuple[Line, ...]:
    """Returns why TensorRT cannot build the network in FP32; where its engine decides, that has the answer."""
    writer = PlanWriter(experiment.network, {}, GraphTarget.TENSORRT)
    written = writer.write(experiment.network.free_plan())
    graph = FileGraph.of(written.model, experiment.network.source, written.weights)
    return in_lines(refusals(graph, options.plugins))


def unmeasured_report(
    options: RunOptions, rule: Rule, model: str, network: Network | None, command: str, started: float
) -> Report:
    """Returns the report of a run that was stopped before its experiment was ready, or its network read (None).

    Args:
        started: the start of the run, in seconds since the epoch.
    """
    high, low = options.high_precision, options.low_precision if network is None else network.low
    layers, base = ((), None) if network is None else (network.layers, network.base)
    gpu, costs = options.priced_gpu, options.priced_by
    if options.by_time and gpu is not None:
        costs = f"{costs} on {gpu.name}"
    return Report(
        model=model,
        engine=options.engine,
        typing=options.typing,
        strategy=options.strategy,
        arithmetic="",
        metric=rule.metric.name,
        threshold=rule.threshold,
        share=rule.share,
        precision=str(high),
        versions=versions(),
        fingerprint="",
        low=str(low.precision),
        budget=rule.budget,
        layers=tuple(
            blank_row(layer, str(layer.fixed or (high if layer.quantizable else base or high))) for layer in layers
        ),
        notes=tuple(noted(NETWORK, network.notes)) if network is not None else (),
        command=command,
        started=started,
        network="" if network is None else network.digest(),
        accept=options.accept,
        goal=Goal(options.most, "" if options.drop is None else str(options.drop), costs, options.precision == MIXED),
    )


def _fingerprint(experiment: Experiment) -> dict[str, Any]:
    return {"fingerprint": experiment.key, "made_of": msgspec.convert(experiment.parts, dict[str, Part])}


def _ranges_facts(experiment: Experiment, of_curve: Experiment) -> RangesFacts:
    ranges, others = experiment.ranges, of_curve.ranges
    curve = "" if others.digest() == ranges.digest() else others.origin
    return RangesFacts(ranges.origin, len(ranges.scales), dict(ranges.unusable), curve)


def blank_row(layer: Layer, precision: str) -> LayerRow:
    """Returns the row of a layer that is not tried yet."""
    return LayerRow(
        index=layer.index,
        name=layer.name,
        op_type=layer.op_type,
        shape=layer.shape,
        quantizable=layer.quantizable,
        similarity=None,
        drop=None,
        culprit=False,
        outcome=NOT_TRIED,
        asked=precision,
        ran="",
        recipe=precision,
        why_not=layer.why_not or layer.refused,
        fixed=str(layer.fixed or ""),
        module=layer.module,
        code=layer.code,
    )


def build_report(setup: Setup, options: RunOptions, searched: Searched, *, files: bool = True) -> Report:
    """Returns the report of a run on its answer; nothing is measured.

    Args:
        files: the report has the files of the recipe, and the graph.
    """
    answer, curve, blank = searched.found, searched.curve or Curve(), searched.report
    of_user, of_curve, first = answer.of_user, searched.of_curve, searched.first
    experiment, full, members = of_user.experiment, of_user.full, of_user.members
    rule, network = experiment.rule, experiment.network
    recipe = recipe_of(setup, options, answer) if files else None
    trials = _trials_of_curve(first, of_curve)
    measured = all_trials(first, of_curve, experiment, answer.experiment)
    plans, builds, inferences = counts(measured)
    where = " (in the recipe without changes)" if answer is not of_user else ""
    reasons = {
        k: f"{reason_for(of_user, k, searched.gains.get(k))}{where}"
        for k in curve.findings.suspects
        if k not in members
    }
    rows = layer_rows(blank.layers, trials, curve, reasons)
    notes = [
        *_destroyed_notes(of_user, curve),
        *setup.notes,
        *blank.notes,
        *_curve_notes(of_curve, curve, experiment),
        *refused_by_default(answer),
        *_notes(answer, curve, trials if answer.engines is None else RunTrials(experiment.store.trials, experiment)),
        *float_kernel_notes(network, full, answer.restored, blank.latency),
        *noted(RECIPE, recipe.notes if recipe else ()),
    ]
    report = replace(
        blank,
        **_fingerprint(of_curve),
        state=FINISHED if blank.stopped in ("", TIME_LIMIT) else INTERRUPTED,
        layers=_answered_rows(rows, answer, searched.gains),
        culprits=tuple(network.layers[k].name for k in members),
        similarity=ByPlan(rule.similarity(full), rule.similarity(answer.restored)),
        by_input=ByPlan(rule.by_input(full), rule.by_input(answer.restored)),
        inputs=_inputs_of(blank, answer),
        outputs=ByPlan(figures_of(full), figures_of(answer.restored)),
        recipe=_recipe_layers(answer),
        ranges=_ranges_facts(experiment, of_curve if curve.findings.steps else experiment),
        answer=answer_facts(answer),
        bound=bound_on_unseen(answer),
        notes=tuple(dict.fromkeys(notes)),
        moves=moves_of(answer),
        plans=plans,
        builds=builds,
        inferences=inferences,
        peak_bytes=peak_bytes(),
        seconds=seconds_of(setup, measured),
    )
    report = _decided(report, answer, trials)
    recipe = recipe.with_fp16(network) if recipe is not None and ships_fp16(report) else recipe
    nothing = curve.nothing if answer.engines is None else answer.engines.base
    lines = verdict_lines(report, network, rule, curve.findings, nothing, full)
    notes = [note for note in report.notes if note.kind != FITTING_TASK]
    report = replace(report, lines=lines, notes=tuple(notes))
    return report.changed(files=recipe, graph=graph_of(network, experiment.ranges.scales)) if files else report


def _trials_of_curve(first: Experiment, of_curve: Experiment) -> RunTrials:
    """Returns the trials that may be those of the curve: of its own engine alone, where that is another one."""
    if first.builder.engine == of_curve.builder.engine:
        return RunTrials({**first.store.trials, **of_curve.store.trials}, of_curve)
    return RunTrials(of_curve.store.trials, of_curve)


def _decided(report: Report, answer: Answer, trials: RunTrials) -> Report:
    """Returns the report with its verdict, the engine that decided, and the plans that a user may ship."""
    report = _on_engine(replace(report, verdict=_verdict(report, answer, trials)), answer)
    return replace(report, choices=choices_of(report, answer))


def _on_engine(report: Report, answer: Answer) -> Report:
    """Returns the report with the engine that decided; the report itself where that was the emulation."""
    if answer.engines is None:
        return report
    builder = answer.experiment.builder
    return replace(
        report,
        engine=builder.engine,
        typing=builder.typing,
        arithmetic=builder.arithmetic,
        versions={**versions(), **builder.versions},
        builds=answer.engines.builds,
    )


def _inputs_of(blank: Report, answer: Answer) -> JudgedInputs:
    """Returns the facts on the inputs, with those of the search that count, and the warnings of all inputs."""
    judged = len(set(answer.inputs.first) - answer.inputs.given.empty)
    return replace(blank.inputs, judged=judged, warnings=(*blank.inputs.warnings, *answer.inputs.warnings))


def _recipe_layers(answer: Answer) -> RecipeLayers:
    recipe, layers = answer.recipe, answer.experiment.network.layers

    def names(indices: Iterable[int]) -> tuple[str, ...]:
        return tuple(layers[k].name for k in sorted(indices))

    return RecipeLayers(
        high=names(recipe.high),
        added=names(set(recipe.high) - set(answer.members)),
        meets=answer.meets,
        untested=names(answer.untested),
        faster=names(recipe.space.layers(recipe.faster)),
    )


def without_recipe(report: Report) -> Report:
    """Returns the report of a search that has no recipe yet: what is measured is full INT8 alone."""
    return report.changed(
        similarity=ByPlan(report.similarity.int8, None),
        by_input=ByPlan(report.by_input.int8, None),
        outputs=ByPlan(report.outputs.int8, {}),
        answer=None if report.answer is None else replace(report.answer, given=None),
    )


def _verdict(report: Report, answer: Answer, trials: RunTrials) -> str:
    """The verdict on full INT8."""
    answer = answer.of_user
    if all(trial.failed for trial in trials.trials.values()) or answer.full.outcome in PASSING:
        return UNMEASURED
    full_meets = answer.meets and not answer.recipe.high
    if answer.most is not None and answer.by_accuracy:
        accuracy, least = report.figures.int8, report.least
        full_meets = accuracy is not None and least is not None and accuracy >= least - TIE
    elif answer.most is not None:
        full_meets = answer.experiment.rule.meets(answer.full)
    return verdict_of(meets=full_meets, doubted=bool(report.doubts) and not report.accept)


def counts(trials: Iterable[Trial]) -> tuple[int, int, int]:
    """Returns the number of plans, engines built and inferences of trials."""
    trials = list(trials)
    return len(trials), sum(trial.builds for trial in trials), sum(trial.inferences for trial in trials)


def seconds_of(setup: Setup, trials: Sequence[Trial]) -> Seconds:
    """Returns the times of a run until now, in seconds."""
    build, infer = (sum(getattr(trial, f"{stage}_seconds") for trial in trials) for stage in ("build", "infer"))
    return Seconds(setup.data.calibrated, build, infer, perf_counter() - setup.began)


def figures_of(trial: Trial | None) -> dict[str, Mapping[str, float | None]]:
    """Returns by output every metric; empty without a trial."""
    return {name: dict(figures.values) for name, figures in trial.outputs.items()} if trial is not None else {}


def layer_rows(
    blank: Sequence[LayerRow], trials: RunTrials, curve: Curve, reasons: Mapping[int, str]
) -> tuple[LayerRow, ...]:
    """Returns the rows with what the curve measured, in execution order; ``reasons`` are those of the suspects."""
    rule = trials.experiment.rule
    steps = {step.layers[-1]: step for step in curve.findings.steps}
    before = None if curve.nothing.failed else curve.nothing
    rows = []
    for row in blank:
        step = steps.get(row.index)
        trial, outcome, drop = _judged(trials, curve, row, step, before)
        precision = str(step.plan.low) if step is not None and row.index in step.plan.lowered else row.asked
        ran = trial.ran.get(row.index, "") if trial else ""
        judged = rule.judged(trial) if trial is not None else {}
        measured = trial.outputs if trial is not None and rule.metric is AGREEMENT else judged
        ratios = [figures.values["sqnr"] for figures in measured.values() if "sqnr" in figures.values]
        rows.append(
            replace(
                row,
                similarity=rule.similarity(trial),
                drop=drop,
                suspect=reasons.get(row.index, ""),
                outcome=outcome,
                asked=precision,
                ran=ran,
                obeyed=ran == precision if row.quantizable and ran and ran not in UNPROVEN else None,
                sqnr=min(ratios, default=None),
                output=max(judged, key=lambda name: rule.output_loss(judged[name]), default=""),
                message=trial.message if trial and trial.outcome != MEASURED else "",
            )
        )
        if step is None or trial is None or not (step.suspect or trial.failed):
            before = trial
    return tuple(rows)


def _judged(
    trials: RunTrials, curve: Curve, row: LayerRow, step: Step | None, before: Trial | None
) -> tuple[Trial | None, str, float | None]:
    """Returns the trial at a layer, the outcome as ``LayerRow`` has it, and the loss that the layer added.

    The trial has the layer and all before it in INT8, but for earlier culprits; ``step`` ends at the layer, ``before``
    is the trial that holds for the layer before. Each is None where it was not measured.
    """
    trial = trials.of_plan(step.plan) if step is not None else None
    if step is not None and trial is not None:
        return trial, trial.outcome, step.drop if len(step.layers) == 1 and step.loss is not None else None
    if step is None and (row.fixed or not row.quantizable):
        return before, FOLLOWS, None if before is None else 0.0
    return None, NOT_JUDGED if row.index in curve.findings.set_aside else NOT_TRIED, None


def _answered_rows(rows: Sequence[LayerRow], answer: Answer, gains: Mapping[int, float]) -> tuple[LayerRow, ...]:
    of_user, experiment = answer.of_user, answer.of_user.experiment
    network, back = experiment.network, {**taken_back(answer), **taken_back(of_user)}
    plan, layers = answer.recipe.plan, answer.experiment.network.layers
    kept = {layers[k].name: str(plan.precisions[k]) for k in answer.recipe.high}
    writer = PlanWriter(network, experiment.ranges.scales, GraphTarget.TENSORRT)
    shapes: dict[str, Shape] = {spec.name: spec.shape for spec in network.outputs}
    shapes |= {name: layer.shape for layer in network.layers for name in layer.outputs[:1] if layer.shape}
    culprits = set(of_user.members)
    if answer.engines is not None:
        rows = [_with_ran(row, of_user.full, str(plan.low)) for row in rows]
    return tuple(
        replace(
            row,
            culprit=row.index in culprits,
            gain=gains.get(row.index),
            **back.get(row.name, {}),
            recipe=kept.get(row.name, row.recipe if row.fixed or not row.quantizable else str(plan.low)),
            rounds=_rounded_tensors(network.layers[row.index], writer) if row.index in culprits else (),
            output_shape=shapes.get(row.output),
        )
        for row in rows
    )


def _with_ran(row: LayerRow, full: Trial, low: str) -> LayerRow:
    """Returns the row of a layer with what the engine of full INT8 ran it in."""
    if not row.quantizable or row.fixed:
        return row
    ran = full.ran.get(row.index, "")
    obeyed = ran == low if ran and ran not in UNPROVEN else None
    return replace(row, asked=low, ran=ran, obeyed=obeyed)


def _curve_notes(experiment: Experiment, curve: Curve, answer: Experiment) -> list[Note]:
    """Returns notes on the boundaries that an adaptive curve leaves out, and on ranges that are not the answer's."""
    steps, notes = curve.findings.steps, list[Note]()
    measured, layers = len(steps), sum(len(step.layers) for step in steps)
    if experiment.curve == ADAPTIVE and measured != layers:
        text = (
            f"the curve is adaptive: {measured} of {layers} boundaries were measured, all of them where the loss "
            "rises; the others have no figure (--curve full measures them)"
        )
        notes.append(Note(ADAPTIVE_CURVE, text))
    if steps and experiment.builder.engine != answer.builder.engine:
        text = f"the curve is emulated; verdict, recipe and put backs are measured with {answer.builder.engine}"
        notes.append(Note(ADAPTIVE_CURVE, text))
    if steps and experiment.ranges.digest() != answer.ranges.digest():
        text = (
            f"the curve was measured with ranges of {experiment.ranges.origin}, the recipe with {answer.ranges.origin}"
        )
        notes.append(Note(RANGES, text))
    return notes


def _destroyed_notes(answer: Answer, curve: Curve) -> list[Note]:
    """Returns a note if full INT8, with the ranges that the verdict is on, has nothing in common with FP32.

    There is none where the data are not the cause: scales or a base that no plan can use, or a recipe that keeps most
    layers in the low precision.
    """
    network, rule = answer.experiment.network, answer.experiment.rule
    explained = unusable_scales(network) or base_misses(network, rule, curve.nothing)
    few_high = answer.meets and 2 * len(answer.recipe.high) < len(network.quantizable)
    if explained or few_high or not is_destroyed(rule, answer.full):
        return []
    where = f"in every output on all {len(answer.inputs.told)} inputs"
    return [Note(DATA, f"full {network.low.title} is wrong {where}: check the data and its preprocessing first")]


def _notes(answer: Answer, curve: Curve, trials: RunTrials) -> list[Note]:
    of_user = answer.of_user
    network, rule = of_user.experiment.network, of_user.experiment.rule
    low = network.low
    outputs = [
        Note(OUTPUTS, f"output '{name}' in {where}: {figures.note}")
        for where, trial in ((f"full {low.precision.upper()}", of_user.full), ("the recipe", answer.restored))
        for name, figures in rule.judged(trial).items()
        if figures.note
    ]
    steps = {step.layers[-1]: step.plan for step in curve.findings.steps if step.suspect}
    plan = of_user.recipe.plan
    alone = {k: plan.keeping({k}, plan.low) for k in of_user.members}
    deciding = {
        k: trials.that_ran(plan) or (trials.whole(steps[k]) if k in steps else None) for k, plan in alone.items()
    }
    worth = f"mean loss of {low.title} on inputs that no change was made from: {losses_in_words(answer.changes)}"
    return [
        *outputs,
        *noted(NETWORK, [worth] if answer.changes else []),
        *memory_notes(trials.trials.values()),
        *obedience_notes(network, trials.trials.values(), deciding),
        *dla_notes(network, of_user.full),
    ]


def _rounded_tensors(layer: Layer, writer: PlanWriter) -> tuple[RoundedTensor, ...]:
    """Returns the tensors that a layer rounds, each with its producer and its consumer (rule 2 of the design)."""
    network, tensors = writer.network, []
    inputs = {spec.name for spec in network.inputs}
    for rounding in layer.roundings:
        name, producer = rounding.tensor, network.producers.get(rounding.tensor)
        kind = "output" if rounding.at_output else "weight" if rounding.is_weight else "activation"
        made_by = producer.name if producer else "the network's input" if name in inputs else "a constant"
        quantizers = writer.quantizers(layer, rounding)
        keys = [quantizer.key() for quantizer in quantizers]
        same = tuple(
            reader.name
            for reader in network.layers
            if reader.quantizable and reader.index != layer.index
            for its_rounding in reader.roundings
            if its_rounding.tensor == name and [q.key() for q in writer.quantizers(reader, its_rounding)] == keys
        )
        scale = max((float(quantizer.scale.max()) for quantizer in quantizers), default=None)
        tensors.append(RoundedTensor(name, kind, made_by, layer.name, scale, same))
    return tuple(tensors)
