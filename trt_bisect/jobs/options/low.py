"""The option of the low precision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from trt_bisect.jobs.options.adapting import AdaptingOptions
from trt_bisect.jobs.options.declare import option
from trt_bisect.precision import Precision

if TYPE_CHECKING:
    from trt_bisect.model.low import LowPrecision

LOWS = tuple(map(str, (Precision.INT8, Precision.FP16, Precision.BF16, Precision.FP8)))


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

    @property
    def low_precision(self) -> LowPrecision:
        """The low precision in question."""
        from trt_bisect.model.low import find_low

        return find_low(self.low)
