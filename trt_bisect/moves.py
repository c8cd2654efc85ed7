"""Scales chosen anew before layers are left high: a calibrator for one tensor costs no speed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from trt_bisect.calibration.calibrator import Calibrator
from trt_bisect.calibration.collect import Magnitudes, recalibrated
from trt_bisect.calibration.ranges import Ranges
from trt_bisect.driver.search import Loss
from trt_bisect.model.network import Network
from trt_bisect.precision import PrecisionPlan
from trt_bisect.seeking import Sought

CALIBRATORS = (
    Calibrator("minmax"),
    Calibrator("entropy"),
    *(Calibrator("percentile", percentile) for percentile in (99.999, 99.99, 99.9, 99.0)),
)
_TENSORS = 24
_WORTH = 0.8
"""A move is taken if it leaves at most so much of the loss."""
_SAME = 1e-3

MeasureWith = Callable[[Ranges, PrecisionPlan], Loss]


@dataclass(frozen=True)
class Suggestion:
    """A tensor's calibrator, and the loss without and with it where its readers are in INT8 and the recipe is high."""

    tensor: str
    calibrator: Calibrator
    before: Loss
    after: float


def suggest(
    network: Network,
    ranges: Ranges,
    seen: Magnitudes,
    sought: Sought,
    measure: MeasureWith,
    on_try: Callable[[str], None],
) -> tuple[Suggestion, ...]:
    """For each activation that a layer of a recipe reads, the calibrator that loses least with that layer in INT8.

    Args:
        network: its layers.
        ranges: as they are.
        seen: the magnitudes that calibrators choose from.
        sought: the recipe.
        measure: the loss of a plan with some ranges.
        on_try: told of each tensor.
    """
    found = []
    for tensor, unit in list(_tensors(network, ranges, seen, sought).items())[:_TENSORS]:
        plan, before = sought.back[unit]
        on_try(tensor)
        tried = {
            calibrator: measure(recalibrated(ranges, seen, {tensor: calibrator}), plan)
            for calibrator in _others(ranges, seen, tensor)
        }
        good = {calibrator: loss for calibrator, loss in tried.items() if loss is not None and np.isfinite(loss)}
        if not good:
            continue
        best = min(good, key=good.__getitem__)
        if before is None or good[best] <= _WORTH * before:
            found.append(Suggestion(tensor, best, before, good[best]))
    return tuple(found)


def _tensors(network: Network, ranges: Ranges, seen: Magnitudes, sought: Sought) -> Mapping[str, int]:
    """The activations that units of a recipe round, each with the first such unit."""
    tensors: dict[str, int] = {}
    for unit in sought.kept:
        for k in sought.space.units[unit]:
            for rounding in network.layers[k].roundings:
                known = rounding.tensor in ranges.scales and rounding.tensor in seen.histograms
                if known and not rounding.is_weight and not rounding.fixed:
                    tensors.setdefault(rounding.tensor, unit)
    return tensors


def _others(ranges: Ranges, seen: Magnitudes, tensor: str) -> list[Calibrator]:
    """The calibrators that give a tensor a scale that is its own."""
    scales = [float(ranges.scales[tensor])]
    others = []
    for calibrator in CALIBRATORS:
        scale = float(recalibrated(ranges, seen, {tensor: calibrator}).scales[tensor])
        if all(abs(scale / known - 1.0) > _SAME for known in scales):
            scales.append(scale)
            others.append(calibrator)
    return others


def needed(
    moves: Mapping[str, Calibrator],
    good: Callable[[Mapping[str, Calibrator]], bool],
) -> dict[str, Calibrator]:
    """A 1-minimal part of moves that are good together: without any one of them they are not."""
    kept = dict(moves)
    for tensor in moves:
        fewer = {name: calibrator for name, calibrator in kept.items() if name != tensor}
        if good(fewer):
            kept = fewer
    return kept
