"""Weak typing, TensorRT 8.5 to 10.x: turns a precision plan into constraints on a parsed TensorRT network.

**The idea.** A plan is about the layers of the ONNX network. From each, TensorRT's parser makes one or more layers.
``walk_steps`` finds the *owner* of each TensorRT layer, the ONNX layer that it belongs to; ``set_ranges`` gives tensors
dynamic ranges, and ``constraints`` gives layers precisions.

    ONNX             TensorRT's layers                        owner told by
    fc (Gemm)        fc.weight          CONSTANT              its first reader
                     (Unnamed Layer* 3) SHUFFLE   constant    its first reader
                     fc                 MATRIX_MULTIPLY main  its name
                     fc.bias            CONSTANT              its first reader
                     fc_1               ELEMENTWISE           its name with a number, or its metadata
    relu (Relu)      relu               ACTIVATION main       its name

``main`` and ``constant`` are attributes of ``WalkStep``. A layer's metadata, which 8.5 lacks, counts before its name.
Other layers take the owner of the last layer that makes one of their inputs, or, if only constants feed them, of their
first reader.

**Invariants.** A layer in high precision and its outputs both get this precision: with a constraint on the layer only,
TensorRT could round the output. No node's name is another's with a number (``Network.for_parser``).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

import numpy as np

from trt_bisect.builder import tensorrt_build
from trt_bisect.builder.base import MEASURED, Builder, BuildOptions, ProfileShapes, precisions_in
from trt_bisect.builder.inspector import onnx_layers_in
from trt_bisect.builder.tensorrt_engine import TensorRTEngine
from trt_bisect.errors import EngineUnavailable, TrialFailed
from trt_bisect.model.file import save_model
from trt_bisect.model.layers import Layer
from trt_bisect.model.network import Network
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.model.quantizer import FLOAT_TYPES, INT8_MAX, Scales
from trt_bisect.precision import Precision, PrecisionPlan
from trt_bisect.support.files import ScratchFolder

# TensorRT's types, by ONNX operator, of layers that get no constraint
_KINDS = {"Shape": "SHAPE", "Size": "SHAPE", "Cast": "CAST", "If": "CONDITION", "Loop": "LOOP_OUTPUT"}
_KINDS |= {"Scan": "LOOP_OUTPUT", "QuantizeLinear": "QUANTIZE", "DequantizeLinear": "DEQUANTIZE"}

_TYPES = {"float32": "FLOAT", "float16": "HALF", "bfloat16": "BF16"}

# types of layers without a precision of their own: they keep that of their data
_LEFT_ALONE = frozenset(
    "CONSTANT SHAPE CAST QUANTIZE DEQUANTIZE ASSERTION CONDITION CONDITIONAL_INPUT CONDITIONAL_OUTPUT TRIP_LIMIT "
    "RECURRENCE ITERATOR LOOP_OUTPUT".split()
)

_HEAVY = frozenset({"CONVOLUTION", "DECONVOLUTION", "FULLY_CONNECTED", "MATRIX_MULTIPLY"})
# types of layers whose outputs are values that they read, or zeros
_MOVES = frozenset({"SHUFFLE", "IDENTITY", "SQUEEZE", "UNSQUEEZE", "SLICE", "PADDING"})

_FLOATS = frozenset({"FLOAT", "HALF", "BF16"})
_NUMBERED = re.compile(r"_\d+$")
_LAST_MAJOR = 10


@dataclass(frozen=True)
class WalkStep:
    """A layer of a TensorRT network, or a node of the ONNX graph, with its owner: the ONNX layer that it belongs to.

    Attributes:
        layer: the ``trt.ILayer``; None for a node.
        kind: the name of TensorRT's layer type.
        makes: the name and the TensorRT type of each output; the type is empty for an activation.
        owner: the owner's index; None if unknown.
        named: true if the name or the metadata told the owner, not the neighbours.
        main: true if it has the owner's name.
        constant: true for constants, and for layers that read only constants.
    """

    layer: Any
    name: str
    kind: str
    reads: tuple[str, ...]
    makes: tuple[tuple[str, str], ...]
    owner: int | None = None
    named: bool = False
    main: bool = False
    constant: bool = False

    @property
    def computes(self) -> bool:
        """True if the layer does the main work of its owner, not the addition of a bias."""
        return self.main or (self.named and self.kind in _HEAVY)

    @property
    def made(self) -> list[str]:
        """The names of the layer's outputs."""
        return [name for name, _ in self.makes]

    @property
    def activations(self) -> list[str]:
        """The names of the outputs that are activations: float tensors, but no shape tensors."""
        return [name for name, kind in self.makes if not kind]


