"""``profile``: the tensors of one FP32 network, layer by layer, without a comparison."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from trt_bisect.analyzer.histograms import ChannelMap, channel_map
from trt_bisect.analyzer.origins import WEIGHTED
from trt_bisect.analyzer.tensors import TensorFigures, TensorStatistics
from trt_bisect.calibration.collect import ranges_of
from trt_bisect.calibration.ranges import Ranges
from trt_bisect.data.datasets import Dataset, open_dataset
from trt_bisect.data.named import content_of
from trt_bisect.errors import BadInput
from trt_bisect.model.layers import Layer, TensorTypes, weight_axis
from trt_bisect.model.network import GivenModel, Network
from trt_bisect.model.observe import observe_in_parts
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.model.quantizer import Quantizer
from trt_bisect.model.reading import as_in_file
from trt_bisect.model.shapes import groups_within
from trt_bisect.options.commands import ProfileOptions
from trt_bisect.options.declare import takes
from trt_bisect.preparation.asked_network import asked_network, fixed_notes
from trt_bisect.report.comparison import Profile, ProfiledTensor
from trt_bisect.report.tensorboard.board import open_board
from trt_bisect.report.tensorboard.run_logs import ProfileLogs
from trt_bisect.support.files import output_folder
from trt_bisect.support.progress import Progress, default_progress

INPUT, OUTPUT, WEIGHT, BIAS, CONSTANT = "input", "output", "weight", "bias", "constant"
_NUMBERS = "fiub"


@takes(ProfileOptions)
def profile(model: GivenModel, options: ProfileOptions) -> Profile:
    """Lists the inputs, outputs, weights and biases of each layer in FP32: dtype, INT8 scale, shape, and moments.

    Of a tensor that INT8 rounds for a layer there are also the moments after its Q/DQ pair, and the share of values
    beyond the pair's range. The pairs are those of the file; without any, the scales come from the calibration data.
    The figures are updated sample by sample. In memory are only as many tensors of one sample as fit into ``memory``.
    Without samples only constants are profiled.

    Args:
        model: an FP32 ONNX file, or a loaded network.
        options: as listed.

    Raises:
        BadInput: something given cannot be used, or no layer is left.
    """
    how = options.calibrating()
    folder = None if options.output is None else Path(content_of(options.output))
    board = open_board(options.tensorboard, options.tensorboard_detail)
    network = as_in_file(asked_network(options, model, options.shapes))
    layers = _chosen(network, options.prefix, options.op_types)
    with output_folder(folder), closing(options.progress or default_progress()) as shown:
        gives_scales = options.calibration is not None or network.has_pairs
        ranges, data = (
            ranges_of(network, options.calibration, how, shown) if gives_scales else (Ranges(network.scales), None)
        )
        samples = (
            data
            if options.inputs is None
            else open_dataset(options.inputs, network.inputs, pictures=options.preprocessing())
        )
        known = _Known.of(network, ranges)
        logs = None if board is None else ProfileLogs(board, network, known.writer, layers)
        seen = _seen(known, layers, samples, options.memory_bytes, shown, logs)
    notes = [*fixed_notes(network)]
    notes += [] if samples else ["without --input or --calibration only what is constant has figures"]
    rows = [row for layer in layers for row in _rows(known, layer, seen)]
    result = Profile(network.source, samples.source if samples else "", seen.samples, tuple(rows), tuple(notes))
    if folder is not None:
        result.save(folder)
    if logs is not None:
        logs.write(notes)
    return result


_Pair = tuple[str, tuple[object, ...]]
"""A tensor, and the keys of the quantizers that round it."""


@dataclass(frozen=True)
class _SeenTensors:
    """The figures of each tensor over the samples."""

    samples: int
    figures: Mapping[_Pair, TensorFigures]
    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, str]


@dataclass(frozen=True)
class _Known:
    """The facts that the network and the ranges give without data."""

    network: Network
    writer: PlanWriter
    scales: Mapping[str, np.float32]
    types: TensorTypes

    @classmethod
    def of(cls, network: Network, ranges: Ranges) -> _Known:
        writer = PlanWriter(network, ranges.scales, GraphTarget.ONNXRUNTIME)
        return cls(network, writer, ranges.scales, TensorTypes.of(network.skeleton.graph))

    def quantizers(self, layer: Layer) -> dict[tuple[int, bool], tuple[Quantizer, ...]]:
        """The quantizers of each rounding whose scale is known, by slot and whether it is at the output.

        A layer that the user keeps high has none.
        """
        if layer.fixed is not None and not layer.fixed.needs_scale:
            return {}
        return {
            (rounding.slot, rounding.at_output): self.writer.quantizers(layer, rounding)
            for rounding in layer.roundings
            if layer.quantizable and (rounding.fixed or rounding.is_weight or rounding.tensor in self.scales)
        }

    def places(self, layer: Layer) -> Iterator[_TensorUse]:
        """Yields the tensors of a layer, as its node has them: inputs first."""
        node, quantizers = self.network.skeleton.graph.node[layer.index], self.quantizers(layer)
        for at_output, names in ((False, node.input), (True, node.output)):
            for slot, name in enumerate(names):
                if name:
                    yield _TensorUse(slot, name, at_output, quantizers.get((slot, at_output), ()))


@dataclass(frozen=True)
class _TensorUse:
    """A tensor at one position of a layer, and the quantizers that round it there."""

    slot: int
    tensor: str
    at_output: bool
    quantizers: tuple[Quantizer, ...]

    @property
    def pair(self) -> _Pair:
        """The key of its figures."""
        return self.tensor, tuple(quantizer.key() for quantizer in self.quantizers)


def _chosen(network: Network, prefixes: Sequence[str], op_types: Sequence[str]) -> list[Layer]:
    known = {layer.op_type for layer in network.layers}
    for op_type in op_types:
        if op_type not in known:
            raise BadInput(
                f"'{network.source}' has no layer of operator '{op_type}'.", f"It has {', '.join(sorted(known))}."
            )
    for prefix in prefixes:
        if not any(layer.name.startswith(prefix) for layer in network.layers):
            raise BadInput(
                f"'{network.source}' has no layer whose name begins with '{prefix}'.",
                f"'trt-bisect layers {network.source}' lists them.",
            )
    layers = [
        layer
        for layer in network.layers
        if (not op_types or layer.op_type in op_types) and (not prefixes or layer.name.startswith(tuple(prefixes)))
    ]
    if not layers:
        begins = " or ".join(f"'{prefix}'" for prefix in prefixes)
        raise BadInput(
            f"'{network.source}' has no such layer: name beginning with {begins}, operator {' or '.join(op_types)}.",
            f"'trt-bisect layers {network.source}' lists them.",
        )
    return layers


def _seen(
    known: _Known,
    layers: Sequence[Layer],
    samples: Dataset | None,
    memory: int,
    progress: Progress,
    logs: ProfileLogs | None,
) -> _SeenTensors:
    if samples is None:
        return _SeenTensors(0, {}, {}, {})
    progress.stage("Profiling", samples.length)
    network, uses = known.network, (use for layer in layers for use in known.places(layer))
    varying = {use.pair: use for use in uses if not known.writer.context.is_constant(use.tensor)}.values()
    names = list(dict.fromkeys(name for layer in layers for name in (*layer.inputs, *layer.outputs)))
    statistics: dict[_Pair, TensorStatistics] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    dtypes: dict[str, str] = {}
    count, rest = 0, iter(samples)
    first = next(rest)
    groups = groups_within(network, names, first, memory)
    for groups_of_sample in observe_in_parts(network, groups, chain([first], rest)):
        for tensors in groups_of_sample:
            shapes = {**{name: values.shape for name, values in tensors.items()}, **shapes}
            dtypes = {**{name: str(values.dtype) for name, values in tensors.items()}, **dtypes}
            for use in varying:
                values = tensors.get(use.tensor)
                if values is not None and values.dtype.kind in _NUMBERS:
                    statistics.setdefault(use.pair, TensorStatistics(use.quantizers)).add(values)
            if logs is not None:
                logs.add(tensors)
            del tensors
        count += 1
        progress.step(f"sample {count}")
    return _SeenTensors(count, {pair: statistic.figures() for pair, statistic in statistics.items()}, shapes, dtypes)


def _rows(known: _Known, layer: Layer, seen: _SeenTensors) -> Iterator[ProfiledTensor]:
    """The layer's inputs, weights, biases and outputs, as its node has them."""
    for use in known.places(layer):
        name, first = use.tensor, use.quantizers[0] if use.quantizers else None
        is_constant = known.writer.context.is_constant(name)
        dtype, shape = known.types.dtypes.get(name, ""), known.types.shapes.get(name, ())
        figures = _figures_of_constant(known, use) if is_constant else seen.figures.get(use.pair)
        yield ProfiledTensor(
            index=layer.index,
            layer=layer.name,
            op_type=layer.op_type,
            role=OUTPUT if use.at_output else _constant_role(layer, use.slot) if is_constant else INPUT,
            slot=use.slot,
            tensor=name,
            dtype=seen.dtypes.get(name, str(dtype)),
            quantized_dtype=str(first.zero_point.dtype) if first else "",
            scale=float(np.max(first.scale)) if first else None,
            zero_point=_zero_point(first),
            shape=seen.shapes.get(name, shape),
            map=_channel_map(known, layer, use) if is_constant else None,
            **({"spread": None} if figures is None else vars(figures)),
        )


