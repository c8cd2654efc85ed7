"""Restores activations that ONNX Runtime's quantizer removed, if the graph proves that they existed.

The quantizer removes a Relu or a Clip before an asymmetric pair: the pair's range begins at zero, so its saturation
does the same (``QDQRemovableActivation`` in ``onnxruntime.quantization``). Without the pair, or with a symmetric one,
the network needs the activation again. A range that begins at zero is not enough as a proof: GELU and SiLU reach only
-0.17 and -0.28, which a coarse scale rounds to zero. The proof has three parts:

1. The pair has one scale, and its zero point is the lowest level.
2. Its values come from a layer whose results have no lower bound (a convolution, a matrix product, a normalization).
   In between they are only moved, pooled, scaled by constants or added. Only an activation can have cut them at zero.
3. The tensor is not named after its producer (``/conv1/Conv_output_0`` after ``/conv1/Conv``): the quantizer gives the
   output of the removed activation, name included, to the layer before it.
"""

from __future__ import annotations

import re

import numpy as np
import onnx_graphsurgeon as gs

from trt_bisect.model.quantizer import Quantizer

_NO_LOWER_BOUND = frozenset(
    "Conv ConvTranspose Gemm MatMul BatchNormalization InstanceNormalization LayerNormalization "
    "GroupNormalization".split()
)
_NO_RELU_BEHIND = frozenset(
    "Relu Clip Sigmoid HardSigmoid Softmax Softplus Abs Exp Sqrt Erf Tanh LeakyRelu PRelu Elu Celu Selu Gelu Mish "
    "Swish HardSwish DequantizeLinear".split()
)
"""Operators whose results are never negative or that are activations: no other activation follows them."""
_ALL_PASS = ("Add", "Concat", "Sum")
_FIRST_PASSES = frozenset(
    "Sub MaxPool AveragePool GlobalAveragePool GlobalMaxPool ReduceMean ReduceMax Reshape Flatten Transpose Squeeze "
    "Unsqueeze Slice Split Gather Resize Pad Expand Tile Identity Cast DepthToSpace SpaceToDepth".split()
)
_OWN_NAME = r"(?:[_.]out(?:put)?(?:_\d+)?|:\d+)?"
_RELU6 = 6.0


def with_absorbed_activation(
    source: gs.Tensor, quantizers: tuple[Quantizer, ...], graph: gs.Graph, unproven: list[str]
) -> gs.Tensor:
    """Restores the activation that a pair on ``source`` replaced, if that is proven.

    Args:
        source: the tensor that the pair rounds.
        quantizers: the quantizers of the pair, first applied first.
        graph: the activation is added to it, in place.
        unproven: the name of the layer that makes ``source`` is added to it if an activation is possible but unproven.

    Returns:
        The output of the activation; ``source`` if none is restored.
    """
    producer = source.inputs[0] if source.inputs else None
    if producer is None or not quantizers or not _begins_at_zero(quantizers[0]):
        return source
    name = f"{producer.name if len(producer.outputs) == 1 else source.name}.absorbed_relu"
    for reader in source.outputs:
        if reader.name == name:
            return reader.outputs[0]
    origins = _origins(source)
    if origins & _NO_LOWER_BOUND and not _has_own_name(source, producer):
        return _restore(source, producer, quantizers[0], name, graph)
    if not origins <= _NO_RELU_BEHIND and producer.name not in unproven:
        unproven.append(producer.name)
    return source


def _begins_at_zero(quantizer: Quantizer) -> bool:
    if quantizer.in_fp8 or quantizer.zero_point.ndim:
        return False
    return bool(quantizer.zero_point == np.iinfo(quantizer.zero_point.dtype).min)


def _origins(tensor: gs.Tensor) -> set[str]:
    """The operators that make the values of a tensor, before others that only move, pool, scale or add them."""
    found: set[str] = set()
    seen: set[int] = set()
    waiting = [tensor]
    while waiting:
        current = waiting.pop()
        if id(current) in seen or not current.inputs:
            continue
        seen.add(id(current))
        passed = _passed(current.inputs[0])
        waiting += passed
        if not passed:
            found.add(current.inputs[0].op)
    return found


def _passed(node: gs.Node) -> list[gs.Tensor]:
    """The inputs of a node that only moves, pools, scales or adds values; empty for other nodes."""
    if node.op in _ALL_PASS:
        return list(node.inputs)
    if node.op in _FIRST_PASSES:
        return list(node.inputs[:1])
    varying = [tensor for tensor in node.inputs if not isinstance(tensor, gs.Constant)]
    scaled = node.op in ("Mul", "Div") and len(varying) == 1 and (node.op == "Mul" or varying[0] is node.inputs[0])
    return varying if scaled else []


def _has_own_name(tensor: gs.Tensor, producer: gs.Node) -> bool:
    """Returns true if a tensor is named after its producer; PyTorch's newer exporter prefixes nodes with ``node_``."""
    stems = (producer.name, producer.name.removeprefix("node_"))
    return any(re.fullmatch(re.escape(stem) + _OWN_NAME, tensor.name) for stem in stems)


def _restore(source: gs.Tensor, producer: gs.Node, first: Quantizer, name: str, graph: gs.Graph) -> gs.Tensor:
    """Adds a Clip at zero after ``source``, and at six if the range ends there (Relu6); returns its output."""
    limits = [0.0, _RELU6] if abs(float(first.scale) * 255 - _RELU6) < 1e-3 else [0.0]
    bounds = [
        gs.Constant(f"{name}.{word}", np.array(limit, first.dtype))
        for word, limit in zip(("zero", "six"), limits, strict=False)
    ]
    out = gs.Variable(f"{name}_out", first.dtype, source.shape)
    place = graph.nodes.index(producer) + 1
    graph.nodes.insert(place, gs.Node("Clip", name, inputs=[source, *bounds], outputs=[out]))
    return out
