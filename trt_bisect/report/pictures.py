"""``pictures.json``: what FP32, full INT8 and the recipe find in the worst images, to look at side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PICTURES = "pictures.json"
FP32 = "fp32"
KEPT, LOST, INVENTED = "kept", "lost", "invented"


@dataclass(frozen=True)
class Mark:
    """A detection in a picture.

    Attributes:
        kind: ``kept``, ``lost`` or ``invented``, against FP32; empty in FP32's own picture.
        text: the class and the score.
        outline: the corners of its box, x and y in pixels of the input.
        points: its keypoints that are seen, likewise.
    """

    kind: str
    text: str
    outline: tuple[tuple[float, float], ...]
    points: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class Drawing:
    """The findings of a plan in a picture.

    Attributes:
        plan: ``fp32``, ``int8`` or ``recipe``.
        agreement: the agreement with FP32 on this input, from 0 to 1; None for FP32, or without a value.
        counts: by ``kept``, ``lost`` and ``invented`` the number of detections; empty for other tasks.
        marks: the detections, at most 100.
        overlay: masks, the classes of pixels or depths, an image as data URI; empty without them.
        text: the text or the class that is read; empty for other tasks.
    """

    plan: str
    agreement: float | None
    counts: Mapping[str, int]
    marks: tuple[Mark, ...] = ()
    overlay: str = ""
    text: str = ""


@dataclass(frozen=True)
class Picture:
    """A picture, and what each plan finds in it.

    Attributes:
        name: the name of the input.
        width, height: the size of the network's input.
        image: the picture, an image as data URI.
        drawings: one for each plan, FP32 first.
    """

    name: str
    width: int
    height: int
    image: str
    drawings: tuple[Drawing, ...]


@dataclass(frozen=True)
class Pictures:
    """The worst images of a run.

    Attributes:
        task: the task, such as ``detect``.
        note: a sentence on how the outputs are read.
        pictures: the pictures, the worst first.
    """

    task: str
    note: str
    pictures: tuple[Picture, ...]
