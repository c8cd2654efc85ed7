from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from queue import SimpleQueue
from time import perf_counter
from typing import Protocol, TypeVar

from trt_bisect._version import versions
from trt_bisect.builder.base import Builder, BuildOptions, Engine, Latency, Outputs
from trt_bisect.builder.engines import ONNXRUNTIME
from trt_bisect.builder.isolation import IsolatedBuilder, WorkerProcess
from trt_bisect.data.feeds import Feeds
from trt_bisect.errors import OUT_OF_MEMORY, EngineUnavailable, TrialFailed, first_line
from trt_bisect.evaluator.trial import MEASURED, Attempt, Trial
from trt_bisect.precision import PrecisionPlan
from trt_bisect.support.machine import cores, visible_gpus

_LOOK_AGAIN = 0.1
Result = TypeVar("Result")


def tried(key: str, build: Callable[[], Engine], use: Callable[[Engine], Result]) -> tuple[Trial, Result | None]:
    """Builds an engine and uses it; a failure becomes the trial's outcome.

    Returns:
        The trial under ``key``, without figures; and the result of ``use``, None after a failure.
    """
    began = built = perf_counter()
    try:
        with build() as engine:
            built = perf_counter()
            result = use(engine)
            ran, message = dict(engine.ran), "\n".join(engine.messages)
    except TrialFailed as failure:
        built = perf_counter() if built == began else built
        return Trial(key, failure.outcome, message=failure.message, build_seconds=built - began), None
    except MemoryError as error:
        return Trial(key, OUT_OF_MEMORY, message=first_line(error), build_seconds=perf_counter() - began), None
    return Trial(key, MEASURED, {}, ran, message, built - began, perf_counter() - built), result


def attempt(
    plan: PrecisionPlan,
    builder: Builder,
    inputs: Sequence[Feeds],
    *,
    timed: bool = False,
    keep: Callable[[Outputs], Outputs] = lambda outputs: outputs,
    further: Callable[[PrecisionPlan, Engine], None] = lambda _plan, _engine: None,
) -> Attempt:
    """Builds the engine of a plan and runs the inputs on it; a failure becomes the trial's outcome.

    Args:
        timed: also measure the latency of the engine, on the first input.
        keep: returns the part of an input's outputs to keep.
        further: called with the plan and the open engine.
    """

    def use(engine: Engine) -> tuple[list[Outputs], Latency | None]:
        outputs = [keep(engine.infer(feeds)) for feeds in inputs]
        further(plan, engine)
        return outputs, engine.latency(inputs[0]) if timed else None

    trial, measured = tried(plan.key(), lambda: builder.build(plan), use)
    if measured is None:
        return Attempt(plan, trial)
    outputs, latency = measured
    return Attempt(plan, replace(trial, inferences=len(outputs), latency=latency), outputs)


@dataclass(frozen=True)
class TrialSpec:
    """The facts that workers need to try plans; each worker gets them once.

    Attributes:
        facts: versions and device of the builder that ran FP32; a worker must have the same.
        make: makes a builder with ``options``; pickled, with the network and the scales.
        timed: measure the latency of each engine.
    """

    engine: str
    facts: Mapping[str, str]
    make: Callable[[BuildOptions], Builder]
    options: BuildOptions
    inputs: Sequence[Feeds]
    timed: bool = False

    def started(self, process: WorkerProcess) -> IsolatedBuilder:
        """Starts a builder in a process; raises EngineUnavailable if it does not start, or its versions or device
        differ from ``facts``.
        """
        builder = IsolatedBuilder(partial(self.make, self.options), self.options.timeout, process)
        refuse_others(self.facts, {**versions(), **builder.versions})
        return builder


def refuse_others(facts: Mapping[str, str], own: Mapping[str, str]) -> None:
    """Raises EngineUnavailable if a worker's versions and device, ``own``, differ from ``facts``."""
    differing = [f"{name} {own.get(name)} instead of {fact}" for name, fact in facts.items() if own.get(name) != fact]
    if differing:
        raise EngineUnavailable(", ".join(differing))


