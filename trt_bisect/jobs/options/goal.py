"""The options of the goal of ``recover``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from trt_bisect.jobs.options.concerns import AUTO
from trt_bisect.jobs.options.declare import Options, option
from trt_bisect.jobs.options.kinds import NUMBER, SHARE, SWITCH, WHOLE, WORD_OR_FILE

MACS, MEASURED_TIME = "macs", "measured"
LAYERS, FUSED = "layers", "fused"


@dataclass(frozen=True, kw_only=True)
class TargetOptions(Options):
    """The goal of ``recover``."""

    panel: ClassVar[str] = "Goal"

    target: float | None = option(None, kind=NUMBER, help="The least accuracy that is still good.")
    drop: str | float | None = option(
        None,
        kind=SHARE,
        help="Or how much of FP32's accuracy may be lost: 0.01, or 1% of it. Without both nothing may be lost.",
    )
    budget: str | float | None = option(
        None,
        kind=SHARE,
        help="The most accurate plan that gives up at most this share of INT8's gain in speed, 0.05 or 5%, is found.",
    )
    cost: str | Path = option(
        AUTO,
        kind=WORD_OR_FILE,
        choices=(AUTO, MACS, MEASURED_TIME),
        help="The cost of a layer that stays high: of its multiply-adds (macs), measured on the engine, the better of "
        "these (auto), or a CSV with layer, int8, fp16, fp32.",
    )
    together: str = option(
        LAYERS,
        choices=(LAYERS, FUSED),
        noun="way of moving together",
        help="fused: layers that TensorRT fuses, or that share an input, move together.",
    )
    plans: int | None = option(
        None,
        kind=WHOLE,
        least=1,
        help="By so many plans the first recipe may be made cheaper.",
        otherwise="32; 400 with at most 16 layers; 60 where each takes an engine or an accuracy",
    )
    remedies: bool = option(
        True,
        kind=SWITCH,
        flag="--remedies/--no-remedies",
        help="Single tensors may get the scales of other calibrators, so that fewer layers stay high.",
    )
