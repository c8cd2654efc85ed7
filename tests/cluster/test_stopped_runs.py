"""Runs on a real Ray cluster that are stopped in the middle: the user interrupts, or its head dies.

This file is the last of its folder: the cluster of the other tests ends with its head.
"""

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import trt_bisect
from tests.support.fake_builders import Waiting
from tests.support.waiting import LIMIT, is_running, wait_until
from tests.support.worker_runs import journaled, without_times
from trt_bisect.cluster.address import GOES_ON
from trt_bisect.preparation import experiment as setup

ROOT = Path(__file__).parents[2]
RUN = """
import sys
sys.path.insert(0, {root!r})
sys.argv = ["trt-bisect", "run", {model!r}, "--calibration", {data!r}, "--strategy", "exhaustive", "--explain", "none",
            "--output", {folder!r}, "--cluster", {address!r}]
from tests.support.fake_builders import Waiting
from trt_bisect.preparation import experiment as setup
setup.make_builder = Waiting(setup.make_builder, {begun!r}, {go_on!r})
from trt_bisect.cli import main
main()
"""
"""A run on LeNet in which two plans, after the first four, take until a file is there."""


def start_waiting_run(lenet, tmp_path, address):
    places = {name: str(tmp_path / name) for name in ("folder", "begun", "go_on")}
    Path(places["begun"]).mkdir()
    samples = {"model": str(lenet / "lenet_planted.onnx"), "data": str(lenet / "calibration.npz")}
    code = RUN.format(root=str(ROOT), address=address, **samples, **places)
    return subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)


def of_curve(folder):
    """The plans of the curve in a journal, without those of the answer."""
    return [plan for plan in journaled(folder) if not plan.startswith("inputs")]


def assert_it_goes_on(lenet, folder, here):
    """The journal is sound, and the same command goes on with it, here, to the report of a whole run."""
    before = journaled(folder)
    assert len(of_curve(folder)) == 4
    arguments = (lenet / "lenet_planted.onnx", lenet / "calibration.npz")
    resumed = trt_bisect.run(*arguments, strategy="exhaustive", explain="none", output=folder)
    assert without_times(resumed) == without_times(here)
    assert journaled(folder)[: len(before)] == before


@pytest.mark.subprocess
def test_ctrl_c_leaves_a_sound_journal_and_no_task(lenet, tmp_path, ray_nodes, here):
    run = start_waiting_run(lenet, tmp_path, ray_nodes.address)
    begun, folder = tmp_path / "begun", tmp_path / "folder"
    wait_until(lambda: len(list(begun.iterdir())) == 2 and len(of_curve(folder)) == 4)
    run.send_signal(signal.SIGINT)
    _, said = run.communicate(timeout=LIMIT)
    assert run.returncode == 130
    assert "Traceback" not in said
    wait_until(lambda: not any(is_running(file.name) for file in begun.iterdir()))
    assert_it_goes_on(lenet, folder, here)


def test_a_cluster_whose_head_dies_costs_what_was_under_way(lenet, tmp_path, ray_nodes, command, monkeypatch, here):
    """The same command goes on here, with what the journal has, to the report of a run here."""
    begun, folder = tmp_path / "begun", tmp_path / "folder"
    begun.mkdir()
    waiting = Waiting(setup.make_builder, str(begun), str(tmp_path / "go_on"))
    monkeypatch.setattr(setup, "make_builder", waiting)

    def kill_the_head():
        try:
            wait_until(lambda: len(list(begun.iterdir())) == 2 and len(of_curve(folder)) == 4)
        finally:
            ray_nodes.cluster.head_node.kill_all_processes(check_alive=False, allow_graceful=False)

    arguments = ("--strategy", "exhaustive", "--explain", "none", "--output", folder, "--cluster", ray_nodes.address)
    with ThreadPoolExecutor() as beside:
        killed = beside.submit(kill_the_head)
        model = lenet / "lenet_planted.onnx"
        code, _, said = command("run", model, "--calibration", lenet / "calibration.npz", *arguments)
    killed.result()
    assert code == 2
    assert "Traceback" not in said
    problem, remedy = said.splitlines()[-2:]
    assert problem.startswith("trt-bisect: The cluster ")
    assert remedy == GOES_ON
    monkeypatch.undo()
    assert_it_goes_on(lenet, folder, here)
