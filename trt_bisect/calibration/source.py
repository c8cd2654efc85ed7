"""Ranges from data, a TensorRT calibration cache, given ranges, or the network's own Q/DQ pairs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trt_bisect.calibration.cache import is_cache_path, read_cache
from trt_bisect.calibration.collect import calibrate
from trt_bisect.calibration.ranges import Ranges, with_scales_given
from trt_bisect.data.datasets import Dataset, open_dataset
from trt_bisect.data.preprocessing import Preprocessing
from trt_bisect.errors import BadInput
from trt_bisect.model.network import Network
from trt_bisect.support.machine import MEMORY
from trt_bisect.support.progress import Progress


@dataclass(frozen=True)
class Calibrating:
    """The options for ranges from data, as in ``trt_bisect.run``."""

    calibrator: str = "entropy"
    percentile: float = 99.99
    keep_mask_ranges: bool = False
    memory: int = MEMORY
    pictures: Preprocessing | None = None


def ranges_of(
    network: Network, calibration: Any, how: Calibrating, progress: Progress
) -> tuple[Ranges, Dataset | None]:
    """Returns the ranges, with the scales that the user fixed, and the data set if ``calibration`` is data.

    Args:
        network: the network; its own Q/DQ pairs are used before data and caches.
        calibration: data (see ``open_dataset``), a TensorRT calibration cache, or ranges.
        how: the options for data.
        progress: shows the calibration.

    Raises:
        BadInput: nothing was given, or it cannot be used.
    """
    ranges, data = _ranges_of(network, calibration, how, progress)
    return with_scales_given(ranges, network.scales), data


def _ranges_of(
    network: Network, calibration: Any, how: Calibrating, progress: Progress
) -> tuple[Ranges, Dataset | None]:
    if isinstance(calibration, Ranges):
        return calibration, None
    cache = is_cache_path(calibration)
    data = None if calibration is None or cache else open_dataset(calibration, network.inputs, pictures=how.pictures)
    if network.has_pairs:
        return Ranges({}, {}, "the network's own Q/DQ"), data
    if cache:
        tensors = network.rounded_activations
        return read_cache(Path(calibration), tensors, keep_masks=how.keep_mask_ranges), None
    if data is None and network.scales and not network.unscaled:
        return Ranges({}, {}, "the plan given"), None
    if data is None:
        raise BadInput(
            "There are no ranges: no calibration data and no calibration cache were given.",
            "Give --calibration with data (.npz, .npy, folder, module:function) or a TensorRT calibration cache.",
        )
    return ranges_from_data(network, data, how, progress), data


def ranges_from_data(network: Network, data: Dataset, how: Calibrating, progress: Progress) -> Ranges:
    """Returns the ranges of a network's activations over a data set."""
    progress.stage("Calibrating", data.length)
    return calibrate(
        network,
        data,
        how.calibrator,
        how.percentile,
        keep_masks=how.keep_mask_ranges,
        on_sample=lambda done: progress.step(f"sample {done}"),
        memory=how.memory,
    )
