"""The network as it was read, compared with its file: ONNX Runtime runs both, and they must agree."""

from __future__ import annotations

import logging
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from trt_bisect.data.datasets import Feeds
from trt_bisect.errors import BadInput, TrialFailed, first_line
from trt_bisect.model.file import INLINE_UNTIL_BYTES, detach_weights, read_model
from trt_bisect.model.layers import TensorFacts
from trt_bisect.model.network import Network
from trt_bisect.model.pieces import Boundaries, Piece
from trt_bisect.model.prepare import inline_functions, name_nodes, use_default_domain
from trt_bisect.model.qdq import GraphTarget, PlanWriter, Written
from trt_bisect.model.session import make_session
from trt_bisect.model.shapes import facts_for
from trt_bisect.precision import PrecisionPlan, int8_set

FLOAT_NOISE = 1e-3
"""Of a tensor's norm: nearer than this two float computations of the same network are equal."""

_TIMES_ITS_NOISE = 10.0
_DRAWS = 3
_NOISE = {np.dtype(np.float16): 2.0**-10, np.dtype(np.float32): 2.0**-20, np.dtype(np.float64): 2.0**-20}
_HELD_BYTES = 1 << 28
_NUMBERS = "biuf"


@dataclass(frozen=True)
class Difference:
    """The first run of layers that computes, from the file's own tensors, something else than the file.

    Attributes:
        tensor: the first that differs.
        layer: the layer that makes it.
        share: |difference| / |tensor in the file|, in norms.
    """

    tensor: str
    layer: str
    share: float


@dataclass(frozen=True)
class _Comparison:
    """One plan of the network, and the graph from the file that computes the same."""

    words: str
    plan: PrecisionPlan
    file: Written


def reading_noted(
    network: Network, feeds: Feeds, outputs: Sequence[str], prepared: Mapping[str, np.ndarray] | None = None
) -> list[str]:
    """Compares the network with its file on one sample, and returns what is to be said, a sentence each.

    A network with Q/DQ pairs is compared twice: in full INT8 with the file, and in FP32 with the file whose pairs are
    passed by. ONNX Runtime runs the file with graph optimisation disabled, so that no INT8 kernel takes part. Outputs
    that differ by float noise are equal. Where they differ by more, each run of layers is given the file's own tensors
    to read, and must make the file's tensors. So a rounding that flips on float noise does not reach the next layer,
    however deep the network is.

    Nothing is compared where the file is too large to be loaded twice, is on another machine, or ONNX Runtime cannot
    run it.

    Args:
        network: as it was read. Layers kept high since, and pairs made symmetric, are compared as they are in the file.
        feeds: the sample.
        outputs: those that are compared first.
        prepared: the network's FP32 outputs on the sample, where ONNX Runtime has run it already.

    Raises:
        BadInput: the network is another one than the file; the message names the first tensor that differs.
    """
    notes = []
    network = _as_in_the_file(network)
    for comparison in _comparisons(network):
        known = prepared if not comparison.plan.int8 else None
        apart = _outputs_apart(network, comparison, feeds, outputs, known)
        if apart <= FLOAT_NOISE:
            continue
        found, put_back = _first_difference(network, comparison, feeds)
        if found is not None:
            raise BadInput(
                f"'{network.source}' as prepared for measuring gives another output than the file: {comparison.words}, "
                f"layer '{found.layer}' makes '{found.tensor}' {found.share:.2%} off the file's, from the same inputs.",
                "trt-bisect would judge another network. Please report it with the network; simplifying it first "
                "(onnx-simplifier, Polygraphy) may help.",
            )
        if not put_back:
            notes.append(
                f"{comparison.words}, the prepared network and the file differ by {apart:.2g} of the output's norm on "
                "the first input, although each layer alone is equal: roundings flip on float noise, or the output is "
                "almost zero, and figures closer than that mean nothing"
            )
    return notes


def difference_from_file(
    network: Network, feeds: Feeds, outputs: Sequence[str], prepared: Mapping[str, np.ndarray] | None = None
) -> float:
    """The largest difference of an output from the file, over the comparisons of ``reading_noted``; 0 without any.

    It is |difference| / |output|, in norms. The arguments are those of ``reading_noted``.
    """
    network = _as_in_the_file(network)
    return max(
        (_outputs_apart(network, c, feeds, outputs, None if c.plan.int8 else prepared) for c in _comparisons(network)),
        default=0.0,
    )


