"""Runs on a real Ray cluster that are stopped in the middle: its head dies, or the user interrupts."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import trt_bisect
from tests.support.waiting import LIMIT, is_running, wait_until
from tests.support.worker_runs import journaled, without_times
from trt_bisect.cluster.settings import GOES_ON

ROOT = Path(__file__).parents[2]
RUN = """
import sys
sys.path.insert(0, {root!r})
sys.argv = ["trt-bisect", "run", {model!r}, "--calibration", {data!r}, "--strategy", "exhaustive", "--explain", "none",
            "--output", {folder!r}, "--cluster", {address!r}]
from tests.support.fake_builders import Waiting
import trt_bisect.jobs.preparation
trt_bisect.jobs.preparation.make_builder = Waiting(trt_bisect.jobs.preparation.make_builder, {begun!r}, {go_on!r})
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


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.subprocess
def test_a_cluster_whose_head_dies_costs_what_was_under_way(lenet, tmp_path, monkeypatch):
    """A cluster of its own. The same command goes on here, with what the journal has, to the report of a run here."""
    from tests.support.ray_nodes import ray_cluster

    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "5")
    with ray_cluster(processors=(2,)) as nodes:
        run = start_waiting_run(lenet, tmp_path, nodes.address)
        begun, folder = tmp_path / "begun", tmp_path / "folder"
        wait_until(lambda: len(list(begun.iterdir())) == 2 and len(of_curve(folder)) == 4)
        nodes.cluster.head_node.kill_all_processes(check_alive=False, allow_graceful=False)
        _, said = run.communicate(timeout=LIMIT)
    assert run.returncode == 2
    assert "Traceback" not in said
    problem, remedy = said.splitlines()[-2:]
    assert problem.startswith("trt-bisect: The cluster ")
    assert remedy == GOES_ON
    before = journaled(folder)
    assert len(of_curve(folder)) == 4
    arguments = (lenet / "lenet_planted.onnx", lenet / "calibration.npz")
    resumed = trt_bisect.run(*arguments, strategy="exhaustive", explain="none", output=folder)
    assert without_times(resumed) == without_times(trt_bisect.run(*arguments, strategy="exhaustive", explain="none"))
    assert journaled(folder)[: len(before)] == before


@pytest.mark.subprocess
def test_ctrl_c_leaves_a_sound_journal_and_no_task(lenet, tmp_path, ray_nodes):
    run = start_waiting_run(lenet, tmp_path, ray_nodes.address)
    begun, folder = tmp_path / "begun", tmp_path / "folder"
    wait_until(lambda: len(list(begun.iterdir())) == 2 and len(of_curve(folder)) == 4)
    run.send_signal(signal.SIGINT)
    _, said = run.communicate(timeout=LIMIT)
    assert run.returncode == 130
    assert "Traceback" not in said
    before = journaled(folder)
    assert len(of_curve(folder)) == 4
    wait_until(lambda: not any(is_running(file.name) for file in begun.iterdir()))
    arguments = (lenet / "lenet_planted.onnx", lenet / "calibration.npz")
    resumed = trt_bisect.run(*arguments, strategy="exhaustive", explain="none", output=folder)
    assert without_times(resumed) == without_times(trt_bisect.run(*arguments, strategy="exhaustive", explain="none"))
    assert journaled(folder)[: len(before)] == before
