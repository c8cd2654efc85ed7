"""Precision plans: for every layer INT8 or a high precision. Nothing here knows an engine or a network."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import groupby


class Precision(str, Enum):
    """A precision that a layer can be asked to run in.

    ``INT8_WEIGHT`` rounds only the layer's weights, ``INT8_ACTIVATION`` only its activations: no engine runs a layer
    so, but the emulation can, to tell which of the two is to blame.
    """

    INT8 = "int8"
    INT8_WEIGHT = "int8 weight"
    INT8_ACTIVATION = "int8 activation"
    FP16 = "fp16"
    FP32 = "fp32"

    def __str__(self) -> str:
        return self.value


MOST_LAYERS = 10_000_000
"""Far more than a network of 2 GB of graph can hold: what claims more is damaged."""

_LETTERS = {
    Precision.INT8: "8",
    Precision.INT8_WEIGHT: "w",
    Precision.INT8_ACTIVATION: "a",
    Precision.FP16: "h",
    Precision.FP32: "f",
}


@dataclass(frozen=True)
class PrecisionPlan:
    """The precision of every layer, in execution order: ``precisions[k]`` is layer k's."""

    precisions: tuple[Precision, ...]

    def __len__(self) -> int:
        return len(self.precisions)

    @property
    def int8(self) -> frozenset[int]:
        """The indices of the layers in INT8."""
        return self._layers_in(Precision.INT8)

    @property
    def fp16(self) -> frozenset[int]:
        """The indices of the layers in FP16."""
        return self._layers_in(Precision.FP16)

    def _layers_in(self, wanted: Precision) -> frozenset[int]:
        return frozenset(i for i, precision in enumerate(self.precisions) if precision is wanted)

    def keeping(self, layers: Iterable[int], high: Precision = Precision.FP32) -> PrecisionPlan:
        """This plan with ``layers`` kept in the ``high`` precision."""
        kept = frozenset(layers)
        _check_indices(len(self), kept)
        return PrecisionPlan(tuple(high if i in kept else p for i, p in enumerate(self.precisions)))

    def key(self) -> str:
        """A short text that tells this plan from every other: a letter a precision, with run lengths.

        >>> prefix(5, 2).key()
        '8*3.f*2'
        """
        return self._key

    @cached_property
    def _key(self) -> str:
        runs = groupby(_LETTERS[precision] for precision in self.precisions)
        return ".".join(f"{letter}*{sum(1 for _ in run)}" for letter, run in runs)

    @classmethod
    def from_key(cls, key: str) -> PrecisionPlan:
        """The plan that has this key.

        >>> PrecisionPlan.from_key("8*3.f*2") == prefix(5, 2)
        True

        Raises:
            KeyError, ValueError: no plan has it.
        """
        precisions = {letter: precision for precision, letter in _LETTERS.items()}
        runs = [(precisions[letter], int(count)) for letter, count in (run.split("*") for run in key.split("."))]
        if sum(count for _, count in runs) > MOST_LAYERS:
            raise ValueError(f"a plan of more than {MOST_LAYERS} layers")
        return cls(tuple(precision for precision, count in runs for _ in range(count)))


def prefix(layers: int, k: int, high: Precision = Precision.FP32) -> PrecisionPlan:
    """Layers 0..k in INT8, the rest high; ``k = -1`` leaves all of them high.

    Raises:
        ValueError: ``k`` is no layer of a network of that many ``layers``.
    """
    if not -1 <= k < layers:
        raise ValueError(f"prefix({k}) of a network of {layers} layers: k must lie in -1..{layers - 1}")
    return PrecisionPlan((Precision.INT8,) * (k + 1) + (high,) * (layers - k - 1))


def only(layers: int, k: int, high: Precision = Precision.FP32, own: Precision = Precision.INT8) -> PrecisionPlan:
    """Layer ``k`` alone in INT8, or in another precision of its ``own``."""
    return int8_set(layers, (), high).keeping({k}, own)


def all_but(layers: int, kept: Iterable[int], high: Precision = Precision.FP32) -> PrecisionPlan:
    """All layers in INT8 but those in ``kept``."""
    return prefix(layers, layers - 1, high).keeping(kept, high)


def int8_set(layers: int, chosen: Iterable[int], high: Precision = Precision.FP32) -> PrecisionPlan:
    """The ``chosen`` layers in INT8, the rest high."""
    inside = frozenset(chosen)
    _check_indices(layers, inside)
    return PrecisionPlan(tuple(Precision.INT8 if i in inside else high for i in range(layers)))


def _check_indices(layers: int, chosen: frozenset[int]) -> None:
    outside = sorted(i for i in chosen if not 0 <= i < layers)
    if outside:
        raise ValueError(f"layers {outside} of a network of {layers} layers")
