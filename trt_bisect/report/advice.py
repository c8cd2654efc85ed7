"""Advice on culprits: the remedies for each, and the culprits grouped by cause."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from trt_bisect.analyzer import blame
from trt_bisect.analyzer.origins import ACTIVATION, WEIGHT
from trt_bisect.analyzer.structure.findings import ERROR, SHARED_LAYER, SHARED_WEIGHT
from trt_bisect.calibration.histogram import Calibrator
from trt_bisect.model.quantizer import FLOAT_TYPES
from trt_bisect.precision import Precision
from trt_bisect.recipe.commands import (
    EQUALISING,
    TRAINING,
    Setting,
    calibrating,
    keeping_high,
    requantizing,
    running_moved,
    with_cache,
    with_moved,
)
from trt_bisect.report.explanation import Cause, CulpritAdvice, ExplainedLayer, ExplainedTensor, Remedy, Tried
from trt_bisect.support.text import number, percent

CALIBRATOR = "another calibrator"
PER_CHANNEL = "per-channel weights"
EQUALISATION = "cross-layer equalisation"
BIAS_CORRECTION = "bias correction"
SMOOTHING = "channel smoothing"
ROUNDING = "weight rounding"
HIGH = {Precision.FP16: "FP16", Precision.FP32: "FP32"}
QAT = "QAT"
NO_SINGLE_CAUSE = "no single cause found"
"""The cause if no tensor is abnormal: many small rounding errors add up."""

_INT8_ONLY = "The network is for INT8 only: its FP32 output changes."
# Remedies that change the network, with their reasons: advised only if measured to help.
_MOVES = {
    BIAS_CORRECTION: f"Corrected biases remove INT8's mean error. {_INT8_ONLY}",
    SMOOTHING: "Large channels are divided, and the weights that read them multiplied; FP32 does not change.",
    ROUNDING: f"Errors of weights cancel at the outputs. {_INT8_ONLY}",
}
_WHY_QAT = "Training with INT8 rounding moves the weights to values that INT8 can express."
_FP16_LARGEST = 65504.0
_BITS = {Precision.INT8: "eight", Precision.FP8: "four"}


def advice_on(
    evidence: blame.Evidence,
    setting: Setting,
    tried: Sequence[Tried],
    explained: ExplainedLayer | None,
    around: Sequence[ExplainedTensor],
) -> CulpritAdvice:
    """Returns the evidence against a culprit and the remedies for it, the best first.

    Args:
        setting: the run whose options the remedies' commands repeat.
        tried: the measured remedies, of all culprits.
        explained: the culprit's weights and cost; None if not known.
        around: the tensors that the culprit reads and makes.
    """
    weights, share = (explained.weights, explained.share) if explained else ((), 0.0)
    per_tensor = any(weight.scale is not None and weight.scales is None for weight in weights)
    ends = [abs(end) for tensor in around for end in (tensor.fp32.min, tensor.fp32.max)]
    ends = [end for end in ends if not math.isnan(end)]
    reach = max(ends, default=0.0)
    relevant = [attempt for attempt in tried if not attempt.culprits or evidence.layer.name in attempt.culprits]

    best = {attempt.remedy: attempt for attempt in sorted(relevant, key=lambda tried: tried.rank, reverse=True)}
    recipe_cost = next((attempt.cost for attempt in relevant if attempt.own and attempt.meets), math.inf)
    if setting.low is Precision.INT8:
        again = list(_file_remedies(evidence, setting))
        # The loss by an error of the file is not measured: a measured cause has its remedies first.
        is_cause = any(finding.kind == evidence.reasons[0] for finding in evidence.structure)
        remedies = [
            *_data_remedies(evidence),
            *(again if is_cause else []),
            *_range_remedies(evidence, setting, best.get(CALIBRATOR)),
            *_weight_remedies(evidence, setting, per_tensor),
            *([] if is_cause else again),
            *_move_remedies(evidence, setting, best),
            *_high_remedies(evidence, setting, reach, share, best),
            Remedy(QAT, _WHY_QAT, "none; it takes training", TRAINING),
        ]
    else:
        remedies = list(_high_remedies(evidence, setting, reach, share, best))

    def measured_first(remedy: Remedy) -> tuple[int, float]:
        result = remedy.tried
        if result is None or result.own:
            return 1, 0.0
        return (0 if result.cost <= recipe_cost else 2, result.cost) if result.offered else (3, 0.0)

    measured = [replace(remedy, tried=best.get(remedy.remedy)) for remedy in remedies]
    return CulpritAdvice(
        culprit=evidence.layer.name,
        evidence=evidence.paragraph(),
        reasons=evidence.reasons,
        blame=evidence.blame,
        remedies=tuple(sorted(measured, key=measured_first)),
    )


def by_cause(evidence: Sequence[blame.Evidence]) -> dict[str, list[blame.Evidence]]:
    """Returns by cause (the strongest reason, or ``no single cause found``) the evidence of its culprits, the largest
    group first.
    """
    groups: dict[str, list[blame.Evidence]] = {}
    for facts in evidence:
        groups.setdefault(facts.reasons[0] if facts.reasons else NO_SINGLE_CAUSE, []).append(facts)
    return dict(sorted(groups.items(), key=lambda group: -len(group[1])))


def cause_of(
    cause: str,
    evidence: Sequence[blame.Evidence],
    advice: Mapping[str, CulpritAdvice],
    tried: Sequence[Tried],
    calibrator: str,
    others: Sequence[str] = (),
) -> Cause:
    """Returns the culprits of one cause and the remedies for it.

    Args:
        cause, evidence: an item of ``by_cause``.
        advice: by culprit.
        tried: the measured remedies, of all causes.
        others: names of remedies that are not to be listed as unmeasured.
    """
    culprits = tuple(facts.layer.name for facts in evidence)

    of_culprits = [attempt for attempt in tried if set(attempt.culprits) <= set(culprits)]
    measured = sorted(of_culprits, key=lambda attempt: attempt.rank)
    remedies = [remedy for name in culprits for remedy in advice[name].remedies]
    # A recipe in FP16 and FP32 is a measurement of both, for some of the culprits.
    names = {remedy.remedy for remedy in remedies if remedy.tried is not None}
    names |= {attempt.remedy for attempt in measured} | {*others}
    unmeasured: dict[str, Remedy] = {}
    for remedy in remedies:
        if remedy.remedy not in names:
            unmeasured.setdefault(remedy.remedy, remedy)
    causes = [blamed for facts in evidence for blamed in facts.causes if blamed.reason == cause]
    words = blame.in_short(cause, causes, evidence[0].low, calibrator)
    return Cause(
        cause,
        culprits,
        words,
        tuple(measured),
        tuple(unmeasured.values()),
    )


def _file_remedies(evidence: blame.Evidence, setting: Setting) -> Iterator[Remedy]:
    refused = next((finding for finding in evidence.structure if finding.severity == ERROR), None)
    if refused is not None:
        yield Remedy("quantize again", refused.remedy, commands=requantizing(setting))


def _data_remedies(evidence: blame.Evidence) -> Iterator[Remedy]:
    if evidence.has(blame.NOT_NORMALISED):
        why = "The input may not be scaled like the data that the network was trained on."
        yield Remedy("the network's own preprocessing", why)
    if evidence.has(blame.RESULT_QUANTIZED):
        why = "The Q/DQ pair on the network's output makes no layer faster."
        yield Remedy("leave the result unrounded", why)


def _range_remedies(evidence: blame.Evidence, setting: Setting, tried: Tried | None) -> Iterator[Remedy]:
    saturated = evidence.has(blame.SATURATION, ACTIVATION)
    starved = evidence.has(blame.STARVED, ACTIVATION) or (evidence.has(blame.ONE_CHANNEL, ACTIVATION) and not saturated)
    clipped = saturated and not starved
    suspected = evidence.blame != WEIGHT and not evidence.causes and not setting.has_pairs
    minmax, entropy = Calibrator("minmax"), Calibrator("entropy")
    narrow, narrower = Calibrator("percentile", 99.9), Calibrator("percentile", 99.0)
    by_minmax = setting.calibrator is not None and setting.calibrator.method == minmax.method
    if clipped and by_minmax:
        why = "Even min-max clips the tensor: the calibration data has no value as large. Calibrate with such inputs."
        yield Remedy("other calibration data", why)
        return
    if not (clipped or starved or suspected or (tried is not None and tried.offered)):
        return
    if starved:
        why = "A few large values set the range: entropy or a lower percentile clips them."
    elif clipped:
        why = "The range is too narrow: the largest magnitude (min-max) or a higher percentile clips less."
    else:
        why = "Another calibrator may choose a better range."
    if tried is not None and tried.cache:
        commands = with_cache(setting, tried.cache)
    elif tried is not None and tried.calibrator is not None:
        commands = calibrating(setting, tried.calibrator)
    elif clipped or by_minmax:
        commands = calibrating(setting, minmax if clipped else entropy)
    else:
        commands = calibrating(setting, narrower if setting.calibrator == narrow else narrow)
    yield Remedy(CALIBRATOR, why, commands=commands)


def _weight_remedies(evidence: blame.Evidence, setting: Setting, per_tensor: bool) -> Iterator[Remedy]:
    if per_tensor and evidence.blame != ACTIVATION:
        why = "All output channels share one scale. A scale for each channel costs nothing in TensorRT."
        yield Remedy(PER_CHANNEL, why, commands=requantizing(setting))
    sharing = [each for each in evidence.checked if each.kind in (SHARED_WEIGHT, SHARED_LAYER)]
    if evidence.has(blame.ONE_CHANNEL, WEIGHT) and any(evidence.layer.name in each.layers for each in sharing):
        why = (
            "Other layers read this weight too, and equalisation cannot change it for one of them: export a copy first."
        )
        yield Remedy("a weight of its own", why)


def _move_remedies(evidence: blame.Evidence, setting: Setting, best: Mapping[str, Tried]) -> Iterator[Remedy]:
    why = "Factors moved between this layer and the layer before it make the channels alike; FP32 does not change."
    tried = best.get(EQUALISATION)
    if tried is not None and tried.network:
        commands = (running_moved(setting, tried.network), *with_moved(setting, tried.network, tried.cache))
        yield Remedy(EQUALISATION, why, commands=commands)
    elif evidence.has(blame.ONE_CHANNEL) or evidence.has(blame.STARVED):
        yield Remedy(EQUALISATION, why, commands=EQUALISING)
    for remedy, why in _MOVES.items():
        tried = best.get(remedy)
        if tried is not None and tried.network:
            run = [running_moved(setting, tried.network)] if remedy == SMOOTHING else []
            yield Remedy(remedy, why, commands=(*run, *with_moved(setting, tried.network, tried.cache)))


def _high_remedies(
    evidence: blame.Evidence, setting: Setting, reach: float, share: float, best: Mapping[str, Tried]
) -> Iterator[Remedy]:
    fits, measured = reach <= _FP16_LARGEST, best.get(HIGH[Precision.FP16])
    in_fp16 = setting.low not in FLOAT_TYPES and (fits or (measured is not None and measured.own))
    reasons: dict[Precision, str] = {}
    if in_fp16:
        bits = f"{setting.low.upper()} has {_BITS.get(setting.low, 'fewer')}"
        reasons[Precision.FP16] = f"FP16 has eleven significant bits, {bits}. FP16 needs no range."
    if in_fp16 and not fits:
        reasons[Precision.FP16] = (
            f"The recipe has it in FP16, and meets the threshold although values of {number(reach)} become infinite."
        )
    if setting.low not in FLOAT_TYPES and not fits:
        reasons[Precision.FP32] = f"Its values reach {number(reach)}, too large for FP16."
    elif not (in_fp16 and evidence.layer.dtype == "float16"):
        reasons[Precision.FP32] = "FP32 has no rounding that matters."
    of_recipe = next((high for high, name in HIGH.items() if name in best and best[name].own), None)
    for high, why in reasons.items():
        speed = f"the layer, {percent(share)} of the multiply-adds, runs in {HIGH[high]}"
        yield Remedy(HIGH[high], why, speed, keeping_high(setting, evidence.layer.name, high, of_recipe))
