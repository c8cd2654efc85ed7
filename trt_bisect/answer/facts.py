"""Makes the facts of a report from an answer: the recipe, its culprits, the suspects, the figures on all inputs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from trt_bisect.analyzer.bound import AGREEMENT, CLASS, Bound, bound_of
from trt_bisect.analyzer.doubts import NOT_LOW, UNSEEN, Doubt, constant_outputs, doubts
from trt_bisect.analyzer.judge import Rule
from trt_bisect.answer.confidence import Noise, confidence, low_layers, ranked
from trt_bisect.answer.result import Answer
from trt_bisect.answer.search import CalibratorTried
from trt_bisect.answer.validation import losses_by_place
from trt_bisect.evaluator.each_input import GivenInputs
from trt_bisect.evaluator.trial import Trial
from trt_bisect.report.answer import FOLLOWERS, PLAIN, AnswerFacts, CalibratorRow, Held, PlanFigures
from trt_bisect.report.precision_check import obedience_doubts
from trt_bisect.support.text import REFUSED, Line, Note

ANOTHER_READER = "its rounded tensor has another {low} reader, so that keeping it high saves little"
COVERED = "the culprits that stay high make up for it: with them high, it can stay in {low}"
UNTESTED = "it stays high, but was not shown to be needed: it was not taken back"
CANCELLED = "later layers cancel its error: kept high alone, it does not make full {low} better"


def similarity_of(rule: Rule, loss: float) -> float | None:
    """Returns the metric's value that has a loss; None if there is none."""
    return None if not math.isfinite(loss) else rule.metric.value(loss)


def taken_back(answer: Answer) -> dict[int, float | None]:
    """Returns by layer of the recipe what it measures with that layer low as well; None if there is no figure then."""
    return {answer.space.units[unit][0]: figure for unit, figure in answer.put_back.items()}


def reason_for(answer: Answer, layer: int, gain: float | None) -> str:
    """Returns the reason why a layer with a large drop is no culprit.

    Args:
        answer: the answer.
        layer: the index of the layer.
        gain: the loss that full INT8 sheds when the layer alone stays high; None if not measured.
    """
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
    """Returns the facts of an answer for the report. Where an accuracy decides, no input is judged by itself."""
    facts = _facts(answer)
    if not answer.by_accuracy:
        return facts
    doubts = tuple(Line(NOT_LOW, text) for text in obedience(answer)) if answer.meets else ()
    return replace(facts, given=None, unseen=None, settings={}, aim=None, doubts=doubts, close=False)


def bound_on_unseen(answer: Answer) -> Bound | None:
    """Returns the bound on unseen inputs that miss; None without any.

    Where an accuracy decides, no input misses. Then it is the bound on inputs that get another class than in FP32, or
    whose answers differ more than the task allows; None for outputs without classes.
    """
    trial, rule = answer.unseen, answer.experiment.rule
    if trial is None or answer.unseen_inputs is None:
        return None
    if not answer.by_accuracy or answer.experiment.task is not None:
        losses = losses_by_place(rule, trial, tuple(range(len(answer.unseen_inputs)))).values()
        missed = sum(loss > rule.budget for loss in losses)
        return bound_of(len(losses), missed, AGREEMENT if answer.by_accuracy else "") if losses else None
    figures = next(iter(rule.judged(trial).values()), None)
    known = [value for value in (figures.inputs.get("top1", ()) if figures else ()) if value is not None]
    if not known or any(map(math.isnan, known)):
        return None
    return bound_of(len(known), sum(value < 1.0 for value in known), CLASS)


