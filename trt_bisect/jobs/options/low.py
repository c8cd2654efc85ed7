"""The option of the low precision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from trt_bisect.errors import BadInput
from trt_bisect.jobs.options.adapting import AdaptingOptions
from trt_bisect.jobs.options.declare import option
from trt_bisect.precision import Precision

if TYPE_CHECKING:
    from trt_bisect.model.low import LowPrecision

INT16 = "int16"
LOWS = tuple(map(str, (Precision.INT8, Precision.FP16, Precision.BF16, Precision.FP8)))
BASES = tuple(map(str, (Precision.FP32, Precision.FP16, Precision.BF16)))
_FLOAT_LOWS = (str(Precision.FP16), str(Precision.BF16))


@dataclass(frozen=True, kw_only=True)
class LowOptions(AdaptingOptions):
    """The low precision."""

    panel: ClassVar[str] = "Engine"

    low: str = option(
        LOWS[0],
        choices=LOWS,
        noun="low precision",
        help="The low precision in question: int8, fp16, bf16, or fp8 (E4M3). fp16 and bf16 need no calibration.",
    )

    activations: str = option(
        LOWS[0],
        choices=(LOWS[0], INT16),
        noun="type of activations",
        help="int16 is an experiment in the emulation only: weights in INT8, activations in 16 bits. TensorRT has no "
        "16-bit activations, so no engine can be built.",
    )
    base: str = option(
        "",
        choices=BASES,
        noun="base",
        help="Beside int8 and fp8: the precision of all that is neither low nor kept out of it: layers that only "
        "follow, and the float tensors that low layers read and make.",
        otherwise="that of --precision, else fp32",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.activations == INT16 and self.low != LOWS[0]:
            raise BadInput(f"--activations {INT16} does not go with --low {self.low}.", "Leave out one of the two.")
        if self.low in _FLOAT_LOWS and self.base not in ("", str(Precision.FP32)):
            raise BadInput(
                f"--low {self.low} and --base {self.base} leave no layer in FP32.",
                "Leave out --base: beside FP16 and BF16 the base is fp32.",
            )

    @property
    def base_precision(self) -> Precision:
        """The precision of what is neither low nor kept out of the low one."""
        return Precision(self.base or Precision.FP32)

    @property
    def low_precision(self) -> LowPrecision:
        """The low precision in question."""
        from trt_bisect.model.low import find_low

        return find_low(self.low, self.activations == INT16)
