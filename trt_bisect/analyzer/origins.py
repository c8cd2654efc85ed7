"""Facts on a tensor from the network: the layer that makes it, the layers that read it rounded, its channel axis."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from trt_bisect.model.layers import Layer, TensorTypes, weight_axis
from trt_bisect.model.network import Network
from trt_bisect.model.qdq import PlanWriter
from trt_bisect.model.quantizer import Quantizer

INPUT, ACTIVATION, RESULT, WEIGHT = "input", "activation", "output", "weight"
_CHANNELS_FIRST = frozenset(
    "Conv ConvTranspose MaxPool AveragePool GlobalAveragePool GlobalMaxPool BatchNormalization "
    "InstanceNormalization".split()
)
_CHANNELS_LAST = frozenset("Gemm MatMul LayerNormalization".split())
_REARRANGING = frozenset("Reshape Transpose Flatten Squeeze Unsqueeze DepthToSpace SpaceToDepth".split())


@dataclass(frozen=True)
class Origin:
    """A tensor in the network.

    Attributes:
        tensor: its name.
        kind: ``input`` or ``output`` of the network, ``activation`` inside it, or ``weight``.
        index: of the layer that makes it, or that reads it if it is a weight; None for an input.
        layer: the name of that layer; empty for an input.
        op_type: the operator of that layer; ``Input`` for an input.
        int8_op_type: the operator of that layer in the INT8 run.
        quantizers: round it in INT8, in the order in which they apply; empty if it is not rounded.
        readers: the layers that read it rounded.
        channel_axis: None if it has no channels.
        inputs: the tensors that its layer reads.
        rounded_as_result: a Q/DQ pair stands between it and the network's output.
    """

    tensor: str
    kind: str = ACTIVATION
    index: int | None = None
    layer: str = ""
    op_type: str = ""
    int8_op_type: str = ""
    quantizers: tuple[Quantizer, ...] = ()
    readers: tuple[str, ...] = ()
    channel_axis: int | None = None
    inputs: tuple[str, ...] = ()
    rounded_as_result: bool = False

    @property
    def quantized_dtype(self) -> str:
        """``int8`` or ``uint8``; empty if it is not rounded."""
        return str(self.quantizers[0].zero_point.dtype) if self.quantizers else ""

    @property
    def scale(self) -> float | None:
        """The scale of the first quantizer; the largest one if each channel has its own. None if it is not rounded."""
        return float(np.max(self.quantizers[0].scale)) if self.quantizers else None

    @property
    def reach(self) -> float | None:
        """The largest magnitude that the first quantizer can represent; None if the tensor is not rounded."""
        if not self.quantizers:
            return None
        first = self.quantizers[0]
        zero_point, (least, largest) = first.zero_point.astype(np.float64), first.limits
        below = zero_point - (least if first.in_fp8 else least + 1)
        return float(np.max(first.scale * np.maximum(largest - zero_point, below)))

    @property
    def has_steps(self) -> bool:
        """True if it is rounded to equal steps, as INT8 does and FP8 does not."""
        return bool(self.quantizers) and not any(quantizer.in_fp8 for quantizer in self.quantizers)


def activation_origins(network: Network, writer: PlanWriter, int8: Collection[int]) -> dict[str, Origin]:
    """Returns the network's floating-point inputs and activations by name, in the order in which they are made.

    Args:
        network: in FP32.
        writer: writes the network's plans; has the ranges.
        int8: the indices of the layers in INT8.
    """
    rounded, readers, as_result = _roundings(network, writer, int8)
    axes = _channel_axes(network)
    types = TensorTypes.of(network.skeleton.graph)
    results = {spec.name for spec in network.outputs}

    def origin(name: str, kind: str, layer: Layer | None) -> Origin:
        op_type = layer.op_type if layer else "Input"
        return Origin(
            tensor=name,
            kind=kind,
            index=layer.index if layer else None,
            layer=layer.name if layer else "",
            op_type=op_type,
            int8_op_type=int8_op_type(layer, int8) if layer else op_type,
            quantizers=rounded.get(name, ()),
            readers=tuple(readers.get(name, ())),
            channel_axis=axes.get(name),
            inputs=layer.inputs if layer else (),
            rounded_as_result=name in as_result,
        )

    found = {spec.name: origin(spec.name, INPUT, None) for spec in network.inputs if spec.dtype.kind == "f"}
    for layer in network.layers:
        for name in layer.outputs:
            if types.dtypes.get(name, np.dtype(np.float32)).kind == "f":
                found[name] = origin(name, RESULT if name in results else ACTIVATION, layer)
    return found


def weight_origins(network: Network, writer: PlanWriter, int8: Collection[int]) -> list[Origin]:
    """Returns the weights that can be rounded, one for each layer that reads one. Without quantizers in high layers."""
    types = TensorTypes.of(network.skeleton.graph)
    found = []
    for layer in network.layers:
        for rounding in layer.roundings:
            if not rounding.is_weight:
                continue
            runs = layer.index in int8 and layer.quantizable
            node = network.skeleton.graph.node[layer.index]
            axis = rounding.axis if rounding.axis is not None else weight_axis(node, rounding.slot, types)
            found.append(
                Origin(
                    tensor=rounding.tensor,
                    kind=WEIGHT,
                    index=layer.index,
                    layer=layer.name,
                    op_type=layer.op_type,
                    int8_op_type=int8_op_type(layer, int8),
                    quantizers=writer.quantizers(layer, rounding) if runs else (),
                    readers=(layer.name,) if runs else (),
                    channel_axis=axis,
                )
            )
    return found


def int8_op_type(layer: Layer, int8: Collection[int]) -> str:
    """Returns a layer's operator in the INT8 run, with the prefix ``QDQ-`` if the layer is in INT8."""
    return f"QDQ-{layer.op_type}" if layer.quantizable and layer.index in int8 else layer.op_type


