"""``tools/gpu_check``: how a check ends, and what is recorded."""

import json
import subprocess
import sys
from pathlib import Path

import bench
import measures
import numpy as np
import plan_checks
import pytest

from tests.support.editions import edition
from tests.support.gpu_tool import TOOL, failed
from trt_bisect.errors import EngineUnavailable
from trt_bisect.evaluator.trial import OutputFigures, Trial
from trt_bisect.support.machine import find_gpu


def has_gpu():
    try:
        return bool(find_gpu())
    except EngineUnavailable:
        return False


@pytest.mark.slow
@pytest.mark.subprocess
@pytest.mark.skipif(has_gpu(), reason="there is a GPU")
def test_without_a_gpu_it_runs_what_needs_none(tmp_path):
    pytest.importorskip("tensorrt_rtx_bindings")
    expected = {"build": "passed", "planted": "needs a GPU", "qdq": "not here"}
    expected |= edition({}, {"start": "passed", "noise": "passed"})
    path = tmp_path / "gpu_check.json"
    options = [option for name in expected for option in ("--only", name)]
    command = [sys.executable, str(TOOL), "--json", str(path), "--engine", "tensorrt-rtx", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    record = json.loads(path.read_text())
    assert record["complete"] is True
    assert record["machine"]["gpu"] == ""
    outcomes = {check["name"]: check["outcome"] for check in record["checks"]}
    assert outcomes == expected
    (engines,) = (check["figures"]["engines"] for check in record["checks"] if check["name"] == "build")
    assert [engine["k"] for engine in engines] == [-1, 0, 1, 2, 3, 5, 7]
    assert done.stdout.splitlines()[0].split()[:3] == ["tensorrt-rtx", next(iter(outcomes)), "passed"]


def test_an_engine_that_is_not_installed_is_no_failure(gpu_check, monkeypatch):
    def not_installed(engine):
        raise EngineUnavailable("tensorrt is not installed.", "pip install tensorrt")

    monkeypatch.setattr(gpu_check, "import_tensorrt", not_installed)
    made = gpu_check._run_apart(gpu_check.BY_NAME["start"], "tensorrt", has_gpu=True, left=100)
    assert made["outcome"] == "not here"
    assert "not installed" in made["message"]


SCRIPTS = {
    "crashed": "import os, signal; print('before', flush=True); os.kill(os.getpid(), signal.SIGSEGV)",
    "timed out": "import time; print('before', flush=True); time.sleep(60)",
    "passed": "print('before')",
}


@pytest.fixture
def run_apart(gpu_check, monkeypatch):
    """Runs a check, by itself or its name, on TensorRT, which can be used here."""
    monkeypatch.setattr(gpu_check, "_why_not", lambda engine: "")
    monkeypatch.setattr(gpu_check, "typing_of", lambda *_: "weak")

    def call(check, left=100):
        check = gpu_check.BY_NAME.get(check, check)
        return gpu_check._run_apart(check, "tensorrt", has_gpu=True, left=left)

    return call


@pytest.mark.parametrize("outcome", SCRIPTS)
def test_however_a_check_ends_its_words_and_records_are_kept(run_apart, gpu_check, monkeypatch, tmp_path, outcome):
    script = tmp_path / "check.py"
    script.write_text(
        "import pathlib, sys\n"
        "folder = pathlib.Path(sys.argv[sys.argv.index('--folder') + 1])\n"
        """(folder / "results.json").write_text('{"expectations": [], "figures": {"seen": 1}}')\n""" + SCRIPTS[outcome]
    )
    monkeypatch.setattr(gpu_check, "__file__", str(script))
    seconds = 4.0 if outcome == "timed out" else 60.0
    check = bench.Check("start", "", lambda bench: None, seconds, needs_gpu=False)
    made = run_apart(check)
    assert made["outcome"] == outcome
    assert "before" in made["message"]
    assert made["figures"] == {"seen": 1}


def test_an_expectation_that_does_not_hold_fails_the_check(run_apart, gpu_check, monkeypatch):
    recorded = {"expectations": [{"what": "near", "holds": False, "said": "0.5"}], "figures": {}}
    monkeypatch.setattr(gpu_check, "_ended", lambda *_: ("passed", ""))
    monkeypatch.setattr(gpu_check, "_recorded", lambda folder: recorded)
    made = run_apart("start")
    assert made["outcome"] == "failed"
    assert "not: near (0.5)" in gpu_check._line(made)


def test_checks_for_which_no_time_is_left_are_told(run_apart):
    assert run_apart("ocr", left=0.2)["outcome"] == "no time left"


def test_records_are_json_whatever_they_hold(make_bench):
    made, odd = make_bench(), {"nan": float("nan"), 3: (np.float32(0.5), {0, 1}), "path": Path("x"), "none": None}
    made.figure("odd", odd)
    assert made.figures == {"odd": {"nan": None, "3": [0.5, [0, 1]], "path": "x", "none": None}}


def test_distances():
    one, other = {"y": np.array([3.0, 4.0])}, {"y": np.array([4.0, 3.0])}
    assert measures.relative_difference(one, other) == pytest.approx(2**0.5 / 5)


@pytest.mark.parametrize("name", ["planted", *edition((), ("depthwise", "lenet", "residual"))])
def test_side_by_side_with_itself_nothing_differs(make_bench, monkeypatch, name):
    """The emulation stands in for the engine: every expectation holds, every distance is 0."""
    run = plan_checks._run
    calls = []

    def run_apart(made, subject, engine, *strategy):
        calls.append(engine)
        return run(made, subject, engine, *strategy)

    made = make_bench("onnxruntime")
    monkeypatch.setattr(plan_checks, "_run", run_apart)
    getattr(plan_checks, name)(made)
    assert failed(made) == []
    assert calls == ["onnxruntime"] * 3
    fidelity = made.figures["fidelity"]
    assert fidelity["plans"] > 5
    assert all(value == 0 for key, value in fidelity.items() if key != "plans")
    assert json.loads(made.results.read_text())["figures"].keys() == made.figures.keys()
    assert all(trial["told of"] > 5 for trial in made.figures["trials"])


def test_the_distance_of_emulation_and_engine():
    def trial(cosine, sqnr):
        return Trial("", "measured", {"y": OutputFigures({"cosine": cosine, "sqnr": sqnr})})

    emulated = {"a": trial(0.99, 20.0), "b": trial(0.9, 10.0), "c": trial(1.0, 140.0), "d": Trial("", "crashed")}
    measured = {"a": trial(0.989, 19.5), "b": trial(0.92, 11.0), "c": trial(1.0, 120.0), "e": trial(0.5, 1.0)}
    fidelity = plan_checks._fidelity(emulated, measured)
    assert fidelity["plans"] == 3
    assert fidelity["largest difference in cosine"] == pytest.approx(0.02)
    assert fidelity["median difference in cosine"] == pytest.approx(0.001)
    assert fidelity["largest difference of 1 - cosine, as a ratio"] == pytest.approx(0.2)
    assert fidelity["median difference of 1 - cosine, as a ratio"] == pytest.approx(0.15)
    assert fidelity["largest difference in SQNR, dB"] == pytest.approx(1.0)


def test_records_of_checks_that_ran_side_by_side_become_one(gpu_check, tmp_path):
    """Each check once, in the usual order, as it ended best: what was measured and failed counts more than no time."""

    def record(path, *checks):
        kept = [{"engine": "tensorrt", "name": name, "outcome": outcome} for name, outcome in checks]
        path.write_text(json.dumps({"schema": 1, "machine": {"gpu": "H200"}, "complete": True, "checks": kept}))
        return path

    one = record(tmp_path / "1.json", ("int8", "no time left"), ("build", "failed"), ("fp32", "passed"))
    two = record(tmp_path / "2.json", ("int8", "passed"), ("build", "timed out"), ("lenet", "crashed"))
    merged = gpu_check.merged([one, two])
    ended = [(check["name"], check["outcome"]) for check in merged["checks"]]
    assert ended == [("build", "failed"), ("fp32", "passed"), ("int8", "passed"), ("lenet", "crashed")]
    assert merged["machine"] == {"gpu": "H200"}


NO_DRIVER = "No NVIDIA GPU answers: libcuda.so.1: no such file"
NO_PYCUDA = "PyCUDA, which runs TensorRT's engines, does not import."


@pytest.mark.parametrize(
    ("problem", "rehearsing", "outcome"), [(NO_DRIVER, True, 77), (NO_DRIVER, False, 1), (NO_PYCUDA, True, 1)]
)
def test_a_check_that_comes_to_the_driver_is_told_apart(gpu_check, tmp_path, problem, rehearsing, outcome, capsys):
    def run(_bench):
        raise EngineUnavailable(problem, "Get it.")

    check = bench.Check("start", "", run, 60)
    assert gpu_check._run_here(check, tmp_path, "tensorrt", rehearse=rehearsing) == outcome
