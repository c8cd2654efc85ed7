"""Which layers are abnormal, and why, in words. Tensors inside the network explain; only final outputs convict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from trt_bisect.analyzer.compared import Compared
from trt_bisect.analyzer.origins import INPUT, WEIGHT
from trt_bisect.analyzer.tensors import NEAR_ZERO, LoudChannel

LOW_SIMILARITY = "low similarity"
NOT_FINITE = "not finite"
STARVED = "starved range"
SATURATION = "saturation"
NOT_NORMALISED = "input not normalised"
ONE_CHANNEL = "one channel"
RESULT_QUANTIZED = "output quantized"
REASONS = (NOT_FINITE, LOW_SIMILARITY, STARVED, SATURATION, NOT_NORMALISED, ONE_CHANNEL, RESULT_QUANTIZED)

LEAST_COSINE = 0.99
STARVED_SHARE = 0.5
CLIPPED_SHARE = 0.01
_NOISY, _AUDIBLE = 20.0, 30.0
_MOST_OF_THE_NOISE = 0.5
LOUD = 20.0
_LARGE_INPUT = 16.0
_OFFSET = 3.0
_FAINT_INPUT = 0.01


@dataclass(frozen=True)
class Advice:
    """One finding.

    Attributes:
        index: of the layer that makes the tensor, or reads it if it is a weight; None for an input.
        layers: those that suffer: the INT8 layers that read the tensor rounded, or the one whose own it is.
        reason: one of ``REASONS``.
        words: the evidence, a sentence.
    """

    index: int | None
    layers: tuple[str, ...]
    tensor: str
    kind: str
    reason: str
    words: str


def advise(
    tensors: Iterable[Compared], weights: Iterable[Compared] = (), least_cosine: float = LEAST_COSINE
) -> tuple[Advice, ...]:
    """The findings on all tensors and weights, in execution order.

    Args:
        tensors: in the order in which they are made.
        weights: whole ones.
        least_cosine: below it the similarity is low.
    """
    tensors = tuple(tensors)
    cosines = {each.origin.tensor: each.figures.cosine for each in tensors}
    found = [
        Advice(
            each.origin.index,
            _sufferers(each, reason),
            each.origin.tensor,
            each.origin.kind,
            reason,
            f"{words}{_where(each, reason)}",
        )
        for each in (*tensors, *weights)
        for reason, words in _findings(each, cosines, least_cosine)
    ]
    return tuple(sorted(found, key=lambda advice: -1 if advice.index is None else advice.index))


def _sufferers(each: Compared, reason: str) -> tuple[str, ...]:
    own = (each.origin.layer,) if each.origin.layer else ()
    return own if reason in (LOW_SIMILARITY, NOT_FINITE, RESULT_QUANTIZED) else each.origin.readers or own


def _where(each: Compared, reason: str) -> str:
    """Who makes the tensor and who reads it rounded, where that is not said otherwise."""
    origin = each.origin
    if origin.kind == WEIGHT or reason not in (STARVED, SATURATION, ONE_CHANNEL) or not origin.readers:
        return "."
    maker = f"made by '{origin.layer}'" if origin.layer else "an input of the network"
    return f"; it is {maker} and read in INT8 by {_listed(origin.readers)}."


def _findings(each: Compared, cosines: Mapping[str, float], least_cosine: float) -> Iterator[tuple[str, str]]:
    yield from _difference(each, cosines, least_cosine)
    yield from _range(each)
    yield from _channels(each)
    if each.origin.kind == INPUT and each.origin.quantizers:
        yield from _input(each)
    if each.origin.rounded_as_result:
        yield (
            RESULT_QUANTIZED,
            f"it is a result of the network, and rounded to {each.origin.quantized_dtype} in steps of "
            f"{each.scale:.3g} all the same: no layer after it gains speed by that",
        )


def _difference(each: Compared, cosines: Mapping[str, float], least_cosine: float) -> Iterator[tuple[str, str]]:
    more = each.int8.nonfinite - each.fp32.nonfinite
    if more > 0:
        yield NOT_FINITE, f"{more} values are NaN or infinite in INT8 and not in FP32"
    cosine = each.figures.cosine
    worst = cosine if each.worst_cosine is None else each.worst_cosine
    if not min(cosine, worst) < least_cosine:
        return
    words = f"the cosine similarity of FP32 and INT8 is {_percent(cosine)}, SQNR {each.figures.sqnr:.1f} dB"
    if cosine >= least_cosine:
        words += f"; on sample {each.worst_sample} alone the cosine is {_percent(worst)}"
    before = [cosines[name] for name in each.origin.inputs if name in cosines]
    if before:
        words += f"; that of what the layer reads is {_percent(min(before))}"
    yield LOW_SIMILARITY, words


def _range(each: Compared) -> Iterator[tuple[str, str]]:
    rounding = each.rounding
    if rounding is None:
        return
    largest = max(abs(each.fp32.min), abs(each.fp32.max))
    ends = f"a step is {each.scale:.3g}, the range ends at {each.origin.reach:.3g}, the largest value is {largest:.3g}"
    if rounding.near_zero >= STARVED_SHARE:
        yield (
            STARVED,
            f"its range starves most of its values: of those that are not zero {_percent(rounding.near_zero)} fall "
            f"into {2 * NEAR_ZERO + 1} of the {rounding.levels} levels, {_percent(rounding.to_zero)} become zero, and "
            f"90 % use no more than {rounding.levels_90}; {ends}",
        )
    deep = rounding.sqnr < _NOISY and rounding.clipped_noise > _MOST_OF_THE_NOISE
    if (rounding.clipped >= CLIPPED_SHARE and rounding.sqnr < _AUDIBLE) or deep:
        yield (
            SATURATION,
            f"calibration clips {_percent(rounding.clipped)} of its values, from which "
            f"{_percent(rounding.clipped_noise)} of the rounding's noise comes; {ends}",
        )


def _channels(each: Compared) -> Iterator[tuple[str, str]]:
    per_channel = any(quantizer.axis is not None for quantizer in each.origin.quantizers)
    if each.origin.kind != WEIGHT:
        if each.loud and each.loud.times >= LOUD and each.origin.quantizers:
            yield ONE_CHANNEL, f"{_loud('channel', each.loud)}, and all share one scale"
        return
    if each.loud and each.loud.times >= LOUD:
        scales = (
            "each has its own scale, so that the weight keeps its precision, but what the layer makes has this channel"
            if per_channel
            else "all share one scale"
            if each.origin.quantizers
            else "the weight is not rounded, but what the layer makes has this channel"
        )
        yield ONE_CHANNEL, f"{_loud('output channel', each.loud)}; {scales}"
    if each.loud_input and each.loud_input.times >= LOUD and each.origin.quantizers:
        yield ONE_CHANNEL, f"{_loud('input channel', each.loud_input)}, and shares its scale with them"


def _loud(what: str, loud: LoudChannel) -> str:
    return f"{what} {loud.channel} reaches {loud.peak:.3g}, {loud.times:.3g} times the median of the others"


def _input(each: Compared) -> Iterator[tuple[str, str]]:
    spread = each.fp32
    values = f"from {spread.min:.4g} to {spread.max:.4g}, mean {spread.mean:.4g}, standard deviation {spread.std:.4g}"
    largest = max(abs(spread.min), abs(spread.max))
    if largest > _LARGE_INPUT:
        what = "its values are large, as pixels from 0 to 255 are"
    elif spread.std and abs(spread.mean) > _OFFSET * spread.std:
        what = "its values lie off zero, all on one side"
    elif 0 < spread.std < _FAINT_INPUT:
        what = "its values hardly differ, as if they had been divided twice"
    else:
        return
    yield NOT_NORMALISED, f"{what}: {values}; check that the data went through the network's own preprocessing"


def _percent(share: float) -> str:
    return f"{100 * share:.4g} %"


def _listed(names: Sequence[str], most: int = 4) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
