"""Precision plans: INT8 or a higher precision for every layer, independent of engines and networks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import groupby


class Precision(str, Enum):
    """A precision that can be requested for a layer.

    ``INT8_WEIGHT`` rounds only the layer's weights, ``INT8_ACTIVATION`` only its activations. No engine can do
    that, but the emulation can, to tell which of the two loses accuracy.
    """

    INT8 = "int8"
    INT8_WEIGHT = "int8 weight"
    INT8_ACTIVATION = "int8 activation"
    FP16 = "fp16"
    FP32 = "fp32"

    def __str__(self) -> str:
        return self.value

    @property
    def is_low(self) -> bool:
        """True if weights, activations or both are rounded to INT8."""
        return self not in (Precision.FP16, Precision.FP32)


MOST_LAYERS = 10_000_000
"""More layers than a graph of 2 GB can hold: a plan with more is damaged."""

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
        """Returns this plan with ``layers`` in the precision ``high``."""
        kept = frozenset(layers)
        _check_indices(len(self), kept)
        return PrecisionPlan(tuple(high if i in kept else p for i, p in enumerate(self.precisions)))

    def key(self) -> str:
        """Returns a short text that identifies this plan: the letter of each precision with its run length.

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
        """Returns the plan with this key.

        >>> PrecisionPlan.from_key("8*3.f*2") == prefix(5, 2)
        True

        Raises:
            KeyError, ValueError: the key is not valid.
        """
        precisions = {letter: precision for precision, letter in _LETTERS.items()}
        runs = [(precisions[letter], int(count)) for letter, count in (run.split("*") for run in key.split("."))]
        if sum(count for _, count in runs) > MOST_LAYERS:
            raise ValueError(f"a plan of more than {MOST_LAYERS} layers")
        return cls(tuple(precision for precision, count in runs for _ in range(count)))


def prefix(layers: int, k: int, high: Precision = Precision.FP32) -> PrecisionPlan:
    """Returns the plan with layers 0..k in INT8 and the others high; ``k = -1``: all high.

    Raises:
        ValueError: ``k`` is not -1 and not the index of one of that many ``layers``.
    """
    if not -1 <= k < layers:
        raise ValueError(f"prefix({k}) of a network of {layers} layers: k must lie in -1..{layers - 1}")
    return PrecisionPlan((Precision.INT8,) * (k + 1) + (high,) * (layers - k - 1))


def only(layers: int, k: int, high: Precision = Precision.FP32, own: Precision = Precision.INT8) -> PrecisionPlan:
    """Returns the plan with only layer ``k`` in INT8, or in the precision ``own``, and the others high."""
    return int8_set(layers, (), high).keeping({k}, own)


def all_but(layers: int, kept: Iterable[int], high: Precision = Precision.FP32) -> PrecisionPlan:
    """Returns the plan with all layers in INT8 except those in ``kept``, which are high."""
    return prefix(layers, layers - 1, high).keeping(kept, high)


def int8_set(layers: int, chosen: Iterable[int], high: Precision = Precision.FP32) -> PrecisionPlan:
    """Returns the plan with the ``chosen`` layers in INT8 and the others high."""
    inside = frozenset(chosen)
    _check_indices(layers, inside)
    return PrecisionPlan(tuple(Precision.INT8 if i in inside else high for i in range(layers)))


def _check_indices(layers: int, chosen: frozenset[int]) -> None:
    outside = sorted(i for i in chosen if not 0 <= i < layers)
    if outside:
        raise ValueError(f"layers {outside} of a network of {layers} layers")
