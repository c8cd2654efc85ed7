"""Precision plans: a low or a higher precision for every layer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import chain, groupby, repeat


class Precision(str, Enum):
    """A precision that can be requested for a layer.

    Only the emulation has three of them: ``INT8_WEIGHT`` rounds only weights and ``INT8_ACTIVATION`` only activations,
    to tell which loses accuracy; ``INT16`` rounds weights to INT8 and activations to 16 bits.
    """

    INT8 = "int8"
    INT8_WEIGHT = "int8 weight"
    INT8_ACTIVATION = "int8 activation"
    FP8 = "fp8"
    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"
    INT16 = "int16"

    def __str__(self) -> str:
        return str.__str__(self)

    @property
    def needs_scale(self) -> bool:
        """True if weights, activations or both are rounded with a scale."""
        return self not in (Precision.BF16, Precision.FP16, Precision.FP32)


# The name of each precision, computed once: each trial needs it for thousands of layers.
WORDS = {precision: str(precision) for precision in Precision}
MOST_LAYERS = 10_000_000  # more than a graph of 2 GB can hold

_LETTERS = {
    Precision.INT8: "8",
    Precision.INT8_WEIGHT: "w",
    Precision.INT8_ACTIVATION: "a",
    Precision.FP8: "q",
    Precision.BF16: "b",
    Precision.FP16: "h",
    Precision.FP32: "f",
    Precision.INT16: "s",
}


@dataclass(frozen=True)
class PrecisionPlan:
    """The precision of every layer, in execution order: ``precisions[k]`` is layer k's.

    Attributes:
        low: the low precision; a layer in another precision is high.
    """

    precisions: tuple[Precision, ...]
    low: Precision = Precision.INT8

    def __len__(self) -> int:
        return len(self.precisions)

    @cached_property
    def lowered(self) -> frozenset[int]:
        """The indices of the layers in the low precision."""
        return self._layers_in(self.low)

    @property
    def int8(self) -> frozenset[int]:
        """The indices of the layers in INT8."""
        return self._layers_in(Precision.INT8)

    @property
    def fp16(self) -> frozenset[int]:
        """The indices of the layers in FP16."""
        return self._layers_in(Precision.FP16)

    def _layers_in(self, low: Precision) -> frozenset[int]:
        return frozenset(i for i, precision in enumerate(self.precisions) if precision is low)

    def keeping(self, layers: Iterable[int], high: Precision = Precision.FP32) -> PrecisionPlan:
        """Returns this plan with ``layers`` in the precision ``high``; raises ValueError for an unknown index."""
        kept = frozenset(layers)
        outside = sorted(i for i in kept if not 0 <= i < len(self))
        if outside:
            raise ValueError(f"layers {outside} of a network of {len(self)} layers")
        precisions = list(self.precisions)
        for i in kept:
            precisions[i] = high
        return PrecisionPlan(tuple(precisions), self.low)

    def key(self) -> str:
        """Returns a short text that identifies this plan: the letter of each precision with its run length.

        A low precision other than INT8 comes first, with a colon.

        >>> prefix(5, 2).key()
        '8*3.f*2'
        >>> prefix(5, 2, low=Precision.FP16).key()
        'h:h*3.f*2'
        """
        return self._key

    @cached_property
    def _key(self) -> str:
        layers = ".".join(f"{_LETTERS[precision]}*{len(list(run))}" for precision, run in groupby(self.precisions))
        return layers if self.low is Precision.INT8 else f"{_LETTERS[self.low]}:{layers}"

    @classmethod
    def from_key(cls, key: str) -> PrecisionPlan:
        """Returns the plan with this key.

        >>> PrecisionPlan.from_key("8*3.f*2") == prefix(5, 2)
        True

        Raises:
            KeyError, ValueError: the key is not valid.
        """
        precisions = {letter: precision for precision, letter in _LETTERS.items()}
        low, _, layers = key.rpartition(":")
        runs = [(precisions[letter], int(count)) for letter, count in (run.split("*") for run in layers.split("."))]
        if any(count < 1 for _, count in runs):
            raise ValueError("a run of no layers")
        if sum(count for _, count in runs) > MOST_LAYERS:
            raise ValueError(f"a plan of more than {MOST_LAYERS} layers")
        every = tuple(chain.from_iterable(repeat(precision, count) for precision, count in runs))
        return cls(every, precisions[low] if low else Precision.INT8)


def prefix(layers: int, k: int, high: Precision = Precision.FP32, low: Precision = Precision.INT8) -> PrecisionPlan:
    """Returns the plan of ``layers`` layers with the layers 0 to ``k`` in the precision ``low`` (none for k = -1), the
    others in ``high``.

    Raises ValueError for another k.
    """
    if not -1 <= k < layers:
        raise ValueError(f"prefix({k}) of a network of {layers} layers: k must lie in -1..{layers - 1}")
    return PrecisionPlan((low,) * (k + 1) + (high,) * (layers - k - 1), low)


def only(layers: int, k: int, high: Precision = Precision.FP32, own: Precision = Precision.INT8) -> PrecisionPlan:
    """Returns the plan of ``layers`` layers with only layer ``k`` in the low precision ``own``, and the others in
    ``high``.
    """
    return low_set(layers, (), high, low_of(own)).keeping({k}, own)


def all_but(
    layers: int, kept: Iterable[int], high: Precision = Precision.FP32, low: Precision = Precision.INT8
) -> PrecisionPlan:
    """Returns the plan of ``layers`` layers with all in the precision ``low`` except those in ``kept``, which are in
    ``high``.
    """
    return prefix(layers, layers - 1, high, low).keeping(kept, high)


def low_set(
    layers: int, chosen: Iterable[int], high: Precision = Precision.FP32, low: Precision = Precision.INT8
) -> PrecisionPlan:
    """Returns the plan of ``layers`` layers with the ``chosen`` in the precision ``low`` and the others in ``high``."""
    return PrecisionPlan((high,) * layers, low).keeping(chosen, low)


def int8_set(layers: int, chosen: Iterable[int], high: Precision = Precision.FP32) -> PrecisionPlan:
    """Returns the plan of ``layers`` layers with the ``chosen`` in INT8 and the others in the precision ``high``."""
    return low_set(layers, chosen, high)


def low_of(precision: Precision) -> Precision:
    """Returns INT8 for ``INT8_WEIGHT``, ``INT8_ACTIVATION`` and ``INT16``, else the precision itself."""
    halves = (Precision.INT8_WEIGHT, Precision.INT8_ACTIVATION, Precision.INT16)
    return Precision.INT8 if precision in halves else precision
