"""Makes the facts of a report from an answer: the recipe, its culprits, the suspects, the figures on all inputs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from trt_bisect.analyzer.doubts import NOT_LOW, UNSEEN, Doubt, constant_outputs, doubts
from trt_bisect.analyzer.judge import Rule
from trt_bisect.evaluator.given_inputs import GivenInputs
from trt_bisect.evaluator.trial import Trial
from trt_bisect.jobs.answer.confidence import Grounds, confidence
from trt_bisect.jobs.answer.result import Answer
from trt_bisect.jobs.answer.search import CalibratorTried
from trt_bisect.jobs.answer.validation import losses_by_place
from trt_bisect.model.layers import Layer
from trt_bisect.report.answer import FOLLOWERS, PLAIN, AnswerFacts, CalibratorRow, Held, PlanFigures
from trt_bisect.report.precision_check import obedience_doubts, ran_low
from trt_bisect.report.search_result import Curve, Measured, Recipe

ANOTHER_READER = "its rounded tensor has another {low} reader, so that keeping it high saves little"
COVERED = "the culprits that stay high make up for it: with them high, it can stay in {low}"
UNTESTED = "it stays high, but was not shown to be needed: it was not taken back"
CANCELLED = "later layers cancel its error: kept high alone, it does not make full {low} better"


def measured_answer(answer: Answer, curve: Curve, trials: Mapping[str, Trial], gains: Mapping[int, float]) -> Measured:
    """Returns the curve and the recipe with the trials behind them, and the gains of layers by index."""
    space, rule = answer.space, answer.experiment.rule
    layer_of = {unit: space.units[unit][0] for unit in answer.kept}
    taken_back = {
        layer_of[unit]: similarity_of(rule, loss) for unit, loss in answer.taken_back.items() if loss is not None
    }
    suspects = [k for k in curve.findings.suspects if k not in answer.members]
    recipe = Recipe(
        answer.plan,
        answer.high,
        answer.members,
        answer.meets,
        taken_back,
        gains,
        {k: _reason(answer, k, gains.get(k)) for k in suspects},
        answer.untested,
    )
    return Measured(curve, recipe, answer.full, answer.restored, trials, answer.experiment.whole.canonical)


def similarity_of(rule: Rule, loss: float) -> float | None:
    """Returns the metric's value that has a loss; None if there is none."""
    return None if not math.isfinite(loss) else rule.metric.value(loss)


def _reason(answer: Answer, layer: int, gain: float | None) -> str:
    """The reason why a layer with a large drop is no culprit."""
    network, plan = answer.experiment.network, answer.plan
    if layer in answer.untested:
        return UNTESTED
    own = {rounding.tensor for rounding in network.layers[layer].roundings if not rounding.is_weight}
    shared = any(
        rounding.tensor in own
        for other in network.layers
        if other.index in plan.lowered and other.index != layer
        for rounding in other.roundings
    )
    if shared:
        return ANOTHER_READER.format(low=network.low.title)
    return (CANCELLED if gain is not None and gain <= 0.0 else COVERED).format(low=network.low.title)


def answer_facts(answer: Answer) -> AnswerFacts:
    """Returns the facts of an answer for the report."""
    rule, space = answer.experiment.rule, answer.space
    unseen = None
    if answer.unseen is not None and answer.unseen_inputs is not None:
        places = tuple(range(len(answer.unseen_inputs)))
        unseen = _held(rule, answer.unseen, answer.unseen_inputs, places)
    names = [layer.name for layer in answer.experiment.network.layers]
    grounds = grounds_of(answer)
    settings = {**answer.checked.losses}
    if answer.plain is not None and (loss := rule.loss(answer.plain)) is not None:
        settings[PLAIN] = loss
    if grounds.followers is not None:
        settings[FOLLOWERS] = grounds.followers
    found = tuple(_doubts(answer, unseen)) if answer.meets else ()
    return AnswerFacts(
        judged=answer.judged,
        given=_held(rule, answer.restored, answer.given, answer.counting),
        unseen=unseen,
        cost=space.cost(answer.kept),
        calibrators=tuple(_row(rule, answer, one) for one in answer.tried),
        equals=tuple(tuple(names[k] for k in sorted(space.layers(kept))) for kept in answer.equals),
        settings={setting: similarity_of(rule, loss) for setting, loss in settings.items()},
        aim=answer.aim,
        margin=answer.margin.share,
        spared=answer.margin.spared,
        half_gain=_half_gain(answer),
        doubts=tuple(doubt.text for doubt in found),
        doubt_kinds=tuple(doubt.kind for doubt in found),
        confidence=confidence(grounds, rule),
        close=grounds.is_close(rule),
        not_done=answer.not_done,
    )


def refused_by_default(answer: Answer) -> list[str]:
    """Returns a note if ONNX Runtime refuses the recipe's file with its default options."""
    if answer.plain is None or not answer.plain.failed:
        return []
    reason = answer.plain.message.rstrip(".")
    return [
        f"ONNX Runtime with default options refuses the recipe's file: {reason}. Load it with basic optimisations "
        "(docs/howto/qat.md)"
    ]