def _facts(answer: Answer) -> AnswerFacts:
    rule, space = answer.experiment.rule, answer.space
    unseen = None
    if answer.unseen is not None and answer.unseen_inputs is not None:
        places = tuple(range(len(answer.unseen_inputs)))
        unseen = _held(rule, answer.unseen, answer.unseen_inputs, places)
    names = [layer.name for layer in answer.experiment.network.layers]
    own, changes = answer.of_user, answer.experiment.network.changes
    main, weak = ([names[own.space.units[unit][0]] for unit in units] for units in ranked(own))
    settings = {**answer.checked.losses}
    if answer.plain is not None and (loss := rule.loss(answer.plain)) is not None:
        settings[PLAIN] = loss
    followers = None
    if answer.followers is not None:
        loss = rule.loss(answer.followers)
        followers = settings[FOLLOWERS] = math.inf if loss is None else loss
    return AnswerFacts(
        judged=answer.judged,
        given=_held(rule, answer.restored, answer.given, answer.counting),
        unseen=unseen,
        cost=space.cost(answer.kept),
        calibrators=tuple(_row(rule, own, one) for one in own.tried),
        equals=tuple(tuple(names[k] for k in sorted(space.layers(kept))) for kept in answer.equals),
        settings={setting: similarity_of(rule, loss) for setting, loss in settings.items()},
        aim=answer.aim,
        margin=answer.margin.share,
        spared=answer.margin.spared,
        half_gain=answer.half_gain,
        in_fp16=answer.in_fp16,
        in_fp32=answer.in_fp32,
        around_fp16=answer.around_fp16,
        changes=changes,
        unchanged=_figures(own) if changes and own.meets else None,
        dear=answer.dear,
        ranked=(*main, *weak),
        weak=tuple(weak),
        doubts=tuple(_doubts(answer, unseen)) if answer.meets else (),
        confidence=confidence(answer, followers),
        close=Noise.of(answer).is_close(rule.budget),
        not_done=answer.not_done,
    )


def _figures(answer: Answer) -> PlanFigures:
    names = [answer.experiment.network.layers[k].name for k in answer.high]
    similarity = answer.experiment.rule.similarity(answer.restored)
    return PlanFigures(answer.space.cost(answer.kept), tuple(names), similarity)


def refused_by_default(answer: Answer) -> list[Note]:
    """Returns a note if ONNX Runtime refuses the recipe's file with its default options."""
    if answer.plain is None or not answer.plain.failed:
        return []
    reason = answer.plain.message.rstrip(".")
    text = (
        f"ONNX Runtime with default options refuses the recipe's file: {reason}. Load it with basic optimisations "
        "(docs/howto/qat.md)"
    )
    return [Note(REFUSED, text)]


def _doubts(answer: Answer, unseen: Held | None) -> Iterator[Line]:
    """Yields what contradicts a recipe that meets the threshold."""
    rule = answer.experiment.rule
    constant, _ = constant_outputs(rule, answer.given.references)
    for doubt in (*constant, *doubts(rule, answer.restored), *_on_unseen(rule, answer, unseen)):
        yield Line(doubt.kind, doubt.text)
    yield from (Line(NOT_LOW, text) for text in obedience(answer))


def _on_unseen(rule: Rule, answer: Answer, held: Held | None) -> Iterator[Doubt]:
    """Yields a doubt if a plan that holds on all inputs given misses on unseen ones."""
    if answer.unseen is None or held is None or rule.meets(answer.unseen):
        return
    worst = "no figure" if held.worst is None else rule.text(held.worst)
    stricter = "--margin" if answer.margin.share else "--threshold"
    missing = held.inputs - held.holds
    text = (
        f"{missing} of {held.inputs} held-out inputs {'misses' if missing == 1 else 'miss'} the threshold (worst "
        f"{worst}), which your inputs meet: give more inputs, of other kinds, or a larger {stricter}."
    )
    yield Doubt("", UNSEEN, text)


def obedience(answer: Answer) -> tuple[str, ...]:
    """Returns the doubt on a recipe whose engine did not run its low layers low; empty where the graph settles it."""
    constrained = answer.experiment.builder.typing == "weak"
    return obedience_doubts(low_layers(answer), answer.restored) if constrained else ()


def _row(rule: Rule, answer: Answer, tried: CalibratorTried) -> CalibratorRow:
    """The row of a calibrator. Full INT8 of the chosen one is measured on all inputs, and has one figure everywhere.

    Its name is then that of the ranges in use, in which single tensors may have the scales of other calibrators.
    """
    ranges = answer.experiment.ranges
    chosen = ranges.calibrator == tried.ranges.calibrator
    similarity = None if tried.loss is None else similarity_of(rule, tried.loss)
    has_moved = chosen and ranges.origin != tried.ranges.origin
    return CalibratorRow(
        ranges.origin if chosen else tried.ranges.origin,
        rule.similarity(answer.full) if chosen else similarity,
        len(answer.counting) if chosen else tried.inputs,
        rule.meets(answer.full) if has_moved else tried.meets,
        tried.cost,
        tried.high,
        chosen,
        tried.mean,
        tried.ranges.calibrator,
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
