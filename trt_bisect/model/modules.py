"""The modules of PyTorch that nodes come from, as both of its exporters write them into an ONNX file.

``torch.onnx.export(dynamo=True)`` writes scopes, classes and the stack into the metadata of each node. The older
exporter, TorchScript's, names nodes by their scopes, ``/body/body.1/conv/Conv`` for ``body.1.conv``, and with
``verbose=True`` writes the stack into ``doc_string``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import onnx

_SCOPES, _CLASSES, _TRACE = (f"pkg.torch.onnx.{key}" for key in ("name_scopes", "class_hierarchy", "stack_trace"))
_TEXT = re.compile(r"'([^']*)'")
_FRAME = re.compile(r'File "([^"\n]+)", line (\d+)')
_FRAME_IN_TORCHSCRIPT = re.compile(r"^([^\n(]+)\((\d+)\): ", re.MULTILINE)
# PyTorch's own files, and the names of code that it generates.
_NOT_OWN = re.compile(r"[/\\](site|dist)-packages[/\\]torch[/\\]|^<")
_LONGEST = 300
_AGAIN = re.compile(r"_\d+$")  # The suffix of a module's scope at its second and later calls in TorchScript.
_BESIDE = ("Constant", "QuantizeLinear", "DequantizeLinear")  # operators of no module
WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
"""The operators whose weight is a parameter of their module."""
METADATA_IR_VERSION = 10
"""The first version of ONNX files whose nodes have metadata."""


@dataclass(frozen=True)
class Place:
    """The place of a node in the user's program; unknown parts are empty.

    Attributes:
        path: the module, as ``named_modules`` names it: ``layer1.0.conv1``; empty for the network.
        kind: the module's class: ``Conv2d``.
        code: the innermost line outside PyTorch: ``/nets/model.py:12``.
    """

    path: str = ""
    kind: str = ""
    code: str = ""

    @property
    def module(self) -> str:
        """The module with its class: ``layer1.0.conv1 (Conv2d)``; ``(Net)`` for the network itself."""
        kind = f"({self.kind})" if self.kind else ""
        return f"{self.path} {kind}".strip()[:_LONGEST]


def places_of(graph: onnx.GraphProto) -> dict[str, Place]:
    """Returns each node's place in the user's program, by node name, as far as the exporter wrote it."""
    parameters = {tensor.name: tensor.name.rpartition(".")[0] for tensor in graph.initializer}
    modules = set(filter(None, parameters.values()))
    biases = {}
    for node in graph.node:
        if node.op_type == "Add":
            owners = [parameters[name] for name in node.input if parameters.get(name)]
            biases.update(dict.fromkeys(node.input, owners[0] if owners else ""))
    places = {}
    for node in graph.node:
        metadata = {entry.key: entry.value for entry in node.metadata_props}
        has_metadata = not metadata.keys().isdisjoint({_SCOPES, _CLASSES, _TRACE})
        place = _from_metadata(metadata) if has_metadata else _from_torchscript(node, modules)
        if node.op_type in WEIGHTED and not parameters.keys().isdisjoint(node.input[1:2]):
            # The exporters transpose weights, which lose their names; the bias keeps its own.
            owner = parameters[node.input[1]] or biases.get(node.output[0], "")
            # Dynamo fuses a normalization into the layer and gives the result the normalization's scopes.
            is_fused = "batch_norm" in metadata.get(_SCOPES, "") + metadata.get(_CLASSES, "")
            is_again = not has_metadata and owner == _AGAIN.sub("", place.path)
            # A function, such as that of attention, reads parameters of modules that are never called.
            if owner and (is_fused or is_again or owner.startswith(f"{place.path}.")):
                place = replace(place, path=owner, kind="")
        if place != Place():
            places[node.name] = place
    return places


ModuleTensor = tuple[Place, str]
"""A module and the tensor that one call of it returns; an empty place stands for the whole network."""


def enclosing(path: str) -> list[str]:
    """Returns a module and those around it, outermost first: ``['a', 'a.b']`` for ``a.b``."""
    return list(accumulate(path.split("."), "{}.{}".format)) if path else []


def module_tensors(made: Iterable[ModuleTensor]) -> list[ModuleTensor]:
    """Returns, for each call of a module, its place and the tensor that it returns, in the order in which calls end.

    ``made`` has the place and result of each operation, in execution order. Consecutive operations of a module are one
    call.
    """
    ended, running = list[ModuleTensor](), dict[str, ModuleTensor]()
    for place, tensor in made:
        inside = enclosing(place.path)
        ended += [call for path, call in reversed(running.items()) if path not in inside]
        running = {path: (place if path == place.path else Place(path), tensor) for path in inside}
    return [*ended, *reversed(running.values())]


def matched_modules(first: Sequence[ModuleTensor], second: Sequence[ModuleTensor]) -> dict[str, str]:
    """Maps the tensors of module calls in one network to those of the same calls in another; both from
    ``module_tensors``.

    Modules that the networks call unequally often are left out. A normalization that only one network has counts as
    fused into the module before it.
    """
    ours, theirs = _by_call(first, second), _by_call(second, first)
    pairs = dict[str, str]()
    for call, tensor in ours.items():
        # A module that gives what the last one in it gives has no row of its own.
        if call in theirs and tensor not in pairs and theirs[call] not in pairs.values():
            pairs[tensor] = theirs[call]
    return pairs


def _by_call(tensors: Sequence[ModuleTensor], others: Sequence[ModuleTensor]) -> dict[tuple[str, int, int], str]:
    # by module, number of the call, and number of the module's calls
    here, there = ({place.path for place, _ in side} for side in (tensors, others))
    moved = {
        before.path: norm.path
        for (before, _), (norm, _) in pairwise(others)
        if "BatchNorm" in norm.kind and norm.path not in here and before.path in here
    }
    calls: dict[str, list[str]] = {}
    for place, tensor in tensors:
        again = _AGAIN.sub("", place.path)
        path = again if place.path not in there and again in there else place.path
        calls.setdefault(moved.get(path, path), []).append(tensor)
    return {(path, k, len(made)): tensor for path, made in calls.items() for k, tensor in enumerate(made)}


def calls_of(graph: onnx.GraphProto) -> dict[str, int]:
    """Returns how often each module is called, by its path: the number of its runs of consecutive nodes, or, if more,
    of reads of its least read weight.
    """
    places, calls, open_before = places_of(graph), Counter[str](), set[str]()
    reads, owners = Counter[str](), dict[str, set[str]]()
    for node in graph.node:
        path = places[node.name].path if node.name in places else ""
        if node.op_type in _BESIDE:
            continue
        inside = set(enclosing(path))
        calls.update(inside - open_before)
        open_before = inside
        if inside and node.op_type in WEIGHTED:
            for name in node.input[1:2]:
                reads[name] += 1
                owners.setdefault(name, set()).update(inside)
    for path in calls:
        of_weights = [reads[name] for name, modules in owners.items() if path in modules]
        calls[path] = max(calls[path], min(of_weights, default=1))
    return dict(calls)


def _from_metadata(metadata: dict[str, str]) -> Place:
    # The scopes go from the network, which has no name, to the operator, which is none.
    scopes, classes = (_TEXT.findall(metadata.get(key, ""))[:-1] for key in (_SCOPES, _CLASSES))
    path, kind = scopes[-1] if scopes else "", classes[-1].rpartition(".")[2] if classes else ""
    frames = _FRAME.findall(metadata.get(_TRACE, ""))
    return Place(path, kind, _own_line(frames))


def _from_torchscript(node: onnx.NodeProto, modules: Collection[str]) -> Place:
    *scopes, operator = node.name.split("/")
    is_path = scopes[:1] == [""] and operator.startswith(node.op_type)
    scopes = scopes[1:] if is_path else []
    path = before = ""
    for scope in scopes:
        if path and scope.startswith(f"{before}."):
            # An item of a container, named after it; else a container with the name of the module that it is in.
            item, contained = f"{path}{scope.removeprefix(before)}", f"{path}.{scope}"
            path = contained if contained in modules and item not in modules else item
        else:
            path = f"{path}.{scope}" if path else scope
        before = scope
    return Place(path, "", _own_line(_FRAME_IN_TORCHSCRIPT.findall(node.doc_string)[::-1]))


def write_place(node: onnx.NodeProto, place: Place) -> None:
    """Writes a node's place in the user's program into the node's metadata, in the form of PyTorch's exporter."""
    told = {_SCOPES: repr(["", place.path, node.op_type]), _CLASSES: repr(["", place.kind, node.op_type])}
    if place.code:
        file, _, line = place.code.rpartition(":")
        told[_TRACE] = f'File "{file}", line {line}'
    kept = [entry for entry in node.metadata_props if entry.key not in told]
    del node.metadata_props[:]
    node.metadata_props.extend(kept)
    node.metadata_props.extend(onnx.StringStringEntryProto(key=key, value=value) for key, value in told.items())


def _own_line(frames: list[tuple[str, str]]) -> str:
    own = [frame for frame in frames if not _NOT_OWN.search(frame[0])]
    return ":".join((own or frames)[-1])[:_LONGEST] if frames else ""


def titles_of(nodes: Iterable[tuple[str, str, bool]], places: dict[str, Place]) -> dict[str, str]:
    """Returns, by node name, titles from the nodes' modules; nodes without a module are left out.

    A module's only node, or its only node with a weight, has the module's name; others also have the operator:
    ``layer1.0/Add_1``.

    ``nodes`` has name, operator, and true for a node with a weight; ``places`` is by node name.
    """
    known = [(*node, places[node[0]].path) for node in nodes if node[0] in places and places[node[0]].path]
    inside = {outer for *_, path in known for outer in enclosing(path)[:-1]}
    count, weighted = Counter(path for *_, path in known), Counter(path for *_, has, path in known if has)
    titles, taken = dict[str, str](), Counter[str]()
    for name, operator, has_weight, path in known:
        if (count[path] == 1 and path not in inside) or (has_weight and weighted[path] == 1):
            titles[name] = path
            continue
        title = f"{path}/{operator}"
        titles[name] = f"{title}_{taken[title]}" if taken[title] else title
        taken[title] += 1
    return titles
