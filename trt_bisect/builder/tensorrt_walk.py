"""Weak typing: a precision plan laid over the layers of a parsed TensorRT network.

Unproven until tools/gpu_check has run it on a GPU: TensorRT itself cannot be started without one, and TensorRT-RTX has
no weak typing. What is tested is that the walk asks for what it should, of objects with the interface of
``INetworkDefinition``, which is all that these functions know of TensorRT.

Which TensorRT layer belongs to which layer of the network: TensorRT's ONNX parser names a node's main layer after the
node; further layers carry the node's name with a number, or in their metadata, or are called ``(Unnamed Layer* N)``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np

from trt_bisect.builder.inspector import onnx_layers_in
from trt_bisect.model.layers import Layer
from trt_bisect.model.network import Network
from trt_bisect.model.quantizer import INT8_MAX, Scales
from trt_bisect.precision import Precision, PrecisionPlan

_LEFT_ALONE = frozenset(
    "CONSTANT SHAPE CAST QUANTIZE DEQUANTIZE ASSERTION CONDITION CONDITIONAL_INPUT CONDITIONAL_OUTPUT TRIP_LIMIT "
    "RECURRENCE ITERATOR LOOP_OUTPUT".split()
)
"""The types of layers whose precision is not theirs to choose: they have the type of what they hold or pass on."""

_HEAVY = frozenset({"CONVOLUTION", "DECONVOLUTION", "FULLY_CONNECTED", "MATRIX_MULTIPLY"})
_MOVES = frozenset({"SHUFFLE", "IDENTITY", "SQUEEZE", "UNSQUEEZE", "SLICE", "PADDING"})
"""The types of layers that put out the values that they read, or some of them, or zeros beside them."""

_FLOATS = frozenset({"FLOAT", "HALF", "BF16"})
_NUMBERED = re.compile(r"_\d+$")


@dataclass(frozen=True)
class Step:
    """One layer of a TensorRT network.

    Attributes:
        layer: the ``trt.ILayer``.
        owner: the index of the network's layer that it does work of, None where there is none.
        named: its name or its metadata says so; otherwise it only stands beside that layer's work.
        main: it bears that layer's own name.
        constant: it is a constant, or reads constants alone.
    """

    layer: Any
    owner: int | None
    named: bool = False
    main: bool = False
    constant: bool = False

    @property
    def kind(self) -> str:
        """The name of TensorRT's layer type."""
        return str(self.layer.type.name)

    @property
    def computes(self) -> bool:
        """Whether it does what the network's layer is there for, not something before or after it, such as a bias."""
        return self.main or (self.named and self.kind in _HEAVY)

    def inputs(self) -> Iterator[Any]:
        """The tensors it reads; optional ones that are not there are left out."""
        tensors = (self.layer.get_input(i) for i in range(self.layer.num_inputs))
        return (tensor for tensor in tensors if tensor is not None)

    def made(self) -> Iterator[str]:
        """The names of all tensors that it makes."""
        return (self.layer.get_output(i).name for i in range(self.layer.num_outputs))

    def outputs(self) -> Iterator[tuple[int, Any]]:
        """The float tensors it makes that are no shapes, each with its position."""
        for i in range(self.layer.num_outputs):
            tensor = self.layer.get_output(i)
            if is_activation(tensor):
                yield i, tensor


def is_activation(tensor: Any) -> bool:
    """Whether a tensor holds floats and is no shape tensor."""
    return tensor.dtype.name in _FLOATS and not tensor.is_shape_tensor


def steps_of(definition: Any, layers: tuple[Layer, ...]) -> list[Step]:
    """The layers of a TensorRT network, each with the layer of ``layers`` that it belongs to.

    A layer that no name maps follows the last of those that make its inputs: the product with Gemm's ``alpha``, which
    the parser of TensorRT 8.6 leaves without a name, reads a constant first. Where nothing makes any of them, and for
    what is computed from constants alone, it follows the first that reads what it makes.
    """
    indices = {layer.name: layer.index for layer in layers}
    steps = _with_constants([_step(definition.get_layer(i), indices) for i in range(definition.num_layers)])
    return _following_readers(_following_makers(steps))


