"""The evidence on a culprit: its weight or its activation is to blame, and the findings on the tensors it rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

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
        findings: the advisor's, on the whole network.
        checked: the findings of the structure check on the whole network.
        alone: its losses alone; None if not measured.
        drop: the loss that it added in the run; None if not known.
        budget: the loss that the threshold allows.
        low: the name of the low precision in texts.
    """

    layer: Layer
    findings: Sequence[Advice]
    checked: Sequence[Finding]
    alone: LossAlone | None
    drop: float | None
    budget: float
    low: str

    @cached_property
    def blame(self) -> str | None:
        """The side with most of the loss: ``weight``, ``activation`` or ``both``.

        None if it was not measured, or if the layer alone loses less than ``_LEAST_SHARE`` of the budget.
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
        return WEIGHT if share >= _ONE_SIDED else ACTIVATION if share <= 1.0 - _ONE_SIDED else BOTH

    @cached_property
    def causes(self) -> list[Advice]:
        """The findings that can be a cause on the side to blame, by default on both; the most important first."""
        sides = (self.blame,) if self.blame in (WEIGHT, ACTIVATION) else (ACTIVATION, WEIGHT)
        ranks = [(side, reason) for side in sides for reason in _CAUSES[side]]
        own = [advice for advice in self.findings if self.layer.name in advice.layers]
        causes = [advice for advice in own if (_side(advice), advice.reason) in ranks]
        return sorted(causes, key=lambda advice: ranks.index((_side(advice), advice.reason)))

    @cached_property
    def structure(self) -> list[Finding]:
        """The findings of the structure check on the layer that can lose accuracy."""
        own = [finding for finding in self.checked if self.layer.name in finding.layers]
        return [finding for finding in own if KINDS[finding.kind].loses_accuracy]

    @property
    def reasons(self) -> tuple[str, ...]:
        """The structure check's errors, then the causes, then its other findings, then symptoms; each one once."""
        errors = [finding.kind for finding in self.structure if finding.severity == ERROR]
        others = [finding.kind for finding in self.structure if finding.severity != ERROR]
        faint = any(each.reason == LOW_SIMILARITY and self.layer.name in each.layers for each in self.findings)
        causes = [advice.reason for advice in self.causes]
        return tuple(dict.fromkeys([*errors, *causes, *others, *([LOW_SIMILARITY] if faint else [])]))

    def has(self, reason: str, side: str | None = None) -> bool:
        """Returns true if ``reason`` is among the causes; with ``side``, ``activation`` or ``weight``, on that side."""
        return any(advice.reason == reason and side in (None, _side(advice)) for advice in self.causes)

    def paragraph(self) -> str:
        """Returns the evidence in words."""
        name = f"'{self.layer.name}' ({self.layer.op_type})"
        cost = f"{name} loses more than the threshold allows."
        if self.drop is not None:
            cost = f"{name} loses {self.drop:.3g}, and the threshold allows {self.budget:.3g}."
        sentences, named = [cost, *self._alone()], set()
        for advice in self.causes[:_MOST_CAUSES]:
            again = f"Also, {in_short(advice.reason, [advice], self.low)}."
            title = {WEIGHT: "Weight", INPUT: "Input", RESULT: "Output"}.get(advice.kind, "Tensor")
            sentences.append(again if advice.tensor in named else f"{title} '{advice.tensor}': {advice.words}")
            named.add(advice.tensor)
        if not self.causes and not self.structure:
            sentences.append("Its rounded values are ordinary: no outlier, no clipping, no range that is too wide.")
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
