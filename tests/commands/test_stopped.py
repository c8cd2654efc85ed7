"""SIGTERM, by which a scheduler stops a job, against Ctrl-C: the same end, with what was found so far kept."""

import json
import os
import signal
from dataclasses import replace

import pytest

import trt_bisect
from tests.support.editions import edition
from tests.support.records import record_of
from tests.support.waiting import wait_until
from trt_bisect.report.summary import FRONT_MISSING

START = "import sys\n{before}\nfrom trt_bisect.cli import main; main()"
pytestmark = pytest.mark.subprocess
COMMANDS = ("run", "sensitivity", "compare", "worst")

WAITING = """
import time
from pathlib import Path
import numpy as np

here = Path(__file__).parent

def wait():
    (here / "begun").touch()
    while not (here / "go").exists():
        time.sleep(0.01)

def feeds():
    random = np.random.default_rng(0)
    for number in range(8):
        yield {"data": random.random((1, 1, 28, 28), np.float32)}
    wait()

def metric(reference, output):
    if any(b'"trial"' in journal.read_bytes() for journal in here.rglob("journal.jsonl")):
        wait()
    return 1.0 - float(np.abs(reference - output).max())
"""


@pytest.fixture
def begin(forks, tmp_path):
    """Starts a command in a process group of its own, and goes on when it has come to where it waits."""
    (tmp_path / "waiting.py").write_text(WAITING)
    started = []

    def call(*arguments, before=""):
        process = forks.start(*arguments, code=START.format(before=before), folder=tmp_path)
        started.append(process)
        begun = tmp_path / "begun"
        wait_until(lambda: process.poll() is not None or begun.is_file() or any(begun.glob("*")))
        assert process.poll() is None, process.communicate()
        return process

    yield call
    (tmp_path / "go").touch()
    for process in started:
        process.kill()


def ended(process, stop, to=os.kill):
    """Ends a command with a signal and returns its output and its messages."""
    to(process.pid, stop)
    out, err = process.communicate()
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "trt-bisect: interrupted." in err
    return out, err


@pytest.mark.parametrize(
    ("command", "stop"),
    [
        *((command, signal.SIGTERM) for command in edition(("run",), COMMANDS)),
        *((command, signal.SIGINT) for command in edition(("worst", "compare"), COMMANDS)),
    ],
)
def test_every_command_ends_as_by_ctrl_c(begin, command, stop, lenet, tmp_path):
    """While its data is read: in Python, where nothing is measured yet."""
    data = ("--dataset", tmp_path / "waiting.py:feeds") if command == "worst" else ()
    calibration = lenet / "calibration.npz" if data else tmp_path / "waiting.py:feeds"
    process = begin(command, lenet / "lenet.onnx", "--calibration", calibration, *data, "-o", tmp_path / "out")
    _, err = ended(process, stop)
    if command == "worst":
        record = json.loads((tmp_path / "out/worst.json").read_text())
        assert (record["stopped"], len(record["values"])) == (True, 8)
    else:
        assert ("goes on" in err.splitlines()[-1]) == (command != "compare")


def journaled(folder):
    """The trials of the only journal under a folder."""
    (journal,) = folder.rglob("journal.jsonl")
    records = [json.loads(line) for line in journal.read_text().splitlines()]
    return [record["trial"] for record in records if "trial" in record]


@pytest.mark.parametrize("command", ["run", "regress"])
def test_what_was_measured_is_kept(begin, command, lenet, tmp_path):
    metric = f"{tmp_path}/waiting.py:metric"
    if command == "run":
        data = ("--calibration", lenet / "calibration.npz", "--input", lenet / "digits.npz", "-o", tmp_path / "out")
        data += ("--strategy", "exhaustive")
        process = begin("run", lenet / "lenet.onnx", *data, "--metric", metric, "--threshold", "0.9")
    else:
        (tmp_path / "suite.toml").write_text(
            f"""
[[network]]
model = "{lenet}/lenet.onnx"
calibration = "{lenet}/calibration.npz"
input = "{lenet}/digits.npz"
strategy = "exhaustive"
metric = "{metric}"
threshold = 0.9
calibrator = "minmax"
explain = "none"
repeats = 1
"""
        )
        process = begin("regress", "--config", "suite.toml")
    out, _ = ended(process, signal.SIGTERM)
    assert ("STOPPED" in out) == (tmp_path / "out/report.json").exists() == (command == "run")
    trials = journaled(tmp_path)
    assert trials
    assert {trial["outcome"] for trial in trials} == {"measured"}
    if command == "regress":
        (tmp_path / "go").touch()
        (night,) = trt_bisect.regress(tmp_path / "suite.toml").networks
        assert night.tonight.state == "finished", "the report of the run that was stopped is not that of the night"