def is_activation(tensor: Any) -> bool:
    """Returns true for a float tensor that is no shape tensor."""
    return tensor.dtype.name in _FLOATS and not tensor.is_shape_tensor


def walk_steps(definition: Any, layers: tuple[Layer, ...]) -> list[WalkStep]:
    """Returns the layers of a ``trt.INetworkDefinition`` in order, each with its owner: the index in ``layers`` of the
    ONNX layer that it belongs to.
    """
    indices = {layer.name: layer.index for layer in layers}
    steps: list[WalkStep] = []
    constants: set[str] = set()
    makers: dict[str, int] = {}
    for step in (_step(definition.get_layer(i), indices) for i in range(definition.num_layers)):
        # Names alone would not do: the parser of 8.6 gives the product with Gemm's alpha no name.
        if step.owner is None:
            step = replace(step, owner=max((makers[name] for name in step.reads if name in makers), default=None))
        if step.kind == "CONSTANT" or (step.reads and constants.issuperset(step.reads)):
            step = replace(step, constant=True)
            constants.update(step.made)
        elif step.owner is not None:
            makers.update(dict.fromkeys(step.made, step.owner))
        steps.append(step)
    readers: dict[str, int] = {}
    for position, step in reversed(list(enumerate(steps))):
        owner = step.owner
        if owner is None:
            owner = next((readers[name] for name in step.made if name in readers), None)
            steps[position] = replace(step, owner=owner)
        if owner is not None:
            readers.update(dict.fromkeys(step.reads, owner))
    return steps


def _outputs_of(trt_layer: Any) -> list[Any]:
    return [trt_layer.get_output(i) for i in range(trt_layer.num_outputs)]


def _step(trt_layer: Any, indices: Mapping[str, int]) -> WalkStep:
    read = (trt_layer.get_input(i) for i in range(trt_layer.num_inputs))
    reads = tuple(tensor.name for tensor in read if tensor is not None)
    makes = []
    for tensor in _outputs_of(trt_layer):
        kind = "" if is_activation(tensor) else str(tensor.dtype.name)
        makes.append((tensor.name, kind))
    step = WalkStep(trt_layer, trt_layer.name, str(trt_layer.type.name), reads, tuple(makes))
    in_metadata = [name for name in onnx_layers_in(getattr(trt_layer, "metadata", "") or "") if name in indices]
    if in_metadata:
        owner = trt_layer.name if trt_layer.name in in_metadata else in_metadata[0]
        return replace(step, owner=indices[owner], named=True, main=trt_layer.name == owner)
    if trt_layer.name in indices:
        return replace(step, owner=indices[trt_layer.name], named=True, main=True)
    numbered = indices.get(_NUMBERED.sub("", trt_layer.name))
    return replace(step, owner=numbered, named=numbered is not None)


