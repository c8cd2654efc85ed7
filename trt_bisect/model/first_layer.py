"""Tells from the weights of the first layer whether a network expects small values or pixels of 0 to 255."""

from __future__ import annotations

import numpy as np

from trt_bisect.model.network import Network

_PASSING = frozenset({"Transpose", "Reshape", "Cast", "Identity", "Pad", "Flatten", "Squeeze", "Unsqueeze"})
_FITS_SMALL_VALUES = 0.5
"""The sum of a channel's absolute weights from which on pixels of 0 to 255 would make its output exceed 100: layers
trained on values of about 1 have sums of 2 to 20, those trained on pixels of 0 to 255 have about a hundredth of it."""


def expects_small_values(network: Network, name: str) -> bool:
    """Returns true if the first convolution that reads an input has weights for values of about 1, not for pixels.

    Nodes that only move values may stand between. If the network scales its input itself (with Mul, Sub or Div), or
    begins with another layer, the result is false.

    Args:
        network: as it was read, batch normalisation folded.
        name: the name of the input.
    """
    followed, first = {name}, []
    for node in network.skeleton.graph.node:
        if not followed.intersection(node.input):
            continue
        if node.op_type in _PASSING:
            followed.update(node.output)
        else:
            first.append(node)
    if not first or any(node.op_type != "Conv" for node in first):
        return False
    try:
        weights = [network.constant(node.input[1]) for node in first]
    except KeyError:
        return False
    sums = np.concatenate([np.abs(each.reshape(len(each), -1)).sum(axis=1) for each in weights])
    return bool(np.median(sums) >= _FITS_SMALL_VALUES)
