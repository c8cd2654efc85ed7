"""Plans as tasks of a real Ray cluster, whose workers and nodes are killed while they are at work."""

from __future__ import annotations

import pickle
import subprocess
import sys
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

import trt_bisect
from tests.support import fake_builders, networks
from tests.support.waiting import is_running, wait_until
from tests.support.worker_runs import without_times
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
from trt_bisect.builder.tensorrt_build import timings_of
from trt_bisect.cluster.messages import Node
from trt_bisect.cluster.ray_process import RayProcess, _node
from trt_bisect.cluster.ray_workers import RayCluster
from trt_bisect.cluster.settings import ClusterSettings
from trt_bisect.cluster.tasks import Task, Tasks
from trt_bisect.errors import BadInput, EngineUnavailable
from trt_bisect.evaluator.attempt import Answers, FailedAttempt
from trt_bisect.evaluator.trial import LOST
from trt_bisect.evaluator.workers import TrialSpec
from trt_bisect.model.network import load_network
from trt_bisect.precision import int8_set
from trt_bisect.report.older import report_of

FEEDS = {"x": np.arange(3, dtype=np.float32)}


def plan(number: int, layers: int = 16):
    return int8_set(layers, {number})


def subject(make, engine="onnxruntime", timeout=60.0, facts=None):
    """Engines of fakes; the name of the engine says what a task is given."""
    return TrialSpec(engine, facts or {"fake": "1"}, make, BuildOptions(timeout=timeout), [FEEDS])


def faulty(**faults):
    """A maker of builders whose build of ``plan_<number>`` does something else."""
    return partial(
        fake_builders.made, {plan(int(name.removeprefix("plan_"))): {"build": fault} for name, fault in faults.items()}
    )


@pytest.fixture
def cluster(ray_nodes):
    """Opens a connection; what it said is in ``said``."""
    opened = []

    def open_cluster(address=ray_nodes.address, cpus=1, retries=2):
        said = []
        made = RayCluster(ClusterSettings(address, cpus, retries), said.append)
        made.said = said
        opened.append(made)
        return made

    yield open_cluster
    for made in opened:
        made.__exit__(None, None, None)


def all_ended(pool, count):
    return dict(pool.ended() for _ in range(count))


def test_every_plan_is_answered_and_both_nodes_work(cluster, tmp_path):
    """The first two plans wait for each other."""
    begun, go_on = tmp_path / "begun", tmp_path / "go on"
    begun.mkdir()
    wait = partial(fake_builders.begun_and_wait, begun, go_on)
    pool = cluster().pool(subject(faulty(plan_0=wait, plan_1=wait)), None)
    assert pool.size == 2
    for number in range(8):
        pool.begin(plan(number))
    wait_until(lambda: len(list(begun.iterdir())) == 2)
    go_on.touch()
    found = all_ended(pool, 8)
    assert set(found) == {plan(number) for number in range(8)}
    for answers in found.values():
        assert isinstance(answers, Answers)
        np.testing.assert_array_equal(answers.outputs[0]["y"], [0, 2, 4])
        assert answers.ran == {0: "int8"}
        assert answers.messages == (fake_builders.A_WARNING,)
    assert len({int(answers.outputs[0]["pid"]) for answers in found.values()}) == 2


def test_the_subject_travels_once(cluster):
    """4 MB of inputs: in the object store, and in no task."""
    open_cluster = cluster()
    sent = []
    ask = open_cluster._connection.ask
    open_cluster._connection.ask = lambda *request: (
        sent.append((request[0], len(pickle.dumps(request)))),
        ask(*request),
    )[1]
    big = TrialSpec("onnxruntime", {"fake": "1"}, faulty(), BuildOptions(), [{"x": np.ones(1 << 20, np.float32)}])
    pool = open_cluster.pool(big, None)
    for number in range(6):
        pool.begin(plan(number))
    assert len(all_ended(pool, 6)) == 6
    assert [size > 4 << 20 for name, size in sent if name == "put"] == [True]
    assert all(size < 2000 for name, size in sent if name != "put")


