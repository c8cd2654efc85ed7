"""The low precisions in question: which layers can have them, what they round, and whether they need ranges.

A low precision is one of two kinds. INT8 and FP8 are *quantized*: a Q/DQ pair with a scale on inputs and weights. FP16
and BF16 are *float types*: a layer reads, computes and writes values of that type, and needs no scale.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import ml_dtypes
import numpy as np
from onnx import TensorProto

from trt_bisect.errors import BadInput
from trt_bisect.precision import Precision

EVERY_INPUT = -1
_INT8_SLOTS: dict[str, tuple[int, ...]] = {
    "Conv": (0, 1),
    "ConvTranspose": (0, 1),
    "Gemm": (0, 1),
    "MatMul": (0, 1),
    "MaxPool": (0,),
    "AveragePool": (0,),
    "GlobalAveragePool": (0,),
    "Add": (0, 1),
    "Concat": (EVERY_INPUT,),
}
"""The operators that TensorRT runs in INT8 if their inputs have Q/DQ, with the slots of those inputs.

Source: TensorRT developer guide, "Working with Quantized Types", and ModelOpt's default list of operators. Activations,
elementwise operators with constants, normalizations and shuffles follow the layer that they are fused with. One of the
two inputs of an Add may stay without a pair (see ``model.layers``).
"""
_FP8_SLOTS: dict[str, tuple[int, ...]] = {"Conv": (0, 1), "Gemm": (0, 1), "MatMul": (0, 1)}
"""The operators that TensorRT runs in FP8 from TensorRT 10 and compute capability 8.9 on."""


@dataclass(frozen=True)
class FloatType:
    """A floating-point type that a layer can have instead of float32.

    Attributes:
        dtype: NumPy's.
        onnx: the value of ``TensorProto.DataType``.
        name: the name in the type constraints of ONNX operators, such as ``float16``.
        largest: its largest finite value.
        smallest: its smallest positive normal value; smaller ones lose bits, or become zero.
    """

    dtype: np.dtype[np.generic]
    onnx: int
    name: str
    largest: float
    smallest: float

    def rounded(self, values: np.ndarray) -> np.ndarray:
        """Returns ``values`` rounded to this type, half to even, in float32; too large ones become infinite."""
        with np.errstate(over="ignore"):
            return np.asarray(values, np.float32).astype(self.dtype).astype(np.float32)

    def positive(self, values: np.ndarray) -> np.ndarray:
        """Returns positive values rounded to this type, in float32; those that become zero or infinite stay inside."""
        least = np.float32(np.finfo(np.float32).tiny if self.name == "bfloat16" else 2.0**-24)
        return np.asarray(np.clip(self.rounded(values), least, np.float32(self.largest)), np.float32)

    def holds(self, values: np.ndarray) -> bool:
        """Returns true if this type holds all ``values`` exactly; NaN counts as held."""
        return bool(np.array_equal(self.rounded(values), np.asarray(values, np.float32), equal_nan=True))


@dataclass(frozen=True)
class LowPrecision:
    """A low precision.

    Attributes:
        precision: the precision as plans name it.
        opset: the oldest ONNX operators (opset) that its graphs can be written with.
        slots: the operators that can have a quantized one, with the inputs that are rounded.
        float_type: the type of a float one; None for a quantized one.
        level: the dtype in which a quantized one stores values.
        levels: the largest stored value; a scale is the largest magnitude divided by it.
        wide: activations are rounded to INT16 and weights to this precision; an experiment, which no engine runs.
    """

    precision: Precision
    opset: int = 0
    slots: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: MappingProxyType({}), compare=False)
    float_type: FloatType | None = None
    level: np.dtype[np.generic] | None = None
    levels: float = 0.0
    wide: bool = False

    def __reduce__(self) -> tuple[Callable[[Precision], LowPrecision], tuple[Precision]]:
        """Makes a copy that travelled the one of this process again: code asks which one it is with ``is``."""
        return find_low, (Precision.INT16 if self.wide else self.precision,)

    @property
    def title(self) -> str:
        """Its name in texts, such as ``FP16``."""
        return "W8A16" if self.wide else str(self.precision).upper()

    def oldest_opset(self, base: Precision | None) -> int:
        """Returns the oldest operators (opset) for its graphs where all that is not low is in ``base``."""
        return max(self.opset, TYPED_PAIRS_OPSET if base in FLOAT_TYPES and self.needs_ranges else 0)

    @property
    def needs_ranges(self) -> bool:
        """True if activations are rounded with scales that come from calibration."""
        return self.float_type is None


_FP16 = FloatType(np.dtype(np.float16), TensorProto.FLOAT16, "float16", 65504.0, 2.0**-14)
_BF16 = FloatType(
    np.dtype(ml_dtypes.bfloat16),
    TensorProto.BFLOAT16,
    "bfloat16",
    2.0**128 - 2.0**120,
    2.0**-126,
)
FLOAT_TYPES: Mapping[Precision, FloatType] = {Precision.FP16: _FP16, Precision.BF16: _BF16}
"""The float types that a layer can have instead of float32, low or high."""

TYPED_PAIRS_OPSET = 19
"""The oldest ONNX operators (opset) whose Q/DQ pairs can be in FP16 or BF16."""

INT8 = LowPrecision(Precision.INT8, 0, _INT8_SLOTS, level=np.dtype(np.int8), levels=127.0)
FP8 = LowPrecision(Precision.FP8, 19, _FP8_SLOTS, level=np.dtype(ml_dtypes.float8_e4m3fn), levels=448.0)
FP16 = LowPrecision(Precision.FP16, float_type=_FP16)
BF16 = LowPrecision(Precision.BF16, 13, float_type=_BF16)
W8A16 = replace(INT8, opset=21, wide=True)
"""Weights in INT8 and activations in INT16, which ONNX can write from opset 21 on; TensorRT has nothing like it."""
LOWS: Mapping[Precision, LowPrecision] = {low.precision: low for low in (INT8, FP16, BF16, FP8)}


def find_low(precision: str | Precision) -> LowPrecision:
    """Returns a low precision by its name: of ``int16`` the activations alone are, and the weights in INT8.

    Raises:
        BadInput: there is none of that name.
    """
    for known, low in {**LOWS, Precision.INT16: W8A16}.items():
        if str(precision) == str(known):
            return low
    raise BadInput(f"There is no low precision '{precision}'.", f"Give {', '.join(map(str, LOWS))}.")
