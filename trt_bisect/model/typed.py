"""The inputs and outputs of a node that may have another floating-point type than float32.

An operator's schema says it: the inputs and outputs whose type variable allows float16 can be float16, all that share a
variable together. The newest schema counts: TensorRT takes bfloat16 for operators of any opset, while ONNX allows it
for Conv and others from opset 22 on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import onnx
from onnx import defs

from trt_bisect.model.file import subgraphs_of_attribute
from trt_bisect.model.low import FloatType

CARRIES = frozenset(
    "Reshape Flatten Transpose Squeeze Unsqueeze Slice Split Concat Gather GatherElements GatherND Expand Tile "
    "Identity Dropout DepthToSpace SpaceToDepth Pad MaxPool GlobalMaxPool ReduceMax ReduceMin Relu Max Min Abs Neg "
    "Where ReverseSequence Compress CenterCropPad Trilu TopK ScatterElements ScatterND Hardmax Sign".split()
)
"""The operators whose outputs are values that they read, or exact in every type: they round nothing of their own."""


@dataclass(frozen=True)
class TypedSlots:
    """The inputs and outputs of a node, by position, that get another type together."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def typed_slots(node: onnx.NodeProto, floats: Collection[str], kind: FloatType) -> TypedSlots | None:
    """Returns the slots of a node that can have a type.

    Args:
        node: the node of the graph.
        floats: the names of the float32 tensors.
        kind: the type.

    Returns:
        None if the node has bodies, no float32 output, or a float32 output that must stay float32.
    """
    schema = _schema(node)
    if schema is None or any(True for attribute in node.attribute for _ in subgraphs_of_attribute(attribute)):
        return None
    allowed = {
        each.type_param_str for each in schema.type_constraints if f"tensor({kind.name})" in each.allowed_type_strs
    }
    inputs = [(slot, var) for slot, var in _variables(node.input, schema.inputs) if node.input[slot] in floats]
    outputs = [(slot, var) for slot, var in _variables(node.output, schema.outputs) if node.output[slot] in floats]
    read = {var for _, var in inputs if var in allowed}
    if not outputs or any(var not in read for _, var in outputs):
        return None
    return TypedSlots(tuple(slot for slot, var in inputs if var in allowed), tuple(slot for slot, _ in outputs))


def carries(node: onnx.NodeProto, slots: TypedSlots, exact: Callable[[str], bool]) -> bool:
    """Returns true if a node rounds nothing where its inputs have a type already.

    Args:
        node: the node of the graph.
        slots: the slots of the node.
        exact: returns true for an input that is not a constant, or that the type holds exactly.
    """
    return node.op_type in CARRIES and all(exact(node.input[slot]) for slot in slots.inputs)


def _variables(names: Sequence[str], formal: Sequence[defs.OpSchema.FormalParameter]) -> Iterator[tuple[int, str]]:
    """Yields the position and the type variable of each tensor that is there; the last parameter may be repeated."""
    for slot, name in enumerate(names):
        if name and formal:
            yield slot, formal[min(slot, len(formal) - 1)].type_str


@cache
def _newest(op_type: str) -> defs.OpSchema | None:
    try:
        return defs.get_schema(op_type)
    except defs.SchemaError:
        return None


def _schema(node: onnx.NodeProto) -> defs.OpSchema | None:
    return _newest(node.op_type) if node.domain in ("", "ai.onnx") else None
