"""What ``run`` writes for TensorBoard: FP32, the plans worth looking at as they run, and the curve."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trt_bisect.analyzer.both_runs import plan_observer
from trt_bisect.analyzer.judge import Rule
from trt_bisect.analyzer.origins import activation_origins
from trt_bisect.builder.base import EMULATED
from trt_bisect.data import Feeds
from trt_bisect.model.network import Network
from trt_bisect.model.qdq import PlanWriter, Target
from trt_bisect.precision import Precision, PrecisionPlan, int8_set
from trt_bisect.progress import Progress
from trt_bisect.report.markdown import listed, literal, table
from trt_bisect.report.measured import Measured
from trt_bisect.report.report import Report
from trt_bisect.report.tensorboard.board import Board
from trt_bisect.report.tensorboard.gather import LoudChannels, TensorHistograms
from trt_bisect.report.tensorboard.graph import graph_of
from trt_bisect.report.tensorboard.markdown import write_texts
from trt_bisect.report.tensorboard.tags import (
    CURVE,
    FP32,
    INT8,
    baseline_name,
    layer_tags,
    output_tags,
    trial_name,
)
from trt_bisect.report.tensorboard.weights import WeightHistograms, weights_of
from trt_bisect.report.tensorboard.writer import LogRun


@dataclass(frozen=True)
class Shown:
    """A plan that gets a run of its own.

    Attributes:
        what: it is, in words.
        score: the similarity measured; None where there is none.
    """

    plan: PrecisionPlan
    what: str
    score: float | None


def plans_to_show(measured: Measured, network: Network, rule: Rule, high: Precision) -> list[Shown]:
    """Full INT8, both sides of each culprit, and the recipe, each plan once."""
    layers, quantizable = len(network.layers), network.quantizable
    wanted = [(int8_set(layers, quantizable, high), "full INT8")]
    for step in measured.findings.steps:
        if step.culprit:
            names = ", ".join(f"'{network.layers[k].name}'" for k in step.layers)
            wanted.append((step.plan.keeping(step.layers, high), f"up to {names}, but without it"))
            wanted.append((step.plan, f"up to {names}, with it"))
    wanted.append((measured.recipe.plan, "the recipe"))
    plans: dict[str, PrecisionPlan] = {}
    words: dict[str, list[str]] = {}
    for plan, what in wanted:
        plan = measured.canonical(plan)
        plans[plan.key()] = plan
        words.setdefault(plan.key(), []).append(what)
    return [Shown(plan, "; ".join(words[key]), rule.similarity(measured.trial_of(plan))) for key, plan in plans.items()]


def write_run(
    board: Board,
    network: Network,
    scales: Mapping[str, np.float32],
    feeds: Sequence[Feeds],
    rule: Rule,
    measured: Measured,
    report: Report,
    progress: Progress,
) -> None:
    """Runs FP32 and the plans worth looking at once more in emulation, for their tensors, and writes the logs.

    No more than one sample's tensors are held.

    Args:
        board: where to.
        network: as it was measured.
        scales: of its activations.
        feeds: the inputs that were judged.
        rule: for the losses.
        measured: the findings, the recipe and the trials.
        report: the run's.
        progress: is told of each input of each plan.

    Raises:
        BadInput: the logs cannot be written, or ONNX Runtime cannot run the network with its tensors as outputs.
    """
    writer = PlanWriter(network, scales, Target.ONNXRUNTIME)
    layers, channels = layer_tags(layer.name for layer in network.layers), LoudChannels(board.channels)
    weights = WeightHistograms(network, weights_of(network, writer, layers), channels)
    shown = [
        Shown(int8_set(len(network.layers), ()), "FP32", rule.metric.perfect),
        *plans_to_show(measured, network, rule, Precision(report.precision)),
    ]
    names = [
        trial_name(number, each.score) if number else baseline_name(each.score) for number, each in enumerate(shown)
    ]
    progress.stage("Writing TensorBoard's logs", len(shown) * len(feeds))
    board.clear()
    for name, each in zip(names, shown, strict=True):
        in_int8 = None if each is shown[0] else each.plan.int8
        origins = activation_origins(network, writer, each.plan.int8)
        tags = output_tags(origins.values(), layers)
        histograms = TensorHistograms(FP32 if in_int8 is None else INT8, origins, tags, channels)
        see = plan_observer(writer, each.plan, origins)
        for place, sample in enumerate(feeds):
            progress.step(name)
            for tensors in see(sample, place):
                histograms.add(tensors)
                del tensors
        with LogRun(board.folder / name) as run:
            run.graph(graph_of(network, each.plan))
            histograms.write(run)
            weights.write(run, in_int8)
            plan = "" if in_int8 is None else _plan_text(each, network)
            write_texts(run, plan=plan, not_finite=listed(histograms.not_finite()))
    with LogRun(board.folder / CURVE) as run:
        _write_curve(run, report, rule)
        rows = [(name, each.what, each.score) for name, each in zip(names, shown, strict=True)]
        write_texts(
            run,
            summary=literal(report.summary),
            culprits=_culprits(report),
            notes=listed([*_origin_of_histograms(report), *report.notes]),
            runs=table(["run", "plan", report.metric], rows),
        )


def _write_curve(run: LogRun, report: Report, rule: Rule) -> None:
    """Similarity, loss and drop over k, the step; a gap where a plan was not measured."""
    loss = "1 - similarity" if rule.metric.perfect == 1.0 else "loss"
    for row in report.layers:
        if row.similarity is not None:
            run.scalar("similarity", row.similarity, row.index)
            run.scalar(loss, rule.metric.loss(row.similarity), row.index)
        if row.drop is not None and math.isfinite(row.drop):
            run.scalar("drop", row.drop, row.index)


def _plan_text(shown: Shown, network: Network) -> str:
    in_int8 = shown.plan.int8
    kept = [layer.name for layer in network.layers if layer.quantizable and layer.index not in in_int8]
    said = f"{shown.what}: {len(in_int8)} layers in INT8."
    return literal(said) + (f"\n\nNot in INT8:\n\n{listed(kept)}" if kept else "")


def _culprits(report: Report) -> str:
    rows = [
        (row.index, row.name, row.op_type, row.similarity, row.drop, ", ".join(each.tensor for each in row.rounds))
        for row in report.layers
        if row.culprit
    ]
    return table(["k", "culprit", "operator", "similarity", "drop", "what is rounded"], rows) if rows else ""


def _origin_of_histograms(report: Report) -> list[str]:
    if report.arithmetic == EMULATED:
        return []
    return [
        f"the similarities were measured on {report.engine}; the histograms are of the emulation on ONNX Runtime, "
        "since TensorRT fuses layers and gives final outputs only"
    ]
