from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from trt_bisect.analyzer.doubts import (
    BY_AGREEMENT,
    BY_CLASS,
    HELD_OUT,
    NOT_LOW,
    Bound,
    bound_of,
    constant_outputs,
    doubts,
)
from trt_bisect.analyzer.hidden_nan import HIDES_NAN, NAN_HIDDEN
from trt_bisect.analyzer.judge import Rule
from trt_bisect.analyzer.metrics import AGREEMENT
from trt_bisect.answer.confidence import confidence, is_close, ranked
from trt_bisect.answer.result import Answer, cost_of, figures_of, low_layers, names_of, similarity_of
from trt_bisect.answer.search import CalibratorTried
from trt_bisect.answer.validation import Recipe, losses_by_place
from trt_bisect.evaluator.each_input import GivenInputs
from trt_bisect.evaluator.trial import Trial
from trt_bisect.report.answer import (
    ENGINE_PASSES,
    HALF,
    PLAIN,
    UNQUANTIZED,
    AnswerFacts,
    CalibratorRow,
    EngineFacts,
    Held,
    PlanFigures,
)
from trt_bisect.report.precision_check import obedience_doubts
from trt_bisect.support.text import RANGE, REFUSED, Line, Note

COVERED = "the layers that stay high make up for it: with them high, it can stay in {low}"
PASSING = "full {low} passes with it"
UNRESTORED = "no plan tried passes, so that no layer was shown to be needed"
NOT_FOR_ACCURACY = "it stays high for speed or for FP16, not for accuracy"
UNTESTED = "it stays high, but was not shown to be needed: it was not put back"
CANCELLED = "later layers cancel its error: kept high alone, it does not make full {low} better"


def put_back_fields(answer: Answer) -> dict[str, dict[str, Any]]:
    """Returns, by name of a recipe's layer, the report's fields for this layer back in INT8: the figure, the number of
    inputs, the setting.
    """
    layers, units, back = answer.experiment.network.layers, answer.recipe.space.units, answer.recipe.put_back
    return {
        layers[units[unit][0]].name: {
            "put_back": figure,
            "put_back_on": back[unit].inputs,
            "put_back_in": back[unit].setting,
        }
        for unit, figure in answer.put_back.items()
    }


def reason_for(answer: Answer, layer: int, gain: float | None) -> str:
    """Returns the reason why ``layer``, the index of one with a large loss on the curve, is no culprit.

    Args:
        gain: loss that full INT8 wins back with this layer alone in high precision; None if not measured.
    """
    if layer in answer.untested:
        return UNTESTED
    if not answer.meets:
        return UNRESTORED
    if layer in answer.recipe.high:
        return NOT_FOR_ACCURACY
    covered = COVERED if answer.recipe.high else PASSING
    reason = CANCELLED if gain is not None and gain <= 0.0 else covered
    return reason.format(low=answer.experiment.network.low.title)


def bound_on_held_out(answer: Answer) -> Bound | None:
    """Returns the upper bound, from the held-out inputs, on the share of similar inputs that miss; None without
    held-out inputs that count.

    If an accuracy decides, an input misses if its class is not FP32's or, with a task, if its answers differ from
    FP32's more than the task allows; None for outputs without classes.
    """
    trial, rule = answer.held_out, answer.experiment.rule
    if trial is None or answer.held_out_inputs is None:
        return None
    if not answer.by_accuracy or answer.experiment.task is not None:
        losses = _losses(rule, trial, answer.held_out_inputs).values()
        missed = sum(loss > rule.budget for loss in losses)
        return bound_of(len(losses), missed, BY_AGREEMENT if answer.by_accuracy else "") if losses else None
    figures = next(iter(rule.judged(trial).values()), None)
    agreements = [value for value in (figures.inputs.get("top1", ()) if figures else ()) if value is not None]
    if not agreements or any(map(math.isnan, agreements)):
        return None
    return bound_of(len(agreements), sum(value < 1.0 for value in agreements), BY_CLASS)


