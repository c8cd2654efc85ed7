"""TensorRT's fusions: the side of a residual Add that gets no Q/DQ pair, and the tensors that weak typing may round.

Facts and their sources:

- TensorRT fuses a convolution with the Add after it, and with pointwise layers in between, unless the Add broadcasts
  over another axis than the batch ("Layer Fusion Catalog": Convolution and ElementWise, Convolution and Generic
  Activation). In INT8 it does so if the other input of the Add is quantized and the convolution's own output is not
  ("Working with Quantized Types": do not quantize the outputs of weighted layers; quantize the residual input).
- Model-Optimizer does the same (``build_non_residual_input_map``, pull requests 425 and 450): no pair on the branch
  that comes from a convolution; if both do, none on the branch that is longer from the fork, or on the second if they
  are equally long. NVIDIA's TensorFlow toolkit also leaves one without (``ResidualConnectionQDQCase``).
- A layer that only follows (Sigmoid, Mul, Resize, Transpose) has no constraint if it stands between two INT8 layers.
  TensorRT's weak typing may then give it INT8 inputs and outputs, wherever a tensor has a scale. The rules are those
  of the constraints that ``builder.tensorrt_walk.constraints`` sets: a tensor is free if its maker is in INT8 or free,
  and if an INT8 layer reads it, directly or through layers that follow. All readers of such a tensor get the rounded
  values.
- Tensors inside a fused kernel are never written, so never rounded: what the convolution of a residual sum gives to
  the sum; what only a Relu, a Clip or the sum with a bias reads of a convolution, a matrix product or a sum; and what
  one pointwise layer gives to the next alone (TensorRT developer guide, "Types of Fusions").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx

from trt_bisect.model.file import tensor_uses, tensors_read

if TYPE_CHECKING:
    from trt_bisect.model.layers import Layer
    from trt_bisect.model.network import Network

CONVOLUTIONS = ("Conv", "ConvTranspose")
POINTWISE = frozenset(
    "BatchNormalization Add Sub Mul Div Pow Sqrt Abs Neg Exp Log Erf Relu LeakyRelu PRelu Clip Sigmoid HardSigmoid "
    "HardSwish Tanh Elu Selu Celu ThresholdedRelu Softplus Softsign Gelu Mish Swish".split()
)
"""The operators that TensorRT computes element by element; BatchNormalization as a scale."""
_PAIRS = ("QuantizeLinear", "DequantizeLinear")

Shape = tuple[int | str | None, ...]


@dataclass(frozen=True)
class Wiring:
    """The producers and readers of the tensors of a graph.

    Attributes:
        makers: the node that computes each tensor.
        uses: the number of inputs that read each tensor, including those of bodies; a network output counts as one.
        constants: the tensors that do not depend on the network's inputs.
        shapes: those that are known.
    """

    makers: Mapping[str, onnx.NodeProto]
    uses: Mapping[str, int]
    constants: Collection[str]
    shapes: Mapping[str, Shape]

    @classmethod
    def of(cls, graph: onnx.GraphProto, constants: Collection[str], shapes: Mapping[str, Shape]) -> Wiring:
        """Reads the wiring of a graph, given its constants and known shapes."""
        makers = {name: node for node in graph.node for name in node.output if name}
        return cls(makers, tensor_uses(graph), constants, shapes)

    def activations(self, node: onnx.NodeProto) -> list[str]:
        """The inputs of a node that are not constants, once for each slot."""
        return [name for name in node.input if name and name not in self.constants]

    def fused_with(self, tensor: str, heads: Collection[str] = CONVOLUTIONS) -> onnx.NodeProto | None:
        """Returns the convolution that can be fused with the reader of ``tensor``, or None.

        Between the convolution and the tensor there are only pointwise nodes, and only they read the tensors between.
        A Mul of the output and its Sigmoid is allowed, a Mul by the output of another layer is not. An Add of two
        activations is not allowed: it has pairs of its own.

        Args:
            tensor: read by one node.
            heads: the operators that count as convolutions.
        """
        reads, waiting = Counter([tensor]), [tensor]
        head: onnx.NodeProto | None = None
        while waiting:
            maker = self.makers.get(waiting.pop())
            if maker is None:
                return None
            if maker.op_type in heads:
                if head is not None and head is not maker:
                    return None
                head = maker
                continue
            inside = self.activations(maker)
            if maker.op_type not in POINTWISE or (maker.op_type == "Add" and len(inside) > 1):
                return None
            waiting += [name for name in dict.fromkeys(inside) if name not in reads]
            reads.update(inside)
        return head if all(self.uses[name] == count for name, count in reads.items()) else None

    def before(self, tensor: str) -> set[str]:
        """The names of all layers that a tensor depends on, without Q/DQ nodes."""
        names: set[str] = set()
        waiting, seen = [tensor], {tensor}
        while waiting:
            node = self.makers.get(waiting.pop())
            if node is None:
                continue
            if node.op_type not in _PAIRS:
                names.add(node.name)
            fresh = {name for name in tensors_read(node) if name not in self.constants} - seen
            seen |= fresh
            waiting += fresh
        return names

    def broadcasts(self, one: str, other: str) -> bool:
        """Returns true if an Add of two tensors repeats one along another axis than the batch; false if unknown."""
        first, second = self.shapes.get(one), self.shapes.get(other)
        if first is None or second is None:
            return False
        sizes = zip(first[1:], second[1:], strict=False)
        return len(first) != len(second) or any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in sizes)

    def bare_side(self, sides: tuple[str, str]) -> int | None:
        """Returns the input of an Add that gets no pair: 0 or 1, or None if both get one.

        If both come from convolutions, it is the one with more layers of its own, or the second if they have equally
        many: the other is the skip connection, usually a projection.
        """
        if self.broadcasts(*sides):
            return None
        fused = [slot for slot, tensor in enumerate(sides) if self.fused_with(tensor) is not None]
        if len(fused) < 2:
            return next(iter(fused), None)
        first, second = (self.before(tensor) for tensor in sides)
        return 0 if len(first - second) > len(second - first) else 1


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
    uses = tensor_uses(network.skeleton.graph)
    inside: set[str] = set()
    for layer in network.layers:
        for tensor in layer.inputs:
            maker = network.producers.get(tensor)
            if maker is not None and uses[tensor] == 1 and _is_fused(maker, layer, tensor, int8):
                inside.add(tensor)
    return inside


def _is_fused(maker: Layer, reader: Layer, tensor: str, int8: Collection[int]) -> bool:
    if reader.quantizable:
        bare = reader.op_type == "Add" and all(rounding.tensor != tensor for rounding in reader.roundings)
        return bare and reader.index in int8
    if maker.op_type in POINTWISE and not maker.quantizable and reader.op_type in POINTWISE:
        return True
    adds_bias = reader.op_type == "Add" and len(reader.inputs) == 1
    return maker.op_type in _HEADS and (adds_bias or reader.op_type in _FUSED_READERS)
