"""Outputs and layers of a file that no plan can have."""

from __future__ import annotations

import onnx
import onnx_graphsurgeon as gs

from trt_bisect.errors import BadInput

_ODD_TYPES = ("map_type", "optional_type", "opaque_type")
_INTEGER_OPS = frozenset({"ConvInteger", "MatMulInteger", "DynamicQuantizeLinear", "DynamicQuantizeMatMul", "QGemm"})


def drop_odd_outputs(graph: onnx.GraphProto, source: str) -> tuple[str, ...]:
    """Removes outputs that are maps or optional values from ``graph``, in place.

    Returns:
        A note with their names; nothing if there are none.

    Raises:
        BadInput: the graph has no other outputs.
    """
    odd = [value.name for value in graph.output if value.type.WhichOneof("value") in _ODD_TYPES or _holds_maps(value)]
    kept = [value for value in graph.output if value.name not in odd]
    if not kept:
        raise BadInput(
            f"'{source}' has no output that is a tensor: {', '.join(odd)}.",
            "Cut the network before the nodes that make maps (ZipMap) or optional values.",
        )
    if not odd:
        return ()
    copies = [onnx.ValueInfoProto.FromString(value.SerializeToString()) for value in kept]
    del graph.output[:]
    graph.output.extend(copies)
    return (f"outputs that are maps or optional values are left out: {', '.join(map(repr, odd))}",)


def _holds_maps(value: onnx.ValueInfoProto) -> bool:
    return bool(value.type.sequence_type.elem_type.WhichOneof("value") == "map_type")


def refuse_integer_layers(graph: gs.Graph, source: str) -> None:
    """Raises BadInput if there are integer layers: no plan can put them in higher precision."""
    found = [node.op for node in graph.nodes if node.op.startswith("QLinear") or node.op in _INTEGER_OPS]
    if found:
        raise BadInput(
            f"'{source}' is quantized already, into {len(found)} integer layers ({', '.join(sorted(set(found)))}): "
            "none of them can be put back into high precision.",
            "Give the FP32 network, or quantize it in Q/DQ format (QuantFormat.QDQ in ONNX Runtime).",
        )
