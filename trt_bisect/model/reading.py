"""Compares the prepared network with its file: ONNX Runtime runs both; their tensors must be equal."""

from __future__ import annotations

import logging
from collections.abc import Container, Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from trt_bisect.data.feeds import Feeds
from trt_bisect.errors import BadInput, TrialFailed, first_line
from trt_bisect.model.file import INLINE_UNTIL_BYTES, Written, read_model, type_inputs, with_outputs
from trt_bisect.model.layers import TensorFacts
from trt_bisect.model.network import Network
from trt_bisect.model.observe import facts_for, groups_of
from trt_bisect.model.pieces import Boundaries, Piece
from trt_bisect.model.prepare import name_nodes, with_named_nodes
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.model.qoperator import with_pairs
from trt_bisect.model.session import UNOPTIMISED, make_session
from trt_bisect.precision import PrecisionPlan
from trt_bisect.support.text import percent

FLOAT_NOISE = 1e-3
"""Float computations of the same network differ by at most this share of a tensor's norm."""

_RANDOM = ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli")
_TIMES_ITS_NOISE = 10.0
_DRAWS = 3
_NOISE = {np.dtype(np.float16): 2.0**-10, np.dtype(np.float32): 2.0**-20, np.dtype(np.float64): 2.0**-20}
_HELD_BYTES = 1 << 28
_NUMBERS = "biuf"


def compare_with_file(
    network: Network, feeds: Feeds, outputs: Sequence[str], prepared: Mapping[str, np.ndarray] | None = None
) -> list[str]:
    """Compares the network with its file on one sample, and returns notes, one sentence each.

    Skips files that are too large, missing, in FP16 or BF16, with random nodes, or refused by ONNX Runtime.

    ``prepared`` holds the network's FP32 outputs on the sample; None: they are computed.

    Raises BadInput, with the first tensor that differs, if the network computes something else.
    """
    notes = list[str]()
    if random_nodes(network.skeleton):
        return notes
    network = network.as_in_file()
    for plan, file in _comparisons(network):
        words = f"in full {network.low.title}" if plan.lowered else "in FP32"
        theirs = _run_file(file, outputs, feeds)
        if theirs is None:
            continue
        ours = prepared
        if ours is None or plan.lowered:
            ours = _run_prepared(network, plan, words, feeds, outputs)
        apart = max((relative_difference(theirs[name], ours[name]) for name in theirs), default=0.0)
        if apart <= FLOAT_NOISE:
            continue
        difference, skipped = _first_difference(network, plan, file, feeds)
        if difference:
            raise BadInput(
                f"'{network.source}' as prepared for measuring gives another output than the file: {words}, "
                f"{difference}, from the same inputs.",
                "trt-bisect would judge another network. Please report it with the network; simplifying it first "
                "(onnx-simplifier, Polygraphy) may help.",
            )
        if not skipped:
            notes.append(
                f"{words}, the prepared network and the file differ by {apart:.2g} of the output's norm on "
                "the first input, although each layer alone is equal: roundings flip because of float noise, or the "
                "output is almost zero. Differences smaller than that mean nothing"
            )
    return notes


