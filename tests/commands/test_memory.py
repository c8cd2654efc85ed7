"""The memory of a run, with ``--memory`` and without a bound."""

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

import trt_bisect
from tests.support.networks import Sketch
from trt_bisect.builder.onnxruntime import SwitchSession
from trt_bisect.report.model import Report

DEPTH, CHANNELS, SIZE = 10, 8, 336
TENSOR = CHANNELS * SIZE * SIZE * 4
MEMORY = 16
ALLOWED_TENSORS = 12
"""Beyond ``MEMORY``: a layer runs in two sessions side by side (the trunk and the rows, or the explanation's two runs),
each with its input and its output before and after rounding (8) and two temporary arrays of their size (4)."""
TWO_CORES = "import os; os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])"
PEAK = "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="the peak is read from proc(5)")


@pytest.fixture
def large(tmp_path):
    """A folder with a network of ten activations of 3.4 MiB each, and a sample."""
    sketch = Sketch(5)
    x = "x"
    for number in range(DEPTH):
        x = sketch.conv(x, f"conv{number}", CHANNELS if number else 3, CHANNELS, 1)
    sketch.nodes.append(onnx.helper.make_node("Flatten", [sketch.node("GlobalAveragePool", [x], "pool")], ["y"]))
    onnx.save(sketch.model([1, 3, SIZE, SIZE], [1, CHANNELS]), tmp_path / "large.onnx")
    np.savez(tmp_path / "data.npz", x=np.random.default_rng(0).normal(size=(1, 3, SIZE, SIZE)).astype(np.float32))
    return tmp_path


def peak_of(forks, folder, *lines):
    """Runs Python lines in a process of its own, in ``folder`` and on two cores. Returns its peak, in bytes."""
    done = forks.run(code="\n".join([TWO_CORES, *lines, PEAK]), folder=folder)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1]) * 1024


def whole_run(memory, **how):
    """The lines of a whole run with its calibration, into ``out``."""
    how |= {"output": "out", "memory": memory, "engine": "onnxruntime", "history": "none", "effort": "quick"}
    return "import trt_bisect", f"trt_bisect.run('large.onnx', 'data.npz', **{how!r})"


@pytest.mark.slow
@pytest.mark.subprocess
def test_memory_bounds_a_whole_run(large, forks):
    """Without a bound it takes more."""
    alone = "onnxruntime.InferenceSession('large.onnx').run(None, {'x': numpy.load('data.npz')['x']})"
    plain = peak_of(forks, large, "import numpy, onnxruntime", alone)
    unbounded = peak_of(forks, large, *whole_run(4096, explain="tensors"))
    bound = plain + (MEMORY << 20) + ALLOWED_TENSORS * TENSOR
    assert bound < plain + 2 * DEPTH * TENSOR, "all tensors of both runs together would not exceed the bound"
    assert unbounded > bound
    shutil.rmtree(large / "out")
    bounded = peak_of(forks, large, *whole_run(MEMORY, explain="tensors"))
    told = json.loads((large / "out" / "report.json").read_text())["peak_bytes"]
    assert bounded < bound
    assert 0 <= bounded - told < TENSOR, "the report tells another peak than that of its process"


WIDTH, GEMMS = 1024, 12
WEIGHTS = GEMMS * WIDTH * WIDTH * 4


def products(path, width, count, samples, planted=None):
    """Writes a network of matrix products, one of them maybe a planted culprit; returns samples for it."""
    sketch, random, x = Sketch(), np.random.default_rng(2), "x"
    for number in range(count):
        weight = random.normal(0.0, width**-0.5, (width, width)).astype(np.float32)
        if number == planted:
            weight[0] *= 300.0
        x = sketch.node("MatMul", [x, sketch.constant(f"w{number}", weight)], f"layer{number}")
    sketch.nodes[-1].output[0] = "y"
    onnx.save(sketch.model([1, width], [1, width]), path)
    return {"x": random.normal(size=(samples, width)).astype(np.float32)}


@pytest.fixture
def heavy(tmp_path):
    """A folder with a network of twelve weights of 4 MiB each, one of them a planted culprit, and two samples."""
    data = products(tmp_path / "large.onnx", WIDTH, GEMMS, 2, planted=6)
    np.savez(tmp_path / "data.npz", **data)
    return tmp_path


@pytest.mark.slow
@pytest.mark.subprocess
def test_the_session_of_all_plans_is_closed_while_other_engines_of_a_large_network_run(heavy, forks):
    """With more weights than ``--memory``; the answer is the same."""
    found = {}
    for memory in (4096, MEMORY):
        peak = peak_of(forks, heavy, *whole_run(memory, explain="none", calibrator="minmax", threshold=0.99))
        report = json.loads((heavy / "out" / "report.json").read_text())
        found[memory] = peak, report["culprits"]
        shutil.rmtree(heavy / "out")
    (kept, before), (closed, after) = found[4096], found[MEMORY]
    assert before == after == ["layer6"]
    assert kept - closed > WEIGHTS / 2, "a process with memory to spare takes less for the open session"


def test_the_session_of_all_plans_of_a_large_network_is_closed_before_the_report_is_written(tmp_path, monkeypatch):
    """It writes all weights, which it reads for that."""
    data = products(tmp_path / "net.onnx", 384, 3, 4)
    made, open_when_written = [], []
    begin, save = SwitchSession.__init__, Report.save

    def begun(session, *given):
        made.append(session)
        begin(session, *given)

    def saved(report, folder, **how):
        open_when_written.append(any(session._pieces for session in made))
        return save(report, folder, **how)

    monkeypatch.setattr(SwitchSession, "__init__", begun)
    monkeypatch.setattr(Report, "save", saved)
    how = {"calibrator": "minmax", "threshold": 0.9999, "engine": "onnxruntime", "history": "none"}
    how |= {"effort": "thorough", "front": True, "explain": "none"}
    trt_bisect.run(tmp_path / "net.onnx", data, output=tmp_path / "out", memory=1, **how)
    assert made
    assert open_when_written == [False]
