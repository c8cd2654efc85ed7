"""A build or an inference that crashes, hangs or runs out of memory takes its worker process and nothing else."""

import os
import signal
import subprocess
import sys
import textwrap
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.support import fake_builders, networks
from tests.support.editions import edition
from tests.support.fake_builders import LAST_WORDS, FakeBuilder
from tests.support.waiting import LIMIT, is_running, wait_until
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.engines import open_builder
from trt_bisect.builder.isolation import IsolatedBuilder, WorkerProcess
from trt_bisect.builder.tensorrt_build import RTX
from trt_bisect.errors import BadInput, EngineUnavailable, TrialFailed
from trt_bisect.evaluator.trial import Trial
from trt_bisect.model.network import load_network
from trt_bisect.runs.journal import Journal

FEEDS = {"x": np.arange(3, dtype=np.float32)}


def worker():
    shared = WorkerProcess()
    yield shared
    shared.stop()


process = pytest.fixture(worker, scope="module", name="process")
"""A worker process of several tests; it is started anew where one of them ends it."""
rtx_process = pytest.fixture(worker, scope="module", name="rtx_process")
"""A worker process that has loaded TensorRT for RTX."""


@pytest.fixture
def isolated(process):
    """Makes a builder: ``plan={"build": fault}``; a plan named ``good`` has none."""

    def make(timeout=30.0, **faults):
        return IsolatedBuilder(partial(FakeBuilder, faults), timeout, process)

    return make


def pid_of(builder):
    with builder.build("good") as engine:
        return int(engine.infer(FEEDS)["pid"])


@pytest.mark.slow
def test_engines_are_built_and_run_in_one_process_that_is_not_this_one(isolated):
    builder = isolated()
    assert (builder.engine, builder.typing, builder.arithmetic) == ("fake", "strong", "measured")
    assert builder.versions == {"fake": "1"}
    with builder.build("good") as engine:
        assert engine.messages == (fake_builders.A_WARNING,)
        assert engine.ran == {}
        np.testing.assert_array_equal(engine.infer(FEEDS)["y"], [0, 2, 4])
        assert engine.ran == {0: "int8"}
        assert engine.latency(FEEDS).mean_ms == 2.0
    assert pid_of(builder) == pid_of(builder) != os.getpid()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "outcome", "message"),
    [
        (
            fake_builders.say_and_segfault,
            "build failed",
            f"SIGSEGV.\nError Code 1: Cuda Driver\na warning\n{LAST_WORDS}",
        ),
        (fake_builders.killed_by_the_system, "out of memory", "SIGKILL"),
        (fake_builders.leave, "build failed", "exit code 3"),
        (fake_builders.say_and_run_out_of_memory, "out of memory", "std::bad_alloc\nError Code 2: OutOfMemory"),
        (fake_builders.refuse, "build failed", fake_builders.NO_IMPLEMENTATION),
    ],
)
def test_a_build_that_fails_costs_its_worker_and_one_trial(isolated, fault, outcome, message):
    builder = isolated(bad={"build": fault})
    before = pid_of(builder)
    with pytest.raises(TrialFailed) as failure:
        builder.build("bad")
    assert failure.value.outcome == outcome
    assert message in failure.value.message
    assert pid_of(builder) != before
    assert not is_running(before)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("request_", "fault", "outcome", "message"),
    [
        ("infer", fake_builders.segfault, "inference failed", "SIGSEGV"),
        ("infer", fake_builders.hang, "timed out", "took over 2 s"),
        *edition([], [("latency", fake_builders.segfault, "inference failed", "SIGSEGV")]),
    ],
)
def test_an_inference_that_crashes_or_hangs_costs_one_trial_too(isolated, request_, fault, outcome, message):
    builder = isolated(2.0, bad={request_: fault})
    with pytest.raises(TrialFailed, match=message) as failure, builder.build("bad") as engine:
        getattr(engine, request_)(FEEDS)
    assert failure.value.outcome == outcome
    assert pid_of(builder)


@pytest.mark.slow
def test_what_crashes_after_it_was_measured_was_measured(isolated):
    builder = isolated(bad={"close": fake_builders.segfault})
    with builder.build("bad") as engine:
        outputs = engine.infer(FEEDS)
    np.testing.assert_array_equal(outputs["y"], [0, 2, 4])
    assert pid_of(builder)


@pytest.mark.slow
def test_builders_share_a_worker_and_its_failures(process):
    """An engine that the failure of another builder's took along is built again."""
    first, second = (
        IsolatedBuilder(partial(FakeBuilder, faults), 30.0, process)
        for faults in ({"bad": {"build": fake_builders.segfault}}, {})
    )
    before = pid_of(first)
    assert pid_of(second) == before
    with second.build("good") as engine:
        with pytest.raises(TrialFailed):
            first.build("bad")
        outputs = engine.infer(FEEDS)
    after = int(outputs["pid"])
    np.testing.assert_array_equal(outputs["y"], [0, 2, 4])
    assert after != before
    assert pid_of(first) == pid_of(second) == after


