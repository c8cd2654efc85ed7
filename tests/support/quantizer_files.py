"""Compares trt-bisect's reading of a quantized network with ONNX Runtime on the files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from tests.support.quantized import plain_session
from trt_bisect import load_network
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder, OnnxRuntimeEngine
from trt_bisect.errors import TrtBisectError
from trt_bisect.model.network import Network
from trt_bisect.model.reading import compare_with_file, relative_difference, without_pairs
from trt_bisect.precision import int8_set

Samples = Sequence[dict[str, np.ndarray]]

EQUAL = 1e-4
EQUAL_IN_FP16 = 3e-3
"""A file in FP16 rounds every tensor to 11 bits; the FP32 network does not."""

_NEAR = 0.1


@dataclass(frozen=True)
class Compared:
    """One quantized network. Differences are the largest |difference| / |output| over the samples, in norms.

    Attributes:
        refused: why trt-bisect does not take it; empty where it does.
        int8: full INT8 with the file's pairs off ONNX Runtime on the file.
        fp32: FP32 off the truth.
        truth: of FP32: ``original``, the original network with the weights rounded as in the file; or ``file``, the
            quantized file with its pairs passed by, where the tool changed the weights otherwise than by rounding.
        pairs: how many layers are quantizable.
        fp16: the file is in FP16.
        noted: what trt-bisect says of a difference that is float noise.
    """

    refused: str = ""
    int8: float = 0.0
    fp32: float = 0.0
    truth: str = "original"
    pairs: int = 0
    fp16: bool = False
    noted: str = ""

    @property
    def verdict(self) -> str:
        """``equal``, ``refused``, ``noise`` (each layer equal, the output not, and that is said) or ``DIFFERENT``."""
        if self.refused:
            return "refused"
        if self.fp32 > (EQUAL_IN_FP16 if self.fp16 else EQUAL):
            return "DIFFERENT"
        if self.int8 > (EQUAL_IN_FP16 if self.fp16 else EQUAL):
            return "noise" if self.noted else "DIFFERENT"
        return "equal"


def compare(original: Path, quantized: Path, samples: Samples) -> Compared:
    """Compares one file; a network that trt-bisect refuses is compared no further."""
    try:
        network = load_network(quantized)
        outputs = [spec.name for spec in network.outputs]
        notes = [note for sample in samples for note in compare_with_file(network, sample, outputs)]
    except TrtBisectError as error:
        return Compared(refused=error.problem)
    if not network.has_pairs:
        return Compared(refused="it has no pair that trt-bisect can switch")
    file = onnx.load(quantized)
    plan = int8_set(len(network.layers), network.quantizable)
    rounded = with_rounded_weights(onnx.load(original), network)
    float_file = rounded or without_pairs(file, {layer.name for layer in network.layers})
    own = OnnxRuntimeBuilder(network.as_in_file(), {}, BuildOptions())
    return Compared(
        int8=_apart(own.build(plan), file, samples),
        fp32=_apart(own.reference(), float_file, samples),
        truth="original" if rounded else "file",
        pairs=len(network.quantizable),
        fp16=any(tensor.data_type == onnx.TensorProto.FLOAT16 for tensor in file.graph.initializer),
        noted=notes[0] if notes else "",
    )


def _apart(ours: OnnxRuntimeEngine, model: onnx.ModelProto, samples: Samples) -> float:
    session = plain_session(model, optimised=False)
    names = [output.name for output in session.get_outputs()]
    runs = [(session.run(names, sample), ours.infer(sample)) for sample in samples]
    return max(
        relative_difference(y, made[name]) for theirs, made in runs for name, y in zip(names, theirs, strict=True)
    )


def with_rounded_weights(original: onnx.ModelProto, network: Network) -> onnx.ModelProto | None:
    """The FP32 network with each weight and bias replaced by what the quantizer made of it.

    That is the network's constant of the same shape, or transposed, that is within a tenth of it: where a weight was
    read wrongly there is none. None is returned where a weight has no such constant, or several that differ.
    """
    constants = [network.constant(name).astype(np.float32) for name in _constants(network)]
    for tensor in original.graph.initializer:
        if tensor.data_type != onnx.TensorProto.FLOAT or not tensor.dims:
            continue
        values = numpy_helper.to_array(tensor)
        near = [found for found in constants if found.shape == values.shape]
        near += [found.T for found in constants if values.ndim == 2 and found.T.shape == values.shape]
        near = [found for found in near if relative_difference(values, found) < _NEAR]
        if not near or any(not np.array_equal(near[0], found) for found in near):
            return None
        tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(near[0]), tensor.name))
    return original


def _constants(network: Network) -> list[str]:
    floats = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)
    return [tensor.name for tensor in network.skeleton.graph.initializer if tensor.data_type in floats]
