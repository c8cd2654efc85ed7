"""The last stage of a run: every tensor in FP32 and in full INT8, what is to blame in each culprit, and what to do."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from trt_bisect.analyzer.advisor import advise
from trt_bisect.analyzer.blame import Alone, Evidence, evidence_on
from trt_bisect.analyzer.both_runs import BothRuns
from trt_bisect.analyzer.compared import Compared, Tensors, compare_tensors, compare_weight
from trt_bisect.analyzer.findings import Finding
from trt_bisect.analyzer.histograms import HistogramCounts, tensor_histograms
from trt_bisect.analyzer.origins import INPUT, Origin, activation_origins, weight_origins
from trt_bisect.bench import Bench
from trt_bisect.builder.base import EMULATED
from trt_bisect.carried import name_of
from trt_bisect.checking import check
from trt_bisect.comparison import final_outputs_only
from trt_bisect.data import Feeds
from trt_bisect.errors import first_line
from trt_bisect.job import Job
from trt_bisect.machine import cores, peak_bytes
from trt_bisect.model.cost import macs
from trt_bisect.model.layers import Layer
from trt_bisect.model.network import Network
from trt_bisect.model.qdq import PlanWriter, Target
from trt_bisect.model.quantizer import round_trips
from trt_bisect.model.segments import SHARE_OF_GROUP, can_be_cut, groups_of
from trt_bisect.model.shapes import facts_for
from trt_bisect.precision import int8_set
from trt_bisect.progress import Progress
from trt_bisect.report.advice import CulpritAdvice, Facts, Tried, advice_on
from trt_bisect.report.commands import Setting
from trt_bisect.report.explanation import ExplainedLayer, ExplainedTensor, Explanation, channels_of
from trt_bisect.report.report import Report
from trt_bisect.report.rows import counts
from trt_bisect.request import EXPLAIN_FULL, EXPLAIN_NOTHING
from trt_bisect.sensitive import measure_alone
from trt_bisect.trying import try_remedies


def explained(job: Job, bench: Bench, report: Report, calibration: Any, inputs: Any, output: Any) -> Report:
    """``report`` with its explanation, as far as the request asks for one; what goes wrong there is a note in it.

    Args:
        job: that ``bench`` belongs to.
        bench: where the run was measured.
        report: its verdict.
        calibration: as the user gave it, for the commands; so ``inputs``, and the folder ``output``.
    """
    request = job.request
    if request.explain == EXPLAIN_NOTHING or report.exit_code not in (0, 1):
        return report
    began, notes = perf_counter(), list(report.notes)
    explanation = None
    try:
        explanation, said = _explanation(job, bench, report, calibration, inputs, output)
        notes += said
    except Exception as error:
        logging.getLogger(__name__).debug("no explanation", exc_info=True)
        notes.append(f"the run could not be explained: {type(error).__name__}: {first_line(error)}")
    took = perf_counter() - began
    seconds = {**report.seconds, "explain": took, "total": report.seconds["total"] + took}
    plans, builds, inferences = counts(bench.store.trials.values())
    return replace(
        report,
        explanation=explanation,
        notes=tuple(notes),
        seconds=seconds,
        plans=plans,
        builds=builds,
        inferences=inferences,
        peak_bytes=peak_bytes(),
    )


def _explanation(
    job: Job, bench: Bench, report: Report, calibration: Any, inputs: Any, output: Any
) -> tuple[Explanation, list[str]]:
    culprits = [bench.network.layer_named(name) for name in report.culprits]
    tensors, weights = _compared(bench, job.progress, job.request.way.memory)
    found = advise((each.compared for each in tensors), (each.compared for each in weights))
    alone = _alone(job, bench, culprits)
    notes = [] if bench.builder.arithmetic == EMULATED else [final_outputs_only(bench.builder.engine)]
    structure, said = _structure(bench.network) if culprits else ((), [])
    notes += said
    tried: tuple[Tried, ...] = ()
    if job.request.try_remedies and report.exit_code:
        tried, why_not = try_remedies(job, bench, culprits)
        notes += why_not
    layers = _layers(bench, tensors, weights, alone)
    rows = {row.name: row for row in report.layers}
    evidence = [
        evidence_on(layer, found, structure, alone.get(layer.name), rows[layer.name].drop, bench.rule.budget)
        for layer in culprits
    ]
    setting = _setting(bench, calibration, inputs, output)
    advice = [_advice(each, layers, tensors, setting, tried) for each in evidence]
    fed = tuple(each for each in tensors if each.compared.origin.kind == INPUT)
    return Explanation(len(bench.feeds), layers, fed, found, tuple(advice), tried), notes


def _compared(bench: Bench, progress: Progress, memory: int) -> tuple[list[ExplainedTensor], list[ExplainedTensor]]:
    """The tensors, and the weights, with their histograms.

    No more than ``memory`` bytes of tensors of both runs on one input are held at once.
    """
    network = bench.network
    plan = int8_set(len(network.layers), network.quantizable, bench.whole.high)
    writer = PlanWriter(network, bench.ranges.scales, Target.ONNXRUNTIME)
    origins = activation_origins(network, writer, plan.int8)
    facts = facts_for(network, bench.feeds[0])
    groups = groups_of(origins, lambda name: 2 * facts.size(name), memory // SHARE_OF_GROUP)
    if not can_be_cut(network.skeleton):
        groups = [tuple(origins)]
    progress.stage("Comparing tensors", 2 * len(bench.feeds) * len(groups))
    runs = _runs(BothRuns(writer, plan, origins, groups), bench.feeds, len(groups))
    compared = compare_tensors(runs(), origins, lambda: progress.step("FP32 and INT8"))
    histograms = tensor_histograms(runs(), compared, lambda: progress.step("histograms"))
    tensors = [ExplainedTensor(each, histograms.get(each.origin.tensor)) for each in compared]
    with ThreadPoolExecutor(cores()) as pool:
        weights = list(pool.map(lambda origin: _weight(network, origin), weight_origins(network, writer, plan.int8)))
    return tensors, weights


def _runs(both: BothRuns, inputs: Sequence[Feeds], groups: int) -> Callable[[], Iterable[tuple[Tensors, Tensors]]]:
    """Both runs on all inputs, again and again; those of a single input that are seen at once are kept."""
    if len(inputs) == groups == 1:
        only = list(both.on(inputs[0], 0))
        return lambda: only
    return lambda: chain.from_iterable(both.on(feeds, position) for position, feeds in enumerate(inputs))


def _weight(network: Network, origin: Origin) -> ExplainedTensor:
    values = network.constant(origin.tensor)
    rounded = round_trips(values, origin.quantizers)
    compared = compare_weight(values, rounded, origin)
    histogram = None
    if compared.fp32.count and compared.int8.count:
        counted = HistogramCounts(compared, ())
        counted.add(values, rounded)
        histogram = counted.done()
    return ExplainedTensor(compared, histogram, channels_of(values, compared))


def _alone(job: Job, bench: Bench, culprits: Sequence[Layer]) -> dict[str, Alone]:
    """The losses of layers alone, by name: of the culprits, or of all with what each gives back.

    An engine that is not emulated rounds a layer as a whole, so that its culprits' sides cannot be told apart.
    """
    full = job.request.explain == EXPLAIN_FULL
    if not full and (not culprits or bench.builder.arithmetic != EMULATED):
        return {}
    found = measure_alone(bench, job.progress, None if full else [layer.index for layer in culprits])
    ways: dict[str, dict[str, float | None]] = {}
    for op in found.ops:
        losses = ways.setdefault(op.op_name, {})
        losses[op.sensitive_type] = op.loss
        if op.gain is not None:
            losses["gain"] = op.gain
    return {name: Alone(**losses) for name, losses in ways.items()}


def _structure(network: Network) -> tuple[tuple[Finding, ...], list[str]]:
    """What the structure check finds in the network's file, where that is still there."""
    if not Path(network.source).is_file():
        return (), []
    try:
        return check(network.source).findings, []
    except Exception as error:
        return (), [f"the structure of '{network.source}' could not be checked: {first_line(error)}"]


def _layers(
    bench: Bench,
    tensors: Sequence[ExplainedTensor],
    weights: Sequence[ExplainedTensor],
    alone: Mapping[str, Alone],
) -> dict[str, ExplainedLayer]:
    network = bench.network
    cost = macs(network, facts_for(network, bench.feeds[0]))
    total = sum(cost.values()) or 1
    outputs, held = _by_layer(tensors), _by_layer(weights)
    return {
        layer.name: ExplainedLayer(
            macs=cost[layer.index],
            share=cost[layer.index] / total,
            sensitivity=alone.get(layer.name),
            outputs=tuple(outputs.get(layer.name, ())),
            weights=tuple(held.get(layer.name, ())),
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


def _setting(bench: Bench, calibration: Any, inputs: Any, output: Any) -> Setting:
    return Setting(
        model=bench.network.source,
        calibration=name_of(calibration),
        inputs=name_of(inputs),
        has_data=bench.data is not None,
        calibrator=bench.ranges.origin,
        has_pairs=bench.network.has_pairs,
        high=bench.whole.high,
        folder=name_of(output),
    )


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
