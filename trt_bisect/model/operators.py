"""Cuts a network before operators that ONNX Runtime cannot run, such as TensorRT's plugins; refuses invalid files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper

from trt_bisect.errors import BadInput, TrialFailed, TrtBisectError, first_line
from trt_bisect.model.file import Written, bodies_of, refill, tensors_read, with_outputs
from trt_bisect.model.session import CPU, UNOPTIMISED, element_type, make_session, new_options
from trt_bisect.support.text import counted, listed

_NAMED = 3

Operator = tuple[str, str]
"""Domain and name."""


Cut = tuple[str, str]
"""Two sentences on a cut network: the part that is judged; the rest, with a remedy."""


def cut_around(
    model: onnx.ModelProto, weights: Mapping[str, np.ndarray], source: str
) -> tuple[onnx.ModelProto, Cut | None]:
    """Returns the part of a network before all nodes that ONNX Runtime cannot run, and two sentences, on that part and
    on the rest; None for them if nothing is cut.

    The functions of ``model`` must be inlined and its nodes named; ``weights`` are its large weights. Raises BadInput,
    about the file ``source``, if nothing is left.
    """
    unknown: set[Operator] = set()
    doubted = {operator_of(node) for node in model.graph.node if _not_of_onnx(node)}
    kept = model
    typed = onnx.shape_inference.infer_shapes(model) if doubted else model
    while doubted - unknown:
        try:
            _opened(kept, weights)
            break
        except TrialFailed as error:
            refusal = str(error.__cause__)
        named = {kind for kind in doubted - unknown if _is_named(kind, refusal)}
        if not named:
            break
        unknown |= named
        kept = _before(typed, _Split(typed.graph, unknown), source)
    return kept, _cut(_Split(model.graph, unknown), kept) if unknown else None


def operator_of(node: onnx.NodeProto) -> Operator:
    """Returns domain and name of a node's operator, or of an operator unknown to ONNX inside the node (If, Loop)."""
    inside = (inner for body in bodies_of(node) for inner in body.node)
    return next((operator_of(inner) for inner in inside if _not_of_onnx(inner)), (node.domain, node.op_type))


def _not_of_onnx(node: onnx.NodeProto) -> bool:
    if not onnx.defs.has(node.op_type, node.domain):
        return True
    return any(_not_of_onnx(inner) for body in bodies_of(node) for inner in body.node)


def _is_named(kind: Operator, refusal: str) -> bool:
    domain, name = kind
    return re.search(rf"\b{re.escape(name)}\b", refusal) is not None or (domain != "" and f"domain {domain}" in refusal)


def _opened(
    model: onnx.ModelProto, weights: Mapping[str, np.ndarray], more: Iterable[str] = ()
) -> ort.InferenceSession:
    used = {tensor.name: weights[tensor.name] for tensor in model.graph.initializer if tensor.name in weights}
    return make_session(Written(with_outputs(model, more), used), level=UNOPTIMISED)


class _Split:
    # Nodes before and after unknown ones; fixed tensors depend on no input.

    def __init__(self, graph: onnx.GraphProto, operators: set[Operator]) -> None:
        self.unknown, self.before, self.after = (list[onnx.NodeProto]() for _ in range(3))
        self.fixed = {tensor.name for tensor in graph.initializer}
        self.fixed |= {tensor.values.name for tensor in graph.sparse_initializer}
        tainted = set[str]()
        for node in graph.node:
            reads = {name for name in tensors_read(node) if name}
            is_unknown = operator_of(node) in operators
            if is_unknown or tainted & reads:
                (self.unknown if is_unknown else self.after).append(node)
                tainted.update(node.output)
            else:
                self.before.append(node)
                self.fixed.update(node.output if reads <= self.fixed else ())


