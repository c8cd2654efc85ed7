"""Several networks as one graph, which can be split again.

Names of layers, tensors and inputs begin with the name of their network and a slash: ``detector/conv1``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import onnx
from onnx import TensorProto, helper

from trt_bisect.errors import BadInput
from trt_bisect.model.file import bodies_of, refill
from trt_bisect.model.layers import Layer
from trt_bisect.model.network import Network, Pipeline, spec_of
from trt_bisect.model.quantizer import RoundedWeights
from trt_bisect.precision import PrecisionPlan

SAMPLE = "sample"
"""The name of an input that no layer reads: two integers, by which the pipeline finds the sample."""
_FIELDS = ("node", "initializer", "sparse_initializer", "value_info", "input", "output")
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Part:
    """A network inside a merged one; ``layers`` has the index of each of its layers in the merged network."""

    name: str
    network: Network
    layers: tuple[int, ...]

    def of(self, values: Mapping[str, _Value]) -> dict[str, _Value]:
        """Returns the ``values`` of this network. Their keys, names in the merged network, become the names in its own
        file.
        """
        prefix = prefix_of(self.name)
        return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}

    def plan(self, plan: PrecisionPlan) -> PrecisionPlan:
        """Returns this network's part of a plan of the merged network."""
        return PrecisionPlan(tuple(plan.precisions[k] for k in self.layers), plan.low)


def prefix_of(name: str) -> str:
    """Returns the prefix of a network's names in the merged network: ``name/``."""
    return f"{name}/"


def merged(pipeline: Pipeline) -> Network:
    """Returns the networks of a pipeline as one graph; raises BadInput if only some of them have Q/DQ pairs."""
    networks = pipeline.networks
    if len({network.has_pairs for network in networks.values()}) > 1:
        names = ", ".join(f"'{name}'" for name, network in networks.items() if network.has_pairs)
        problem = f"Only {names} of the networks have Q/DQ pairs: they have no common ranges."
        raise BadInput(problem, "Give all networks with pairs, or all without.")
    skeleton = onnx.ModelProto(ir_version=max(network.skeleton.ir_version for network in networks.values()))
    skeleton.producer_name, graph = "trt_bisect", skeleton.graph
    graph.name = "pipeline"
    graph.input.append(helper.make_tensor_value_info(SAMPLE, TensorProto.INT64, [2]))
    opsets: dict[str, int] = {}
    layers: list[Layer] = []
    weights, on_grid = dict[str, np.ndarray](), dict[str, np.ndarray]()
    scales, one_scale = dict[str, np.float32](), set[int]()
    for name, network in networks.items():
        prefix = prefix_of(name)
        part = deepcopy(network.skeleton)
        _rename(part.graph, prefix.__add__)
        for field in _FIELDS:
            getattr(graph, field).extend(getattr(part.graph, field))
        for entry in part.opset_import:
            opsets[entry.domain] = max(entry.version, opsets.get(entry.domain, 0))
        one_scale |= {k + len(layers) for k in network.one_scale}
        layers += [_renamed(layer, k + len(layers), prefix.__add__) for k, layer in enumerate(network.layers)]
        weights |= {prefix + own: array for own, array in network.weights.items()}
        on_grid |= {prefix + own: array for own, array in network.on_grid.items()}
        scales |= {prefix + own: scale for own, scale in network.scales.items()}
    skeleton.opset_import.extend(helper.make_opsetid(domain, version) for domain, version in opsets.items())
    first = next(iter(networks.values()))
    return replace(
        first,
        source=", ".join(f"{name}={network.source}" for name, network in networks.items()),
        skeleton=skeleton,
        weights=weights,
        layers=tuple(layers),
        inputs=tuple(map(spec_of, graph.input)),
        outputs=tuple(map(spec_of, graph.output)),
        notes=tuple(f"{name}: {note}" for name, network in networks.items() for note in network.notes),
        typed_in_file=any(network.typed_in_file for network in networks.values()),
        one_scale=frozenset(one_scale),
        scales=scales,
        part="; ".join(f"{name}: {network.part}" for name, network in networks.items() if network.part),
        properties={},
        restored=(),
        on_grid=on_grid,
        rounded=RoundedWeights(),
        pipeline=replace(pipeline, skeleton=skeleton),
    )


def split(network: Network) -> tuple[Part, ...]:
    """Returns the networks that ``network`` was merged from, with its changes, precisions and scales; empty if it was
    not merged.
    """
    if network.pipeline is None:
        return ()
    is_changed = network.skeleton is not network.pipeline.skeleton
    parts = []
    for name, original in network.pipeline.networks.items():
        prefix = prefix_of(name)
        members = [layer for layer in network.layers if layer.name.startswith(prefix)]
        places = tuple(layer.index for layer in members)
        part = Part(name, original, places)
        own = replace(
            original,
            layers=tuple(_renamed(layer, k, _without(prefix)) for k, layer in enumerate(members)),
            low=network.low,
            base=network.base,
            one_scale=frozenset(k for k, place in enumerate(places) if place in network.one_scale),
            scales=part.of(network.scales),
            on_grid=part.of(network.on_grid),
        )
        if is_changed or network.on_grid:
            skeleton = _part_of(network, prefix) if is_changed else original.skeleton
            changes, rounded = network.changes, RoundedWeights()
            own = replace(own, skeleton=skeleton, weights=part.of(network.weights), changes=changes, rounded=rounded)
        parts.append(replace(part, network=own))
    return tuple(parts)


def _part_of(network: Network, prefix: str) -> onnx.ModelProto:
    skeleton = deepcopy(network.skeleton)
    for field in _FIELDS:
        entries = getattr(skeleton.graph, field)
        refill(entries, [entry for entry in entries if _named(entry).name.startswith(prefix)])
    _rename(skeleton.graph, _without(prefix))
    return skeleton


def _named(entry: Any) -> Any:
    return entry.values if isinstance(entry, onnx.SparseTensorProto) else entry


def _without(prefix: str) -> Callable[[str], str]:
    return lambda name: name.removeprefix(prefix)


def _renamed(layer: Layer, index: int, rename: Callable[[str], str]) -> Layer:
    return replace(
        layer,
        index=index,
        name=rename(layer.name),
        inputs=tuple(map(rename, layer.inputs)),
        outputs=tuple(map(rename, layer.outputs)),
        roundings=tuple(replace(rounding, tensor=rename(rounding.tensor)) for rounding in layer.roundings),
    )


def _rename(graph: onnx.GraphProto, rename: Callable[[str], str]) -> None:
    for node in graph.node:
        node.name = rename(node.name)
        for names in (node.input, node.output):
            names[:] = [rename(name) if name else name for name in names]
        for body in bodies_of(node):
            _rename(body, rename)
    values = (*graph.value_info, *graph.input, *graph.output)
    for named in map(_named, (*graph.initializer, *graph.sparse_initializer, *values)):
        named.name = rename(named.name)
    for value in values:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = rename(dim.dim_param)
