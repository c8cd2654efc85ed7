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
from trt_bisect.calibration.collect import calibrate
from trt_bisect.model.file import save_model
from trt_bisect.model.network import load_network
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.precision import all_but

RUNS = 200


def times(bench: Experiment) -> None:
    """Builds each ONNX file of the folder ``GPU_CHECK_NETWORKS`` and writes ``NAME.PRECISION.graph.json`` and
    ``.profile.json`` beside it, in the form of NVIDIA's engine explorer.

    The scales are those of one random input: they move no kernel.
    """
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
            # INT8 where the file has pairs, else FP16
            with subjects.engine_of(bench.engine, source, network, {}, "FP16", "INT8") as engine:
                graph, latency = engine.inspect(), engine.latency(feeds, RUNS)
            described = file.with_suffix(f".{precision}.graph.json")
            described.write_text(json.dumps(json.loads(graph, strict=False), indent=1))
            described.with_name(f"{file.stem}.{precision}.profile.json").write_text(json.dumps(_profile(latency)))
            rows.append({"network": file.stem, "precision": precision, "median_ms": latency.median_ms})
            bench.figure("milliseconds", rows)


def _profile(latency: Latency) -> list[dict[str, Any]]:
    rows = [{"name": layer.name, "averageMs": layer.milliseconds} for layer in latency.layers]
    return [{"count": latency.runs}, *rows]
