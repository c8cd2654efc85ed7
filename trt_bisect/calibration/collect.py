"""Ranges from data, by one or several calibrators."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np

from trt_bisect.calibration.histogram import AbsHistogram, Calibrator, percentile_threshold
from trt_bisect.calibration.ranges import Ranges, ranges_from_scales
from trt_bisect.data.feeds import Feeds
from trt_bisect.errors import BadInput
from trt_bisect.model.network import Network
from trt_bisect.model.observe import groups_within, observe_ahead
from trt_bisect.model.quantizer import INT8_MAX
from trt_bisect.support.machine import MEMORY

# their output holds each value of the input equally often
_MOVING = ("Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Identity")
# TensorRT fuses them with the layer before; they commute with rounding to the same scale
_BOUNDING = ("Relu", "Clip")
_LEAST_SCALE = np.finfo(np.float32).tiny
_PERCENTILES = tuple(Calibrator("percentile", percentile) for percentile in (99.9, 99.99, 99.999))
# The calibrators to try, TensorRT's default first.
CANDIDATES = (Calibrator("entropy"), Calibrator("minmax"), *_PERCENTILES, Calibrator("mse"))


@dataclass(frozen=True)
class Magnitudes:
    """The magnitudes of a network's activations over a data set.

    Attributes:
        histograms: by tensor; tensors without values are left out.
        earlier: by tensor with counts, the magnitude that 99.99 % of the values did not exceed before the last quarter
            of the samples; empty if the number of samples is unknown.
    """

    histograms: Mapping[str, AbsHistogram]
    earlier: Mapping[str, float] = field(default_factory=dict)
    _known: dict[Calibrator, dict[str, float]] = field(default_factory=dict, compare=False, repr=False)

    def growth(self) -> dict[str, float]:
        """Returns, by tensor in ``earlier``, the share by which the last quarter of the samples enlarged the range."""
        now = {name: _range(self.histograms[name]) for name in self.earlier if name in self.histograms}
        return {name: value / self.earlier[name] - 1.0 for name, value in now.items() if self.earlier[name] > 0.0}

    def thresholds(self, calibrator: Calibrator) -> Mapping[str, float]:
        """Returns, by tensor, the largest magnitude in a calibrator's range."""
        if calibrator not in self._known:
            distinct = {id(histogram): histogram for histogram in self.histograms.values()}
            thresholds = dict(zip(distinct, calibrator.thresholds(list(distinct.values())), strict=True))
            self._known[calibrator] = {name: thresholds[id(histogram)] for name, histogram in self.histograms.items()}
        return self._known[calibrator]

    def ranges(self, calibrator: Calibrator) -> Ranges:
        """Returns the INT8 scales that a calibrator chooses, each at least the smallest normal float32."""
        # The largest magnitude decides if a range is usable: all calibrators have ranges of the same tensors.
        largest = {name: _scale(histogram.absmax) for name, histogram in self.histograms.items()}
        nonfinite = [name for name, histogram in self.histograms.items() if histogram.nonfinite]
        why = "it held NaN or infinite values during calibration"
        usable = ranges_from_scales(largest, str(calibrator), dict.fromkeys(nonfinite, why))
        thresholds = self.thresholds(calibrator)
        scales = {name: max(_scale(thresholds[name]), _LEAST_SCALE) for name in usable.scales}
        return replace(usable, scales=scales, calibrator=calibrator)


def _range(histogram: AbsHistogram) -> float:
    return percentile_threshold(histogram, 99.99)


def _scale(threshold: float) -> np.float32:
    scale: np.float32 = np.float32(threshold) / np.float32(INT8_MAX)
    return scale


def magnitudes(
    network: Network,
    samples: Iterable[Feeds],
    *,
    counted: Collection[str] | None = None,
    on_sample: Callable[[int], None] | None = None,
    memory: int = MEMORY,
    total: int | None = None,
) -> Magnitudes:
    """Counts the magnitudes of every activation of ``network`` over ``samples``.

    Args:
        counted: the tensors to count; None for all. Other tensors get only their largest magnitude, but a tensor that
            only a counted Relu or Clip reads gets that output's magnitudes: the two stay fused.
        on_sample: called with the number of samples done.
        memory: tensors take at most about half of these bytes, besides a histogram for each.
        total: the number of samples, if known.

    Raises:
        BadInput: there are no samples, or the network refuses one.
    """
    origins = _origins(network, counted)
    to_count = {origins[name] for name in (network.activations if counted is None else counted) if name in origins}
    histograms = {name: AbsHistogram() for name in dict.fromkeys(origins.values())}
    remaining = iter(samples)
    first = next(remaining, None)
    if first is None:
        remedy = "Give a few hundred samples like the data in production."
        raise BadInput("There are no samples to calibrate with.", remedy)
    groups = groups_within(network, histograms, first, memory)
    before_last_quarter = None if total is None else total - max(1, total // 4)
    earlier: dict[str, float] = {}
    for number, tensors in enumerate(observe_ahead(network, groups, chain([first], remaining)), start=1):
        for name, values in tensors.items():
            # By one thread, while the network runs on the next sample: numpy.bincount holds Python's lock.
            histograms[name].add(values, histogram=name in to_count)
        del tensors
        done, groups_of_next = divmod(number, len(groups))
        if groups_of_next:
            continue
        if done == before_last_quarter:
            earlier = {name: _range(histograms[name]) for name in to_count}
        if on_sample is not None:
            on_sample(done)
    shared = {name: histograms[origins[name]] for name in network.activations}
    earlier = {name: earlier[origins[name]] for name in shared if origins[name] in earlier}
    return Magnitudes({name: counts for name, counts in shared.items() if counts.values or counts.nonfinite}, earlier)


def _origins(network: Network, counted: Collection[str] | None) -> dict[str, str]:
    origins = {name: name for name in network.activations}
    graph = network.skeleton.graph
    for node in graph.node:
        if node.op_type in _MOVING and not node.domain and {node.input[0], node.output[0]} <= origins.keys():
            origins[node.output[0]] = origins[node.input[0]]
    if counted is None:
        return origins
    for node in graph.node:
        if node.op_type in _BOUNDING and not node.domain and node.output[0] in counted:
            before = node.input[0]
            is_origin = before in network.producers and origins.get(before) == before
            if is_origin and before not in counted and network.uses[before] == 1:
                origins[before] = origins[node.output[0]]
    return origins


def calibrate(
    network: Network,
    samples: Iterable[Feeds],
    method: str = "entropy",
    percentile: float = 99.99,
    *,
    on_sample: Callable[[int], None] | None = None,
    memory: int = MEMORY,
) -> Ranges:
    """Returns the INT8 scales of every activation of ``network`` over ``samples``, by a ``method``: ``entropy``,
    ``minmax``, ``mse``, or ``percentile`` with its ``percentile`` in percent.

    Other arguments are those of ``magnitudes``. Raises BadInput for an unknown method, or without samples.
    """
    calibrator = Calibrator(method, percentile)
    counted = () if method == "minmax" else None
    seen = magnitudes(network, samples, counted=counted, on_sample=on_sample, memory=memory)
    return seen.ranges(calibrator)


def candidates(seen: Magnitudes) -> tuple[Ranges, ...]:
    """Returns the ranges of the tensors in ``seen`` by each calibrator: entropy, min-max, percentile 99.9, 99.99
    and 99.999, mse.
    """
    return tuple(seen.ranges(calibrator) for calibrator in CANDIDATES)