def _with_constants(steps: list[Step]) -> list[Step]:
    """The steps, those that are computed from constants alone marked."""
    found: list[Step] = []
    constants: set[str] = set()
    for step in steps:
        read = [tensor.name for tensor in step.inputs()]
        if step.kind == "CONSTANT" or (read and constants.issuperset(read)):
            step = replace(step, constant=True)
            constants.update(step.made())
        found.append(step)
    return found


def _following_makers(steps: list[Step]) -> list[Step]:
    found: list[Step] = []
    makers: dict[str, int] = {}
    for step in steps:
        if step.owner is None:
            made = [makers[tensor.name] for tensor in step.inputs() if tensor.name in makers]
            step = replace(step, owner=max(made, default=None))
        if step.owner is not None and not step.constant:
            makers.update(dict.fromkeys(step.made(), step.owner))
        found.append(step)
    return found


def _following_readers(steps: list[Step]) -> list[Step]:
    found: list[Step] = []
    readers: dict[str, int] = {}
    for step in reversed(steps):
        if step.owner is None:
            step = replace(step, owner=next((readers[name] for name in step.made() if name in readers), None))
        if step.owner is not None:
            readers.update({tensor.name: step.owner for tensor in step.inputs()})
        found.append(step)
    return found[::-1]


def _step(layer: Any, indices: Mapping[str, int]) -> Step:
    if layer.name in indices:
        return Step(layer, indices[layer.name], named=True, main=True)
    in_metadata = [indices[name] for name in onnx_layers_in(getattr(layer, "metadata", "") or "") if name in indices]
    if in_metadata:
        return Step(layer, in_metadata[0], named=True)
    owner = indices.get(_NUMBERED.sub("", layer.name))
    return Step(layer, owner, named=owner is not None)


def set_ranges(trt: ModuleType, definition: Any, steps: list[Step], network: Network, scales: Scales) -> None:
    """Gives every float tensor its dynamic range, scale times 127, so that no calibrator is needed.

    Tensors that TensorRT's parser made have no scale of their own. Where values are only moved they take that of what
    was moved; inside a quantizable layer, after its product and before its bias, that of the layer's output; constants
    take their largest value. Any other gets none, and TensorRT then computes what makes or reads it in floats.
    """
    ranges: dict[str, float] = {}

    def give(tensor: Any, largest: float | None) -> None:
        if largest is not None and np.isfinite(largest) and largest > 0:
            ranges[tensor.name] = largest
            tensor.dynamic_range = (-largest, largest)

    for i in range(definition.num_inputs):
        tensor = definition.get_input(i)
        if is_activation(tensor):
            give(tensor, _largest(scales, (tensor.name,)))
    for step, inside in _with_outputs_ahead(steps, network):
        for _, tensor in step.outputs():
            if step.constant:
                give(tensor, _largest_of_constants(trt, step, ranges))
            else:
                own, moved = _largest(scales, (tensor.name,)), _moved(step, ranges)
                give(tensor, own or moved or _largest(scales, inside))


def scales_set(definition: Any) -> dict[str, np.float32]:
    """The scales of the tensors that have a dynamic range, by name: its end over 127."""
    inputs = [definition.get_input(i) for i in range(definition.num_inputs)]
    layers = [definition.get_layer(i) for i in range(definition.num_layers)]
    made = [layer.get_output(i) for layer in layers for i in range(layer.num_outputs)]
    ranges = {tensor.name: tensor.dynamic_range for tensor in (*inputs, *made)}
    return {name: np.float32(reach[1] / INT8_MAX) for name, reach in ranges.items() if reach is not None}


