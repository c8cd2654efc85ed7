"""Builds the report of a run: the question, the curve so far, and the answer (full INT8, recipe, verdict)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import msgspec

from trt_bisect._version import versions
from trt_bisect.analyzer.doubts import NOT_LOW, is_destroyed
from trt_bisect.analyzer.judge import Rule
from trt_bisect.analyzer.metrics import AGREEMENT
from trt_bisect.analyzer.structure.findings import ERROR, HALF_QUANTIZED
from trt_bisect.analyzer.structure.graph import FileGraph
from trt_bisect.analyzer.structure.qdq import pair_findings
from trt_bisect.analyzer.structure.refusals import in_lines, refusals
from trt_bisect.answer.accuracy import TIE
from trt_bisect.answer.candidates import losses_in_words
from trt_bisect.answer.choices import choices_of
from trt_bisect.answer.facts import (
    answer_facts,
    bound_on_held_out,
    nan_in_fp16,
    put_back_fields,
    reason_for,
    refused_by_default,
)
from trt_bisect.answer.result import Answer, recipe_of
from trt_bisect.builder.base import UNPROVEN
from trt_bisect.builder.engines import ONNXRUNTIME
from trt_bisect.calibration.ranges import unusable_scales
from trt_bisect.commands.run.search import Curve
from trt_bisect.commands.run.state import Phase, RunState, RunTrials
from trt_bisect.driver.curves import ADAPTIVE
from trt_bisect.driver.search import Step
from trt_bisect.evaluator.trial import MEASURED, PASSING, Trial
from trt_bisect.model.layers import CONSTANT, Layer
from trt_bisect.model.network import Network
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.model.quantizer import Scales
from trt_bisect.options.concerns import EXPLAIN_NOTHING, MIXED, RunOptions
from trt_bisect.precision import PrecisionPlan
from trt_bisect.preparation.experiment import Experiment, Setup, all_trials
from trt_bisect.report.answer import Goal, RecipeLayers
from trt_bisect.report.choices import ships_fp16
from trt_bisect.report.given import NAMED, above_verdict, base_misses
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
from trt_bisect.report.summary import (
    CURVE_IN_PART,
    CURVE_MISSING,
    FRONT_MISSING,
    LAST_MISSING,
    STOPPED,
    TIME_LIMIT,
    UNCHANGED,
    UNEXPLAINED,
    memory_notes,
    stopped_line,
    verdict_lines,
)
from trt_bisect.runs.progress_file import FINISHED, INTERRUPTED, RUNNING
from trt_bisect.support.machine import peak_bytes
from trt_bisect.support.text import (
    ADAPTIVE_CURVE,
    DATA,
    EXPLANATION,
    FITTING_TASK,
    NETWORK,
    OUTPUTS,
    RANGES,
    RECIPE,
    TENSORS,
    Line,
    Note,
    listed,
    noted,
)

UNDECIDED = "not decided yet: the run has still to measure which layers the recipe needs"


def asked_report(options: RunOptions, rule: Rule, model: str, command: str, started: float) -> Report:
    """Returns the report of a run before its network is read: options, metric and threshold.

    Args:
        command: the user's command line.
        started: seconds since the epoch.
    """
    gpu, costs = options.cost_gpu, options.costs_by
    if options.by_time and gpu is not None:
        costs = f"{costs} on {gpu.name}"
    return Report(
        model=model,
        engine=options.engine,
        typing=options.typing,
        strategy=options.strategy,
        arithmetic="",
        precision=str(options.high_precision),
        versions=versions(),
        fingerprint="",
        low=str(options.low_precision.precision),
        command=command,
        started=started,
        accept=options.accept,
        goal=Goal(options.most, "" if options.drop is None else str(options.drop), costs, options.precision == MIXED),
        metric=rule.metric.name,
        threshold=rule.threshold,
        share=rule.share,
    )


def facts_of_network(network: Network, options: RunOptions) -> dict[str, Any]:
    """Returns the fields of the report that are known when the network is read, by name."""
    high, base = options.high_precision, network.base
    return {
        "low": str(network.low.precision),
        "layers": tuple(
            blank_row(layer, str(layer.fixed or (high if layer.quantizable else base))) for layer in network.layers
        ),
        "constants": tuple(blank_constant(network, name, str(base or high)) for name in network.operands),
        "notes": tuple(noted(NETWORK, network.notes)),
        "network": network.digest(),
    }


def facts_of_experiment(setup: Setup, experiment: Experiment, options: RunOptions, engine: str) -> dict[str, Any]:
    """Returns the fields of the report that are known when ranges and inputs are ready, by name; ``engine`` is the
    engine that decides the verdict.
    """
    builder, rule = experiment.builder, experiment.rule
    facts = facts_of_network(experiment.network, options)
    if setup.judged_by is not None:
        facts["layers"] = tuple(_with_reference(row, setup.judged_by.names) for row in facts["layers"])
    return {
        **facts,
        "metric": rule.metric.name,
        "threshold": rule.threshold,
        "share": rule.share,
        "budget": rule.budget,
        **_fingerprint(experiment),
        "engine": builder.engine,
        "typing": builder.typing,
        "strategy": experiment.strategy,
        "arithmetic": builder.arithmetic,
        "versions": {**versions(), **builder.versions},
        "ranges": _ranges_facts(experiment, experiment),
        "inputs": experiment.about,
        "refused": _refused(experiment, options) if engine == ONNXRUNTIME else (),
        "notes": tuple(dict.fromkeys(setup.notes)),
        "network": setup.read.digest(),
    }


def _refused(experiment: Experiment, options: RunOptions) -> tuple[Line, ...]:
    return in_lines(refusals(_written(experiment.network, {}, experiment.network.free_plan()), options.plugins))


def _own_pairs(answer: Answer) -> tuple[tuple[Line, ...], tuple[Line, ...]]:
    # Two kinds of doubts on pairs of the user's own, which are written as they are: TensorRT refuses them, or runs
    # their layers in high precision. An engine that was built has taken them.
    experiment = answer.experiment
    if not experiment.network.has_pairs or experiment.builder.engine != ONNXRUNTIME:
        return (), ()
    findings = [*pair_findings(_written(experiment.network, experiment.ranges.scales, answer.recipe.plan))]
    refused = in_lines([finding for finding in findings if finding.severity == ERROR], "run this plan as measured")
    half = [name for finding in findings if finding.kind == HALF_QUANTIZED for name in finding.layers]
    if not half:
        return refused, ()
    text = (
        f"Not in INT8: {listed(half, NAMED)}. TensorRT runs a layer in INT8 only if both operands have a Q/DQ pair, "
        "and the file has one on one operand alone. Quantize both operands, or neither."
    )
    return refused, (Line(NOT_LOW, text, tuple(half)),)


def _written(network: Network, scales: Scales, plan: PrecisionPlan) -> FileGraph:
    written = PlanWriter(network, scales, GraphTarget.TENSORRT).write(plan)
    return FileGraph.of(written.model, network.source, written.weights)


def _fingerprint(experiment: Experiment) -> dict[str, Any]:
    return {"fingerprint": experiment.key, "made_of": msgspec.convert(experiment.parts, dict[str, Part])}


def _ranges_facts(experiment: Experiment, of_curve: Experiment) -> RangesFacts:
    ranges, others = experiment.ranges, of_curve.ranges
    curve = "" if others.digest() == ranges.digest() else others.origin
    return RangesFacts(ranges.origin, len(ranges.scales), dict(ranges.unusable), curve)


def blank_row(layer: Layer, precision: str) -> LayerRow:
    """Returns the report's row of a layer that no plan has measured; ``precision`` is the one asked for."""
    return LayerRow(
        index=layer.index,
        name=layer.name,
        op_type=layer.op_type,
        shape=layer.shape,
        quantizable=layer.quantizable,
        similarity=None,
        loss=None,
        culprit=False,
        outcome=NOT_TRIED,
        asked=precision,
        ran="",
        recipe=precision,
        why_not=layer.why_not or layer.refused,
        fixed=str(layer.fixed or ""),
        title=layer.title,
        module=layer.module,
        code=layer.code,
    )


