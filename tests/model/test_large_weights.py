"""Weights that are large together are in files: memory does not hold them, and every result stays as it is."""

import gc
import os
import pickle
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.support import networks
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
from trt_bisect.calibration.collect import calibrate
from trt_bisect.calibration.weight_rounding import round_weights
from trt_bisect.model.equalise import equalise
from trt_bisect.model.file import DETACH_FROM_BYTES
from trt_bisect.model.network import load_network
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.precision import Precision
from trt_bisect.support import memory as module
from trt_bisect.support.memory import file_of, give_back_memory, mapped, mapped_if_large

ROOT = Path(__file__).parents[2]
VALUES = networks.normal(0, 300, 700)


def printed_by(code, *arguments, **environment):
    """The words that Python code prints in a process of its own."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    how = {"env": {**os.environ, **environment}, "cwd": ROOT, "capture_output": True, "text": True, "check": True}
    return subprocess.run(command, **how).stdout.split()


@pytest.fixture(autouse=True)
def small_arrays_are_mapped_too(monkeypatch):
    monkeypatch.setattr(module, "_LEAST_BYTES", 0)


def test_a_file_holds_the_values_and_goes_with_the_array():
    array = mapped(VALUES)
    path = file_of(array)
    assert np.array_equal(np.fromfile(path, np.float32).reshape(VALUES.shape), VALUES)
    give_back_memory()
    assert np.array_equal(array, VALUES)
    rows = array[1:]
    del array
    gc.collect()
    assert np.array_equal(rows, VALUES[1:])
    del rows
    gc.collect()
    assert not path.exists()


def test_a_part_or_a_copy_of_an_array_is_not_taken_for_its_file():
    array = mapped(VALUES)
    parts = (array[1:], array.reshape(-1), array.T, array + 0, np.array(array), pickle.loads(pickle.dumps(array)))
    assert [file_of(part) for part in parts] == [None] * len(parts)
    assert np.array_equal(parts[-1], VALUES)


def test_only_arrays_that_are_large_together_are_in_files(monkeypatch):
    arrays = {"a": VALUES, "b": VALUES[:10].copy()}
    assert mapped_if_large(arrays)["a"] is VALUES
    monkeypatch.setattr(module, "_FROM_BYTES", VALUES.nbytes)
    found = mapped_if_large(arrays)
    assert all(file_of(array) for array in found.values())
    assert all(np.array_equal(found[name], array) for name, array in arrays.items())
    assert mapped_if_large(found)["a"] is found["a"]


@pytest.mark.parametrize("room", [0, 1000], ids=["no file", "a part of a file"])
def test_without_room_for_a_file_the_array_stays_in_memory(tmp_path, room):
    """The kernel refuses what goes beyond the limit of a file's size."""
    code = (
        "import os, resource, signal, numpy as np; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({room}, {room}));"
        "from trt_bisect.support.memory import mapped; values = np.zeros(1 << 20);"
        "print(mapped(values) is values, sum(len(files) for _, _, files in os.walk(os.environ['TMPDIR'])))"
    )
    assert printed_by(code, TMPDIR=str(tmp_path), PYTHONDONTWRITEBYTECODE="1") == ["True", "0"]


def test_a_child_that_was_forked_removes_no_files_of_its_parent():
    """In a process of one thread: a child of this one might wait for threads that it does not have."""
    code = (
        "import gc, os, numpy as np; from trt_bisect.support.memory import file_of, mapped;"
        "array = mapped(np.zeros(1 << 20)); path = file_of(array); child = os.fork();"
        "array = array if child else None; gc.collect();"
        "os.waitpid(child, 0) if child else os._exit(0); print(path.exists())"
    )
    assert printed_by(code) == ["True"]


def test_where_files_would_be_in_memory_weights_stay_there_and_rounded_ones_are_not_kept(monkeypatch):
    monkeypatch.setattr(module, "_scratch", lambda: None)
    monkeypatch.setattr(module, "_FROM_BYTES", 0)
    assert mapped(VALUES) is VALUES
    network = load_network(networks.residual())
    scales = {name: np.float32(0.1) for name in network.activations}
    writer = PlanWriter(network, scales, GraphTarget.ONNXRUNTIME)
    found = writer.write(network.full(Precision.FP32))
    assert not any(map(file_of, found.weights.values()))
    assert network.rounded
    del found
    gc.collect()
    assert not network.rounded


