"""ONNX Runtime's sessions: the execution provider they get, and the arena they share."""

import ctypes
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import helper

import trt_bisect
from tests.support.networks import chain, model_of, samples, save
from trt_bisect.builder import engines
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.engines import engine_status, make_builder
from trt_bisect.errors import EngineUnavailable
from trt_bisect.model import session as sessions
from trt_bisect.model.file import Written
from trt_bisect.model.network import load_network
from trt_bisect.model.session import CPU, CUDA, give_back_arena, make_session, usable_provider, use_device
from trt_bisect.support import memory

STATUS = Path("/proc/self/status")
COUNT = 16 << 20


def resident():
    """The memory that this process holds, in bytes."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


@pytest.mark.skipif(not STATUS.is_file(), reason="the memory is read from proc(5)")
def test_memory_of_the_shared_arena_is_given_back_and_sessions_go_on(monkeypatch):
    monkeypatch.setattr(memory, "ctypes", ctypes)
    nodes = [helper.make_node("Exp", ["x"], ["a"]), helper.make_node("ReduceSum", ["a"], ["y"], keepdims=0)]
    session = make_session(Written(model_of(nodes, {"x": ["n"]}, {"y": []}, opset=13), {}), one_of_many=True)
    x = np.zeros(COUNT, np.float32)
    assert session.run(None, {"x": x})[0] == COUNT
    held = resident()
    give_back_arena()
    assert resident() < held - 0.9 * x.nbytes
    assert session.run(None, {"x": x[:7]})[0] == 7


@pytest.mark.filterwarnings("ignore:Specified provider:UserWarning")
def test_a_provider_that_is_installed_and_gets_no_session_is_not_the_one_that_ran(monkeypatch):
    """As with onnxruntime-gpu on a machine without a GPU: the provider is named, and sessions run on the CPU."""
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
    sessions._gets_cuda.cache_clear()
    assert usable_provider() == CPU
    assert engine_status("onnxruntime").device == "CPU"
    network = load_network(chain(2))
    scales = {name: np.float32(0.1) for name in network.activations}
    assert make_builder("onnxruntime", "strong", network, scales, BuildOptions()).versions["device"] == CPU
    sessions._gets_cuda.cache_clear()


@pytest.fixture
def two_gpus(monkeypatch):
    """Two GPUs, as ONNX Runtime shows them; returns the providers that sessions ask for. They compute on the CPU."""
    give_back_arena()  # it has a session of its own
    asked, make = [], onnxruntime.InferenceSession

    def session(content, options, providers, **others):
        gpus = [choice[1]["device_id"] for choice in providers if choice[0] == CUDA]
        if any(index > 1 for index in gpus):
            raise RuntimeError("CUDA error cudaErrorInvalidDevice:invalid device ordinal")
        asked.append(providers)
        made = make(content, options, providers=[CPU], **others)
        made.get_providers = lambda: [*([CUDA] if gpus else []), CPU]
        return made

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    sessions._gets_cuda.cache_clear()
    yield asked
    use_device(None)
    sessions._gets_cuda.cache_clear()


ON_SECOND = [(CUDA, {"device_id": 1}), CPU]


@pytest.mark.parametrize("command", ["compare", "worst", "sensitivity", "profile", "run"])
def test_a_command_runs_all_its_sessions_on_the_device(two_gpus, command, tmp_path):
    data = samples(chain(2), 4)
    more = {"explain": "none", "history": "none", "effort": "quick"} if command == "run" else {}
    engine = {} if command == "profile" else {"engine": "onnxruntime"}
    job = getattr(trt_bisect, command)
    found = job(save(chain(2), tmp_path), calibration=data, device="cuda:1", calibrator="minmax", **more, **engine)
    assert two_gpus
    assert [asked for asked in two_gpus if asked != ON_SECOND] == []
    if command == "run":
        assert found.versions["device"] == CUDA
    two_gpus.clear()
    job(save(chain(2), tmp_path), calibration=data, device="cpu", calibrator="minmax", **more)
    assert [asked for asked in two_gpus if asked != [CPU]] == []


def test_a_gpu_that_is_not_there_is_refused_or_is_the_cpu_next_to_an_engine(two_gpus, monkeypatch):
    with pytest.raises(EngineUnavailable, match="cuda:2"):
        use_device("cuda:2")
    use_device("cuda:2", or_cpu=True)
    assert usable_provider() == CPU
    use_device("cuda:0")
    assert usable_provider() == CUDA
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CPU])
    with pytest.raises(EngineUnavailable, match="CPU"):
        use_device("cuda:0")
    use_device(None)
    assert usable_provider() == CPU


def test_an_engine_is_built_in_a_process_that_sees_its_gpu_alone(monkeypatch):
    processes = []
    monkeypatch.setattr(engines, "visible_gpus", lambda: ("4", "GPU-6f"))
    monkeypatch.setattr(engines, "IsolatedBuilder", lambda _make, _limit, process: processes.append(process))
    network = load_network(chain(2))
    for device in ("cuda:1", None):
        engines.open_builder("tensorrt", "strong", network, {}, BuildOptions(device=device))
    assert [process._environment for process in processes] == [{"CUDA_VISIBLE_DEVICES": "GPU-6f"}, {}]
    with pytest.raises(EngineUnavailable, match="2 GPUs"):
        engines.open_builder("tensorrt", "strong", network, {}, BuildOptions(device="cuda:2"))
