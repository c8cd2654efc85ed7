"""Remedies tried here: other calibrators, for the network and for a culprit's tensors alone, and high precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trt_bisect.bench import Bench
from trt_bisect.builder.base import EMULATED
from trt_bisect.calibration.calibrator import Calibrator
from trt_bisect.calibration.collect import Magnitudes, magnitudes, recalibrated
from trt_bisect.calibration.ranges import Ranges
from trt_bisect.evaluator.rebuild import RebuildEvaluator
from trt_bisect.job import Job
from trt_bisect.model.layers import Layer
from trt_bisect.precision import Precision, PrecisionPlan, int8_set
from trt_bisect.progress import Progress
from trt_bisect.report.advice import CALIBRATOR, HIGH, Tried

REMEDIES = "remedies"
"""The folder, in the run folder, of calibration caches that meet the threshold and that no calibrator gives."""

CALIBRATORS = (
    Calibrator("minmax"),
    Calibrator("entropy"),
    Calibrator("percentile", 99.9),
    Calibrator("percentile", 99.99),
    Calibrator("percentile", 99.999),
)


def try_remedies(job: Job, bench: Bench, culprits: Sequence[Layer]) -> tuple[tuple[Tried, ...], tuple[str, ...]]:
    """What can be tried for the culprits, each judged as the run's plans are, with everything else in INT8.

    Trials with other ranges are journaled under the fingerprint of a run with those ranges.

    Args:
        job: that ``bench`` belongs to.
        bench: where it is measured.
        culprits: the layers; without any, only the network as a whole is calibrated anew.

    Returns:
        What was tried, and what is to be said of what could not be.
    """
    why_not = _why_no_calibrator(bench)
    highs = _high_precisions(bench)
    others = [] if why_not else [each for each in CALIBRATORS if str(each) != bench.ranges.origin]
    seen = _seen(bench, job.progress, job.request.way.memory) if others else None
    rounding = [layer for layer in culprits if _rounded_tensors(layer, bench.ranges)]
    job.progress.stage("Trying remedies", len(others) * (1 + len(rounding)) + len(highs) * len(culprits))
    tried: list[Tried] = []
    if seen is not None:
        for calibrator in others:
            for layer in (None, *rounding):
                tensors = bench.ranges.scales if layer is None else _rounded_tensors(layer, bench.ranges)
                chosen = {name: calibrator for name in tensors if name in seen.histograms}
                ranges = recalibrated(bench.ranges, seen, chosen)
                tried.append(_by_calibrator(job, bench, ranges, calibrator, layer))
    tried += [_by_precision(job.progress, bench, layer, high) for layer in culprits for high in highs]
    return tuple(tried), (f"calibrators were not tried: {why_not}",) if why_not else ()


def _why_no_calibrator(bench: Bench) -> str:
    if bench.network.has_pairs:
        return "the scales are those of the network's own Q/DQ pairs"
    if bench.data is None:
        return f"the ranges ({bench.ranges.origin}) do not come from data that was given"
    return ""


def _high_precisions(bench: Bench) -> tuple[Precision, ...]:
    """FP16 beside the run's own where that is one session more; an engine is built for its own high precision."""
    own = bench.whole.high
    return tuple(HIGH) if bench.builder.arithmetic == EMULATED else (own,)


def _seen(bench: Bench, progress: Progress, memory: int) -> Magnitudes:
    assert bench.data is not None
    progress.stage("Calibrating for the remedies", bench.data.length)
    return magnitudes(bench.network, bench.data, on_sample=lambda done: progress.step(f"sample {done}"), memory=memory)


def _rounded_tensors(layer: Layer, ranges: Ranges) -> tuple[str, ...]:
    names = dict.fromkeys(rounding.tensor for rounding in layer.roundings if not rounding.is_weight)
    return tuple(name for name in names if name in ranges.scales)


def _by_calibrator(job: Job, bench: Bench, ranges: Ranges, calibrator: Calibrator, layer: Layer | None) -> Tried:
    where = "the whole network" if layer is None else f"what '{layer.name}' reads"
    what = f"{calibrator} for {where}"
    job.progress.step(what)
    full = int8_set(len(bench.network.layers), bench.network.quantizable, bench.whole.high)
    similarity, loss, meets = _judged(bench, job.with_ranges(bench, ranges).whole, full)
    tried = Tried(None, CALIBRATOR, what, similarity, loss, meets, calibrator)
    if layer is None:
        return tried
    own = f"{REMEDIES}/{layer.index}-{str(calibrator).replace(' ', '-')}.cache" if meets else ""
    return replace(tried, culprit=layer.name, cache=own, ranges=ranges if meets else None)


def _by_precision(progress: Progress, bench: Bench, layer: Layer, high: Precision) -> Tried:
    what = f"'{layer.name}' alone in {HIGH[high]}"
    progress.step(what)
    full = int8_set(len(bench.network.layers), bench.network.quantizable, bench.whole.high)
    return Tried(layer.name, HIGH[high], what, *_judged(bench, bench.whole, full.keeping({layer.index}, high)))


def _judged(bench: Bench, evaluator: RebuildEvaluator, plan: PrecisionPlan) -> tuple[float | None, float | None, bool]:
    trial = evaluator.measure(plan)
    return bench.rule.similarity(trial), bench.rule.loss(trial), bench.rule.meets(trial)
