"""Whole runs on a real Ray cluster: the same folder and report as here, also when a node dies in mid-run."""

import os
import re
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

import trt_bisect
from tests.support.ray_nodes import MEETING
from tests.support.waiting import LIMIT, wait_until
from tests.support.worker_runs import journaled, without_times
from trt_bisect.commands.regress_remote import WantedRun, run_elsewhere
from trt_bisect.errors import BadInput
from trt_bisect.history.store import HISTORY, History
from trt_bisect.report.explanation import EXPLANATION
from trt_bisect.report.model import SO_FAR, read_report
from trt_bisect.runs.journal import JOURNAL
from trt_bisect.runs.progress_file import PROGRESS

WAITING = "tests.support.fake_metrics:cosine_that_waits"


def done(cluster, jobs):
    return {job.folder: found for job, found in run_elsewhere(cluster, jobs)}


def texts(folder):
    """Every file of a run folder that holds no time."""
    found = {}
    for file in folder.rglob("*"):
        name = str(file.relative_to(folder))
        if file.is_file() and name not in ("report.json", "report.html", JOURNAL, "network.qdq.onnx"):
            found[name] = file.read_bytes()
    return found


def test_two_networks_side_by_side_and_their_folders_are_as_here(lenet, tmp_path, monkeypatch, ray_nodes):
    """One folder is named from the folder that one is in."""
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "runs"
    data = lenet / "calibration.npz"
    jobs = [
        WantedRun(Path("runs/planted"), {"model": lenet / "lenet_planted.onnx", "calibration": str(data)}),
        WantedRun(root / "sound", {"model": lenet / "lenet.onnx", "calibration": data, "strategy": "bisect"}),
    ]
    found = done(ray_nodes.address, jobs)
    there = {job.folder: texts(job.folder) for job in jobs}
    with History(root / HISTORY) as history:
        assert sorted(Path(model).name for model in history.reports()["model"]) == ["lenet.onnx", "lenet_planted.onnx"]
    shutil.rmtree(root)
    for job in jobs:
        here = trt_bisect.run(**job.keywords, output=job.folder)
        assert without_times(found[job.folder]) == without_times(here)
        assert found[job.folder].advice == here.advice
        assert there[job.folder] == texts(job.folder)
    assert found[Path("runs/planted")].culprits == ("ip2",)


def test_a_calibration_cache_and_inputs_travel_by_their_names(lenet, folder_here, tmp_path, ray_nodes):
    data = lenet / "calibration.npz"
    cache = tmp_path / "deployed.cache"
    shutil.copy(folder_here / "recipe" / "calibration.cache", cache)
    asked = {"model": lenet / "lenet_planted.onnx", "calibration": cache, "inputs": data, "samples": 2}
    found = done(ray_nodes.address, [WantedRun(tmp_path / "there", asked)])[tmp_path / "there"]
    here = trt_bisect.run(**asked, output=tmp_path / "here")
    assert without_times(found) == without_times(here)
    assert str(cache) in (tmp_path / "there" / EXPLANATION).read_text()


def test_errors_are_those_of_a_run_here(lenet, tmp_path, ray_nodes):
    (tmp_path / "broken.onnx").write_bytes(b"no network")
    data = lenet / "calibration.npz"
    jobs = [
        WantedRun(tmp_path / "broken", {"model": tmp_path / "broken.onnx", "calibration": data}),
        WantedRun(tmp_path / "no data", {"model": lenet / "lenet.onnx"}),
        WantedRun(tmp_path / "board", {"model": lenet / "lenet.onnx", "calibration": data, "tensorboard": tmp_path}),
        WantedRun(
            tmp_path / "lambda", {"model": lenet / "lenet.onnx", "calibration": data, "metric": lambda r, o: 1.0}
        ),
    ]
    found = done(ray_nodes.address, jobs)
    said = ["is not an ONNX network", "There are no scales", "takes no 'tensorboard'", "cannot be sent"]
    for job, text in zip(jobs, said, strict=True):
        assert isinstance(found[job.folder], BadInput)
        assert text in str(found[job.folder])


def test_a_run_whose_node_dies_goes_on_elsewhere_from_its_journal(lenet, tmp_path, ray_nodes, request):
    """The node is killed in the sixth trial for sure; the trials before it are in the journal here by then."""
    meeting = Path(os.environ[MEETING])
    meeting.mkdir()
    request.addfinalizer(lambda: shutil.rmtree(meeting))
    data = np.load(lenet / "calibration.npz")
    few = {name: data[name][:4] for name in data.files}
    one = {name: data[name][:1] for name in data.files}
    asked = {"model": lenet / "lenet_planted.onnx", "calibration": few, "metric": WAITING, "inputs": one}
    asked |= {"strategy": "exhaustive", "threshold": 0.99, "explain": "none"}
    folder, found = tmp_path / "run", {}
    cluster = ray_nodes.address
    run = threading.Thread(target=lambda: found.update(done(cluster, [WantedRun(folder, asked)])))
    run.start()
    wait_until(lambda: list(meeting.iterdir()) and len(journaled(folder)) >= 3)
    wait_until((folder / PROGRESS).exists)
    wait_until(lambda: (report := read_report(folder / SO_FAR)) is not None and report.plans >= 3)
    with pytest.raises(BadInput, match=re.escape(f"'{folder}'")):
        trt_bisect.run(**asked, output=folder)
    before = journaled(folder)
    ray_nodes.kill_that_of(int(next(meeting.iterdir()).name))
    (meeting / "go on").touch()
    run.join(LIMIT)
    here = trt_bisect.run(**asked, output=tmp_path / "here")
    assert without_times(found[folder]) == without_times(here)
    assert found[folder].culprits == ("ip2",)
    after = journaled(folder)
    assert after[: len(before)] == before
    assert after == journaled(tmp_path / "here")
    assert len(set(after)) == here.plans
    assert not (folder / PROGRESS).exists()
    assert not (folder / SO_FAR).exists()


def test_whole_runs_need_a_cluster(tmp_path):
    with pytest.raises(BadInput, match="'local:2'"):
        done("local:2", [])
