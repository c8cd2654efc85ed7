"""Ranges from data: the float network run over the samples, every activation's magnitudes counted as they pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from trt_bisect.calibration.calibrator import Calibrator
from trt_bisect.calibration.histogram import AbsHistogram
from trt_bisect.calibration.ranges import Ranges, ranges_from_scales
from trt_bisect.data import Feeds
from trt_bisect.errors import BadInput
from trt_bisect.machine import MEMORY, cores
from trt_bisect.model.network import Network
from trt_bisect.model.observe import observe_in_parts
from trt_bisect.model.quantizer import INT8_MAX
from trt_bisect.model.segments import SHARE_OF_GROUP, can_be_cut, groups_of
from trt_bisect.model.shapes import facts_for


@dataclass(frozen=True)
class Magnitudes:
    """The magnitudes of a network's activations over a data set, from which every calibrator has its ranges.

    Attributes:
        histograms: by tensor, of those that had values.
    """

    histograms: Mapping[str, AbsHistogram]

    def ranges(self, calibrator: Calibrator, *, keep_masks: bool = False) -> Ranges:
        """The INT8 scales that a calibrator chooses; ``keep_masks`` as for ``ranges_from_scales``."""
        with ThreadPoolExecutor(cores()) as pool:
            thresholds = dict(
                zip(self.histograms, pool.map(calibrator.threshold, self.histograms.values()), strict=True)
            )
        nonfinite = {
            name: "it held NaN or infinite values during calibration"
            for name, histogram in self.histograms.items()
            if histogram.nonfinite
        }
        scales = {name: _scale(threshold) for name, threshold in thresholds.items()}
        return ranges_from_scales(scales, str(calibrator), keep_masks=keep_masks, nonfinite=nonfinite)


def _scale(threshold: float) -> np.float32:
    scale: np.float32 = np.float32(threshold) / np.float32(INT8_MAX)
    return scale


def magnitudes(
    network: Network,
    samples: Iterable[Feeds],
    *,
    histogram: bool = True,
    on_sample: Callable[[int], None] | None = None,
    memory: int = MEMORY,
) -> Magnitudes:
    """The magnitudes of every activation of ``network`` over ``samples``.

    Memory holds no more than ``memory`` bytes of one sample's tensors and one histogram a tensor, whatever the number
    of samples.

    Args:
        histogram: with False only the largest magnitudes, all that ``minmax`` needs.
        on_sample: told the number of samples done.
        memory: bytes.

    Raises:
        BadInput: no samples, or samples that the network refuses.
    """
    histograms = {name: AbsHistogram() for name in network.activations}
    rest = iter(samples)
    first = next(rest, None)
    if first is None:
        raise BadInput("There are no samples to calibrate with.", "Give a few hundred that look like production.")
    groups = _groups(network, first, memory)
    done = 0
    with ThreadPoolExecutor(cores()) as pool:
        for parts in observe_in_parts(network, groups, chain([first], rest)):
            for tensors in parts:
                list(pool.map(lambda seen: histograms[seen[0]].add(seen[1], histogram=histogram), tensors.items()))
                del tensors
            done += 1
            if on_sample is not None:
                on_sample(done)
    return Magnitudes({name: each for name, each in histograms.items() if each.values or each.nonfinite})


def _groups(network: Network, feeds: Feeds, memory: int) -> list[tuple[str, ...]]:
    """The activations in groups that are seen one after another."""
    complete = all(spec.name in feeds for spec in network.inputs)
    if not complete or not can_be_cut(network.skeleton):
        return [network.activations]
    return groups_of(network.activations, facts_for(network, feeds).size, memory // SHARE_OF_GROUP)


def calibrate(
    network: Network,
    samples: Iterable[Feeds],
    method: str = "entropy",
    percentile: float = 99.99,
    *,
    keep_masks: bool = False,
    on_sample: Callable[[int], None] | None = None,
    memory: int = MEMORY,
) -> Ranges:
    """The INT8 scales of every activation of ``network`` over ``samples``.

    Args:
        method: ``entropy`` (TensorRT's, 2048 bins and 128 levels), ``minmax`` or ``percentile``.
        percentile: for that method, of |x|, in per cent.
        keep_masks: see ``ranges_from_scales``.
        on_sample: told the number of samples done.
        memory: see ``magnitudes``.

    Raises:
        BadInput: an unknown method, a percentile outside (0, 100], no samples, or samples that the network refuses.
    """
    calibrator = Calibrator(method, percentile)
    seen = magnitudes(network, samples, histogram=method != "minmax", on_sample=on_sample, memory=memory)
    return seen.ranges(calibrator, keep_masks=keep_masks)


def recalibrated(ranges: Ranges, seen: Magnitudes, chosen: Mapping[str, Calibrator]) -> Ranges:
    """``ranges`` with the scales of some tensors chosen anew; which tensors have one stays as it is.

    Args:
        ranges: of the network, by whatever calibrator.
        seen: the network's magnitudes (see ``magnitudes``).
        chosen: by tensor, the calibrator that its scale is to come from.

    Raises:
        BadInput: a tensor has no range in ``ranges``, or was not seen.
    """
    for name in chosen:
        if name not in ranges.scales or name not in seen.histograms:
            raise BadInput(
                f"The tensor '{name}' cannot be calibrated anew: it has no range.",
                "Name a tensor that INT8 rounds and that the calibration data reaches.",
            )
    anew = {name: _scale(calibrator.threshold(seen.histograms[name])) for name, calibrator in chosen.items()}
    usable = ranges_from_scales(anew, "", keep_masks=True).scales
    counts = Counter(map(str, chosen.values()))
    said = ", ".join(f"{count} {'tensor' if count == 1 else 'tensors'} by {how}" for how, count in counts.items())
    origin = f"{ranges.origin}, {said}" if said else ranges.origin
    return replace(ranges, scales={**ranges.scales, **usable}, origin=origin)
