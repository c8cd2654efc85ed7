"""Which layers can be in INT8 with the ranges that there are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trt_bisect.calibration.ranges import Ranges, first_of, without_range
from trt_bisect.errors import BadInput
from trt_bisect.model.layers import Layer
from trt_bisect.model.network import Network

_CONTROL_FLOW = ("If", "Loop", "Scan", "SequenceMap")


def keeping_unusable_high(network: Network, ranges: Ranges) -> tuple[Network, list[str]]:
    """``network`` with the layers high that read a tensor without a usable range, and a sentence for each reason.

    Raises:
        BadInput: no layer is left that can be in INT8.
    """
    found = {layer.index: why for layer in network.layers if (why := _why_unusable(layer, network, ranges))}
    reasons = {k: f"its {kind} '{tensor}' has no usable range: {why}" for k, (kind, tensor, why) in found.items()}
    usable = network.keeping_high(reasons)
    if not usable.quantizable:
        raise BadInput(
            f"No layer of '{network.source}' can run in INT8: {_common_reason(usable)}.",
            "'trt-bisect layers MODEL' says why of each layer; export the network in FP32.",
        )
    by_reason: dict[str, list[int]] = {}
    for k, (_, _, reason) in found.items():
        by_reason.setdefault(reason, []).append(k)
    return usable, [_note(network, [(k, found[k][1]) for k in layers], why) for why, layers in by_reason.items()]


def _note(network: Network, kept: Sequence[tuple[int, str]], why: str) -> str:
    """A sentence on layers, each with the tensor that it reads, that stay high for one reason."""
    layers = [network.layers[k].name for k, _ in kept]
    which = f"layer '{layers[0]}' is" if len(layers) == 1 else f"{len(layers)} layers ({first_of(layers)}) are"
    (said,) = without_range((tensor, why) for tensor in dict.fromkeys(tensor for _, tensor in kept))
    return f"{which} kept in high precision: {said}"


def _why_unusable(layer: Layer, network: Network, ranges: Ranges) -> tuple[str, str, str] | None:
    """The input or weight of ``layer`` that has no usable range: which of these, its name, and why not."""
    for rounding in layer.roundings:
        if rounding.fixed or layer.why_not:
            continue
        if rounding.is_weight:
            if not np.isfinite(network.constant(rounding.tensor)).all():
                return "weight", rounding.tensor, "it holds NaN or infinite values"
        elif rounding.tensor not in ranges.scales:
            why = ranges.unusable.get(rounding.tensor, f"the ranges ({ranges.origin}) do not have it")
            return "input", rounding.tensor, why
    return None


def _common_reason(network: Network) -> str:
    reasons = [layer.why_not for layer in network.layers if layer.roundings or "float32" in layer.why_not]
    if reasons:
        return max(set(reasons), key=reasons.count)
    if any(layer.op_type in _CONTROL_FLOW for layer in network.layers):
        return "what it computes is inside control flow, which stays in FP32"
    return "it has no convolution, Gemm, MatMul, pooling or Add of two activations"