def test_a_network_travels_without_losing_a_bit(tmp_path):
    network = load_network(networks.save(networks.residual(), tmp_path))
    again = pickle.loads(pickle.dumps(network, protocol=5))
    assert again.digest() == network.digest()


def test_a_worker_that_is_killed_costs_its_try_and_leaves_no_files(cluster, tmp_path, ray_nodes):
    """The first try of a plan kills its worker; the second one finds a file and goes on."""
    pool = (opened := cluster()).pool(
        subject(faulty(plan_3=partial(fake_builders.kill_once, tmp_path / "killed"))), None
    )
    for number in range(6):
        pool.begin(plan(number))
    found = all_ended(pool, 6)
    assert all(isinstance(answers, Answers) for answers in found.values())
    (lost,) = [text for text in opened.said if "lost" in text]
    assert lost.startswith("Try 1 of 3 ")
    assert list(ray_nodes.scratch.glob("trt-bisect*")) == []


def test_a_plan_whose_worker_is_lost_every_time_is_lost(cluster):
    pool = (opened := cluster(retries=1)).pool(subject(faulty(plan_1=fake_builders.kill_the_ray_worker)), None)
    for number in range(4):
        pool.begin(plan(number))
    found = all_ended(pool, 4)
    lost = found.pop(plan(1))
    assert isinstance(lost, FailedAttempt)
    assert lost.outcome == LOST
    assert "2 times" in lost.message
    assert all(isinstance(answers, Answers) for answers in found.values())
    assert len([text for text in opened.said if "was lost" in text]) == 2


def test_a_node_that_dies_in_the_middle_costs_its_trial_only(cluster, ray_nodes, tmp_path):
    """Both nodes are in the middle of a trial for sure when one is killed."""
    begun, go_on = tmp_path / "begun", tmp_path / "go on"
    begun.mkdir()
    opened = cluster()
    wait = partial(fake_builders.begun_and_wait, begun, go_on)
    pool = opened.pool(subject(faulty(plan_0=wait, plan_1=wait)), None)
    assert pool.size == 2
    for number in range(5):
        pool.begin(plan(number))
    wait_until(lambda: len(list(begun.iterdir())) == 2)
    ray_nodes.kill_that_of(int(next(begun.iterdir()).name))
    go_on.touch()
    found = all_ended(pool, 5)
    assert all(isinstance(answers, Answers) for answers in found.values())
    assert len([text for text in opened.said if text.startswith("Try 1 of 3 ")]) == 1

    def is_missed():
        pool.begin(plan(6))
        pool.ended()
        return any("is gone: 1 worker on 1 node left" in text for text in opened.said)

    wait_until(is_missed)
    assert pool.size == 1


def test_a_node_with_other_figures_is_refused_and_its_plans_go_elsewhere(cluster):
    """One of the two nodes has ``OTHER_FIGURES``."""
    opened = cluster()
    pool = opened.pool(subject(fake_builders.made_by_node), None)
    assert pool.size == 2
    for number in range(6):
        pool.begin(plan(number))
    found = all_ended(pool, 6)
    assert all(isinstance(answers, Answers) for answers in found.values())

    def one_is_refused():
        pool.begin(plan(6))
        assert isinstance(pool.ended()[1], Answers)
        return pool.size == 1

    wait_until(one_is_refused)
    assert len([text for text in opened.said if text.endswith("fake 2 instead of 1")]) == 1


def test_where_every_node_is_refused_it_says_so(cluster):
    pool = cluster().pool(subject(faulty(), facts={"fake": "3"}), None)
    pool.begin(plan(0))
    pool.begin(plan(1))
    with pytest.raises(EngineUnavailable, match="fake 1 instead of 3"):
        all_ended(pool, 2)


