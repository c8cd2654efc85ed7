"""Bias correction: the mean error that INT8 adds to each output channel of a layer is taken out of its bias.

Source: Nagel, van Baalen, Blankevoort, Welling, "Data-Free Quantization Through Weight Equalization and Bias
Correction", ICCV 2019, section 4.2 and appendix D: empirical bias correction, layer by layer in execution order, each
layer with all layers before it quantized and corrected. The alternatives lose: on a text classifier (72 layers, 24
samples, min-max) the worst cosine is 0.555 without a correction, 0.901 with this one, 0.748 if each layer's error is
measured from FP32 inputs, and 0.151 if all errors are measured in the uncorrected network.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper

from trt_bisect.data.feeds import Feeds
from trt_bisect.errors import BadInput, TrialFailed, first_line
from trt_bisect.model.equalise import BIAS_SLOT, with_constants
from trt_bisect.model.file import tensor_uses
from trt_bisect.model.network import Network
from trt_bisect.model.observe import can_be_cut
from trt_bisect.model.pieces import Boundaries, Piece
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.model.quantizer import Scales
from trt_bisect.model.session import make_session
from trt_bisect.model.shapes import facts_for
from trt_bisect.precision import PrecisionPlan
from trt_bisect.support.machine import MEMORY

SAMPLES = 32
"""The samples that a mean is taken over, if memory holds the live tensors of so many."""


@dataclass(frozen=True, eq=False)
class CorrectedBias:
    """The correction of one layer.

    Attributes:
        layer: its name.
        error: the mean error of its output in INT8, by channel, float64; it was subtracted from the bias.
    """

    layer: str
    error: np.ndarray


@dataclass(frozen=True)
class BiasCorrected:
    """A network with corrected biases.

    Attributes:
        network: the network.
        layers: those that were corrected, in execution order.
        samples: the number of samples that the means are taken over.
    """

    network: Network
    layers: tuple[CorrectedBias, ...]
    samples: int


@dataclass(frozen=True)
class _BiasInput:
    """The bias of a layer in INT8.

    Attributes:
        rounded: the index of the layer in INT8.
        index: the index of the layer that reads the bias: the same, or for a MatMul the Add after it.
        slot: the input of that layer that is the bias.
        axis: the channel axis of that layer's output.
        factor: a Gemm's ``beta``, by which it multiplies its bias; 1 for other layers.
    """

    rounded: int
    index: int
    slot: int
    axis: int
    factor: float = 1.0


@dataclass(frozen=True, eq=False)
class _HeldSample:
    """The live tensors of one sample, by name, in FP32 and under the plan."""

    fp32: dict[str, np.ndarray]
    int8: dict[str, np.ndarray]


def correct_biases(
    network: Network,
    scales: Scales,
    plan: PrecisionPlan,
    samples: Iterable[Feeds],
    *,
    memory: int = MEMORY,
) -> BiasCorrected:
    """Returns ``network`` with corrected biases for a plan.

    The network runs once, piece by piece, in FP32 and under the plan, on all samples at the same time. After each layer
    in INT8 that has a bias, or can get one, the mean difference of its output, by channel, is subtracted from the bias,
    and from the output that later pieces read. These layers are Conv, ConvTranspose, Gemm, and MatMul before the Add of
    a constant, each with a constant weight. The live tensors of all samples are held, which limits the number of
    samples: to ``SAMPLES``, and to half of ``memory``.

    Args:
        network: without Q/DQ pairs of its own.

    Raises:
        BadInput: there are no samples, or ONNX Runtime refuses one.
        TrialFailed: ONNX Runtime refuses a piece, or the network cannot be cut into pieces.
    """
    if not can_be_cut(network.skeleton):
        raise TrialFailed("build failed", "values between its layers are no tensors: it cannot be cut into pieces")
    boundaries = Boundaries(network)
    held = list(_held(network, boundaries, samples, memory))
    pieces = _Pieces(PlanWriter(network, scales, GraphTarget.ONNXRUNTIME), plan)
    changed: dict[tuple[int, int], np.ndarray] = {}
    corrected, start = [], 0
    for place in _places(network, plan):
        pieces.run(boundaries.piece(start, place.index + 1), held)
        start = place.index + 1
        error = _mean_error(held, network.layers[place.index].outputs[0], place.axis)
        if error is not None:
            changed[place.index, place.slot] = _new_bias(network, place, error)
            corrected.append(CorrectedBias(network.layers[place.rounded].name, error))
            _subtract(held, network.layers[place.index].outputs[0], place.axis, error)
        for sample in held:
            _let_go(sample, boundaries, start)
    return BiasCorrected(with_constants(network, changed) if changed else network, tuple(corrected), len(held))


def _held(network: Network, boundaries: Boundaries, samples: Iterable[Feeds], memory: int) -> Iterator[_HeldSample]:
    """Yields as many of the samples as memory can hold, one at least."""
    rest = iter(samples)
    first = next(rest, None)
    if first is None:
        raise BadInput(
            "There are no samples to correct biases with.", "Give a few dozen samples like the data in production."
        )
    facts = facts_for(network, first)
    fed = sum(array.nbytes for array in first.values())
    largest = fed + 2 * max(sum(facts.size(name) for name in live) for live in boundaries.live)
    most = max(1, min(SAMPLES, memory // 2 // max(largest, 1)))
    for feeds in (first, *islice(rest, most - 1)):
        yield _HeldSample(dict(feeds), dict(feeds))


def _places(network: Network, plan: PrecisionPlan) -> list[_BiasInput]:
    """The biases of the layers in INT8, in the order in which they are read."""
    graph = network.skeleton.graph
    constants, uses = {tensor.name for tensor in graph.initializer}, tensor_uses(graph)
    readers = {name: index for index, node in enumerate(graph.node) for name in node.input}
    bias_inputs = []
    for k in sorted(plan.lowered & set(network.quantizable)):
        node = graph.node[k]
        if len(node.input) < 2 or node.input[1] not in constants:
            continue
        if node.op_type in ("Conv", "ConvTranspose", "Gemm"):
            bias = node.input[BIAS_SLOT] if len(node.input) > BIAS_SLOT else ""
            factor = next((each.f for each in node.attribute if each.name == "beta"), 1.0)
            if (not bias or bias in constants) and factor:
                bias_inputs.append(_BiasInput(k, k, BIAS_SLOT, 1, factor))
        elif node.op_type == "MatMul" and uses[node.output[0]] == 1:
            reader = readers.get(node.output[0])
            slot = None if reader is None else _added(network, reader, node.output[0], constants)
            if reader is not None and slot is not None:
                bias_inputs.append(_BiasInput(k, reader, slot, -1))
    return sorted(bias_inputs, key=lambda place: place.index)


def _added(network: Network, index: int, tensor: str, constants: set[str]) -> int | None:
    """The input of an Add that is a constant with a value for each channel, on the last axis; None if there is none."""
    node = network.skeleton.graph.node[index]
    slot = 1 if node.input[0] == tensor else 0
    if node.op_type != "Add" or node.input[slot] not in constants:
        return None
    bias = network.constant(node.input[slot])
    return slot if bias.ndim and bias.size == bias.shape[-1] else None


class _Pieces:
    """Runs pieces of a network in FP32 and under a plan."""

    def __init__(self, writer: PlanWriter, plan: PrecisionPlan) -> None:
        self._writer = writer
        self._plans = writer.network.free_plan(), plan

    def run(self, piece: Piece, held: Sequence[_HeldSample]) -> None:
        """Runs a piece on all samples; adds its leaves to them."""
        for plan, tensors in zip(
            self._plans, ([each.fp32 for each in held], [each.int8 for each in held]), strict=True
        ):
            session, leaves = self._session(piece, plan, tensors[0])
            for each in tensors:
                try:
                    made = session.run(list(leaves.values()), {name: each[name] for name in piece.reads})
                except Exception as error:
                    raise TrialFailed("inference failed", first_line(error)) from error
                each.update(zip(leaves, made, strict=True))

    def _session(
        self, piece: Piece, plan: PrecisionPlan, tensors: dict[str, np.ndarray]
    ) -> tuple[ort.InferenceSession, dict[str, str]]:
        """The session of a piece, and the session's output for each leaf; types are those of ``tensors``."""
        written = self._writer.write_piece(piece, plan)
        for value in written.model.graph.input:
            read = tensors[value.name]
            dtype = helper.np_dtype_to_tensor_dtype(read.dtype)
            value.CopyFrom(helper.make_tensor_value_info(value.name, dtype, [None] * read.ndim))
        for value in written.model.graph.output:
            value.CopyFrom(onnx.ValueInfoProto(name=value.name))
        return make_session(written, arena=False), dict(written.leaves)


