"""Which layers can be in INT8 with the ranges that there are."""

from __future__ import annotations

import numpy as np

from trt_bisect.calibration.ranges import Ranges
from trt_bisect.errors import BadInput
from trt_bisect.model.layers import Layer
from trt_bisect.model.network import Network

_CONTROL_FLOW = ("If", "Loop", "Scan", "SequenceMap")


def keeping_unusable_high(network: Network, ranges: Ranges) -> tuple[Network, list[str]]:
    """``network`` with the layers high that read a tensor without a usable range, and a sentence on each of them.

    Raises:
        BadInput: no layer is left that can be in INT8.
    """
    reasons = {layer.index: why for layer in network.layers if (why := _why_unusable(layer, network, ranges))}
    usable = network.keeping_high(reasons)
    if not usable.quantizable:
        raise BadInput(
            f"No layer of '{network.source}' can run in INT8: {_common_reason(usable)}.",
            "'trt-bisect layers MODEL' says why of each layer; export the network in FP32.",
        )
    return usable, [f"layer '{network.layers[k].name}' is kept in high precision: {why}" for k, why in reasons.items()]


def _why_unusable(layer: Layer, network: Network, ranges: Ranges) -> str:
    for rounding in layer.roundings:
        if rounding.fixed or layer.why_not:
            continue
        if rounding.is_weight:
            if not np.isfinite(network.constant(rounding.tensor)).all():
                return f"its weight '{rounding.tensor}' holds NaN or infinite values"
        elif rounding.tensor not in ranges.scales:
            why = ranges.unusable.get(rounding.tensor, f"the ranges ({ranges.origin}) do not have it")
            return f"its input '{rounding.tensor}' has no usable range: {why}"
    return ""


def _common_reason(network: Network) -> str:
    reasons = [layer.why_not for layer in network.layers if layer.roundings or "float32" in layer.why_not]
    if reasons:
        return max(set(reasons), key=reasons.count)
    if any(layer.op_type in _CONTROL_FLOW for layer in network.layers):
        return "what it computes is inside control flow, which stays in FP32"
    return "it has no convolution, Gemm, MatMul, pooling or Add of two activations"
