"""What the user asks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trt_bisect.builder.base import BuildOptions
from trt_bisect.strategy import Way


@dataclass(frozen=True)
class Request:
    """What the user asked for, beside network and data; ``trt_bisect.run`` says what each of it means."""

    engine: str
    typing: str
    way: Way
    metric: str | Callable[..., Any]
    direction: str
    threshold: float | None
    share: float
    outputs: tuple[str, ...]
    samples: int | None
    calibrator: str
    percentile: float
    keep_mask_ranges: bool
    options: BuildOptions
