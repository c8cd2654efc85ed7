"""Would splitting the largest channels (Zhao et al., ICML 2019) lower the error to expect, beside smoothing?

    python -m benchmarks.split_channels recogniser sentence-encoder layout-detector line-classifier

A split channel is halved, and its weights stand twice: the tensor's step falls, and the layer has more multiply-adds.
The errors are those of ``model.smooth``, over every tensor that can be smoothed.
"""

from __future__ import annotations

import sys
from math import ceil

import numpy as np

import trt_bisect
from benchmarks.answer.published import NETWORKS
from trt_bisect.model import smooth

PARTS = (0.02, 0.05)


def error(weights: list[np.ndarray], largest: np.ndarray, squares: np.ndarray, copies: np.ndarray) -> float:
    """The error to expect of the readers, with each channel divided among its copies."""
    step = float((largest / copies).max())
    total = sum(float((np.square(each).sum(axis=0) * copies).sum()) * step**2 for each in weights)
    of_weights = (float(np.square(each.max(axis=1)).sum()) for each in weights if len(each) > 1)
    return total + sum(of_weights) * float((squares / copies).sum())


def split(weights: list[np.ndarray], largest: np.ndarray, squares: np.ndarray, part: float) -> float:
    """The error with the largest channels split, one after another, until there are so many more."""
    copies = np.ones(len(largest))
    for _ in range(ceil(part * len(largest))):
        copies[np.argmax(largest / copies)] += 1
    return error(weights, largest, squares, copies)


def main() -> None:
    for name in sys.argv[1:]:
        folder = NETWORKS / name
        with np.load(folder / "given.npz") as data:
            arrays = dict(data)
        shapes = {each: (1, *values.shape[1:]) for each, values in arrays.items()}
        network = trt_bisect.load_network(folder / "network.onnx", shapes=shapes)
        samples = [{each: values[k : k + 1] for each, values in arrays.items()} for k in range(0, 20, 2)]
        found, nodes, rows = dict(smooth._Finder(network).smoothable()), network.skeleton.graph.node, []
        for tensor, (largest, squares) in smooth._magnitudes(network, found, samples).items():
            readers = [(nodes[k], network.constant(nodes[k].input[1])) for k in found[tensor].readers]
            weights = [smooth._magnitudes_read(*reader) for reader in readers]
            factors, share = smooth._factors(largest, squares, weights)
            after = [each * factors for each in weights], largest / factors, squares / factors**2
            one = np.ones_like(largest)
            before, left = error(weights, largest, squares, one), error(*after, one)
            alone = [split(weights, largest, squares, part) / before for part in PARTS]
            rows.append([share, *alone, *(min(split(*after, part), left) / left for part in PARTS)])
        smoothing, *alone = np.median(rows, axis=0)
        print(f"{name}: {len(rows)} tensors, median error left by smoothing {smoothing:.2f}")
        print(f"  {PARTS} of the channels more: {alone[0]:.2f}, {alone[1]:.2f}; after smoothing", alone[2:])


if __name__ == "__main__":
    main()
