"""The low precisions, and the arithmetic of one rounding to eight bits and of the scales of weights.

INT8 and FP8 are *quantized*: a Q/DQ pair with a scale on inputs and weights. FP16 and BF16 are *float types*: a layer
reads, computes and writes values of that type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from weakref import WeakValueDictionary

import ml_dtypes
import numpy as np
from onnx import TensorProto

from trt_bisect.errors import BadInput
from trt_bisect.precision import Precision

EVERY_INPUT = -1
# The inputs that need Q/DQ so that TensorRT runs an operator in INT8. Source: TensorRT developer guide, "Working with
# Quantized Types", and ModelOpt's default list. Other operators follow the layer with which they are fused.
_INT8_SLOTS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("Conv", "ConvTranspose", "Gemm", "MatMul", "Add"), (0, 1)),
    **dict.fromkeys(("MaxPool", "AveragePool", "GlobalAveragePool"), (0,)),
    "Concat": (EVERY_INPUT,),
}
# The same for FP8, from TensorRT 10 and compute capability 8.9 on.
_FP8_SLOTS: dict[str, tuple[int, ...]] = {"Conv": (0, 1), "Gemm": (0, 1), "MatMul": (0, 1)}


_FIRST = 64


@dataclass(frozen=True)
class FloatType:
    """A float type that a layer can have instead of float32.

    Attributes:
        onnx: the ``TensorProto.DataType``.
        name: as in ONNX type constraints: ``float16``.
    """

    dtype: np.dtype[np.generic]
    onnx: int
    name: str
    largest: float

    def rounded(self, values: np.ndarray) -> np.ndarray:
        """Returns ``values`` rounded to this type, half to even, as float32; too large ones become infinite."""
        with np.errstate(over="ignore"):
            return np.asarray(values, np.float32).astype(self.dtype).astype(np.float32)

    def positive(self, values: np.ndarray) -> np.ndarray:
        """Returns ``values``, all positive, rounded to this type, as float32, but never to zero or infinity."""
        least = np.float32(np.finfo(np.float32).tiny if self.name == "bfloat16" else 2.0**-24)
        return np.asarray(np.clip(self.rounded(values), least, np.float32(self.largest)), np.float32)

    def holds(self, values: np.ndarray) -> bool:
        """Returns true if this type holds all ``values`` exactly (NaN included)."""
        flat = np.asarray(values, np.float32).reshape(-1)
        # Most weights differ within their first values.
        return all(np.array_equal(self.rounded(part), part, equal_nan=True) for part in (flat[:_FIRST], flat[_FIRST:]))


@dataclass(frozen=True)
class LowPrecision:
    """A low precision.

    Attributes:
        opset: the oldest opset of its graphs.
        slots: by operator that can be quantized, the inputs that are rounded.
        float_type: the float type; None for INT8 and FP8.
        level: the dtype of stored values; None for FP16 and BF16.
        levels: the largest stored value: a scale is the largest magnitude divided by it.
        wide: true if activations are rounded to INT16: an experiment, which no engine runs.
    """

    precision: Precision
    opset: int = 0
    slots: Mapping[str, tuple[int, ...]] = field(default_factory=dict, compare=False)
    float_type: FloatType | None = None
    level: np.dtype[np.generic] | None = None
    levels: float = 0.0
    wide: bool = False

    def __reduce__(self) -> tuple[Callable[[Precision], LowPrecision], tuple[Precision]]:
        # Unpickles to this process's own instance, because code compares with ``is``.
        return find_low, (Precision.INT16 if self.wide else self.precision,)

    @property
    def title(self) -> str:
        """The name in texts, such as ``FP16``."""
        return "W8A16" if self.wide else str(self.precision).upper()

    def oldest_opset(self, base: Precision | None) -> int:
        """Returns the oldest opset of graphs whose layers are in this precision and in ``base``."""
        return max(self.opset, TYPED_PAIRS_OPSET if base in FLOAT_TYPES and self.needs_ranges else 0)

    @property
    def needs_ranges(self) -> bool:
        """True if the scales of activations come from calibration."""
        return self.float_type is None


_FP16 = FloatType(np.dtype(np.float16), TensorProto.FLOAT16, "float16", 65504.0)
_BF16 = FloatType(np.dtype(ml_dtypes.bfloat16), TensorProto.BFLOAT16, "bfloat16", 2.0**128 - 2.0**120)
FLOAT_TYPES: Mapping[Precision, FloatType] = {Precision.FP16: _FP16, Precision.BF16: _BF16}
"""The float types that a layer can have instead of float32, low or high."""

TYPED_PAIRS_OPSET = 19
"""The oldest opset whose Q/DQ pairs can be in FP16 or BF16."""

INT8 = LowPrecision(Precision.INT8, 0, _INT8_SLOTS, level=np.dtype(np.int8), levels=127.0)
FP8 = LowPrecision(Precision.FP8, 19, _FP8_SLOTS, level=np.dtype(ml_dtypes.float8_e4m3fn), levels=448.0)
FP16 = LowPrecision(Precision.FP16, float_type=_FP16)
BF16 = LowPrecision(Precision.BF16, 13, float_type=_BF16)
W8A16 = replace(INT8, opset=21, wide=True)
"""INT8 weights and INT16 activations, from opset 21 on; TensorRT has no such precision."""
LOWS: Mapping[Precision, LowPrecision] = {low.precision: low for low in (INT8, FP16, BF16, FP8)}


def find_low(precision: str | Precision) -> LowPrecision:
    """Returns a low precision by its name; raises BadInput for another name."""
    lows = {str(key): low for key, low in {**LOWS, Precision.INT16: W8A16}.items()}
    if str(precision) in lows:
        return lows[str(precision)]
    raise BadInput(f"There is no low precision '{precision}'.", f"Give {', '.join(map(str, LOWS))}.")


INT8_MAX = 127
# Engines multiply by scales in float32. The CUDA C++ Programming Guide: only single precision flushes denormals (-ftz).
SMALLEST_SCALE = float(np.finfo(np.float32).tiny)
"""The smallest scale that a GPU does not take for 0: float32's smallest normal value, also for FP16 and BF16."""
_INT16 = np.iinfo(np.int16)
FP8_DTYPE: np.dtype[np.generic] = np.dtype(ml_dtypes.float8_e4m3fn)
FLOAT32: np.dtype[np.generic] = np.dtype(np.float32)