def set_ranges(trt: ModuleType, definition: Any, steps: list[WalkStep], network: Network, scales: Scales) -> None:
    """Sets the dynamic range, scale times 127, of float tensors, so that TensorRT needs no calibrator.

    Of the tensors that the parser added, copies get the range of their source, values inside a quantizable layer the
    range of its output, constants their largest magnitude, others none.
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
    begun: set[int | None] = set()  # quantizable layers whose main work is done, and whose outputs are ahead
    for step in steps:
        layer = None if step.owner is None else network.layers[step.owner]
        outputs = layer.outputs if layer is not None and layer.quantizable else ()
        if step.computes and outputs:
            begun.add(step.owner)
        ahead = outputs if step.owner in begun else ()
        for tensor in filter(is_activation, _outputs_of(step.layer)):
            if step.constant:
                give(tensor, _largest_of_constants(trt, step, network, ranges))
            else:
                give(tensor, _largest(scales, (tensor.name,)) or _moved(step, ranges) or _largest(scales, ahead))
        if ahead and not set(ahead).isdisjoint(step.made):
            begun.discard(step.owner)


def scales_set(definition: Any) -> dict[str, np.float32]:
    """Returns, by name, the scale of each tensor with a dynamic range: the range's upper end divided by 127."""
    inputs = [definition.get_input(i) for i in range(definition.num_inputs)]
    made = [tensor for i in range(definition.num_layers) for tensor in _outputs_of(definition.get_layer(i))]
    ranges = {tensor.name: tensor.dynamic_range for tensor in (*inputs, *made)}
    return {name: np.float32(reach[1] / INT8_MAX) for name, reach in ranges.items() if reach is not None}


def _largest(scales: Scales, names: tuple[str, ...]) -> float | None:
    return next((float(scales[name]) * INT8_MAX for name in names if name in scales), None)


def _moved(step: WalkStep, ranges: Mapping[str, float]) -> float | None:
    return ranges.get(step.reads[0]) if step.kind in _MOVES else None


def _largest_of_constants(
    trt: ModuleType, step: WalkStep, network: Network, ranges: Mapping[str, float]
) -> float | None:
    if step.kind == "CONSTANT":
        return largest_constant(trt, step.layer, network)
    if step.kind != "ELEMENTWISE":
        return _moved(step, ranges)
    factors = [ranges[name] for name in step.reads if name in ranges]
    multiplies = _as(trt.IElementWiseLayer, step.layer).op == trt.ElementWiseOperation.PROD
    if not multiplies or len(factors) != 2:
        return None
    return factors[0] * factors[1]


def largest_constant(trt: ModuleType, layer: Any, network: Network) -> float | None:
    """Returns the largest magnitude in a constant layer's weights; None without weights.

    Raises EngineUnavailable if TensorRT's Python module misreads the weights and ``network`` does not have them.
    """
    values = np.asarray(_as(trt.IConstantLayer, layer).weights)
    # With NumPy 2, TensorRT before 10.16 misreads weights: all values equal the first (docs/evidence/README.md). Then
    # the network's constant of the same name (or without a number), size and first value is read.
    if any(stride == 0 and size > 1 for stride, size in zip(values.strides, values.shape, strict=True)):
        names = [name for name in (layer.name, _NUMBERED.sub("", layer.name)) if network.has_constant(name)]
        alike = [constant for constant in map(network.constant, names) if constant.size == values.size]
        alike = [constant for constant in alike if np.float32(constant.flat[0]) == np.float32(values.flat[0])]
        if not alike:
            raise EngineUnavailable(
                f"The Python module of TensorRT {trt.__version__} misreads the constant '{layer.name}' with NumPy "
                f"{np.__version__}: every value equals the first.",
                "Run: pip install 'numpy<2', or use '--typing strong' or TensorRT 10.16 or later.",
            )
        values = alike[0]
    return float(np.abs(values.astype(np.float32)).max()) if values.size else None


def _as(kind: type, layer: Any) -> Any:
    # TensorRT's Python returns a plain ILayer; Polygraphy changes the class too
    if not isinstance(layer, kind):
        layer.__class__ = kind
    return layer


@dataclass(frozen=True)
class Constraint:
    """The precisions set on a TensorRT layer.

    Attributes:
        precision: None leaves the choice to TensorRT.
        outputs: for each output, an activation's precision, or None for TensorRT's choice; for other tensors the
            TensorRT type, such as ``INT32``.
    """

    layer: str
    precision: Precision | None
    outputs: tuple[Precision | str | None, ...]