class WorkerPool(Protocol):
    """Workers that try plans as a ``TrialSpec`` says. Only one pool of a cluster works at a time."""

    @property
    def size(self) -> int:
        """The number of plans that are tried at a time."""

    def begin(self, plan: PrecisionPlan) -> None:
        """Begins to try a plan as soon as a worker is free."""

    def ended(self) -> Attempt:
        """Waits until one of the begun plans is done, and returns it; raises EngineUnavailable if no worker is left."""

    def abandon(self) -> None:
        """Gives up the begun plans that are not done."""


class Cluster(AbstractContextManager["Cluster"], Protocol):
    """The machines or processes that can try plans, until the context ends."""

    def pool(self, spec: TrialSpec, builder: Builder) -> WorkerPool | None:
        """Returns workers that try plans as ``spec`` says; None if only ``builder`` can try plans."""


class LocalCluster(AbstractContextManager["LocalCluster"]):
    """Worker processes of this machine, which start at first use; at most ``count``, by default one on each GPU (none
    for ONNX Runtime).
    """

    def __init__(self, count: int | None = None) -> None:
        self._count = count
        self._processes: list[WorkerProcess] = []
        self._threads: ThreadPoolExecutor | None = None

    def pool(self, spec: TrialSpec, builder: Builder) -> LocalWorkerPool | None:
        """Returns workers that try plans as ``spec`` says, the first in the process of ``builder``; None for fewer than
        two workers.
        """
        if self._threads is None:
            devices = [None] * (self._count or 0) if spec.engine == ONNXRUNTIME else visible_gpus()[: self._count]
            self._processes = [WorkerProcess(device) for device in devices]
            self._threads = ThreadPoolExecutor(max(1, len(self._processes)), "trt-bisect worker")
        if len(self._processes) < 2:
            return None
        if spec.engine == ONNXRUNTIME:
            threads = max(1, cores() // len(self._processes))
            spec = replace(spec, options=replace(spec.options, threads=threads))
        if not isinstance(builder, IsolatedBuilder):
            return LocalWorkerPool(self._threads, self._processes, spec, {})
        processes = [builder.process, *self._processes[1:]]
        return LocalWorkerPool(self._threads, processes, spec, {builder.process: builder})

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.stop()
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)


class LocalWorkerPool:
    """Tries plans in worker processes, each driven by a thread. Processes that cannot be used are left out."""

    def __init__(
        self,
        threads: ThreadPoolExecutor,
        processes: list[WorkerProcess],
        spec: TrialSpec,
        started: dict[WorkerProcess, IsolatedBuilder],
    ) -> None:
        self._threads = threads
        self._spec = spec
        self._builders = started
        self._usable = set(processes)
        self._busy: set[WorkerProcess] = set()
        self._abandoning = False
        self._under_way: set[Future[Attempt]] = set()
        self._idle: SimpleQueue[WorkerProcess | None] = SimpleQueue()
        for process in processes:
            self._idle.put(process)

    @property
    def size(self) -> int:
        """The number of usable processes."""
        return len(self._usable)

    def begin(self, plan: PrecisionPlan) -> None:
        """Begins to try a plan in an idle process."""
        self._under_way.add(self._threads.submit(self._try, plan))

    def ended(self) -> Attempt:
        """Waits until a begun plan is done, and returns it; raises EngineUnavailable if no process can be used."""
        done = next(iter(wait(self._under_way, return_when=FIRST_COMPLETED).done))
        self._under_way.remove(done)
        return done.result()

    def abandon(self) -> None:
        """Ends the busy processes, which start again when needed."""
        self._abandoning = True
        for future in self._under_way:
            future.cancel()
        while wait(self._under_way, _LOOK_AGAIN).not_done:
            for process in tuple(self._busy):
                process.stop()
        self._under_way.clear()
        self._abandoning = False

    def _try(self, plan: PrecisionPlan) -> Attempt:
        while True:
            process = self._idle.get()
            if process is None:
                self._idle.put(None)
                raise EngineUnavailable(f"The engine '{self._spec.engine}' starts in no worker process.")
            self._busy.add(process)
            usable = True
            try:
                if process not in self._builders:
                    self._builders[process] = self._spec.started(process)
                return attempt(plan, self._builders[process], self._spec.inputs, timed=self._spec.timed)
            except EngineUnavailable:
                if self._abandoning:
                    raise
                usable = False
                self._usable.discard(process)
                if not self._usable:
                    self._idle.put(None)
            finally:
                self._busy.discard(process)
                if usable:
                    self._idle.put(process)
