"""Warnings on data that is constant, of the wrong scale, or unlike the calibration data."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import onnx

from trt_bisect.calibration.collect import Magnitudes
from trt_bisect.data.feeds import Feeds
from trt_bisect.data.statistics import Drift, FedInput, Moments
from trt_bisect.model.file import Written, attribute
from trt_bisect.model.network import Network
from trt_bisect.model.observe import Observer
from trt_bisect.support.text import counted, percent

_PASSING = frozenset({"Transpose", "Reshape", "Cast", "Identity", "Pad", "Flatten", "Squeeze", "Unsqueeze"})
# Scale or shift values by a constant: to normalise an input, or as the bias of a convolution.
_AFFINE = frozenset({"Add", "Sub", "Mul", "Div"})
_ACTIVATIONS = frozenset({"Relu", "LeakyRelu", "Clip"})
_STATES = {"LSTM": (5, 6), "GRU": (5,), "RNN": (5,)}  # The slots of initial states in ONNX's recurrent operators.
_PICKING = frozenset({"Slice", "Split", "Gather", "Concat", "Expand"})
# From this sum of a channel's absolute weights on, pixels of 0 to 255 make its output exceed 100. Layers trained on
# values of about 1 have sums of 2 to 20, layers trained on pixels a hundredth of it.
_FITS_SMALL_VALUES = 0.5
_SAMPLES = 4
_BORDER = 3  # The pixels at each edge of an output that are left out, because padding distorts them.


@dataclass(frozen=True)
class FirstLayer:
    """The convolutions that read an input, all through the same nodes that move, scale or shift values.

    Attributes:
        reads: the tensor that the convolutions read.
        scaled: true if one of these nodes scales or shifts the input.
    """

    reads: str
    convolutions: tuple[onnx.NodeProto, ...]
    scaled: bool


def first_layer(network: Network, name: str) -> FirstLayer | None:
    """Returns the convolutions with constant weights that read the input ``name``; None if other layers read it too."""
    reads, scaled = name, False
    while True:
        readers = _readers(network, reads)
        convolve = (n.op_type == "Conv" and n.input[0] == reads and network.has_constant(n.input[1]) for n in readers)
        if readers and all(convolve):
            return FirstLayer(reads, tuple(readers), scaled)
        if len(readers) != 1 or not _moves_or_scales(network, readers[0]):
            return None
        scaled = scaled or readers[0].op_type in _AFFINE
        reads = readers[0].output[0]


def has_large_weights(network: Network, layer: FirstLayer) -> bool:
    """Returns true if pixels of 0 to 255 would make most of the first layer's output channels exceed 100."""
    sums = np.concatenate([_sums_by_channel(network, node) for node in layer.convolutions])
    # With one scale for all channels, a loud channel leaves zeros in others: these say nothing about the data.
    live = sums[sums > 0.0]
    return bool(live.size and np.median(live) >= _FITS_SMALL_VALUES)


def _sums_by_channel(network: Network, convolution: onnx.NodeProto) -> np.ndarray:
    weight = network.constant(convolution.input[1])
    sums: np.ndarray = np.abs(weight.reshape(len(weight), -1)).sum(axis=1)
    return sums


def first_outputs(network: Network, layer: FirstLayer, samples: Iterable[Feeds]) -> tuple[float, float] | None:
    """Returns, over at most four samples, the largest magnitude that the first layer reads; and the median over the
    layer's output channels with weights other than zero of (standard deviation / |mean|), after bias or batch
    normalisation. None if all channels are zero, or ONNX Runtime refuses a sample.
    """
    outputs = [_biased(network, node) for node in layer.convolutions]
    names = list(dict.fromkeys((layer.reads, *outputs)))
    written = Written(network.skeleton, dict(network.weights))
    observer = Observer(written, [names], network.source, in_segments=True)
    sums = {n: _sums_by_channel(network, node) for n, node in zip(outputs, layer.convolutions, strict=True)}
    moments: dict[str, Moments] = {}
    reach = 0.0
    try:
        for position, feeds in enumerate(islice(samples, _SAMPLES)):
            for seen in observer.run(feeds, position):
                reach = max(reach, float(np.abs(seen[layer.reads]).max(initial=0.0)))
                for name in outputs:
                    if (values := _by_channel(seen[name], len(sums[name]))) is not None and values.size:
                        moments.setdefault(name, Moments(len(sums[name]))).add(values)
    except Exception:
        return None
    spreads = [
        moments[name].spread(k) for name in outputs if name in moments for k in np.flatnonzero(sums[name]).tolist()
    ]
    alive = [spread for spread in spreads if spread.std or spread.mean]
    ratios = [spread.std / max(abs(spread.mean), np.finfo(np.float64).tiny) for spread in alive]
    return (reach, float(np.median(ratios))) if ratios else None


