"""The inner tensors of a network: their layers and roundings, and their values in FP32 and under a plan."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

import numpy as np

from trt_bisect.data.feeds import Feeds
from trt_bisect.model.layers import MODULE, SOURCE_LINE, Layer, Rounding, weight_axis
from trt_bisect.model.network import Network
from trt_bisect.model.observe import Observer
from trt_bisect.model.qdq import PlanWriter
from trt_bisect.model.quantizer import W8A16, FloatType, Quantizer, activation_quantizer, round_trips
from trt_bisect.precision import Precision, PrecisionPlan
from trt_bisect.support.table import INDEX, NAME, Column

Tensors = Mapping[str, np.ndarray]
INPUT, ACTIVATION, RESULT, WEIGHT, BIAS = "input", "activation", "output", "weight", "bias"
WEIGHTED = frozenset("Conv ConvTranspose Gemm LayerNormalization InstanceNormalization BatchNormalization".split())
"""Operators whose input 1 is a weight and whose input 2 is a bias."""
_CHANNELS_FIRST = frozenset(
    "Conv ConvTranspose MaxPool AveragePool GlobalAveragePool GlobalMaxPool BatchNormalization "
    "InstanceNormalization".split()
)
_CHANNELS_LAST = frozenset("Gemm MatMul LayerNormalization".split())
_REARRANGING = frozenset("Reshape Transpose Flatten Squeeze Unsqueeze DepthToSpace SpaceToDepth".split())


NO_SIDES: Mapping[int, Precision] = {}
_WEIGHT_SIDE = (Precision.INT8_WEIGHT, Precision.INT16)
_ACTIVATION_SIDE = (Precision.INT8_ACTIVATION, Precision.INT16)


@dataclass(frozen=True, kw_only=True)
class LayerTensor:
    """A tensor and its layer.

    Attributes:
        index: the index of the layer that makes the tensor, or reads the weight; None for an input.
        layer: the name of that layer; empty for an input.
        kind: ``input`` or ``output`` of the network, ``activation`` inside it, ``weight`` or ``bias``.
        op_type: the operator of that layer; ``Input`` for an input.
        int8_op_type: the layer's operator in the INT8 run.
        module: the layer's module in a program of PyTorch; else empty.
        code: the layer's source line in it; else empty.
    """

    index: Annotated[int | None, Column("#", "Place in execution order", INDEX, rank=1)] = None
    layer: Annotated[
        str, Column("Layer", "That makes the tensor, or reads the weight", NAME, rank=0, empty="{0.tensor}")
    ] = ""
    tensor: Annotated[str, Column("Tensor", rank=14)]
    kind: Annotated[str, Column("Kind")] = ACTIVATION
    op_type: Annotated[str, Column("Op", "Operator", rank=3)] = ""
    int8_op_type: Annotated[str, Column("Op in {low}", rank=9)] = ""
    module: Annotated[str, Column(*MODULE, rank=15)] = ""
    code: Annotated[str, Column(*SOURCE_LINE, rank=16)] = ""


@dataclass(frozen=True, kw_only=True)
class Origin(LayerTensor):
    """A tensor, its layer and its rounding.

    Attributes:
        quantizers: the quantizers to eight bits, in the order of application.
        float_type: FP16 or BF16 if the tensor is rounded to it, else None.
        readers: the layers that read the rounded tensor.
        rounded_as_result: true if a Q/DQ pair stands between the tensor and the network's output.
        beside: the tensor as other layers read it, through other Q/DQ pairs of the file.
    """

    quantizers: tuple[Quantizer, ...] = ()
    float_type: FloatType | None = None
    readers: tuple[str, ...] = ()
    channel_axis: int | None = None
    inputs: tuple[str, ...] = ()
    rounded_as_result: bool = False
    beside: tuple[Origin, ...] = ()

    @property
    def named(self) -> LayerTensor:
        """The tensor and its layer, without the rounding."""
        return LayerTensor(**{each.name: getattr(self, each.name) for each in fields(LayerTensor)})

    @property
    def quantized_dtype(self) -> str:
        """The type that the tensor is rounded to, such as ``int8`` or ``float16``; empty if it is not rounded."""
        if self.float_type is not None:
            return self.float_type.name
        return str(self.quantizers[0].zero_point.dtype) if self.quantizers else ""

    def rounded(self, values: np.ndarray) -> np.ndarray:
        """Returns ``values`` after the tensor's rounding."""
        if self.float_type is None:
            return round_trips(values, self.quantizers)
        return self.float_type.rounded(values)

    @property
    def scale(self) -> float | None:
        """The scale of the first quantizer, the largest if there are several; None without quantizers."""
        return float(np.max(self.quantizers[0].scale)) if self.quantizers else None

    @property
    def reach(self) -> float | None:
        """The largest magnitude that the first quantizer holds; None without quantizers."""
        if not self.quantizers:
            return None
        first = self.quantizers[0]
        zero_point, (least, largest) = first.zero_point.astype(np.float64), first.limits
        below = zero_point - (least if first.in_fp8 else least + 1)
        return float(np.max(first.scale * np.maximum(largest - zero_point, below)))


