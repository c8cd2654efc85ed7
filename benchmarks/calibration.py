"""Calibration against the FP32 inferences of its samples: as ratios of seconds, and of the processor's seconds.

    python -m benchmarks.calibration                            # MobileNetV2 and ResNet-50, 64 samples
    python -m benchmarks.calibration --only encoder-12 --samples 16

One pass over the data serves all calibrators; what entropy adds is shown by itself. A run counts only the tensors that
a plan may hold in INT8; with weak typing all of them. The samples of the benchmark are repeated until there are enough.
Of ``--repeat`` turns the least seconds count. The goal: 2.5 times for every calibrator at 64 samples.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.measure import WORK, command_line, seconds_of
from benchmarks.networks import CASES, write
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
from trt_bisect.calibration.collect import Magnitudes, magnitudes
from trt_bisect.calibration.histogram import Calibrator
from trt_bisect.model.network import load_network, tensors_in_low


def main(*, only: tuple[str, ...] = ("MobileNetV2", "ResNet-50"), samples: int = 64, repeat: int = 3) -> None:
    for case in CASES:
        if case.name in only:
            print_table(case.name, *write(case, WORK / "networks"), samples, repeat)


def print_table(name: str, path: Path, data: Path, count: int, repeat: int) -> None:
    """Measures one network and prints its table."""
    network, inputs = load_network(path), np.load(data)["x"]
    samples = [{"x": inputs[k % len(inputs)][None]} for k in range(count)]
    low, seen = tensors_in_low(network), list[Magnitudes]()
    with OnnxRuntimeBuilder(network, {}, BuildOptions()).reference() as engine:
        works: dict[str, Callable[[], object]] = {
            "FP32 inferences": lambda: [engine.infer(feeds) for feeds in samples],
            "the pass, largest magnitudes only": lambda: magnitudes(network, samples, counted=()),
            "the pass": lambda: seen.append(magnitudes(network, samples, counted=low)),
            "the pass, all tensors counted": lambda: magnitudes(network, samples),
        }
        engine.infer(samples[0])
        turns = [{what: seconds_of(work) for what, work in works.items()} for _ in range(repeat)]
    rows = {what: np.min([turn[what] for turn in turns], axis=0) for what in works}
    rows["from the histograms: entropy"] = seconds_of(lambda: seen[0].ranges(Calibrator("entropy")))
    print(f"| {name}, {count} samples | s | processor, s | times FP32 | processor |\n| --- | --- | --- | --- | --- |")
    for what, seconds in rows.items():
        figures = (*seconds, *(seconds / rows["FP32 inferences"]))
        print(f"| {what} | " + " | ".join(f"{figure:.2f}" for figure in figures) + " |", flush=True)


if __name__ == "__main__":
    command_line(__doc__, main)