def test_an_engine_that_does_not_start_there(cluster):
    pool = cluster().pool(subject(partial(fake_builders.made, {"start": fake_builders.unavailable})), None)
    pool.begin(plan(0))
    with pytest.raises(EngineUnavailable, match=fake_builders.OLD_DRIVER):
        pool.ended()


def test_errors_for_the_user_come_back_as_themselves_and_bugs_as_bugs(cluster):
    pool = cluster().pool(subject(faulty(plan_0=fake_builders.bad_input, plan_1=fake_builders.bug)), None)
    pool.begin(plan(0))
    with pytest.raises(BadInput, match="dynamic") as error:
        pool.ended()
    assert error.value.remedy == "Give shapes."
    pool.begin(plan(1))
    with pytest.raises(RuntimeError, match="KeyError: 'a bug'"):
        pool.ended()


def test_a_crash_and_a_hang_of_the_engine_are_outcomes_as_they_are_here(cluster):
    made = subject(faulty(plan_0=fake_builders.segfault, plan_1=fake_builders.hang), timeout=5.0)
    pool = (opened := cluster()).pool(made, None)
    for number in range(3):
        pool.begin(plan(number))
    found = all_ended(pool, 3)
    assert found[plan(0)].outcome == "build failed"
    assert "SIGSEGV" in found[plan(0)].message
    assert found[plan(1)].outcome == "timed out"
    assert isinstance(found[plan(2)], Answers)
    assert not [text for text in opened.said if "lost" in text]


def test_what_is_abandoned_frees_its_places(cluster, tmp_path):
    """One of the two places was taken; two plans that wait for each other have both afterwards."""
    begun, again, never, go_on = (tmp_path / name for name in ("begun", "again", "never", "go on"))
    begun.mkdir()
    again.mkdir()
    wait = partial(fake_builders.begun_and_wait, begun, never)
    meet = partial(fake_builders.begun_and_wait, again, go_on)
    pool = cluster().pool(subject(faulty(plan_0=wait, plan_8=meet, plan_9=meet)), None)
    pool.begin(plan(0))
    wait_until(lambda: list(begun.iterdir()))
    pool.abandon()
    pool.begin(plan(8))
    pool.begin(plan(9))
    wait_until(lambda: len(list(again.iterdir())) == 2)
    go_on.touch()
    assert set(all_ended(pool, 2)) == {plan(8), plan(9)}
    wait_until(lambda: not any(is_running(file.name) for file in begun.iterdir()))


def test_timings_come_back_and_go_along(cluster, tmp_path):
    """A stand-in's: each build adds a word to the cache that it is given."""
    cache = tmp_path / "timing.cache"
    cache.write_bytes(b"known")
    options = BuildOptions(timing_cache=cache, timeout=60.0)
    pool = cluster().pool(
        TrialSpec("onnxruntime", {"fake": "1"}, fake_builders.made_with_timings, options, [FEEDS]), None
    )
    for number in range(4):
        pool.begin(plan(number))
    all_ended(pool, 4)
    parts = [file for file in tmp_path.iterdir() if file != cache]
    found = [file.read_text() for file in parts]
    assert cache.read_text() == "known"
    assert all(text.startswith("known built") for text in found)
    assert sum(text.count("built") for text in found) == 4
    assert {timings_of(cache, file.stem.removeprefix("timing-")) for file in parts} == set(parts)


@pytest.mark.parametrize(("engine", "cpus"), [("tensorrt", 1), ("onnxruntime", 2)])
def test_no_place_for_what_a_task_needs(cluster, monkeypatch, engine, cpus):
    """No node has a GPU, or two processors."""
    monkeypatch.setattr("trt_bisect.cluster.tasks._FULL_SECONDS", 2.0)
    pool = cluster(cpus=cpus).pool(subject(faulty(), engine=engine), None)
    assert pool.size == 0
    pool.begin(plan(0))
    with pytest.raises(EngineUnavailable, match="for 2 s") as error:
        pool.ended()
    assert "GPU" in error.value.remedy


