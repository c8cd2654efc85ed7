"""Bias correction: subtracts the mean error that INT8 adds to each output channel of a layer from the layer's bias.

Source: Nagel, van Baalen, Blankevoort, Welling, "Data-Free Quantization Through Weight Equalization and Bias
Correction", ICCV 2019, section 4.2 and appendix D: empirical correction, layer by layer in execution order, with all
earlier layers quantized and corrected.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import numpy as np
import onnx

from trt_bisect.data.feeds import Feeds
from trt_bisect.errors import BadInput, TrialFailed, first_line
from trt_bisect.model.equalise import BIAS_SLOT, with_constants
from trt_bisect.model.file import attribute, type_inputs
from trt_bisect.model.network import Network, Slot
from trt_bisect.model.observe import can_be_cut, facts_for
from trt_bisect.model.pieces import Boundaries, Piece
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.model.quantizer import Scales
from trt_bisect.model.session import make_session
from trt_bisect.precision import PrecisionPlan
from trt_bisect.support.machine import MEMORY

_Tensors = dict[str, np.ndarray]
SAMPLES = 32  # the most samples from which a mean error is computed


def correct_biases(
    network: Network, scales: Scales, plan: PrecisionPlan, samples: Iterable[Feeds], *, memory: int = MEMORY
) -> tuple[Network, dict[str, np.ndarray]]:
    """Corrects the biases of a network without Q/DQ pairs for a plan.

    These are the biases of each INT8 Conv, ConvTranspose and Gemm, and the constant added after a MatMul, if the
    weights are constant. At most 32 samples are used, fewer if their tensors exceed half of ``memory`` bytes.

    Returns:
        The network; and by corrected layer, in execution order, the mean error of its output by channel (float64).

    Raises:
        BadInput: there are no samples, or ONNX Runtime refuses one.
        TrialFailed: ONNX Runtime refuses a part of the network, or the network cannot be cut into pieces.
    """
    if not can_be_cut(network.skeleton):
        raise TrialFailed("build failed", "values between its layers are no tensors: it cannot be cut into pieces")
    boundaries = Boundaries(network)
    fp32 = [dict(feeds) for feeds in _samples_held(network, boundaries, samples, memory)]
    int8 = [dict(feeds) for feeds in fp32]
    writer = PlanWriter(network, scales, GraphTarget.ONNXRUNTIME)
    changed: dict[Slot, np.ndarray] = {}
    errors: dict[str, np.ndarray] = {}
    start = 0
    for index, lowered, slot, axis, factor in sorted(_bias_inputs(network, plan)):
        for run_plan, held in (network.free_plan(), fp32), (plan, int8):
            _run(writer, boundaries.piece(start, index + 1), run_plan, held)
        start, output, node = index + 1, network.layers[index].outputs[0], network.skeleton.graph.node[index]
        error = _mean_error(fp32, int8, output, axis)
        if error is not None:
            name = node.input[slot] if slot < len(node.input) else ""
            bias = network.constant(name).astype(np.float64) if name else np.zeros(error.shape)
            changed[index, slot] = np.asarray(bias - error / factor, np.float32)
            errors[network.layers[lowered].name] = error
            for tensors in int8:
                values = tensors[output]
                by_channel = error.reshape(-1, *[1] * (values.ndim - 2)) if axis == 1 else error
                tensors[output] = values - by_channel.astype(values.dtype)
        for tensors in (*fp32, *int8):
            for name in [name for name in tensors if boundaries.last_read.get(name, -1) < start]:
                del tensors[name]
    return (with_constants(network, changed) if changed else network), errors


def _samples_held(network: Network, boundaries: Boundaries, samples: Iterable[Feeds], memory: int) -> Iterator[Feeds]:
    remaining = iter(samples)
    first = next(remaining, None)
    if first is None:
        remedy = "Give a few dozen samples like the data in production."
        raise BadInput("There are no samples to correct biases with.", remedy)
    facts = facts_for(network, first)
    fed = sum(array.nbytes for array in first.values())
    largest = fed + 2 * max(sum(facts.size(name) for name in live) for live in boundaries.live)
    most = max(1, min(SAMPLES, memory // 2 // max(largest, 1)))
    yield first
    yield from islice(remaining, most - 1)


def _bias_inputs(network: Network, plan: PrecisionPlan) -> Iterator[tuple[int, int, int, int, float]]:
    nodes = network.skeleton.graph.node
    for k in sorted(plan.lowered & set(network.quantizable)):
        node = nodes[k]
        if len(node.input) < 2 or not network.has_constant(node.input[1]):
            continue
        if node.op_type in ("Conv", "ConvTranspose", "Gemm"):
            bias = node.input[BIAS_SLOT] if len(node.input) > BIAS_SLOT else ""
            factor = attribute(node, "beta", 1.0)
            if (not bias or network.has_constant(bias)) and factor:
                yield k, k, BIAS_SLOT, 1, factor
        elif node.op_type == "MatMul" and network.uses[node.output[0]] == 1:
            for reader, slot in network.readers.get(node.output[0], ()):
                beside = 1 - slot
                if nodes[reader].op_type == "Add" and network.has_constant(nodes[reader].input[beside]):
                    shape = network.constant(nodes[reader].input[beside]).shape
                    if shape and math.prod(shape) == shape[-1]:
                        yield reader, k, beside, -1, 1.0


def _run(writer: PlanWriter, piece: Piece, plan: PrecisionPlan, held: Sequence[_Tensors]) -> None:
    written = writer.write(plan, piece)
    type_inputs(written.model.graph, held[0])
    for value in written.model.graph.output:
        value.CopyFrom(onnx.ValueInfoProto(name=value.name))
    session = make_session(written, arena=False)
    for tensors in held:
        try:
            made = session.run(list(piece.leaves), {name: tensors[name] for name in piece.reads})
        except Exception as error:
            raise TrialFailed("inference failed", first_line(error)) from error
        tensors.update(zip(piece.leaves, made, strict=True))


def _mean_error(fp32: Sequence[_Tensors], int8: Sequence[_Tensors], tensor: str, axis: int) -> np.ndarray | None:
    total: np.ndarray | float = 0.0
    count = 0
    for exact, low in ((floats.get(tensor), ours.get(tensor)) for floats, ours in zip(fp32, int8, strict=True)):
        if exact is None or low is None or exact.shape != low.shape or not exact.size:
            return None
        by_channel = np.moveaxis(low.astype(np.float64) - exact, axis, -1).reshape(-1, exact.shape[axis])
        total = total + by_channel.sum(axis=0)
        count += by_channel.shape[0]
    mean = np.asarray(total / count)
    return mean if np.isfinite(mean).all() else None