def _constant_role(layer: Layer, slot: int) -> str:
    if any(rounding.is_weight and rounding.slot == slot and not rounding.at_output for rounding in layer.roundings):
        return WEIGHT
    if layer.op_type in WEIGHTED and slot in (1, 2):
        return WEIGHT if slot == 1 else BIAS
    return BIAS if layer.op_type == "Add" else CONSTANT


def _zero_point(quantizer: Quantizer | None) -> int | None:
    """The zero point of a quantizer; None without one, for FP8, and where the channels have several."""
    if quantizer is None or quantizer.in_fp8 or np.unique(quantizer.zero_point).size > 1:
        return None
    return int(quantizer.zero_point.reshape(-1)[0])


def _figures_of_constant(known: _Known, use: _TensorUse) -> TensorFigures | None:
    values = known.network.constant(use.tensor)
    if values.dtype.kind not in _NUMBERS:
        return None
    statistics = TensorStatistics(use.quantizers)
    statistics.add(values)
    return statistics.figures()


def _channel_map(known: _Known, layer: Layer, use: _TensorUse) -> ChannelMap | None:
    """The output channels of a constant; None where it has none."""
    values = known.network.constant(use.tensor)
    if values.dtype.kind != "f" or use.at_output:
        return None
    weights = (rounding for rounding in layer.roundings if rounding.is_weight and rounding.slot == use.slot)
    axis = next((rounding.axis for rounding in weights), None)
    if axis is None:
        axis = weight_axis(known.network.skeleton.graph.node[layer.index], use.slot, known.types)
    return channel_map(values, axis)
