"""The layers of a network in execution order, and the tensors that a low precision rounds at each.

Facts about TensorRT's fusions, and their sources:

- A convolution is fused with the Add after it, and with pointwise layers in between, unless the Add broadcasts over
  another axis than the batch ("Layer Fusion Catalog"). In INT8 the other input of the Add must be quantized and the
  convolution's output not ("Working with Quantized Types").
- At such an Add, Model-Optimizer (``build_non_residual_input_map``, pull requests 425 and 450) puts no Q/DQ pair on the
  input from a convolution; if both are, none on the one with more layers since their fork, at a tie the second.
- An unquantized layer (Sigmoid, Mul, Resize, Transpose) has no constraint under weak typing: TensorRT may give it INT8
  inputs and outputs wherever a tensor has a scale. Such a tensor is rounded, for all its readers, if an INT8 layer
  makes it and another reads it, directly or through unquantized layers.
- Tensors inside a fused kernel are never rounded: between a convolution and its residual sum; between a convolution, a
  matrix product or a sum and its only reader if that is a Relu, a Clip or the sum with a bias; and between two
  pointwise layers (TensorRT developer guide, "Types of Fusions").
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated

import numpy as np
import onnx
from onnx import defs

from trt_bisect.model.existing import ExistingPairs
from trt_bisect.model.file import Constants, Weights, attribute, bodies_of, tensor_uses, tensors_read
from trt_bisect.model.quantizer import EVERY_INPUT, INT8, FloatType, LowPrecision, Quantizer
from trt_bisect.precision import Precision
from trt_bisect.support.table import INDEX, NAME, Column

CONVOLUTIONS = ("Conv", "ConvTranspose")
POINTWISE = frozenset(
    "BatchNormalization Add Sub Mul Div Pow Sqrt Abs Neg Exp Log Erf Relu LeakyRelu PRelu Clip Sigmoid HardSigmoid "
    "HardSwish Tanh Elu Selu Celu ThresholdedRelu Softplus Softsign Gelu Mish Swish".split()
)
"""The operators that TensorRT computes element by element; BatchNormalization is a scale."""
TAKES_TENSORS = frozenset(
    "Add Sub Mul Div Pow Max Min Sum Mean PRelu Where Equal Greater Less MatMul Gemm Einsum Concat Expand Gather "
    "GatherElements GatherND ScatterElements ScatterND".split()
)
"""The operators whose constant operands are layers of their own in TensorRT."""
CONSTANT = "Constant"
NO_RANGE = "has no usable range"
RECURRENT = ("LSTM", "GRU", "RNN")
MULTIPLYING = frozenset({*CONVOLUTIONS, *RECURRENT, "Gemm", "MatMul", "Einsum"})
"""The operators that compute sums of products."""
MODULE = ("Module", "Module in PyTorch")
SOURCE_LINE = ("Source line", "Line of the program that PyTorch exported")
_PAIRS = ("QuantizeLinear", "DequantizeLinear")

Shape = tuple[int | str | None, ...]


class Wiring:
    """The producers and readers of a graph's tensors.

    Attributes:
        makers, uses: the node that computes each tensor, and the number of its readers.
        constants: the tensors that depend on no input of the network.
    """

    def __init__(self, graph: onnx.GraphProto, constants: Container[str], shapes: Mapping[str, Shape]) -> None:
        self.makers = {name: node for node in graph.node for name in node.output if name}
        self.uses, self.constants, self.shapes = tensor_uses(graph), constants, shapes

    def fused_with(self, tensor: str, heads: Collection[str] = CONVOLUTIONS) -> onnx.NodeProto | None:
        """Returns the convolution (or other operator in ``heads``) that makes a tensor and can be fused with the
        tensor's only reader; None without one.

        Between the two may be pointwise nodes with single readers, such as SiLU; no Add or Mul of two layers' outputs.
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
            inside = [name for name in maker.input if name and name not in self.constants]
            if maker.op_type not in POINTWISE or (maker.op_type == "Add" and len(inside) > 1):
                return None
            waiting += [name for name in dict.fromkeys(inside) if name not in reads]
            reads.update(inside)
        return head if all(self.uses[name] == count for name, count in reads.items()) else None

    def before(self, tensor: str) -> set[str]:
        """Returns the names of all layers that a tensor depends on, without Q/DQ nodes."""
        names, waiting, seen = set[str](), [tensor], {tensor}
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

    def _broadcasts(self, sides: tuple[str, str]) -> bool:
        first, second = map(self.shapes.get, sides)
        if first is None or second is None:
            return False
        sizes = zip(first[1:], second[1:], strict=False)
        return len(first) != len(second) or any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in sizes)

    def bare_side(self, sides: tuple[str, str]) -> int | None:
        """Returns the position in ``sides``, the inputs of an Add, of the convolution's output that gets no Q/DQ pair.

        None if both get one. If convolutions make both, the branch with more layers since the fork gets none; if
        equally many, the second.
        """
        if self._broadcasts(sides):
            return None
        fused = [slot for slot, tensor in enumerate(sides) if self.fused_with(tensor) is not None]
        if len(fused) < 2:
            return next(iter(fused), None)
        first, second = (self.before(tensor) for tensor in sides)
        return 0 if len(first - second) > len(second - first) else 1