def blank_constant(network: Network, name: str, precision: str) -> LayerRow:
    """Returns the report's row of the constant ``name``, which TensorRT builds as a layer in ``precision``."""
    layer = network.layers[network.operands[name]]
    shape = network.types.shapes[name]
    constant = Layer(layer.index, name, CONSTANT, (), (name,), shape, None, why_not="constant", module=layer.module)
    return blank_row(constant, precision)


def _with_reference(row: LayerRow, names: Mapping[int, str]) -> LayerRow:
    name = names.get(row.index, row.name)
    return row if name in (row.name, row.title) else replace(row, reference=name)


def report_of(state: RunState, *, files: bool = True) -> Report:
    """Returns the report of a run at any moment: before full INT8 is measured, with a recipe, stopped, or finished.

    Args:
        files: attach the recipe's files and the network's graph, if there is an answer.
    """
    known, curve = state.known, state.curve
    if state.of_curve is not None:
        curve = curve or RunTrials(dict(state.of_curve.store.trials), state.of_curve).curve()
        known = known.changed(peak_bytes=peak_bytes(), **_counted(state))
    if state.answer is None:
        report = known if curve is None else _before_full(state, known, curve)
        report = report.changed(lines=tuple(above_verdict(report)))
    else:
        report = _on_answer(state, state.answer, known, curve or Curve(), files=files)
    if not known.stopped:
        return report.changed(state=FINISHED if state.phase is Phase.COMPLETE else RUNNING)
    return stopped_report(report, known.stopped, [*_not_done(state, report)])


