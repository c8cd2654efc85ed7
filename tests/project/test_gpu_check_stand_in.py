"""Checks of ``tools/gpu_check`` on a stand-in for a GPU's engine: memory, references, workers."""

import json
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import basic_checks
import bench
import fault_checks
import numpy as np
import plan_checks
import pytest
import subjects

from tests.support.debug_engine import ShowingBuilder
from tests.support.gpu_tool import failed
from trt_bisect.builder.engines import EngineStatus
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
from trt_bisect.builder.tensorrt_build import Serialized
from trt_bisect.builder.tensorrt_engine import TensorRTEngine


class StandInEngine(TensorRTEngine):
    """The emulation, told of as TensorRT's inspector does, its layers fused in pairs."""

    def __init__(self, engine, network):
        self.serialized = Serialized(b"e" * 2000, ())
        self.ran, self.computed, self.messages = {}, {}, ()
        self._engine, self._told, self._names = engine, engine.ran, [layer.name for layer in network.layers]

    def infer(self, feeds):
        self.ran = self.computed = self._told
        return self._engine.infer(feeds)

    def inspect(self):
        pairs = [self._names[i : i + 2] for i in range(0, len(self._names), 2)]
        return json.dumps({"Layers": [{"Name": " + ".join(pair), "LayerType": "kgen"} for pair in pairs]})

    def __exit__(self, *error):
        return None


class StandInBuilder(OnnxRuntimeBuilder):
    def __init__(self, network, scales, options):
        super().__init__(network, scales, options)
        self.network = network

    def build(self, plan):
        return StandInEngine(super().build(plan), self.network)


@pytest.fixture
def stand_in(monkeypatch):
    def maker_of(subject, engine, timing_cache=None, *, force_int8=False):
        options = subjects.options_for("onnxruntime", timing_cache)
        return partial(StandInBuilder, subject.network, subject.ranges.scales, options)

    monkeypatch.setattr(subjects, "maker_of", maker_of)


@pytest.mark.parametrize("check", [basic_checks.build, basic_checks.int8, basic_checks.clamp, basic_checks.fused])
def test_basic_checks_pass_on_a_stand_in(make_bench, stand_in, check):
    made = make_bench()
    check(made)
    assert failed(made) == []
    assert made.expectations


@pytest.mark.parametrize(("wrong", "said"), [(None, []), (1, ["int8: no kernel is to blame"])])
def test_the_check_of_shown_tensors_fails_where_a_kernel_is_wrong(make_bench, monkeypatch, wrong, said):
    monkeypatch.setattr(basic_checks, "engine_version", lambda engine: "11.4.1")
    monkeypatch.setattr(basic_checks, "make_builder", ShowingBuilder(5, wrong=wrong))
    made = make_bench("tensorrt")
    basic_checks.shown(made)
    assert failed(made) == said
    assert {row["precision"] for row in made.figures["int8 tensors"]} == {"int8"}


def test_an_engine_that_shows_nothing_is_only_remarked(make_bench, monkeypatch):
    monkeypatch.setattr(basic_checks, "engine_version", lambda engine: "10.3.0")
    made = make_bench("tensorrt")
    basic_checks.shown(made)
    assert (failed(made), list(made.figures)) == ([], ["remark"])


@pytest.mark.parametrize("note", ["", "pip install 'numpy<2'"])
def test_a_numpy_that_the_version_misreads_is_told_at_the_start(make_bench, monkeypatch, note):
    pytest.importorskip("tensorrt_rtx_bindings")
    monkeypatch.setattr(basic_checks, "engine_status", lambda engine: EngineStatus(engine, note=note))
    made = make_bench("tensorrt-rtx")
    made.gpu = False
    basic_checks.start(made)
    assert [each["said"] for each in made.expectations if not each["holds"]] == ([note] if note else [])


@pytest.fixture
def without_tensorrt(monkeypatch):
    """The checks on ``tensorrt`` look for no tactic sources: it is not installed."""
    monkeypatch.setattr(subjects, "flags", lambda engine: "")


def test_a_planted_culprit_that_weak_typing_runs_in_float_is_no_failure(make_bench, foreign, without_tensorrt):
    """Small Gemms may be faster in FP32, and a region tells nothing: no figure of these plans is the emulation's."""
    foreign(in_float=("ip1", "ip2"), tells=lambda ran: {**ran, "pool2": "region"})
    made = make_bench("tensorrt")
    plan_checks.planted(made)
    assert failed(made) == []
    assert made.figures["planted"] == {"ip2": "fp32"}
    assert made.figures["culprits"] == {"emulated": ["ip2"], "measured": []}
    assert made.figures["fidelity"]["plans"] == 4, "none, and conv1, pool1 and conv2 in INT8"


