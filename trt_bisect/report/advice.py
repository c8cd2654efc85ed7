"""The advice on a culprit: the evidence in a paragraph, and the remedies, the cheapest first."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from trt_bisect.analyzer.advisor import NOT_NORMALISED, ONE_CHANNEL, RESULT_QUANTIZED, SATURATION, STARVED
from trt_bisect.analyzer.blame import ACTIVATION, Evidence
from trt_bisect.analyzer.origins import WEIGHT
from trt_bisect.analyzer.structure.findings import ERROR, SHARED_LAYER, SHARED_WEIGHT
from trt_bisect.calibration.calibrator import Calibrator
from trt_bisect.calibration.ranges import Ranges
from trt_bisect.model.layers import Layer
from trt_bisect.model.low import FLOAT_TYPES
from trt_bisect.model.network import Network
from trt_bisect.precision import Precision
from trt_bisect.recipe.commands import (
    Command,
    Setting,
    calibrating,
    equalising,
    keeping_high,
    requantizing,
    running_moved,
    training,
    with_cache,
    with_moved,
)
from trt_bisect.support.figures import number, percent

CALIBRATOR = "another calibrator"
PER_CHANNEL = "per-channel weights"
EQUALISATION = "cross-layer equalisation"
BIAS_CORRECTION = "bias correction"
HIGH = {Precision.FP16: "FP16", Precision.FP32: "FP32"}
QAT = "QAT"
OWN_RECIPE = "this run's recipe"
"""The description of the run's own recipe among the remedies that were measured."""

_FP16_LARGEST = 65504.0
_NOTHING = "none"


@dataclass(frozen=True)
class Tried:
    """A remedy that was measured on all inputs given, with everything in INT8 but the layers that it leaves high.

    Attributes:
        culprits: the layers that it is for; empty for the whole network.
        remedy: its name.
        what: a description of what was done.
        similarity: the metric on the worst output of the worst input; None where it could not be measured.
        loss: the loss of that similarity; None where it could not be measured.
        meets: true if the loss is within the threshold.
        calibrator: the one that was tried; None for another remedy.
        high: the number of layers that it leaves high.
        cost: the cost of these, a share of INT8's gain in speed.
        cache: the path, in the run folder, of a calibration cache: with ranges that meet the threshold and that no
            calibrator gives, or of ``network``; empty without one.
        ranges: the ranges of the cache.
        network: the path, in the run folder, of a network made from the user's that meets the threshold or loses much
            less; empty without one.
        moved: the network made from the user's, in memory.
    """

    culprits: tuple[str, ...]
    remedy: str
    what: str
    similarity: float | None
    loss: float | None
    meets: bool
    calibrator: Calibrator | None = None
    high: int = 0
    cost: float = 0.0
    cache: str = ""
    ranges: Ranges | None = field(default=None, repr=False, compare=False)
    network: str = ""
    moved: Network | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Remedy:
    """A remedy for a culprit.

    Attributes:
        remedy: its name.
        why: the reason why it may help.
        speed: its cost in speed, as a phrase.
        commands: the commands that apply it, one for each tool.
        tried: its measurement in this run, the best of several; None where it was not measured.
    """

    remedy: str
    why: str
    speed: str
    commands: tuple[Command, ...] = ()
    tried: Tried | None = None


@dataclass(frozen=True)
class CulpritAdvice:
    """The evidence against a culprit and the remedies for it.

    Attributes:
        evidence: a paragraph.
        reasons: the reasons that the advisor and the structure check give, the strongest first; may be empty.
        blame: ``weight``, ``activation``, ``both``, or None where that is not known.
        remedies: those measured to meet the threshold at the recipe's cost or less first; then those that were not
            measured, and the recipe itself; then those measured to be dearer, last those measured to miss the
            threshold; in each, the cheapest first.
    """

    culprit: str
    evidence: str
    reasons: tuple[str, ...]
    blame: str | None
    remedies: tuple[Remedy, ...]


@dataclass(frozen=True)
class Facts:
    """The properties of a layer that its remedies depend on, besides the evidence.

    Attributes:
        reach: the largest magnitude of its inputs and outputs in FP32.
        per_tensor: one of its weights has a single scale.
        share: the layer's fraction of the network's multiply-adds.
    """

    reach: float
    per_tensor: bool
    share: float


def advice_on(evidence: Evidence, facts: Facts, setting: Setting, tried: Iterable[Tried]) -> CulpritAdvice:
    """Returns the advice on one culprit.

    Args:
        evidence: against it.
        facts: the layer's.
        setting: the run, for the commands.
        tried: the remedies that were measured, for any culprit.
    """
    own = [each for each in tried if not each.culprits or evidence.layer.name in each.culprits]
    best = {each.remedy: each for each in sorted(own, key=_merit)}
    recipe_cost = next((each.cost for each in own if each.what == OWN_RECIPE and each.meets), math.inf)
    remedies = [replace(remedy, tried=best.get(remedy.remedy)) for remedy in _remedies(evidence, facts, setting, best)]
    return CulpritAdvice(
        culprit=evidence.layer.name,
        evidence=evidence.paragraph(),
        reasons=evidence.reasons,
        blame=evidence.blame,
        remedies=tuple(sorted(remedies, key=partial(_measured_first, recipe_cost=recipe_cost))),
    )


def _measured_first(remedy: Remedy, recipe_cost: float) -> tuple[int, float]:
    tried = remedy.tried
    if tried is None or tried.what == OWN_RECIPE:
        return 1, 0.0
    return (0 if tried.cost <= recipe_cost else 2, tried.cost) if tried.meets else (3, 0.0)