def answer_facts(answer: Answer, half_quantized: Sequence[Line] = ()) -> AnswerFacts:
    """Returns the facts of an answer (figures, culprits, doubts, margins) that the report shows.

    ``half_quantized``: the doubt on layers that have a Q/DQ pair on one operand alone in the file.
    """
    rule, recipe, network = answer.experiment.rule, answer.recipe, answer.experiment.network
    held_out, held_out_inputs = None, answer.held_out_inputs
    if answer.held_out is not None and held_out_inputs is not None:
        held_out = _held(rule, answer.held_out, held_out_inputs)
    of_user = answer.of_user
    layers = of_user.experiment.network.layers
    main, weak = ([layers[of_user.recipe.space.units[unit][0]].name for unit in units] for units in ranked(of_user))
    settings = {**recipe.checked.losses}
    if answer.plain is not None and (loss := rule.loss(answer.plain)) is not None:
        settings[PLAIN] = loss
    if answer.half is not None:
        settings[HALF] = answer.half
    unquantized = None
    if answer.unquantized is not None:
        loss = rule.loss(answer.unquantized)
        unquantized = settings[UNQUANTIZED] = math.inf if loss is None else loss
    unchanged = figures_of(of_user.recipe, of_user.restored)
    facts = AnswerFacts(
        judged=answer.judged,
        given=_held(rule, answer.restored, answer.inputs.given),
        held_out=held_out,
        cost=cost_of(answer),
        calibrators=tuple(_row(rule, answer.emulated.of_user, row) for row in of_user.tried),
        equals=tuple(names_of(replace(recipe, kept=kept)) for kept in recipe.equals),
        settings={setting: similarity_of(rule, loss) for setting, loss in settings.items()},
        aim=recipe.aim,
        margin=recipe.reserve,
        cheapest=None if recipe.cheapest is None else _of_cheapest(recipe.cheapest),
        in_fp16=answer.in_fp16,
        in_fp32=answer.in_fp32,
        around_fp16=answer.around_fp16,
        changes=network.changes,
        changes_tried=answer.changes,
        unchanged=unchanged if network.changes and of_user.meets else None,
        expensive=answer.expensive,
        ranked=(*main, *weak),
        weak=tuple(weak),
        doubts=(*_doubts(answer, held_out), *half_quantized) if answer.meets else (),
        confidence=confidence(answer, unquantized),
        close=is_close(answer),
        not_done=answer.not_done,
        has_held_out=answer.has_held_out,
        on_engines=_on_engines(answer),
    )
    if not answer.by_accuracy:
        return facts
    disobeyed = tuple(line for line in facts.doubts if line.kind == NOT_LOW)
    return replace(facts, given=None, held_out=None, settings={}, aim=None, doubts=disobeyed, close=False)


def _on_engines(answer: Answer) -> EngineFacts | None:
    engines, rule = answer.engines, answer.experiment.rule
    if engines is None:
        return None
    proposal = engines.proposal
    return EngineFacts(
        engine=engines.engine,
        builds=engines.builds,
        base=rule.similarity(engines.base),
        int8_emulated=rule.similarity(proposal.of_user.full),
        recipe_emulated=rule.similarity(proposal.restored),
        apart_int8=answer.full.apart,
        apart_recipe=answer.restored.apart,
        lines=engines.lines,
    )


def _of_cheapest(recipe: Recipe) -> PlanFigures:
    similarity = similarity_of(recipe.experiment.rule, recipe.checked.worst)
    return PlanFigures(recipe.cost, names_of(recipe), similarity, meets=True)


def nan_in_fp16(answer: Answer) -> list[Note]:
    """Returns a note if the outputs of the network in FP16 hide NaN, else no note."""
    if not answer.nan_in_fp16:
        return []
    return [Note(RANGE, f"in FP16 {answer.nan_in_fp16}. {HIDES_NAN}")]


