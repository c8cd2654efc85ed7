"""A Ray cluster as this process sees it: plans and whole runs are its tasks."""

from __future__ import annotations

import importlib.util
import pickle
import socket
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from time import monotonic
from typing import Any

from trt_bisect._version import versions
from trt_bisect.builder.base import Builder
from trt_bisect.builder.engines import ONNXRUNTIME
from trt_bisect.builder.isolation import Worker
from trt_bisect.builder.tensorrt_build import timings_of
from trt_bisect.cluster.address import AUTO, GOES_ON, local_processes
from trt_bisect.cluster.ray_process import TRIES, Event
from trt_bisect.errors import BadInput, EngineUnavailable, TrialFailed, TrtBisectError, first_line, install
from trt_bisect.evaluator.trial import LOST
from trt_bisect.evaluator.workers import Attempt, Cluster, FailedAttempt, LocalCluster, TrialSpec
from trt_bisect.precision import PrecisionPlan

_REACH_SECONDS = 5.0
_JOIN_SECONDS = 60.0
_ANSWER_SECONDS = 90.0
"""Longer than Ray waits for a head that does not answer."""
_WAIT_SECONDS = 1.0
_FULL_SECONDS = 60.0
"""The time after which a cluster without room for a task is given up."""


def open_cluster(address: str, say: Callable[[str], None]) -> Cluster:
    """Opens the workers at an address; the caller closes them.

    Args:
        address: see ``check_address``.
        say: is called with a line for each node that is lost or not used.

    Raises:
        BadInput: Ray is not installed, or no cluster answers there.
    """
    processes = local_processes(address)
    return RayCluster(address, say) if address and processes is None else LocalCluster(processes)


class RayCluster(AbstractContextManager["RayCluster"]):
    """A Ray cluster that was joined, through a process that uses Ray; see ``ray_process``.

    Attributes:
        address: the address that it was joined at.
        size: the number of tasks that the living nodes can run at the same time, without nodes that were refused.
        holder: the object whose content is the last one that was sent.
    """

    def __init__(self, address: str, say: Callable[[str], None]) -> None:
        """Joins the cluster.

        Raises:
            BadInput: Ray is not installed, or there is no cluster that can be joined.
        """
        if importlib.util.find_spec("ray") is None:
            raise BadInput(f"The cluster '{address}' needs Ray, which is not installed.", install("cluster"))
        _reach(address)
        self.address = address
        self.size = 0
        self.holder: object = None
        self._say = say
        # A task that lacks memory is begun again as often as one whose node is lost; Ray's default is for ever.
        environment = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_task_oom_retries": str(TRIES - 1)}
        self._process = Worker(environment, "trt_bisect.cluster.ray_process")
        try:
            self._process.ask(("connect", address), _JOIN_SECONDS)
        except TrialFailed as failure:
            raise BadInput(
                f"'{address}' answers, but cannot be joined as a Ray cluster: {first_line(failure)}",
                "Give the address that 'ray start --head' printed, or ray://HOST:10001 for its client server.",
            ) from failure

    def pool(self, spec: TrialSpec, builder: Builder) -> RayWorkerPool | None:  # noqa: ARG002
        """Returns workers for the plans of ``spec``; none where the user has interrupted the run."""
        if not self._process.alive:
            return None
        self.employ(spec.engine)
        return RayWorkerPool(self, replace(spec, facts={**versions(), **spec.facts}))

    def employ(self, engine: str) -> None:
        """Gives each task from now on a GPU, or, where the engine is ONNX Runtime, a processor."""
        self.size = self._ask("employ", engine != ONNXRUNTIME)

    def begin(self, name: str, content: bytes, files: Mapping[str, bytes] | None = None) -> None:
        """Begins a task; it waits until a worker is free.

        Args:
            name: the key of a plan, or the folder of a run.
            content: what the task works on; empty for what the last one did.
            files: what the folder of a run has already; None for a plan.
        """
        self._ask("begin", name, content, files)

    def ended(self, write: Callable[[str, bytes, Mapping[str, bytes]], None] = lambda *_: None) -> tuple[str, Any]:
        """Waits for the next task that has ended, or was lost too often; returns its name and its result.

        Args:
            write: takes the name of a run, new lines of its journal, and its progress and report so far.

        Returns:
            The result is an EngineUnavailable if its worker was lost each time, and another TrtBisectError if the task
            raised it.

        Raises:
            EngineUnavailable: no node can be used, or the cluster is gone.
            RuntimeError: the task failed by an error of trt-bisect itself.
        """
        had_room = monotonic()
        while True:
            event: Event = self._ask("wait", _WAIT_SECONDS)
            self.size = event.places
            for line in event.said:
                self._say(line)
            if isinstance(event.result, RuntimeError):
                raise event.result
            if event.result is not None:
                return event.name, event.result
            if event.name:
                write(event.name, event.lines, event.shown)
            if event.places:
                had_room = monotonic()
            elif event.refused:
                raise EngineUnavailable(
                    f"No node of '{self.address}' can be used: {event.refused}",
                    "Install on them the same versions as here, or leave out --cluster.",
                )
            elif monotonic() - had_room > _FULL_SECONDS:
                raise EngineUnavailable(
                    f"No node of '{self.address}' has had room for a task for {_FULL_SECONDS:g} s.",
                    "A task needs a GPU where the engine is NVIDIA's, else a processor.",
                )

    def abandon(self) -> None:
        """Ends the tasks that have not ended."""
        if self._process.alive:
            self._ask("abandon")

    def _ask(self, request: str, *arguments: Any) -> Any:
        try:
            return self._process.ask((request, *arguments), _ANSWER_SECONDS)
        except TrialFailed as failure:
            raise EngineUnavailable(
                f"The cluster '{self.address}' does not answer any more: {first_line(failure)}", GOES_ON
            ) from failure

    def __exit__(self, *_: object) -> None:
        if self._process.alive:
            with suppress(EngineUnavailable):
                self._ask("close")
        self._process.end()


