"""The tensors that TensorRT's weak typing may hold in INT8 although no INT8 layer asks for it.

A layer that only follows (Sigmoid, Mul, Resize, Transpose) has no constraint if it stands between two INT8 layers.
TensorRT may then give it INT8 inputs and outputs, wherever a tensor has a scale. The rules are those of the constraints
that ``builder.tensorrt_walk.constraints`` sets: a tensor is free if its maker is in INT8 or free, and if an INT8 layer
reads it, directly or through layers that follow. All readers of such a tensor get the rounded values.

Tensors inside a fused kernel are never written, so never rounded: what the convolution of a residual sum gives to the
sum; what only a Relu, a Clip or the sum with a bias reads of a convolution, a matrix product or a sum; and what one
pointwise layer gives to the next alone (TensorRT developer guide, "Types of Fusions").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from trt_bisect.model.file import tensors_read
from trt_bisect.model.layers import Layer
from trt_bisect.model.network import Network
from trt_bisect.model.residual import POINTWISE

_HEADS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "Add"})
_FUSED_READERS = frozenset({"Relu", "Clip", "BatchNormalization"})


def followed_tensors(network: Network, int8: Collection[int]) -> frozenset[str]:
    """Returns the tensors that may be held in INT8, beside those that INT8 layers round.

    Args:
        network: with any number of layers that only follow.
        int8: the indices of the layers in INT8; others among them than quantizable ones do not count.
    """
    chosen = {k for k in int8 if network.layers[k].quantizable}
    fed, read = set[str](), set[str]()
    for layer in network.layers:
        if layer.index in chosen or (layer.follows and not fed.isdisjoint(layer.inputs)):
            fed.update(layer.outputs)
    for layer in reversed(network.layers):
        if layer.index in chosen or (layer.follows and not read.isdisjoint(layer.outputs)):
            read.update(layer.inputs)
    results = {spec.name for spec in network.outputs}
    return frozenset((fed & read) - results - _inside_kernels(network, chosen))


def tensors_in_low(network: Network) -> frozenset[str]:
    """Returns the activations that some plan may hold in INT8: those that layers round, and ``followed_tensors``."""
    return followed_tensors(network, network.quantizable) | frozenset(network.rounded_activations)


def _inside_kernels(network: Network, int8: Collection[int]) -> set[str]:
    """The tensors between a layer and the only reader that it is fused with."""
    nodes = network.skeleton.graph.node
    uses = Counter(name for node in nodes for name in tensors_read(node))
    found: set[str] = set()
    for layer in network.layers:
        for tensor in layer.inputs:
            maker = network.producers.get(tensor)
            if maker is not None and uses[tensor] == 1 and _is_fused(maker, layer, tensor, int8):
                found.add(tensor)
    return found


def _is_fused(maker: Layer, reader: Layer, tensor: str, int8: Collection[int]) -> bool:
    if reader.quantizable:
        bare = reader.op_type == "Add" and all(rounding.tensor != tensor for rounding in reader.roundings)
        return bare and reader.index in int8
    if maker.op_type in POINTWISE and not maker.quantizable and reader.op_type in POINTWISE:
        return True
    adds_bias = reader.op_type == "Add" and len(reader.inputs) == 1
    return maker.op_type in _HEADS and (adds_bias or reader.op_type in _FUSED_READERS)
