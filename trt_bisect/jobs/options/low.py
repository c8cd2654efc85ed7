"""The option of the low precision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from trt_bisect.errors import BadInput
from trt_bisect.jobs.options.declare import Options, option
from trt_bisect.precision import Precision

if TYPE_CHECKING:
    from trt_bisect.model.low import LowPrecision

INT16 = "int16"
LOWS = tuple(map(str, (Precision.INT8, Precision.FP16, Precision.BF16, Precision.FP8)))


@dataclass(frozen=True, kw_only=True)
class LowOptions(Options):
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

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.activations == INT16 and self.low != LOWS[0]:
            raise BadInput(f"--activations {INT16} does not go with --low {self.low}.", "Leave out one of the two.")

    @property
    def low_precision(self) -> LowPrecision:
        """The low precision in question."""
        from trt_bisect.model.low import find_low

        return find_low(self.low, self.activations == INT16)
