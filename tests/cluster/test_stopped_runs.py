"""Runs on a real Ray cluster that are stopped in the middle: the user interrupts, or its head dies.

This file is the last of its folder: the cluster of the other tests ends with its head.
"""

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

import trt_bisect
from tests.support.fake_builders import Waiting
from tests.support.waiting import is_running, wait_until
from tests.support.worker_runs import journaled, without_times
from trt_bisect.cluster.address import GOES_ON
from trt_bisect.preparation import experiment as setup


def of_curve(folder):
    """The plans of the curve in a journal, without those of the answer."""
    return [plan for plan in journaled(folder) if not plan.startswith("inputs")]


@pytest.fixture
def stopped(lenet, tmp_path, ray_nodes, command, monkeypatch):
    """Calls a function while a run on LeNet is at a plan after the first four; exit code and stderr."""
    begun = tmp_path / "begun"
    begun.mkdir()
    folder = tmp_path / "folder"

    def run(stop):
        def stop_it():
            try:
                wait_until(lambda: list(begun.iterdir()) and len(of_curve(folder)) == 4)
            finally:
                stop()

        with monkeypatch.context() as patched, ThreadPoolExecutor() as beside:
            waiting = Waiting(setup.make_builder, str(begun), str(tmp_path / "go_on"))
            patched.setattr(setup, "make_builder", waiting)
            stopping = beside.submit(stop_it)
            arguments = ("--strategy", "exhaustive", "--explain", "none", "--output", folder)
            arguments += ("--calibration", lenet / "calibration.npz", "--cluster", ray_nodes.address)
            code, _, said = command("run", lenet / "lenet_planted.onnx", *arguments)
        stopping.result()
        assert "Traceback" not in said
        assert len(of_curve(folder)) == 4
        return code, said

    return run


def test_ctrl_c_leaves_a_sound_journal_and_no_task(tmp_path, stopped):
    code, _ = stopped(lambda: os.kill(os.getpid(), signal.SIGINT))
    assert code == 130
    wait_until(lambda: not any(is_running(file.name) for file in (tmp_path / "begun").iterdir()))


def test_a_cluster_whose_head_dies_costs_what_was_under_way(lenet, tmp_path, ray_nodes, stopped, here):
    """The same command goes on here, with what the journal has, to the report of a run here."""
    head = ray_nodes.cluster.head_node
    code, said = stopped(lambda: head.kill_all_processes(check_alive=False, allow_graceful=False))
    assert code == 2
    problem, remedy = said.splitlines()[-2:]
    assert problem.startswith("trt-bisect: The cluster ")
    assert remedy == GOES_ON
    folder = tmp_path / "folder"
    before = journaled(folder)
    arguments = (lenet / "lenet_planted.onnx", lenet / "calibration.npz")
    resumed = trt_bisect.run(*arguments, strategy="exhaustive", explain="none", output=folder)
    assert without_times(resumed) == without_times(here)
    assert journaled(folder)[: len(before)] == before
