"""The last stage of a run: every tensor in FP32 and in full INT8, the cause in each culprit, and the remedies."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from time import perf_counter

from trt_bisect.analyzer.blame import Evidence, LossAlone, advise
from trt_bisect.analyzer.compared import Compared, compare_tensors, compare_weight, rounded_weight
from trt_bisect.analyzer.origins import INPUT, BothRuns, Origin, activation_origins, bias_origins, weight_origins
from trt_bisect.analyzer.overflow import overflow_advice
from trt_bisect.analyzer.structure.findings import Finding
from trt_bisect.answer.plans import AnswerPlans
from trt_bisect.answer.result import Answer, setting_of, target_version
from trt_bisect.builder.base import EMULATED
from trt_bisect.commands.check import check
from trt_bisect.commands.compare import final_outputs_only
from trt_bisect.commands.losses import measure_alone
from trt_bisect.commands.run.build_report import counts
from trt_bisect.commands.run.remedies import Remedies
from trt_bisect.errors import first_line
from trt_bisect.model.cost import macs
from trt_bisect.model.layers import Layer
from trt_bisect.model.network import Network
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.model.session import give_back_arena
from trt_bisect.model.shapes import facts_for, groups_within
from trt_bisect.options.commands import RunOptions
from trt_bisect.options.concerns import EXPLAIN_FULL, EXPLAIN_NOTHING
from trt_bisect.preparation.experiment import Experiment, all_trials
from trt_bisect.report.advice import advice_on, by_cause, cause_of
from trt_bisect.report.explanation import (
    Channels,
    CulpritAdvice,
    ExplainedLayer,
    ExplainedTensor,
    Explanation,
    RemedyFile,
)
from trt_bisect.report.model import Report
from trt_bisect.support.machine import ThreadsIfLong, cores
from trt_bisect.support.memory import give_back_memory
from trt_bisect.support.progress import Progress
from trt_bisect.support.text import EXPLANATION, Note, noted

_Tensor = tuple[Compared, ExplainedTensor]
"""A tensor or a weight: its comparison, and what of it stands in ``explanation.json``."""


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
    explanation: Explanation | None = None
    files: tuple[RemedyFile, ...] = ()
    try:
        explanation, files, said = _explanation(plans, answer, report, options)
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
        remedy_files=files,
        notes=tuple(notes),
        seconds=seconds,
        plans=report.plans + more[0],
        builds=report.builds + more[1],
        inferences=report.inferences + more[2],
    )


def _explanation(
    plans: AnswerPlans, answer: Answer, report: Report, options: RunOptions
) -> tuple[Explanation, tuple[RemedyFile, ...], list[str]]:
    """Returns the explanation, the files of its remedies, and notes."""
    setup, experiment = plans.setup, answer.experiment
    network, ranges = experiment.network, experiment.ranges
    culprits = [network.layer_named(name) for name in report.culprits]
    give_back_arena()
    tensors, weights = _compared(experiment, setup.progress, options.memory_bytes)
    give_back_arena()
    low = network.low.title
    found = advise((compared for compared, _ in tensors), (compared for compared, _ in weights), low=low)
    found = (*overflow_advice(network, report.overflows), *found)
    alone = _alone(experiment, culprits, options.explain == EXPLAIN_FULL, setup.progress)
    notes = [] if experiment.builder.arithmetic == EMULATED else [final_outputs_only(experiment.builder.engine)]
    structure, said = _structure(network) if culprits else ((), [])
    notes += said
    biases = [_weight(network, origin) for origin in bias_origins(network)]
    layers = _layers(experiment, tensors, weights, biases, alone)
    rows, budget = {row.name: row for row in report.layers}, experiment.rule.budget
    evidence = [
        Evidence(layer, found, structure, alone.get(layer.name), rows[layer.name].drop, budget, low)
        for layer in culprits
    ]
    groups = by_cause(evidence)
    remedies = Remedies(plans, answer, target_version(options, experiment.builder).header)
    recipe = "the recipe without changes" if report.answer and report.answer.changes else "this run's recipe"
    measured = list(remedies.measured_before(report.culprits, recipe)) if culprits or report.exit_code else []
    if options.try_remedies and report.exit_code:
        measured += remedies.try_all([tuple(each.layer.name for each in group) for group in groups.values()])
    tried = tuple({(each.culprits, each.what): each for each in measured}.values())
    setting = setting_of(experiment, options, report)
    by_name = {each.tensor: each for _, each in tensors}
    advice: dict[str, CulpritAdvice] = {}
    for layer, each in zip(culprits, evidence, strict=True):
        around = [by_name[name] for name in (*layer.inputs, *layer.outputs) if name in by_name]
        advice[layer.name] = advice_on(each, setting, tried, layers.get(layer.name), around)
    explanation = Explanation(
        samples=len(experiment.feeds),
        layers=layers,
        inputs=tuple(each for compared, each in tensors if compared.origin.kind == INPUT),
        findings=found,
        advice=tuple(advice.values()),
        tried=tried,
        causes=tuple(cause_of(cause, group, advice, tried, ranges.origin) for cause, group in groups.items()),
    )
    return explanation, tuple(remedies.files), [*notes, *remedies.notes]


def _compared(experiment: Experiment, progress: Progress, memory: int) -> tuple[list[_Tensor], list[_Tensor]]:
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
    progress.stage("Comparing tensors", len(wanted) + len(experiment.feeds) * len(groups))
    weights: list[_Tensor] = []
    with ThreadsIfLong(cores()) as pool:
        for weight in pool.map(lambda origin: _weight(network, origin), wanted):
            weights.append(weight)
            progress.step("weights")
    give_back_memory()
    both = BothRuns(writer, plan, origins, groups)
    runs = chain.from_iterable(both.on(feeds, position) for position, feeds in enumerate(experiment.feeds))
    compared = compare_tensors(runs, origins, lambda: progress.step("FP32 and INT8"))
    return [(each, ExplainedTensor.of(each)) for each in compared], weights


def _weight(network: Network, origin: Origin) -> _Tensor:
    values = network.constant(origin.tensor)
    compared = compare_weight(values, rounded_weight(values, origin), origin)
    return compared, ExplainedTensor.of(compared, Channels.of(values, compared))


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
    tensors: Sequence[_Tensor],
    weights: Sequence[_Tensor],
    biases: Sequence[_Tensor],
    alone: Mapping[str, LossAlone],
) -> dict[str, ExplainedLayer]:
    network = experiment.network
    cost = macs(network, facts_for(network, experiment.feeds[0]))
    total = sum(cost.values()) or 1
    outputs, held, added = map(_by_layer, (tensors, weights, biases))
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


def _by_layer(tensors: Iterable[_Tensor]) -> dict[str, list[ExplainedTensor]]:
    by_layer: dict[str, list[ExplainedTensor]] = {}
    for compared, each in tensors:
        by_layer.setdefault(compared.origin.layer, []).append(each)
    return by_layer
