"""Calibration against the FP32 inferences of its samples: as ratios of seconds, and of the processor's seconds.

    python -m benchmarks.calibration                            # MobileNetV2 and ResNet-50, 64 samples
    python -m benchmarks.calibration --only encoder-12 --samples 16

One pass over the data serves all calibrators; what each of them adds is shown by itself. A run counts only the tensors
that a plan may hold in INT8; with weak typing all of them. The samples of the benchmark are repeated until there are
enough. The goal: 2.5 times for every calibrator at 64 samples.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.networks import CASES, write
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
from trt_bisect.calibration.collect import Magnitudes, magnitudes
from trt_bisect.calibration.histogram import Calibrator
from trt_bisect.model.layers import tensors_in_low
from trt_bisect.model.network import load_network

WORK = Path(__file__).resolve().parent.parent / ".bench" / "networks"
Seconds = np.ndarray
"""Those that passed, and those of the processor."""


def main() -> None:
    """Prints a table for each network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=["MobileNetV2", "ResNet-50"])
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=3, help="turns; the least seconds count")
    asked = parser.parse_args()
    for case in CASES:
        if case.name in asked.only:
            print_table(case.name, *write(case, WORK), asked.samples, asked.repeat)


def print_table(name: str, path: Path, data: Path, count: int, repeat: int) -> None:
    """Measures one network and prints its table."""
    network, given = load_network(path), np.load(data)["x"]
    samples = [{"x": given[place % len(given)][None]} for place in range(count)]
    low, seen = tensors_in_low(network), list[Magnitudes]()
    with OnnxRuntimeBuilder(network, {}, BuildOptions()).reference() as engine:
        works: dict[str, Callable[[], object]] = {
            "FP32 inferences": lambda: [engine.infer(feeds) for feeds in samples],
            "the pass, largest magnitudes only": lambda: magnitudes(network, samples, counted=()),
            "the pass": lambda: seen.append(magnitudes(network, samples, counted=low)),
            "the pass, all tensors counted": lambda: magnitudes(network, samples),
        }
        engine.infer(samples[0])
        rows = _least(works, repeat)
    for method in ("minmax", "percentile", "mse", "entropy"):
        rows[f"from the histograms: {method}"] = _seconds(lambda m=method: seen[0].ranges(Calibrator(m)))  # type: ignore[misc]
    print(f"| {name}, {count} samples | s | processor, s | times FP32 | processor |\n| --- | --- | --- | --- | --- |")
    for what, seconds in rows.items():
        shares = seconds / rows["FP32 inferences"]
        print(f"| {what} | " + " | ".join(f"{figure:.2f}" for figure in (*seconds, *shares)) + " |", flush=True)


def _least(works: dict[str, Callable[[], object]], repeat: int) -> dict[str, Seconds]:
    """The least seconds of each work, all of them by turns."""
    turns = [{what: _seconds(work) for what, work in works.items()} for _ in range(repeat)]
    return {what: np.min([turn[what] for turn in turns], axis=0) for what in works}


def _seconds(work: Callable[[], object]) -> Seconds:
    began = np.array([time.perf_counter(), time.process_time()])
    work()
    return np.array([time.perf_counter(), time.process_time()]) - began


if __name__ == "__main__":
    main()