def test_files_are_left_for_others(monkeypatch):
    """The arrays may have a part of the files that may be open; the others stay in memory."""
    allowed = len(module._mapped) + 3
    monkeypatch.setattr(resource, "getrlimit", lambda _: (2 * allowed, 2 * allowed))
    arrays = [mapped(VALUES[number:]) for number in range(5)]
    assert [file_of(array) is None for array in arrays] == [False, False, False, True, True]
    assert all(np.array_equal(array, VALUES[number:]) for number, array in enumerate(arrays))


@pytest.mark.parametrize("external", [False, True])
def test_engines_read_weights_from_files_and_give_the_same_outputs(tmp_path, monkeypatch, external):
    model = networks.residual()
    path = networks.save(model, tmp_path)
    if external:
        onnx.save(onnx.load(path), path, save_as_external_data=True, location="net.data", size_threshold=0)
    feeds = {"x": networks.samples(model, 1)["x"]}
    outputs, files = [], []
    for most in (1 << 30, 0):
        monkeypatch.setattr(module, "_FROM_BYTES", most)
        network = load_network(path)
        scales = calibrate(network, [feeds], "entropy").scales
        builder = OnnxRuntimeBuilder(network, scales, BuildOptions())
        plans = [network.free_plan(), network.full(Precision.FP32)]
        with builder.build(plans[0]) as high, builder.build(plans[1]) as low:
            outputs.append([high.infer(feeds), low.infer(feeds), builder.switch().infer(plans[1], feeds)])
        large = [array for array in network.rounded.values() if array.nbytes >= DETACH_FROM_BYTES]
        files.append([file_of(array) for array in (*network.weights.values(), *large)])
    assert not any(files[0])
    assert all(files[1])
    assert len(files[1]) > len(network.weights)
    for before, after in zip(*outputs, strict=True):
        assert all(np.array_equal(before[name], after[name]) for name in before)


def test_the_weights_of_a_changed_network_are_in_files_too(monkeypatch):
    """A search keeps up to three changed networks beside the user's."""
    monkeypatch.setattr(module, "_FROM_BYTES", 0)
    model = networks.chain(3)
    network = load_network(model)
    equalised, factors = equalise(network)
    rounded, shares = round_weights(network, networks.feeds(networks.samples(model, 4)["x"]))
    assert factors
    assert shares
    for array in (*equalised.weights.values(), *rounded.on_grid.values()):
        assert file_of(array)


def test_a_file_that_was_removed_is_not_needed_where_the_values_are_still_there(monkeypatch):
    """Some systems empty the folder of temporary files while a long run goes on."""
    monkeypatch.setattr(module, "_FROM_BYTES", 0)
    model = networks.chain(2)
    network = load_network(model)
    builder = OnnxRuntimeBuilder(network, {}, BuildOptions())
    feeds = {"x": networks.samples(model, 1)["x"]}
    before = builder.reference().infer(feeds)
    for array in network.weights.values():
        file_of(array).unlink()
    after = builder.reference().infer(feeds)
    assert all(np.array_equal(before[name], after[name]) for name in before)


PEAK = """
import sys
import numpy as np
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
from trt_bisect.model.network import load_network
from trt_bisect.precision import Precision
from trt_bisect.support import memory
from trt_bisect.support.machine import peak_bytes
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

memory._FROM_BYTES, before = 0, resident()
network = load_network(sys.argv[1])
scales = {name: np.float32(0.1) for name in network.activations}
memory.give_back_memory()
loaded = resident()
open("/proc/self/clear_refs", "w").write("5")
with OnnxRuntimeBuilder(network, scales, BuildOptions()).build(network.full(Precision.FP32)):
    print(loaded - before, peak_bytes() - loaded)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak is reset in proc(5)")
def test_memory_holds_large_weights_once_while_an_engine_is_built(tmp_path):
    """The engine's own packed copy; before, memory held the weights, the rounded ones, and two copies of these."""
    size, count = 1024, 16
    random = np.random.default_rng(0)
    names = [f"w{i}" for i in range(count)]
    weights = [onnx.numpy_helper.from_array(random.random((size, size), np.float32), name) for name in names]
    nodes = [onnx.helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"x{i + 1}"], f"m{i}") for i in range(count)]
    model = networks.model_of(nodes, {"x0": [1, size]}, {f"x{count}": [1, size]}, weights, ir_version=9)
    path = tmp_path / "net.onnx"
    onnx.save(model, path, save_as_external_data=True, location="net.data")
    loaded, building = (int(found) / (4 * count * size**2) for found in printed_by(PEAK, path))
    assert loaded < 0.5
    assert building < 1.5
