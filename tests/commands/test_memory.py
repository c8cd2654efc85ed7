"""The memory of a run, with ``--memory`` and without a bound."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import trt_bisect
from tests.support.networks import Sketch
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder, SwitchSession
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


@pytest.mark.slow
@pytest.mark.subprocess
def test_memory_bounds_a_whole_run(large, forks):
    alone = "onnxruntime.InferenceSession('large.onnx').run(None, {'x': numpy.load('data.npz')['x']})"
    plain = peak_of(forks, large, "import numpy, onnxruntime", alone)
    bound = plain + (MEMORY << 20) + ALLOWED_TENSORS * TENSOR
    assert bound < plain + 2 * DEPTH * TENSOR, "all tensors of both runs together would not exceed the bound"
    how = {"output": "out", "memory": MEMORY, "engine": "onnxruntime", "history": "none", "effort": "quick"}
    run = f"trt_bisect.run('large.onnx', 'data.npz', explain='tensors', **{how!r})"
    bounded = peak_of(forks, large, "import trt_bisect", run)
    told = json.loads((large / "out" / "report.json").read_text())["peak_bytes"]
    assert bounded < bound
    assert 0 <= bounded - told < TENSOR, "the report tells another peak than that of its process"


def test_the_session_of_all_plans_of_a_large_network_is_closed_while_others_run_and_when_the_report_is_written(
    tmp_path, monkeypatch
):
    """Of a network with more weights than ``--memory``; the report reads them all to write the recipe."""
    sketch, random, x = Sketch(), np.random.default_rng(2), "x"
    for number in range(3):
        weight = random.normal(0.0, 384**-0.5, (384, 384)).astype(np.float32)
        x = sketch.node("MatMul", [x, sketch.constant(f"w{number}", weight)], f"layer{number}")
    sketch.nodes[-1].output[0] = "y"
    onnx.save(sketch.model([1, 384], [1, 384]), tmp_path / "net.onnx")
    data = {"x": random.normal(size=(4, 384)).astype(np.float32)}
    made, open_in_builds, open_when_written = [], [], []
    begin, build, save = SwitchSession.__init__, OnnxRuntimeBuilder.build, Report.save

    def is_open():
        return any(session._pieces for session in made)

    def begun(session, *given):
        made.append(session)
        begin(session, *given)

    def built(builder, plan):
        if made:
            open_in_builds.append(is_open())
        return build(builder, plan)

    def saved(report, folder, **how):
        open_when_written.append(is_open())
        return save(report, folder, **how)

    monkeypatch.setattr(SwitchSession, "__init__", begun)
    monkeypatch.setattr(OnnxRuntimeBuilder, "build", built)
    monkeypatch.setattr(Report, "save", saved)
    how = {"calibrator": "minmax", "threshold": 0.9999, "engine": "onnxruntime", "history": "none"}
    how |= {"effort": "thorough", "front": True, "explain": "none"}
    for memory in (1, 4096):
        trt_bisect.run(tmp_path / "net.onnx", data, output=tmp_path / f"out{memory}", memory=memory, **how)
        assert all(open_in_builds) == (memory == 4096)
        assert open_when_written == [False]
        for found in (made, open_in_builds, open_when_written):
            found.clear()