def _counted(state: RunState) -> dict[str, Any]:
    trials, setup = all_trials(*state.experiments), state.setup
    assert setup is not None
    build, infer = (sum(getattr(trial, f"{stage}_seconds") for trial in trials) for stage in ("build", "infer"))
    explain = state.known.seconds.explain
    return {
        "plans": len(trials),
        "builds": sum(trial.builds for trial in trials),
        "inferences": sum(trial.inferences for trial in trials),
        "seconds": Seconds(setup.data.calibrated, build, infer, perf_counter() - setup.began, explain),
    }


def _before_full(state: RunState, known: Report, curve: Curve) -> Report:
    assert state.of_curve is not None
    trials, rule = _trials_of_curve(state), state.of_curve.rule
    full = trials.of_plan(state.of_curve.question.all_but(()))
    undecided = dict.fromkeys(curve.findings.suspects, UNDECIDED)
    return known.changed(
        similarity=ByPlan(rule.similarity(full), None),
        by_input=ByPlan(rule.by_input(full), None),
        outputs=ByPlan(figures_of(full), {}),
        **layer_rows(known, trials, curve, undecided),
    )


def _on_answer(state: RunState, answer: Answer, known: Report, curve: Curve, *, files: bool) -> Report:
    of_user, of_curve, setup = answer.of_user, state.of_curve, state.setup
    assert of_curve is not None
    assert setup is not None
    experiment, full, members = of_user.experiment, of_user.full, of_user.members
    rule, network = experiment.rule, experiment.network
    recipe = recipe_of(setup, state.options, answer) if files else None
    trials, whole = _trials_of_curve(state), state.curve or Curve()
    is_found = state.phase >= Phase.VERDICT or bool(known.stopped)
    where = " (in the recipe without changes)" if answer is not of_user else ""
    reasons = {
        k: f"{reason_for(of_user, k, state.alone.get(k))}{where}" if is_found else UNDECIDED
        for k in curve.findings.suspects
        if k not in members
    }
    rows = layer_rows(known, trials, curve, reasons)
    by_engine = trials if answer.engines is None else RunTrials(experiment.store.trials, experiment)
    notes = [
        *_destroyed_notes(of_user, whole),
        *setup.notes,
        *known.notes,
        *_curve_notes(of_curve, whole, experiment),
        *refused_by_default(answer),
        *nan_in_fp16(answer),
        *_notes(answer, whole, by_engine),
        *float_kernel_notes(network, full, answer.restored, known.latency),
        *noted(RECIPE, recipe.notes if recipe else ()),
    ]
    # A run stopped before its search knows full INT8, which is no recipe unless it passes.
    is_known = state.phase >= Phase.VERDICT or (is_found and answer.recipe.high)
    restored = answer.restored if is_known or answer.meets else None
    refused_pairs, half_quantized = _own_pairs(answer) if files else ((), ())
    facts = answer_facts(answer, half_quantized)
    if not is_found:
        given = facts.given if restored is not None else None
        facts = replace(facts, given=given, not_done=tuple(_not_done(state, known)))
    report = known.changed(
        **_fingerprint(of_curve),
        layers=_answered_rows(rows["layers"], answer, state.alone),
        constants=rows["constants"],
        culprits=tuple(network.layers[k].name for k in members),
        similarity=ByPlan(rule.similarity(full), rule.similarity(restored)),
        by_input=ByPlan(rule.by_input(full), rule.by_input(restored)),
        inputs=_inputs_of(known, answer),
        outputs=ByPlan(figures_of(full), figures_of(restored)),
        recipe=_recipe_layers(answer),
        ranges=_ranges_facts(experiment, of_curve if whole.findings.steps else experiment),
        refused=(*known.refused, *refused_pairs),
        answer=facts,
        bound=bound_on_held_out(answer),
        notes=tuple(dict.fromkeys(notes)),
    )
    report = report.changed(verdict=_verdict(report, answer, trials), **_engine_facts(answer))
    report = report.changed(choices=choices_of(report, answer))
    lines = verdict_lines(report, network, rule, whole.findings, answer.base or whole.nothing, full)
    notes = [note for note in report.notes if note.kind != FITTING_TASK]
    notes.sort(key=lambda note: note.kind in (TENSORS, EXPLANATION))
    report = report.changed(lines=lines, notes=tuple(notes))
    recipe = recipe.with_fp16(network) if recipe is not None and ships_fp16(report) else recipe
    return report.changed(files=recipe, graph=graph_of(network, experiment.ranges.scales)) if files else report