def _doubts(answer: Answer, unseen: Held | None) -> Iterator[Doubt]:
    """Yields what contradicts a recipe that meets the threshold."""
    rule = answer.experiment.rule
    constant, _ = constant_outputs(rule, answer.given.references)
    yield from (*constant, *doubts(rule, answer.restored))
    yield from _on_unseen(rule, answer, unseen)
    yield from (Doubt("", NOT_LOW, text) for text in obedience(answer))


def _half_gain(answer: Answer) -> PlanFigures | None:
    found = answer.half_gain
    if found is None:
        return None
    layers = answer.experiment.network.layers
    high = tuple(layers[k].name for k in sorted(answer.space.layers(found.kept)))
    return PlanFigures(answer.space.cost(found.kept), high, answer.experiment.rule.similarity(found.trial))


def _on_unseen(rule: Rule, answer: Answer, held: Held | None) -> Iterator[Doubt]:
    """Yields a doubt if a plan that holds on all inputs given misses on unseen ones."""
    if answer.unseen is None or held is None or rule.meets(answer.unseen):
        return
    worst = "no figure" if held.worst is None else rule.metric.text(held.worst)
    stricter = "--margin" if answer.margin.share else "--threshold"
    text = (
        f"Unseen inputs miss the threshold: {held.inputs - held.holds} of {held.inputs}, the worst has {worst}. "
        f"The inputs given do not stand for them: give more of other kinds, or a larger {stricter}."
    )
    yield Doubt("", UNSEEN, text)


def _low_layers(answer: Answer) -> dict[int, Layer]:
    network = answer.experiment.network
    return {k: network.layers[k] for k in network.quantizable}


def obedience(answer: Answer) -> tuple[str, ...]:
    """Returns the doubt on a recipe whose engine did not run its low layers low; empty where the graph settles it."""
    constrained = answer.experiment.builder.typing == "weak"
    return obedience_doubts(_low_layers(answer), answer.restored) if constrained else ()


def _ran(answer: Answer) -> str:
    """The number of layers that ran low, if the engine alone tells; empty if the graph settles what is rounded."""
    experiment = answer.experiment
    told = experiment.builder.typing == "weak" and not experiment.network.has_pairs and answer.restored.ran
    return ran_low(_low_layers(answer), answer.restored) if told else ""


def grounds_of(answer: Answer) -> Grounds:
    """Returns the facts that the verdict of an answer rests on."""
    experiment, space = answer.experiment, answer.space
    builder, rule, followers = experiment.builder, experiment.rule, answer.followers
    version = builder.versions.get(builder.engine, "")
    loss = None if followers is None else rule.loss(followers)
    names = {unit: experiment.network.layers[space.units[unit][0]].name for unit in answer.taken_back}
    return Grounds(
        given=len(answer.counting),
        judged=answer.judged,
        unseen=0 if answer.unseen_inputs is None else len(answer.unseen_inputs),
        engine=f"{builder.engine} {version}".strip(),
        arithmetic=builder.arithmetic,
        meets=answer.meets,
        culprits={names[unit]: lost for unit, lost in answer.taken_back.items()},
        unmoved={names[unit]: lost for unit, lost in answer.unmoved.items()},
        losses=answer.checked.losses,
        followers=None if followers is None else math.inf if loss is None else loss,
        margin=answer.margin.share,
        spared=answer.margin.spared,
        with_margin=sum(
            loss <= rule.budget * (1.0 - answer.margin.share)
            for loss in losses_by_place(rule, answer.restored, answer.counting).values()
        ),
        refused=answer.refused,
        followers_round="followers" in experiment.parts,
        low=experiment.network.low.title,
        ran=_ran(answer),
    )


def _is_chosen(answer: Answer, tried: CalibratorTried) -> bool:
    return answer.experiment.ranges.origin.split(",")[0] == tried.ranges.origin


def _row(rule: Rule, answer: Answer, tried: CalibratorTried) -> CalibratorRow:
    """The row of a calibrator. Full INT8 of the chosen one is measured on all inputs, and has one figure everywhere."""
    chosen = _is_chosen(answer, tried)
    similarity = None if tried.loss is None else similarity_of(rule, tried.loss)
    return CalibratorRow(
        tried.ranges.origin,
        rule.similarity(answer.full) if chosen else similarity,
        len(answer.counting) if chosen else tried.inputs,
        tried.meets,
        tried.cost,
        tried.high,
        chosen,
        tried.mean,
    )


def _held(rule: Rule, trial: Trial, given: GivenInputs, counting: tuple[int, ...]) -> Held | None:
    losses = losses_by_place(rule, trial, counting)
    if not losses:
        return None
    worst = max(losses, key=lambda place: losses[place])
    figures = {given.labels[place]: similarity_of(rule, loss) for place, loss in losses.items()}
    known = [value for value in figures.values() if value is not None]
    towards_worse = 5 if rule.metric.loss(1.0) < rule.metric.loss(0.0) else 95
    return Held(
        source=given.sources[worst],
        inputs=len(losses),
        holds=sum(loss <= rule.budget for loss in losses.values()),
        worst=similarity_of(rule, losses[worst]),
        worst_input=given.labels[worst],
        mean=float(np.mean(known)) if known else None,
        fifth=float(np.percentile(known, towards_worse)) if known else None,
        figures=figures,
    )