def _with_outputs_ahead(steps: list[Step], network: Network) -> Iterator[tuple[Step, tuple[str, ...]]]:
    """Each step with the outputs of the quantizable layer that it is inside of: begun, and its outputs not yet made."""
    begun: set[int] = set()
    for step in steps:
        if step.owner is None or not network.layers[step.owner].quantizable:
            yield step, ()
            continue
        outputs = network.layers[step.owner].outputs
        if step.computes:
            begun.add(step.owner)
        yield step, outputs if step.owner in begun else ()
        if not set(outputs).isdisjoint(step.made()):
            begun.discard(step.owner)


def _largest(scales: Scales, names: tuple[str, ...]) -> float | None:
    return next((float(scales[name]) * INT8_MAX for name in names if name in scales), None)


def _moved(step: Step, ranges: Mapping[str, float]) -> float | None:
    """The range of what a step only moves, None where it does more or nothing is known."""
    tensor = next(step.inputs(), None) if step.kind in _MOVES else None
    return None if tensor is None else ranges.get(tensor.name)


def _largest_of_constants(trt: ModuleType, step: Step, ranges: Mapping[str, float]) -> float | None:
    """The largest magnitude of a constant, or of what is moved or multiplied of constants: Gemm's ``beta`` and bias."""
    if step.kind == "CONSTANT":
        return largest_constant(trt, step.layer)
    if step.kind != "ELEMENTWISE":
        return _moved(step, ranges)
    known = [ranges[tensor.name] for tensor in step.inputs() if tensor.name in ranges]
    multiplies = _as(trt.IElementWiseLayer, step.layer).op == trt.ElementWiseOperation.PROD
    return known[0] * known[1] if multiplies and len(known) == 2 else None


def largest_constant(trt: ModuleType, layer: Any) -> float | None:
    """The largest magnitude in a constant layer's weights, None where they hold nothing."""
    values = np.asarray(_as(trt.IConstantLayer, layer).weights)
    return float(np.abs(values.astype(np.float32)).max()) if values.size else None


def _as(kind: type, layer: Any) -> Any:
    """A layer as what it is: TensorRT's Python interface gives every layer as a plain ``ILayer``.

    Its class is changed to see its own attributes, as Polygraphy does.
    """
    if not isinstance(layer, kind):
        layer.__class__ = kind
    return layer


@dataclass(frozen=True)
class Constraint:
    """The precisions that one TensorRT layer is told.

    Attributes:
        layer: its name.
        precision: that it computes in; None leaves the choice to TensorRT.
        outputs: the type of each of its outputs: a precision; None where the choice is TensorRT's; and for a tensor
            that is no activation the name of its own TensorRT type, such as ``INT32``, which nobody changes.
    """

    layer: str
    precision: Precision | None
    outputs: tuple[Precision | str | None, ...]


def constraints(
    definition: Any, steps: list[Step], network: Network, plan: PrecisionPlan, force_int8: bool = False
) -> Iterator[tuple[Step, Constraint]]:
    """The constraints that make TensorRT run a plan; the builder sets them, and the recipe's files repeat them.

    A quantizable layer of the network is INT8 or high as the plan says. A layer that only follows is left free where it
    stands between two INT8 layers, and is high elsewhere, whatever the plan says of it: it never changes an engine.
    High layers compute in, and put out, their high precision. An INT8 layer is left to INT8, or forced to it; what it
    puts out may be INT8 only if an INT8 layer reads it, at once or through layers left free. An output of the network
    is FP32. What reads constants alone is left free, as constants are: an INT8 MatMul may read its weights through a
    Shuffle.

    Args:
        definition: the parsed network.
        steps: its layers, from ``steps_of``.
        network: whose plan it is.
        plan: the precision of each of its layers.
        force_int8: constrain the main TensorRT layer of each INT8 layer to INT8.

    Returns:
        The layers that are told something, each with what it is told.
    """
    int8 = frozenset(i for i in plan.int8 if network.layers[i].quantizable)
    fed, read = _fed_by_int8(steps, network, int8), _read_by_int8(steps, network, int8)
    results = {definition.get_output(i).name for i in range(definition.num_outputs)}
    for step in steps:
        if step.owner is None or step.constant or step.kind in _LEFT_ALONE or not any(step.outputs()):
            continue
        in_int8 = step.computes and step.owner in int8
        free = in_int8 or _stands_between(step, network, fed, read)
        high = Precision.FP16 if plan.precisions[step.owner] is Precision.FP16 else Precision.FP32
        chosen = Precision.INT8 if force_int8 and in_int8 else None
        made = (step.layer.get_output(i) for i in range(step.layer.num_outputs))
        types = tuple(_told(tensor, high, read if free else set(), results) for tensor in made)
        constraint = Constraint(step.layer.name, chosen if free else high, types)
        if constraint.precision is not None or any(isinstance(kind, Precision) for kind in types):
            yield step, constraint