def relative_difference(original: np.ndarray, other: np.ndarray) -> float:
    """|difference| / |original|, in norms, over the values that are finite in both.

    0 where the shapes differ but not their number of axes: a detector's boxes, whose number hangs on float noise. 1
    where it differs too, or more than half of the values are finite in one only.
    """
    if original.shape != other.shape:
        return 0.0 if original.ndim == other.ndim else 1.0
    finite = np.isfinite(original) & np.isfinite(other)
    if np.mean(np.isfinite(original) != np.isfinite(other)) > 0.5:
        return 1.0
    one, two = original[finite].astype(np.float64), other[finite].astype(np.float64)
    norm = float(np.linalg.norm(one))
    return float(np.linalg.norm(one - two)) / norm if norm else float(np.any(two))


def _as_in_the_file(network: Network) -> Network:
    """The network with the file's own quantizers, and every layer in INT8 that has any, whatever was changed since."""
    if not network.has_pairs:
        return network
    own = network.as_in_file()
    return replace(own, layers=tuple(replace(layer, why_not="") if layer.roundings else layer for layer in own.layers))


def _comparisons(network: Network) -> Iterator[_Comparison]:
    weights = sum(array.nbytes for array in network.weights.values())
    if weights > INLINE_UNTIL_BYTES or not network.has_file or not Path(network.source).is_file():
        return
    model = read_model(Path(network.source))
    apart = detach_weights(model)
    use_default_domain(model)
    model = inline_functions(model)
    name_nodes(model.graph)
    count = len(network.layers)
    if network.has_pairs:
        yield _Comparison("in full INT8", int8_set(count, network.quantizable), Written(model, apart))
    kept = {layer.name for layer in network.layers}
    floats = passing_pairs_by(model, kept) if network.has_pairs else model
    yield _Comparison("in FP32", int8_set(count, ()), Written(floats, apart))


