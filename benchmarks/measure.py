"""Makes one measurement in a process of its own, so that times and peak memory are its own; prints one JSON line.

python -m benchmarks.measure loop NETWORK DATA
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np


def _peak_mb() -> float:
    from trt_bisect.support.machine import peak_bytes

    return peak_bytes() / 2**20


def loop(network: Path, data: Path) -> dict[str, float]:
    """The rebuild loop as a user writes it: for each k the Q/DQ network as an ONNX file, a session, an inference."""
    import onnx
    import onnxruntime as ort

    from tests.support.networks import attached
    from trt_bisect.calibration.collect import calibrate
    from trt_bisect.model.network import load_network
    from trt_bisect.model.qdq import GraphTarget, PlanWriter
    from trt_bisect.precision import int8_set

    loaded = load_network(network)
    samples = [{"x": x[None]} for x in np.load(data)["x"]]
    writer = PlanWriter(loaded, calibrate(loaded, samples, "minmax").scales, GraphTarget.TENSORRT)
    options = ort.SessionOptions()
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "trial.onnx")
        began = time.perf_counter()
        reference = ort.InferenceSession(str(network)).run(None, samples[0])[0].ravel()
        norm = np.linalg.norm(reference)
        for count in range(len(loaded.quantizable) + 1):
            written = writer.write(int8_set(len(loaded.layers), loaded.quantizable[:count]))
            onnx.save(attached(written.model, written.weights), path)
            output = ort.InferenceSession(path, options).run(None, samples[0])[0].ravel()
            float(reference @ output / norm / np.linalg.norm(output))
        seconds = time.perf_counter() - began
    return {"seconds": seconds, "layers": len(loaded.quantizable)}


def inference(network: Path, data: Path) -> dict[str, float]:
    """The FP32 network in ONNX Runtime alone: one inference on two threads, and what the process takes."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    session = ort.InferenceSession(str(network), options)
    feeds = {"x": np.load(data)["x"][:1]}
    times = []
    for _ in range(9):
        began = time.perf_counter()
        session.run(None, feeds)
        times.append(time.perf_counter() - began)
    return {"seconds": float(np.median(times)), "peak_mb": _peak_mb()}


def one_pass(network: Path, data: Path) -> dict[str, float]:
    """The pass alone, without loading, calibrating and reporting: its seconds, engines, pieces and peak memory."""
    from trt_bisect.analyzer.judge import comparison
    from trt_bisect.builder.base import BuildOptions
    from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
    from trt_bisect.calibration.collect import calibrate
    from trt_bisect.evaluator.evaluators import RebuildEvaluator, branch_evaluator
    from trt_bisect.model.network import load_network
    from trt_bisect.precision import int8_set
    from trt_bisect.runs.journal import MemoryStore

    loaded = load_network(network)
    samples = [{"x": x[None]} for x in np.load(data)["x"]]
    scales = calibrate(loaded, samples[:2], "minmax").scales
    feeds, options, store = samples[:1], BuildOptions(), MemoryStore()
    builder = OnnxRuntimeBuilder(loaded, scales, options)
    with builder.reference() as engine:
        compare = comparison([engine.infer(feeds[0])])
    whole = RebuildEvaluator(loaded, builder, feeds, compare, store)
    plans = [int8_set(len(loaded.layers), loaded.quantizable[:n]) for n in range(len(loaded.quantizable) + 1)]
    began = time.perf_counter()
    evaluator = branch_evaluator(
        loaded, builder, lambda *_: builder, scales, options, feeds, compare, store, whole,
        memory=512 << 20, few_boundaries=False,
    )  # fmt: skip
    trials = evaluator.measure_all(plans, lambda *_: None)
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "engines": sum(trial.builds for trial in trials), "peak_mb": _peak_mb()}


MEASUREMENTS = {"loop": loop, "inference": inference, "one_pass": one_pass}

if __name__ == "__main__":
    what, *paths = sys.argv[1:]
    print(json.dumps(MEASUREMENTS[what](*map(Path, paths))))
