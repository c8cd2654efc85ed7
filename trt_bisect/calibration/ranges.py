"""The INT8 scales of activations, and the layers that stay in high precision because a scale cannot be used."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from trt_bisect.calibration.histogram import Calibrator
from trt_bisect.errors import BadInput
from trt_bisect.model.layers import NO_RANGE, Layer
from trt_bisect.model.network import Network
from trt_bisect.model.quantizer import FLOAT_TYPES, INT8_MAX, SMALLEST_SCALE, Scales
from trt_bisect.support.text import counted, listed

# A tensor that reaches this holds the constant of a mask (-3e38, -1e9): 1e9 but for the rounding of a scale, and of
# scores that were added.
MASK_ABSMAX = 0.999e9
_CONTROL_FLOW = ("If", "Loop", "Scan", "SequenceMap")


@dataclass(frozen=True)
class Ranges:
    """INT8 scales by tensor name.

    Attributes:
        scales: float32, finite, positive and normal: the calibrator's threshold / 127.
        unusable: by tensor without a usable scale, the reason.
        origin: ``entropy``, ``percentile 99.99``, ``cache FILE`` or ``the network's own Q/DQ``.
        calibrator: the calibrator of all tensors, or of all but a few; None without calibration data.
    """

    scales: Scales
    unusable: Mapping[str, str] = field(default_factory=dict)
    origin: str = ""
    calibrator: Calibrator | None = None

    def digest(self) -> str:
        """SHA-256 over the names and the bits of the scales."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        sha = hashlib.sha256()
        for name in sorted(self.scales):
            sha.update(f"{name}:{np.float32(self.scales[name]).tobytes().hex()};".encode())
        return sha.hexdigest()


def no_ranges(title: str) -> Ranges:
    """Returns empty ranges for a low precision that needs none, such as FP16; ``title`` is its name."""
    return Ranges({}, {}, f"none: {title} needs no ranges")


def with_scales_of(ranges: Ranges, others: Mapping[str, Ranges]) -> Ranges:
    """Returns ``ranges`` with the scale of each tensor in ``others`` taken from the ranges given for it there."""
    scales = {tensor: source.scales[tensor] for tensor, source in others.items()}
    counts = Counter(source.origin for source in others.values())
    changes = ", ".join(f"{counted(count, 'tensor')} by {how}" for how, count in counts.items())
    origin = f"{ranges.origin}, {changes}" if changes else ranges.origin
    return replace(ranges, scales={**ranges.scales, **scales}, origin=origin)


def with_scales_given(ranges: Ranges, user_scales: Scales) -> Ranges:
    """Returns the ranges with the user's scales for some tensors."""
    if not user_scales:
        return ranges
    unusable = {tensor: why for tensor, why in ranges.unusable.items() if tensor not in user_scales}
    return replace(ranges, scales={**ranges.scales, **user_scales}, unusable=unusable)


def ranges_from_scales(scales: Scales, origin: str, nonfinite: Mapping[str, str] | None = None) -> Ranges:
    """Returns ranges from scales by tensor, with zero, negative, denormal, non-finite and mask (about 1e36) scales as
    unusable.

    ``nonfinite`` holds the reason for each tensor that had NaN or infinite values; ``origin`` is as in ``Ranges``.
    """
    unusable = dict(nonfinite or {})
    finite = {name: np.float32(scale) for name, scale in scales.items() if name not in unusable}
    unusable |= {name: problem for name, scale in finite.items() if (problem := _problem(scale))}
    return Ranges({name: scale for name, scale in finite.items() if name not in unusable}, unusable, origin)


def _problem(scale: np.float32) -> str:
    if not np.isfinite(scale):
        return f"its scale is {scale}"
    if scale == 0:
        return "its scale is 0, as of a tensor that is zero everywhere"
    if scale < 0:
        return f"its scale is negative ({scale:.3g})"
    if scale < SMALLEST_SCALE:
        return f"its scale is denormal ({scale:.3g})"
    largest = float(scale) * INT8_MAX
    if largest >= MASK_ABSMAX:
        return f"it reaches {largest:.3g}, as a mask does (a --plan with its scale uses it anyway)"
    return ""


def notes_on_unusable(unusable: Iterable[tuple[str, str]]) -> list[str]:
    """Returns a sentence for each reason why tensors have no usable range, from pairs of a tensor and its reason."""
    by_reason: dict[str, list[str]] = {}
    for tensor, why in unusable:
        by_reason.setdefault(why, []).append(tensor)
    return [
        f"'{tensors[0]}' has no usable range: {why}"
        if len(tensors) == 1
        else f"{len(tensors)} tensors have no usable range ({listed(tensors, 3)}), each because {why}"
        for why, tensors in by_reason.items()
    ]


