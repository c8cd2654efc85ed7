"""Findings on abnormal tensors and weights, and the evidence against a culprit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from trt_bisect.analyzer.compared import Compared
from trt_bisect.analyzer.origins import ACTIVATION, INPUT, RESULT, WEIGHT, Origin
from trt_bisect.analyzer.structure.findings import KINDS, Finding
from trt_bisect.analyzer.tensors import NEAR_ZERO, LoudChannel, RoundingFigures
from trt_bisect.data.statistics import Spread
from trt_bisect.model.layers import Layer
from trt_bisect.support.table import INDEX, NAME, Column
from trt_bisect.support.text import counted, listed, number, percent

LOW_SIMILARITY = "low similarity"
NOT_FINITE = "not finite"
STARVED = "starved range"
SATURATION = "saturation"
NOT_NORMALISED = "input not normalised"
ONE_CHANNEL = "one channel"
RESULT_QUANTIZED = "output quantized"
OVERFLOW, UNDERFLOW = "overflow", "underflow"

LEAST_COSINE = 0.99
STARVED_SHARE = 0.5
CLIPPED_SHARE = 0.01
_NOISY, _AUDIBLE = 20.0, 30.0
_MOST_OF_THE_NOISE = 0.5
LOUD = 20.0
_LARGE_INPUT = 16.0
_OFFSET = 3.0
_FAINT_INPUT = 0.01
_Reason = tuple[str, str, "float | None"]  # The reason, the evidence without a full stop, and the figure of an Advice.


@dataclass(frozen=True)
class Advice:
    """A finding on a tensor or a weight.

    Attributes:
        index: the place in execution order of the first of ``layers``; None if unknown.
        layers: the layers that lose accuracy: the layer that makes the tensor for ``low similarity``, ``not finite``
            and ``output quantized``, else the INT8 layers that read it.
        kind: ``input``, ``activation``, ``output`` or ``weight``.
        reason: the kind of the finding, such as ``starved range`` or ``overflow``.
        words: the evidence, a sentence.
        figure: for ``starved range`` the share of values in few levels, for ``saturation`` the clipped share, for ``one
            channel`` the channel's magnitude over the median of the others'; else None.
    """

    index: Annotated[int | None, Column("#", "Place in execution order", INDEX, rank=1)]
    layers: Annotated[
        tuple[str, ...], Column("Layers", "Layers that lose accuracy here", NAME, rank=0, empty="the network")
    ]
    tensor: Annotated[str, Column("Tensor")]
    kind: Annotated[str, Column("Kind")]
    reason: Annotated[str, Column("Reason", rank=0)]
    words: Annotated[str, Column("Evidence", rank=2)]
    figure: float | None = None


def advise(
    tensors: Iterable[Compared],
    weights: Iterable[Compared] = (),
    least_cosine: float = LEAST_COSINE,
    low: str = "INT8",
    sides: tuple[str, str] | None = None,
) -> tuple[Advice, ...]:
    """Returns the findings on all tensors and weights, in execution order.

    Args:
        weights: comparisons of whole weights, not of channels.
        least_cosine: the cosine below which a tensor is a finding.
        low: the name of the low precision in texts.
        sides: the names of the reference run and the low run in texts; default: FP32 and ``low``.
    """
    tensors, weights = tuple(tensors), tuple(weights)
    sides = sides or ("FP32", low)
    index_of = {tensor.origin.layer: tensor.origin.index for tensor in (*weights, *tensors)}
    cosines = {tensor.origin.tensor: tensor.figures.cosine for tensor in tensors}
    advice = []
    for tensor in (*tensors, *weights):
        origin, maker = tensor.origin, (tensor.origin.layer,) if tensor.origin.layer else ()
        for reason, words, figure in _findings(tensor, cosines, least_cosine, sides):
            layers = maker if reason in (LOW_SIMILARITY, NOT_FINITE, RESULT_QUANTIZED) else origin.readers or maker
            index = index_of.get(layers[0]) if layers else None
            pairs = f"; {tensor.note}" if origin.beside and reason in (STARVED, SATURATION) else ""
            words = f"{words}{_where(origin, reason, low)}{pairs}."
            advice.append(Advice(index, layers, origin.tensor, origin.kind, reason, words, figure))
    return tuple(sorted(advice, key=lambda advice: -1 if advice.index is None else advice.index))


def in_short(reason: str, found: Sequence[Advice], low: str, calibrator: str = "calibration") -> str:
    """Returns a clause for a finding's ``reason``, such as "calibration clips 2% of the weights"; the reason itself if
    there is no clause for it.

    ``found`` are the findings of this reason, whose figures the clause gives. ``low`` and ``calibrator`` are names in
    it.
    """
    sides = " and ".join(sorted(set(map(_side, found))))
    text = number if reason == ONE_CHANNEL else percent
    values = [advice.figure for advice in found if advice.figure is not None]
    figures = " to ".join(dict.fromkeys(text(pick(values)) for pick in (min, max) if values))
    return {
        SATURATION: f"{calibrator} clips {figures} of the {sides}",
        STARVED: f"a few large values set the range, so {figures} of the {sides} values fall on few {low} levels",
        ONE_CHANNEL: f"one channel of the {sides} reaches {figures} times the others",
        OVERFLOW: f"values are too large for {low} and become infinite",
        UNDERFLOW: f"values are too small for {low} and become zero",
        NOT_FINITE: f"{low} produces NaN or infinite values",
        NOT_NORMALISED: "the input may not be scaled like the data that the network was trained on",
        RESULT_QUANTIZED: "an output of the network is rounded",
    }.get(reason, reason)


def _where(origin: Origin, reason: str, low: str) -> str:
    if reason not in (STARVED, SATURATION, ONE_CHANNEL):
        return ""
    if origin.kind == WEIGHT:
        return f"; it is a weight of '{origin.layer}'"
    if not origin.readers:
        return ""
    maker = f"made by '{origin.layer}'" if origin.layer else "an input of the network"
    return f"; it is {maker}, and read in {low} by {listed(origin.readers, 4)}"


def _findings(tensor: Compared, cosines: dict[str, float], least: float, sides: Sequence[str]) -> Iterator[_Reason]:
    yield from _difference(tensor, cosines, least, sides)
    if tensor.rounding is not None:
        yield from _range(tensor, tensor.rounding)
    yield from _channels(tensor)
    if tensor.origin.kind == INPUT and tensor.origin.quantizers:
        yield from _input(tensor.fp32)
    if tensor.origin.rounded_as_result:
        yield (
            RESULT_QUANTIZED,
            f"it is an output of the network, and yet rounded to {tensor.origin.quantized_dtype} in steps of "
            f"{number(tensor.scale)}: this makes no layer faster",
            None,
        )


def _difference(tensor: Compared, cosines: dict[str, float], least: float, sides: Sequence[str]) -> Iterator[_Reason]:
    high, low = sides
    more = tensor.int8.nonfinite - tensor.fp32.nonfinite
    if more > 0:
        yield NOT_FINITE, f"{more} values are NaN or infinite in {low}, and finite in {high}", None
    cosine = tensor.figures.cosine
    worst = cosine if tensor.worst_cosine is None else tensor.worst_cosine
    if not min(cosine, worst) < least:
        return
    words = f"the cosine similarity of {high} and {low} is {percent(cosine)}, SQNR {tensor.figures.sqnr:.1f} dB"
    if cosine >= least:
        words += f"; on sample {tensor.worst_sample} alone the cosine is {percent(worst)}"
    before = [cosines[name] for name in tensor.origin.inputs if name in cosines]
    if before:
        words += f"; the cosine of the layer's inputs is {percent(min(before))}"
    yield LOW_SIMILARITY, words, None


def _range(tensor: Compared, rounding: RoundingFigures) -> Iterator[_Reason]:
    largest = max(abs(tensor.fp32.min), abs(tensor.fp32.max))
    step, reach = number(tensor.scale), number(tensor.origin.reach)
    ends = f"the step is {step}, the range ends at {reach}, and the largest value is {number(largest)}"
    if rounding.near_zero >= STARVED_SHARE:
        yield (
            STARVED,
            f"a few large values set its range: {percent(rounding.near_zero)} of the nonzero values use "
            f"{2 * NEAR_ZERO + 1} of the {rounding.levels} levels, {percent(rounding.to_zero)} become zero, and 90% "
            f"use at most {counted(rounding.levels_90, 'level')}; {ends}",
            rounding.near_zero,
        )
    deep = rounding.sqnr < _NOISY and rounding.clipped_noise > _MOST_OF_THE_NOISE
    if (rounding.clipped >= CLIPPED_SHARE and rounding.sqnr < _AUDIBLE) or deep:
        yield (
            SATURATION,
            f"calibration clips {percent(rounding.clipped)} of its values, and the clipped values cause "
            f"{percent(rounding.clipped_noise)} of the rounding noise; {ends}",
            rounding.clipped,
        )


def _channels(tensor: Compared) -> Iterator[_Reason]:
    origin, loud, loud_input = tensor.origin, tensor.loud, tensor.loud_input
    if loud and loud.times >= LOUD and origin.kind == WEIGHT:
        scales = "the weight is not rounded, but the layer's output has this channel too"
        if any(quantizer.axis is not None for quantizer in origin.quantizers):
            scales = "each channel of the weight has its own scale, but the layer's output has this channel too"
        elif origin.quantizers:
            scales = "all channels share one scale"
        yield ONE_CHANNEL, f"{_loud('output channel', loud)}; {scales}", loud.times
    elif loud and loud.times >= LOUD and origin.quantizers:
        assert origin.channel_axis is not None
        axis = origin.channel_axis % len(tensor.shape)
        what = _loud("channel" if axis == 1 else f"on axis {axis}, index", loud)
        yield ONE_CHANNEL, f"{what}, and the whole tensor has one scale", loud.times
    if loud_input and loud_input.times >= LOUD and origin.kind == WEIGHT and origin.quantizers:
        words = f"{_loud('input channel', loud_input)}, and all channels share one scale"
        yield ONE_CHANNEL, words, loud_input.times


def _loud(what: str, loud: LoudChannel) -> str:
    return f"{what} {loud.channel} reaches {number(loud.peak)}, {number(loud.times)} times the median of the others"


def _input(spread: Spread) -> Iterator[_Reason]:
    least, most, mean, std = (number(value, 4) for value in (spread.min, spread.max, spread.mean, spread.std))
    values = f"from {least} to {most}, mean {mean}, standard deviation {std}"
    largest = max(abs(spread.min), abs(spread.max))
    if largest > _LARGE_INPUT:
        what = "its values are large, like pixels from 0 to 255"
    elif spread.std and abs(spread.mean) > _OFFSET * spread.std:
        what = "its values are far from zero, almost all on one side"
    elif 0 < spread.std < _FAINT_INPUT:
        what = "its values differ very little, as if divided twice"
    else:
        return
    yield NOT_NORMALISED, f"{what}: {values}; check that the network's own preprocessing was applied to the data", None


BOTH = "both"

_ONE_SIDED = 0.8  # Weights or activations with this share of the loss are to blame alone.
_LEAST_SHARE = 0.1  # A layer that alone loses less than this share of the budget has no side to blame.
# The possible causes on each side, the most important first.
_CAUSES = {
    ACTIVATION: (OVERFLOW, UNDERFLOW, NOT_FINITE, NOT_NORMALISED, RESULT_QUANTIZED, STARVED, SATURATION, ONE_CHANNEL),
    WEIGHT: (OVERFLOW, UNDERFLOW, ONE_CHANNEL, STARVED, SATURATION),
}
_MOST_CAUSES = 3


@dataclass(frozen=True)
class LossAlone:
    """Losses of the final output, by which one layer is blamed; None where not measured.

    Attributes:
        both: the loss with only this layer in INT8.
        weight: the loss with only the layer's weights rounded.
        activation: the loss with only the layer's activations rounded.
        alone: the part of full INT8's loss that is gone with only this layer in high precision.
    """

    both: float | None = None
    weight: float | None = None
    activation: float | None = None
    alone: float | None = None


@dataclass(frozen=True)
class Evidence:
    """The evidence against a culprit.

    Attributes:
        findings: the findings on tensors and weights of all layers.
        checked: the structure check's findings on all layers.
        alone: the losses of the culprit alone; None if not measured.
        loss: the culprit's loss in its row of the report; None if not measured.
        budget: the loss that the threshold allows.
    """

    layer: Layer
    findings: Sequence[Advice]
    checked: Sequence[Finding]
    alone: LossAlone | None
    loss: float | None
    budget: float
    low: str

    @cached_property
    def blame(self) -> str | None:
        """The part of the layer to blame: ``weight``, ``activation`` or ``both``. None if not measured, or if the layer
        alone in INT8 loses less than a tenth of what the threshold allows.
        """
        alone = self.alone
        if alone is None or alone.both is None or alone.both < _LEAST_SHARE * self.budget:
            return None
        if not any(rounding.is_weight for rounding in self.layer.roundings):
            return ACTIVATION
        if all(rounding.is_weight for rounding in self.layer.roundings):
            return WEIGHT
        if alone.weight is None or alone.activation is None:
            return None
        share = alone.weight / max(alone.weight + alone.activation, 1e-300)
        if share >= _ONE_SIDED:
            return WEIGHT
        return ACTIVATION if share <= 1.0 - _ONE_SIDED else BOTH

    @cached_property
    def causes(self) -> list[Advice]:
        """The layer's findings that can be causes, the most important first. If ``blame`` is ``weight`` or
        ``activation``, only those on that side.
        """
        sides = (self.blame,) if self.blame in (WEIGHT, ACTIVATION) else (ACTIVATION, WEIGHT)
        ranks = [(side, reason) for side in sides for reason in _CAUSES[side]]
        findings = [advice for advice in self.findings if self.layer.name in advice.layers]
        causes = [advice for advice in findings if (_side(advice), advice.reason) in ranks]
        return sorted(causes, key=lambda advice: ranks.index((_side(advice), advice.reason)))

    @cached_property
    def structure(self) -> list[Finding]:
        """The structure check's findings on the layer, of kinds that lose accuracy."""
        findings = [finding for finding in self.checked if self.layer.name in finding.layers]
        return [finding for finding in findings if KINDS[finding.kind].loses_accuracy]

    @property
    def reasons(self) -> tuple[str, ...]:
        """The kinds of the layer's findings, each once: those of ``structure`` that break values, ``causes``, the
        others of ``structure``, whose loss is not measured, and ``low similarity``.
        """
        broken = [finding.kind for finding in self.structure if KINDS[finding.kind].breaks_values]
        others = [finding.kind for finding in self.structure]
        of_layer = [advice.reason for advice in self.findings if self.layer.name in advice.layers]
        faint = [reason for reason in of_layer if reason == LOW_SIMILARITY]
        causes = [advice.reason for advice in self.causes]
        return tuple(dict.fromkeys([*broken, *causes, *others, *faint]))

    def has(self, reason: str, side: str | None = None) -> bool:
        """Returns true if ``reason`` is a cause on ``side``: ``weight``, ``activation`` or, if None, either."""
        return any(advice.reason == reason and side in (None, _side(advice)) for advice in self.causes)

    def paragraph(self) -> str:
        """Returns the evidence against the culprit as sentences."""
        name = f"'{self.layer.name}' ({self.layer.op_type})"
        cost = f"{name} loses more than the threshold allows."
        if self.loss is not None:
            cost = f"{name} loses {self.loss:.3g}, and the threshold allows {self.budget:.3g}."
        sentences, named = [cost, *self._alone()], set()
        for advice in self.causes[:_MOST_CAUSES]:
            if advice.tensor in named:
                sentences.append(f"Also, {in_short(advice.reason, [advice], self.low)}.")
                continue
            title = {WEIGHT: "Weight", INPUT: "Input", RESULT: "Output"}.get(advice.kind, "Tensor")
            sentences.append(f"{title} '{advice.tensor}': {advice.words}")
            named.add(advice.tensor)
        if not self.causes and not self.structure:
            sentences.append(
                "No single cause found in its rounded values: no outlier, no clipping, no range that few values set."
            )
        sentences += [f"{finding.what[0].upper()}{finding.what[1:]}. {finding.why}" for finding in self.structure]
        return " ".join(sentences)

    def _alone(self) -> list[str]:
        if self.alone is None or self.alone.both is None:
            return []
        text = f"Alone in {self.low} it loses {self.alone.both:.3g}"
        if self.alone.weight is not None and self.alone.activation is not None:
            text += f", its weight {self.alone.weight:.3g}, its activation {self.alone.activation:.3g}"
        if self.blame is None and self.alone.both >= _LEAST_SHARE * self.budget:
            return [f"{text}."]
        if self.blame is None:
            return [f"{text}, which is little: the layer is a culprit only together with the layers before it."]
        return [f"{text}: {'both are' if self.blame == BOTH else f'the {self.blame} is'} to blame."]


def _side(advice: Advice) -> str:
    return WEIGHT if advice.kind == WEIGHT else ACTIVATION
