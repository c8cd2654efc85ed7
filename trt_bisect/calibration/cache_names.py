"""The scales of a calibration cache for a network whose tensors have other names, or more of them.

A cache names the tensors that TensorRT's parser knew when it calibrated. The network of today may be another export,
or simplified: a tensor is renamed, a Reshape is gone, a tensor was never calibrated. The tensors of the network get
their scales in this order, and each way is told:

    name    the same name
    alike   the only name that is the same without case and punctuation
    moved   the scale of a tensor with the same values: before or after a Reshape, a Transpose, an Identity and so on;
            TensorRT itself gives a MaxPool's output the scale of its input
    order   both files list tensors in the order of execution: between two tensors with a scale, as many of the network
            lack a scale as the cache has entries left over. Only where the entries found by name are in that order.

A tensor that is left has no scale. Nothing is invented: the layers that round it stay in floats.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

import numpy as np

from trt_bisect.calibration.cache import CalibrationCache
from trt_bisect.data.array_files import match_names
from trt_bisect.model.network import Network
from trt_bisect.support.table import NAME, Column

BY_NAME, ALIKE, MOVED, BY_ORDER = "name", "alike", "moved", "order"
_KEEPS_VALUES = frozenset(
    ("Identity", "Dropout", "Cast", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "MaxPool", "Expand")
)
_OF_THE_PARSER = "(Unnamed Layer*"
"""The begin of the names that TensorRT gives tensors of its own."""


@dataclass(frozen=True)
class TensorScale:
    """The scale of an activation, and where it comes from.

    Attributes:
        tensor: the name in the network.
        entry: the name in the cache.
        way: ``name``, ``alike``, ``moved`` or ``order``; see the module.
        scale: float32, bit for bit.
    """

    tensor: Annotated[str, Column("Tensor", kind=NAME, rank=1)]
    entry: Annotated[str, Column("Entry of the cache", "The name in the cache", NAME, rank=3)]
    way: Annotated[str, Column("Found by", "How the entry was found: name, alike, moved or order", rank=2)]
    scale: Annotated[float, Column("Scale", "Largest magnitude / 127", rank=4)]


def scales_for(network: Network, cache: CalibrationCache) -> tuple[TensorScale, ...]:
    """Returns the scales that a cache has for a network's activations, in the order of execution."""
    tensors, entries = list(network.activations), [name for name in cache.scales if name[:15] != _OF_THE_PARSER]
    named = match_names(tensors, entries)
    found = {tensor: (entry, BY_NAME if tensor == entry else ALIKE) for tensor, entry in named.items()}
    _spread(network, found)
    used = {entry for entry, _ in found.values()}
    # A tensor that is only moved has its scale already, and no entry that is left over belongs to it.
    for tensor, entry in _in_order(tensors, entries, named, {each for each in found if each not in named}, used):
        found[tensor] = (entry, BY_ORDER)
    _spread(network, found)
    return tuple(
        TensorScale(tensor, *found[tensor], float(cache.scales[found[tensor][0]]))
        for tensor in tensors
        if tensor in found
    )


def _spread(network: Network, found: dict[str, tuple[str, str]]) -> None:
    """Gives tensors whose values are moved the entry of those that they come from, or that are made of them."""
    moves = [
        (layer.inputs[0], layer.outputs[0])
        for layer in network.layers
        if layer.op_type in _KEEPS_VALUES and layer.inputs and layer.outputs
    ]
    for before, after in moves:
        if before in found and after not in found:
            found[after] = (found[before][0], MOVED)
    for before, after in reversed(moves):
        if after in found and before not in found:
            found[before] = (found[after][0], MOVED)


def _in_order(
    tensors: list[str], entries: list[str], named: Mapping[str, str], moved: set[str], used: set[str]
) -> list[tuple[str, str]]:
    """Returns the tensors and entries that are left over between the same neighbours, in the same number."""
    place = {entry: k for k, entry in enumerate(entries)}
    at = [(k, place[named[tensor]]) for k, tensor in enumerate(tensors) if tensor in named]
    anchors = [(-1, -1), *at, (len(tensors), len(entries))]
    if 2 * len(at) < len(tensors) or any(later[1] <= earlier[1] for earlier, later in pairwise(anchors)):
        return []
    pairs: list[tuple[str, str]] = []
    for (tensor, entry), (next_tensor, next_entry) in pairwise(anchors):
        here = [name for name in tensors[tensor + 1 : next_tensor] if name not in moved]
        there = [name for name in entries[entry + 1 : next_entry] if name not in used]
        pairs += zip(here, there, strict=True) if len(here) == len(there) else ()
    return pairs


def as_scales(found: tuple[TensorScale, ...]) -> dict[str, np.float32]:
    """Returns the scales by tensor."""
    return {each.tensor: np.float32(each.scale) for each in found}