def keeping_unusable_high(network: Network, ranges: Ranges) -> tuple[Network, list[str]]:
    """Returns ``network`` with layers that lack a usable range kept in high precision, and a note for each reason.

    Raises BadInput if no layer can be in the low precision.
    """
    unusable = {layer.index: cause for layer in network.layers if (cause := _why_unusable(layer, network, ranges))}
    reasons = {k: f"its {kind} '{tensor}' {NO_RANGE}: {why}" for k, (kind, tensor, why) in unusable.items()}
    usable = network.keeping_high(reasons)
    refuse_without_low(usable)
    kept: dict[str, list[tuple[str, str]]] = {}
    for k, (_, tensor, why) in unusable.items():
        kept.setdefault(why, []).append((network.layers[k].name, tensor))
    notes = []
    for why, pairs in kept.items():
        layers = [layer for layer, _ in pairs]
        which = f"layer '{layers[0]}' is" if len(layers) == 1 else f"{len(layers)} layers ({listed(layers, 3)}) are"
        (reason,) = notes_on_unusable((tensor, why) for tensor in dict.fromkeys(tensor for _, tensor in pairs))
        notes.append(f"{which} kept in high precision: {reason}")
    return usable, notes


def refuse_without_low(network: Network) -> None:
    """Raises BadInput, with the cause, if no layer can be in the low precision."""
    if network.quantizable:
        return
    title = network.low.title
    if any("float16" in layer.why_not for layer in network.layers):
        dtypes = {layer.dtype for layer in network.layers}
        kinds = [precision for precision, kind in FLOAT_TYPES.items() if kind.dtype in dtypes]
        as_it_is = f" Or give --low {kinds[0]}, for the network as it is." if len(kinds) == 1 else ""
        raise BadInput(
            f"'{network.source}' is in 16-bit floats. {title} is measured against FP32, and its ranges are those "
            "of float32 layers.",
            f"Export the network in FP32; --precision fp16 then runs layers that are not in {title} in FP16.{as_it_is}",
        )
    if why := non_finite_weight(network):
        raise BadInput(f"{why}, so no layer of '{network.source}' can run in {title}.", "Export the network again.")
    reasons = [layer.why_not for layer in network.layers if layer.roundings or "float32" in layer.why_not]
    of_onnxruntime = [node for node in network.skeleton.graph.node if node.domain.startswith("com.microsoft")]
    remedy = "'trt-bisect layers MODEL' gives the reason for each layer; export the network in FP32."
    if reasons:
        reason = max(set(reasons), key=reasons.count)
        if NO_RANGE in reason:
            remedy = "Calibrate with real data, prepared as in production, or give a cache with scales of all tensors."
    elif any(layer.op_type in _CONTROL_FLOW for layer in network.layers):
        reason = "its computation is inside control flow, which stays in FP32"
    elif of_onnxruntime:
        first = of_onnxruntime[0]
        reason = f"only ONNX Runtime has its operators, such as {first.domain}::{first.op_type}"
        remedy = "Give the file from before ONNX Runtime optimised it: TensorRT cannot build this one."
    else:
        reason = "it has no convolution, Gemm, MatMul, pooling or Add of two activations"
    raise BadInput(f"No layer of '{network.source}' can run in {title}: {reason}.", remedy)


def non_finite_weight(network: Network) -> str:
    """Returns a clause on the first weight with NaN or infinite values; else empty."""
    for layer in network.layers:
        for rounding in layer.roundings:
            if rounding.is_weight and not np.isfinite(network.constant(rounding.tensor)).all():
                return f"Weight '{rounding.tensor}' of layer '{layer.name}' holds NaN or infinite values"
    return ""


# The two kinds of scales in a file that no engine can round with: stored constants become NaN or wrong, in FP32 too.
SCALE_INFINITE, SCALE_NOT_POSITIVE = "scale infinite", "scale not positive"


def unusable_scales(network: Network) -> dict[str, list[str]]:
    """Returns the names of layers with unusable scales in the file's Q/DQ pairs, by problem: ``scale infinite`` or
    ``scale not positive``.
    """
    layers: dict[str, list[str]] = {}
    for layer in network.layers:
        scales = [quantizer.scale for rounding in layer.roundings for quantizer in rounding.fixed]
        if any(np.isposinf(scale).any() for scale in scales):
            layers.setdefault(SCALE_INFINITE, []).append(layer.name)
        if not all((scale > 0).all() for scale in scales):
            layers.setdefault(SCALE_NOT_POSITIVE, []).append(layer.name)
    return layers


def _why_unusable(layer: Layer, network: Network, ranges: Ranges) -> tuple[str, str, str] | None:
    for rounding in layer.roundings:
        if rounding.fixed or layer.why_not:
            continue
        if rounding.is_weight:
            if not np.isfinite(network.constant(rounding.tensor)).all():
                return "weight", rounding.tensor, "it holds NaN or infinite values"
        elif network.low.needs_ranges and rounding.tensor not in ranges.scales:
            why = ranges.unusable.get(rounding.tensor, f"the ranges ({ranges.origin}) do not have it")
            return "input", rounding.tensor, why
    return None
