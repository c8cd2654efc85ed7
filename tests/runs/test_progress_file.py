"""The progress that a run writes into its folder, and whether the run lives."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading

import pytest

from tests.support.waiting import wait_until
from trt_bisect.runs import progress_file as beat
from trt_bisect.runs.progress_file import PROGRESS, Heartbeat, is_running
from trt_bisect.support.progress import Silent


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(beat, "HEARTBEAT", 0.01)


def read(folder):
    return json.loads((folder / PROGRESS).read_bytes())


def test_it_writes_what_is_shown_and_takes_it_away_at_the_end(tmp_path):
    class Told(Silent):
        def __init__(self):
            self.heard = []

        def stage(self, title, total):
            self.heard.append((title, total))

        def step(self, what, size=1):
            self.heard.append((what, size))

        def left(self, seconds):
            self.heard.append(seconds)

    shown = Told()
    written = Heartbeat(tmp_path, shown)
    assert read(tmp_path)["pid"] == os.getpid()
    assert read(tmp_path)["stage"] == ""
    assert read(tmp_path)["left"] is None
    written.stage("Measuring 5 plans", 5)
    for what, size in (("conv1", 2), ("conv2", 2), ("conv3", 3)):
        written.step(what, size)
    written.left(7200.0)
    wait_until(lambda: read(tmp_path)["left"] is not None)
    found = read(tmp_path)
    assert (found["stage"], found["done"], found["total"]) == ("Measuring 5 plans", 4, 8)
    assert found["what"] == "conv3"
    assert 7000 < found["left"] <= 7200
    assert shown.heard == [("Measuring 5 plans", 5), ("conv1", 2), ("conv2", 2), ("conv3", 3), 7200.0]
    assert is_running(found, 0.0)
    written.close()
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_touched_while_one_step_lasts(tmp_path):
    written = Heartbeat(tmp_path, Silent())
    first = (tmp_path / PROGRESS).stat().st_mtime_ns
    wait_until(lambda: (tmp_path / PROGRESS).stat().st_mtime_ns > first)
    assert is_running(read(tmp_path), 0.0)
    written.close()


def test_a_folder_that_goes_away_does_not_break_the_run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    written = Heartbeat(folder, Silent())
    shutil.rmtree(folder)
    written.stage("Calibrating", None)
    written.step("sample 0")
    assert any(thread.name == "trt-bisect progress" for thread in threading.enumerate())
    written.close()
    assert not folder.exists()


def test_a_dead_process_runs_nothing():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    record = {"pid": process.pid, "born": beat._born(process.pid), "host": os.uname().nodename}
    assert is_running(record, 1e9)
    process.send_signal(signal.SIGKILL)
    wait_until(lambda: not is_running(record, 0.0))  # nobody has waited for it yet: it is a zombie
    process.wait()
    assert not is_running(record, 0.0)


def test_another_process_with_the_same_number_is_not_the_run():
    record = {"pid": os.getpid(), "born": beat._born(os.getpid()), "host": os.uname().nodename}
    assert is_running(record, 0.0)
    assert not is_running({**record, "born": record["born"] - 1}, 0.0)
    assert not is_running({**record, "pid": "1"}, 0.0)
    assert not is_running({**record, "pid": -1}, 0.0)


def test_a_run_on_another_machine_lives_as_long_as_it_writes():
    record = {"pid": os.getpid(), "born": 1, "host": "elsewhere"}
    assert is_running(record, 3.0)
    assert not is_running(record, 300.0)
