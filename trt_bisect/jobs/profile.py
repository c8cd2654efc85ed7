"""``profile``: the tensors of one FP32 network, layer by layer, without a comparison."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trt_bisect.analyzer.channel_map import channel_map
from trt_bisect.analyzer.origins import WEIGHTED
from trt_bisect.analyzer.parts import parts
from trt_bisect.analyzer.tensor_histogram import GrowingTensorHistogram, TensorHistogram
from trt_bisect.analyzer.tensors import Moments, Spread, as_block
from trt_bisect.calibration.ranges import Ranges
from trt_bisect.calibration.source import ranges_of
from trt_bisect.data.datasets import Dataset, open_dataset
from trt_bisect.data.staged import content_of
from trt_bisect.errors import BadInput
from trt_bisect.jobs.fixed_layers import fixed_notes
from trt_bisect.jobs.options.commands import ProfileOptions
from trt_bisect.jobs.options.signatures import takes
from trt_bisect.model.layers import Layer, TensorTypes, weight_axis
from trt_bisect.model.network import Network
from trt_bisect.model.observe import observe_in_parts
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.model.quantizer import Quantizer
from trt_bisect.model.shapes import groups_within
from trt_bisect.report.tensorboard.board import open_board
from trt_bisect.report.tensorboard.profile_logs import ProfileLogs
from trt_bisect.results.profile import Profile, ProfiledTensor
from trt_bisect.support.files import output_folder
from trt_bisect.support.progress import Progress, default_progress

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from trt_bisect.jobs.options.keywords import ProfileKeywords

INPUT, OUTPUT, WEIGHT, BIAS, CONSTANT = "input", "output", "weight", "bias", "constant"
_NUMBERS = "fiub"


@takes(ProfileOptions)
def profile(
    model: str | Path | Network, calibration: Any = None, inputs: Any = None, **options: Unpack[ProfileKeywords]
) -> Profile:
    """Lists the inputs, outputs, weights and biases of each layer in FP32: dtype, INT8 scale, shape, and moments.

    The figures are updated sample by sample. In memory are only as many tensors of one sample as fit into ``memory``.
    The INT8 scales come from the calibration data. Without samples only constants are profiled.

    Args:
        model: an FP32 ONNX file, or a loaded network.
        options: as listed.

    Raises:
        BadInput: something given cannot be used, or no layer is left.
    """
    return profile_with(
        model, ProfileOptions.given("profile", {"calibration": calibration, "inputs": inputs, **options})
    )


def profile_with(model: str | Path | Network, options: ProfileOptions) -> Profile:
    """Does what ``profile`` does."""
    how = options.calibrating()
    folder = None if options.output is None else Path(content_of(options.output))
    board = open_board(options.tensorboard, options.tensorboard_channels)
    network = options.network(model, options.shapes)
    layers = _chosen(network, options.prefix, options.op_types)
    with output_folder(folder), closing(options.progress or default_progress()) as shown:
        gives_scales = options.calibration is not None or network.has_pairs
        ranges, data = ranges_of(network, options.calibration, how, shown) if gives_scales else (Ranges({}), None)
        samples = (
            data
            if options.inputs is None
            else open_dataset(options.inputs, network.inputs, pictures=options.preprocessing())
        )
        known = _Known.of(network, ranges)
        logs = None if board is None else ProfileLogs(board, network, known.writer, layers)
        seen = _seen(network, layers, samples, options.memory_bytes, shown, logs)
    notes = [*fixed_notes(network)]
    notes += [] if samples else ["without --input or --calibration only what is constant has figures"]
    rows = [row for layer in layers for row in _rows(known, layer, seen)]
    found = Profile(network.source, samples.source if samples else "", seen.samples, tuple(rows), tuple(notes))
    if folder is not None:
        found.save(folder)
    if logs is not None:
        logs.write(notes)
    return found


@dataclass(frozen=True)
class _Seen:
    """The figures of each tensor over the samples."""

    samples: int
    spreads: Mapping[str, Spread]
    histograms: Mapping[str, TensorHistogram | None]
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

    def quantizers(self, layer: Layer) -> dict[tuple[int, bool], Quantizer]:
        """The first quantizer of each rounding whose scale is known, by slot and whether it is at the output.

        A layer that the user keeps high has none.
        """
        if layer.fixed is not None and not layer.fixed.needs_scale:
            return {}
        return {
            (rounding.slot, rounding.at_output): self.writer.quantizers(layer, rounding)[0]
            for rounding in layer.roundings
            if layer.quantizable and (rounding.fixed or rounding.is_weight or rounding.tensor in self.scales)
        }


def _chosen(network: Network, prefix: str, op_types: Sequence[str]) -> list[Layer]:
    for op_type in op_types:
        if op_type not in {layer.op_type for layer in network.layers}:
            known = ", ".join(sorted({layer.op_type for layer in network.layers}))
            raise BadInput(f"'{network.source}' has no layer of operator '{op_type}'.", f"It has {known}.")
    layers = [layer for layer in network.layers if layer.name.startswith(prefix)]
    layers = [layer for layer in layers if not op_types or layer.op_type in op_types]
    if not layers:
        raise BadInput(
            f"'{network.source}' has no such layer: name beginning with '{prefix}', operator {', '.join(op_types)}."
            if op_types
            else f"'{network.source}' has no layer whose name begins with '{prefix}'.",
            f"'trt-bisect layers {network.source}' lists them.",
        )
    return layers


def _seen(
    network: Network,
    layers: Sequence[Layer],
    samples: Dataset | None,
    memory: int,
    progress: Progress,
    logs: ProfileLogs | None,
) -> _Seen:
    if samples is None:
        return _Seen(0, {}, {}, {}, {})
    progress.stage("Profiling", samples.length)
    names = list(dict.fromkeys(name for layer in layers for name in (*layer.inputs, *layer.outputs)))
    moments: dict[str, Moments] = {}
    histograms: dict[str, GrowingTensorHistogram] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    dtypes: dict[str, str] = {}

    def take(tensors: Mapping[str, np.ndarray]) -> None:
        for name, values in tensors.items():
            shapes.setdefault(name, values.shape)
            dtypes.setdefault(name, str(values.dtype))
            if values.dtype.kind in _NUMBERS:
                each = moments.setdefault(name, Moments())
                histogram = histograms.setdefault(name, GrowingTensorHistogram(1))
                for part in parts(values.size):
                    block = as_block(values.reshape(-1)[part])
                    each.add(block)
                    histogram.add(block)

    count, rest = 0, iter(samples)
    first = next(rest)
    groups = groups_within(network, names, first, memory)
    for groups_of_sample in observe_in_parts(network, groups, chain([first], rest)):
        for tensors in groups_of_sample:
            take(tensors)
            if logs is not None:
                logs.add(tensors)
            del tensors
        count += 1
        progress.step(f"sample {count}")
    spreads = {name: each.spread() for name, each in moments.items()}
    return _Seen(count, spreads, {name: each.done() for name, each in histograms.items()}, shapes, dtypes)


def _rows(known: _Known, layer: Layer, seen: _Seen) -> Iterator[ProfiledTensor]:
    """The layer's inputs, weights, biases and outputs, as its node has them."""
    node, quantizers = known.network.skeleton.graph.node[layer.index], known.quantizers(layer)
    places = [(slot, name, False) for slot, name in enumerate(node.input) if name]
    places += [(slot, name, True) for slot, name in enumerate(node.output) if name]
    for slot, name, at_output in places:
        is_constant = known.writer.is_constant(name)
        values = known.network.constant(name) if is_constant else None
        quantizer = quantizers.get((slot, at_output))
        dtype, shape = known.types.dtypes.get(name, ""), known.types.shapes.get(name, ())
        yield ProfiledTensor(
            index=layer.index,
            layer=layer.name,
            op_type=layer.op_type,
            role=OUTPUT if at_output else _constant_role(layer, slot) if is_constant else INPUT,
            slot=slot,
            tensor=name,
            dtype=seen.dtypes.get(name, str(dtype)),
            quantized_dtype=str(quantizer.zero_point.dtype) if quantizer else "",
            scale=float(np.max(quantizer.scale)) if quantizer else None,
            shape=seen.shapes.get(name, shape),
            **_figures_of(name, values, seen, _weight_axis(known, layer, slot, at_output)),
        )


