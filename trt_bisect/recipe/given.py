"""The quantized file that the user gave, without the Q/DQ pairs of the layers that stay in high precision.

All else is as the tool wrote it, byte for byte. Such a layer reads the tensor before its pairs, and pairs that nothing
reads any more are removed. A weight stored in integers keeps its DequantizeLinear: the plan was measured with these
values.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import numpy_helper

from trt_bisect.model.file import read_apart, refill, tensor_uses, write_again
from trt_bisect.model.network import Network

_Makers = Mapping[str, onnx.NodeProto]
_PASSED = ("Identity", "QuantizeLinear", "DequantizeLinear")


def without_pairs(network: Network, high: Collection[str]) -> Callable[[Path], None] | None:
    """Returns a function that writes the network's file, without the pairs of the layers named in ``high``, into a
    folder.

    Returns None if not all scales come from the file, the file cannot be read again, its main graph lacks a layer or an
    activation's pair, or other layers need one of the pairs too.
    """
    source = Path(network.source)
    if not network.has_scales:
        return None
    try:
        model, _ = read_apart(source)
    except (OSError, ValueError, DecodeError):
        return None
    graph, outputs = model.graph, {spec.name for spec in network.outputs}
    makers = {name: node for node in graph.node for name in node.output}
    by_name = {node.name: node for node in graph.node if node.name}
    passed_by = set[str]()
    for layer in (layer for layer in network.layers if layer.name in high):
        made = layer.outputs[0]
        chain = _pairs_before(made, makers) if made in outputs else []
        node = by_name.get(layer.name) or makers.get(chain[-1].input[0] if chain else made)
        if node is None or node.op_type != layer.op_type:
            return None
        for rounding in layer.roundings:
            rounded = rounding.tensor if rounding.at_output else node.input[rounding.slot]
            chain = _pairs_before(rounded, makers)
            if not chain and rounding.is_weight:
                continue
            if not chain or (rounding.at_output and tensor_uses(graph)[rounded] > 1):
                return None
            passed_by |= {each.output[0] for each in chain}
            if rounding.at_output:
                # keeps the output's name
                identity = onnx.helper.make_node("Identity", chain[-1].input[:1], [rounded], chain[0].name)
                chain[0].CopyFrom(identity)
            else:
                node.input[rounding.slot] = _source(network, rounding.tensor, chain[-1], graph)
    _remove_unread(graph, passed_by)
    return partial(write_again, model, source)


def _pairs_before(tensor: str, makers: _Makers) -> list[onnx.NodeProto]:
    # Q, DQ and Identity nodes, last first, down to the first Q
    chain = list[onnx.NodeProto]()
    while (node := makers.get(tensor)) is not None and node.op_type in _PASSED:
        chain.append(node)
        tensor = node.input[0]
    while chain and chain[-1].op_type != "QuantizeLinear":
        chain.pop()
    return chain


def _source(network: Network, tensor: str, quantize: onnx.NodeProto, graph: onnx.GraphProto) -> str:
    # Where ONNX Runtime's quantizer replaced an activation by a pair, the Clip comes back: see model.existing.
    activation = network.producers.get(tensor)
    if activation is None or all(restored.layer != activation.name for restored in network.restored):
        return quantize.input[0]
    if all(node.name != activation.name for node in graph.node):
        place = next(k for k, node in enumerate(graph.node) if quantize.input[0] in node.output)
        clip = network.skeleton.graph.node[activation.index]
        graph.node.insert(place + 1, clip)
        graph.initializer.extend(numpy_helper.from_array(network.constant(name), name) for name in clip.input[1:])
    return tensor


def _remove_unread(graph: onnx.GraphProto, names: set[str]) -> None:
    uses = tensor_uses(graph)
    unread = {name for name in names if not uses[name]}
    if unread:
        refill(graph.node, [node for node in graph.node if unread.isdisjoint(node.output)])
        _remove_unread(graph, names - unread)
