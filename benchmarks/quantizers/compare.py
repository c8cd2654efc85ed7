"""What trt-bisect makes of a quantized network, against ONNX Runtime on the files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

from trt_bisect import load_network
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
from trt_bisect.errors import TrtBisectError
from trt_bisect.model.network import Network
from trt_bisect.model.reading import reading_noted, relative_difference
from trt_bisect.precision import int8_set

Samples = Sequence[dict[str, np.ndarray]]

EQUAL = 1e-4
EQUAL_IN_FP16 = 3e-3
"""A file in FP16 rounds every tensor to 11 bits; the FP32 network does not."""

_NEAR = 0.1


@dataclass(frozen=True)
class Compared:
    """One quantized network.

    Attributes:
        refused: why trt-bisect does not take it; empty where it does.
        int8: full INT8 off ONNX Runtime on the file, the largest |difference| / |output| over the samples.
        fp32: FP32 off the original FP32 network with the weights rounded as in the file.
        pairs: the quantizable layers.
        note: what trt-bisect says of a difference.
    """

    refused: str = ""
    int8: float = 0.0
    fp32: float = 0.0
    pairs: int = 0
    fp16: bool = False
    note: str = ""

    @property
    def verdict(self) -> str:
        """``equal``, ``refused``, ``flips`` (equal layer by layer, a rounding flips on float noise) or ``DIFFERENT``."""
        if self.refused:
            return "refused"
        bound = EQUAL_IN_FP16 if self.fp16 else EQUAL
        if self.fp32 > bound:
            return "DIFFERENT"
        return "equal" if self.int8 <= bound else "flips"


def compare(original: Path, quantized: Path, samples: Samples) -> Compared:
    """Compares one file; a network that trt-bisect refuses is compared no further."""
    try:
        network = load_network(quantized)
        outputs = [spec.name for spec in network.outputs]
        notes = [note for sample in samples for note in reading_noted(network, sample, outputs)]
    except TrtBisectError as error:
        return Compared(refused=error.message)
    if not network.has_pairs:
        return Compared(refused="no pair that trt-bisect can switch")
    fp16 = any(tensor.data_type == onnx.TensorProto.FLOAT16 for tensor in onnx.load(quantized).graph.initializer)
    builder = OnnxRuntimeBuilder(network, {}, BuildOptions())
    int8 = builder.build(int8_set(len(network.layers), network.quantizable))
    fp32 = builder.reference()
    file = plain_session(onnx.load(quantized))
    truth = plain_session(with_rounded_weights(onnx.load(original), network))
    far = {"int8": 0.0, "fp32": 0.0}
    for sample in samples:
        for key, ours, theirs in (("int8", int8, file), ("fp32", fp32, truth)):
            made = list(ours.infer(sample).values())[0]
            far[key] = max(far[key], relative_difference(theirs.run(None, sample)[0], made))
    return Compared("", far["int8"], far["fp32"], len(network.quantizable), fp16, notes[0] if notes else "")


def plain_session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """ONNX Runtime with no optimisation: Q/DQ in float, node by node."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def with_rounded_weights(original: onnx.ModelProto, network: Network) -> onnx.ModelProto:
    """The FP32 network with each weight and bias replaced by what the quantizer made of it.

    That is the network's constant of the same shape, or transposed, that is nearest to it, if it is within a tenth:
    where a weight was read wrongly there is none.
    """
    constants = [network.constant(name) for name in _constants(network)]
    for tensor in original.graph.initializer:
        if tensor.data_type != onnx.TensorProto.FLOAT or not tensor.dims:
            continue
        values = numpy_helper.to_array(tensor)
        candidates = [found for found in constants if found.shape == values.shape]
        if values.ndim == 2:
            candidates += [found.T for found in constants if found.T.shape == values.shape]
        far = [relative_difference(values, found) for found in candidates]
        if far and min(far) < _NEAR:
            near = np.ascontiguousarray(candidates[int(np.argmin(far))], np.float32)
            tensor.CopyFrom(numpy_helper.from_array(near, tensor.name))
    return original


def _constants(network: Network) -> list[str]:
    return [
        tensor.name
        for tensor in network.skeleton.graph.initializer
        if tensor.data_type in (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)
    ]
