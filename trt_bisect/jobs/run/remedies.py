"""Remedies tried here: other calibrators, moves of weights and biases, and culprits in high precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trt_bisect.builder.base import EMULATED
from trt_bisect.calibration.calibrator import Calibrator
from trt_bisect.calibration.candidates import CANDIDATES
from trt_bisect.calibration.collect import recalibrated
from trt_bisect.calibration.ranges import Ranges
from trt_bisect.evaluator.rebuild import RebuildEvaluator
from trt_bisect.jobs.experiment import Experiment
from trt_bisect.jobs.preparation import Preparation
from trt_bisect.jobs.run.moves import BOTH, CORRECTED, EQUALISED, Move, moved_networks
from trt_bisect.model.layers import Layer
from trt_bisect.precision import Precision, PrecisionPlan, int8_set
from trt_bisect.results.advice import BIAS_CORRECTION, CALIBRATOR, EQUALISATION, HIGH, Tried
from trt_bisect.support.progress import Progress

REMEDIES = "remedies"
"""The folder, in the run folder, of the networks that help, and of calibration caches that no calibrator gives."""
_HELPS = 0.8
"""A move helps if it leaves at most so much of the loss."""
_MOVES = {
    EQUALISED: (EQUALISATION, "cross-layer equalisation"),
    CORRECTED: (BIAS_CORRECTION, "bias correction"),
    BOTH: (BIAS_CORRECTION, "cross-layer equalisation, then bias correction,"),
}
"""By move, the remedy that it is, and its words."""

_BY_CALIBRATION = "calibrators, equalisation and bias correction"


def try_remedies(
    preparation: Preparation, experiment: Experiment, culprits: Sequence[Layer]
) -> tuple[tuple[Tried, ...], tuple[str, ...]]:
    """Tries remedies for the culprits, each judged as the run's plans are, with everything else in INT8.

    Trials with other ranges are journaled under the fingerprint of a run with those ranges, those of another network
    under a fingerprint of their own.

    Args:
        preparation: that ``experiment`` belongs to.
        experiment: where it is measured.
        culprits: the layers; without any, only the network as a whole is calibrated anew.

    Returns:
        What was tried, and what is to be said of what could not be.
    """
    why_not = _why_no_calibration(experiment)
    moves, notes = ((), ()) if why_not else moved_networks(preparation, experiment)
    highs = _high_precisions(experiment)
    others = [] if why_not else [each for each in CANDIDATES if str(each) != experiment.ranges.origin]
    seen = preparation.magnitudes if others else None
    rounding = [layer for layer in culprits if _rounded_tensors(layer, experiment.ranges)]
    tries = len(others) * (1 + len(rounding)) + len(moves) + len(highs) * len(culprits)
    preparation.progress.stage("Trying remedies", tries)
    tried: list[Tried] = []
    if seen is not None:
        for calibrator in others:
            for layer in (None, *rounding):
                tensors = experiment.ranges.scales if layer is None else _rounded_tensors(layer, experiment.ranges)
                chosen = {name: calibrator for name in tensors if name in seen.histograms}
                ranges = recalibrated(experiment.ranges, seen, chosen)
                tried.append(_by_calibrator(preparation, experiment, ranges, calibrator, layer))
    tried += [_by_move(preparation, experiment, move) for move in moves]
    tried += [_by_precision(preparation.progress, experiment, layer, high) for layer in culprits for high in highs]
    return tuple(tried), (f"{_BY_CALIBRATION} were not tried: {why_not}",) if why_not else notes


def _why_no_calibration(experiment: Experiment) -> str:
    if experiment.network.has_pairs:
        return "the scales are those of the network's own Q/DQ pairs"
    if experiment.data is None:
        return f"the ranges ({experiment.ranges.origin}) do not come from data that was given"
    return ""


def _high_precisions(experiment: Experiment) -> tuple[Precision, ...]:
    """FP16 beside the run's own where that is one session more; an engine is built for its own high precision."""
    own = experiment.whole.high
    return tuple(HIGH) if experiment.builder.arithmetic == EMULATED else (own,)


def _rounded_tensors(layer: Layer, ranges: Ranges) -> tuple[str, ...]:
    names = dict.fromkeys(rounding.tensor for rounding in layer.roundings if not rounding.is_weight)
    return tuple(name for name in names if name in ranges.scales)


def _by_calibrator(
    preparation: Preparation, experiment: Experiment, ranges: Ranges, calibrator: Calibrator, layer: Layer | None
) -> Tried:
    where = "the whole network" if layer is None else f"what '{layer.name}' reads"
    what = f"{calibrator} for {where}"
    preparation.progress.step(what)
    similarity, loss, meets = _judged(experiment, preparation.with_ranges(experiment, ranges).whole, _full(experiment))
    tried = Tried(None, CALIBRATOR, what, similarity, loss, meets, calibrator)
    if layer is None:
        return tried
    own = f"{REMEDIES}/{layer.index}-{str(calibrator).replace(' ', '-')}.cache" if meets else ""
    return replace(tried, culprit=layer.name, cache=own, ranges=ranges if meets else None)


def _by_move(preparation: Preparation, experiment: Experiment, move: Move) -> Tried:
    remedy, words = _MOVES[move.name]
    what = f"{words} for the whole network"
    preparation.progress.step(what)
    _, before, _ = _judged(experiment, experiment.whole, _full(experiment))
    moved = preparation.with_network(experiment, move.network, move.ranges)
    similarity, loss, meets = _judged(moved, moved.whole, _full(moved))
    tried = Tried(None, remedy, what, similarity, loss, meets)
    if not meets and (loss is None or (before is not None and loss > _HELPS * before)):
        return tried
    path = f"{REMEDIES}/{move.name}"
    return replace(tried, network=f"{path}.onnx", moved=moved.network, cache=f"{path}.cache", ranges=move.ranges)


def _full(experiment: Experiment) -> PrecisionPlan:
    """The plan with every quantizable layer in INT8."""
    return int8_set(len(experiment.network.layers), experiment.network.quantizable, experiment.whole.high)


def _by_precision(progress: Progress, experiment: Experiment, layer: Layer, high: Precision) -> Tried:
    what = f"'{layer.name}' alone in {HIGH[high]}"
    progress.step(what)
    plan = _full(experiment).keeping({layer.index}, high)
    return Tried(layer.name, HIGH[high], what, *_judged(experiment, experiment.whole, plan))


def _judged(
    experiment: Experiment, evaluator: RebuildEvaluator, plan: PrecisionPlan
) -> tuple[float | None, float | None, bool]:
    trial = evaluator.measure(plan)
    return experiment.rule.similarity(trial), experiment.rule.loss(trial), experiment.rule.meets(trial)
