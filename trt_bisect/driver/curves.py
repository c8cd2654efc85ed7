"""The searches for suspects, ``exhaustive`` and ``bisect`` (docs/concepts/strategies.md)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from trt_bisect.driver.search import Findings, Loss, LossSoFar, Question, Search, Step

FULL: Final = "full"
ADAPTIVE, CULPRITS = "adaptive", "culprits"
MOST_IN_FULL = 400  # networks with more quantizable layers have the adaptive curve by default


STRIDE = 16  # the number of quantizable layers in a stride of the adaptive curve
# A stride's boundaries are all measured if its loss rises by this share of a suspect's smallest rise. On six published
# networks no suspect was missed with this share and ``STRIDE`` ("Studies" in ``docs/benchmarks.md``).
SHARE = 0.25


def exhaustive(question: Question, watched: list[Step] | None = None, stride: int = 1) -> Search[Findings]:
    """Measures the plan with layers 0 to k in INT8 for every quantizable layer k; with a ``stride`` only for the last
    of each ``stride`` layers, and for every layer of strides in which the loss rises.

    No layer is a suspect if full INT8 meets the threshold. A layer whose plan cannot be measured stays in high
    precision, as a suspect does.

    Args:
        watched: a list that receives each step when it is decided.
    """
    full = yield question.all_but(())
    judged = not question.meets(full)
    so_far = LossSoFar.at((yield question.prefix(-1)))
    steps: list[Step] = [] if watched is None else watched
    suspects: list[int] = []
    set_aside: list[int] = []
    done = refined = 0
    while done < len(question.quantizable):
        layers = question.quantizable[done : done + (1 if done < refined else stride)]
        plan = question.prefix(layers[-1], suspects + set_aside)
        loss = yield plan
        step = so_far.step(layers, loss, plan)
        if len(layers) > 1 and (loss is None or (judged and step.rise >= SHARE * question.step)):
            refined = done + len(layers)
            continue
        step = replace(step, suspect=judged and step.rise >= question.step)
        steps.append(step)
        done += len(layers)
        if loss is None:
            set_aside += layers
        elif step.suspect:
            suspects += layers
        else:
            so_far = so_far.then(loss)
    return Findings(full, tuple(steps), tuple(suspects), tuple(set_aside))


def bisect(question: Question, watched: list[Step] | None = None, blamed: Sequence[int] = ()) -> Search[Findings]:
    """Finds the suspects, and the layers whose plans cannot be measured, one after another from the first layer on.

    Args:
        watched: a list that receives each step when it is decided.
        blamed: layers that lose much by other measurements, ascending; the points of the curve before and after each of
            them are measured first.
    """
    settled: list[Step] = [] if watched is None else watched
    full = yield question.all_but(())
    last = len(question.quantizable) - 1
    if full is not None and question.meets(full):
        if question.quantizable:
            settled.append(Step(question.quantizable, 0.0, full, question.all_but(())))
        return Findings(full, tuple(settled), (), ())
    low, so_far = -1, LossSoFar.at((yield question.prefix(-1)))
    suspects: list[int] = []
    set_aside: list[int] = []
    while low < last:
        noted: list[Step] = []
        kept = tuple(suspects + set_aside)
        stops = _both_sides(question, blamed, low) if blamed else _gallop(low, last, len(kept))
        next_step = yield from _next_step(question, low, so_far, kept, noted, stops)
        if next_step is None:
            settled += noted
            break
        settled += [step for step in noted if step.layers[-1] < next_step.layers[0]] + [next_step]
        if next_step.suspect and len(next_step.layers) == 1:
            suspects += next_step.layers
        else:
            set_aside += next_step.layers
        low, so_far = question.quantizable.index(next_step.layers[-1]), LossSoFar(next_step.before, next_step.highest)
    return Findings(full, tuple(settled), tuple(suspects), tuple(set_aside))


def _both_sides(question: Question, blamed: Sequence[int], low: int) -> Iterator[int]:
    places = [question.quantizable.index(layer) for layer in blamed]
    sides = sorted({side for position in places for side in (position - 1, position)})
    return (side for side in sides if low < side < len(question.quantizable) - 1)


def _gallop(low: int, last: int, suspects: int) -> Iterator[int]:
    stride = math.ceil((low + 1) / suspects) if suspects > 1 else last + 1
    position = low + stride
    while position < last:
        yield position
        stride *= 2
        position += stride


def _next_step(
    question: Question, low: int, so_far: LossSoFar, kept: tuple[int, ...], noted: list[Step], stops: Iterator[int]
) -> Search[Step | None]:
    for position in (*stops, len(question.quantizable) - 1):
        loss = yield question.prefix(question.quantizable[position], kept)
        step = yield from _leftmost(question, low, position, so_far, loss, kept, noted)
        if step is not None or loss is None:
            return step
        low, so_far = position, so_far.then(loss)
    return None


def _leftmost(
    question: Question, low: int, high: int, so_far: LossSoFar, after: Loss, kept: tuple[int, ...], noted: list[Step]
) -> Search[Step | None]:
    """Returns the first step between the points ``low`` (-1: before all layers) and ``high`` of the curve that is a
    suspect or cannot be measured; None without one. ``after`` is the loss at ``high``.
    """
    layers = question.quantizable[low + 1 : high + 1]
    step_of_all = so_far.step(layers, after, question.prefix(layers[-1], kept))
    if step_of_all.rise < question.step:
        noted.append(step_of_all)
        return None
    middle = yield from _between(question, low, high, after, kept)
    if middle is None:
        return replace(step_of_all, suspect=after is not None)
    position, loss = middle
    step = yield from _leftmost(question, low, position, so_far, loss, kept, noted)
    if step is not None or loss is None:
        return step
    return (yield from _leftmost(question, position, high, so_far.then(loss), after, kept, noted))


def _between(
    question: Question, low: int, high: int, after: Loss, kept: tuple[int, ...]
) -> Search[tuple[int, Loss] | None]:
    """Returns the point of the curve nearest to the middle between ``low`` and ``high`` that can be measured, and its
    loss; None without one.
    """
    for position in sorted(range(low + 1, high), key=lambda boundary: abs(boundary - (low + high) / 2)):
        loss = yield question.prefix(question.quantizable[position], kept)
        if loss is not None or after is None:
            return position, loss
    return None


def usual_curve(layers: int) -> str:
    """Returns the default of ``--curve``, ``full`` or ``adaptive``, for a network of this many quantizable layers."""
    return FULL if layers <= MOST_IN_FULL else ADAPTIVE


def search_for(curve: str, question: Question, watched: list[Step] | None = None) -> Search[Findings]:
    """Returns the search that measures a curve.

    Args:
        curve: ``full`` (after every layer), ``adaptive`` (after every few layers, then after each where the loss rises)
            or ``culprits`` (suspects only, by bisection).
        watched: a list that receives each step when it is decided.
    """
    if curve == ADAPTIVE:
        return exhaustive(question, watched, STRIDE)
    return (exhaustive if curve == FULL else bisect)(question, watched)