CARRIES = frozenset(
    "Reshape Flatten Transpose Squeeze Unsqueeze Slice Split Concat Gather GatherElements GatherND Expand Tile "
    "Identity Dropout DepthToSpace SpaceToDepth Pad MaxPool GlobalMaxPool ReduceMax ReduceMin Relu Max Min Abs Neg "
    "Where ReverseSequence Compress CenterCropPad Trilu TopK ScatterElements ScatterND Hardmax Sign".split()
)
"""Operators that round nothing: their outputs are values that they read, or exact in every type."""


def typed_slots(node: onnx.NodeProto, floats: Collection[str], kind: FloatType) -> tuple[int, ...] | None:
    """Returns the positions of the inputs that get the float type ``kind`` with all float32 outputs of a node; None if
    the node must stay float32.

    ``floats`` holds the float32 tensors.
    """
    # The newest schema decides: TensorRT takes bfloat16 for operators of any opset, ONNX for Conv and others only from
    # opset 22 on.
    schema = _newest_schema(node.op_type) if not node.domain else None
    if schema is None or bodies_of(node):
        return None
    constraints, name = schema.type_constraints, f"tensor({kind.name})"
    allowed = {constraint.type_param_str for constraint in constraints if name in constraint.allowed_type_strs}
    inputs = {slot: var for slot, var in _variables(node.input, schema.inputs) if node.input[slot] in floats}
    outputs = {var for slot, var in _variables(node.output, schema.outputs) if node.output[slot] in floats}
    if not outputs or not outputs <= allowed.intersection(inputs.values()):
        return None
    return tuple(slot for slot, var in inputs.items() if var in allowed)


def carries(node: onnx.NodeProto, slots: Sequence[int], kind: FloatType, constants: Constants) -> bool:
    """Returns true if a node rounds nothing once its inputs ``slots`` have the float type ``kind``."""
    read = [node.input[slot] for slot in slots if node.input[slot] in constants]
    return node.op_type in CARRIES and all(kind.holds(constants[name]) for name in read)


def _variables(names: Sequence[str], formal: Sequence[defs.OpSchema.FormalParameter]) -> Iterator[tuple[int, str]]:
    for slot, name in enumerate(names):
        if name and formal:
            yield slot, formal[min(slot, len(formal) - 1)].type_str


@cache
def _newest_schema(op_type: str) -> defs.OpSchema | None:
    try:
        return defs.get_schema(op_type)
    except defs.SchemaError:
        return None


@dataclass(frozen=True)
class Rounding:
    """A tensor that is rounded to the low precision for a layer.

    Attributes:
        slot: the position among the layer's inputs (outputs if ``at_output``).
        is_weight: true for a constant.
        axis: the channel axis of a weight's scales; None for one scale.
        fixed: the file's quantizers, first applied first; empty if calibration gives the scale.
        at_output: true if the tensor is rounded right before it becomes an output of the network.
        asymmetric: the file's quantizers if TensorRT refuses them and ``fixed`` has symmetric ones; else empty.
    """

    slot: int
    tensor: str
    is_weight: bool = False
    axis: int | None = None
    fixed: tuple[Quantizer, ...] = ()
    at_output: bool = False
    asymmetric: tuple[Quantizer, ...] = ()

    def made_symmetric(self) -> Rounding:
        """Returns this rounding with quantizers that TensorRT accepts."""
        symmetric = tuple(quantizer.symmetric() for quantizer in self.fixed)
        return self if symmetric == self.fixed else replace(self, fixed=symmetric, asymmetric=self.fixed)

    def as_in_file(self) -> Rounding:
        """Returns this rounding with the quantizers of the file."""
        return replace(self, fixed=self.asymmetric, asymmetric=()) if self.asymmetric else self


