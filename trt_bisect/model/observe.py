"""Reads the tensors inside a graph while it runs over samples, in segments of the graph to limit the memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper

from trt_bisect.data.feeds import Feeds, size_remedy
from trt_bisect.errors import BadInput, TrialFailed, first_line
from trt_bisect.model.file import Written, refill, tensors_read, with_outputs
from trt_bisect.model.layers import TensorFacts, TensorTypes
from trt_bisect.model.network import Network
from trt_bisect.model.prepare import infer_shapes, unused_name
from trt_bisect.model.session import element_type, make_session
from trt_bisect.support.machine import ThreadsIfLong
from trt_bisect.support.memory import give_back_memory
from trt_bisect.support.text import shape_text

_Item = TypeVar("_Item")
SHARE_OF_GROUP = 4  # The share of the memory that a group's tensors may take; later segments need the rest.
# Parts of names of operators whose outputs may not be tensors: no session takes these as inputs.
_NO_TENSORS = ("Sequence", "Optional", "ZipMap", "DictVectorizer", "CastMap", "StringSplit")


@dataclass(frozen=True)
class _Cut:
    nodes: tuple[int, ...]  # a segment of the graph, run to compute one group of the tensors asked for
    reads: tuple[str, ...]
    gives: tuple[str, ...]  # the tensors of that group, and those that later segments read
    let_go: tuple[str, ...]  # the tensors that no later segment reads


def groups_of(items: Iterable[_Item], size: Callable[[_Item], int], memory: int) -> list[tuple[_Item, ...]]:
    """Returns items, in order, in groups of at most ``memory`` bytes; a larger item is a group by itself."""
    groups, held = [list[_Item]()], 0
    for item in items:
        if groups[-1] and held + size(item) > memory:
            groups.append([])
            held = 0
        groups[-1].append(item)
        held += size(item)
    return [tuple(group) for group in groups]


def can_be_cut(model: onnx.ModelProto) -> bool:
    """Returns true if all values between nodes are tensors, so that segments can run one by one."""
    return not any(part in node.op_type for node in model.graph.node for part in _NO_TENSORS)


def _cut(written: Written, groups: Sequence[Sequence[str]]) -> list[_Cut]:
    graph = written.model.graph
    makers = {name: node_index for node_index, node in enumerate(graph.node) for name in node.output if name}
    fed = {value.name for value in graph.input} - {tensor.name for tensor in graph.initializer}
    reads = [[name for name in tensors_read(node) if name in makers or name in fed] for node in graph.node]
    segment: dict[int, int] = {}
    for number, names in enumerate(groups):
        waiting = [makers[name] for name in names]
        while waiting:
            node_index = waiting.pop()
            if node_index not in segment:
                segment[node_index] = number
                waiting += [makers[name] for name in reads[node_index] if name in makers]
    last = {name: number for number, names in enumerate(groups) for name in names}
    for node_index, number in segment.items():
        for name in reads[node_index]:
            last[name] = max(last.get(name, 0), number)
    grouped = {name for names in groups for name in names}
    cuts = []
    for number in range(len(groups)):
        nodes = sorted(node_index for node_index, its_segment in segment.items() if its_segment == number)
        made = dict.fromkeys(name for node_index in nodes for name in graph.node[node_index].output if name)
        outside = dict.fromkeys(name for node_index in nodes for name in reads[node_index] if name not in made)
        gives = tuple(name for name in made if name in grouped or last.get(name, -1) > number)
        let_go = tuple(name for name, until in last.items() if until == number)
        cuts.append(_Cut(tuple(nodes), tuple(outside), gives, let_go))
    return cuts


def observe(network: Network, names: Sequence[str], samples: Iterable[Feeds]) -> Iterator[dict[str, np.ndarray]]:
    """Runs the FP32 network over samples; yields for each sample the values of ``names``, tensors or inputs, by name.

    Sequences and optional values are left out. Raises BadInput if ONNX Runtime refuses the network or a sample.
    """
    for parts in observe_in_parts(network, [names], samples):
        yield next(parts)


def observe_in_parts(
    network: Network, groups: Sequence[Sequence[str]], samples: Iterable[Feeds]
) -> Iterator[Iterator[dict[str, np.ndarray]]]:
    """Runs the FP32 network over samples; yields for each sample an iterator over the tensors of each of ``groups``, by
    name.

    Raises BadInput if ONNX Runtime refuses the network or, while groups are iterated, a sample.
    """
    observer = Observer(Written(network.skeleton, dict(network.weights)), groups, network.source)
    for position, feeds in enumerate(samples):
        yield observer.run(feeds, position)


def observe_ahead(
    network: Network, groups: Sequence[Sequence[str]], samples: Iterable[Feeds]
) -> Iterator[dict[str, np.ndarray]]:
    """Runs the FP32 network over samples; yields the tensors of each of ``groups``, while a thread computes the next
    group.
    """
    # Samples are drawn in the caller's thread, because they may come from a user's function.
    with ThreadsIfLong(1) as thread:
        coming: Future[dict[str, np.ndarray]] | None = None
        for parts in observe_in_parts(network, groups, samples):
            for _ in groups:
                following = thread.submit(next, parts)
                if coming is not None:
                    yield coming.result()
                coming = following
        if coming is not None:
            yield coming.result()


class Observer:
    """Runs a graph on samples; returns the inputs and tensors in ``groups``, one group after another.

    With several groups, ``can_be_cut`` must be true of the graph.

    Args:
        source: the network's name in errors.
        in_segments: with a single group too, compute only the nodes that it needs.

    Attributes:
        types: ONNX Runtime's type of each tensor; empty with several groups or ``in_segments``.

    Raises BadInput if ONNX Runtime refuses the graph.
    """

    def __init__(
        self, written: Written, groups: Sequence[Sequence[str]], source: str, *, in_segments: bool = False
    ) -> None:
        made = {name for node in written.model.graph.node for name in node.output}
        self._written, self._source, self._asked = written, source, groups
        self._groups = [[name for name in names if name in made] for names in groups]
        self._shapes = [[d.dim_value for d in value.type.tensor_type.shape.dim] for value in written.model.graph.input]
        self._cuts = _cut(written, self._groups) if in_segments or len(groups) > 1 else []
        self._sessions: dict[int, ort.InferenceSession] = {}
        self.types: dict[str, str] = {}
        if not self._cuts:
            outputs = with_outputs(written.model, self._groups[0])
            with self._errors_named(""):
                self._sessions[0] = make_session(Written(outputs, written.weights))
            self.types = {output.name: output.type for output in self._sessions[0].get_outputs()}

    def run(self, feeds: Feeds, position: int) -> Iterator[dict[str, np.ndarray]]:
        """Yields the tensors of each group for a sample, by name; errors name its ``position`` in the data.

        Raises BadInput if ONNX Runtime refuses a segment or the sample.
        """
        shapes = ", ".join(f"'{name}' {shape_text(array.shape)}" for name, array in feeds.items())
        live: dict[str, Any] = dict(feeds)
        for number, names in enumerate(self._asked):
            with self._errors_named(f" on sample {position} ({shapes})"):
                values = self._infer(number, live)
            values.update({name: feeds[name] for name in names if name in feeds})
            yield {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
            del values
            if self._cuts:
                give_back_memory()

    def _infer(self, number: int, live: dict[str, Any]) -> dict[str, Any]:
        # live is changed: it has the tensors that later segments need.
        if not self._cuts:
            names = self._groups[0]
            return dict(zip(names, self._sessions[0].run(names, live), strict=True)) if names else {}
        cut = self._cuts[number]
        if cut.nodes:
            if number not in self._sessions:
                self._sessions[number] = self._session(cut, live)
            inputs = {name: live[name] for name in cut.reads}
            live.update(zip(cut.gives, self._sessions[number].run(list(cut.gives), inputs), strict=True))
        tensors = {name: live[name] for name in self._groups[number]}
        for name in cut.let_go:
            live.pop(name, None)
        return tensors

    def _session(self, cut: _Cut, live: Mapping[str, Any]) -> ort.InferenceSession:
        model, graph = deepcopy(self._written.model), self._written.model.graph
        nodes = [graph.node[node_index] for node_index in cut.nodes]
        read = {name for node in nodes for name in tensors_read(node)}
        constants = [tensor for tensor in graph.initializer if tensor.name in read]
        detached = [tensor.name for tensor in constants if tensor.data_location == onnx.TensorProto.EXTERNAL]
        types = {name: helper.np_dtype_to_tensor_dtype(live[name].dtype) for name in cut.reads}
        inputs = [helper.make_tensor_value_info(name, types[name], [None] * live[name].ndim) for name in cut.reads]
        outputs = [onnx.ValueInfoProto(name=name) for name in cut.gives]
        sparse = graph.sparse_initializer
        segment = helper.make_graph(nodes, graph.name, inputs, outputs, constants, sparse_initializer=sparse)
        model.graph.CopyFrom(segment)
        # Without an arena an inference's memory is freed after it.
        return make_session(Written(model, {name: self._written.weights[name] for name in detached}), arena=False)

    @contextmanager
    def _errors_named(self, where: str) -> Iterator[None]:
        try:
            yield
        except TrialFailed as error:
            raise BadInput(
                f"ONNX Runtime cannot run '{self._source}': {error.message}",
                "Check the network with ONNX Runtime itself.",
            ) from error
        except Exception as error:
            raise BadInput(
                f"ONNX Runtime cannot run '{self._source}'{where}: {first_line(error)}",
                size_remedy(self._shapes, "Check the sample's shapes and values."),
            ) from error


def facts_for(network: Network, feeds: Feeds) -> TensorFacts:
    """Returns the shape and dtype of every tensor for ``feeds``.

    Raises BadInput if ONNX Runtime refuses the network or the feeds.
    """
    model = _without_shapes(network)
    for value in model.graph.input:
        dtype = value.type.tensor_type.elem_type
        value.CopyFrom(helper.make_tensor_value_info(value.name, dtype, np.shape(feeds[value.name])))
    inferred = {
        name: tuple(size for size in shape if isinstance(size, int))
        for name, shape in TensorTypes.of(infer_shapes(model).graph).shapes.items()
        if all(isinstance(size, int) for size in shape)
    }
    dtypes = network.types.dtypes
    made = (name for layer in network.layers for name in layer.outputs)
    unknown = [name for name in made if name not in inferred or name not in dtypes]
    seen = _observed(network, unknown, feeds) if unknown else {}
    shapes = {**inferred, **{name: shape for name, (shape, _) in seen.items()}}
    dtypes = {**dtypes, **{name: dtype for name, (_, dtype) in seen.items()}}
    return TensorFacts({name: shape for name, shape in shapes.items() if name in dtypes}, dtypes)


def facts_of_shapes(network: Network, shapes: Mapping[str, Sequence[int]]) -> TensorFacts:
    """Returns the shape and dtype of every tensor for inputs of these shapes, with 1 for other dynamic axes."""
    feeds = {}
    for spec in network.inputs:
        shape = shapes.get(spec.name, [size or 1 for size in spec.shape])
        feeds[spec.name] = np.zeros(shape, spec.dtype)
    return facts_for(network, feeds)


def groups_within(
    network: Network, names: Iterable[str], feeds: Feeds, memory: int, *, runs: int = 1
) -> list[tuple[str, ...]]:
    """Returns ``names`` in groups whose tensors, of ``runs`` inferences at once, fit in a quarter of ``memory`` bytes;
    one group if the network cannot be cut.
    """
    if any(spec.name not in feeds for spec in network.inputs) or not can_be_cut(network.skeleton):
        return [tuple(names)]
    facts = facts_for(network, feeds)
    return groups_of(names, lambda name: runs * facts.size(name), memory // SHARE_OF_GROUP)


def _observed(
    network: Network, names: Sequence[str], feeds: Feeds
) -> dict[str, tuple[tuple[int, ...], np.dtype[np.generic]]]:
    written = Written(network.skeleton, dict(network.weights))
    types = Observer(written, [names], network.source).types
    elements = {name: element_type(types[name]) for name in names if name in types}
    dtypes = {name: np.dtype(helper.tensor_dtype_to_np_dtype(kind)) for name, kind in elements.items() if kind}
    taken = {out for node in network.skeleton.graph.node for out in node.output}
    shape_of = {name: unused_name(f"{name}__shape", taken) for name in dtypes}
    # A Shape node reads each tensor, so that none is held.
    model = deepcopy(network.skeleton)
    model.graph.node.extend(helper.make_node("Shape", [name], [shape]) for name, shape in shape_of.items())
    observer = Observer(Written(model, written.weights), [[*shape_of.values()]], network.source)
    shapes = next(observer.run(feeds, 0))
    return {name: (tuple(int(n) for n in shapes[shape_of[name]]), dtype) for name, dtype in dtypes.items()}


def _without_shapes(network: Network) -> onnx.ModelProto:
    model = deepcopy(network.skeleton)
    types = {value.name: value.type.tensor_type.elem_type for value in model.graph.value_info}
    infos = [helper.make_tensor_value_info(name, dtype, None) for name, dtype in types.items() if dtype]
    refill(model.graph.value_info, infos)
    for value in model.graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    return model
