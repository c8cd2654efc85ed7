"""Plans at several places of this machine at once: the sequential verdict, whatever ends first."""

import math
import platform
import re
import subprocess
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import trt_bisect
from tests.support import fake_builders, networks
from tests.support.editions import edition
from tests.support.waiting import is_running, wait_until
from tests.support.worker_runs import without_times
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.isolation import IsolatedBuilder
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
from trt_bisect.cluster.address import check_address, local_processes
from trt_bisect.driver.curves import bisect, exhaustive
from trt_bisect.driver.search import Question, drive, next_plans
from trt_bisect.errors import BadInput, EngineUnavailable
from trt_bisect.evaluator import workers as local
from trt_bisect.evaluator.evaluators import RebuildEvaluator
from trt_bisect.evaluator.trial import LOST, MEASURED, Attempt, OutputFigures, Trial, TrialStore
from trt_bisect.evaluator.workers import LocalCluster, TrialSpec
from trt_bisect.model.network import load_network
from trt_bisect.precision import int8_set, prefix
from trt_bisect.preparation.preparation import STAYS_HERE
from trt_bisect.runs.journal import Journal
from trt_bisect.support import machine

FEEDS = {"x": np.arange(3, dtype=np.float32)}
BUDGET = 0.01


def compare(outputs):
    return {"y": OutputFigures({"mean": float(np.mean([output["y"].mean() for output in outputs]))})}


LOSSES = st.dictionaries(st.integers(0, 19), st.sampled_from([1e-4, 0.004, 0.02, 0.3, 2.0]), max_size=20)


@settings(max_examples=edition(8, 150))
@given(
    costs=LOSSES,
    failing=st.sets(st.integers(0, 19), max_size=2),
    workers=st.integers(1, 7),
    way=st.sampled_from([exhaustive, bisect]),
)
def test_plans_measured_together_give_the_sequential_verdict(costs, failing, workers, way):
    question = Question(20, tuple(range(20)), BUDGET, BUDGET / 2)
    losses = {}

    def loss(plan):
        if plan.int8 & failing:
            return None
        return 1.0 - math.exp(-math.fsum(costs.get(k, 0.0) for k in plan.int8))

    def measure(plan):
        if plan not in losses:
            plans = next_plans(way(question), losses, workers)
            assert plans[0] == plan
            assert len(plans) == len(set(plans)) <= workers
            assert not losses.keys() & set(plans), "a plan was measured twice"
            losses.update({each: loss(each) for each in plans})
        return losses[plan]

    assert drive(way(question), measure) == drive(way(question), loss)


def test_a_healthy_network_measures_no_plan_in_vain():
    question = Question(40, tuple(range(40)), BUDGET, BUDGET / 2)
    plans = next_plans(exhaustive(question), {}, 1000)
    assert [plan.key() for plan in plans[:4]] == ["8*40", "f*40", "8*1.f*39", "8*2.f*38"]
    assert len(plans) == 41


def subject(make, facts=None, timeout=30.0):
    return TrialSpec("fake", facts or {"fake": "1"}, make, BuildOptions(timeout=timeout), [FEEDS])


@pytest.fixture
def gpus(monkeypatch):
    def have(*names):
        monkeypatch.setattr(local, "visible_gpus", lambda: names)

    return have