def passing_pairs_by(model: onnx.ModelProto, kept: Container[str]) -> onnx.ModelProto:
    """A copy of ``model`` in which what a pair returns is what it was given; nodes named in ``kept`` stay."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    given = {node.output[0]: node.input[0] for node in copy.graph.node if node.op_type == "QuantizeLinear"}
    for node in copy.graph.node:
        if node.op_type == "DequantizeLinear" and node.input[0] in given and node.name not in kept:
            source = given[node.input[0]]
            node.CopyFrom(helper.make_node("Identity", [source], list(node.output), node.name))
    return copy


def _outputs_apart(
    network: Network,
    comparison: _Comparison,
    feeds: Feeds,
    outputs: Sequence[str],
    prepared: Mapping[str, np.ndarray] | None,
) -> float:
    """The largest relative difference of an output; 0 where the file does not run."""
    theirs = _run_file(comparison.file, outputs, feeds)
    if theirs is None:
        return 0.0
    if prepared is None:
        prepared = _run_prepared(network, comparison, feeds, outputs)
    return max((relative_difference(theirs[name], prepared[name]) for name in theirs), default=0.0)


def _run_prepared(
    network: Network, comparison: _Comparison, feeds: Feeds, outputs: Sequence[str]
) -> dict[str, np.ndarray]:
    written = PlanWriter(network, {}, GraphTarget.ONNXRUNTIME).write(comparison.plan)
    try:
        return dict(zip(outputs, make_session(written).run(list(outputs), feeds), strict=True))
    except Exception as error:
        why = error.message if isinstance(error, TrialFailed) else first_line(error)
        raise BadInput(
            f"'{network.source}' as prepared for measuring does not run {comparison.words}, where the file does: {why}",
            "Please report it with the network; simplifying it first (onnx-simplifier, Polygraphy) may help.",
        ) from error


def _run_file(file: Written, names: Sequence[str], feeds: Feeds) -> dict[str, np.ndarray] | None:
    """The numeric tensors ``names`` as the file makes them, without graph optimisation; None where it does not run."""
    made = {name for node in file.model.graph.node for name in node.output}
    known = [name for name in names if name in made]
    model = onnx.ModelProto()
    model.CopyFrom(file.model)
    ends = {value.name for value in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in known if name not in ends)
    try:
        session = make_session(Written(model, file.weights), as_it_stands=True)
        values = session.run(known, {name: feeds[name] for name in feeds})
    except Exception as error:
        logging.getLogger(__name__).debug("the file alone does not run: %s", error)
        return None
    return {name: value for name, value in zip(known, values, strict=True) if _is_numeric(value)}


def _is_numeric(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in _NUMBERS


def _first_difference(network: Network, comparison: _Comparison, feeds: Feeds) -> tuple[Difference | None, bool]:
    """The first run of layers that differs, if any does; and whether some were passed over.

    In FP32 the runs with an activation that a pair had taken in, and that was put back, are passed over: with the pairs
    passed by, the file lacks it.
    """
    facts = facts_for(network, feeds)
    made = {name for node in comparison.file.model.graph.node for name in node.output}
    pieces = _pieces(network, facts, made)
    put_back = [] if comparison.plan.int8 else [piece for piece in pieces if _puts_back(network, piece, made)]
    writer = PlanWriter(network, {}, GraphTarget.ONNXRUNTIME)
    for group in _in_memory([piece for piece in pieces if piece not in put_back], facts):
        names = dict.fromkeys(name for piece in group for name in (*piece.reads, *piece.leaves))
        tensors = {**feeds, **(_run_file(comparison.file, list(names), feeds) or {})}
        for piece in group:
            found = _piece_difference(network, writer, comparison.plan, piece, tensors, facts)
            if found is not None:
                return found, bool(put_back)
    return None, bool(put_back)


def _pieces(network: Network, facts: TensorFacts, made: set[str]) -> list[Piece]:
    """The shortest runs of layers that read, and leave, only tensors that the file has as well."""
    rounded_too = {rounding.tensor for layer in network.layers for rounding in layer.roundings if rounding.at_output}
    known = (made & set(facts.shapes)) - rounded_too
    boundaries = Boundaries.of(network)
    last_read = {name: layer.index for layer in network.layers for name in layer.inputs}
    unknown_between: set[int] = set()
    for name, maker in boundaries.made.items():
        if maker >= 0 and name not in known:
            unknown_between.update(range(maker + 1, last_read.get(name, maker) + 1))
    ends = [k for k in range(len(network.layers) + 1) if k not in unknown_between]
    return [boundaries.piece(start, stop) for start, stop in pairwise(ends)]


def _puts_back(network: Network, piece: Piece, made: set[str]) -> bool:
    inside = (network.layers[k] for k in piece.layers)
    return any(layer.op_type in ("Clip", "Relu") and not made & set(layer.outputs) for layer in inside)


def _in_memory(pieces: Sequence[Piece], facts: TensorFacts) -> Iterator[list[Piece]]:
    """``pieces`` in groups whose tensors take about as much memory as may be held at once."""
    group: list[Piece] = []
    held = 0
    for piece in pieces:
        size = sum(facts.size(name) for name in (*piece.reads, *piece.leaves))
        if group and held + size > _HELD_BYTES:
            yield group
            group, held = [], 0
        group.append(piece)
        held += size
    if group:
        yield group


def _piece_difference(
    network: Network,
    writer: PlanWriter,
    plan: PrecisionPlan,
    piece: Piece,
    tensors: Mapping[str, np.ndarray],
    facts: TensorFacts,
) -> Difference | None:
    """The first leaf that differs by more than float noise, and than ten times what noise in the inputs makes of it."""
    leaves = [name for name in piece.leaves if name in tensors]
    if not leaves or any(name not in tensors for name in piece.reads):
        return None
    read = {name: _as_read(tensors[name], facts.dtypes.get(name)) for name in piece.reads}
    written = writer.write_piece(piece, plan)
    for value in written.model.graph.input:
        dtype = helper.np_dtype_to_tensor_dtype(read[value.name].dtype)
        value.CopyFrom(helper.make_tensor_value_info(value.name, dtype, read[value.name].shape))
    session = make_session(written)
    names = [written.leaves[name] for name in leaves]
    ours = dict(zip(leaves, session.run(names, read), strict=True))
    apart = {name: relative_difference(tensors[name], ours[name]) for name in leaves if _is_numeric(ours[name])}
    if max(apart.values(), default=0.0) <= FLOAT_NOISE:
        return None
    noise = max((_NOISE[tensors[name].dtype] for name in tensors if tensors[name].dtype in _NOISE), default=0.0)
    shaken = [session.run(names, _shaken(read, noise, seed)) for seed in range(_DRAWS)]
    for place, name in enumerate(leaves):
        own = max(relative_difference(ours[name], again[place]) for again in shaken) if name in apart else np.inf
        if name in apart and apart[name] > max(FLOAT_NOISE, _TIMES_ITS_NOISE * own):
            return Difference(name, network.producers[name].name, apart[name])
    return None


def _as_read(value: np.ndarray, dtype: np.dtype[np.generic] | None) -> np.ndarray:
    """A float tensor of the file in the float type that the prepared network has it in."""
    if dtype is None or value.dtype.kind != "f" or dtype.kind != "f":
        return value
    return value.astype(dtype, copy=False)


def _shaken(read: Feeds, noise: float, seed: int) -> dict[str, np.ndarray]:
    """``read`` with relative noise on all that is float."""
    random = np.random.default_rng(seed)
    return {
        name: (value * (1 + noise * random.standard_normal(value.shape))).astype(value.dtype)
        if value.dtype.kind == "f"
        else value
        for name, value in read.items()
    }