def feeds_state(network: Network, name: str) -> bool:
    """Returns true if an input is a recurrent state, which is 0 at the start of a sequence."""
    followed, graph = {name}, network.skeleton.graph
    for node in graph.node:
        slots = [slot for slot, tensor in enumerate(node.input) if tensor in followed]
        if any(slot in _state_places(node) for slot in slots):
            return True
        if slots and node.op_type in _PASSING | _PICKING:
            followed.update(node.output)
    shape = next(spec.shape for spec in network.inputs if spec.name == name)
    same = [spec for spec in network.outputs if spec.shape == shape]
    return len(shape) > 1 and bool(same) and len(network.outputs) > len(same)


def _state_places(node: onnx.NodeProto) -> Collection[int]:
    if node.op_type == "Loop":
        return range(2, len(node.input))
    if node.op_type == "Scan":
        return range(len(node.input) - attribute(node, "num_scan_inputs", 0))
    return _STATES.get(node.op_type, ())


def _readers(network: Network, tensor: str) -> list[onnx.NodeProto]:
    return [node for node in network.skeleton.graph.node if tensor in node.input]


def _moves_or_scales(network: Network, node: onnx.NodeProto) -> bool:
    return node.op_type in _PASSING or (node.op_type in _AFFINE and any(map(network.has_constant, node.input)))


def _biased(network: Network, node: onnx.NodeProto) -> str:
    last = tensor = node.output[0]
    while True:
        readers = _readers(network, tensor)
        if len(readers) != 1:
            return last
        (reader,) = readers
        tensor = reader.output[0]
        if reader.op_type == "BatchNormalization" or _moves_or_scales(network, reader):
            last = tensor
        elif reader.op_type not in _ACTIVATIONS:
            return last


def _by_channel(values: np.ndarray, channels: int) -> np.ndarray | None:
    axis = next((k for k in (1, values.ndim - 1, 0) if k < values.ndim and values.shape[k] == channels), None)
    if axis is None:
        return None
    by_channel = np.moveaxis(values.astype(np.float64), axis, 0)
    sides = [slice(_BORDER, -_BORDER) if size > 4 * _BORDER else slice(None) for size in by_channel.shape[2:]]
    inner = (..., *sides)
    return by_channel[inner].reshape(len(by_channel), -1)


_NEARLY_CONSTANT = 0.02  # Data with a range of at most this share of their largest magnitude are nearly constant.
# Data have no effect if they move the first layer's outputs by less than this share of their mean. Ten trained networks
# have 0.39 to 5 with their own data, and at most 0.075 with a 58th of it.
_NO_EFFECT = 0.1
_NORMALISED_TO = 300.0  # A network that scales its input itself brings pixels of 0 to 255 below this.
_OTHER_UNITS = 10.0  # Data whose largest magnitude differs from the calibration's by this factor are in other units.
_MOST_OUTSIDE = 0.05  # Data with a larger share of values outside the calibration data's range have drifted.
# Data have drifted if their distribution is at least this far from the calibration's, and chance gives this distance
# with at most the second probability.
_LEAST_DISTANCE, _LARGEST_CHANCE = 0.3, 0.001
# A range grows if the last quarter of the data adds more than this share to it; a larger share of such ranges than the
# second number is a warning.
_LEAST_GROWTH, _GROWING_RANGES = 0.05, 0.1
_LEAST_SAMPLES = 4
_GIVE_MORE = "Give a few hundred samples like the data in production"


def on_values(network: Network, fed: Sequence[FedInput], samples: Iterable[Feeds], source: str) -> Iterator[str]:
    """Yields a warning for each input that is (nearly) constant or of the wrong scale.

    ``fed`` has the inputs' statistics over ``samples``; ``source`` names the data.
    """
    states = zero_states(network, fed)
    for data in fed:
        if data.std == 0.0 and data.samples > 1:
            if data.name not in states:
                yield f"'{data.name}' holds {data.least:g} everywhere in {source}: this is not real data."
        elif data.samples > 1 and data.most - data.least <= _NEARLY_CONSTANT * data.absmax:
            yield f"'{data.name}' is nearly constant in {source}: {data}. Prepare the data as in training."
        else:
            yield from _of_wrong_scale(network, data, samples, source)


