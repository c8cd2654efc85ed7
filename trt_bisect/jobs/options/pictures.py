"""The options for pictures that are given as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from trt_bisect.data.preprocessing import COLORS, LAYOUTS, Preprocessing, preprocessing
from trt_bisect.jobs.options.declare import Options, option
from trt_bisect.jobs.options.kinds import NUMBER, NUMBERS, SIZE, SWITCH

NAMES = ("scale", "mean", "std", "resize", "letterbox", "colors", "layout")
"""The names of these options."""


@dataclass(frozen=True, kw_only=True)
class PictureOptions(Options):
    """Preprocessing of JPEG, PNG and other pictures; other data are fed as they are."""

    panel: ClassVar[str] = "Pictures"

    scale: float | None = option(
        None,
        kind=NUMBER,
        help="Pixels, 0 to 255, are divided by it first.",
        otherwise="255, or 1 where a mean or std above 1 shows that they are in pixels",
    )
    mean: float | Sequence[float] | None = option(
        None,
        kind=NUMBERS,
        help="Is subtracted then: one number, or one for each channel in the order of --colors: 0.485,0.456,0.406.",
    )
    std: float | Sequence[float] | None = option(
        None, kind=NUMBERS, help="By it is divided last, given as the mean is."
    )
    resize: int | str | Sequence[int] | None = option(
        None, kind=SIZE, help="Height x width to make them, 480x640.", otherwise="the input's own size"
    )
    letterbox: bool = option(
        False, kind=SWITCH, help="They keep their shape; what is left of the size becomes grey (114), as for YOLO."
    )
    colors: str | None = option(
        None, choices=COLORS, noun="order of colours", help="The channels.", otherwise="rgb, or gray for one channel"
    )
    layout: str | None = option(
        None,
        choices=LAYOUTS,
        noun="layout",
        help="Set the layout of the input.",
        otherwise="as the input's shape tells",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.preprocessing()

    def preprocessing(self) -> Preprocessing:
        """Returns how pictures are fed.

        Raises:
            BadInput: a value cannot be used.
        """
        return preprocessing({name: getattr(self, name) for name in NAMES})