def constraints(
    results: Collection[str], steps: list[WalkStep], network: Network, plan: PrecisionPlan, force_int8: bool = False
) -> Iterator[tuple[WalkStep, Constraint]]:
    """Yields each step that needs a constraint to make TensorRT run a plan, with that constraint.

    A free layer or output has no constraint: TensorRT chooses.

    - A quantizable layer is in INT8 or in high precision, as the plan says. If the low precision is FP16 or BF16,
      layers in it are constrained too.
    - An unquantized layer is free between two INT8 layers, directly or through unquantized layers, unless the user
      fixed its precision; elsewhere it is in high precision.
    - A layer in high precision and its outputs have this precision.
    - An INT8 layer is free, or forced to INT8 (``force_int8``). Its output is free only if an INT8 layer reads it,
      directly or through free layers; otherwise it has the base precision.
    - An output of the network (``results``) is FP32.
    - Constants, and layers that read only constants, are free.
    """
    low = frozenset(i for i in plan.lowered if network.layers[i].quantizable)
    fed, read = _beside_int8(steps, network, low), _beside_int8(steps, network, low, backwards=True)
    for step in steps:
        outputs = step.activations
        # An INT8 MatMul may read its constant weights through a Shuffle.
        if step.owner is None or step.constant or step.kind in _LEFT_ALONE or not outputs:
            continue
        in_int8 = network.low.needs_ranges and step.computes and step.owner in low
        may_be_free = network.low.needs_ranges or not network.layers[step.owner].quantizable
        between = _follows(step, network) and not (read.isdisjoint(outputs) or fed.isdisjoint(step.reads))
        free = in_int8 or (may_be_free and between)
        high = plan.precisions[step.owner]
        if high not in (*FLOAT_TYPES, Precision.FP32):
            high = network.base or Precision.FP32
        precision: Precision | None = high
        if free:
            precision = Precision.INT8 if force_int8 and in_int8 else None
        types = list[Precision | str | None]()
        for name, kind in step.makes:
            if kind:
                types.append(kind)
            elif free and name in read:
                types.append(None)
            elif name in results:
                types.append(Precision.FP32)
            else:
                types.append(high)
        constraint = Constraint(step.name, precision, tuple(types))
        if constraint.precision is not None or any(isinstance(kind, Precision) for kind in types):
            yield step, constraint


def constrain(
    trt: ModuleType,
    definition: Any,
    steps: list[WalkStep],
    network: Network,
    plan: PrecisionPlan,
    force_int8: bool = False,
) -> None:
    """Sets the precisions that make TensorRT run a plan on the layers of a parsed ``trt.INetworkDefinition``."""
    types = {Precision.INT8: trt.DataType.INT8, Precision.FP32: trt.DataType.FLOAT, Precision.FP16: trt.DataType.HALF}
    if Precision.BF16 in network.used_precisions(plan):
        types[Precision.BF16] = trt.DataType.BF16
    for step, constraint in constraints(_results_of(definition), steps, network, plan, force_int8):
        if constraint.precision is not None:
            step.layer.precision = types[constraint.precision]
        for position, kind in enumerate(constraint.outputs):
            if isinstance(kind, Precision):
                step.layer.set_output_type(position, types[kind])
    for i in range(definition.num_outputs):
        tensor = definition.get_output(i)
        if is_activation(tensor):
            tensor.dtype = trt.DataType.FLOAT


def _results_of(definition: Any) -> set[str]:
    return {definition.get_output(i).name for i in range(definition.num_outputs)}


def _follows(step: WalkStep, network: Network) -> bool:
    return step.owner is None or not step.computes or network.layers[step.owner].follows


