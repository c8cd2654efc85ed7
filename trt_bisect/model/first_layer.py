"""Tells from the layers that read an input which values it takes: small ones, pixels, or a recurrent state."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import islice

import numpy as np
import onnx

from trt_bisect.data.feeds import Feeds
from trt_bisect.data.statistics import Moments
from trt_bisect.model.network import Network
from trt_bisect.model.observe import Segments
from trt_bisect.model.qdq import Written

_PASSING = frozenset({"Transpose", "Reshape", "Cast", "Identity", "Pad", "Flatten", "Squeeze", "Unsqueeze"})
_AFFINE = frozenset({"Add", "Sub", "Mul", "Div"})
"""With a constant: a network that scales its input itself, or the bias of a convolution without one."""
_ACTIVATIONS = frozenset({"Relu", "LeakyRelu", "Clip"})
_STATES = {"LSTM": (5, 6), "GRU": (5,), "RNN": (5,)}
"""The places of initial states among the inputs of ONNX's recurrent operators."""
_PICKING = frozenset({"Slice", "Split", "Gather", "Concat", "Expand"})
_FITS_SMALL_VALUES = 0.5
"""The sum of a channel's absolute weights from which on pixels of 0 to 255 would make its output exceed 100: layers
trained on values of about 1 have sums of 2 to 20, those trained on pixels of 0 to 255 have about a hundredth of it."""
_SAMPLES = 4
_BORDER = 3
"""Places at each edge of a picture that are left out: there, the padding moves the outputs."""


@dataclass(frozen=True)
class FirstLayer:
    """The convolutions that read an input, all of them through the same nodes that move, scale or shift values.

    Attributes:
        reads: the tensor that they read.
        convolutions: the nodes.
        scaled: true if the network scales or shifts its input itself.
    """

    reads: str
    convolutions: tuple[onnx.NodeProto, ...]
    scaled: bool


@dataclass(frozen=True)
class FirstOutputs:
    """The effect of samples on the first layer.

    Attributes:
        reach: the largest magnitude that the convolutions read.
        spread: the median over the output channels, bias included, of standard deviation / |mean|.
    """

    reach: float
    spread: float


def first_layer(network: Network, name: str) -> FirstLayer | None:
    """Returns the convolutions that read an input; None if other layers read it.

    Args:
        network: as it was read, batch normalisation folded.
    """
    reads, scaled = name, False
    while True:
        readers = _readers(network, reads)
        if readers and all(node.op_type == "Conv" for node in readers):
            return FirstLayer(reads, tuple(readers), scaled)
        if len(readers) != 1 or not _moves_or_scales(network, readers[0]):
            return None
        scaled = scaled or readers[0].op_type in _AFFINE
        reads = readers[0].output[0]


def has_large_weights(network: Network, layer: FirstLayer) -> bool:
    """Returns true if pixels of 0 to 255 would make the outputs of most channels exceed 100."""
    try:
        weights = [network.constant(node.input[1]) for node in layer.convolutions]
    except KeyError:
        return False
    sums = np.concatenate([np.abs(each.reshape(len(each), -1)).sum(axis=1) for each in weights])
    return bool(np.median(sums) >= _FITS_SMALL_VALUES)


def first_outputs(network: Network, layer: FirstLayer, samples: Iterable[Feeds]) -> FirstOutputs | None:
    """Runs the first layer on samples, at most four; returns None if ONNX Runtime refuses a sample.

    What follows a convolution counts up to the last bias or batch normalisation, if nothing else comes in between.
    """
    outputs = [_biased(network, node) for node in layer.convolutions]
    made = [name for name in dict.fromkeys((layer.reads, *outputs)) if name in network.producers]
    segments = Segments(Written(network.skeleton, dict(network.weights)), [made])
    channels = {
        name: len(network.constant(node.input[1])) for name, node in zip(outputs, layer.convolutions, strict=True)
    }
    moments: dict[str, Moments] = {}
    reach = 0.0
    try:
        for feeds in islice(samples, _SAMPLES):
            for tensors in segments.run(feeds):
                seen = {**feeds, **tensors}
                reach = max(reach, float(np.abs(seen[layer.reads]).max(initial=0.0)))
                for name in outputs:
                    if (values := _by_channel(seen[name], channels[name])) is not None and values.size:
                        moments.setdefault(name, Moments(channels[name])).add(values)
    except Exception:
        return None
    spreads = [moments[name].spread(k) for name in outputs if name in moments for k in range(channels[name])]
    alive = [spread for spread in spreads if spread.std or spread.mean]
    ratios = [spread.std / max(abs(spread.mean), np.finfo(np.float64).tiny) for spread in alive]
    return FirstOutputs(reach, float(np.median(ratios))) if ratios else None


def feeds_state(network: Network, name: str) -> bool:
    """Returns true if an input is a recurrent state, which an application feeds as 0 at the start of a sequence.

    It reaches the initial state of an LSTM, GRU, RNN, Loop or Scan; or the network has an output of the same shape, its
    next value, beside another output.
    """
    followed, graph = {name}, network.skeleton.graph
    for node in graph.node:
        places = [place for place, tensor in enumerate(node.input) if tensor in followed]
        if any(place in _state_places(node) for place in places):
            return True
        if places and node.op_type in _PASSING | _PICKING:
            followed.update(node.output)
    shape = next(spec.shape for spec in network.inputs if spec.name == name)
    same = [spec for spec in network.outputs if spec.shape == shape]
    return len(shape) > 1 and bool(same) and len(network.outputs) > len(same)


def _state_places(node: onnx.NodeProto) -> Collection[int]:
    if node.op_type == "Loop":
        return range(2, len(node.input))
    if node.op_type == "Scan":
        scanned = next(each.i for each in node.attribute if each.name == "num_scan_inputs")
        return range(len(node.input) - scanned)
    return _STATES.get(node.op_type, ())


def _readers(network: Network, tensor: str) -> list[onnx.NodeProto]:
    return [node for node in network.skeleton.graph.node if tensor in node.input]


def _moves_or_scales(network: Network, node: onnx.NodeProto) -> bool:
    """Returns true for a node that moves values, or adds or multiplies a constant."""
    shifted = node.op_type in _AFFINE and any(map(network.has_constant, node.input))
    return node.op_type in _PASSING or shifted


def _biased(network: Network, node: onnx.NodeProto) -> str:
    """The output of a convolution, behind the last bias or batch normalisation that follows it alone."""
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
    """Returns an output as ``[channels, all other places]``, without the border of a picture.

    None if no axis has the channels: a Reshape moved them.
    """
    axis = next((k for k in (1, values.ndim - 1, 0) if k < values.ndim and values.shape[k] == channels), None)
    if axis is None:
        return None
    found = np.moveaxis(values.astype(np.float64), axis, 0)
    inner = tuple(
        slice(_BORDER, -_BORDER) if size > 4 * _BORDER and found.ndim > 2 and k > 1 else slice(None)
        for k, size in enumerate(found.shape)
    )
    return found[inner].reshape(len(found), -1)