def random_nodes(model: onnx.ModelProto) -> dict[str, str]:
    """Returns the operators of nodes with random outputs, by node name; Dropout only in training mode."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}

    def is_random(node: onnx.NodeProto) -> bool:
        if node.op_type != "Dropout":
            return node.op_type in _RANDOM
        mode = constants.get(node.input[2]) if len(node.input) > 2 else None
        return mode is not None and bool(np.any(onnx.numpy_helper.to_array(mode)))

    return {node.name or node.output[0]: node.op_type for node in model.graph.node if is_random(node)}


def relative_difference(original: np.ndarray, other: np.ndarray) -> float:
    """Returns |difference| / |original|, in norms, over the values that are finite in both.

    0 if only the sizes of axes differ, such as the number of boxes; 1 if the numbers of axes differ, or more than half
    of the values are finite in only one array.
    """
    if original.shape != other.shape:
        return 0.0 if original.ndim == other.ndim else 1.0
    if not original.size:
        return 0.0
    finite = np.isfinite(original) & np.isfinite(other)
    if np.mean(np.isfinite(original) != np.isfinite(other)) > 0.5:
        return 1.0
    first, second = original[finite].astype(np.float64), other[finite].astype(np.float64)
    norm = float(np.linalg.norm(first))
    return float(np.linalg.norm(first - second)) / norm if norm else float(np.any(second))


def _comparisons(network: Network) -> Iterator[tuple[PrecisionPlan, Written]]:
    weights = sum(array.nbytes for array in network.weights.values())
    there = Path(network.source).is_file()
    if weights > INLINE_UNTIL_BYTES or network.typed_in_file or not there:
        return
    model, apart = read_model(Path(network.source))
    model = with_pairs(with_named_nodes(model), apart)
    name_nodes(model.graph)
    if network.has_scales:
        yield network.free_plan(network.quantizable), Written(model, apart)
    kept = {layer.name for layer in network.layers}
    floats = without_pairs(model, kept) if network.has_pairs else model
    yield network.free_plan(), Written(floats, apart)


def without_pairs(model: onnx.ModelProto, kept: Container[str]) -> onnx.ModelProto:
    """Returns a copy of ``model`` whose Q/DQ pairs return their input; nodes named in ``kept`` stay."""
    copy = deepcopy(model)
    inputs = {node.output[0]: node.input[0] for node in copy.graph.node if node.op_type == "QuantizeLinear"}
    for node in copy.graph.node:
        if node.op_type == "DequantizeLinear" and node.input[0] in inputs and node.name not in kept:
            node.CopyFrom(helper.make_node("Identity", [inputs[node.input[0]]], list(node.output), node.name))
    return copy


def _run_prepared(
    network: Network, plan: PrecisionPlan, words: str, feeds: Feeds, outputs: Sequence[str]
) -> dict[str, np.ndarray]:
    written = PlanWriter(network, {}, GraphTarget.ONNXRUNTIME).write(plan)
    try:
        return dict(zip(outputs, make_session(written).run(list(outputs), feeds), strict=True))
    except Exception as error:
        why = error.message if isinstance(error, TrialFailed) else first_line(error)
        raise BadInput(
            f"'{network.source}' as prepared for measuring does not run {words}, where the file does: {why}",
            "Please report it with the network; simplifying it first (onnx-simplifier, Polygraphy) may help.",
        ) from error


def _run_file(file: Written, names: Sequence[str], feeds: Feeds) -> dict[str, np.ndarray] | None:
    made = {name for node in file.model.graph.node for name in node.output}
    present = [name for name in names if name in made]
    try:
        session = make_session(Written(with_outputs(file.model, present), file.weights), level=UNOPTIMISED)
        values = session.run(present, {name: feeds[name] for name in feeds})
    except Exception as error:
        logging.getLogger(__name__).debug("the file does not run: %s", error)
        return None
    return {name: value for name, value in zip(present, values, strict=True) if _is_numeric(value)}


def _is_numeric(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in _NUMBERS


def _first_difference(network: Network, plan: PrecisionPlan, file: Written, feeds: Feeds) -> tuple[str, bool]:
    facts = facts_for(network, feeds)
    made = {name for node in file.model.graph.node for name in node.output}
    pieces = _pieces(network, facts, made)
    layers = () if plan.lowered else network.layers
    # The file without pairs lacks restored activations.
    restored = {k.index for k in layers if k.op_type in ("Clip", "Relu") and not made & set(k.outputs)}
    compared = [piece for piece in pieces if restored.isdisjoint(piece.layers)]
    skipped = len(compared) < len(pieces)
    writer = PlanWriter(network, {}, GraphTarget.ONNXRUNTIME)

    def size(piece: Piece) -> int:
        return sum(facts.size(name) for name in (*piece.reads, *piece.leaves))

    for group in filter(None, groups_of(compared, size, _HELD_BYTES)):
        names = dict.fromkeys(name for piece in group for name in (*piece.reads, *piece.leaves))
        tensors = {**feeds, **(_run_file(file, list(names), feeds) or {})}
        for piece in group:
            difference = _piece_difference(writer, plan, piece, tensors, facts)
            if difference:
                return difference, skipped
    return "", skipped


def _pieces(network: Network, facts: TensorFacts, made: set[str]) -> list[Piece]:
    rounded_too = {rounding.tensor for layer in network.layers for rounding in layer.roundings if rounding.at_output}
    comparable = (made & set(facts.shapes)) - rounded_too
    boundaries = Boundaries(network)
    last_read = {name: layer.index for layer in network.layers for name in layer.inputs}
    unknown_between: set[int] = set()
    for name, maker in boundaries.made.items():
        if maker >= 0 and name not in comparable:
            unknown_between.update(range(maker + 1, last_read.get(name, maker) + 1))
    ends = [k for k in range(len(network.layers) + 1) if k not in unknown_between]
    return [boundaries.piece(start, stop) for start, stop in pairwise(ends)]


def _piece_difference(
    writer: PlanWriter, plan: PrecisionPlan, piece: Piece, tensors: Mapping[str, np.ndarray], facts: TensorFacts
) -> str:
    leaves = [name for name in piece.leaves if name in tensors]
    if not leaves or any(name not in tensors for name in piece.reads):
        return ""
    read = {}
    for name in piece.reads:
        values, prepared = tensors[name], facts.dtypes.get(name)
        both_floats = prepared is not None and prepared.kind == values.dtype.kind == "f"
        read[name] = values.astype(prepared, copy=False) if both_floats else values
    written = writer.write(plan, piece)
    type_inputs(written.model.graph, read)
    session = make_session(written)
    ours = dict(zip(leaves, session.run(leaves, read), strict=True))
    apart = {name: relative_difference(tensors[name], ours[name]) for name in leaves if _is_numeric(ours[name])}
    if max(apart.values(), default=0.0) <= FLOAT_NOISE:
        return ""
    noise = max(_NOISE.get(values.dtype, 0.0) for values in tensors.values())
    with_noise = [session.run(leaves, _with_noise(read, noise, seed)) for seed in range(_DRAWS)]
    for name, share in apart.items():
        by_noise = max(relative_difference(ours[name], again[leaves.index(name)]) for again in with_noise)
        if share > max(FLOAT_NOISE, _TIMES_ITS_NOISE * by_noise):
            return f"layer '{writer.network.producers[name].name}' makes '{name}', which differs by {percent(share)}"
    return ""


def _with_noise(read: Feeds, noise: float, seed: int) -> dict[str, np.ndarray]:
    random, noisy = np.random.default_rng(seed), dict(read)
    for name, value in read.items():
        if value.dtype.kind == "f":
            noisy[name] = (value * (1 + noise * random.standard_normal(value.shape))).astype(value.dtype)
    return noisy