def _not_done(state: RunState, report: Report) -> Iterator[str]:
    options, answer = state.options, state.answer
    if answer is None:
        yield missing_in(report)
        return
    if state.phase is Phase.COMPLETE:
        return
    yield from answer.not_done
    if state.phase is Phase.CHANGES:
        yield UNCHANGED
    if options.front and not state.known.front:
        yield FRONT_MISSING
    if state.curve is None or not state.curve.findings.steps:
        is_begun = any(row.quantizable and row.outcome != NOT_TRIED for row in report.layers)
        yield CURVE_IN_PART if is_begun else CURVE_MISSING
    elif options.explain == EXPLAIN_NOTHING:
        yield LAST_MISSING
    if options.explain != EXPLAIN_NOTHING:
        yield UNEXPLAINED


def missing_in(report: Report) -> str:
    """Returns a phrase for the first result that the report of a stopped run lacks."""
    full = f"full {report.low.upper()} was not measured on all inputs"
    return full if report.verdict == UNMEASURED else UNEXPLAINED


def stopped_report(report: Report, stopped: str, not_done: Sequence[str]) -> Report:
    """Returns ``report`` as that of a stopped run; ``stopped`` is the reason, ``not_done`` has a clause for each
    missing result.
    """
    answer = report.answer
    state = FINISHED if stopped == TIME_LIMIT and report.verdict != UNMEASURED else INTERRUPTED
    missing = tuple(dict.fromkeys([*(answer.not_done if answer else ()), *not_done]))
    answer = None if answer is None else replace(answer, not_done=missing)
    lines = [line for line in report.lines if line.kind != STOPPED]
    return report.changed(stopped=stopped, state=state, answer=answer, lines=(*lines, stopped_line(stopped, missing)))


def _trials_of_curve(state: RunState) -> RunTrials:
    first, of_curve = state.first, state.of_curve
    assert first is not None
    assert of_curve is not None
    if first.builder.engine == of_curve.builder.engine:
        return RunTrials({**first.store.trials, **of_curve.store.trials}, of_curve)
    return RunTrials(dict(of_curve.store.trials), of_curve)


def _engine_facts(answer: Answer) -> dict[str, Any]:
    if answer.engines is None:
        return {}
    builder = answer.experiment.builder
    return {
        "engine": builder.engine,
        "typing": builder.typing,
        "arithmetic": builder.arithmetic,
        "versions": {**versions(), **builder.versions},
        "builds": answer.engines.builds,
    }


def _inputs_of(blank: Report, answer: Answer) -> JudgedInputs:
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


def _verdict(report: Report, answer: Answer, trials: RunTrials) -> str:
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


def figures_of(trial: Trial | None) -> dict[str, Mapping[str, float | None]]:
    """Returns the values of all metrics by output and metric; empty without a trial."""
    return {name: dict(figures.values) for name, figures in trial.outputs.items()} if trial is not None else {}


