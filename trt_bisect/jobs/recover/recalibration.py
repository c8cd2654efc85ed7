"""Scales chosen anew before layers are left high: a calibrator for one tensor costs no speed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from trt_bisect.calibration.calibrator import Calibrator, calibrators
from trt_bisect.calibration.collect import Magnitudes, recalibrated
from trt_bisect.calibration.ranges import Ranges
from trt_bisect.driver.culprits.search import Loss
from trt_bisect.jobs.recover.recipe_search import RecipeResult
from trt_bisect.model.network import Network
from trt_bisect.precision import PrecisionPlan

_CANDIDATES = calibrators((99.999, 99.99, 99.9, 99.0))
_TENSORS = 24
_WORTH = 0.8
"""A move is taken if it leaves at most so much of the loss."""
_SAME = 1e-3
"""Scales that are no further apart, relatively, are the same."""

Recalibrations = Mapping[str, Calibrator]
"""By tensor the calibrator that its scale comes from instead."""
Measure = Callable[[Recalibrations, PrecisionPlan], Loss]


def suggest(
    network: Network,
    ranges: Ranges,
    seen: Magnitudes,
    sought: RecipeResult,
    measure: Measure,
    on_try: Callable[[str], None],
) -> tuple[Recalibrations, ...]:
    """Scales chosen anew that may make a recipe cheaper: of the tensors that it is about, and of the whole network.

    Args:
        network: its layers.
        ranges: as they are.
        seen: the magnitudes that calibrators choose from.
        sought: the recipe.
        measure: the loss of similarity of a plan with some moves.
        on_try: told of each tensor.
    """
    single: dict[str, Calibrator] = {}
    for tensor, unit in list(_tensors(network, ranges, seen, sought).items())[:_TENSORS]:
        on_try(tensor)
        plan, _ = sought.back[unit]
        best = _best([{tensor: each} for each in _others(ranges, seen, tensor)], plan, measure)
        single.update(best)
    full = sought.space.plan(frozenset())
    on_try("all tensors")
    everywhere = _best([_changed(ranges, seen, each) for each in _CANDIDATES], full, measure)
    return tuple(moves for moves in (single, everywhere) if moves)


def _changed(ranges: Ranges, seen: Magnitudes, calibrator: Calibrator) -> Recalibrations:
    """A calibrator for all tensors to which it gives another scale than they have."""
    scales = seen.ranges(calibrator, keep_masks=True).scales
    return {
        tensor: calibrator
        for tensor, scale in ranges.scales.items()
        if tensor in scales and abs(float(scales[tensor]) / float(scale) - 1.0) > _SAME
    }


def _best(tried: Sequence[Recalibrations], plan: PrecisionPlan, measure: Measure) -> Recalibrations:
    """The moves that lose least with a plan, if they lose much less than none."""
    before = measure({}, plan)
    losses = [measure(moves, plan) for moves in tried]
    good = {place: loss for place, loss in enumerate(losses) if loss is not None and np.isfinite(loss)}
    if not good:
        return {}
    best = min(good, key=good.__getitem__)
    return tried[best] if before is None or good[best] <= _WORTH * before else {}


def _tensors(network: Network, ranges: Ranges, seen: Magnitudes, sought: RecipeResult) -> Mapping[str, int]:
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
    for calibrator in _CANDIDATES:
        scale = float(recalibrated(ranges, seen, {tensor: calibrator}).scales[tensor])
        if all(abs(scale / known - 1.0) > _SAME for known in scales):
            scales.append(scale)
            others.append(calibrator)
    return others


def needed(moves: Recalibrations, good: Callable[[Recalibrations], bool]) -> Recalibrations:
    """A 1-minimal part of moves that are good together: without any one of them they are not.

    Moves of very many tensors are one choice, of a calibrator for the network, and stay together.
    """
    if len(moves) > _TENSORS:
        return moves
    kept = dict(moves)
    for tensor in moves:
        fewer = {name: calibrator for name, calibrator in kept.items() if name != tensor}
        if good(fewer):
            kept = fewer
    return kept