def _told(tensor: Any, high: Precision, left_free: set[str], results: set[str]) -> Precision | str | None:
    """What a layer is told of the type of an output: see ``Constraint.outputs``."""
    if not is_activation(tensor):
        return str(tensor.dtype.name)
    if tensor.name in left_free:
        return None
    return Precision.FP32 if tensor.name in results else high


def constrain(
    trt: ModuleType,
    definition: Any,
    steps: list[Step],
    network: Network,
    plan: PrecisionPlan,
    force_int8: bool = False,
) -> None:
    """Tells the layers of a parsed network what ``constraints`` says; TensorRT must be told to obey.

    Args:
        trt: the TensorRT module.
        definition: the parsed network; altered.
        steps: its layers, from ``steps_of``.
        network: whose plan it is.
        plan: the precision of each of its layers.
        force_int8: constrain the main TensorRT layer of each INT8 layer to INT8.
    """
    types = {
        Precision.INT8: trt.DataType.INT8,
        Precision.FP32: trt.DataType.FLOAT,
        Precision.FP16: trt.DataType.HALF,
    }
    for step, constraint in constraints(definition, steps, network, plan, force_int8):
        if constraint.precision is not None:
            step.layer.precision = types[constraint.precision]
        for position, kind in enumerate(constraint.outputs):
            if isinstance(kind, Precision):
                step.layer.set_output_type(position, types[kind])
    for i in range(definition.num_outputs):
        tensor = definition.get_output(i)
        if is_activation(tensor):
            tensor.dtype = trt.DataType.FLOAT


def _follows(step: Step, network: Network) -> bool:
    return step.owner is None or not (step.computes and network.layers[step.owner].quantizable)


def _stands_between(step: Step, network: Network, fed: set[str], read: set[str]) -> bool:
    """Whether a step only follows, and INT8 layers are on both of its sides."""
    follows = _follows(step, network)
    feeds = any(tensor.name in read for _, tensor in step.outputs())
    return follows and feeds and any(tensor.name in fed for tensor in step.inputs())


def _fed_by_int8(steps: list[Step], network: Network, int8: frozenset[int]) -> set[str]:
    """The tensors that an INT8 layer makes, at once or through layers that only follow."""
    fed: set[str] = set()
    for step in steps:
        follows = _follows(step, network) and any(tensor.name in fed for tensor in step.inputs())
        if follows or (step.computes and step.owner in int8):
            fed.update(tensor.name for _, tensor in step.outputs())
    return fed


def _read_by_int8(steps: list[Step], network: Network, int8: frozenset[int]) -> set[str]:
    """The tensors that an INT8 layer reads, at once or through layers that only follow."""
    read: set[str] = set()
    for step in reversed(steps):
        follows = _follows(step, network) and any(tensor.name in read for _, tensor in step.outputs())
        if follows or (step.computes and step.owner in int8):
            read.update(tensor.name for tensor in step.inputs())
    return read
