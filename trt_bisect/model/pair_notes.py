"""Notes on the Q/DQ pairs that a network came with, and the low precision that they are of."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trt_bisect.errors import BadInput
from trt_bisect.model.existing import ExistingPairs
from trt_bisect.model.layers import Layer
from trt_bisect.model.low import FP8, INT8, LowPrecision


def pair_notes(layers: tuple[Layer, ...], pairs: ExistingPairs, low: LowPrecision) -> Iterator[str]:
    """Yields notes on asymmetric pairs, on activations that may be missing without pairs, and on a network in FP16."""
    roundings = [rounding for layer in layers for rounding in layer.roundings]
    asymmetric = [rounding for rounding in roundings if rounding.asymmetric]
    if asymmetric:
        yield (
            f"{len(asymmetric)} of the {len(roundings)} Q/DQ pairs in the file are asymmetric, "
            f"'{asymmetric[0].tensor}' the first: TensorRT refuses zero points, and reads UINT8 as INT8. They are "
            "requantized to symmetric INT8 of the same reach, which is measured and written as the recipe"
        )
    if pairs.unproven:
        yield (
            f"the range of a pair begins at zero after {len(pairs.unproven)} layers ('{pairs.unproven[0]}' the first), "
            "but this does not prove that a Relu was removed there, and none is restored. If there was one, quantize "
            "again with QDQKeepRemovableActivations in ONNX Runtime's extra_options"
        )
    if any(quantizer.dtype == np.float16 for rounding in roundings for quantizer in rounding.fixed):
        yield (
            f"the network is in FP16: so is all that is not in {low.title}, including the reference, which is called "
            "FP32"
        )


def switch_notes(layers: tuple[Layer, ...]) -> tuple[str, ...]:
    """Returns a note on Q/DQ nodes that stay in every plan; nothing if there are none."""
    left = [layer.name for layer in layers if layer.op_type in ("QuantizeLinear", "DequantizeLinear")]
    if not left:
        return ()
    return (
        f"{len(left)} Q/DQ nodes cannot be switched (not INT8, in blocks, with computed scales, or with other "
        f"parameters in Q than in DQ) and stay in every plan, including FP32: '{left[0]}' is the first",
    )


def low_of_pairs(pairs: ExistingPairs, low: LowPrecision, source: str) -> LowPrecision:
    """Returns the low precision of a network: that of the pairs in its file, if there are any.

    Raises:
        BadInput: another one than that of the pairs is asked for.
    """
    every = [quantizer for chain in (*pairs.inputs.values(), *pairs.outputs.values()) for quantizer in chain]
    if not every:
        return low
    kinds = {FP8 if quantizer.in_fp8 else INT8 for quantizer in every}
    if low is not INT8 and kinds != {low}:
        raise BadInput(
            f"'{source}' came with Q/DQ pairs of {' and '.join(sorted(kind.title for kind in kinds))}: it cannot be "
            f"measured in {low.title}.",
            "Give the network without pairs, or leave out --low.",
        )
    return FP8 if kinds == {FP8} else INT8