def sides_of(plan: PrecisionPlan) -> dict[int, Precision]:
    """Returns, by index, the precision of each layer of which the plan rounds only weights, only activations, or
    activations to 16 bits.
    """
    return {k: side for k, side in enumerate(plan.precisions) if side in (*_WEIGHT_SIDE, *_ACTIVATION_SIDE)}


def activation_origins(
    network: Network, writer: PlanWriter, int8: Collection[int], sides: Mapping[int, Precision] = NO_SIDES
) -> dict[str, Origin]:
    """Returns the float inputs and activations by name, in execution order.

    ``writer`` has the scales, ``int8`` the indices of layers in low precision; ``sides`` is ``sides_of`` the plan.
    """
    rounded, as_result = _roundings(network, writer, int8, sides)
    axes = _channel_axes(network)
    types = network.types
    results, low = {spec.name for spec in network.outputs}, {*int8, *sides}

    def origin(name: str, kind: str, **layer: Any) -> Origin:
        (quantizers, readers), *others = rounded.get(name) or [((), [])]
        origin = Origin(
            tensor=name,
            kind=kind,
            **layer,
            quantizers=quantizers,
            float_type=network.low.float_type if name in rounded else None,
            readers=tuple(readers),
            channel_axis=axes.get(name),
            rounded_as_result=name in as_result,
        )
        beside = (replace(origin, quantizers=quantizers, readers=tuple(readers)) for quantizers, readers in others)
        return replace(origin, beside=tuple(beside))

    fed = [spec.name for spec in network.inputs if spec.dtype.kind == "f"]
    origins = {name: origin(name, INPUT, op_type="Input", int8_op_type="Input") for name in fed}
    for layer in network.layers:
        place = {**_place_of(layer), "int8_op_type": low_op_type(network, layer, low), "inputs": layer.inputs}
        for name in layer.outputs:
            if types.dtypes.get(name, np.dtype(np.float32)).kind == "f":
                origins[name] = origin(name, RESULT if name in results else ACTIVATION, **place)
    return origins


def weight_origins(
    network: Network, writer: PlanWriter, int8: Collection[int], sides: Mapping[int, Precision] = NO_SIDES
) -> list[Origin]:
    """Returns the weights that can be rounded, in the order of their layers; weights of layers in high precision have
    no quantizers. The arguments are those of ``activation_origins``.
    """
    types = network.types
    origins = []
    for layer in network.layers:
        for rounding in (rounding for rounding in layer.roundings if rounding.is_weight):
            runs = layer.quantizable and (layer.index in int8 or sides.get(layer.index) in _WEIGHT_SIDE)
            node = network.skeleton.graph.node[layer.index]
            axis = rounding.axis if rounding.axis is not None else weight_axis(node, rounding.slot, types)
            origins.append(
                Origin(
                    tensor=rounding.tensor,
                    kind=WEIGHT,
                    **_place_of(layer),
                    int8_op_type=low_op_type(network, layer, {*int8, *sides}),
                    float_type=network.low.float_type if runs else None,
                    quantizers=writer.quantizers(layer, rounding) if runs else (),
                    readers=(layer.name,) if runs else (),
                    channel_axis=axis,
                )
            )
    return origins


def bias_origins(network: Network) -> list[Origin]:
    """Returns the constant float biases, which are not rounded."""
    return [
        Origin(
            tensor=name,
            kind=BIAS,
            **_place_of(layer),
            int8_op_type=layer.op_type,
        )
        for layer in network.layers
        for name in bias_names(network, layer)
        if network.types.dtypes[name].kind == "f"
    ]


def _place_of(layer: Layer) -> dict[str, Any]:
    return {
        "index": layer.index,
        "layer": layer.name,
        "op_type": layer.op_type,
        "module": layer.module,
        "code": layer.code,
    }


def bias_names(network: Network, layer: Layer) -> list[str]:
    """Returns the names of a layer's constant biases."""
    read = list(network.skeleton.graph.node[layer.index].input)
    rounded = {rounding.tensor for rounding in layer.roundings if rounding.is_weight}
    if layer.op_type in WEIGHTED:
        added = read[2:3]
    elif layer.op_type == "Add":
        added = read
    else:
        return []
    return [
        name
        for name in added
        if name and name not in rounded and network.has_constant(name)
        if sum(size != 1 for size in network.types.shapes[name]) <= 1
    ]


def low_op_type(network: Network, layer: Layer, low: Collection[int]) -> str:
    """Returns a layer's operator in the low run, prefixed with ``QDQ-``, ``FP16-`` or ``BF16-`` if ``low`` has its
    index.
    """
    if not layer.quantizable or layer.index not in low:
        return layer.op_type
    return f"{'QDQ' if network.low.needs_ranges else network.low.title}-{layer.op_type}"


