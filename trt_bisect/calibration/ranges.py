"""The INT8 scales of activations, and the reasons why some cannot be used."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from trt_bisect.calibration.calibrator import Calibrator
from trt_bisect.model.quantizer import INT8_MAX
from trt_bisect.support.figures import counted, listed

MASK_ABSMAX = 1e9
"""A tensor that reaches more than this holds the constant of a mask (-3e38, -1e9), not activations."""


@dataclass(frozen=True)
class Ranges:
    """INT8 scales by tensor name.

    Attributes:
        scales: float32, finite, positive and normal: the calibrator's threshold / 127.
        unusable: the reason in words for tensors without a usable scale.
        origin: in words: ``entropy``, ``percentile 99.99``, ``cache FILE`` or ``the network's own Q/DQ``.
        calibrator: chose the scales of all tensors, or of all but a few; None if no data were calibrated with.
    """

    scales: Mapping[str, np.float32]
    unusable: Mapping[str, str] = field(default_factory=dict)
    origin: str = ""
    calibrator: Calibrator | None = None

    def digest(self) -> str:
        """SHA-256 over the names and the bits of the scales."""
        sha = hashlib.sha256()
        for name in sorted(self.scales):
            sha.update(f"{name}:{np.float32(self.scales[name]).tobytes().hex()};".encode())
        return sha.hexdigest()


def no_ranges(title: str) -> Ranges:
    """Returns the ranges of a low precision that needs none; ``title`` is its name."""
    return Ranges({}, {}, f"none: {title} needs no ranges")


def with_scales_of(ranges: Ranges, others: Mapping[str, Ranges]) -> Ranges:
    """Returns ranges in which some tensors have the scales that other ranges give them.

    Args:
        ranges: the ranges of all tensors.
        others: by tensor, the ranges that its scale comes from.
    """
    scales = {tensor: other.scales[tensor] for tensor, other in others.items()}
    counts = Counter(other.origin for other in others.values())
    changes = ", ".join(f"{counted(count, 'tensor')} by {how}" for how, count in counts.items())
    origin = f"{ranges.origin}, {changes}" if changes else ranges.origin
    return replace(ranges, scales={**ranges.scales, **scales}, origin=origin)


def with_scales_given(ranges: Ranges, given: Mapping[str, np.float32]) -> Ranges:
    """Returns ranges in which some tensors have the scales that the user gave them; the origin stays the same."""
    if not given:
        return ranges
    unusable = {tensor: why for tensor, why in ranges.unusable.items() if tensor not in given}
    return replace(ranges, scales={**ranges.scales, **given}, unusable=unusable)


def ranges_from_scales(
    scales: Mapping[str, np.float32],
    origin: str,
    *,
    keep_masks: bool = False,
    nonfinite: Mapping[str, str] | None = None,
) -> Ranges:
    """Separates usable scales from others: zero, negative, denormal, not finite, or those of masks.

    Args:
        scales: by tensor name, float32.
        origin: the origin of the ranges (see ``Ranges``).
        keep_masks: true to use the scales of tensors beyond ``MASK_ABSMAX`` too.
        nonfinite: by tensor that held NaN or infinite values, the reason in words.
    """
    usable: dict[str, np.float32] = {}
    unusable: dict[str, str] = dict(nonfinite or {})
    for name, scale in scales.items():
        if name in unusable:
            continue
        problem = _problem(np.float32(scale), keep_masks)
        if problem:
            unusable[name] = problem
        else:
            usable[name] = np.float32(scale)
    return Ranges(usable, unusable, origin)


def _problem(scale: np.float32, keep_masks: bool) -> str:
    if not np.isfinite(scale):
        return f"its scale is {scale}"
    if scale == 0:
        return "all its values are zero"
    if scale < 0:
        return f"its scale is negative ({scale:.3g})"
    if scale < np.finfo(np.float32).tiny:
        return f"its scale is denormal ({scale:.3g})"
    largest = float(scale) * INT8_MAX
    if largest > MASK_ABSMAX and not keep_masks:
        return f"it reaches {largest:.3g}, as a mask does (--keep-mask-ranges uses it anyway)"
    return ""


def notes_on_unusable(unusable: Iterable[tuple[str, str]]) -> list[str]:
    """Returns a sentence for each reason why tensors have no usable range, with their number and the first of them.

    Args:
        unusable: pairs of a tensor and the reason.
    """
    by_reason: dict[str, list[str]] = {}
    for tensor, why in unusable:
        by_reason.setdefault(why, []).append(tensor)
    return [
        f"'{tensors[0]}' has no usable range: {why}"
        if len(tensors) == 1
        else f"{len(tensors)} tensors have no usable range ({listed(tensors, 3)}), each because {why}"
        for why, tensors in by_reason.items()
    ]