def _merit(tried: Tried) -> tuple[bool, float, bool, float]:
    """Returns a sort key, the best last. Of equally cheap ones, that for the whole network wins: it is one command."""
    loss = -math.inf if tried.loss is None else -tried.loss
    return tried.meets, -tried.cost if tried.meets else 0.0, tried.meets and not tried.culprits, loss


def _remedies(evidence: Evidence, facts: Facts, setting: Setting, best: Mapping[str, Tried]) -> Iterator[Remedy]:
    if setting.low is not Precision.INT8:
        yield from _high_remedies(evidence.layer, facts, setting)
        return
    refused = next((finding for finding in evidence.structure if finding.severity == ERROR), None)
    shared = next((finding for finding in evidence.structure if finding.kind in (SHARED_WEIGHT, SHARED_LAYER)), None)
    if evidence.has(NOT_NORMALISED):
        yield Remedy(
            "the network's own preprocessing",
            "The input is not scaled like the data that the network was trained on.",
            _NOTHING,
        )
    if refused is not None:
        yield Remedy("quantize again", refused.remedy, _NOTHING, requantizing(setting))
    if evidence.has(RESULT_QUANTIZED):
        yield Remedy(
            "leave the result unrounded", "The Q/DQ pair on the network's output makes no layer faster.", _NOTHING
        )
    yield from _range_remedies(evidence, setting, best.get(CALIBRATOR))
    if facts.per_tensor and evidence.blame != ACTIVATION:
        why = "All of its output channels share one scale. One scale for each channel costs nothing in TensorRT."
        yield Remedy(PER_CHANNEL, why, _NOTHING, requantizing(setting))
    if shared is not None:
        yield Remedy("a weight of its own", shared.remedy, _NOTHING)
    yield from _move_remedies(evidence, setting, best)
    yield from _high_remedies(evidence.layer, facts, setting)
    why = "Training with the INT8 roundings in place moves the weights to values that INT8 can express."
    yield Remedy(QAT, why, "none; it takes training", training())


def _range_remedies(evidence: Evidence, setting: Setting, tried: Tried | None) -> Iterator[Remedy]:
    """Yields another calibrator, or other data, where a range is to blame or a calibrator that was tried helps."""
    saturated = evidence.has(SATURATION, ACTIVATION)
    starved = evidence.has(STARVED, ACTIVATION) or (evidence.has(ONE_CHANNEL, ACTIVATION) and not saturated)
    clipped = saturated and not starved
    suspected = evidence.blame != WEIGHT and not evidence.causes and not setting.has_pairs
    method = setting.calibrator.method if setting.calibrator else ""
    if clipped and method == "minmax":
        why = "Even min-max clips it: the calibration data has no value as large. Calibrate with inputs like this one."
        yield Remedy("other calibration data", why, _NOTHING)
        return
    if not (clipped or starved or suspected or (tried is not None and tried.meets)):
        return
    if starved:
        why = "The range is too wide for most of its values: entropy or a lower percentile clips the few large ones."
    elif clipped:
        why = "The range is too narrow: the largest magnitude (min-max) or a higher percentile clips less."
    else:
        why = "Another calibrator may choose a range that suits this input better."
    if tried is not None and tried.cache:
        commands = with_cache(setting, tried.cache)
    elif tried is not None and tried.calibrator is not None:
        commands = calibrating(setting, tried.calibrator)
    elif clipped:
        commands = calibrating(setting, Calibrator("minmax"))
    elif method == "minmax":
        commands = calibrating(setting, Calibrator("entropy"))
    else:
        narrower = Calibrator("percentile", 99.9)
        commands = calibrating(
            setting, replace(narrower, percentile=99.0) if setting.calibrator == narrower else narrower
        )
    yield Remedy(CALIBRATOR, why, _NOTHING, commands)


def _move_remedies(evidence: Evidence, setting: Setting, best: Mapping[str, Tried]) -> Iterator[Remedy]:
    """Yields equalisation where a channel is to blame, and each move that was measured to help."""
    tried = best.get(EQUALISATION)
    helps = tried is not None and bool(tried.network)
    if helps or evidence.has(ONE_CHANNEL) or evidence.has(STARVED):
        why = "Factors moved between this layer and the one before it make the channels alike; FP32 stays the same."
        if tried is not None and helps:
            commands = (running_moved(setting, tried.network), *with_moved(setting, tried.network, tried.cache))
        else:
            commands = equalising()
        yield Remedy(EQUALISATION, why, _NOTHING, commands)
    tried = best.get(BIAS_CORRECTION)
    if tried is not None and tried.network:
        why = "INT8's mean error leaves the biases. The network is for INT8 only: its FP32 output is another one."
        yield Remedy(BIAS_CORRECTION, why, _NOTHING, with_moved(setting, tried.network, tried.cache))


_BITS = {Precision.INT8: "eight", Precision.FP8: "four"}
"""The significant bits of a value, in words."""


def _high_remedies(layer: Layer, facts: Facts, setting: Setting) -> Iterator[Remedy]:
    bits = f"{setting.low.upper()} has {_BITS.get(setting.low, 'fewer')}"
    reasons = {
        Precision.FP16: f"FP16 has eleven significant bits, {bits}. FP16 needs no range.",
        Precision.FP32: "FP32 has no rounding that matters.",
    }
    if setting.low in FLOAT_TYPES:
        del reasons[Precision.FP16]
    elif facts.reach > _FP16_LARGEST:
        del reasons[Precision.FP16]
        reasons[Precision.FP32] = f"Its values reach {number(facts.reach)}, more than FP16 can hold."
    if layer.dtype == "float16" and Precision.FP16 in reasons:
        del reasons[Precision.FP32]
    for high, why in reasons.items():
        speed = f"the layer, {percent(facts.share)} % of the multiply-adds, runs in {HIGH[high]}"
        yield Remedy(HIGH[high], why, speed, keeping_high(setting, layer.name, high))