@dataclass(frozen=True)
class Layer:
    """A step of the network.

    Attributes:
        inputs: the tensors that it reads, without constants.
        shape, dtype: of its first output; a text in a shape is a named dynamic axis, None an unknown size.
        roundings: the tensors that the low precision rounds for it; FP16 and BF16 round its outputs too.
        why_not: the reason if the layer is not quantizable, else empty.
        fixed: the precision that the user or an engine's refusal gives it; None if the search chooses.
        refused: the reason if an engine does not run it in the low precision, else empty.
        title: its name in the PyTorch program, such as ``layer1.0/Add_1``; empty if unknown.
        module, code: its PyTorch module and its line in the program; empty if unknown.
    """

    index: Annotated[int, Column("#", kind=INDEX, rank=0)]
    name: Annotated[str, Column("Layer", kind=NAME, rank=0)]
    op_type: Annotated[str, Column("Op", rank=0)]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    shape: Annotated[Shape | None, Column("Shape", rank=0)]
    dtype: np.dtype[np.generic] | None
    roundings: tuple[Rounding, ...] = ()
    why_not: str = ""
    fixed: Precision | None = None
    module: Annotated[str, Column(*MODULE, rank=1)] = ""
    code: Annotated[str, Column(*SOURCE_LINE, rank=2)] = ""
    title: str = ""
    refused: str = ""

    @property
    def follows(self) -> bool:
        """True if the layer is not quantizable and may run in the precision of its neighbours."""
        return not self.quantizable and self.fixed is None

    @property
    def quantizable(self) -> bool:
        """True if the layer can run in the low precision."""
        return bool(self.roundings) and not self.why_not

    @property
    def answer(self) -> Annotated[str, Column("{low}", rank=0)]:
        """``yes`` if the layer is quantizable, else the reason."""
        return "yes" if self.quantizable else f"no: {self.why_not}"

    @property
    def has_weight(self) -> bool:
        """True if the low precision rounds a weight of the layer."""
        return any(rounding.is_weight for rounding in self.roundings)

    def kept_high(self, why: str) -> Layer:
        """Returns this layer as not quantizable, and not fixed in INT8 or FP8; ``why`` is the reason if it has none."""
        fixed = None if self.fixed is not None and self.fixed.needs_scale else self.fixed
        return replace(self, why_not=self.why_not or why, fixed=fixed)


@dataclass(frozen=True)
class TensorTypes:
    """Dtypes and shapes of tensors, as far as ONNX shape inference knows them."""

    dtypes: Mapping[str, np.dtype[np.generic]]
    shapes: Mapping[str, Shape]

    @property
    def float32(self) -> frozenset[str]:
        """The names of the float32 tensors."""
        return frozenset(name for name, dtype in self.dtypes.items() if dtype == np.float32)

    @classmethod
    def of(cls, graph: onnx.GraphProto) -> TensorTypes:
        """Returns the types and shapes that a graph states."""
        values = [(value.name, value.type.tensor_type) for value in (*graph.value_info, *graph.input, *graph.output)]
        types = [(name, tensor.elem_type) for name, tensor in values if tensor.elem_type]
        types += [(tensor.name, tensor.data_type) for tensor in graph.initializer]
        shapes = {name: tuple(map(_size, tensor.shape.dim)) for name, tensor in values if tensor.HasField("shape")}
        shapes |= {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
        return cls({name: np.dtype(onnx.helper.tensor_dtype_to_np_dtype(number)) for name, number in types}, shapes)


@dataclass(frozen=True)
class TensorFacts:
    """Shapes and dtypes of a network's tensors in one inference, without sequences and optional values."""

    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, np.dtype[np.generic]]

    def size(self, name: str) -> int:
        """The bytes of a tensor; 0 if unknown."""
        return int(math.prod(self.shapes[name])) * self.dtypes[name].itemsize if name in self.shapes else 0