Scales = Mapping[str, np.float32]
"""The INT8 scale of each activation."""


@dataclass(frozen=True, eq=False)
class Quantizer:
    """The parameters of a QuantizeLinear and a DequantizeLinear.

    Attributes:
        scale: float32; a scalar, or one for each channel along ``axis``.
        zero_point: int8, uint8 or float8_e4m3fn, of the scale's shape; its dtype is that of the stored values.
        axis: the channel axis; None for one scale.
        dtype: of the input and the output, float32 or float16.
    """

    scale: np.ndarray
    zero_point: np.ndarray
    axis: int | None = None
    dtype: np.dtype[np.generic] = FLOAT32

    def key(self) -> tuple[object, ...]:
        """Returns a key that is equal for quantizers that round equally."""
        parameters = (self.scale.tobytes(), self.zero_point.tobytes(), self.zero_point.dtype.str, self.axis)
        return parameters if self.dtype == FLOAT32 else (*parameters, self.dtype.str)

    def of_part(self, part: tuple[slice, ...]) -> Quantizer:
        """Returns the quantizer of a part of a tensor, given by one slice per axis; of all for an empty ``part``."""
        if not part or self.axis is None or self.scale.ndim == 0:
            return self
        channels = part[self.axis]
        return replace(self, scale=self.scale[channels], zero_point=self.zero_point[channels])

    def symmetric(self) -> Quantizer:
        """Returns this quantizer if TensorRT accepts it, else the symmetric INT8 quantizer with the same range."""
        if self.zero_point.dtype in (np.int8, FP8_DTYPE) and not np.any(self.zero_point):
            return self
        # Levels l..h with zero point z and scale s reach s (l - z) to s (h - z), symmetric INT8 with scale t reaches
        # -128 t to 127 t: t = max(s (z - l) / 128, s (h - z) / 127).
        limits, zero = np.iinfo(self.zero_point.dtype), self.zero_point.astype(np.float32)
        scale = self.scale * np.maximum((zero - limits.min) / 128, (limits.max - zero) / INT8_MAX)
        scale = np.asarray(scale.astype(self.dtype), np.float32)
        return replace(self, scale=scale, zero_point=np.zeros(scale.shape, np.int8))

    @property
    def limits(self) -> tuple[float, float]:
        """The least and the largest stored value."""
        if self.in_fp8:
            return -FP8.levels, FP8.levels
        info = np.iinfo(self.zero_point.dtype)
        return float(info.min), float(info.max)

    @property
    def begins_at_zero(self) -> bool:
        """True if there is one scale, and negative values saturate: the lowest level is zero."""
        zero_point = self.zero_point
        return not self.in_fp8 and not zero_point.ndim and bool(zero_point == np.iinfo(zero_point.dtype).min)

    @property
    def in_fp8(self) -> bool:
        """True if the stored values are FP8 (E4M3)."""
        return bool(self.zero_point.dtype == FP8_DTYPE)

    def dequantized(self, levels: np.ndarray) -> np.ndarray:
        """Returns (levels - zero point) * scale, in ``dtype``."""
        steps = levels if self.in_fp8 else levels.astype(np.int64) - self._broadcast(self.zero_point, levels)
        with np.errstate(invalid="ignore", over="ignore"):
            return np.asarray(steps.astype(np.float32) * self._broadcast(self.scale, levels), self.dtype)

    def round_trip(self, values: np.ndarray) -> np.ndarray:
        """Returns ``values`` quantized (half to even, saturated) and dequantized, in ``dtype``.

        FP8 rounds to four significant bits, and saturates at 448. With the scale of a mask (about 1e36) the lowest
        level becomes infinite, as in an engine; an infinite scale gives NaN.
        """
        levels = self.levels(values)
        np.clip(levels, *self.limits, out=levels)
        levels = self.steps(levels, values)
        with np.errstate(over="ignore", invalid="ignore"):
            levels *= self._broadcast(self.scale, values)
            return np.asarray(levels, self.dtype)

    def levels(self, values: np.ndarray) -> np.ndarray:
        """Returns ``values`` rounded to levels, as float32, before saturation; too large FP8 values are not rounded."""
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            levels = np.asarray(np.divide(values, self._broadcast(self.scale, values), dtype=np.float32))
        if self.in_fp8:
            inside = np.abs(levels) <= self.limits[1]
            levels[inside] = levels[inside].astype(FP8_DTYPE).astype(np.float32)
            return levels
        np.rint(levels, out=levels)
        levels += self._broadcast(self.zero_point, values)
        return np.asarray(levels, np.float32)

    def steps(self, levels: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Returns ``levels``, to which ``values`` were rounded, minus the zero point."""
        return np.asarray(levels - self._broadcast(self.zero_point, values))

    def _broadcast(self, parameter: np.ndarray, values: np.ndarray) -> np.ndarray:
        if self.axis is None or parameter.ndim == 0:
            return parameter
        return parameter.reshape([-1 if axis == self.axis else 1 for axis in range(values.ndim)])


def round_trips(values: np.ndarray, quantizers: Iterable[Quantizer]) -> np.ndarray:
    """Returns ``values`` after each of the quantizers, first applied first."""
    for quantizer in quantizers:
        values = quantizer.round_trip(values)
    return values


class RoundedWeights(WeakValueDictionary[tuple[object, ...], np.ndarray]):
    """A cache of rounded weights by name and quantizers; empty after pickling.

    Attributes:
        digest: the digest of the unrounded weights; empty until needed.
        quantizers: by weight name, axis and low precision.
    """

    def __init__(self) -> None:
        super().__init__()
        self.digest = ""
        self.quantizers: dict[tuple[str, int | None, LowPrecision], Quantizer] = {}

    def __reduce__(self) -> tuple[type[RoundedWeights], tuple[()]]:
        return RoundedWeights, ()


def symmetric(scale: np.ndarray | np.float32, axis: int | None = None, low: LowPrecision = INT8) -> Quantizer:
    """Returns TensorRT's symmetric quantizer (zero point 0) of a low precision; ``axis`` None: one scale."""
    scale = np.asarray(scale, dtype=np.float32)
    assert low.level is not None
    return Quantizer(scale, np.zeros(scale.shape, low.level), axis)


def scale_in(low: LowPrecision, scale: np.float32) -> np.float32:
    """Returns the scale that gives an activation the same range in a low precision as ``scale`` in INT8."""
    levels = _INT16.max if low.wide else low.levels
    return scale if levels == INT8_MAX else np.float32(np.float32(scale * INT8_MAX) / np.float32(levels))


def int8_scale(low: LowPrecision, scale: np.float32) -> np.float32:
    """Returns the INT8 scale of an activation from its scale in a low precision."""
    levels = np.float64(_INT16.max if low.wide else low.levels)
    near = np.float32(np.float64(scale) * levels / INT8_MAX)
    around = (near, np.nextafter(near, np.float32(0)), np.nextafter(near, np.float32(np.inf)))
    return next((int8 for int8 in around if scale_in(low, int8) == scale), near)


def activation_quantizer(low: LowPrecision, scale: np.float32) -> Quantizer:
    """Returns the symmetric quantizer of an activation, from its INT8 scale."""
    quantizer = symmetric(scale_in(low, scale), low=low)
    return replace(quantizer, zero_point=quantizer.zero_point.astype(_INT16.dtype)) if low.wide else quantizer


def weight_quantizer(weight: np.ndarray, axis: int | None, low: LowPrecision = INT8) -> Quantizer:
    """Returns the quantizer of a weight: scale absmax / 127, in FP8 / 448, by channel along ``axis`` (None: one scale).

    A channel of zeros gets the largest scale of the other channels, or 1.
    """
    axes = None if axis is None else tuple(i for i in range(weight.ndim) if i != axis)
    values = np.asarray(weight, np.float32)
    largest = np.maximum(values.max(axis=axes), -values.min(axis=axes))
    scale = np.asarray(largest / np.float32(low.levels), dtype=np.float32)
    usable = scale >= SMALLEST_SCALE
    for_zeros = scale.max() if usable.any() else np.float32(1.0)
    return symmetric(np.where(usable, scale, for_zeros), axis, low)
