"""Keeps layers without usable ranges in high precision."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trt_bisect.calibration.ranges import Ranges, notes_on_unusable
from trt_bisect.errors import BadInput
from trt_bisect.model.layers import Layer
from trt_bisect.model.network import Network
from trt_bisect.support.figures import listed

_CONTROL_FLOW = ("If", "Loop", "Scan", "SequenceMap")


def keeping_unusable_high(network: Network, ranges: Ranges) -> tuple[Network, list[str]]:
    """Returns ``network`` with layers kept high that read a tensor without a usable range, and a note for each reason.

    Raises:
        BadInput: no layer can be low.
    """
    found = {layer.index: why for layer in network.layers if (why := _why_unusable(layer, network, ranges))}
    reasons = {k: f"its {kind} '{tensor}' has no usable range: {why}" for k, (kind, tensor, why) in found.items()}
    usable = network.keeping_high(reasons)
    refuse_without_low(usable)
    by_reason: dict[str, list[int]] = {}
    for k, (_, _, reason) in found.items():
        by_reason.setdefault(reason, []).append(k)
    return usable, [_note(network, [(k, found[k][1]) for k in layers], why) for why, layers in by_reason.items()]


def refuse_without_low(network: Network) -> None:
    """Raises BadInput if no layer of a network can be in its low precision."""
    if not network.quantizable:
        title = network.low.title
        if any("float16" in layer.why_not for layer in network.layers):
            raise BadInput(
                f"'{network.source}' is in 16-bit floats. {title} is measured against FP32, and its ranges are those "
                "of float32 layers.",
                f"Export the network in FP32; --precision fp16 then leaves layers that are not in {title} in FP16. "
                "Or give --low fp16 or --low bf16, for the network as it is.",
            )
        raise BadInput(
            f"No layer of '{network.source}' can run in {title}: {_common_reason(network)}.",
            "'trt-bisect layers MODEL' gives the reason for each layer; export the network in FP32.",
        )


def _note(network: Network, kept: Sequence[tuple[int, str]], why: str) -> str:
    """A sentence on layers that stay high for one reason; ``kept`` has their indices and the tensors without ranges."""
    layers = [network.layers[k].name for k, _ in kept]
    which = f"layer '{layers[0]}' is" if len(layers) == 1 else f"{len(layers)} layers ({listed(layers, 3)}) are"
    (reason,) = notes_on_unusable((tensor, why) for tensor in dict.fromkeys(tensor for _, tensor in kept))
    return f"{which} kept in high precision: {reason}"


def _why_unusable(layer: Layer, network: Network, ranges: Ranges) -> tuple[str, str, str] | None:
    """The first tensor of ``layer`` without a usable range: ``input`` or ``weight``, its name, and the reason."""
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


def _common_reason(network: Network) -> str:
    reasons = [layer.why_not for layer in network.layers if layer.roundings or "float32" in layer.why_not]
    if reasons:
        return max(set(reasons), key=reasons.count)
    if any(layer.op_type in _CONTROL_FLOW for layer in network.layers):
        return "its computation is inside control flow, which stays in FP32"
    return "it has no convolution, Gemm, MatMul, pooling or Add of two activations"