@pytest.mark.slow
def test_errors_for_the_user_and_bugs_are_no_outcomes(isolated):
    builder = isolated(bad={"build": fake_builders.bad_input}, worse={"build": fake_builders.bug})
    with pytest.raises(BadInput, match="dynamic") as error:
        builder.build("bad")
    assert error.value.remedy == "Give shapes."
    with pytest.raises(RuntimeError, match=r"KeyError: 'a bug'[\s\S]*fake_builders.py"):
        builder.build("worse")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [(fake_builders.bad_input, BadInput, "dynamic"), (fake_builders.segfault, EngineUnavailable, "SIGSEGV")],
)
def test_a_builder_that_does_not_start(isolated, fault, error, message):
    with pytest.raises(error, match=message):
        isolated(start=fault)


@pytest.mark.slow
def test_a_gpu_that_is_full_when_the_worker_starts_again_costs_one_trial(isolated, tmp_path):
    """The worker has died between two builds, which without a full GPU costs nothing."""
    builder = isolated(start=partial(fake_builders.full_gpu, tmp_path / "full"))
    pid = pid_of(builder)
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    (tmp_path / "full").touch()
    with pytest.raises(TrialFailed, match="error: 2") as failure:
        builder.build("good")
    assert failure.value.outcome == "out of memory"
    (tmp_path / "full").unlink()
    assert pid_of(builder)


@pytest.mark.slow
def test_the_worker_ends_when_its_builder_is_forgotten():
    builder = IsolatedBuilder(partial(FakeBuilder, {}))
    pid = pid_of(builder)
    assert is_running(pid)
    del builder
    assert not is_running(pid)


SCRIPT = """
    import sys
    from functools import partial
    from pathlib import Path
    sys.path.insert(0, {root!r})
    from tests.support import fake_builders
    from trt_bisect.builder.isolation import IsolatedBuilder

    hang = partial(fake_builders.begun_and_wait, Path({begun!r}), Path("never"))
    builder = IsolatedBuilder(partial(fake_builders.FakeBuilder, {{"bad": {{"build": hang}}}}))
    print(builder._worker._process.pid, flush=True)
    builder.build("bad")
"""


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGINT, *edition((), (signal.SIGTERM,)), signal.SIGKILL])
def test_a_worker_that_hangs_ends_with_its_parent(tmp_path, stop):
    """Ctrl-C reaches the whole process group; the script, which has no main guard, runs once."""
    script, begun = tmp_path / "script.py", tmp_path / "begun"
    begun.mkdir()
    script.write_text(textwrap.dedent(SCRIPT.format(root=str(Path(__file__).parents[2]), begun=str(begun))))
    parent = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )
    worker = int(parent.stdout.readline())
    wait_until(lambda: list(begun.iterdir()))
    assert is_running(worker)
    (os.killpg if stop == signal.SIGINT else os.kill)(parent.pid, stop)
    assert parent.wait(LIMIT) != 0
    assert parent.stdout.read() == b""
    parent.stdout.close()
    wait_until(lambda: not is_running(worker))


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    """A network, scales for it, and the shapes of its input."""
    network = load_network(networks.save(networks.chain(3), tmp_path_factory.mktemp("chain")))
    return network, {name: np.float32(0.05) for name in network.activations}, {"x": ((1, 3, 16, 16),) * 3}


@pytest.mark.slow
def test_an_engine_that_cannot_run_here_says_so_from_its_worker(rtx_process, chain):
    pytest.importorskip("tensorrt_rtx_bindings")
    network, scales, shapes = chain
    builder = open_builder(RTX, "strong", network, scales, BuildOptions(timeout=300.0), shapes, rtx_process)
    if builder.versions["device"] != "no GPU":
        pytest.skip("there is a GPU")
    with builder.reference() as engine, pytest.raises(EngineUnavailable, match="NVIDIA GPU"):
        engine.infer({"x": np.zeros((1, 3, 16, 16), np.float32)})


def test_a_trial_that_timed_out_or_ran_out_of_memory_is_tried_again_when_the_run_goes_on(tmp_path):
    with Journal(tmp_path, "run", {}) as journal:
        journal.keep(Trial("slow", "timed out"), Trial("large", "out of memory"))
        journal.keep(Trial("broken", "build failed"))
        assert journal.find("slow") is not None
    with Journal(tmp_path, "run", {}) as journal:
        assert journal.find("slow") is None
        assert journal.find("large") is None
        assert journal.find("broken").outcome == "build failed"