IN_A_WORKER = """
from functools import partial
from tests.support import fake_builders
from trt_bisect.preparation import experiment as setup
from trt_bisect.builder.isolation import IsolatedBuilder, WorkerProcess
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder

shared = WorkerProcess()

def isolated(engine, typing, network, scales, options, shapes, process=None):
    make = fake_builders.Waiting(OnnxRuntimeBuilder, "{begun}", "{go}")
    return IsolatedBuilder(partial(make, network, scales, options), None, process or shared)

setup.open_builder = isolated
"""


@pytest.mark.parametrize("to", [os.kill, os.killpg], ids=["the process", "its group"])
def test_a_stop_while_a_worker_builds(begin, lenet, tmp_path, to):
    """A build that the stop broke off, or whose process the scheduler told to end as well, is no failed build."""
    before = IN_A_WORKER.format(begun=tmp_path / "begun", go=tmp_path / "go")
    data = ("--calibration", lenet / "calibration.npz", "--input", lenet / "digits.npz", "-o", tmp_path / "out")
    (tmp_path / "begun").mkdir()
    process = begin("run", lenet / "lenet.onnx", *data, "--strategy", "exhaustive", before=before)
    ended(process, signal.SIGTERM, to)
    assert {trial["outcome"] for trial in journaled(tmp_path)} == {"measured"}


LAST_STAGE = """
import waiting
from trt_bisect.commands.run import run

def measure_front(*arguments):
    waiting.wait()

run.measure_front = measure_front
"""


ASKED = {"front": True, "calibrator": "minmax", "effort": "quick", "explain": "none"}


@pytest.fixture(scope="module")
def whole(lenet, tmp_path_factory):
    """A run with its front that nobody stopped, and its folder."""
    folder = tmp_path_factory.mktemp("whole")
    asked = (lenet / "lenet_planted.onnx", lenet / "calibration.npz")
    return trt_bisect.run(*asked, output=folder, **ASKED, history="none"), folder


def facts(report):
    """All of a report but what it took, and the folder that its commands name."""
    apart = ("seconds", "started", "builds", "inferences", "peak_bytes", "command", "next")
    return {name: value for name, value in record_of(report).items() if name not in apart}


@pytest.mark.parametrize("stop", [signal.SIGTERM, *edition((), (signal.SIGINT,))])
def test_a_run_stopped_while_its_front_is_measured_has_its_recipe(begin, stop, lenet, whole, tmp_path):
    whole, whole_folder = whole
    asked = (lenet / "lenet_planted.onnx", lenet / "calibration.npz")
    command = ("run", asked[0], "--calibration", asked[1], "-o", tmp_path / "out", "--front")
    command += ("--calibrator", "minmax", "--effort", "quick", "--explain", "none")
    before = f"sys.path.insert(0, {str(tmp_path)!r})\n{LAST_STAGE}"
    ended(begin(*command, before=before), stop)
    kept = trt_bisect.Report.load(tmp_path / "out")
    assert (kept.state, kept.stopped, kept.verdict) == ("interrupted", "interrupted", whole.verdict)
    assert FRONT_MISSING in kept.answer.not_done
    assert (kept.culprits, kept.recipe, kept.front) == (whole.culprits, whole.recipe, ())
    assert replace(kept.answer, not_done=()) == whole.answer
    assert not (tmp_path / "out/front.csv").exists()
    recipe = sorted(path.name for path in (whole_folder / "recipe").iterdir())
    assert recipe == sorted(path.name for path in (tmp_path / "out/recipe").iterdir())
    for name in set(recipe) - {"annotated.onnx"}:  # has the curve, which comes after the front
        assert (tmp_path / "out/recipe" / name).read_bytes() == (whole_folder / "recipe" / name).read_bytes()
    again = trt_bisect.run(*asked, output=tmp_path / "out", **ASKED)
    assert facts(again) == facts(whole)
    assert not again.stopped
    assert (tmp_path / "out/front.csv").read_bytes() == (whole_folder / "front.csv").read_bytes()
    history = trt_bisect.History(tmp_path / "trt-bisect-history.jsonl")
    assert list(history.reports()["state"]) == ["finished"]
