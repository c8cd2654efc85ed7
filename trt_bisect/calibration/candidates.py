"""The ranges that a run chooses from: those of several calibrators, from one pass over the data."""

from __future__ import annotations

from trt_bisect.calibration.calibrator import Calibrator
from trt_bisect.calibration.collect import Magnitudes
from trt_bisect.calibration.ranges import Ranges

CANDIDATES = (
    Calibrator("entropy"),
    Calibrator("minmax"),
    Calibrator("percentile", 99.9),
    Calibrator("percentile", 99.99),
    Calibrator("percentile", 99.999),
    Calibrator("mse"),
)
"""TensorRT's default first: a run begins with it unless the user names another."""


def candidates(seen: Magnitudes, *, keep_masks: bool = False) -> tuple[Ranges, ...]:
    """Returns the ranges of every calibrator in ``CANDIDATES``, in this order. They have scales for the same tensors.

    Args:
        seen: the magnitudes of the network's activations.
        keep_masks: see ``ranges_from_scales``.
    """
    return tuple(seen.ranges(calibrator, keep_masks=keep_masks) for calibrator in CANDIDATES)
