"""Plans as tasks of a real Ray cluster, whose workers and nodes are killed while they are at work."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

import trt_bisect
from tests.support import fake_builders
from tests.support.editions import edition
from tests.support.waiting import is_running, wait_until
from tests.support.worker_runs import without_times
from trt_bisect.builder import isolation
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.tensorrt_build import timings_of
from trt_bisect.cluster import ray_cluster
from trt_bisect.cluster.ray_cluster import TRIES, RayCluster, RayProcess
from trt_bisect.errors import BadInput, EngineUnavailable
from trt_bisect.evaluator.trial import LOST
from trt_bisect.evaluator.workers import TrialSpec
from trt_bisect.precision import int8_set
from trt_bisect.report.model import Report

FEEDS = {"x": np.arange(3, dtype=np.float32)}


def plan(number: int, layers: int = 16):
    return int8_set(layers, {number})


def subject(make, engine="onnxruntime", **options):
    """Engines of fakes; the name of the engine says what a task is given."""
    return TrialSpec(engine, {"fake": "1"}, make, BuildOptions(**{"timeout": 60.0, **options}), [FEEDS])


def faulty(timing_cache=None, **faults):
    """Engines of fakes, where the build of ``plan_<number>`` does something else."""
    by_plan = {plan(int(name.removeprefix("plan_"))): {"build": fault} for name, fault in faults.items()}
    return subject(partial(fake_builders.made_with_timings, by_plan), timing_cache=timing_cache)


@pytest.fixture
def cluster(ray_nodes):
    """A cluster that was joined; what it said is in ``said``."""
    said = []
    with RayCluster(ray_nodes.address, said.append) as joined:
        joined.said = said
        yield joined


def tried(pool, *numbers):
    """Returns the attempts at plans, by number."""
    for number in numbers:
        pool.begin(plan(number))
    found = ended(pool, len(numbers))
    return {number: found[plan(number)] for number in numbers}


def ended(pool, count):
    """Returns the next attempts that end, by plan."""
    return {attempted.plan: attempted for attempted in (pool.ended() for _ in range(count))}


def both_wait(tmp_path):
    """Returns the functions of two plans that wait for each other, and what lets them go on."""
    begun, go_on = tmp_path / "begun", tmp_path / "go on"
    begun.mkdir()
    return partial(fake_builders.begun_and_wait, begun, go_on), begun, go_on


def test_plans_that_end_in_every_way(cluster, tmp_path, monkeypatch):
    """The first two plans wait for each other; the inputs and the network are sent once. Then another pool has a turn.

    Each build adds a word to the timing cache that it is given.
    """
    sent = []
    ask = cluster._ask
    monkeypatch.setattr(cluster, "_ask", lambda *request: (sent.append(request), ask(*request))[1])
    wait, begun, go_on = both_wait(tmp_path)
    cache = tmp_path / "timing.cache"
    cache.write_bytes(b"known")
    ways = {"plan_6": fake_builders.segfault, "plan_7": fake_builders.bad_input, "plan_8": fake_builders.bug}
    pool = cluster.pool(faulty(plan_0=wait, plan_1=wait, **ways, timing_cache=cache), None)
    assert pool.size == 2
    for number in range(6):
        pool.begin(plan(number))
    wait_until(lambda: len(list(begun.iterdir())) == 2)
    go_on.touch()
    found = ended(pool, 6)
    assert set(found) == {plan(number) for number in range(6)}
    for answers in found.values():
        assert not answers.trial.failed
        np.testing.assert_array_equal(answers.outputs[0]["y"], [0, 2, 4])
        assert answers.trial.ran == {0: "int8"}
        assert answers.trial.message == fake_builders.A_WARNING
    assert len({int(answers.outputs[0]["pid"]) for answers in found.values()}) == 2
    assert sum(request == "begin" and bool(content) for request, *_, content in sent) == 1
    parts = [file for file in tmp_path.iterdir() if file.name.startswith("timing-")]
    texts = [file.read_text() for file in parts]
    assert cache.read_text() == "known"
    assert all(text.startswith("known built") for text in texts)
    assert sum(text.count("built") for text in texts) == 6
    assert {timings_of(cache, file.stem.removeprefix("timing-")) for file in parts} == set(parts)

    crashed = tried(pool, 6)[6].trial
    assert crashed.outcome == "build failed"
    assert "SIGSEGV" in crashed.message
    with pytest.raises(BadInput, match="dynamic") as error:
        tried(pool, 7)
    assert error.value.remedy == "Give shapes."
    with pytest.raises(RuntimeError, match="KeyError: 'a bug'"):
        tried(pool, 8)

    assert tried(cluster.pool(faulty(plan_0=fake_builders.refuse), None), 0)[0].trial.outcome == "build failed"
    assert not tried(pool, 0)[0].trial.failed


def test_an_abandoned_plan_ends_and_one_that_always_kills_its_worker_is_lost(cluster, tmp_path, ray_nodes):
    stuck, begun, _ = both_wait(tmp_path)
    tries = tmp_path / "tries"
    pool = cluster.pool(faulty(plan_0=stuck, plan_1=partial(fake_builders.count_and_kill, tries)), None)
    pool.begin(plan(0))
    wait_until(lambda: list(begun.iterdir()))
    pool.abandon()
    assert tried(pool, 1)[1].trial.outcome == LOST
    assert len(tries.read_text()) == TRIES
    wait_until(lambda: not any(is_running(file.name) for file in begun.iterdir()))
    assert not tried(pool, 2)[2].trial.failed  # begins after all deaths, and removes what they left
    assert list(ray_nodes.scratch.glob("trt-bisect*")) == []


def test_a_node_with_other_figures_is_refused_and_where_every_node_is_it_says_so(cluster):
    """One of the two nodes has ``OTHER_FIGURES``. Then the engine does not start on the other."""
    pool = cluster.pool(subject(fake_builders.made_by_node), None)
    assert pool.size == 2
    wait_until(lambda: not any(answers.trial.failed for answers in tried(pool, 0, 1).values()) and pool.size == 1)
    assert len([text for text in cluster.said if "fake 2 instead of 1" in text]) == 1
    made = subject(partial(fake_builders.made, {"start": fake_builders.unavailable}))
    with pytest.raises(EngineUnavailable, match=r"No node of .*fake 2 instead of 1"):
        tried(cluster.pool(made, None), 0)
    assert fake_builders.OLD_DRIVER in cluster.said[-1]


def test_a_node_that_dies_in_the_middle_costs_its_trial_only(cluster, ray_nodes, tmp_path):
    """Both nodes are in the middle of a trial for sure when one is killed. The tests from here on have the other."""
    wait, begun, go_on = both_wait(tmp_path)
    pool = cluster.pool(faulty(plan_0=wait, plan_1=wait), None)
    pool.begin(plan(0))
    pool.begin(plan(1))
    wait_until(lambda: len(list(begun.iterdir())) == 2)
    ray_nodes.kill_that_of(int(next(begun.iterdir()).name))
    go_on.touch()
    assert not any(pool.ended().trial.failed for _ in range(2))
    wait_until(lambda: tried(pool, 6) and pool.size == 1)
    tried(pool, 7)
    assert len([text for text in cluster.said if "1 worker on 1 node" in text]) == 1


def test_no_place_for_what_a_task_needs(cluster, monkeypatch):
    """No node has a GPU."""
    monkeypatch.setattr(ray_cluster, "_FULL_SECONDS", 0.0)
    monkeypatch.setattr(ray_cluster, "_WAIT_SECONDS", 0.1)
    pool = cluster.pool(subject(partial(fake_builders.made, {}), engine="tensorrt"), None)
    assert pool.size == 0
    with pytest.raises(EngineUnavailable) as error:
        tried(pool, 0)
    assert "GPU" in error.value.remedy


@pytest.mark.parametrize("strategy", edition(["exhaustive"], ["exhaustive", "bisect"]))
def test_a_run_on_the_cluster_reports_the_same(lenet, tmp_path, ray_nodes, folder_here, strategy):
    """The exhaustive search goes through the client server; the bisection, besides, explains what it found."""
    asked = {"model": lenet / "lenet_planted.onnx", "calibration": lenet / "calibration.npz", "strategy": strategy}
    asked["trt_version"] = "8.6.1"
    here, address = folder_here, ray_nodes.client_address
    if strategy == "exhaustive":
        asked["explain"] = "none"
    else:
        here, address = tmp_path / "run", ray_nodes.address
        trt_bisect.run(**asked, output=here)
    there = tmp_path / "b" / here.name
    elsewhere = trt_bisect.run(**asked, output=there, cluster=address)
    assert without_times(elsewhere) == without_times(Report.load(here))
    for name in ("recipe/network.qdq.onnx", "recipe/trtexec.flags", "layers.csv"):
        assert (there / name).read_bytes() == (here / name).read_bytes()
    if strategy == "exhaustive":  # a bisection kills the workers of plans that it asked for ahead and does not need
        assert list(ray_nodes.scratch.glob("trt-bisect*")) == []


@pytest.mark.ray
@pytest.mark.parametrize("address", ["127.0.0.1:{}", "ray://127.0.0.1:{}"])
def test_where_nobody_listens(command, lenet, tmp_path, address):
    from tests.support.ray_nodes import free_port

    there = address.format(free_port())
    data = lenet / "calibration.npz"
    code, _, said = command("run", lenet / "lenet.onnx", "--calibration", data, "--cluster", there, "-o", tmp_path)
    assert code == 2
    assert f"'{there}'" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("address", "command"),
    [("ray://h:10001", "'GRPC_ENABLE_FORK_SUPPORT=0 ray start --head'"), ("h:6379", "'ray start --head'")],
)
def test_a_cluster_that_cannot_be_joined_names_the_command_for_its_head(monkeypatch, address, command):
    def refuse(**_):
        raise ConnectionAbortedError("Initialization failure from server")

    def ask(request, _):
        raise isolation._answer(RayProcess(), request)

    monkeypatch.setattr("importlib.util.find_spec", str)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=refuse, remote=None))
    monkeypatch.setattr(ray_cluster, "_reach", str)
    monkeypatch.setattr(ray_cluster, "Worker", lambda *_: SimpleNamespace(ask=ask))
    with pytest.raises(BadInput, match="Initialization failure from server\n") as error:
        RayCluster(address, print)
    assert command in error.value.remedy


def test_without_ray_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BadInput, match="needs Ray") as error:
        RayCluster("auto", print)
    assert "'ray[client]>=2.40'" in error.value.remedy


def test_ray_is_not_imported_without_being_asked_for():
    code = "import sys, trt_bisect.commands.run.run, trt_bisect.cluster.ray_cluster; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
