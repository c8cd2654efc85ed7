"""The workers of a Ray cluster: each plan is a task."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import TracebackType
from uuid import uuid4

from trt_bisect._version import versions
from trt_bisect.builder.base import Builder
from trt_bisect.builder.engines import ONNXRUNTIME
from trt_bisect.builder.tensorrt_build import timings_of
from trt_bisect.cluster.connection import Connection
from trt_bisect.cluster.messages import Lost, Raised, Tried
from trt_bisect.cluster.settings import ClusterSettings
from trt_bisect.cluster.tasks import Task, Tasks
from trt_bisect.evaluator.attempt import Attempt, FailedAttempt
from trt_bisect.evaluator.trial import LOST
from trt_bisect.evaluator.workers import TrialSpec
from trt_bisect.precision import PrecisionPlan


class RayCluster:
    """A Ray cluster."""

    def __init__(self, cluster: ClusterSettings, say: Callable[[str], None]) -> None:
        """Joins the cluster; see ``Connection`` for what it raises."""
        self._connection = Connection(cluster, say)
        self._told = False
        self._held = ""

    def pool(self, spec: TrialSpec, builder: Builder) -> RayWorkerPool:  # noqa: ARG002
        """Returns workers for the plans of ``spec``; each has a GPU if the engine is NVIDIA's."""
        cluster = self._connection.cluster
        tasks = Tasks(self._connection, "cluster.plan_worker", needs(spec.engine, cluster))
        if spec.engine == ONNXRUNTIME:
            spec = replace(spec, options=replace(spec.options, threads=cluster.cpus))
        if not self._told:
            self._told = True
            self._connection.say(f"Cluster {cluster.address}: {tasks.capacity}")
        spec = replace(spec, facts={**versions(), **spec.facts})
        return RayWorkerPool(tasks, f"trial spec {uuid4().hex}", spec, self.hold)

    def hold(self, key: str, pickled: bytes) -> None:
        """Puts a pickled ``TrialSpec`` into the object store, in place of the one before."""
        if self._held:
            self._connection.ask("drop", self._held)
        self._connection.ask("put", key, pickled)
        self._held = key

    def __enter__(self) -> RayCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()


def needs(engine: str, cluster: ClusterSettings) -> dict[str, float]:
    """Returns the resources of a task, as Ray names them, for an engine."""
    return {"num_cpus": cluster.cpus} if engine == ONNXRUNTIME else {"num_gpus": 1, "num_cpus": 0}


class RayWorkerPool:
    """Tries plans as tasks of Ray."""

    def __init__(self, tasks: Tasks, key: str, spec: TrialSpec, hold: Callable[[str, bytes], None]) -> None:
        """Sends nothing yet.

        Args:
            tasks: the tasks of the cluster.
            key: the key of ``spec`` in the object store; no other of the cluster has it.
            spec: the facts that all plans share.
            hold: puts it into the object store.
        """
        self._tasks = tasks
        self._key = key
        self._spec = spec
        self._hold: Callable[[str, bytes], None] | None = hold

    @property
    def size(self) -> int:
        """The number of tasks that the living nodes can run at the same time, without nodes that were refused."""
        return self._tasks.size

    def begin(self, plan: PrecisionPlan) -> None:
        """Begins to try a plan; the first one also sends the ``TrialSpec``."""
        if self._hold is not None:
            self._hold(self._key, pickle.dumps(self._with_timings(), protocol=5))
            self._hold = None
        self._tasks.begin(Task("a plan", plan, self._key, partial(_key_of, plan)))

    def ended(self) -> tuple[PrecisionPlan, Attempt]:
        """Waits for the next plan that was tried, or lost too often; returns it and its attempt.

        Raises:
            EngineUnavailable: no node can be used, or the cluster is gone.
            TrtBisectError: a worker raised it.
        """
        task, ended = self._tasks.ended()
        if isinstance(ended, Raised):
            raise ended.error
        if isinstance(ended, Lost):
            return task.of, FailedAttempt(LOST, ended.why)
        assert isinstance(ended, Tried), "a task of a plan worker tries a plan"
        self._keep_timings(ended)
        return task.of, ended.attempt

    def abandon(self) -> None:
        """Cancels the tasks that have not ended."""
        self._tasks.abandon()

    def _with_timings(self) -> TrialSpec:
        path = self._spec.options.timing_cache
        kept = path is not None and path.is_file()
        return replace(self._spec, timings=path.read_bytes()) if path is not None and kept else self._spec

    def _keep_timings(self, tried: Tried) -> None:
        path = self._spec.options.timing_cache
        if tried.timings and path is not None:
            with suppress(OSError):
                timings_of(path, tried.worker).write_bytes(tried.timings)


def _key_of(plan: PrecisionPlan) -> tuple[str]:
    return (plan.key(),)
