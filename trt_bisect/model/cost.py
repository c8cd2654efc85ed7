"""What a layer costs to run: its multiply-adds."""

from __future__ import annotations

import numpy as np

from trt_bisect.model.layers import TensorFacts
from trt_bisect.model.network import Network


def macs(network: Network, facts: TensorFacts) -> dict[int, int]:
    """The multiply-adds of each layer by index, on the sample that ``facts`` were found on; 0 for what multiplies none.

    A convolution: the values of its output times the size of a filter, weight.shape[1:]. A transposed one: the values
    of its input times weight.shape[1:]. Gemm and MatMul: the values of the output times the length of the sums.
    """
    return {layer.index: _macs(network, layer.index, facts) for layer in network.layers}


def _macs(network: Network, index: int, facts: TensorFacts) -> int:
    node, shapes = network.skeleton.graph.node[index], facts.shapes
    if node.op_type not in ("Conv", "ConvTranspose", "Gemm", "MatMul"):
        return 0
    first, second, out = (shapes.get(name) for name in (node.input[0], node.input[1], node.output[0]))
    if first is None or second is None or out is None:
        return 0
    if node.op_type in ("Conv", "ConvTranspose"):
        return _count(out if node.op_type == "Conv" else first) * _count(second[1:])
    transposed = any(attribute.name == "transA" and attribute.i for attribute in node.attribute)
    return _count(out) * first[-2 if transposed else -1]


def _count(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64))
