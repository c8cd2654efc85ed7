"""ONNX Runtime's sessions: the execution provider they get, and the arena they share."""

import ctypes
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import helper

from tests.support.networks import chain, model_of, save
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.engines import engine_status, make_builder
from trt_bisect.model.file import Written
from trt_bisect.model.network import load_network
from trt_bisect.model.session import CPU, CUDA, give_back_arena, make_session, usable_provider
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
def test_a_provider_that_is_installed_and_gets_no_session_is_not_the_one_that_ran(monkeypatch, tmp_path):
    """As with onnxruntime-gpu on a machine without a GPU: the provider is named, and sessions run on the CPU."""
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
    usable_provider.cache_clear()
    assert usable_provider() == CPU
    assert engine_status("onnxruntime").device == "CPU"
    network = load_network(save(chain(2), tmp_path))
    scales = {name: np.float32(0.1) for name in network.activations}
    assert make_builder("onnxruntime", "strong", network, scales, BuildOptions()).versions["device"] == CPU
    usable_provider.cache_clear()