def _mean_error(held: Sequence[_HeldSample], tensor: str, axis: int) -> np.ndarray | None:
    """The mean of plan minus FP32 by channel; None if a sample has no values, others in number, or not finite ones."""
    total: np.ndarray | float = 0.0
    count = 0
    for each in held:
        fp32, int8 = each.fp32.get(tensor), each.int8.get(tensor)
        if fp32 is None or int8 is None or fp32.shape != int8.shape or not fp32.size:
            return None
        by_channel = np.moveaxis(int8.astype(np.float64) - fp32, axis, -1).reshape(-1, fp32.shape[axis])
        total = total + by_channel.sum(axis=0)
        count += by_channel.shape[0]
    mean = np.asarray(total / count)
    return mean if np.isfinite(mean).all() else None


def _subtract(held: Sequence[_HeldSample], tensor: str, axis: int, error: np.ndarray) -> None:
    for each in held:
        values = each.int8[tensor]
        shape = [1] * values.ndim
        shape[axis] = -1
        each.int8[tensor] = values - error.reshape(shape).astype(values.dtype)


def _new_bias(network: Network, place: _BiasInput, error: np.ndarray) -> np.ndarray:
    node = network.skeleton.graph.node[place.index]
    name = node.input[place.slot] if place.slot < len(node.input) else ""
    bias = network.constant(name).astype(np.float64) if name else np.zeros(error.shape)
    return np.asarray(bias - error / place.factor, np.float32)


def _let_go(sample: _HeldSample, boundaries: Boundaries, start: int) -> None:
    """Removes the tensors that no layer from ``start`` on reads."""
    for tensors in (sample.fp32, sample.int8):
        for name in [name for name in tensors if boundaries.last_read.get(name, -1) < start]:
            del tensors[name]