def test_a_layer_kept_high_that_runs_low_is_a_failure(make_bench, foreign, without_tensorrt):
    foreign(tells=lambda ran: {**ran, "conv1": "int8"})
    made = make_bench("tensorrt")
    plan_checks.planted(made)
    assert failed(made) == ["no layer kept high ran low"]


def test_fp32_is_compared_with_and_without_tf32(make_bench, stand_in, monkeypatch):
    rounded = SimpleNamespace(infer=lambda feeds: {"y": np.ones((1, 10), np.float32)})
    monkeypatch.setattr(basic_checks, "_reference_with_tf32", lambda bench, subject: nullcontext(rounded))
    made = make_bench()
    basic_checks.fp32(made)
    assert failed(made) == []
    assert made.figures["TF32 would have been noticed"] is True


def test_the_reference_with_tf32_is_built_by_tensorrt_rtx(make_bench):
    pytest.importorskip("tensorrt_rtx_bindings")
    made = make_bench("tensorrt-rtx")
    engine = basic_checks._reference_with_tf32(made, subjects.residual(made.folder))
    assert len(engine.serialized.data) > 2000


def test_the_timing_cache_is_asked_for_twice(make_bench, stand_in):
    made = make_bench()
    basic_checks.timing_cache(made)
    assert set(made.figures["seconds"]) == {"first without", "second without", "first with", "second with"}
    assert "the timing cache is written" in failed(made), "the stand-in writes none"


def test_isolation_is_checked_on_a_real_worker(make_bench, stand_in, monkeypatch):
    monkeypatch.setattr(fault_checks, "HANG_SECONDS", 5.0)
    made = make_bench()
    fault_checks.isolation(made)
    assert failed(made) == []
    assert [trial["outcome"] for trial in made.figures["trials"]].count("measured") == 3


class FakeMemory:
    """A GPU of 1 GiB."""

    MemoryError = type("MemoryError", (Exception,), {})

    def __init__(self):
        self.free = 1 << 30

    def mem_get_info(self):
        return self.free, 1 << 30

    def mem_alloc(self, size):
        if size > self.free:
            raise self.MemoryError
        self.free -= size

        def give_back():
            self.free += size

        return SimpleNamespace(free=give_back)


@pytest.fixture
def device(monkeypatch):
    found = SimpleNamespace(cuda=FakeMemory(), current=nullcontext)
    monkeypatch.setattr(fault_checks, "open_device", lambda: found)
    return found


def test_memory_is_taken_until_little_is_left_and_given_back(make_bench, stand_in, device):
    made = make_bench()
    fault_checks.full_gpu(made)
    assert failed(made) == []
    assert device.cuda.free == 1 << 30
    taken = fault_checks._take_all(device)
    assert device.cuda.free <= 4 << 20
    assert len(taken) < 40


def test_memory_that_does_not_come_back_is_told(make_bench, stand_in, device, monkeypatch):
    monkeypatch.setattr(fault_checks, "BUILDS", 20)
    made = make_bench()
    fault_checks.memory(made)
    assert failed(made) == []
    assert made.figures["builds"] == 20
    run = fault_checks._run

    def leak(engine, subject):
        run(engine, subject)
        device.cuda.free -= 4 << 20

    monkeypatch.setattr(fault_checks, "_run", leak)
    leaking = bench.Experiment("onnxruntime", made.folder, made.results, gpu=True)
    fault_checks.memory(leaking)
    assert failed(leaking) == ["memory is back after 20 builds"]


def test_the_streaming_calibrator_hands_over_every_sample_once():
    class Buffer:
        def __init__(self, device):
            self.memory, self.address = {}, 4096

        def hold(self, size):
            assert size == 12

    copied = []
    device = SimpleNamespace(cuda=SimpleNamespace(memcpy_htod=lambda memory, array: copied.append(array.copy())))
    trt = SimpleNamespace(IInt8EntropyCalibrator2=object)
    data = [{"x": np.full(3, i, np.float32)} for i in range(3)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_checks, "Buffer", Buffer)
        streaming = plan_checks._streaming_calibrator(trt, device, data)
        answers = [streaming.get_batch(["x"]) for _ in range(5)]
    assert answers == [[4096], [4096], [4096], None, None]
    assert [array[0] for array in copied] == [0, 1, 2]
    streaming.write_calibration_cache(memoryview(b"TRT-8600-EntropyCalibration2\n"))
    assert streaming.cache == b"TRT-8600-EntropyCalibration2\n"
    assert streaming.read_calibration_cache() is None
