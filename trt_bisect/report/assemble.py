"""From what a search measured to the report."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from trt_bisect.analyzer.judge import Rule
from trt_bisect.builder.base import Builder
from trt_bisect.calibration.ranges import Ranges
from trt_bisect.driver.recipe import Recipe
from trt_bisect.driver.search import Findings, Step, added
from trt_bisect.evaluator.speed import Latencies
from trt_bisect.evaluator.trial import MEASURED, Trial
from trt_bisect.machine import peak_bytes
from trt_bisect.model.layers import Layer, Rounding
from trt_bisect.model.network import Network
from trt_bisect.model.qdq import PlanWriter, Target
from trt_bisect.precision import Precision, PrecisionPlan
from trt_bisect.report.exports import recipe_files
from trt_bisect.report.obedience import obedience_notes
from trt_bisect.report.report import FOLLOWS, NOT_TRIED, LayerRow, Report, RoundedTensor
from trt_bisect.report.words import summary


@dataclass(frozen=True)
class Measured:
    """What the search found, and the trials behind it.

    Attributes:
        full: full INT8's trial; ``restored`` the recipe's; ``nothing`` that of no layer in INT8.
        mark: before the plan's key of trials that were measured in pieces which are other engines than the whole.
        confirmed: by culprit, the plans without and with it that were measured on whole engines as well.
        trials: by plan key.
        canonical: the plan that a plan's trial is kept under.
    """

    findings: Findings
    recipe: Recipe
    full: Trial
    restored: Trial
    nothing: Trial
    mark: str = ""
    confirmed: Mapping[int, tuple[PrecisionPlan, PrecisionPlan]] = field(default_factory=dict)
    trials: Mapping[str, Trial] = field(default_factory=dict)
    canonical: Callable[[PrecisionPlan], PrecisionPlan] = lambda plan: plan

    def trial_of(self, plan: PrecisionPlan) -> Trial | None:
        """The trial of a plan that the search went by, None if it was not tried."""
        return self.trials.get(self.mark + self.canonical(plan).key()) or self.whole_trial_of(plan)

    def whole_trial_of(self, plan: PrecisionPlan) -> Trial | None:
        """The trial of a plan on a whole engine, None if it was not tried."""
        return self.trials.get(self.canonical(plan).key())


def assemble(
    measured: Measured,
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
    seconds: Mapping[str, float],
    latencies: Latencies | None,
    fingerprint: str,
) -> Report:
    """The report of a run."""
    findings, recipe = measured.findings, measured.recipe
    int8, restored = rule.similarity(measured.full), rule.similarity(measured.restored)
    writer = PlanWriter(network, ranges.scales, Target.TENSORRT)
    plans, builds, inferences = counts(measured.trials.values())
    return Report(
        model=network.source,
        engine=builder.engine,
        typing=builder.typing,
        strategy=strategy,
        arithmetic=builder.arithmetic,
        metric=rule.metric.name,
        threshold=rule.threshold,
        share=rule.share,
        precision=str(high),
        versions=dict(versions),
        layers=_rows(measured, network, rule, high, writer),
        culprits=tuple(network.layers[k].name for k in findings.culprits),
        similarity={"int8": int8, "recipe": restored},
        outputs={"int8": _figures(measured.full), "recipe": _figures(measured.restored)},
        recipe={
            "high": [network.layers[k].name for k in recipe.kept],
            "added": [network.layers[k].name for k in recipe.added],
            "meets": recipe.meets,
        },
        ranges={"origin": ranges.origin, "tensors": len(ranges.scales), "unusable": dict(ranges.unusable)},
        inputs=dict(inputs),
        notes=tuple(
            dict.fromkeys(
                [
                    *notes,
                    *_trial_notes(measured, rule),
                    *_unconfirmed(measured, network, rule),
                    *_obedience(measured, network),
                ]
            )
        ),
        summary=summary(network, rule, findings, recipe, int8, restored),
        plans=plans,
        builds=builds,
        inferences=inferences,
        peak_bytes=peak_bytes(),
        seconds=dict(seconds),
        fingerprint=fingerprint,
        exit_code=_exit_code(measured, rule),
        latency=None if latencies is None else {p: None if t is None else asdict(t) for p, t in latencies.items()},
        files=recipe_files(network, ranges.scales, recipe.plan, high),
    )


def counts(trials: Collection[Trial]) -> tuple[int, int, int]:
    """How many plans, engines and inferences trials stand for."""
    return len(trials), sum(trial.builds for trial in trials), sum(trial.inferences for trial in trials)


def _exit_code(measured: Measured, rule: Rule) -> int:
    if all(trial.failed for trial in measured.trials.values()):
        return 3
    return 0 if rule.meets(measured.full) else 1


def _figures(trial: Trial) -> dict[str, Mapping[str, float]]:
    return {name: dict(figures.values) for name, figures in trial.outputs.items()}


def _trial_notes(measured: Measured, rule: Rule) -> list[str]:
    """What the comparison of full INT8 and of the recipe had to say."""
    return [
        f"output '{name}' in {what}: {figures.note}"
        for what, trial in (("full INT8", measured.full), ("the recipe", measured.restored))
        for name, figures in rule.judged(trial).items()
        if figures.note
    ]


def _obedience(measured: Measured, network: Network) -> list[str]:
    deciding = {step.layers[-1]: measured.whole_trial_of(step.plan) for step in measured.findings.steps if step.culprit}
    return obedience_notes(network, measured.trials.values(), deciding)


def _rows(
    measured: Measured, network: Network, rule: Rule, high: Precision, writer: PlanWriter
) -> tuple[LayerRow, ...]:
    at_boundary: dict[int, Step] = {step.layers[-1]: step for step in measured.findings.steps}
    set_aside = set(measured.findings.set_aside)
    standing: Trial | None = measured.nothing if not measured.nothing.failed else None
    rows = []
    for layer in network.layers:
        step = at_boundary.get(layer.index)
        trial = measured.trial_of(step.plan) if step else None
        if step is None and not layer.quantizable:
            row = _row(measured, layer, rule, standing, high, FOLLOWS, 0.0 if standing else None)
        elif step is None or trial is None:
            standing = None
            outcome = "not judged" if layer.index in set_aside else NOT_TRIED
            row = _row(measured, layer, rule, None, high, outcome, None)
        else:
            drop = step.rise if len(step.layers) == 1 and step.loss is not None else None
            row = _row(measured, layer, rule, trial, high, trial.outcome, drop, step, writer)
            if not step.culprit and not trial.failed:
                standing = trial
        rows.append(row)
    return tuple(rows)


def _row(
    measured: Measured,
    layer: Layer,
    rule: Rule,
    trial: Trial | None,
    high: Precision,
    outcome: str,
    drop: float | None,
    step: Step | None = None,
    writer: PlanWriter | None = None,
) -> LayerRow:
    culprit = layer.index in measured.findings.culprits
    asked = Precision.INT8 if step is not None and layer.index in step.plan.int8 else high
    ran = trial.ran.get(layer.index, "") if trial else ""
    kept = layer.index in measured.recipe.kept or not layer.quantizable
    return LayerRow(
        index=layer.index,
        name=layer.name,
        op_type=layer.op_type,
        shape=layer.shape,
        quantizable=layer.quantizable,
        similarity=rule.similarity(trial),
        drop=drop,
        culprit=culprit,
        outcome=outcome,
        asked=str(asked),
        ran=ran,
        obeyed=_obeyed(ran, asked) if layer.quantizable else None,
        sqnr=_worst_sqnr(rule, trial),
        output=_deciding_output(rule, trial),
        recipe=str(high if kept else Precision.INT8),
        why_not=layer.why_not,
        message=trial.message if trial and trial.outcome != MEASURED else "",
        rounds=_rounds(layer, writer) if culprit and writer is not None else (),
        whole=_on_whole_engines(measured, layer.index, rule),
    )


def _on_whole_engines(measured: Measured, layer: int, rule: Rule) -> dict[str, float | None] | None:
    if layer not in measured.confirmed:
        return None
    sides = zip(("without", "with"), measured.confirmed[layer], strict=True)
    return {side: rule.similarity(measured.whole_trial_of(plan)) for side, plan in sides}


def _unconfirmed(measured: Measured, network: Network, rule: Rule) -> list[str]:
    """What whole engines say against culprits that were found in pieces."""
    said = []
    for layer, (without, having) in measured.confirmed.items():
        trials = [measured.whole_trial_of(plan) for plan in (without, having)]
        before, after = (None if trial is None else rule.loss(trial) for trial in trials)
        name = network.layers[layer].name
        if before is None or after is None:
            said.append(f"culprit '{name}', found in pieces, could not be measured on whole engines")
        elif added(before, after) < rule.step:
            said.append(f"culprit '{name}', found in pieces, costs only {added(before, after):.3g} on whole engines")
    return said


def _obeyed(ran: str, asked: Precision) -> bool | None:
    return ran == str(asked) if ran else None


def _worst_sqnr(rule: Rule, trial: Trial | None) -> float | None:
    if trial is None:
        return None
    found = [figures.values["sqnr"] for figures in rule.judged(trial).values() if "sqnr" in figures.values]
    return min(found, default=None)


def _deciding_output(rule: Rule, trial: Trial | None) -> str:
    judged = rule.judged(trial) if trial is not None else {}
    if not judged:
        return ""
    return max(judged, key=lambda name: rule.output_loss(judged[name]))


def _rounds(layer: Layer, writer: PlanWriter) -> tuple[RoundedTensor, ...]:
    """Rule 2 of the design: a culprit is reported with the tensor that is rounded, its producer and its consumer."""
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
    scale = max(float(quantizer.scale.max()) for quantizer in quantizers)
    return RoundedTensor(rounding.tensor, kind, made_by, layer.name, scale, same)
