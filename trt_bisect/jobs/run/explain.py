"""The last stage of a run: every tensor in FP32 and in full INT8, the cause in each culprit, and the remedies."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from time import perf_counter

import numpy as np

from trt_bisect.analyzer.advisor import advise
from trt_bisect.analyzer.blame import Evidence, LossAlone, evidence_on
from trt_bisect.analyzer.both_runs import BothRuns
from trt_bisect.analyzer.compared import Compared, Tensors, compare_tensors
from trt_bisect.analyzer.compared_weights import compare_weight, rounded_weight
from trt_bisect.analyzer.histograms import HistogramCounts, tensor_histograms
from trt_bisect.analyzer.origins import INPUT, Origin, activation_origins, bias_origins, weight_origins
from trt_bisect.analyzer.overflow import overflow_advice
from trt_bisect.analyzer.structure.findings import Finding
from trt_bisect.builder.base import EMULATED
from trt_bisect.data.feeds import Feeds
from trt_bisect.errors import first_line
from trt_bisect.jobs.answer.plans import AnswerPlans
from trt_bisect.jobs.answer.result import Answer
from trt_bisect.jobs.check import check
from trt_bisect.jobs.compare import final_outputs_only
from trt_bisect.jobs.experiment import Experiment, all_trials
from trt_bisect.jobs.options.concerns import EXPLAIN_FULL, EXPLAIN_NOTHING
from trt_bisect.jobs.options.measuring import RunOptions
from trt_bisect.jobs.recipe_of import target_version
from trt_bisect.jobs.run.build_report import counts
from trt_bisect.jobs.run.remedies import best_of, measured_before, try_remedies
from trt_bisect.jobs.run.setting import setting_of
from trt_bisect.jobs.sensitivity import measure_alone
from trt_bisect.model.cost import macs
from trt_bisect.model.layers import Layer
from trt_bisect.model.network import Network
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.model.session import give_back_arena
from trt_bisect.model.shapes import facts_for, groups_within
from trt_bisect.recipe.commands import Setting
from trt_bisect.recipe.trtexec import Build
from trt_bisect.report.advice import CulpritAdvice, Facts, Tried, advice_on
from trt_bisect.report.causes import cause_with_remedies, grouped
from trt_bisect.report.explanation import ExplainedLayer, ExplainedTensor, Explanation, channels_of
from trt_bisect.report.model import Report
from trt_bisect.support.machine import cores
from trt_bisect.support.memory import give_back_memory
from trt_bisect.support.notes import EXPLANATION, Note, noted
from trt_bisect.support.progress import Progress
from trt_bisect.support.threads import ThreadsIfLong


def explained(plans: AnswerPlans, answer: Answer, report: Report, options: RunOptions) -> Report:
    """Returns ``report`` with its explanation, as far as the options ask for one; an error there becomes a note in it.

    Args:
        plans: measures remedies on the inputs of the answer.
        answer: the answer of the run.
        report: the report with the verdict.
        options: the options of the run, as the user gave them.
    """
    if options.explain == EXPLAIN_NOTHING or report.exit_code not in (0, 1):
        return report
    began, notes = perf_counter(), list(report.notes)
    experiments = plans.experiment, answer.experiment
    before = counts(all_trials(*experiments))
    explanation = None
    try:
        explanation, said = _explanation(plans, answer, report, options)
        notes += noted(EXPLANATION, said)
    except Exception as error:
        logging.getLogger(__name__).debug("no explanation", exc_info=True)
        text = f"the run could not be explained: {type(error).__name__}: {first_line(error)}"
        notes.append(Note(EXPLANATION, text))
    took = perf_counter() - began
    seconds = replace(report.seconds, explain=took, total=report.seconds.total + took)
    more = [now - then for now, then in zip(counts(all_trials(*experiments)), before, strict=True)]
    return report.changed(
        explanation=explanation,
        notes=tuple(notes),
        seconds=seconds,
        plans=report.plans + more[0],
        builds=report.builds + more[1],
        inferences=report.inferences + more[2],
    )


def _explanation(
    plans: AnswerPlans, answer: Answer, report: Report, options: RunOptions
) -> tuple[Explanation, list[str]]:
    preparation, experiment = plans.preparation, answer.experiment
    culprits = [experiment.network.layer_named(name) for name in report.culprits]
    give_back_arena()
    tensors, weights = _compared(experiment, preparation.progress, options.memory_bytes)
    give_back_arena()
    low = experiment.network.low
    found = advise((each.compared for each in tensors), (each.compared for each in weights), low=low.title)
    found = (*overflow_advice(experiment.network, report.overflows), *found)
    alone = _alone(experiment, culprits, options.explain == EXPLAIN_FULL, preparation.progress)
    notes = [] if experiment.builder.arithmetic == EMULATED else [final_outputs_only(experiment.builder.engine)]
    structure, said = _structure(experiment.network) if culprits else ((), [])
    notes += said
    biases = [_weight(experiment.network, origin) for origin in bias_origins(experiment.network)]
    layers = _layers(experiment, tensors, weights, biases, alone)
    rows, budget = {row.name: row for row in report.layers}, experiment.rule.budget
    evidence = [
        evidence_on(layer, found, structure, alone.get(layer.name), rows[layer.name].drop, budget, low.title)
        for layer in culprits
    ]
    groups = grouped(evidence, _rounded(culprits, tensors, weights), experiment.ranges.origin, low.title)
    tried: tuple[Tried, ...] = ()
    if culprits or report.exit_code:
        tried = measured_before(plans, answer, report.culprits)
    if options.try_remedies and report.exit_code:
        more, why_not = try_remedies(plans, answer, groups)
        tried = best_of([*tried, *more])
        notes += why_not
    target = target_version(options, experiment.builder)
    files = report.attached.files
    build = Build(target) if files is None else files.build
    setting = replace(setting_of(experiment, options, build), kept=report.recipe.high)
    advice = [_advice(each, layers, tensors, setting, tried) for each in evidence]
    fed = tuple(each for each in tensors if each.compared.origin.kind == INPUT)
    causes = tuple(cause_with_remedies(group, advice, tried) for group in groups)
    return Explanation(len(experiment.feeds), layers, fed, found, tuple(advice), tried, target.header, causes), notes


def _rounded(
    culprits: Iterable[Layer], tensors: Iterable[ExplainedTensor], weights: Iterable[ExplainedTensor]
) -> dict[str, list[Compared]]:
    """The tensors and weights that each culprit rounds."""
    known = {each.compared.origin.tensor: each.compared for each in (*tensors, *weights)}
    return {layer.name: [known[each.tensor] for each in layer.roundings if each.tensor in known] for layer in culprits}


def _compared(
    experiment: Experiment, progress: Progress, memory: int
) -> tuple[list[ExplainedTensor], list[ExplainedTensor]]:
    """The tensors, and the weights, with their histograms.

    The tensors of both runs on one input are compared in groups that fit into ``memory`` bytes; a larger tensor
    is a group of its own.
    """
    network = experiment.network
    plan = network.full(experiment.whole.high)
    writer = PlanWriter(network, experiment.ranges.scales, GraphTarget.ONNXRUNTIME)
    origins = activation_origins(network, writer, plan.lowered)
    groups = groups_within(network, origins, experiment.feeds[0], memory, runs=2)
    wanted = weight_origins(network, writer, plan.lowered)
    progress.stage("Comparing tensors", len(wanted) + 2 * len(experiment.feeds) * len(groups))
    weights: list[ExplainedTensor] = []
    with ThreadsIfLong(cores()) as pool:
        for weight in pool.map(lambda origin: _weight(network, origin), wanted):
            weights.append(weight)
            progress.step("weights")
    give_back_memory()
    runs = _runs(BothRuns(writer, plan, origins, groups), experiment.feeds, len(groups))
    compared = compare_tensors(runs(), origins, lambda: progress.step("FP32 and INT8"))
    histograms = tensor_histograms(runs(), compared, lambda: progress.step("histograms"))
    return [ExplainedTensor(each, histograms.get(each.origin.tensor)) for each in compared], weights


def _runs(both: BothRuns, inputs: Sequence[Feeds], groups: int) -> Callable[[], Iterable[tuple[Tensors, Tensors]]]:
    """Returns a function that yields both runs on all inputs; with one input and one group they run only once."""
    if len(inputs) == groups == 1:
        only = list(both.on(inputs[0], 0))
        return lambda: only
    return lambda: chain.from_iterable(both.on(feeds, position) for position, feeds in enumerate(inputs))


def _weight(network: Network, origin: Origin) -> ExplainedTensor:
    values = network.constant(origin.tensor)
    rounded = rounded_weight(values, origin)
    compared = compare_weight(values, rounded, origin)
    histogram = None
    if compared.fp32.count and compared.int8.count:
        counted = HistogramCounts(compared, ())
        counted.add(values, rounded)
        histogram = counted.done()
    return ExplainedTensor(compared, histogram, channels_of(values, compared))


def _alone(experiment: Experiment, culprits: Sequence[Layer], full: bool, progress: Progress) -> dict[str, LossAlone]:
    """Returns the losses of layers alone, by name: of the culprits, or of all layers, with the gain of each.

    An engine that is not emulated rounds a layer as a whole, so that its culprits' sides cannot be told apart.
    """
    if not full and (not culprits or experiment.builder.arithmetic != EMULATED):
        return {}
    found = measure_alone(experiment, progress, None if full else [layer.index for layer in culprits])
    ways: dict[str, dict[str, float | None]] = {}
    for op in found.ops:
        losses = ways.setdefault(op.op_name, {})
        losses[op.sensitive_type] = op.loss
        if op.gain is not None:
            losses["gain"] = op.gain
    return {name: LossAlone(**losses) for name, losses in ways.items()}


def _structure(network: Network) -> tuple[tuple[Finding, ...], list[str]]:
    """The findings of the structure check on the network's file, if it still exists, and notes."""
    if not Path(network.source).is_file():
        return (), []
    try:
        return check(network.source).findings, []
    except Exception as error:
        return (), [f"the structure of '{network.source}' could not be checked: {first_line(error)}"]


