"""The evidence on a culprit: its weight or its activation is to blame, and the findings on the tensors it rounds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trt_bisect.analyzer.advisor import (
    LOW_SIMILARITY,
    NOT_FINITE,
    NOT_NORMALISED,
    ONE_CHANNEL,
    OVERFLOW,
    RESULT_QUANTIZED,
    SATURATION,
    STARVED,
    UNDERFLOW,
    Advice,
    in_short,
)
from trt_bisect.analyzer.origins import INPUT, RESULT, WEIGHT
from trt_bisect.analyzer.structure.findings import ERROR, KINDS, Finding
from trt_bisect.model.layers import Layer

ACTIVATION, BOTH = "activation", "both"

_ONE_SIDED = 0.8
"""A side with at least this share of the loss is to blame alone."""
_LEAST_SHARE = 0.1
"""A layer that loses less than this share of the budget when it alone is in INT8 has no side to blame."""
_CAUSES = {
    ACTIVATION: (OVERFLOW, UNDERFLOW, NOT_FINITE, NOT_NORMALISED, RESULT_QUANTIZED, STARVED, SATURATION, ONE_CHANNEL),
    WEIGHT: (OVERFLOW, UNDERFLOW, ONE_CHANNEL, STARVED, SATURATION),
}
"""The reasons that can be the cause on each side, the most important first."""
_MOST_CAUSES = 3


@dataclass(frozen=True)
class LossAlone:
    """The losses with one layer alone in INT8, in units of the metric's loss; None where not measured.

    Attributes:
        both: with the layer's weights and activations rounded.
        weight: with its weights alone rounded.
        activation: with its activations alone rounded.
        gain: the loss of full INT8, less its loss if this layer alone stays high.
    """

    both: float | None = None
    weight: float | None = None
    activation: float | None = None
    gain: float | None = None


@dataclass(frozen=True)
class Evidence:
    """The evidence against a culprit.

    Attributes:
        layer: the culprit.
        blame: ``weight``, ``activation`` or ``both``; None if not measured, or if the layer alone loses little.
        causes: the advisor's findings on the tensors that the layer rounds, the most important first.
        symptoms: the advisor's findings on the layer's outputs.
        structure: the findings of the structure check on the layer.
        alone: its losses alone; None if not measured.
        drop: the loss that it added in the run; None if not known.
        budget: the loss that the threshold allows.
        low: the name of the low precision in texts.
    """

    layer: Layer
    blame: str | None
    causes: tuple[Advice, ...]
    symptoms: tuple[Advice, ...]
    structure: tuple[Finding, ...]
    alone: LossAlone | None
    drop: float | None
    budget: float
    low: str = "INT8"

    @property
    def reasons(self) -> tuple[str, ...]:
        """The structure check's errors, then the causes, then its other findings, then the symptoms; each one once."""
        errors = [finding.kind for finding in self.structure if finding.severity == ERROR]
        others = [finding.kind for finding in self.structure if finding.severity != ERROR]
        causes, symptoms = ([advice.reason for advice in found] for found in (self.causes, self.symptoms))
        return tuple(dict.fromkeys([*errors, *causes, *others, *symptoms]))

    def has(self, reason: str, side: str | None = None) -> bool:
        """Returns true if ``reason`` is among the causes; with ``side``, ``activation`` or ``weight``, on that side."""
        return any(advice.reason == reason and side in (None, _side(advice)) for advice in self.causes)

    def paragraph(self) -> str:
        """Returns the evidence in words."""
        sentences, named = [self._cost(), *self._alone()], set()
        for advice in self.causes[:_MOST_CAUSES]:
            again = f"And {in_short(advice.reason, [advice], self.low)}."
            title = {WEIGHT: "Weight", INPUT: "Input", RESULT: "Output"}.get(advice.kind, "Tensor")
            sentences.append(again if advice.tensor in named else f"{title} '{advice.tensor}': {advice.words}")
            named.add(advice.tensor)
        if not self.causes and not self.structure:
            sentences.append("The values that it rounds are ordinary: no outlier, no clipping, no starved range.")
        sentences += [f"{finding.what[0].upper()}{finding.what[1:]}. {finding.why}" for finding in self.structure]
        return " ".join(sentences)

    def _cost(self) -> str:
        name = f"'{self.layer.name}' ({self.layer.op_type})"
        if self.drop is None:
            return f"{name} loses more than the threshold allows."
        return f"{name} loses {self.drop:.3g}; the threshold allows {self.budget:.3g}."

    def _alone(self) -> list[str]:
        if self.alone is None or self.alone.both is None:
            return []
        text = f"Alone in {self.low} it loses {self.alone.both:.3g}"
        if self.alone.weight is not None and self.alone.activation is not None:
            text += f", its weight {self.alone.weight:.3g}, its activation {self.alone.activation:.3g}"
        if self.blame is None and self.alone.both >= _LEAST_SHARE * self.budget:
            return [f"{text}."]
        if self.blame is None:
            return [f"{text}. That is little: it is a culprit only together with the layers before it."]
        return [f"{text}: {'both are' if self.blame == BOTH else f'the {self.blame} is'} to blame."]


def evidence_on(
    layer: Layer,
    findings: Iterable[Advice],
    structure: Iterable[Finding],
    alone: LossAlone | None,
    drop: float | None,
    budget: float,
    low: str = "INT8",
) -> Evidence:
    """Collects the evidence on a culprit.

    Args:
        layer: the culprit.
        findings: the advisor's, on the whole network.
        structure: the structure check's, on the whole network.
        alone: the layer's losses alone, if they were measured.
        drop: the loss that it added.
        budget: the loss that the threshold allows.
        low: the name of the low precision in texts.
    """
    blame = _blame(layer, alone, budget)
    own = [advice for advice in findings if layer.name in advice.layers]
    return Evidence(
        layer=layer,
        blame=blame,
        causes=tuple(_ranked_causes(own, blame)),
        symptoms=tuple(advice for advice in own if advice.reason == LOW_SIMILARITY),
        structure=tuple(each for each in structure if KINDS[each.kind].loses_accuracy and layer.name in each.layers),
        alone=alone,
        drop=drop,
        budget=budget,
        low=low,
    )


def _ranked_causes(findings: Iterable[Advice], blame: str | None) -> list[Advice]:
    """The findings that can be a cause on the side to blame, the most important first; on both sides by default."""
    sides = (blame,) if blame in (WEIGHT, ACTIVATION) else (ACTIVATION, WEIGHT)
    ranks = [(side, reason) for side in sides for reason in _CAUSES[side]]
    causes = [advice for advice in findings if (_side(advice), advice.reason) in ranks]
    return sorted(causes, key=lambda advice: ranks.index((_side(advice), advice.reason)))


def _blame(layer: Layer, alone: LossAlone | None, budget: float) -> str | None:
    """The side with most of the loss; None if the layer alone loses less than ``_LEAST_SHARE`` of the budget."""
    if alone is None or alone.both is None or alone.both < _LEAST_SHARE * budget:
        return None
    if not any(rounding.is_weight for rounding in layer.roundings):
        return ACTIVATION
    if all(rounding.is_weight for rounding in layer.roundings):
        return WEIGHT
    if alone.weight is None or alone.activation is None:
        return None
    share = alone.weight / max(alone.weight + alone.activation, 1e-300)
    return WEIGHT if share >= _ONE_SIDED else ACTIVATION if share <= 1.0 - _ONE_SIDED else BOTH


def _side(advice: Advice) -> str:
    return WEIGHT if advice.kind == WEIGHT else ACTIVATION