def layer_rows(
    known: Report, trials: RunTrials, curve: Curve, reasons: Mapping[int, str]
) -> dict[str, tuple[LayerRow, ...]]:
    """Returns the fields ``layers`` and ``constants`` of the report ``known``, with the figures of the curve in their
    rows.

    Args:
        reasons: by index of a suspect, why it is no culprit.
    """
    rule = trials.experiment.rule
    steps = {step.layers[-1]: step for step in curve.findings.steps}
    before = None if curve.nothing.failed else curve.nothing
    rows: dict[bool, list[LayerRow]] = {True: [], False: []}
    for row in known.rows:
        is_constant = row.op_type == CONSTANT
        step = None if is_constant else steps.get(row.index)
        trial, outcome, loss = _judged(trials, curve, row, step, before)
        precision = str(step.plan.low) if step is not None and row.index in step.plan.lowered else row.asked
        ran = trial.ran.get(row.index, "") if trial and not is_constant else ""
        judged = rule.judged(trial) if trial is not None else {}
        measured = trial.outputs if trial is not None and rule.metric is AGREEMENT else judged
        ratios = [figures.values["sqnr"] for figures in measured.values() if "sqnr" in figures.values]
        rows[is_constant].append(
            replace(
                row,
                similarity=rule.similarity(trial),
                loss=loss,
                suspect=reasons.get(row.index, ""),
                outcome=outcome,
                asked=precision,
                ran=ran,
                obeyed=ran == precision if row.quantizable and ran and ran not in UNPROVEN else None,
                sqnr=min(ratios, default=None),
                output=rule.worst_of(judged),
                message=trial.message if trial and trial.outcome != MEASURED else "",
            )
        )
        if step is None or trial is None or not (step.suspect or trial.failed):
            before = trial
    return {"layers": tuple(rows[False]), "constants": tuple(rows[True])}


def _judged(
    trials: RunTrials, curve: Curve, row: LayerRow, step: Step | None, before: Trial | None
) -> tuple[Trial | None, str, float | None]:
    # the trial of the plan with this layer and all before it in INT8, except suspects; its outcome, and the loss of the
    # layer
    trial = trials.of_plan(step.plan) if step is not None else None
    if step is not None and trial is not None:
        return trial, trial.outcome, step.drop if len(step.layers) == 1 and step.loss is not None else None
    if step is None and (row.fixed or not row.quantizable):
        return before, FOLLOWS, None if before is None else 0.0
    return None, NOT_JUDGED if row.index in curve.findings.set_aside else NOT_TRIED, None


def _answered_rows(rows: Sequence[LayerRow], answer: Answer, alone: Mapping[int, float]) -> tuple[LayerRow, ...]:
    of_user, experiment = answer.of_user, answer.of_user.experiment
    network, back = experiment.network, {**put_back_fields(answer), **put_back_fields(of_user)}
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
            alone=alone.get(row.index),
            **back.get(row.name, {}),
            recipe=kept.get(row.name, row.recipe if row.fixed or not row.quantizable else str(plan.low)),
            rounds=_rounded_tensors(network.layers[row.index], writer) if row.index in culprits else (),
            output_shape=shapes.get(row.output),
        )
        for row in rows
    )


def _with_ran(row: LayerRow, full: Trial, low: str) -> LayerRow:
    if not row.quantizable or row.fixed:
        return row
    ran = full.ran.get(row.index, "")
    obeyed = ran == low if ran and ran not in UNPROVEN else None
    return replace(row, asked=low, ran=ran, obeyed=obeyed)


def _curve_notes(experiment: Experiment, curve: Curve, answer: Experiment) -> list[Note]:
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
    network, rule = answer.experiment.network, answer.experiment.rule
    explained = unusable_scales(network) or base_misses(network, rule, answer.base or curve.nothing)
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
    if network.pipeline is not None:
        plans = (f"in full {low.title}", of_user.full), ("in the recipe", answer.restored)
        outputs += [Note(OUTPUTS, f"{where}: {trial.message}") for where, trial in plans if trial.message]
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
    network, tensors = writer.network, []
    inputs = {spec.name for spec in network.inputs}
    for rounding in layer.roundings:
        name, producer = rounding.tensor, network.producers.get(rounding.tensor)
        if rounding.at_output:
            kind = "output"
        else:
            kind = "weight" if rounding.is_weight else "activation"
        if producer is not None:
            made_by = producer.name
        else:
            made_by = "the network's input" if name in inputs else "a constant"
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