def _constant_role(layer: Layer, slot: int) -> str:
    if any(rounding.is_weight and rounding.slot == slot and not rounding.at_output for rounding in layer.roundings):
        return WEIGHT
    if layer.op_type in WEIGHTED and slot in (1, 2):
        return WEIGHT if slot == 1 else BIAS
    return BIAS if layer.op_type == "Add" else CONSTANT


def _weight_axis(known: _Known, layer: Layer, slot: int, at_output: bool) -> int | None:
    """The axis of a weight's output channels; None where there are no channels."""
    if at_output:
        return None
    own = next((each for each in layer.roundings if each.is_weight and each.slot == slot), None)
    if own is not None and own.axis is not None:
        return own.axis
    return weight_axis(known.network.skeleton.graph.node[layer.index], slot, known.types)


def _figures_of(name: str, values: np.ndarray | None, seen: _Seen, axis: int | None) -> dict[str, Any]:
    """The spread, the histogram and, of a constant with channels, the map of a tensor."""
    if values is None:
        return {"spread": seen.spreads.get(name), "histogram": seen.histograms.get(name)}
    if values.dtype.kind not in _NUMBERS:
        return {"spread": None}
    moments, histogram, block = Moments(), GrowingTensorHistogram(1), as_block(values)
    moments.add(block)
    histogram.add(block)
    picture = channel_map(values, axis) if values.dtype.kind == "f" else None
    return {"spread": moments.spread(), "histogram": histogram.done(), "map": picture}
