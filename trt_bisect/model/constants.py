"""A network with other constants: what moves of weights and biases produce."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx
from onnx import numpy_helper

from trt_bisect.model.file import DETACH_FROM_BYTES, detached_tensor, subgraphs_of_attribute, tensors_read
from trt_bisect.model.network import Network
from trt_bisect.model.prepare import unused_name
from trt_bisect.model.quantizer import RoundedWeights

BIAS_SLOT = 2
"""The input of Conv, ConvTranspose and Gemm that is the bias."""

Slot = tuple[int, int]
"""The index of a layer and the position of one of its inputs."""


def with_constants(network: Network, changed: Mapping[Slot, np.ndarray]) -> Network:
    """Returns a network in which some layers read other constants.

    A constant that only the changed input reads keeps its name. Otherwise the new one gets a name of its own, after its
    layer. An input right after a layer's last one can be added.

    Args:
        network: stays as it is.
        changed: by layer and input, the new constant.
    """
    skeleton = onnx.ModelProto()
    skeleton.CopyFrom(network.skeleton)
    graph = skeleton.graph
    uses = constant_uses(graph)
    taken = {name for node in graph.node for name in (*node.output, *tensors_read(node), *_names_inside(node))}
    taken |= {tensor.name for tensor in graph.initializer} | {value.name for value in graph.input}
    weights, small = dict(network.weights), {tensor.name: tensor for tensor in graph.initializer}
    for (index, slot), values in changed.items():
        node = graph.node[index]
        if slot == len(node.input):
            node.input.append("")
        name = node.input[slot]
        if uses[name] != 1:
            name = unused_name(f"{node.name}.{'bias' if slot == BIAS_SLOT else 'weight'}", taken)
            node.input[slot] = name
        weights.pop(name, None)
        if values.nbytes >= DETACH_FROM_BYTES:
            weights[name] = values
            small[name] = detached_tensor(name, values)
        else:
            small[name] = numpy_helper.from_array(values, name)
    kept = [onnx.TensorProto.FromString(tensor.SerializeToString()) for tensor in small.values()]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    return replace(network, skeleton=skeleton, weights=weights, memo={}, rounded=RoundedWeights())


def constant_uses(graph: onnx.GraphProto) -> Counter[str]:
    """Returns the number of inputs that read each tensor, those of bodies too; an output of the graph counts as one."""
    uses = Counter(name for node in graph.node for name in tensors_read(node) if name)
    uses.update(value.name for value in graph.output)
    return uses


def _names_inside(node: onnx.NodeProto) -> set[str]:
    """The names of the tensors in the bodies of a node."""
    names: set[str] = set()
    bodies = [body for attribute in node.attribute for body in subgraphs_of_attribute(attribute)]
    while bodies:
        body = bodies.pop()
        names |= {value.name for value in body.input} | {tensor.name for tensor in body.initializer}
        for inner in body.node:
            names |= {*inner.input, *inner.output}
            bodies += [deeper for attribute in inner.attribute for deeper in subgraphs_of_attribute(attribute)]
    return names