@pytest.mark.parametrize(
    ("needs", "places"), [({"num_cpus": 1}, 5), ({"num_cpus": 2}, 2), ({"num_gpus": 1, "num_cpus": 0}, 3)]
)
def test_the_places_of_a_node(needs, places):
    node = {"NodeID": "0123456789", "NodeManagerHostname": "host", "Resources": {"CPU": 5.0, "GPU": 3.0, "memory": 1e9}}
    assert _node(node, needs) == Node("host (01234567)", places)


def test_no_two_tasks_of_a_connection_have_the_same_ticket():
    """They share a mailbox: a letter of an abandoned run must not go to another."""
    asked = []
    connection = SimpleNamespace(alive=True, ask=lambda *request: asked.append(request) or {})
    for _ in range(2):
        Tasks(connection, "jobs.remote.worker", {"num_cpus": 1}).begin(Task("a run", None, "key", tuple))
    first, second = [request[1] for request in asked if request[0] == "begin"]
    assert first != second


@pytest.mark.parametrize("strategy", ["exhaustive", "bisect"])
def test_a_run_on_the_cluster_reports_the_same(lenet, tmp_path, ray_nodes, folder_here, strategy):
    """The bisection, besides, explains what it found."""
    asked = {"model": lenet / "lenet_planted.onnx", "calibration": lenet / "calibration.npz", "strategy": strategy}
    asked["trt_version"] = "8.6.1"
    here = folder_here
    if strategy == "exhaustive":
        asked["explain"] = "none"
    else:
        here = tmp_path / "run"
        trt_bisect.run(**asked, output=here)
    there = tmp_path / "b" / here.name
    elsewhere = trt_bisect.run(**asked, output=there, cluster=ray_nodes.address)
    assert without_times(elsewhere) == without_times(report_of((here / "report.json").read_text()))
    for name in ("recipe/network.qdq.onnx", "recipe/trtexec.flags", "layers.csv"):
        assert (there / name).read_bytes() == (here / name).read_bytes()
    if strategy == "exhaustive":  # a bisection kills the workers of plans that it asked for ahead and does not need
        assert list(ray_nodes.scratch.glob("trt-bisect*")) == []


def test_a_run_through_the_client_server_reports_the_same(lenet, ray_nodes, here):
    arguments = (lenet / "lenet_planted.onnx", lenet / "calibration.npz")
    there = trt_bisect.run(*arguments, strategy="exhaustive", explain="none", cluster=ray_nodes.client_address)
    assert without_times(there) == without_times(here)


def test_float_sums_do_not_depend_on_the_number_of_threads(ocr, tmp_path):
    """ONNX Runtime splits rows and columns among threads, never a sum: so a task may have several processors."""
    network = load_network(ocr / "network.onnx")
    data = trt_bisect.open_dataset(str(ocr / "calibration.npz"), network.inputs)
    ranges = trt_bisect.calibrate(network, data.first(1), "minmax")
    feeds = next(iter(data))
    full = int8_set(len(network.layers), network.quantizable)
    found = []
    for threads in (1, 2, 3):
        with OnnxRuntimeBuilder(network, ranges.scales, BuildOptions(threads=threads)).build(full) as engine:
            found.append(engine.infer(feeds))
    for other in found[1:]:
        for name, array in found[0].items():
            np.testing.assert_array_equal(other[name], array)


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

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=refuse))
    with pytest.raises(BadInput) as error:
        RayProcess().connect(address)
    assert command in error.value.remedy


def test_without_ray_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BadInput, match="needs Ray") as error:
        RayCluster(ClusterSettings("auto"), print)
    assert "'ray[client]>=2.40'" in error.value.remedy


def test_ray_is_not_imported_without_being_asked_for():
    code = "import sys, trt_bisect.jobs.run.run, trt_bisect.cluster.open; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