def _reach(address: str) -> None:
    """Raises BadInput if nothing listens there: Ray itself would try for a minute or more, and say little."""
    if address == AUTO:
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _REACH_SECONDS).close()
    except (OSError, OverflowError, UnicodeError) as error:
        raise BadInput(
            f"Nothing answers at '{address}': {first_line(error)}",
            "Give the address that 'ray start --head' printed, or ray://HOST:10001 for its client server.",
        ) from error


class RayWorkerPool:
    """Tries the plans of one ``TrialSpec`` as tasks of Ray, on ONNX Runtime with one thread each."""

    def __init__(self, cluster: RayCluster, spec: TrialSpec) -> None:
        options = replace(spec.options, threads=1) if spec.engine == ONNXRUNTIME else spec.options
        self._cluster, self._spec = cluster, replace(spec, options=options)
        self._timing_cache = options.timing_cache

    @property
    def size(self) -> int:
        """The number of plans that can be tried at the same time now."""
        return self._cluster.size

    def begin(self, plan: PrecisionPlan) -> None:
        """Begins to try a plan; the first one also sends the ``TrialSpec``, with this machine's timing cache."""
        content = b""
        if self._cluster.holder is not self:
            cache = self._timing_cache
            timings = cache.read_bytes() if cache is not None and cache.is_file() else b""
            content = pickle.dumps(replace(self._spec, timings=timings), protocol=5)
        self._cluster.begin(plan.key(), content)
        self._cluster.holder = self

    def ended(self) -> tuple[PrecisionPlan, Attempt]:
        """Waits for the next plan that was tried, or lost too often; returns it and its attempt.

        Raises:
            EngineUnavailable: no node can be used, or the cluster is gone.
            TrtBisectError: a worker raised it.
        """
        key, result = self._cluster.ended()
        plan = PrecisionPlan.from_key(key)
        if isinstance(result, EngineUnavailable):
            return plan, FailedAttempt(LOST, result.problem)
        if isinstance(result, TrtBisectError):
            raise result
        worker, tried, timings = result
        if timings and self._timing_cache is not None:
            with suppress(OSError):
                timings_of(self._timing_cache, worker).write_bytes(timings)
        return plan, tried

    def abandon(self) -> None:
        """Cancels the plans that have not ended."""
        self._cluster.abandon()
