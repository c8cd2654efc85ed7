"""Sets up the evaluator of the `branch` strategy."""

from __future__ import annotations

from collections.abc import Sequence

from trt_bisect.builder.base import Builder, BuildOptions
from trt_bisect.builder.engine_pieces import EnginePieces, MakeBuilder
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
from trt_bisect.builder.pieces import OnnxRuntimePieces, PieceBuilder
from trt_bisect.data.feeds import Feeds
from trt_bisect.evaluator.branch import BranchEvaluator
from trt_bisect.evaluator.passes import MOST_ROWS, Learned, Stream
from trt_bisect.evaluator.rebuild import Compare, RebuildEvaluator, TrialStore
from trt_bisect.evaluator.trial import PIECES, WHOLE
from trt_bisect.model.layers import TensorFacts
from trt_bisect.model.network import Network
from trt_bisect.model.pieces import PIECE_LAYERS, cut
from trt_bisect.model.quantizer import Scales
from trt_bisect.model.shapes import facts_for, with_free_batch

_MOST_PIECES = 125
"""A large network is cut into about so many pieces at most if few of its boundaries are measured: making two sessions
for each piece takes a large part of the time then."""


def branch_evaluator(
    network: Network,
    builder: Builder,
    make_builder: MakeBuilder,
    scales: Scales,
    options: BuildOptions,
    inputs: Sequence[Feeds],
    compare: Compare,
    store: TrialStore,
    whole: RebuildEvaluator,
    *,
    memory: int,
    few_boundaries: bool,
) -> BranchEvaluator:
    """The evaluator of the strategy ``branch``.

    On ONNX Runtime a piece does exactly what it does in the whole network. Other engines fuse and choose kernels as
    they like: there pieces are as small as can be, and their trials do not stand for those of whole engines.

    Args:
        network: the network to measure.
        builder: the builder of whole engines.
        make_builder: makes the builder of the engines of pieces, where ``builder`` is not ONNX Runtime's.
        scales: the scales of the activations.
        options: the options of engines.
        inputs: judged together.
        compare: from the outputs for every input to figures.
        store: keeps the trials.
        whole: measures on whole engines.
        memory: bytes of tensors that a pass may hold at once.
        few_boundaries: few of the boundaries are measured, in many small passes: a large network is cut into larger
            pieces, and their engines are kept.
    """
    facts = _facts_of_each(network, inputs)
    free = with_free_batch(network, inputs[0])
    learned = Learned(free.repaired, dict(free.axes))
    if isinstance(builder, OnnxRuntimeBuilder):
        size = max(PIECE_LAYERS, len(network.quantizable) // _MOST_PIECES) if few_boundaries else PIECE_LAYERS
        pieces, measured_in = cut(network, facts[0], size), WHOLE
        made: PieceBuilder = OnnxRuntimePieces(network, free, scales, options, builder.provider)
    else:
        pieces, measured_in = cut(network, facts[0], 1), PIECES
        made = EnginePieces(network, free, facts[0], MOST_ROWS, make_builder)
    stream = Stream(network, pieces, made, learned, inputs, facts, memory, keeps_engines=few_boundaries)
    return BranchEvaluator(network, pieces, made, stream, compare, store, whole, options.high, measured_in)


def _facts_of_each(network: Network, inputs: Sequence[Feeds]) -> list[TensorFacts]:
    """The facts of the tensors for each input; computed once for inputs of the same shapes."""
    known: dict[tuple[object, ...], TensorFacts] = {}
    shapes = [tuple((name, array.shape) for name, array in feeds.items()) for feeds in inputs]
    for key, feeds in zip(shapes, inputs, strict=True):
        if key not in known:
            known[key] = facts_for(network, feeds)
    return [known[key] for key in shapes]
