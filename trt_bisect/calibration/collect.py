"""Ranges from data: the float network run over the samples, every activation's magnitudes counted as they pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from trt_bisect.calibration.histogram import (
    AbsHistogram,
    entropy_threshold,
    minmax_threshold,
    percentile_threshold,
)
from trt_bisect.calibration.ranges import Ranges, ranges_from_scales
from trt_bisect.data import Feeds
from trt_bisect.errors import BadInput
from trt_bisect.machine import cores
from trt_bisect.model.network import Network
from trt_bisect.model.observe import observe
from trt_bisect.model.quantizer import INT8_MAX

METHODS = ("entropy", "minmax", "percentile")


def calibrate(
    network: Network,
    samples: Iterable[Feeds],
    method: str = "entropy",
    percentile: float = 99.99,
    *,
    keep_masks: bool = False,
    on_sample: Callable[[int], None] | None = None,
) -> Ranges:
    """The INT8 scales of every activation of ``network`` over ``samples``.

    Memory holds one sample's tensors and one histogram a tensor, whatever the number of samples.

    Args:
        method: ``entropy`` (TensorRT's, 2048 bins and 128 levels), ``minmax`` or ``percentile``.
        percentile: for that method, of |x|, in per cent.
        keep_masks: see ``ranges_from_scales``.
        on_sample: told the number of samples done.

    Raises:
        BadInput: an unknown method, a percentile outside (0, 100], no samples, or samples that the network refuses.
    """
    if method not in METHODS:
        raise BadInput(f"There is no calibration method '{method}'.", f"Use one of {', '.join(METHODS)}.")
    if not 0 < percentile <= 100:
        raise BadInput(f"Percentile {percentile} is out of range.", "Give a value above 0, at most 100.")
    histograms = {name: AbsHistogram() for name in network.activations}
    done = 0
    with ThreadPoolExecutor(cores()) as pool:
        for tensors in observe(network, network.activations, samples):
            list(pool.map(lambda seen: histograms[seen[0]].add(seen[1], histogram=method != "minmax"), tensors.items()))
            done += 1
            if on_sample is not None:
                on_sample(done)
    if not done:
        raise BadInput("There are no samples to calibrate with.", "Give a few hundred that look like production.")
    thresholds: dict[str, Callable[[AbsHistogram], float]] = {
        "entropy": entropy_threshold,
        "minmax": minmax_threshold,
        "percentile": lambda histogram: percentile_threshold(histogram, percentile),
    }
    seen = {name: histogram for name, histogram in histograms.items() if histogram.values or histogram.nonfinite}
    with ThreadPoolExecutor(cores()) as pool:
        found = dict(zip(seen, pool.map(thresholds[method], seen.values()), strict=True))
    scales = {name: np.float32(np.float32(threshold) / np.float32(INT8_MAX)) for name, threshold in found.items()}
    nonfinite = {
        name: f"it held {histogram.nonfinite} NaN or infinite values during calibration"
        for name, histogram in histograms.items()
        if histogram.nonfinite
    }
    origin = f"percentile {percentile:g}" if method == "percentile" else method
    return ranges_from_scales(scales, origin, keep_masks=keep_masks, nonfinite=nonfinite)