# The quantizers of an activation, and the layers that read it through them.
_Rounded = tuple[tuple[Quantizer, ...], list[str]]


def _roundings(
    network: Network, writer: PlanWriter, int8: Collection[int], sides: Mapping[int, Precision]
) -> tuple[dict[str, list[_Rounded]], set[str]]:
    # Returns by activation its roundings, one for each list of quantizers; and the activations that a layer rounds as
    # its output.
    rounded: dict[str, dict[tuple[object, ...], _Rounded]] = {}
    as_result: set[str] = set()
    for layer in network.layers:
        side = sides.get(layer.index)
        if not layer.quantizable or not (layer.index in int8 or side in _ACTIVATION_SIDE):
            continue
        for rounding in (rounding for rounding in layer.roundings if not rounding.is_weight):
            quantizers = writer.quantizers(layer, rounding)
            if side is Precision.INT16:
                quantizers = (activation_quantizer(W8A16, np.float32(np.max(quantizers[0].scale))),)
            key = tuple(quantizer.key() for quantizer in quantizers)
            _, readers = rounded.setdefault(rounding.tensor, {}).setdefault(key, (quantizers, []))
            if rounding.at_output:
                as_result.add(rounding.tensor)
            elif layer.name not in readers:
                readers.append(layer.name)
    for tensor in writer.followed(int8) - rounded.keys():
        maker = network.producers[tensor]
        at = Rounding(maker.outputs.index(tensor), tensor, at_output=True)
        readers = [layer.name for layer in network.layers if tensor in layer.inputs]
        rounded[tensor] = {(): (writer.quantizers(maker, at), readers)}
    return {tensor: list(by_key.values()) for tensor, by_key in rounded.items()}, as_result


def _channel_axes(network: Network) -> dict[str, int]:
    # The axis is 1 after a convolution, the last after a matrix product, else as the input's if the rank is the same.
    shapes = network.types.shapes
    ranks = {**{spec.name: len(spec.shape) for spec in network.inputs}, **{n: len(s) for n, s in shapes.items()}}
    axes = {spec.name: _axis_by_rank(len(spec.shape)) for spec in network.inputs}
    for layer in network.layers:
        before = next((name for name in layer.inputs if name in axes), "")
        for name in layer.outputs:
            if layer.op_type in _CHANNELS_FIRST:
                axes[name] = 1
            elif layer.op_type in _CHANNELS_LAST:
                axes[name] = -1
            elif before and layer.op_type not in _REARRANGING and ranks.get(before) == ranks.get(name):
                axes[name] = axes[before]
            else:
                axes[name] = _axis_by_rank(ranks.get(name, 0))
    return axes


def _axis_by_rank(rank: int) -> int:
    return 1 if rank >= 4 else -1


def plan_observer(
    writer: PlanWriter,
    plan: PrecisionPlan,
    origins: Mapping[str, Origin],
    groups: Sequence[Sequence[str]] | None = None,
) -> Callable[[Feeds, int], Iterator[dict[str, np.ndarray]]]:
    """Returns a function of a sample and its index that yields, for each group, the tensors under a plan by name.

    Args:
        plan: the plan with all layers in high precision, or the one that ``origins`` describe.
        origins: the wanted tensors by name.
        groups: groups of these names, one in memory at a time; default: one group.
    """
    network, unrounded = writer.network, f"{writer.tag}unrounded"
    name_in_plan = {
        name: f"{name}{unrounded}" for name, origin in origins.items() if origin.rounded_as_result and plan.lowered
    }
    as_made = {made: name for name, made in name_in_plan.items()}
    groups = [tuple(origins)] if groups is None else groups
    inside = [[name_in_plan.get(name, name) for name in names] for names in groups]
    observer = Observer(writer.write(plan), inside, network.source)

    def run(feeds: Feeds, position: int) -> Iterator[dict[str, np.ndarray]]:
        for tensors in observer.run(feeds, position):
            yield {as_made.get(name, name): values for name, values in tensors.items()}
            del tensors

    return run


def both_observer(
    writer: PlanWriter, plan: PrecisionPlan, origins: Mapping[str, Origin], groups: Sequence[Sequence[str]]
) -> Callable[[Feeds, int], Iterator[tuple[Tensors, Tensors]]]:
    """Returns a function of a sample and its index that yields, for each of ``groups`` of names from ``origins``, the
    tensors by name in FP32 and under the plan.
    """
    in_fp32 = plan_observer(writer, writer.network.free_plan(), origins, groups)
    in_plan = plan_observer(writer, plan, origins, groups)

    def run(feeds: Feeds, position: int) -> Iterator[tuple[Tensors, Tensors]]:
        low = in_plan(feeds, position)
        for fp32 in in_fp32(feeds, position):
            yield fp32, next(low)
            del fp32

    return run
