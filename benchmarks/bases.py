"""INT8 and FP8 on each base: the samples' networks with no layer low, and with all, beside FP32.

python -m benchmarks.bases [--inputs 40]

The networks and calibration data of ``samples``; entropy calibration on all of it; the cosine on the first inputs,
all outputs together, emulated. The smallest and the mean are printed.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from trt_bisect.builder.base import BuildOptions, Outputs
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
from trt_bisect.calibration.collect import calibrate
from trt_bisect.data.datasets import open_dataset
from trt_bisect.data.feeds import Feeds
from trt_bisect.model.low import LOWS
from trt_bisect.model.network import load_network
from trt_bisect.precision import Precision

_SAMPLES = Path(__file__).resolve().parent.parent / "samples"
_NETWORKS = ("lenet/lenet", "lenet/lenet_planted", "ocr/network", "detector/detector", "transformer/encoder")
_BASES = (Precision.FP32, Precision.FP16, Precision.BF16)


def _cosine(one: Outputs, other: Outputs) -> float:
    first, second = (np.concatenate([np.ravel(each[name]).astype(np.float64) for name in one]) for each in (one, other))
    return float(first @ second / (np.linalg.norm(first) * np.linalg.norm(second)))


def _row(place: str, low: Precision, base: Precision, count: int) -> Sequence[str]:
    """Returns the figures of one network with no layer low, and with all."""
    path = _SAMPLES / f"{place}.onnx"
    network = load_network(path, low=LOWS[low], base=base)
    data = open_dataset(path.parent / "calibration.npz", network.inputs)
    builder = OnnxRuntimeBuilder(network, calibrate(network, data, "entropy").scales, BuildOptions(high=base))
    feeds: list[Feeds] = list(islice(iter(data), count))
    with builder.reference() as engine:
        exact = [engine.infer(each) for each in feeds]
    cells = []
    for plan in (network.plan((), base), network.full(base)):
        with builder.build(plan) as engine:
            found = [_cosine(known, engine.infer(each)) for known, each in zip(exact, feeds, strict=True)]
        cells.append(f"{min(found):.6f}, {np.mean(found):.6f}")
    return cells


def main() -> None:
    """Prints a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--inputs", type=int, default=40)
    parser.add_argument("--networks", nargs="*", default=_NETWORKS)
    given = parser.parse_args()
    print("| network | low | base | none low: worst, mean | all low: worst, mean |")
    print("| --- | --- | --- | --- | --- |")
    for place in given.networks:
        for low in (Precision.INT8, Precision.FP8):
            for base in _BASES:
                print(f"| {place} | {low} | {base} | {' | '.join(_row(place, low, base, given.inputs))} |", flush=True)


if __name__ == "__main__":
    main()
