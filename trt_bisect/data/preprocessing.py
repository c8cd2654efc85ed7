"""Preprocessing of images: size, colours, scale, mean and standard deviation."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trt_bisect.errors import BadInput

NCHW, NHWC = "nchw", "nhwc"
RGB, BGR, GRAY = "rgb", "bgr", "gray"
COLORS = (RGB, BGR, GRAY)
OPENCV = "opencv"
# Pillow's filters by name, and OpenCV's ``INTER_LINEAR``, which does not smooth when it shrinks.
FILTERS = ("bilinear", OPENCV, "nearest", "bicubic", "box", "lanczos")
_SIZE = re.compile(r"(\d+)(?:[x,](\d+))?")


@dataclass(frozen=True)
class Preprocessing:
    """The preprocessing of images; a pixel, 0 to 255, becomes ``(pixel / scale - mean) / std``.

    Attributes:
        mean: a number, or one for each channel in the order of ``colors``; default: 0.
        std: standard deviation, in the form of ``mean``; default: 1.
        scale: divides pixels; default: 255, or 1 if a mean or standard deviation is above 1, and so in pixels.
        resize: height and width; default: the input's.
        letterbox: keep the picture's aspect ratio and fill the rest with grey.
        colors: ``rgb``, ``bgr`` or ``gray``; default: ``rgb``, or ``gray`` for one channel.
        filter: filter to resize with: one of Pillow's, such as ``bilinear``, or ``opencv``.
    """

    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    scale: float | None = None
    resize: tuple[int, int] | None = None
    letterbox: bool = False
    colors: str | None = None
    filter: str = FILTERS[0]

    def __post_init__(self) -> None:
        if self.std is not None and not all(value > 0 for value in self.std):
            std = ",".join(f"{value:g}" for value in self.std)
            raise BadInput(f"--std cannot be {std}.", "Every standard deviation is more than 0.")
        if self.scale is not None and not self.scale > 0:
            raise BadInput(f"--scale cannot be {self.scale:g}.", "--scale divides pixels: give 255, or 1.")
        if self.scale is not None and self.scale < 1:
            problem = f"--scale {self.scale:g} would make pixels larger: --scale divides pixels."
            raise BadInput(problem, f"Give --scale {1 / self.scale:.6g}.")
        if self.colors is not None and self.colors not in COLORS:
            raise BadInput(f"--colors cannot be {self.colors!r}.", f"Use one of {', '.join(COLORS)}.")

    @property
    def divisor(self) -> float:
        """The number that pixels are divided by."""
        if self.scale is not None:
            return self.scale
        in_pixels = any(abs(value) > 1.0 for value in (*(self.mean or ()), *(self.std or ())))
        return 1.0 if in_pixels else 255.0


def preprocessing(values: Mapping[str, Any]) -> Preprocessing:
    """Makes a ``Preprocessing`` from its fields as numbers, sequences or texts such as ``480x640``; raises BadInput for
    others.
    """
    readers: dict[str, Callable[[Any], Any]] = {
        "mean": numbers,
        "std": numbers,
        "resize": size,
        "scale": lambda value: numbers(value)[0],
    }
    given: dict[str, Any] = {name: value for name, value in values.items() if value is not None}
    given.update({name: read(given[name]) for name, read in readers.items() if name in given})
    return Preprocessing(**given)


def numbers(value: Any) -> tuple[float, ...]:
    """Returns numbers from a number, a sequence, or a text with commas; raises BadInput for others."""
    parts: Sequence[Any]
    if isinstance(value, str):
        parts = value.split(",")
    else:
        parts = value if _is_sequence(value) else [value]
    try:
        read = tuple(float(part) for part in parts)
    except (TypeError, ValueError):
        read = ()
    if not read:
        raise BadInput(
            f"'{value}' is no list of numbers.", "Write one number, or one for each channel: 0.485,0.456,0.406."
        )
    return read


def size(value: Any) -> tuple[int, int]:
    """Returns height and width from one number, two, or a text such as ``480x640``; raises BadInput for others."""
    text = "x".join(map(str, value)) if _is_sequence(value) else str(value)
    match = _SIZE.fullmatch(text.strip())
    edges = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if 0 in edges:
        raise BadInput(f"The size '{value}' cannot be read.", "Write height x width, such as 480x640, or one number.")
    return edges


def _is_sequence(value: Any) -> bool:
    return hasattr(value, "__iter__") and not isinstance(value, str)
