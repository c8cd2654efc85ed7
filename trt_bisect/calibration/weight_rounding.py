"""Rounds weights on TensorRT's grid, up or down instead of to the nearest, for the least error of a layer's outputs.

Source: Frantar, Ashkboos, Hoefler, Alistarh, "GPTQ", ICLR 2023. A layer with weights W [outputs, inputs], with a step
for each output, reads vectors x. Rounded weights V change its outputs by (W - V) x; the mean square of this error is
the trace of (W - V) H (W - V)', with H = E[x x']. Inputs, above all neighbours in a picture, vary together, so the
errors of two weights can cancel. GPTQ rounds the inputs one after another, by decreasing E[x^2]. After each, it moves
the weights not yet rounded so that the error is smallest, by the inverse of H restricted to them, from one Cholesky
factor.

Only layers in INT8 get the new weights, with the steps of the old ones.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from itertools import islice

import numpy as np
import onnx
from numpy.lib.stride_tricks import sliding_window_view

from trt_bisect.data.feeds import Feeds
from trt_bisect.model.equalise import from_grid, weight_grid, with_constants
from trt_bisect.model.file import attribute
from trt_bisect.model.network import Network
from trt_bisect.model.observe import observe
from trt_bisect.model.quantizer import INT8_MAX, RoundedWeights, weight_quantizer
from trt_bisect.support.memory import give_back_memory, mapped

SAMPLES = 32  # the most samples from which H is computed
_PLACES = 2048  # the most vectors read from all samples together
_MOST_INPUTS = 2048  # the time grows with the third power of a layer's inputs
# the share of H's mean diagonal added to H: the weights of rarely used inputs would otherwise be arbitrary
_DAMPING = 0.01
_BLOCK = 64


def round_weights(network: Network, samples: Iterable[Feeds]) -> tuple[Network, dict[str, float]]:
    """Rounds the weights of INT8 layers; ``network`` has no Q/DQ pairs, and the samples are calibration data.

    Returns the network, with the rounded weights in ``Network.on_grid``; and, by weight, the outputs' error as a share
    of the error under rounding to the nearest.
    """
    feeds, layers = list(islice(samples, SAMPLES)), list(_roundable(network))
    if not layers or not feeds:
        return network, {}
    count = max(_PLACES // len(feeds), 1)
    moments: dict[str, np.ndarray] = {}
    random = np.random.default_rng(0)
    for tensors in observe(network, list(dict.fromkeys(node.input[0] for node, _ in layers)), feeds):
        for node, _ in layers:
            tensor, name = node.input[:2]
            vectors = _vectors(node, tensors[tensor], network.constant(name).shape, count, random)
            moments[name] = moments.get(name, 0.0) + np.matmul(vectors.transpose(0, 2, 1), vectors)
    give_back_memory()
    on_grid, error_shares = dict(network.on_grid), dict[str, float]()
    for node, axis in layers:
        name = node.input[1]
        weight, h = network.constant(name), moments.pop(name).astype(np.float64)
        if not np.isfinite(h).all():
            continue
        quantizer, rows = weight_quantizer(weight, axis, network.low), _rows(node, weight)
        steps = np.broadcast_to(quantizer.scale, (rows.shape[0] * rows.shape[1],)).reshape(rows.shape[:2])
        nearest, rounded = _rows(node, quantizer.round_trip(weight)), _rounded(rows, steps, h)
        before, after = (
            float(np.einsum("goi,gij,goj->", change, h, change, optimize=True))
            for change in (rows - nearest, rows - rounded)
        )
        if after < before:
            on_grid[name] = mapped(np.ascontiguousarray(from_grid(node, rounded, weight.shape), np.float32))
            error_shares[name] = after / before
    return replace(network, on_grid=on_grid, rounded=RoundedWeights()), error_shares


def with_weights_on_grid(network: Network, lowered: Collection[int]) -> Network:
    """Returns a network whose layers ``lowered`` (by index) have the weights that were rounded for INT8
    (``Network.on_grid``).
    """
    changed = {
        (k, rounding.slot): network.on_grid[rounding.tensor]
        for k in lowered
        for rounding in network.layers[k].roundings
        if rounding.is_weight and rounding.tensor in network.on_grid
    }
    return with_constants(network, changed) if changed else network


def _roundable(network: Network) -> Iterator[tuple[onnx.NodeProto, int]]:
    # weights that can be seen as rows of few inputs, with the channel axis of the steps
    graph = network.skeleton.graph
    for k in network.movable:
        layer, node = network.layers[k], graph.node[k]
        rounding = next((entry for entry in layer.roundings if entry.is_weight and entry.slot == 1), None)
        if rounding is None or rounding.fixed or network.uses[node.input[1]] != 1 or rounding.axis is None:
            continue
        weight = network.constant(node.input[1])
        groups = attribute(node, "group", 1)
        fits = weight.dtype == np.float32 and np.isfinite(weight).all() and not attribute(node, "transA", 0)
        if node.op_type == "Conv":
            fits = fits and weight.ndim in (3, 4) and groups in (1, weight.shape[0])
            fits = fits and (groups == 1 or weight.shape[1] == 1)
        elif node.op_type not in ("Gemm", "MatMul") or weight.ndim != 2:
            continue
        if fits and 1 < _rows(node, weight).shape[2] <= _MOST_INPUTS:
            yield node, rounding.axis


def _rows(node: onnx.NodeProto, weight: np.ndarray) -> np.ndarray:
    grid = weight_grid(node, np.asarray(weight, np.float64))
    return grid.reshape(*grid.shape[:2], -1)


def _vectors(
    node: onnx.NodeProto, values: np.ndarray, weight: tuple[int, ...], count: int, random: np.random.Generator
) -> np.ndarray:
    # [groups, places, inputs of a group], at most count places. A convolution reads one vector at each position of its
    # output; some positions suffice. In a depthwise convolution each channel has its own H, of the size of its kernel.
    if node.op_type != "Conv":
        flat = values.reshape(-1, values.shape[-1])
        places = random.permutation(len(flat))[:count]
        return np.asarray(flat[places], np.float64)[None]
    kernel, rank, groups = weight[2:], values.ndim - 2, attribute(node, "group", 1)
    pads = attribute(node, "pads", [0] * 2 * rank)
    if attribute(node, "auto_pad", b"") not in (b"", b"NOTSET", b"VALID"):
        pads = [(size - 1) // 2 for size in kernel] * 2
    strides, dilations = (attribute(node, name, [1] * rank) for name in ("strides", "dilations"))
    padded = np.pad(values, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)])
    reach = [(size - 1) * dilation + 1 for size, dilation in zip(kernel, dilations, strict=True)]
    if any(have < need for have, need in zip(padded.shape[2:], reach, strict=True)):
        return np.zeros((groups, 0, math.prod(weight[1:])))
    windows = sliding_window_view(padded, reach, axis=tuple(range(2, values.ndim)))
    slices = tuple(slice(None, None, step) for step in (1, 1, *strides, *dilations))
    windows = np.moveaxis(windows[slices], 1, rank + 1)
    sizes = windows.shape[: rank + 1]
    places = random.permutation(math.prod(sizes))[:count]
    vectors = np.asarray(windows[np.unravel_index(places, sizes)], np.float64)
    vectors = vectors.reshape(len(places), groups, -1)
    return np.ascontiguousarray(vectors.transpose(1, 0, 2))


def _rounded(rows: np.ndarray, steps: np.ndarray, h: np.ndarray) -> np.ndarray:
    # rows [groups, outputs, inputs], steps [groups, outputs], h [groups, inputs, inputs]
    groups, outputs, inputs = rows.shape
    diagonal = np.einsum("gii->gi", h)
    h = h + np.eye(inputs) * (_DAMPING * diagonal.mean(axis=1) + 1e-30)[:, None, None]
    order = np.argsort(-diagonal, axis=1)
    h = np.take_along_axis(np.take_along_axis(h, order[:, :, None], 1), order[:, None, :], 2)
    free = np.take_along_axis(rows, order[:, None, :], 2)
    # The largest weight of an output keeps the last level, so that the steps stay the same.
    ends = np.where(np.abs(free) < np.abs(free).max(axis=2, keepdims=True), 0, INT8_MAX * np.sign(free))
    factor = np.linalg.cholesky(np.linalg.inv(h)).transpose(0, 2, 1)
    rounded = np.empty_like(free)
    for start in range(0, inputs, _BLOCK):
        stop = min(start + _BLOCK, inputs)
        errors = np.empty((groups, outputs, stop - start))
        for i in range(start, stop):
            levels = np.clip(np.rint(free[:, :, i] / steps), -INT8_MAX, INT8_MAX)
            rounded[:, :, i] = np.where(ends[:, :, i], ends[:, :, i], levels) * steps
            error = errors[:, :, i - start] = (free[:, :, i] - rounded[:, :, i]) / factor[:, i, i][:, None]
            free[:, :, i:stop] -= error[:, :, None] * factor[:, None, i, i:stop]
        free[:, :, stop:] -= errors @ factor[:, start:stop, stop:]
    return np.take_along_axis(rounded, np.argsort(order, axis=1)[:, None, :], 2)
