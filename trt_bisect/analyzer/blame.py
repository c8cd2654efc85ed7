"""Why a culprit is one: which side of it is to blame, and what was found on the tensors that it rounds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trt_bisect.analyzer.advisor import (
    LOW_SIMILARITY,
    NOT_FINITE,
    NOT_NORMALISED,
    ONE_CHANNEL,
    RESULT_QUANTIZED,
    SATURATION,
    STARVED,
    Advice,
)
from trt_bisect.analyzer.origins import WEIGHT
from trt_bisect.analyzer.structure.findings import ERROR, Finding
from trt_bisect.model.layers import Layer

ACTIVATION, BOTH = "activation", "both"
ACCURACY_KINDS = frozenset(
    (
        "asymmetric",
        "unsigned",
        "unsigned weight",
        "shared weight",
        "shared layer",
        "per-channel activation",
        "per-channel axis",
        "integer bias",
        "pair on a bias",
        "double pair",
        "pair before the activation",
        "scale not positive",
        "scale infinite",
        "scale denormal",
        "scale out of line",
        "half quantized",
    )
)
"""The kinds of structure findings that can cost a layer accuracy in INT8; the others cost speed."""

_ONE_SIDED = 0.8
_ALONE = 0.1
_TELLING = {
    ACTIVATION: (NOT_FINITE, NOT_NORMALISED, RESULT_QUANTIZED, STARVED, SATURATION, ONE_CHANNEL),
    WEIGHT: (ONE_CHANNEL, STARVED, SATURATION),
}
_MOST_CAUSES = 3


@dataclass(frozen=True)
class Alone:
    """The losses with one layer alone in INT8, in the metric's units; None where it was not measured.

    Attributes:
        both: its weights and activations rounded.
        gain: what full INT8 is rid of when the layer alone stays high.
    """

    both: float | None = None
    weight: float | None = None
    activation: float | None = None
    gain: float | None = None


@dataclass(frozen=True)
class Evidence:
    """What speaks against a culprit.

    Attributes:
        layer: the culprit.
        blame: ``weight``, ``activation`` or ``both``; None where it was not measured, or the layer alone costs little.
        causes: the advisor's findings on what the layer rounds, the most telling first.
        symptoms: those on what it makes.
        structure: what the structure check says of it.
        alone: its losses alone.
        drop: the loss that it added in the run, None where that is not known.
        budget: the loss that the threshold allows.
    """

    layer: Layer
    blame: str | None
    causes: tuple[Advice, ...]
    symptoms: tuple[Advice, ...]
    structure: tuple[Finding, ...]
    alone: Alone | None
    drop: float | None
    budget: float

    @property
    def reasons(self) -> tuple[str, ...]:
        """What TensorRT would refuse, then the causes, then what else the check found, then the symptoms."""
        refused = [finding.kind for finding in self.structure if finding.severity == ERROR]
        others = [finding.kind for finding in self.structure if finding.severity != ERROR]
        told = [advice.reason for advice in self.causes], [advice.reason for advice in self.symptoms]
        return tuple(dict.fromkeys([*refused, *told[0], *others, *told[1]]))

    def has(self, reason: str, side: str | None = None) -> bool:
        """Whether a cause is there, on the ``activation`` side or the ``weight`` side if that is asked for."""
        return any(advice.reason == reason and side in (None, _side(advice)) for advice in self.causes)

    def paragraph(self) -> str:
        """The evidence in words."""
        said = [self._cost(), *self._alone(), *_told(self.causes[:_MOST_CAUSES])]
        if not self.causes and not self.structure:
            said.append("No tensor that it rounds is abnormal by itself.")
        said += [f"{finding.what[0].upper()}{finding.what[1:]}. {finding.why}" for finding in self.structure]
        return " ".join(said)

    def _cost(self) -> str:
        name = f"'{self.layer.name}' ({self.layer.op_type})"
        if self.drop is None:
            return f"{name} costs more than may be lost."
        return f"{name} costs {self.drop:.3g} where {self.budget:.3g} may be lost."

    def _alone(self) -> list[str]:
        if self.alone is None or self.alone.both is None:
            return []
        text = f"Alone in INT8 it costs {self.alone.both:.3g}"
        if self.alone.weight is not None and self.alone.activation is not None:
            text += f", its weight {self.alone.weight:.3g}, its activation {self.alone.activation:.3g}"
        if self.blame is None:
            return [f"{text}: little, so that it is the company of the layers before it that makes it a culprit."]
        return [f"{text}: {'both are' if self.blame == BOTH else f'the {self.blame} is'} to blame."]


def evidence_on(
    layer: Layer,
    findings: Iterable[Advice],
    structure: Iterable[Finding],
    alone: Alone | None,
    drop: float | None,
    budget: float,
) -> Evidence:
    """The evidence on a culprit.

    Args:
        layer: the culprit.
        findings: the advisor's, on the whole network.
        structure: the structure check's.
        alone: the layer's losses alone, if they were measured.
        drop: the loss that it added.
        budget: the loss that the threshold allows.
    """
    blame = _blame(layer, alone, budget)
    own = [advice for advice in findings if layer.name in advice.layers]
    causes = [advice for advice in own if advice.reason != LOW_SIMILARITY]
    sides = (blame,) if blame in (WEIGHT, ACTIVATION) else (ACTIVATION, WEIGHT)
    ranked = [
        advice
        for side in sides
        for reason in _TELLING[side]
        for advice in causes
        if (_side(advice), advice.reason) == (side, reason)
    ]
    return Evidence(
        layer=layer,
        blame=blame,
        causes=tuple(ranked),
        symptoms=tuple(advice for advice in own if advice.reason == LOW_SIMILARITY),
        structure=tuple(_concerning(layer.name, structure)),
        alone=alone,
        drop=drop,
        budget=budget,
    )


def _blame(layer: Layer, alone: Alone | None, budget: float) -> str | None:
    """The side with most of the loss; None where the layer alone costs less than a tenth of what may be lost."""
    if alone is None or alone.both is None or alone.both < _ALONE * budget:
        return None
    if not any(rounding.is_weight for rounding in layer.roundings):
        return ACTIVATION
    if all(rounding.is_weight for rounding in layer.roundings):
        return WEIGHT
    if alone.weight is None or alone.activation is None:
        return None
    share = alone.weight / max(alone.weight + alone.activation, 1e-300)
    return WEIGHT if share >= _ONE_SIDED else ACTIVATION if share <= 1.0 - _ONE_SIDED else BOTH


def _told(causes: Iterable[Advice]) -> list[str]:
    """Each cause; of a second one on the same tensor only the first clause, the others say what is known."""
    said, known = [], set()
    for advice in causes:
        if advice.tensor in known:
            said.append(f"And {advice.words.split(';')[0].rstrip('.')}.")
        else:
            said.append(f"{_what(advice)} '{advice.tensor}': {advice.words}")
        known.add(advice.tensor)
    return said


def _side(advice: Advice) -> str:
    return WEIGHT if advice.kind == WEIGHT else ACTIVATION


def _what(advice: Advice) -> str:
    return {WEIGHT: "Weight", "input": "Input", "output": "Result"}.get(advice.kind, "Tensor")


def _concerning(name: str, structure: Iterable[Finding]) -> Sequence[Finding]:
    """Findings on a layer, alone or in a list of layers, that can cost it accuracy."""
    return [
        finding
        for finding in structure
        if finding.kind in ACCURACY_KINDS and (finding.layer == name or name in finding.layer.split(", "))
    ]
