"""The fleet of a Ray cluster: each plan is a task."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from types import TracebackType

from trt_bisect._version import versions
from trt_bisect.builder.base import Builder
from trt_bisect.builder.engines import ONNXRUNTIME
from trt_bisect.builder.tensorrt_build import timings_of
from trt_bisect.cluster.connection import Connection
from trt_bisect.cluster.messages import Lost, Raised, Tried
from trt_bisect.cluster.settings import ClusterOptions
from trt_bisect.cluster.tasks import Task, Tasks
from trt_bisect.evaluator.attempt import Attempt, Failure
from trt_bisect.evaluator.trial import LOST
from trt_bisect.evaluator.workers import TrialSpec
from trt_bisect.precision import PrecisionPlan


class RayCluster:
    """A Ray cluster."""

    def __init__(self, cluster: ClusterOptions, say: Callable[[str], None]) -> None:
        """Joins the cluster; see ``Connection`` for what it raises."""
        self._connection = Connection(cluster, say)
        self._made = count()
        self._held = ""

    def crew(self, subject: TrialSpec, builder: Builder) -> RayWorkerPool:  # noqa: ARG002
        """Tasks on a subject, with a GPU each where its engine is NVIDIA's."""
        cluster = self._connection.cluster
        tasks = Tasks(self._connection, "cluster.plan_worker", needs(subject.engine, cluster))
        if subject.engine == ONNXRUNTIME:
            subject = replace(subject, options=replace(subject.options, threads=cluster.cpus))
        number = next(self._made)
        if not number:
            self._connection.say(f"Cluster {cluster.address}: {tasks.places}")
        subject = replace(subject, facts={**versions(), **subject.facts})
        return RayWorkerPool(tasks, f"subject {number}", subject, self.hold)

    def hold(self, key: str, subject: bytes) -> None:
        """Puts a subject into the object store, in the place of the one before."""
        if self._held:
            self._connection.ask("drop", self._held)
        self._connection.ask("put", key, subject)
        self._held = key

    def __enter__(self) -> RayCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()


def needs(engine: str, cluster: ClusterOptions) -> dict[str, float]:
    """What a task on an engine is given."""
    return {"num_cpus": cluster.cpus} if engine == ONNXRUNTIME else {"num_gpus": 1, "num_cpus": 0}


class RayWorkerPool:
    """Tries plans as tasks of Ray."""

    def __init__(self, tasks: Tasks, key: str, subject: TrialSpec, hold: Callable[[str, bytes], None]) -> None:
        """Sends nothing yet.

        Args:
            tasks: of the cluster.
            key: the subject's, unlike that of any other of the fleet.
            subject: what plans are tried on.
            hold: puts it into the object store.
        """
        self._tasks = tasks
        self._key = key
        self._subject = subject
        self._hold: Callable[[str, bytes], None] | None = hold

    @property
    def size(self) -> int:
        """The tasks that the nodes that live can hold, but for those that were refused."""
        return self._tasks.size

    def begin(self, plan: PrecisionPlan) -> None:
        """Has a plan tried; the first one takes the subject along."""
        if self._hold is not None:
            self._hold(self._key, pickle.dumps(self._with_timings(), protocol=5))
            self._hold = None
        self._tasks.begin(Task("a plan", plan, self._key, partial(_key_of, plan)))

    def ended(self) -> tuple[PrecisionPlan, Attempt]:
        """The next plan that was tried, or was lost too often.

        Raises:
            EngineUnavailable: no node can be used, or the cluster is gone.
            TrtBisectError: a worker raised it.
        """
        task, ended = self._tasks.ended()
        if isinstance(ended, Raised):
            raise ended.error
        if isinstance(ended, Lost):
            return task.of, Failure(LOST, ended.why)
        assert isinstance(ended, Tried), "a task of a station tries a plan"
        self._keep_timings(ended)
        return task.of, ended.attempt

    def abandon(self) -> None:
        """Cancels the tasks that have not ended."""
        self._tasks.abandon()

    def _with_timings(self) -> TrialSpec:
        path = self._subject.options.timing_cache
        kept = path is not None and path.is_file()
        return replace(self._subject, timings=path.read_bytes()) if path is not None and kept else self._subject

    def _keep_timings(self, tried: Tried) -> None:
        path = self._subject.options.timing_cache
        if tried.timings and path is not None:
            with suppress(OSError):
                timings_of(path, tried.worker).write_bytes(tried.timings)


def _key_of(plan: PrecisionPlan) -> tuple[str]:
    return (plan.key(),)
