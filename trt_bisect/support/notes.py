"""Remarks and lines of results: a kind, which programs ask for, and a sentence, which people read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

NETWORK, DATA, RANGES, SHAPES = "network", "data", "ranges", "shapes"
FILE, TASK, OUTPUTS, JUDGED_BY, ACCURACY = "file", "task", "outputs", "judged by", "accuracy"
RANGE, MEMORY, PIECES, RECIPE = "out of range", "out of memory", "pieces", "recipe"
ADAPTIVE_CURVE, PASSES_BROKE, TENSORS, EXPLANATION = "adaptive curve", "passes broke off", "tensors", "explanation"
OBEDIENCE, FLOAT_KERNELS, DLA, REFUSED = "obedience", "float kernels", "DLA", "refused by ONNX Runtime"
"""The kinds of notes."""


@dataclass(frozen=True)
class Note:
    """A remark.

    Attributes:
        kind: what the remark is about, a few words.
        text: the sentence.
        layers: the layers that it names.
    """

    kind: str
    text: str
    layers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Line(Note):
    """A line of a verdict.

    Attributes:
        short: the sentence in short; empty if the sentence is short itself.
    """

    short: str = ""


def noted(kind: str, texts: Iterable[str]) -> list[Note]:
    """Returns sentences as notes of one kind."""
    return [Note(kind, text) for text in texts]