def _size(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    if dim.HasField("dim_value"):
        return int(dim.dim_value) if dim.dim_value >= 0 else None
    is_name = dim.dim_param.isidentifier() and not dim.dim_param.startswith("unk__")
    return dim.dim_param if is_name else None


def layers_of(
    graph: onnx.GraphProto, weights: Weights, pairs: ExistingPairs, low: LowPrecision = INT8
) -> tuple[Layer, ...]:
    """Returns the layers of a prepared graph, in execution order.

    ``pairs`` were in its file; if there are any, only the layers at them are quantizable. ``weights`` are its large
    weights.
    """
    types, constants = TensorTypes.of(graph), Constants(graph, weights)
    wiring, floats, kind = Wiring(graph, constants, types.shapes), types.float32, low.float_type
    layers = []
    for index, node in enumerate(graph.node):
        if pairs:
            roundings, why_not = _existing_roundings(node, constants, pairs)
        elif kind is not None:
            roundings, why_not = _typed_roundings(node, kind, floats, constants)
        else:
            roundings, why_not = _low_roundings(node, types, wiring, low)
        first = node.output[0]
        layers.append(
            Layer(
                index=index,
                name=node.name,
                op_type=node.op_type,
                inputs=tuple(dict.fromkeys(name for name in tensors_read(node) if name and name not in constants)),
                outputs=tuple(name for name in node.output if name),
                shape=types.shapes.get(first),
                dtype=types.dtypes.get(first),
                roundings=roundings,
                why_not=why_not,
            )
        )
    return tuple(layers)


def _existing_roundings(
    node: onnx.NodeProto, constants: Constants, pairs: ExistingPairs
) -> tuple[tuple[Rounding, ...], str]:
    roundings = [
        Rounding(slot, name, name in constants, quantizers[0].axis, quantizers)
        for slot, name in enumerate(node.input)
        if (quantizers := pairs.inputs.get((node.name, slot)))
    ]
    roundings += [
        Rounding(slot, name, fixed=quantizers, at_output=True)
        for slot, name in enumerate(node.output)
        if (quantizers := pairs.outputs.get((node.name, slot)))
    ]
    symmetric = tuple(rounding.made_symmetric() for rounding in roundings)
    return symmetric, "" if symmetric else "the network has no Q/DQ at it"


def _typed_roundings(
    node: onnx.NodeProto, kind: FloatType, floats: Collection[str], constants: Constants
) -> tuple[tuple[Rounding, ...], str]:
    slots = typed_slots(node, floats, kind)
    if slots is None:
        return (), f"{node.op_type} has no float32 output whose type can change with its inputs"
    if all(node.input[slot] in constants for slot in slots):
        return (), "all its float inputs are constant"
    if carries(node, slots, kind, constants):
        return (), f"{node.op_type} rounds nothing: its outputs are values that it reads"
    return tuple(Rounding(slot, node.input[slot], node.input[slot] in constants) for slot in slots), ""


def _low_roundings(
    node: onnx.NodeProto, types: TensorTypes, wiring: Wiring, low: LowPrecision
) -> tuple[tuple[Rounding, ...], str]:
    slots = low.slots.get(node.op_type) if not node.domain else None
    if slots is None and multiplies(node):
        if bodies_of(node):
            return (), f"layers inside {node.op_type} stay in float"
        return (), f"TensorRT has no {node.op_type} in {low.title}"
    if slots is None:
        return (), f"{node.op_type} follows the layers around it"
    if slots == (EVERY_INPUT,):
        slots = tuple(range(len(node.input)))
    names, constants = [node.input[slot] for slot in slots], wiring.constants
    dtypes = {types.dtypes[name] for name in names if name in types.dtypes}
    if dtypes != {np.dtype(np.float32)}:
        return (), f"its inputs are not float32 ({', '.join(sorted(map(str, dtypes))) or 'unknown'})"
    if node.op_type == "Add" and any(name in constants for name in names):
        return (), "adding a constant follows the layer before it"
    if all(name in constants for name in names):
        return (), "all its inputs are constant"
    bare = wiring.bare_side((names[0], names[1])) if node.op_type == "Add" else None
    return tuple(
        Rounding(slot, name, name in constants, weight_axis(node, slot, types) if name in constants else None)
        for slot, name in zip(slots, names, strict=True)
        if slot != bare
    ), ""


def multiplies(node: onnx.NodeProto) -> bool:
    """Returns true if a node, or a node inside its bodies, computes sums of products."""
    inside = (inner for body in bodies_of(node) for inner in body.node)
    return (node.op_type in MULTIPLYING and not node.domain) or any(map(multiplies, inside))


def weight_axis(node: onnx.NodeProto, slot: int, types: TensorTypes) -> int | None:
    """Returns the axis of a weight along which its scales lie, the output channels; None for one scale."""
    rank = len(types.shapes.get(node.input[slot], ()))
    of_gemm = 0 if attribute(node, "transB", 0) else 1
    axes = {"Conv": 0, "ConvTranspose": 1, "Gemm": of_gemm, "MatMul": rank - 1}
    return axes.get(node.op_type) if slot == 1 and rank >= 2 else None