def zero_states(network: Network, fed: Sequence[FedInput]) -> list[str]:
    """Returns the names of inputs that are 0 everywhere, as recurrent states at a sequence's start."""
    zero = [data.name for data in fed if data.absmax == 0.0]
    # If every input is constant, data are missing.
    all_constant = len(fed) == len(network.inputs) and all(data.std == 0.0 for data in fed)
    if all_constant:
        return []
    return [name for name in zero if feeds_state(network, name)]


def _of_wrong_scale(network: Network, data: FedInput, samples: Iterable[Feeds], source: str) -> Iterator[str]:
    layer = first_layer(network, data.name)
    if layer is None:
        return
    reach, spread = first_outputs(network, layer, samples) or (0.0, None)
    pixels = data.looks_like_pixels and has_large_weights(network, layer)
    if pixels and (not layer.scaled or reach > _NORMALISED_TO):
        yield (
            f"'{data.name}' is fed pixels of 0 to 255 ({source}: {data}), but the weights of the first layer fit "
            "values of about 0 to 1. Scale the data as in training: pictures with --scale 255, arrays with "
            "array / 255."
        )
    elif spread is not None and data.samples > 1 and spread < _NO_EFFECT:
        yield (
            f"'{data.name}' ({source}: {data}) moves the outputs of the first layer by only {percent(spread)} "
            "of their mean: the network expects other values, probably larger. Prepare the data as in training: pixels "
            "of 0 to 255 with --scale 1, or other --mean and --std."
        )


def on_units(seen: Mapping[str, float], fed: Sequence[FedInput], calibration: str, source: str) -> Iterator[str]:
    """Yields a warning for each input whose largest magnitude differs from the calibration's by a factor of 10 or more.

    ``seen`` has the largest magnitudes in the calibration by input, ``fed`` the inputs' statistics; ``calibration`` and
    ``source`` name both data sets.
    """
    for data in fed:
        before, now = seen.get(data.name, 0.0), data.absmax
        if before > 0.0 and now > 0.0 and not 1 / _OTHER_UNITS < now / before < _OTHER_UNITS:
            yield (
                f"'{data.name}' reaches {now:.4g} in {source}, but {before:.4g} in the calibration ({calibration}): "
                "the scaling differs. Prepare both data sets in the same way."
            )


def on_drift(drifts: Mapping[str, Drift], calibration: str, source: str) -> Iterator[str]:
    """Yields a warning for each input whose distribution is far from the calibration data's; ``calibration`` and
    ``source`` name both data sets.
    """
    for name, drift in drifts.items():
        apart = drift.distance >= _LEAST_DISTANCE and drift.chance <= _LARGEST_CHANCE
        if apart or drift.outside > _MOST_OUTSIDE:
            yield (
                f"'{name}' has drifted from the calibration data ({calibration}): {percent(drift.outside)} of its "
                f"values in {source} lie outside {drift.least:.4g} to {drift.most:.4g}, and the distributions are "
                f"{drift.distance:.2f} apart (Kolmogorov-Smirnov). Calibrate with samples like those in production."
            )


def on_growing_ranges(seen: Magnitudes, samples: int | None) -> Iterator[str]:
    """Yields a warning if the number of calibration ``samples`` (None: unknown) is below four, or if the last quarter
    of them still enlarges many of the ranges ``seen``.
    """
    if samples is not None and samples < _LEAST_SAMPLES:
        yield f"calibrated with {counted(samples, 'sample')}: too few for the range of activations. {_GIVE_MORE}"
        return
    growth = seen.growth()
    growing = {name: share for name, share in growth.items() if share > _LEAST_GROWTH}
    if growth and len(growing) > _GROWING_RANGES * len(growth):
        most = max(growing, key=lambda name: growing[name])
        yield (
            f"calibrated with too few samples ({samples}): the last quarter of the samples makes {len(growing)} of "
            f"{len(growth)} ranges more than {percent(_LEAST_GROWTH)} larger ('{most}' {percent(growing[most])}). "
            f"{_GIVE_MORE}"
        )