def _layers(
    experiment: Experiment,
    tensors: Sequence[ExplainedTensor],
    weights: Sequence[ExplainedTensor],
    biases: Sequence[ExplainedTensor],
    alone: Mapping[str, LossAlone],
) -> dict[str, ExplainedLayer]:
    network = experiment.network
    cost = macs(network, facts_for(network, experiment.feeds[0]))
    total = sum(cost.values()) or 1
    outputs, held, added = _by_layer(tensors), _by_layer(weights), _by_layer(biases)
    return {
        layer.name: ExplainedLayer(
            macs=cost[layer.index],
            share=cost[layer.index] / total,
            sensitivity=alone.get(layer.name),
            outputs=tuple(outputs.get(layer.name, ())),
            weights=tuple(held.get(layer.name, ())),
            biases=tuple(added.get(layer.name, ())),
        )
        for layer in network.layers
        if layer.name in outputs or layer.name in held
    }


def _by_layer(tensors: Iterable[ExplainedTensor]) -> dict[str, list[ExplainedTensor]]:
    by_layer: dict[str, list[ExplainedTensor]] = {}
    for each in tensors:
        if each.compared.origin.layer:
            by_layer.setdefault(each.compared.origin.layer, []).append(each)
    return by_layer


def _advice(
    evidence: Evidence,
    layers: Mapping[str, ExplainedLayer],
    tensors: Sequence[ExplainedTensor],
    setting: Setting,
    tried: Sequence[Tried],
) -> CulpritAdvice:
    layer = evidence.layer
    own = layers.get(layer.name)
    around = {*layer.inputs, *layer.outputs}
    near = [each.compared for each in tensors if each.compared.origin.tensor in around]
    reach = max((_reach(each) for each in near), default=0.0)
    single = [weight for weight in own.weights if _has_single_scale(weight.compared)] if own else []
    return advice_on(evidence, Facts(reach, bool(single), own.share if own else 0.0), setting, tried)


def _reach(compared: Compared) -> float:
    return float(np.nanmax([abs(compared.fp32.min), abs(compared.fp32.max), 0.0]))


def _has_single_scale(compared: Compared) -> bool:
    return any(quantizer.axis is None for quantizer in compared.origin.quantizers)
