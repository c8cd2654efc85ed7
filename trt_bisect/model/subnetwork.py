"""A piece as a separate network, so that every builder can build it."""

from __future__ import annotations

from dataclasses import replace

from onnx import helper

from trt_bisect.model.layers import TensorFacts
from trt_bisect.model.network import Network, spec_of
from trt_bisect.model.pieces import Piece
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.precision import PrecisionPlan


def sub_network(network: Network, piece: Piece, facts: TensorFacts) -> Network:
    """Returns the layers of a piece as a network. Names are kept, weights are shared, layers are numbered from 0.

    Args:
        network: the whole network.
        piece: its ``reads`` become the inputs, its ``leaves`` the outputs.
        facts: used for inputs whose shape the network does not give.
    """
    writer = PlanWriter(network, {}, GraphTarget.ONNXRUNTIME)
    written = writer.write_piece(piece, network.free_plan())
    for value in written.model.graph.input:
        if not value.type.tensor_type.HasField("shape"):
            dtype = helper.np_dtype_to_tensor_dtype(facts.dtypes[value.name])
            value.CopyFrom(helper.make_tensor_value_info(value.name, dtype, facts.shapes[value.name]))
    return Network(
        source=network.source,
        skeleton=written.model,
        weights=written.weights,
        layers=tuple(replace(network.layers[k], index=k - piece.start) for k in piece.layers),
        inputs=tuple(spec_of(value) for value in written.model.graph.input),
        outputs=tuple(spec_of(value) for value in written.model.graph.output),
        has_pairs=network.has_pairs,
        low=network.low,
    )


def sub_plan(plan: PrecisionPlan, piece: Piece) -> PrecisionPlan:
    """Returns the part of a plan of the whole network that applies to a piece."""
    return PrecisionPlan(plan.precisions[piece.start : piece.stop], plan.low)