def _beside_int8(steps: list[WalkStep], network: Network, int8: frozenset[int], *, backwards: bool = False) -> set[str]:
    # The tensors that INT8 layers make (backwards: read), directly or through unquantized layers. An unquantized layer
    # is free if it is fed and read:
    #     conv1 (INT8) --> relu --> maxpool --> conv2 (INT8)       relu and maxpool: fed and read, free
    #     conv1 (INT8) --> relu --> softmax --> output             fed, not read: high
    #     conv3 (high) --> relu --> conv2 (INT8)                   read, not fed: high
    beside: set[str] = set()
    in_order = steps[::-1] if backwards else steps
    for step in in_order:
        towards, away = (step.activations, step.reads) if backwards else (step.reads, step.activations)
        follows = _follows(step, network) and not beside.isdisjoint(towards)
        if follows or (step.computes and step.owner in int8):
            beside.update(away)
    return beside


@dataclass(frozen=True)
class WeakPlan:
    """The constraints that carry out a plan under weak typing.

    Attributes:
        constraints: those of the layers that have any.
        layers: the names of all layers, in TensorRT's order.
        parser: the parser that named them, such as ``TensorRT 8.6.1``; empty for ONNX nodes.
        scales: the scales of tensors with a dynamic range, by name.
    """

    constraints: tuple[Constraint, ...]
    layers: tuple[str, ...]
    parser: str = ""
    scales: Scales = field(default_factory=dict)


@runtime_checkable
class TellsWeakPlan(Protocol):
    """A builder, here or in a worker process, that can tell the constraints of weak typing."""

    def weak_plan(self, plan: PrecisionPlan) -> WeakPlan:
        """Returns the constraints with which TensorRT runs a plan; raises TrialFailed if the graph cannot be parsed."""
        ...


def weak_plan(builder: Builder, network: Network, plan: PrecisionPlan) -> WeakPlan:
    """Returns a plan's constraints under weak typing: on TensorRT's layers if a weak ``builder`` tells them, else on
    ONNX nodes.

    ONNX nodes have the names of the recipe's ``network.onnx``.
    """
    if builder.typing == "weak" and isinstance(builder, TellsWeakPlan):
        with suppress(TrialFailed):
            return builder.weak_plan(plan)
    network = network.for_parser
    constrained = constraints([spec.name for spec in network.outputs], _nodes(network), network, plan)
    return WeakPlan(tuple(constraint for _, constraint in constrained), tuple(layer.name for layer in network.layers))


def _nodes(network: Network) -> list[WalkStep]:
    # TopK's indices are INT32: the parser of TensorRT 10 adds a Cast to ONNX's INT64 (DEFINE_BUILTIN_OP_IMPORTER(TopK)
    # of onnx/onnx-tensorrt, 8.5 to 10.1).
    from_data, steps = {spec.name for spec in network.inputs}, list[WalkStep]()
    for layer in network.layers:
        if layer.op_type not in ("Shape", "Size") and from_data & {*layer.inputs}:
            from_data.update(layer.outputs)
        makes = []
        for name in layer.outputs:
            dtype = str(network.types.dtypes.get(name, "unknown"))
            kind = _TYPES.get(dtype, dtype.upper())
            if layer.op_type == "TopK" and name in layer.outputs[1:]:
                kind = "INT32"
            if kind in _FLOATS and name in from_data:
                kind = ""
            makes.append((name, kind))
        kind = _KINDS.get(layer.op_type, layer.op_type.upper())
        step = WalkStep(None, layer.name, kind, layer.inputs, tuple(makes), layer.index, named=True, main=True)
        steps.append(step)
    return steps