def _roundings(
    network: Network, writer: PlanWriter, int8: Collection[int]
) -> tuple[dict[str, tuple[Quantizer, ...]], dict[str, list[str]], set[str]]:
    """Returns for the rounded activations: quantizers by name, readers by name, and those rounded as outputs."""
    rounded: dict[str, tuple[Quantizer, ...]] = {}
    readers: dict[str, list[str]] = {}
    as_result: set[str] = set()
    for layer in network.layers:
        if layer.index not in int8 or not layer.quantizable:
            continue
        for rounding in layer.roundings:
            if rounding.is_weight:
                continue
            rounded.setdefault(rounding.tensor, writer.quantizers(layer, rounding))
            if rounding.at_output:
                as_result.add(rounding.tensor)
            elif layer.name not in readers.setdefault(rounding.tensor, []):
                readers[rounding.tensor].append(layer.name)
    return rounded, readers, as_result


def _channel_axes(network: Network) -> dict[str, int]:
    """Returns the channel axis of each tensor.

    It is axis 1 after a convolution and the last axis after a matrix product. After other operators it is that of the
    input if the rank is the same, else it follows from the rank.
    """
    shapes = TensorTypes.of(network.skeleton.graph).shapes
    ranks = {**{spec.name: len(spec.shape) for spec in network.inputs}, **{n: len(s) for n, s in shapes.items()}}
    axes = {spec.name: _axis_by_rank(len(spec.shape)) for spec in network.inputs}
    for layer in network.layers:
        before = next((name for name in layer.inputs if name in axes), "")
        for name in layer.outputs:
            kept = bool(before) and layer.op_type not in _REARRANGING and ranks.get(before) == ranks.get(name)
            if layer.op_type in _CHANNELS_FIRST:
                axes[name] = 1
            elif layer.op_type in _CHANNELS_LAST:
                axes[name] = -1
            else:
                axes[name] = axes[before] if kept else _axis_by_rank(ranks.get(name, 0))
    return axes


def _axis_by_rank(rank: int) -> int:
    return 1 if rank >= 4 else -1
