"""Figures and lists as text for people; and the remarks and lines of a report."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

_LEAST, _MOST = 1e-4, 1e6
_DECIMALS, _TELLING = 4, 6  # the most decimals of a percentage, and of one next to a threshold


def number(value: float | None, digits: int = 3) -> str:
    """Returns a number with ``digits`` significant digits; ``-`` for None.

    An exponent is used only below 0.0001 and from a million on.
    """
    if value is None:
        return "-"
    if value == 0 or not math.isfinite(value) or not _LEAST <= abs(value) < _MOST:
        return f"{value:.{digits}g}"
    return _positional(value, digits)


def percent(share: float, threshold: float | None = None) -> str:
    """Returns a share of 1 in percent, with the sign: two decimals, or up to four near 0 and 100 (``99.9978%``).

    A share that would wrongly read as 0 or 100 is ``<0.0001%`` or ``>99.9999%``.

    Args:
        threshold: adds up to two decimals, so that the text is on the same side of the threshold as ``share``.
    """
    # ``tools/web/page/format.js`` has the same rule for the page.
    value = 100.0 * share
    if not math.isfinite(value):
        return f"{value:g}"
    if 0.0 < abs(value) < 0.5 * 10.0**-_DECIMALS:
        return f"{'-' if value < 0 else ''}<0.0001%"
    distance = min(abs(value), abs(100.0 - value))
    decimals = min(_DECIMALS, max(2, 1 - math.floor(math.log10(distance)))) if distance else 0
    if threshold is not None:
        least = round(100.0 * threshold, 9)
        while decimals < _TELLING and (round(value, decimals) >= least) != (share >= threshold):
            decimals += 1
    text = f"{value:.{decimals}f}"
    if abs(float(text) - value) < 1e-9:
        return f"{float(text):.12g}%"
    return ">99.9999%" if value < 100.0 <= float(text) else f"{text}%"


def duration(seconds: float) -> str:
    """Returns a time with two digits at most: ``40 s``, ``1.5 h``."""
    size, unit = next((larger for larger in ((3600.0, "h"), (60.0, "min")) if seconds >= 1.5 * larger[0]), (1.0, "s"))
    value = seconds / size
    return f"{_positional(value, 2 if value >= 10 or unit == 'h' else 1)} {unit}"


def counted(count: int, noun: str) -> str:
    """Returns a count with its noun: ``1 layer``, ``3 layers``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def listed(names: Sequence[str], most: int = 12) -> str:
    """Returns names in quotes; of more than ``most``, the first ones and the number of the others."""
    shown = [f"'{name}'" for name in names[:most]]
    if len(names) > most:
        shown.append(f"{len(names) - most} more")
    return together(shown)


def together(parts: Sequence[str]) -> str:
    """Returns parts of a sentence with commas, and "and" before the last."""
    return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))


def shape_text(shape: Iterable[int | str | None]) -> str:
    """Returns a shape as text: ``1x3x8``, ``?`` for unknown sizes, ``scalar`` for no axes."""
    return "x".join("?" if size is None else str(size) for size in shape) or "scalar"


def _positional(value: float, digits: int) -> str:
    return np.format_float_positional(float(f"{value:.{digits}g}"), trim="-")


NETWORK, DATA, RANGES, SHAPES = "network", "data", "ranges", "shapes"
FILE, TASK, FITTING_TASK, OUTPUTS = "file", "task", "fitting task", "outputs"
JUDGED_BY, ACCURACY = "judged by", "accuracy"
RANGE, MEMORY, RECIPE = "out of range", "out of memory", "recipe"
ADAPTIVE_CURVE, TENSORS, EXPLANATION = "adaptive curve", "tensors", "explanation"
OBEDIENCE, FLOAT_KERNELS, DLA, REFUSED = "obedience", "float kernels", "DLA", "refused by ONNX Runtime"


@dataclass(frozen=True)
class Note:
    """A remark in a report.

    Attributes:
        kind: the subject of the sentence, in a few words, by which programs look for it.
        text: the sentence.
        layers: the layers that the sentence names.
    """

    kind: str
    text: str
    layers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Line(Note):
    """A line of a verdict.

    Attributes:
        short: a shorter sentence; else empty.
    """

    short: str = ""


def noted(kind: str, texts: Iterable[str]) -> list[Note]:
    """Returns sentences as notes of one ``kind``, a subject by which programs look for them."""
    return [Note(kind, text) for text in texts]