class TensorRTWeakBuilder:
    """Builds weakly typed engines from plans."""

    engine = tensorrt_build.TENSORRT
    typing = "weak"
    arithmetic = MEASURED

    def __init__(self, network: Network, scales: Scales, options: BuildOptions, profile_shapes: ProfileShapes) -> None:
        """Starts TensorRT.

        Raises BadInput if a dynamic input has no shapes, and EngineUnavailable if weak typing cannot be used.
        """
        self._in_file = network
        self._network = network = network.for_parser
        self._scales = scales
        self._options = options
        self._shapes = tensorrt_build.dynamic_shapes(network, profile_shapes)
        self._rt = tensorrt_build.start_tensorrt(tensorrt_build.TENSORRT, options.plugins)
        if self._rt.version[0] > _LAST_MAJOR:
            remedy = "Use '--typing strong'."
            raise EngineUnavailable(f"TensorRT {self._rt.module.__version__} has no weak typing.", remedy)
        self.versions: Mapping[str, str] = tensorrt_build.versions_of(self._rt, options)
        self._scratch = ScratchFolder()
        self._file = self._scratch.open() / "network.onnx"
        save_model(network.skeleton, network.weights, self._file)
        self._writer = PlanWriter(network, scales, GraphTarget.TENSORRT) if network.has_pairs else None

    def network_definition(self, plan: PrecisionPlan) -> tensorrt_build.Definition:
        """Returns a plan's network as TensorRT parsed it, with ranges and constraints.

        Raises TrialFailed if the parser refuses it. A network that came with Q/DQ pairs gets no constraints: the plan's
        pairs decide.
        """
        trt = self._rt.module
        if self._writer is not None:
            return tensorrt_build.parse_written(self._rt, self._writer.write(plan))
        parsed_file = tensorrt_build.parse_file(self._rt, self._file)
        steps = walk_steps(parsed_file.network, self._network.layers)
        if self._network.low.needs_ranges:
            set_ranges(trt, parsed_file.network, steps, self._network, self._scales)
        constrain(trt, parsed_file.network, steps, self._network, plan, self._options.force_int8)
        return parsed_file

    def weak_plan(self, plan: PrecisionPlan) -> WeakPlan:
        """Returns the constraints and scales with which TensorRT runs a plan; raises TrialFailed if TensorRT refuses
        it.
        """
        parsed_file = self.network_definition(plan)
        parsed = parsed_file.network
        steps = walk_steps(parsed, self._network.layers)
        constrained = constraints(_results_of(parsed), steps, self._network, plan, self._options.force_int8)
        layers = tuple(parsed.get_layer(i).name for i in range(parsed.num_layers))
        parser = f"TensorRT {self._rt.module.__version__}"
        return WeakPlan(tuple(constraint for _, constraint in constrained), layers, parser, scales_set(parsed))

    def serialize(self, plan: PrecisionPlan) -> tensorrt_build.Serialized:
        """Builds the engine of a plan as bytes; raises TrialFailed if the build fails."""
        trt, is_fp32 = self._rt.module, {*plan.precisions} == {Precision.FP32}
        if is_fp32:
            parsed_file = tensorrt_build.parse_file(self._rt, self._file)
        else:
            parsed_file = self.network_definition(plan)
        config, _ = tensorrt_build.new_config(self._rt, self._options, self._shapes, parsed_file)
        used = self._network.used_precisions(plan)
        if plan.int8:
            config.set_flag(trt.BuilderFlag.INT8)
        if Precision.FP16 in used:
            config.set_flag(trt.BuilderFlag.FP16)
        if Precision.BF16 in used:
            config.set_flag(trt.BuilderFlag.BF16)
        if self._options.dla is not None and not is_fp32:
            tensorrt_build.use_dla(trt, self._rt.builder, config, self._options.dla)
        if self._writer is None and not is_fp32:
            config.set_flag(trt.BuilderFlag.OBEY_PRECISION_CONSTRAINTS)
        return tensorrt_build.serialize(self._rt, parsed_file, config, self._options)

    def build(self, plan: PrecisionPlan) -> TensorRTEngine:
        """Builds the engine of a plan."""
        serialized = self.serialize(plan)
        rounded = None if self._writer is None else precisions_in(self._network, plan)
        names = {mine.name: layer.name for mine, layer in zip(self._network.layers, self._in_file.layers, strict=True)}
        return TensorRTEngine(self._rt, serialized, self._network, self._shapes, self._options, rounded, names)

    def reference(self) -> TensorRTEngine:
        """Builds the engine with neither INT8 nor FP16 allowed, and TF32 off."""
        return self.build(self._network.free_plan())
