"""Bisection: the leftmost boundary with a culprit's step is found in about log2 N plans, kept high, and so on.

The similarity need not be monotone in k: every boundary that is reported was measured on both sides. Where it is
monotone, the culprits are those of the exhaustive search.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from trt_bisect.driver.culprits.search import Findings, Loss, Question, Search, Standing, Step


@dataclass(frozen=True)
class _Span:
    """Two measured boundaries, as positions among the quantizable layers; -1 is before the first.

    Attributes:
        standing: the losses of the plans up to ``low``.
        after: the loss at ``high``.
    """

    low: int
    high: int
    standing: Standing
    after: Loss


def bisect(question: Question, watched: list[Step] | None = None, suspects: Sequence[int] = ()) -> Search[Findings]:
    """Finds the culprits, and the layers that cannot be built, one after another from the left.

    Args:
        question: what is asked.
        watched: the steps are added to it as they are settled.
        suspects: layers that another way to measure has named, ascending. Both sides of each are measured before
            anything is halved: two plans each where that way was right. They decide nothing.
    """
    settled: list[Step] = [] if watched is None else watched
    full = yield question.all_but(())
    last = len(question.quantizable) - 1
    if full is not None and question.meets(full):
        if question.quantizable:
            settled.append(Step(question.quantizable, 0.0, full, question.all_but(())))
        return Findings(full, tuple(settled), (), ())
    low, standing = -1, Standing.at((yield question.prefix(-1)))
    culprits: list[int] = []
    set_aside: list[int] = []
    while low < last:
        noted: list[Step] = []
        kept = tuple(culprits + set_aside)
        stops = _both_sides(question, suspects, low) if suspects else _gallop(low, last, len(kept))
        found = yield from _next_step(question, low, standing, kept, noted, stops)
        if found is None:
            settled += noted
            break
        settled += [step for step in noted if step.layers[-1] < found.layers[0]] + [found]
        if found.culprit and len(found.layers) == 1:
            culprits += found.layers
        else:
            set_aside += found.layers
        low, standing = question.quantizable.index(found.layers[-1]), Standing(found.before, found.highest)
    return Findings(full, tuple(settled), tuple(culprits), tuple(set_aside))


def _both_sides(question: Question, suspects: Sequence[int], low: int) -> Iterator[int]:
    """The boundaries on both sides of each suspect, as far as they lie between ``low`` and the last."""
    places = [question.quantizable.index(suspect) for suspect in suspects]
    sides = sorted({side for place in places for side in (place - 1, place)})
    return (side for side in sides if low < side < len(question.quantizable) - 1)


def _gallop(low: int, last: int, known: int) -> Iterator[int]:
    """Boundaries in strides that grow, the first as long as the mean distance of the culprits ``known`` so far.

    Where culprits stand close, halving all that is left for each of them would cost more than going through it.
    """
    stride = math.ceil((low + 1) / known) if known > 1 else last + 1
    position = low + stride
    while position < last:
        yield position
        stride *= 2
        position += stride


def _next_step(
    question: Question,
    low: int,
    standing: Standing,
    kept: tuple[int, ...],
    noted: list[Step],
    stops: Iterator[int],
) -> Search[Step | None]:
    """The first boundary after ``low`` that costs a culprit's step or cannot be measured; ``stops`` are tried first."""
    for position in stops:
        loss = yield question.prefix(question.quantizable[position], kept)
        found = yield from _leftmost(question, _Span(low, position, standing, loss), kept, noted)
        if found is not None or loss is None:
            return found
        low, standing = position, standing.then(loss)
    last = len(question.quantizable) - 1
    after = yield question.all_but(kept)
    return (yield from _leftmost(question, _Span(low, last, standing, after), kept, noted))


def _leftmost(question: Question, span: _Span, kept: tuple[int, ...], noted: list[Step]) -> Search[Step | None]:
    """The first boundary in ``span`` that costs a culprit's step or cannot be measured; the innocent ones are noted."""
    whole = _step(question, span, kept)
    if whole.rise < question.step:
        noted.append(whole)
        return None
    middle = yield from _between(question, span, kept)
    if middle is None:
        return replace(whole, culprit=span.after is not None)
    position, loss = middle
    found = yield from _leftmost(question, replace(span, high=position, after=loss), kept, noted)
    if found is not None or loss is None:
        return found
    right = replace(span, low=position, standing=span.standing.then(loss))
    return (yield from _leftmost(question, right, kept, noted))


def _between(question: Question, span: _Span, kept: tuple[int, ...]) -> Search[tuple[int, Loss] | None]:
    """A boundary inside ``span``, the nearest to its middle, with its loss.

    Where the span's end could be measured, boundaries that cannot be are gone around. Where it could not, the search is
    for the first that cannot.
    """
    middle = (span.low + span.high) / 2
    for position in sorted(range(span.low + 1, span.high), key=lambda place: abs(place - middle)):
        loss = yield question.prefix(question.quantizable[position], kept)
        if loss is not None or span.after is None:
            return position, loss
    return None


def _step(question: Question, span: _Span, kept: tuple[int, ...]) -> Step:
    layers = question.quantizable[span.low + 1 : span.high + 1]
    return span.standing.step(layers, span.after, question.prefix(layers[-1], kept))
