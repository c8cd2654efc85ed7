"""Latencies of the plans, with a builder that emulates but claims to be measured, with times of its own."""

import json

import numpy as np
import pytest

import trt_bisect
from tests.support.records import record_of, report_from
from trt_bisect import Report
from trt_bisect.builder.base import MEASURED, Latency, LayerTime
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
from trt_bisect.commands.run import run as run_module
from trt_bisect.errors import TrialFailed
from trt_bisect.precision import Precision
from trt_bisect.preparation import experiment as job, given_data, preparation
from trt_bisect.report.screen.run import latency_lines

MILLISECONDS = {Precision.FP32: 4.0, Precision.FP16: 2.0, Precision.INT8: 1.0}
"""Of each layer in each precision."""


class TimedEngine:
    def __init__(self, engine, plan, layers):
        self.engine, self.plan, self.layers = engine, plan, layers
        self.ran, self.messages = engine.ran, engine.messages

    def infer(self, feeds):
        return self.engine.infer(feeds)

    def latency(self, feeds):
        times = [MILLISECONDS[p] for p in self.plan.precisions] if self.plan else [4.0] * len(self.layers)
        parts = [LayerTime(layer.name, (layer.name,), t) for layer, t in zip(self.layers, times, strict=True)]
        return Latency.of([sum(times)], (*parts, LayerTime("copy", (), 0.5)))

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None


class TimedBuilder(OnnxRuntimeBuilder):
    engine, arithmetic = "tensorrt", MEASURED
    without_fp16 = False

    def __init__(self, network, scales, options):
        super().__init__(network, scales, options)
        self.layers = network.layers

    def build(self, plan):
        if self.without_fp16 and Precision.FP16 in plan.precisions:
            raise TrialFailed("build failed", "no fast FP16 here")
        return TimedEngine(super().build(plan), plan, self.layers)

    def reference(self):
        return TimedEngine(super().reference().engine, None, self.layers)


@pytest.fixture
def run(monkeypatch, lenet):
    """Runs a network on an engine of times of its own."""
    open_builder = job.open_builder

    def opened(engine, typing, *given):
        return open_builder(engine, typing, *given) if engine == "onnxruntime" else TimedBuilder(*given[:3])

    monkeypatch.setattr(job, "open_builder", opened)
    for module in (job, given_data):
        monkeypatch.setattr(module, "typing_of", lambda *_, **__: "strong")
    for module in (preparation, job, given_data, run_module):
        monkeypatch.setattr(module, "choose_engine", lambda asked: asked)

    def call(name="lenet_planted.onnx", **options):
        how = {"engine": "tensorrt", "explain": "none", "effort": "quick", **options}
        return trt_bisect.run(lenet / name, lenet / "calibration.npz", **how)

    return call


@pytest.mark.slow
def test_each_plan_is_timed(run, tmp_path):
    """9 layers, 6 quantizable, one culprit: 36 ms in FP32, 18 in FP16, 6 + 3 * 4 in INT8, 3 more in the recipe."""
    report = run(output=tmp_path / "run")
    expected = {"fp32": 36.0, "fp16": 18.0, "int8": 18.0, "recipe": 21.0}
    assert {plan: timed.mean_ms for plan, timed in report.latency.items()} == expected
    assert report.layer_milliseconds("int8", "ip2") == 1.0
    assert report.layer_milliseconds("recipe", "ip2") == 4.0
    assert report.layer_milliseconds("recipe", "conv9") is None
    assert latency_lines(report) == [
        "Latency, mean: fp32 36.000 ms (p99 36.000), fp16 18.000 ms (p99 18.000), int8 18.000 ms (p99 18.000), "
        "recipe 21.000 ms (p99 21.000)",
        "'ip2' and what is fused with it: 1.0000 ms in INT8, 4.0000 ms in the recipe",
    ]
    record = json.loads((tmp_path / "run/report.json").read_text())
    assert record["latency"]["recipe"]["layers"][-1] == {"name": "copy", "layers": [], "milliseconds": 0.5}
    assert record_of(report_from(record)) == record
    assert report_from(record).layer_milliseconds("recipe", "ip2") == 4.0


@pytest.mark.slow
def test_a_plan_that_cannot_be_built_has_no_time(run, monkeypatch):
    monkeypatch.setattr(TimedBuilder, "without_fp16", True)
    report = run()
    assert report.latency["fp16"] is None
    assert report.latency["recipe"].mean_ms == 21.0
    assert "fp16" not in latency_lines(report)[0]


def test_emulation_tells_no_time(finished):
    report = Report.load(finished)
    assert report.latency is None
    assert json.loads((finished / "report.json").read_text())["latency"] is None
    assert latency_lines(report) == []


def test_the_99th_percentile():
    latency = Latency.of(np.arange(1, 102, dtype=float))
    assert (latency.mean_ms, latency.median_ms, latency.p99_ms, latency.runs) == (51, 51, 100, 101)
