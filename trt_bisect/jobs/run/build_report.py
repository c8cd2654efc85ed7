"""Builds the report from the measurements of a search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from trt_bisect.analyzer.judge import Rule
from trt_bisect.builder.base import Builder
from trt_bisect.calibration.ranges import Ranges
from trt_bisect.evaluator.speed import Latencies
from trt_bisect.model.layers import Layer, Rounding
from trt_bisect.model.network import Network
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.model.residual import Shape
from trt_bisect.precision import Precision
from trt_bisect.recipe.files import RecipeFiles
from trt_bisect.report.answer import AnswerFacts
from trt_bisect.report.empty_report import blank_rows, empty_report
from trt_bisect.report.layer_row import RoundedTensor
from trt_bisect.report.layer_rows import filled_report, run_verdict
from trt_bisect.report.model import Report
from trt_bisect.report.overflow import Overflow
from trt_bisect.report.precision_check import dla_notes, float_kernel_notes, obedience_notes
from trt_bisect.report.search_result import Measured
from trt_bisect.report.summary import above_verdict, fixed_lines, memory_notes, stopped_line, summary
from trt_bisect.report.verdict import code_of
from trt_bisect.support.figures import listed
from trt_bisect.support.machine import peak_bytes


def blank_report(
    network: Network,
    ranges: Ranges,
    rule: Rule,
    *,
    strategy: str,
    builder: Builder,
    high: Precision,
    versions: Mapping[str, str],
    inputs: Mapping[str, Any],
    notes: Sequence[str],
    fingerprint: str,
    made_of: Mapping[str, Any],
) -> Report:
    """Returns the report of a run that has measured nothing yet."""
    return replace(
        empty_report(network.source),
        engine=builder.engine,
        typing=builder.typing,
        strategy=strategy,
        arithmetic=builder.arithmetic,
        metric=rule.metric.name,
        threshold=rule.threshold,
        share=rule.share,
        precision=str(high),
        low=str(network.low.precision),
        versions=dict(versions),
        layers=blank_rows(network.layers, high, network.base or high),
        ranges=ranges_facts(ranges),
        inputs=dict(inputs),
        notes=tuple(dict.fromkeys(notes)),
        fingerprint=fingerprint,
        made_of=dict(made_of),
        budget=rule.budget,
    )


def ranges_facts(ranges: Ranges) -> dict[str, Any]:
    """Returns the record of the ranges for a report."""
    return {"origin": ranges.origin, "tensors": len(ranges.scales), "unusable": dict(ranges.unusable)}


def assemble(
    measured: Measured,
    blank: Report,
    network: Network,
    ranges: Ranges,
    rule: Rule,
    *,
    files: RecipeFiles,
    notes: Sequence[str],
    seconds: Mapping[str, float],
    latencies: Latencies | None,
    answer: AnswerFacts,
    accept: bool,
    overflows: tuple[Overflow, ...] = (),
    stopped: str = "",
) -> Report:
    """Returns the report of a run: the blank one with the measurements, the files, the notes and the times.

    ``stopped`` is that of the report; ``answer.not_done`` then says what is missing.
    """
    writer = PlanWriter(network, ranges.scales, GraphTarget.TENSORRT)
    filled = filled_report(blank, measured, rule, lambda row: _rounds(network.layers[row.index], writer))
    similarity = filled.similarity
    said = [
        *notes,
        *_trial_notes(measured, rule),
        *memory_notes(measured.trials.values()),
        *_overruled(measured, network, rule),
        *_obedience(measured, network),
        *float_kernel_notes(network, measured.full, measured.restored, latencies),
        *files.notes,
    ]
    above = above_verdict(blank.inputs)
    verdict = run_verdict(measured, doubted=bool(above or answer.doubts) and not accept)
    lines = [summary(verdict, network, rule, measured, similarity, filled.by_input, answer)]
    lines += [stopped_line(stopped, answer.not_done)] if stopped else []
    shapes: dict[str, Shape] = {spec.name: spec.shape for spec in network.outputs}
    shapes |= {name: layer.shape for layer in network.layers for name in layer.outputs[:1] if layer.shape}
    return replace(
        filled,
        layers=tuple(replace(row, output_shape=shapes.get(row.output)) for row in filled.layers),
        notes=tuple(dict.fromkeys((*blank.notes, *notes, *said))),
        answer=answer,
        overflows=overflows,
        stopped=stopped,
        ranges=ranges_facts(ranges),
        summary="\n".join([*above, *fixed_lines(network), *lines]),
        peak_bytes=peak_bytes(),
        seconds=dict(seconds),
        exit_code=code_of(verdict),
        latency=None if latencies is None else {p: None if t is None else asdict(t) for p, t in latencies.items()},
        files=files,
    )


def _trial_notes(measured: Measured, rule: Rule) -> list[str]:
    """Notes from the comparison of full INT8 and of the recipe."""
    return [
        f"output '{name}' in {what}: {figures.note}"
        for what, trial in (
            (f"full {measured.recipe.plan.low.upper()}", measured.full),
            ("the recipe", measured.restored),
        )
        for name, figures in rule.judged(trial).items()
        if figures.note
    ]


def _obedience(measured: Measured, network: Network) -> list[str]:
    steps = {step.layers[-1]: step.plan for step in measured.findings.steps if step.suspect}
    deciding = {
        k: measured.taking_back(k) or (measured.whole_trial_of(steps[k]) if k in steps else None)
        for k in measured.recipe.culprits
    }
    return [*obedience_notes(network, measured.trials.values(), deciding), *dla_notes(network, measured.full)]


def _overruled(measured: Measured, network: Network, rule: Rule) -> list[str]:
    """Notes on findings of pieces that whole engines, which decide, contradict."""
    pieces, wholes = measured.curve.in_pieces, measured.findings
    if pieces is None:
        return []
    said = []
    met = [loss is not None and loss <= rule.budget for loss in (pieces.full, wholes.full)]
    if met[0] != met[1]:
        words = ["meets" if good else "misses" for good in met]
        said.append(
            f"in pieces full {network.low.title} {words[0]} the threshold, on whole engines, which decide, "
            f"it {words[1]} it"
        )
    withdrawn = [network.layers[k].name for k in pieces.suspects if k not in wholes.suspects]
    if withdrawn:
        said.append(f"withdrawn: {listed(withdrawn)}, suspects in pieces and not on whole engines")
    found = [network.layers[k].name for k in wholes.suspects if k not in pieces.suspects]
    if found:
        said.append(f"suspects on whole engines alone, and not in pieces: {listed(found)}")
    return said


def _rounds(layer: Layer, writer: PlanWriter) -> tuple[RoundedTensor, ...]:
    """Returns the tensors that a layer rounds, each with its producer and its consumer (rule 2 of the design)."""
    network = writer.network
    return tuple(_rounded_tensor(layer, rounding, network, writer) for rounding in layer.roundings)


def _rounded_tensor(layer: Layer, rounding: Rounding, network: Network, writer: PlanWriter) -> RoundedTensor:
    producer = network.producers.get(rounding.tensor)
    inputs = {spec.name for spec in network.inputs}
    kind = "output" if rounding.at_output else "weight" if rounding.is_weight else "activation"
    made_by = producer.name if producer else "the network's input" if rounding.tensor in inputs else "a constant"
    quantizers = writer.quantizers(layer, rounding)
    same = tuple(
        other.name
        for other in network.layers
        if other.quantizable and other.index != layer.index
        for theirs in other.roundings
        if theirs.tensor == rounding.tensor
        and [q.key() for q in writer.quantizers(other, theirs)] == [q.key() for q in quantizers]
    )
    scale = max((float(quantizer.scale.max()) for quantizer in quantizers), default=None)
    return RoundedTensor(rounding.tensor, kind, made_by, layer.name, scale, same)