def refused_by_default(answer: Answer) -> list[Note]:
    """Returns a note if ONNX Runtime refuses the recipe's file with its default options, else no note."""
    if answer.plain is None or not answer.plain.failed:
        return []
    text = (
        f"ONNX Runtime with default options refuses the recipe's file: {answer.plain.message.rstrip('.')}. Load it "
        "with basic optimisations (docs/howto/qat.md)"
    )
    return [Note(REFUSED, text)]


def _doubts(answer: Answer, held_out: Held | None) -> Iterator[Line]:
    rule = answer.experiment.rule
    constant, _ = constant_outputs(rule, answer.inputs.given.references)
    for doubt in (*constant, *doubts(rule, answer.restored)):
        yield Line(doubt.kind, doubt.text)
    if answer.nan_in_recipe:
        yield Line(NAN_HIDDEN, f"In {answer.plan} {answer.nan_in_recipe}. {HIDES_NAN}.")
    if held_out is not None and answer.misses_held_out:
        worst = "no figure" if held_out.worst is None else rule.text(held_out.worst)
        stricter = "--margin" if answer.recipe.reserve else "--threshold"
        missing = held_out.inputs - held_out.holds
        text = (
            f"{missing} of {held_out.inputs} held-out inputs {'misses' if missing == 1 else 'miss'} the threshold "
            f"(worst {worst}), which your inputs meet: give more inputs, of other kinds, or a larger {stricter}."
        )
        yield Line(HELD_OUT, text)
    if answer.engines is not None and not answer.recipe.kept:
        yield from (line for line in answer.engines.lines if line.kind == ENGINE_PASSES)
    yield from (Line(NOT_LOW, text) for text in obedience(answer))


def obedience(answer: Answer) -> tuple[str, ...]:
    """Returns a tuple of one sentence if the engine did not run in low precision the layers that the recipe has there;
    empty if it did, or if the graph determines the precisions.
    """
    weak = answer.experiment.builder.typing == "weak"
    if not weak and not answer.restored.ran:
        return ()
    return obedience_doubts(low_layers(answer), answer.restored, weak=weak)


def _row(rule: Rule, answer: Answer, tried: CalibratorTried) -> CalibratorRow:
    ranges = answer.experiment.ranges
    chosen = ranges.calibrator == tried.ranges.calibrator
    similarity = None if tried.loss is None else similarity_of(rule, tried.loss)
    has_moved = chosen and ranges.origin != tried.ranges.origin
    return CalibratorRow(
        ranges.origin if chosen else tried.ranges.origin,
        rule.similarity(answer.full) if chosen else similarity,
        len(answer.inputs.told) if chosen else tried.inputs,
        rule.meets(answer.full) if has_moved else tried.meets,
        tried.cost,
        None if tried.kept is None else len(answer.recipe.space.layers(tried.kept)),
        chosen,
        tried.mean,
        tried.ranges.calibrator,
        tried.confirmed,
    )


def _losses(rule: Rule, trial: Trial, given: GivenInputs) -> dict[int, float]:
    # With a task, findings of the plan alone are judged over all inputs together.
    return losses_by_place(rule, trial, given.told if rule.metric is AGREEMENT else range(len(given)))


def _held(rule: Rule, trial: Trial, given: GivenInputs) -> Held | None:
    losses = _losses(rule, trial, given)
    if not losses:
        return None
    worst = max(losses, key=lambda input_index: losses[input_index])
    figures = {given.labels[input_index]: similarity_of(rule, loss) for input_index, loss in losses.items()}
    finite = [value for value in figures.values() if value is not None]
    towards_worse = 5 if rule.metric.loss(1.0) < rule.metric.loss(0.0) else 95
    return Held(
        source=given.sources[worst],
        inputs=len(losses),
        holds=sum(loss <= rule.budget for loss in losses.values()),
        worst=similarity_of(rule, losses[worst]),
        worst_input=given.labels[worst],
        mean=float(np.mean(finite)) if finite else None,
        fifth=float(np.percentile(finite, towards_worse)) if finite else None,
        figures=figures,
    )
