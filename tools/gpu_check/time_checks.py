"""The check that times engines: FP16, and our full INT8 on an FP16 base, with the time of each engine layer."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import subjects
from bench import Experiment

from trt_bisect.builder.base import Latency
from trt_bisect.builder.tensorrt_build import TensorRT, new_config, parse_file, serialize, start_tensorrt
from trt_bisect.builder.tensorrt_engine import TensorRTEngine
from trt_bisect.calibration.collect import calibrate
from trt_bisect.data.feeds import Feeds
from trt_bisect.model.file import save_model
from trt_bisect.model.network import Network, load_network
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.precision import all_but

RUNS = 200


def times(bench: Experiment) -> None:
    """Builds each ONNX file of the folder ``GPU_CHECK_NETWORKS`` and writes ``NAME.PRECISION.graph.json`` and
    ``.profile.json`` beside it, in the form of NVIDIA's engine explorer.

    The scales are those of one random input: they move no kernel.
    """
    rt = start_tensorrt(bench.engine)
    rows = []
    for file in sorted(Path(os.environ.get("GPU_CHECK_NETWORKS", bench.folder)).glob("*.onnx")):
        network = load_network(file)
        random = np.random.default_rng(0)
        feeds = {
            spec.name: random.normal(size=[size or 1 for size in spec.shape]).astype(spec.dtype)
            for spec in network.inputs
        }
        scales = calibrate(network, [feeds], "minmax").scales
        low = PlanWriter(network, scales, GraphTarget.TENSORRT).write(all_but(len(network.layers), ()))
        quantized = bench.folder / file.name
        save_model(low.model, low.weights, quantized)
        for precision, source in (("int8", quantized), ("fp16", file)):
            graph, latency = _timed(rt, bench.engine, network, source, feeds)
            described = file.with_suffix(f".{precision}.graph.json")
            described.write_text(json.dumps(json.loads(graph, strict=False), indent=1))
            described.with_name(f"{file.stem}.{precision}.profile.json").write_text(json.dumps(_profile(latency)))
            rows.append({"network": file.stem, "precision": precision, "median_ms": latency.median_ms})
            bench.figure("milliseconds", rows)


def _timed(rt: TensorRT, engine: str, network: Network, source: Path, feeds: Feeds) -> tuple[str, Latency]:
    """Builds a network with FP16 allowed, and INT8 where it has pairs; returns the inspector's JSON and the times."""
    options = subjects.options_for(engine)
    definition = parse_file(rt, source)
    config, _ = new_config(rt, options, {}, definition)
    for flag in ("FP16", "INT8"):
        config.set_flag(rt.module.BuilderFlag.__members__[flag])
    with TensorRTEngine(rt, serialize(rt, definition, config, options), network, {}) as built:
        return built.inspect(), built.latency(feeds, RUNS)


def _profile(latency: Latency) -> list[dict[str, Any]]:
    rows = [{"name": layer.name, "averageMs": layer.milliseconds} for layer in latency.layers]
    return [{"count": latency.runs}, *rows]
