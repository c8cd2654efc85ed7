"""The fleet of this machine: a worker process on each GPU, or as many as are asked for on its processors."""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from types import TracebackType

from trt_bisect.builder.base import Builder
from trt_bisect.builder.engines import ONNXRUNTIME
from trt_bisect.builder.gpu import visible_gpus
from trt_bisect.builder.isolation import IsolatedBuilder, WorkerProcess
from trt_bisect.errors import EngineUnavailable
from trt_bisect.evaluator.attempt import Attempt, attempt
from trt_bisect.evaluator.workers import TrialSpec
from trt_bisect.precision import PrecisionPlan
from trt_bisect.support.machine import cores

_LOOK_AGAIN = 0.1


class LocalCluster:
    """Worker processes of this machine, started when they are first needed."""

    def __init__(self, count: int | None = None) -> None:
        """Starts nothing yet.

        Args:
            count: how many; on GPUs one each, and at most so many. None for all GPUs, and none on processors.
        """
        self._count = count
        self._workshops: list[WorkerProcess] = []
        self._pool: ThreadPoolExecutor | None = None

    def crew(self, subject: TrialSpec, builder: Builder) -> LocalWorkerPool | None:
        """Its workers on a subject; the first GPU's is that of ``builder``, which is there already."""
        if self._pool is None:
            self._workshops = self._places(subject.engine)
            self._pool = ThreadPoolExecutor(max(1, len(self._workshops)), "trt-bisect place")
        if len(self._workshops) < 2:
            return None
        if subject.engine == ONNXRUNTIME:
            threads = max(1, cores() // len(self._workshops))
            subject = replace(subject, options=replace(subject.options, threads=threads))
            return LocalWorkerPool(self._pool, self._workshops, subject)
        return LocalWorkerPool(self._pool, self._workshops, subject, builder)

    def _places(self, engine: str) -> list[WorkerProcess]:
        if engine == ONNXRUNTIME:
            return [WorkerProcess() for _ in range(self._count or 0)]
        return [WorkerProcess(device) for device in visible_gpus()[: self._count]]

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for workshop in self._workshops:
            workshop.stop()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


class LocalWorkerPool:
    """Tries plans in worker processes, each driven by a thread.

    A process that does not start, or whose engines are others than those of the reference (a GPU of another kind), is
    left out.
    """

    def __init__(
        self, pool: ThreadPoolExecutor, workshops: list[WorkerProcess], subject: TrialSpec, first: Builder | None = None
    ) -> None:
        """Starts nothing yet.

        Args:
            pool: as many threads as workshops.
            workshops: the processes.
            subject: what plans are tried on.
            first: a builder that stands for the first of ``workshops``.
        """
        self._pool = pool
        self._subject = subject
        self._builders = {} if first is None else {workshops[0]: first}
        self._places = set(workshops)
        self._busy: set[WorkerProcess] = set()
        self._abandoning = False
        self._under_way: dict[Future[Attempt], PrecisionPlan] = {}
        self._idle: SimpleQueue[WorkerProcess | None] = SimpleQueue()
        for workshop in workshops:
            self._idle.put(workshop)

    @property
    def size(self) -> int:
        """How many processes there are, or will be."""
        return len(self._places)

    def begin(self, plan: PrecisionPlan) -> None:
        """Has a plan tried by the next process that is idle."""
        self._under_way[self._pool.submit(self._try, plan)] = plan

    def ended(self) -> tuple[PrecisionPlan, Attempt]:
        """The next plan that was tried; raises EngineUnavailable where no process can be used."""
        done = next(iter(wait(self._under_way, return_when=FIRST_COMPLETED).done))
        return self._under_way.pop(done), done.result()

    def abandon(self) -> None:
        """Ends the processes that are at work; they are started again when they are needed."""
        self._abandoning = True
        for future in self._under_way:
            future.cancel()
        while wait(self._under_way, _LOOK_AGAIN).not_done:
            for place in tuple(self._busy):
                self._stop(place)
        self._under_way.clear()
        self._abandoning = False

    def _stop(self, place: WorkerProcess) -> None:
        builder = self._builders.get(place)
        if isinstance(builder, IsolatedBuilder):
            builder.stop()
        place.stop()

    def _try(self, plan: PrecisionPlan) -> Attempt:
        """Tries a plan at the next place that is idle, and can be used."""
        while True:
            place = self._idle.get()
            if place is None:
                self._idle.put(None)
                raise EngineUnavailable(f"The engine '{self._subject.engine}' starts in no worker process.")
            self._busy.add(place)
            usable = True
            try:
                return attempt(plan, self._builders.get(place) or self._open(place), self._subject.inputs)
            except EngineUnavailable:
                if self._abandoning:
                    raise
                usable = False
                self._leave_out(place)
            finally:
                self._busy.discard(place)
                if usable:
                    self._idle.put(place)

    def _open(self, place: WorkerProcess) -> Builder:
        subject = self._subject
        builder = IsolatedBuilder(partial(subject.make, subject.options), subject.options.timeout, place)
        if dict(builder.versions) != dict(subject.facts):
            raise EngineUnavailable("Its engines are others.")
        self._builders[place] = builder
        return builder

    def _leave_out(self, place: WorkerProcess) -> None:
        self._places.discard(place)
        if not self._places:
            self._idle.put(None)
