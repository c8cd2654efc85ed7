"""Builders for the worker process that really crash, hang and run out of memory, for tests and ``tools/gpu_check``."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from trt_bisect.builder.base import MEASURED, Latency
from trt_bisect.builder.tensorrt_build import LISTENERS, Message
from trt_bisect.errors import BadInput, EngineUnavailable, TrialFailed

LAST_WORDS = "the last thing it printed"
A_WARNING = "a warning of the build"
OLD_DRIVER = "The driver is too old."
NO_IMPLEMENTATION = "no implementation for node fc"


def segfault():
    """Reads address 0."""
    print(LAST_WORDS, file=sys.stderr, flush=True)
    ctypes.string_at(0)


def say_and_segfault():
    for tell in LISTENERS:
        tell(Message(True, "Error Code 1: Cuda Driver"))
        tell(Message(False, "a warning"))
    segfault()


def say_and_run_out_of_memory():
    for tell in LISTENERS:
        tell(Message(True, "Error Code 2: OutOfMemory"))
    raise MemoryError("std::bad_alloc")


def hang():
    time.sleep(600)


def meet(folder, count):
    """Waits until ``count`` processes have called this; each writes the GPU that it sees."""
    (folder / str(os.getpid())).write_text(os.environ["CUDA_VISIBLE_DEVICES"])
    while len(list(folder.iterdir())) < count:
        time.sleep(0.01)


def killed_by_the_system():
    os.kill(os.getpid(), signal.SIGKILL)


def leave():
    os._exit(3)


def refuse():
    raise TrialFailed("build failed", NO_IMPLEMENTATION)


def full_gpu(sign):
    """Fails as TensorRT 8.6.0 did on a GPU without free memory, while there is a file ``sign``."""
    if sign.exists():
        said = "Unable to determine GPU memory usage; CUDA initialization failure with error: 2. Please check"
        raise EngineUnavailable(f"tensorrt 8.6.0 does not start: {said}")


def bad_input():
    raise BadInput("The input is dynamic.", "Give shapes.")


def bug():
    raise KeyError("a bug")


@dataclass
class FakeEngine:
    """Doubles ``x``; the methods in ``faults`` do something else first."""

    faults: dict
    ran: dict = field(default_factory=dict)
    messages: tuple = (A_WARNING,)

    def infer(self, feeds):
        self.faults.get("infer", lambda: None)()
        self.ran = {0: "int8"}
        return {"y": 2 * feeds["x"], "pid": np.array(os.getpid())}

    def latency(self, feeds):
        self.faults.get("latency", lambda: None)()
        return Latency.of([1.0, 3.0])

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.faults.get("close", lambda: None)()


@dataclass(frozen=True)
class FakeBuilder:
    """Builds ``FakeEngine``; ``faults`` has functions to call first, by plan and method (and for ``start``)."""

    faults: dict
    version: str = "1"

    engine = "fake"
    typing = "strong"
    arithmetic = MEASURED

    def __post_init__(self):
        self.faults.get("start", lambda: None)()

    @property
    def versions(self):
        return {"fake": self.version}

    def build(self, plan):
        faults = self.faults.get(plan, {})
        faults.get("build", lambda: None)()
        return FakeEngine(faults)

    def reference(self):
        return FakeEngine({})


def made(faults, _options):
    """Makes a ``FakeBuilder``, as a pool of workers does."""
    return FakeBuilder(faults)


def made_elsewhere(device, _options):
    """Makes a builder with other figures on a certain GPU."""
    return FakeBuilder({}, "2" if os.environ["CUDA_VISIBLE_DEVICES"] == device else "1")


def made_by_node(_options):
    """Makes a builder with other figures on nodes that have ``OTHER_FIGURES`` in their environment."""
    return FakeBuilder({}, os.environ.get("OTHER_FIGURES", "1"))


@dataclass(frozen=True)
class Interrupted:
    """Works as ``builder``, and calls a function with each plan before it builds it."""

    builder: object
    before: Callable

    def __getattr__(self, name):
        return getattr(self.builder, name)

    def build(self, plan):
        self.before(plan)
        return self.builder.build(plan)


def faulty(builder, faults):
    """Calls the fault of a plan, by its key, before the plan is built."""
    return Interrupted(builder, lambda plan: faults.get(plan.key(), lambda: None)())


def make_faulty(make, faults):
    """Makes the faulty builder, in the worker process."""
    return faulty(make(), faults)


def wait_for(file):
    """Waits until a file exists."""
    while not file.exists():
        time.sleep(0.01)


def begun_and_wait(folder, file):
    """Writes that this process has begun, and waits until a file exists."""
    (folder / str(os.getpid())).touch()
    wait_for(file)


def unavailable():
    raise EngineUnavailable(OLD_DRIVER)


def kill_the_ray_worker():
    """Kills the parent of this builder's process."""
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)


def count_and_kill(file):
    """Kills the Ray worker at each call; the file has a letter for each."""
    with file.open("a") as tries:
        tries.write("x")
    kill_the_ray_worker()


@dataclass(frozen=True)
class Waiting:
    """Makes the real engine's builders, whose builds wait for a file where layer 2 is in INT8 and layer 7 is not."""

    make: object
    begun: str
    go_on: str

    def __call__(self, *arguments, **options):
        return Interrupted(self.make(*arguments, **options), self.wait)

    def wait(self, plan):
        if 2 in plan.int8 and 7 not in plan.int8:
            begun_and_wait(Path(self.begun), Path(self.go_on))


@dataclass(frozen=True)
class TimedBuilder(FakeBuilder):
    """Adds a word to its timing cache with each build."""

    options: object = None

    def build(self, plan):
        engine = super().build(plan)
        with self.options.timing_cache.open("a") as file:
            file.write(" built")
        return engine


def made_with_timings(faults, options):
    return TimedBuilder(faults, options=options)
