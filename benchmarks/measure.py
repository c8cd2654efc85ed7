"""Makes one measurement in a process of its own, so that times and peak memory are its own; prints one JSON line.

python -m benchmarks.measure loop NETWORK DATA
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from onnx import NodeProto


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
    similarities = []
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "trial.onnx")
        began = time.perf_counter()
        reference = ort.InferenceSession(str(network)).run(None, samples[0])[0].ravel()
        for count in range(len(loaded.quantizable) + 1):
            written = writer.write(int8_set(len(loaded.layers), loaded.quantizable[:count]))
            onnx.save(attached(written.model, written.weights), path)
            output = ort.InferenceSession(path, options).run(None, samples[0])[0].ravel()
            similarities.append(float(reference @ output / np.linalg.norm(reference) / np.linalg.norm(output)))
        seconds = time.perf_counter() - began
    return {"seconds": seconds, "last_similarity": similarities[-1], "peak_mb": _peak_mb()}


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


def calibration(network: Path, data: Path) -> dict[str, float]:
    """Calibration by entropy and by min-max, and the same samples through the FP32 network."""
    from trt_bisect.calibration.collect import calibrate
    from trt_bisect.model.file import Weights
    from trt_bisect.model.network import load_network
    from trt_bisect.model.qdq import Written
    from trt_bisect.model.session import make_session

    loaded = load_network(network)
    samples = [{"x": x[None]} for x in np.load(data)["x"]]
    weights: Weights = dict(loaded.weights)
    session = make_session(Written(loaded.skeleton, weights))
    session.run(None, samples[0])
    found = {"fp32": _timed(lambda: [session.run(None, feeds) for feeds in samples])}
    for method in ("minmax", "entropy"):
        found[method] = _timed(lambda method=method: calibrate(loaded, samples, method))  # type: ignore[misc]
    return found


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def gemm(*_: Path) -> dict[str, float]:
    """This machine's float32 GEMM rate in multiply-adds a second, NumPy's, 2048 cubed, the best of ten."""
    one = np.random.default_rng(0).random((2048, 2048), np.float32)
    best = min(_timed(lambda: one @ one) for _ in range(10))
    return {"rate": 2048.0**3 / best}


def copying(*_: Path) -> dict[str, float]:
    """Bytes that this machine reads and writes a second: each core copies a tensor of 1 MiB, the best of ten.

    After STREAM's Copy (McCalpin, 1995), but with tensors as large as a layer's, which stay in the caches.
    """
    from concurrent.futures import ThreadPoolExecutor

    from trt_bisect.support.machine import cores

    times, bytes_ = 2000, 1 << 20
    pairs = [(np.ones(bytes_ // 4, np.float32), np.zeros(bytes_ // 4, np.float32)) for _ in range(cores())]

    def copy(pair: tuple[np.ndarray, np.ndarray]) -> None:
        for _ in range(times):
            np.copyto(pair[1], pair[0])

    with ThreadPoolExecutor(len(pairs)) as threads:
        best = min(_timed(lambda: list(threads.map(copy, pairs))) for _ in range(10))
    return {"rate": 2 * bytes_ * times * len(pairs) / best}


def floor(network: Path, data: Path) -> dict[str, float]:
    """The least seconds of all suffixes in FP32, one behind each quantizable layer, on this machine.

    ``seconds`` has the multiply-adds alone, at the rate of ``gemm``. ``roofline_seconds`` takes for each node the
    larger of that and of the bytes that it reads and writes, at the rate of ``copying`` (Williams et al., Roofline,
    2009). Weights count no bytes: they may stay in a cache. Nor does an activation behind a convolution, which ONNX
    Runtime makes part of it.
    """
    from trt_bisect.model.network import load_network
    from trt_bisect.model.shapes import facts_for

    loaded = load_network(network)
    shapes = facts_for(loaded, {"x": np.load(data)["x"][:1]}).shapes
    nodes = loaded.skeleton.graph.node
    weights, fused = set(loaded.weights), _fused(nodes)
    by_macs = np.array([_macs(node, shapes) for node in nodes]) / gemm()["rate"]
    bytes_ = np.array([0.0 if node.name in fused else _bytes(node, shapes, weights) for node in nodes])
    by_bytes = bytes_ / copying()["rate"]

    def of_suffixes(seconds: np.ndarray) -> float:
        behind = np.cumsum(seconds[::-1])[::-1]
        return float(sum(behind[k + 1] for k in loaded.quantizable if k + 1 < len(behind)) + behind[0])

    return {
        "seconds": of_suffixes(by_macs),
        "roofline_seconds": of_suffixes(np.maximum(by_macs, by_bytes)),
        "layers": len(loaded.quantizable),
    }


def _fused(nodes: Sequence[NodeProto]) -> set[str]:
    """The names of activations behind a convolution, which ONNX Runtime's optimizer makes part of it."""
    written = {name for node in nodes if node.op_type == "Conv" for name in node.output}
    return {node.name for node in nodes if node.op_type in ("Relu", "Clip") and node.input[0] in written}


def _bytes(node: NodeProto, shapes: Mapping[str, tuple[int, ...]], weights: set[str]) -> float:
    names = [name for name in (*node.input, *node.output) if name and name not in weights]
    return 4.0 * sum(float(np.prod(shapes.get(name, (0,)))) for name in names)


def _macs(node: NodeProto, shapes: Mapping[str, tuple[int, ...]]) -> float:
    op, names = node.op_type, list(node.input)
    out = float(np.prod(shapes.get(node.output[0], (0,))))
    if op == "Conv":
        return out * float(np.prod(shapes[names[1]][1:]))
    if op in ("Gemm", "MatMul"):
        return out * shapes[names[0]][-1]
    return 0.0


def one_pass(network: Path, data: Path) -> dict[str, float]:
    """The pass alone, without loading, calibrating and reporting: its seconds, engines, pieces and peak memory."""
    from trt_bisect.analyzer.judge import comparison
    from trt_bisect.builder.base import BuildOptions
    from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
    from trt_bisect.calibration.collect import calibrate
    from trt_bisect.evaluator.branch import branch_evaluator
    from trt_bisect.evaluator.rebuild import RebuildEvaluator
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
    before = _peak_mb()
    began = time.perf_counter()
    evaluator = branch_evaluator(
        loaded,
        builder,
        lambda *_: builder,
        scales,
        options,
        feeds,
        compare,
        store,
        whole,
        memory=512 << 20,
        few_boundaries=False,
    )
    trials = evaluator.measure_all(plans, lambda *_: None)
    seconds = time.perf_counter() - began
    engines = sum(trial.builds for trial in trials)
    return {"seconds": seconds, "engines": engines, "before_mb": before, "peak_mb": _peak_mb(), "plans": len(trials)}


MEASUREMENTS = {
    "loop": loop,
    "inference": inference,
    "calibration": calibration,
    "gemm": gemm,
    "copying": copying,
    "floor": floor,
    "one_pass": one_pass,
}

if __name__ == "__main__":
    what, *paths = sys.argv[1:]
    print(json.dumps(MEASUREMENTS[what](*map(Path, paths))))  # type: ignore[operator]
