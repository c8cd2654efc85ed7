"""Histograms of a network's weights, in FP32 and rounded to INT8."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from trt_bisect.analyzer.origins import bias_names
from trt_bisect.model.layers import TensorTypes, weight_axis
from trt_bisect.model.network import Network
from trt_bisect.model.qdq import PlanWriter
from trt_bisect.model.quantizer import Quantizer
from trt_bisect.report.tensorboard.histograms import LoudChannels, Seen, rounded
from trt_bisect.report.tensorboard.tags import FP32, INT8, numbered
from trt_bisect.report.tensorboard.writer import LogRun


@dataclass(frozen=True)
class Weight:
    """A weight of a layer.

    Attributes:
        tag: ``<layer>/weights``, ``<layer>/weights_1`` for the second; ``<layer>/bias`` for a bias.
        quantizers: the quantizers of its INT8 rounding; empty where it is not rounded.
        axis: the axis of its channels; None where there are none.
    """

    layer: int
    tensor: str
    tag: str
    quantizers: tuple[Quantizer, ...]
    axis: int | None


def weights_of(network: Network, writer: PlanWriter, layers: Mapping[str, str]) -> list[Weight]:
    """Returns the floating-point constants of each layer that INT8 can round, or with at least two axes, and biases.

    Args:
        network: the network in FP32.
        writer: the writer of its plans.
        layers: the beginnings of the layers' tags; other layers are ignored.
    """
    types, found = TensorTypes.of(network.skeleton.graph), []
    for layer in network.layers:
        node, number = network.skeleton.graph.node[layer.index], 0
        roundings = {each.slot: each for each in layer.roundings if each.is_weight}
        biases = bias_names(network, layer, types) if layer.name in layers else []
        for slot, name in enumerate(node.input if layer.name in layers else ()):
            if not writer.context.is_constant(name) or types.dtypes[name].kind != "f":
                continue
            if slot not in roundings and (len(types.shapes[name]) < 2 or name in biases):
                continue
            rounding = roundings.get(slot)
            quantizers = writer.quantizers(layer, rounding) if rounding and layer.quantizable else ()
            axis = rounding.axis if rounding and rounding.axis is not None else weight_axis(node, slot, types)
            found.append(Weight(layer.index, name, numbered(f"{layers[layer.name]}/weights", number), quantizers, axis))
            number += 1
        for place, name in enumerate(biases):
            if types.dtypes[name].kind == "f":
                found.append(Weight(layer.index, name, numbered(f"{layers[layer.name]}/bias", place), (), None))
    return found


class WeightHistograms:
    """Histograms of weights in FP32 and rounded, made once for all runs."""

    def __init__(self, network: Network, weights: Iterable[Weight], channels: LoudChannels) -> None:
        self._network, self._weights, self._channels = network, list(weights), channels
        self._made: dict[tuple[str, str], Seen] = {}

    def write(self, run: LogRun, int8: Collection[int] | None = None) -> None:
        """Writes the weights in FP32; with ``int8``, the rounded weights of these layers."""
        for weight in self._weights:
            if int8 is None:
                self._histogram(weight, FP32).write(run, f"{weight.tag}/{FP32}")
            elif weight.quantizers and weight.layer in int8:
                self._histogram(weight, INT8).write(run, f"{weight.tag}/{INT8}")

    def _histogram(self, weight: Weight, kind: str) -> Seen:
        key = weight.tag, kind
        if key not in self._made:
            values = self._network.constant(weight.tensor)
            channels = self._channels.of(weight.tag, values, weight.axis)
            if kind == INT8:
                values = rounded(values, weight.quantizers)
                channels = self._channels.of(weight.tag, values, weight.axis)
            self._made[key] = Seen()
            self._made[key].add(values, channels)
        return self._made[key]