def _before(model: onnx.ModelProto, split: _Split, source: str) -> onnx.ModelProto:
    made = {name for node in split.before for name in node.output} - split.fixed
    read = dict.fromkeys(name for node in (*split.unknown, *split.after) for name in tensors_read(node))
    outputs = [value for value in model.graph.output if value.name in made]
    types, judged = {value.name: value for value in model.graph.value_info}, {value.name for value in outputs}
    ends = [name for name in read if name in made and name not in judged]
    outputs += [types.get(name, onnx.ValueInfoProto(name=name)) for name in ends]
    if not outputs:
        raise BadInput(
            f"ONNX Runtime cannot run {_named(split.unknown)} of '{source}', and there is nothing to judge before it.",
            "Give --plugin with a library for ONNX Runtime that has the operator, or cut the network after the node.",
        )
    kept, constants = deepcopy(model), {name for node in split.before for name in tensors_read(node)}
    refill(kept.graph.node, split.before)
    refill(kept.graph.output, outputs)
    refill(kept.graph.initializer, [t for t in model.graph.initializer if t.name in constants])
    refill(kept.graph.sparse_initializer, [t for t in model.graph.sparse_initializer if t.values.name in constants])
    return kept


def _cut(split: _Split, kept: onnx.ModelProto) -> Cut:
    ends = listed([value.name for value in kept.graph.output], _NAMED)
    without = f"; not judged: {listed([node.name for node in split.after], _NAMED)}" if split.after else ""
    names, judged = listed([node.name for node in split.unknown], _NAMED), len(split.before)
    of_all = f"{judged} of {judged + len(split.unknown) + len(split.after)} nodes"
    return (
        f"Only the part before {names} was judged, {of_all}. This is no verdict on the whole network.",
        f"ONNX Runtime cannot run {_named(split.unknown)}: the network is cut there. The run judges the part before "
        f"the cut, {counted(judged, 'node')}, on {ends}{without}. The recipe holds for this part only. '--plugin' "
        "gives ONNX Runtime a library with the operator",
    )


def _named(nodes: Sequence[onnx.NodeProto]) -> str:
    kinds = dict.fromkeys(f"{domain}.{name}".lstrip(".") for domain, name in map(operator_of, nodes))
    return f"{listed([*kinds], _NAMED)} (node {listed([node.name for node in nodes], _NAMED)})"


def add_types(model: onnx.ModelProto, weights: Mapping[str, np.ndarray]) -> None:
    """Adds to ``model``, whose large ``weights`` are kept apart, the output types of operators unknown to ONNX."""
    typed = {value.name for value in (*model.graph.value_info, *model.graph.output) if value.type.tensor_type.elem_type}
    made = [name for node in model.graph.node if _not_of_onnx(node) for name in node.output if name not in typed]
    if not made:
        return
    try:
        session = _opened(model, weights, made)
    except TrialFailed:
        return
    for output in session.get_outputs():
        element = element_type(output.type)
        if output.name in made and element is not None:
            shape = output.shape or None  # ONNX Runtime gives an empty shape where it knows none
            model.graph.value_info.append(helper.make_tensor_value_info(output.name, element, shape))


@contextmanager
def refusing_invalid(path: Path) -> Iterator[None]:
    """A context that turns an error into BadInput if memory is exhausted, or if ONNX's checker or ONNX Runtime refuses
    the file ``path``.
    """
    try:
        yield
    except TrtBisectError:
        raise
    except MemoryError as error:
        raise BadInput(
            f"The network '{path}' needs more memory than this machine has: {first_line(error)}",
            "Check the sizes of its tensors, or use a machine with more memory.",
        ) from error
    except Exception as error:
        try:
            onnx.checker.check_model(str(path), full_check=True)
            options = new_options()
            options.graph_optimization_level = UNOPTIMISED
            ort.InferenceSession(str(path), options, providers=[CPU])
        except Exception as refusal:
            raise BadInput(
                f"The network '{path}' is not valid: {first_line(refusal)}",
                "Check it with onnx.checker.check_model and export it again.",
            ) from error
        raise
