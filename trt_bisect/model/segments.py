"""Runs a graph in segments, one after another, to limit the memory for the tensors inside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import onnxruntime as ort
from onnx import helper

from trt_bisect.data.feeds import Feeds
from trt_bisect.model.file import tensors_read
from trt_bisect.model.qdq import Written
from trt_bisect.model.session import make_session
from trt_bisect.support.memory import give_back_memory

SHARE_OF_GROUP = 4
"""A group's tensors may take one such part of the memory; the rest is for tensors that later segments read."""
_NO_TENSORS = ("Sequence", "Optional", "ZipMap", "DictVectorizer", "CastMap", "StringSplit")
"""Parts of the names of operators that may make other values than tensors, which a session cannot take as inputs."""


@dataclass(frozen=True)
class _Cut:
    """One segment.

    Attributes:
        nodes: their indices in the graph, ascending.
        reads: the tensors from earlier segments or inputs that it reads; no constants.
        gives: the tensors made in it that are wanted or read later.
        wanted: the tensors of its group; an earlier segment may have made them.
        let_go: the tensors that are not needed after it.
    """

    nodes: tuple[int, ...]
    reads: tuple[str, ...]
    gives: tuple[str, ...]
    wanted: tuple[str, ...]
    let_go: tuple[str, ...]


class Segments:
    """Computes groups of tensors, one group after another. A segment has the nodes that earlier groups did not need.

    Sessions are made on the first sample, from the types of its tensors. They have no arena, so that the memory of an
    inference is freed after it.

    Args:
        written: the graph; all values between its nodes are tensors (see ``can_be_cut``).
        groups: names of tensors that nodes of the graph make.
    """

    def __init__(self, written: Written, groups: Sequence[Sequence[str]]) -> None:
        self._written = written
        self._cuts = _cut(written, groups)
        self._sessions: dict[int, ort.InferenceSession] = {}

    def run(self, feeds: Feeds) -> Iterator[dict[str, Any]]:
        """Yields the tensors of each group by name for one sample.

        Raises:
            TrialFailed: ONNX Runtime refuses a segment.
            Exception: ONNX Runtime's, if the inference fails.
        """
        live: dict[str, Any] = dict(feeds)
        for number, cut in enumerate(self._cuts):
            if cut.nodes:
                if number not in self._sessions:
                    self._sessions[number] = self._session(cut, live)
                given = {name: live[name] for name in cut.reads}
                live.update(zip(cut.gives, self._sessions[number].run(list(cut.gives), given), strict=True))
            found = {name: live[name] for name in cut.wanted}
            for name in cut.let_go:
                live.pop(name, None)
            yield found
            del found
            give_back_memory()

    def _session(self, cut: _Cut, live: Mapping[str, Any]) -> ort.InferenceSession:
        whole = self._written.model
        model = onnx.ModelProto()
        model.CopyFrom(whole)
        nodes = [whole.graph.node[place] for place in cut.nodes]
        read = {name for node in nodes for name in tensors_read(node)}
        constants = [tensor for tensor in whole.graph.initializer if tensor.name in read]
        types = {name: helper.np_dtype_to_tensor_dtype(live[name].dtype) for name in cut.reads}
        model.graph.CopyFrom(
            onnx.GraphProto(
                name=whole.graph.name,
                node=nodes,
                initializer=constants,
                sparse_initializer=whole.graph.sparse_initializer,
                input=[helper.make_tensor_value_info(n, types[n], [None] * live[n].ndim) for n in cut.reads],
                output=[onnx.ValueInfoProto(name=name) for name in cut.gives],
            )
        )
        weights = {tensor.name: self._written.weights[tensor.name] for tensor in constants if _is_apart(tensor)}
        return make_session(Written(model, weights), arena=False)


def groups_of(names: Iterable[str], size: Callable[[str], int], memory: int) -> list[tuple[str, ...]]:
    """Returns names in groups of at most ``memory`` bytes, in their order. A larger tensor is a group of its own.

    There is at least one group.

    Args:
        names: the names of tensors.
        size: the bytes of each.
        memory: the bytes of a group.
    """
    groups: list[list[str]] = [[]]
    held = 0
    for name in names:
        if groups[-1] and held + size(name) > memory:
            groups.append([])
            held = 0
        groups[-1].append(name)
        held += size(name)
    return [tuple(group) for group in groups]


def can_be_cut(model: onnx.ModelProto) -> bool:
    """Returns true if all values between the nodes of ``model`` are tensors."""
    return not any(part in node.op_type for node in model.graph.node for part in _NO_TENSORS)


def _is_apart(tensor: onnx.TensorProto) -> bool:
    return bool(tensor.data_location == onnx.TensorProto.EXTERNAL)


def _cut(written: Written, groups: Sequence[Sequence[str]]) -> list[_Cut]:
    """Returns for each group the segment of the nodes that it needs and no earlier group needed."""
    graph = written.model.graph
    makers = {name: place for place, node in enumerate(graph.node) for name in node.output if name}
    fed = {value.name for value in graph.input} - {tensor.name for tensor in graph.initializer}
    reads = [[name for name in tensors_read(node) if name in makers or name in fed] for node in graph.node]
    segment: dict[int, int] = {}
    for number, names in enumerate(groups):
        waiting = [makers[name] for name in names]
        while waiting:
            place = waiting.pop()
            if place not in segment:
                segment[place] = number
                waiting += [makers[name] for name in reads[place] if name in makers]
    last = {name: number for number, names in enumerate(groups) for name in names}
    for place, number in segment.items():
        for name in reads[place]:
            last[name] = max(last.get(name, 0), number)
    wanted = {name for names in groups for name in names}
    return [
        _one_cut(graph, number, names, sorted(p for p, s in segment.items() if s == number), reads, last, wanted)
        for number, names in enumerate(groups)
    ]


def _one_cut(
    graph: onnx.GraphProto,
    number: int,
    names: Sequence[str],
    nodes: Sequence[int],
    reads: Sequence[Sequence[str]],
    last: Mapping[str, int],
    wanted: set[str],
) -> _Cut:
    """Returns the segment of one group.

    Args:
        graph: the graph to cut.
        number: the number of the segment.
        names: the names of the group.
        nodes: the places of the segment's nodes.
        reads: by node, the tensors that it reads; no constants.
        last: by tensor, the last segment that reads it or whose group it is in.
        wanted: the names of all groups.
    """
    made = dict.fromkeys(name for place in nodes for name in graph.node[place].output if name)
    outside = dict.fromkeys(name for place in nodes for name in reads[place] if name not in made)
    gives = tuple(name for name in made if name in wanted or last.get(name, -1) > number)
    let_go = tuple(name for name, until in last.items() if until == number)
    return _Cut(tuple(nodes), tuple(outside), gives, tuple(names), let_go)