@pytest.mark.slow
def test_plans_are_measured_on_every_gpu_at_once_and_a_crash_on_one_costs_one(tmp_path, gpus, monkeypatch):
    """The first two builds end only when both have begun, each in a process that sees another GPU."""
    network = load_network(networks.save(networks.chain(8), tmp_path))
    plans = [prefix(len(network.layers), k) for k in network.quantizable[:8]]
    canonical = RebuildEvaluator(network, None, [], compare, TrialStore()).canonical
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    faults = {canonical(plan): {"build": partial(fake_builders.meet, meeting, 2)} for plan in plans[:2]}
    faults[canonical(plans[5])] = {"build": fake_builders.segfault}
    gpus("1", "0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    store, told, made = TrialStore(), [], subject(partial(fake_builders.made, faults))
    with LocalCluster() as cluster:
        builder = IsolatedBuilder(partial(made.make, made.options))
        pool = cluster.pool(made, builder)
        evaluator = RebuildEvaluator(network, builder, [FEEDS], compare, store, pool=pool)
        trials = evaluator.measure_all(plans, told.append)
        assert evaluator.measure_all(plans, told.append) == trials
    assert [trial.outcome for trial in trials] == ["measured"] * 5 + ["build failed"] + ["measured"] * 2
    assert sorted(file.read_text() for file in meeting.iterdir()) == ["0", "1"]
    assert sorted(plan.key() for plan in told) == sorted(store.trials)
    assert len(store.trials) == 8


@pytest.mark.slow
def test_a_gpu_of_another_kind_is_left_out(gpus, monkeypatch):
    gpus("0", "1", "2")
    made = subject(partial(fake_builders.made_elsewhere, "1"))
    plans = [int8_set(4, {k}) for k in range(4)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with LocalCluster() as cluster:
        pool = cluster.pool(made, IsolatedBuilder(partial(made.make, made.options)))
        assert pool.size == 3
        for plan in plans:
            pool.begin(plan)
        ended = [pool.ended() for _ in plans]
        assert pool.size == 2
    assert {attempted.plan for attempted in ended} == set(plans)
    assert not any(attempted.trial.failed for attempted in ended)


@pytest.mark.slow
def test_where_no_place_can_be_used_it_says_so(gpus):
    gpus("0", "1")
    made = subject(partial(fake_builders.made, {"start": fake_builders.segfault}))
    with LocalCluster() as cluster:
        pool = cluster.pool(made, None)
        for k in range(4):
            pool.begin(int8_set(4, {k}))
        with pytest.raises(EngineUnavailable, match="no worker process"):
            pool.ended()
        pool.abandon()


@pytest.mark.slow
def test_what_is_abandoned_ends_at_once_and_the_places_go_on(tmp_path, gpus):
    gpus("0", "1")
    begun, never = tmp_path / "begun", tmp_path / "never"
    begun.mkdir()
    stuck = [int8_set(4, {k}) for k in range(3)]
    wait = {"build": partial(fake_builders.begun_and_wait, begun, never)}
    made = subject(partial(fake_builders.made, dict.fromkeys(stuck, wait)))
    with LocalCluster() as cluster:
        pool = cluster.pool(made, IsolatedBuilder(partial(made.make, made.options)))
        for plan in stuck:
            pool.begin(plan)
        wait_until(lambda: len(list(begun.iterdir())) == 2)
        pool.abandon()
        workers = [int(file.name) for file in begun.iterdir()]
        assert not any(map(is_running, workers))
        pool.begin(int8_set(4, {3}))
        found = pool.ended()
    assert found.plan == int8_set(4, {3})
    np.testing.assert_array_equal(found.outputs[0]["y"], [0, 2, 4])


def test_there_is_no_crew_of_one():
    made = TrialSpec("onnxruntime", {}, None, BuildOptions(), [])
    for count in (None, 1):
        with LocalCluster(count) as cluster:
            assert cluster.pool(made, None) is None


class Losing:
    """A pool that loses one plan, and answers the others."""

    size = 2

    def __init__(self, lost):
        self.lost, self.begun = lost, []

    def begin(self, plan):
        self.begun.append(plan)

    def ended(self):
        plan = self.begun.pop()
        if plan == self.lost:
            return Attempt(plan, Trial(plan.key(), LOST, message="the node is gone"))
        return Attempt(plan, Trial(plan.key(), MEASURED), [{"y": np.ones(2)}])

    def abandon(self):
        self.begun.clear()


def test_a_lost_trial_is_no_verdict_and_is_tried_again_by_the_next_run(tmp_path):
    network = load_network(networks.save(networks.chain(3), tmp_path))
    plans = [int8_set(len(network.layers), {k}) for k in network.quantizable[:3]]
    with Journal(tmp_path, "key", {}) as journal:
        evaluator = RebuildEvaluator(network, None, [FEEDS], compare, journal, pool=Losing(plans[1]))
        trials = evaluator.measure_all(plans, lambda _: None)
    outcomes = [("measured", False), ("lost", True), ("measured", False)]
    assert [(trial.outcome, trial.failed) for trial in trials] == outcomes
    with Journal(tmp_path, "key", {}) as journal:
        assert set(journal.trials) == {plans[0].key(), plans[2].key()}


RUNS = ({"strategy": "exhaustive", "explain": "none", "calibrator": "minmax"}, {"strategy": "exhaustive"})
RUNS += ({"strategy": "bisect"},)


@pytest.mark.slow
@pytest.mark.parametrize("more", edition(RUNS[:1], RUNS), ids=str)
def test_a_run_in_processes_of_this_machine_reports_the_same(lenet, tmp_path, more):
    arguments = (lenet / "lenet_planted.onnx", lenet / "calibration.npz")
    here = trt_bisect.run(*arguments, **more, output=tmp_path / "run")
    elsewhere = trt_bisect.run(*arguments, **more, output=tmp_path / "other" / "run", cluster="local:2")
    assert without_times(elsewhere) == without_times(here)
    assert elsewhere.plans >= here.plans


@pytest.mark.slow
def test_a_run_in_the_emulation_says_what_a_cluster_does_for_it(command, lenet, tmp_path):
    arguments = ("--calibration", lenet / "calibration.npz", "--cluster", "local:2", "--output", tmp_path)
    arguments += ("--calibrator", "minmax", "--explain", "none", "--effort", "quick")
    code, _, said = command("run", lenet / "lenet_planted.onnx", *arguments)
    assert code == 1
    assert STAYS_HERE in said


def test_the_processor_is_named_by_its_vector_extensions():
    architecture, *extensions = machine.processor().split()
    assert architecture == platform.machine()
    there = subprocess.run(["lscpu"], capture_output=True, text=True, check=True).stdout.split()
    assert set(extensions) <= set(there)
    assert ("avx2" in there) == ("avx2" in extensions)


@pytest.mark.parametrize(
    "address", ["local:0", "local:x", "nowhere", "http://a:1", "ray://", "ray://a", "a:1:2", ":1", " "]
)
def test_an_address_that_is_none(address):
    with pytest.raises(BadInput, match=re.escape(f"'{address}'")):
        check_address(address)


@pytest.mark.parametrize("address", ["", "auto", "local:3", "ray://head:10001", "10.0.0.1:6379", "[::1]:6379"])
def test_an_address(address):
    check_address(address)
    assert local_processes(address) == (3 if address == "local:3" else None)


@pytest.mark.slow
def test_float_sums_do_not_depend_on_the_number_of_threads(ocr, tmp_path):
    """ONNX Runtime splits rows and columns among threads, never a sum: so workers may share the processors."""
    network = load_network(ocr / "network.onnx")
    data = trt_bisect.open_dataset(str(ocr / "calibration.npz"), network.inputs)
    ranges = trt_bisect.calibrate(network, data.first(1), "minmax")
    feeds = next(iter(data))
    full = int8_set(len(network.layers), network.quantizable)
    found = []
    for threads in (1, 3):
        with OnnxRuntimeBuilder(network, ranges.scales, BuildOptions(threads=threads)).build(full) as engine:
            found.append(engine.infer(feeds))
    one, three = found
    for name, array in one.items():
        np.testing.assert_array_equal(three[name], array)
