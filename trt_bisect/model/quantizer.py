"""The arithmetic of one rounding to eight bits, and the scales of weights."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

INT8_MAX = 127


@dataclass(frozen=True, eq=False)
class Quantizer:
    """QuantizeLinear and DequantizeLinear with one scale.

    Attributes:
        scale: float32, a scalar, or one a channel along ``axis``.
        zero_point: int8 or uint8, of the scale's shape.
        axis: the channel axis, or None for one scale for the whole tensor.
    """

    scale: np.ndarray
    zero_point: np.ndarray
    axis: int | None = None

    def key(self) -> tuple[object, ...]:
        """Equal for quantizers that round alike."""
        return (self.scale.tobytes(), self.zero_point.tobytes(), self.zero_point.dtype.str, self.axis)

    def round_trip(self, values: np.ndarray) -> np.ndarray:
        """``values`` quantized and dequantized, float32: divide, round half to even, saturate, multiply.

        The lowest level of a mask's scale is beyond float32, and becomes infinite as in an engine.

        Source: ONNX operators QuantizeLinear and DequantizeLinear; TensorRT rounds the same way.
        """
        limits = np.iinfo(self.zero_point.dtype)
        levels = self.levels(values)
        np.clip(levels, limits.min, limits.max, out=levels)
        levels = self.steps(levels, values)
        with np.errstate(over="ignore"):
            levels *= self._broadcast(self.scale, values)
        return np.asarray(levels, np.float32)

    def levels(self, values: np.ndarray) -> np.ndarray:
        """The integers that ``values`` are rounded to, float32, before those beyond eight bits are saturated."""
        with np.errstate(over="ignore"):
            levels = np.asarray(np.divide(values, self._broadcast(self.scale, values), dtype=np.float32))
        np.rint(levels, out=levels)
        levels += self._broadcast(self.zero_point, values)
        return np.asarray(levels, np.float32)

    def steps(self, levels: np.ndarray, values: np.ndarray) -> np.ndarray:
        """How many steps of the scale the levels of ``values`` are from zero."""
        return np.asarray(levels - self._broadcast(self.zero_point, values))

    def _broadcast(self, parameter: np.ndarray, values: np.ndarray) -> np.ndarray:
        if self.axis is None or parameter.ndim == 0:
            return parameter
        return parameter.reshape([-1 if axis == self.axis else 1 for axis in range(values.ndim)])


def round_trips(values: np.ndarray, quantizers: Iterable[Quantizer]) -> np.ndarray:
    """``values`` after each of the quantizers, first applied first; themselves without any."""
    for quantizer in quantizers:
        values = quantizer.round_trip(values)
    return values


def symmetric(scale: np.ndarray | np.float32, axis: int | None = None) -> Quantizer:
    """The symmetric INT8 quantizer of TensorRT: zero point 0."""
    scale = np.asarray(scale, dtype=np.float32)
    return Quantizer(scale, np.zeros(scale.shape, np.int8), axis)


def weight_quantizer(weight: np.ndarray, axis: int | None) -> Quantizer:
    """The scales of a weight: absmax / 127, one a channel along ``axis``.

    A channel of zeros, which any scale rounds to zeros, has the largest of the other channels' scales, or 1 for none.
    """
    others = None if axis is None else tuple(i for i in range(weight.ndim) if i != axis)
    largest = np.abs(weight.astype(np.float32)).max(axis=others)
    scale = np.asarray(largest / np.float32(INT8_MAX), dtype=np.float32)
    usable = scale >= np.finfo(np.float32).tiny
    for_zeros = scale.max() if usable.any() else np.float32(1.0)
    return symmetric(np.where(usable, scale, for_zeros), axis)
