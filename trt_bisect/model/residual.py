"""The sides of a residual sum: which comes from a convolution that TensorRT fuses the sum with, and stays bare.

Facts, with their sources:

- TensorRT fuses a convolution with the sum behind it, and with pointwise layers in between, unless the sum broadcasts
  over another axis than the batch ("Layer Fusion Catalog": Convolution and ElementWise, Convolution and Generic
  Activation). In INT8 it does so where the other input of the sum is quantized and the convolution's own output is not
  ("Working with Quantized Types": do not quantize the outputs of weighted layers; quantize the residual input).
- Model-Optimizer writes it so (``build_non_residual_input_map``, pull requests 425 and 450): no pair on the branch that
  comes from a convolution; where both do, none on the branch with the longer way from where they part, or on the second
  where both are as long. NVIDIA's TensorFlow toolkit leaves one bare as well (``ResidualConnectionQDQCase``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import onnx

from trt_bisect.model.file import tensors_read

CONVOLUTIONS = ("Conv", "ConvTranspose")
_POINTWISE = frozenset(
    "BatchNormalization Add Sub Mul Div Pow Sqrt Abs Neg Exp Log Erf Relu LeakyRelu PRelu Clip Sigmoid HardSigmoid "
    "HardSwish Tanh Elu Selu Celu ThresholdedRelu Softplus Softsign Gelu Mish Swish".split()
)
"""What TensorRT computes element by element, BatchNormalization as a scale."""
_PAIRS = ("QuantizeLinear", "DequantizeLinear")

Shape = tuple[int | str | None, ...]


@dataclass(frozen=True)
class Wiring:
    """Who makes and who reads the tensors of a graph.

    Attributes:
        makers: the node that makes each tensor.
        uses: how many inputs read each tensor, those of bodies and the network's outputs among them.
        constants: the tensors that do not depend on the network's inputs.
        shapes: as far as they are known.
    """

    makers: Mapping[str, onnx.NodeProto]
    uses: Mapping[str, int]
    constants: Collection[str]
    shapes: Mapping[str, Shape]

    @classmethod
    def of(cls, graph: onnx.GraphProto, constants: Collection[str], shapes: Mapping[str, Shape]) -> Wiring:
        """The wiring of a graph with those constants."""
        uses = Counter(name for node in graph.node for name in tensors_read(node))
        uses.update(value.name for value in graph.output)
        makers = {name: node for node in graph.node for name in node.output if name}
        return cls(makers, uses, constants, shapes)

    def activations(self, node: onnx.NodeProto) -> list[str]:
        """The inputs of a node that are no constants, once for each slot."""
        return [name for name in node.input if name and name not in self.constants]

    def fused_with(self, tensor: str, heads: Collection[str] = CONVOLUTIONS) -> onnx.NodeProto | None:
        """The layer with weights that makes a tensor for its one reader, pointwise nodes of its own in between.

        All that is computed on the way is read on the way alone: a Mul of the output and its Sigmoid is on the way, a
        Mul by what another layer makes is not. A sum of two activations is never on the way: it has pairs of its own.

        Args:
            tensor: the output of the last node on the way.
            heads: operators of the layers that are looked for.
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
            if maker.op_type not in _POINTWISE or (maker.op_type == "Add" and len(inside) > 1):
                return None
            waiting += [name for name in dict.fromkeys(inside) if name not in reads]
            reads.update(inside)
        return head if all(self.uses[name] == count for name, count in reads.items()) else None

    def before(self, tensor: str) -> set[str]:
        """The names of the layers that a tensor is computed by, Q/DQ left out."""
        found: set[str] = set()
        waiting, seen = [tensor], {tensor}
        while waiting:
            node = self.makers.get(waiting.pop())
            if node is None:
                continue
            if node.op_type not in _PAIRS:
                found.add(node.name)
            fresh = {name for name in tensors_read(node) if name not in self.constants} - seen
            seen |= fresh
            waiting += fresh
        return found

    def broadcasts(self, one: str, other: str) -> bool:
        """Whether a sum of two tensors repeats one of them along another axis than the batch, as far as is known."""
        first, second = self.shapes.get(one), self.shapes.get(other)
        if first is None or second is None:
            return False
        sizes = zip(first[1:], second[1:], strict=False)
        return len(first) != len(second) or any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in sizes)

    def bare_side(self, sides: tuple[str, str]) -> int | None:
        """The side of a sum that gets no pair: 0 or 1, or None where both get one.

        Where both sides come from convolutions, the one with more layers of its own stays bare, the second where they
        have as many: the other is the skip, a projection as a rule.
        """
        if self.broadcasts(*sides):
            return None
        fused = [slot for slot, tensor in enumerate(sides) if self.fused_with(tensor) is not None]
        if len(fused) < 2:
            return next(iter(fused), None)
        first, second = (self.before(tensor) for tensor in sides)
        return 0 if len(first - second) > len(second - first) else 1
