"""Tries plans as tasks of a Ray cluster."""

from __future__ import annotations

import importlib.util
import logging
import os
import pickle
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from time import monotonic
from typing import Any, NamedTuple

import numpy as np

from trt_bisect._version import __version__, versions
from trt_bisect.builder import isolation
from trt_bisect.builder.base import Builder
from trt_bisect.builder.engines import ONNXRUNTIME
from trt_bisect.builder.isolation import Worker, WorkerProcess
from trt_bisect.builder.tensorrt_build import timings_of
from trt_bisect.cluster.address import AUTO, GOES_ON, local_processes
from trt_bisect.errors import BadInput, EngineUnavailable, TrialFailed, TrtBisectError, first_line, install
from trt_bisect.evaluator.trial import LOST, Attempt, Trial
from trt_bisect.evaluator.workers import Cluster, LocalCluster, TrialSpec, attempt
from trt_bisect.precision import PrecisionPlan
from trt_bisect.support.files import ScratchFolder
from trt_bisect.support.text import counted

# Tasks, not actors (ray.util.ActorPool): an actor stays on its node, and a plan that waits for a lost actor would not
# go to a free node.
TRIES = 3  # a task whose worker or node was lost is started again
_REACH_SECONDS = 5.0
_JOIN_SECONDS = 60.0
_ANSWER_SECONDS = 90.0
_WAIT_SECONDS = 1.0
_FULL_SECONDS = 60.0  # a cluster without room for a task is then given up


def open_cluster(address: str, say: Callable[[str], None]) -> Cluster:
    """Returns the workers at an address of ``--cluster``: a Ray cluster, or this machine if empty or ``local:N``.

    The caller closes them; ``say`` shows messages. Raises BadInput if Ray is not installed, or no cluster answers
    there.
    """
    processes = local_processes(address)
    return RayCluster(address, say) if address and processes is None else LocalCluster(processes)


class RayCluster(AbstractContextManager["RayCluster"]):
    """A Ray cluster that this process has joined.

    Attributes:
        size: number of tasks that can run at a time, on nodes not refused for other versions or another device.
        holder: pool whose ``TrialSpec`` the workers have; None at first.
    """

    def __init__(self, address: str, say: Callable[[str], None]) -> None:
        if importlib.util.find_spec("ray") is None:
            raise BadInput(f"The cluster '{address}' needs Ray, which is not installed.", install("cluster"))
        self.size = 0
        self.holder: object = None
        self._address, self._say = address, say
        # A task that lacks memory is begun again as often as one whose node is lost; Ray's default is for ever.
        environment = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_task_oom_retries": str(TRIES - 1)}
        # The client server of ray:// may hang with gRPC's handling of forks: ray-project/ray#63202.
        head = "GRPC_ENABLE_FORK_SUPPORT=0 ray start --head" if "://" in address else "ray start --head"
        problem = f"Nothing answers at '{address}'"
        try:
            _reach(address)
            problem = f"'{address}' answers, but cannot be joined as a Ray cluster"
            # Ray ends its process when the cluster's head has been gone for a minute, takes over the signals, and
            # writes to stderr.
            self._process = Worker(environment, __name__)
            self._process.ask(("connect", address), _JOIN_SECONDS)
        except (OSError, OverflowError, UnicodeError, RuntimeError, TrialFailed) as error:
            raise BadInput(
                f"{problem}: {first_line(error)}",
                f"Give the address that '{head}' printed, or ray://HOST:10001, with the Python and Ray of here.",
            ) from error

    def pool(self, spec: TrialSpec, builder: Builder) -> RayWorkerPool | None:  # noqa: ARG002
        """Returns workers for the plans of ``spec``; None if the user has interrupted the run."""
        if not self._process.alive:
            return None
        self.employ(spec.engine)
        return RayWorkerPool(self, replace(spec, facts={**versions(), **spec.facts}))

    def employ(self, engine: str) -> None:
        """Gives each task from now on a GPU or, if ``engine`` is ``onnxruntime``, a processor core."""
        self.size = self._ask("employ", engine != ONNXRUNTIME)

    def begin(self, key: str, content: bytes) -> None:
        """Begins to try the plan with this key (``PrecisionPlan.key()``) as soon as a worker is free.

        ``content`` is the pickled ``TrialSpec`` and timing cache; empty if they are those of the plan before.
        """
        self._ask("begin", key, content)

    def ended(self) -> tuple[str, Any]:
        """Waits for the next plan to end; returns its key, and the result of ``try_plan`` or a TrtBisectError.

        The error is EngineUnavailable if the worker was lost in all three tries.

        Raises:
            EngineUnavailable: no node can be used, or the cluster is gone.
            RuntimeError: the task failed by an error of trt-bisect itself.
        """
        had_room = monotonic()
        while True:
            event: _Event = self._ask("wait", _WAIT_SECONDS)
            self.size = event.places
            for line in event.said:
                self._say(line)
            if isinstance(event.result, RuntimeError):
                raise event.result
            if event.key:
                return event.key, event.result
            if event.places:
                had_room = monotonic()
            elif event.refused:
                problem = f"No node of '{self._address}' can be used: {event.refused}"
                raise EngineUnavailable(problem, "Install on them the same versions as here, or leave out --cluster.")
            elif monotonic() - had_room > _FULL_SECONDS:
                problem = f"No node of '{self._address}' has had room for a task for {_FULL_SECONDS:g} s."
                raise EngineUnavailable(problem, "A task needs a GPU where the engine is NVIDIA's, else a processor.")

    def abandon(self) -> None:
        """Ends all tasks under way."""
        if self._process.alive:
            self._ask("abandon")

    def _ask(self, request: str, *arguments: Any) -> Any:
        try:
            return self._process.ask((request, *arguments), _ANSWER_SECONDS)
        except TrialFailed as failure:
            problem = f"The cluster '{self._address}' does not answer any more: {first_line(failure)}"
            raise EngineUnavailable(problem, GOES_ON) from failure

    def __exit__(self, *_: object) -> None:
        if self._process.alive:
            with suppress(EngineUnavailable):
                self._ask("close")
        self._process.end()


def _reach(address: str) -> None:
    if address != AUTO:
        host, _, port = address.removeprefix("ray://").rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), _REACH_SECONDS).close()


class RayWorkerPool:
    """Tries the plans of one ``TrialSpec`` as tasks of Ray."""

    def __init__(self, cluster: RayCluster, spec: TrialSpec) -> None:
        options = replace(spec.options, threads=1) if spec.engine == ONNXRUNTIME else spec.options
        self._cluster, self._spec = cluster, replace(spec, options=options)
        self._timing_cache = options.timing_cache
        self.abandon = cluster.abandon

    @property
    def size(self) -> int:
        """The number of plans that can be tried at a time now."""
        return self._cluster.size

    def begin(self, plan: PrecisionPlan) -> None:
        """Begins to try a plan as soon as a worker is free."""
        content = b""
        if self._cluster.holder is not self:
            cache = self._timing_cache
            timings = cache.read_bytes() if cache is not None and cache.is_file() else b""
            content = pickle.dumps((self._spec, timings), protocol=5)
        self._cluster.begin(plan.key(), content)
        self._cluster.holder = self

    def ended(self) -> Attempt:
        """Returns the attempt at the next plan to end; raises EngineUnavailable without nodes, and errors of the
        worker.
        """
        key, result = self._cluster.ended()
        if isinstance(result, EngineUnavailable):
            return Attempt(PrecisionPlan.from_key(key), Trial(key, LOST, message=result.problem))
        if isinstance(result, TrtBisectError):
            raise result
        tried: Attempt
        worker_name, tried, timings = result
        if timings and self._timing_cache is not None:
            file = timings_of(self._timing_cache, worker_name)
            with suppress(OSError):
                if not file.exists() or len(timings) > file.stat().st_size:  # results of a worker may come out of order
                    file.write_bytes(timings)
        return tried


class _Event(NamedTuple):
    key: str
    result: Any
    said: list[str]
    places: int
    refused: str


def serve(descriptor: int, parent: int) -> None:
    """Answers the requests of the process ``parent``, a ``RayCluster``'s, over the connection ``descriptor``."""
    isolation.serve(descriptor, parent, RayProcess())


class RayProcess:
    """The process that uses Ray, with one method for each request of ``RayCluster``."""

    def connect(self, address: str) -> None:
        """Joins the cluster at an address."""
        import ray

        self._ray = ray
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, ignore_reinit_error=True)
        self._call = ray.remote(_make_call())
        self._content: Any = None
        self._under_way: dict[Any, tuple[str, Any]] = {}  # by reference, the plan's key and its content
        self._needs: dict[str, int] = {}
        self._nodes = dict[str, tuple[str, int]]()
        self._refused: dict[str, str] = {}
        self._said: list[str] = []

    def employ(self, gpu: bool) -> int:
        """Gives each task from now on a GPU or a processor core; returns the number of tasks that can run at a time."""
        needs = {"num_cpus": 0, "num_gpus": 1} if gpu else {"num_cpus": 1}
        if self._needs != needs:
            self._needs, self._nodes = needs, {}
            self._places()
            self._said.append(f"Cluster: {self._capacity()}")
        return self._places()

    def _places(self) -> int:
        nodes, resource = {}, "GPU" if "num_gpus" in self._needs else "CPU"
        for node in self._ray.nodes():
            room = int(node["Resources"].get(resource, 0.0)) if node["Alive"] else 0
            if room:
                nodes[node["NodeID"]] = f"{node['NodeManagerHostname']} ({node['NodeID'][:8]})", room
        gone = [name for key, (name, _) in self._nodes.items() if key not in nodes]
        self._nodes = nodes
        self._said += [f"Node {name} is gone: {self._capacity()} left" for name in gone]
        return sum(room for key, (_, room) in self._nodes.items() if key not in self._refused)

    def _capacity(self) -> str:
        workers = sum(room for _, room in self._nodes.values())
        return f"{counted(workers, 'worker')} on {counted(len(self._nodes), 'node')}"

    def begin(self, key: str, content: bytes) -> None:
        """Begins a task that tries the plan with this key; ``content`` is the pickled ``TrialSpec`` and timing cache,
        empty if as for the plan before.
        """
        if content:
            self._content = self._ray.put(np.frombuffer(content, np.uint8))
        self._submit(key, self._content)

    def _submit(self, key: str, content: Any) -> None:
        from ray.util.scheduling_strategies import NodeLabelSchedulingStrategy, NotIn

        where: Any = "SPREAD"
        if self._refused:
            where = NodeLabelSchedulingStrategy(hard={"ray.io/node-id": NotIn(*self._refused)})
        call = self._call.options(max_retries=TRIES - 1, scheduling_strategy=where, **self._needs)
        # In a list, since Ray fetches an argument that is a reference.
        self._under_way[call.remote(__version__, [content], key)] = key, content

    def wait(self, seconds: float) -> _Event:
        """Waits at most ``seconds`` for a plan to end; returns its key and result, if any, messages, and the number
        of tasks that can run. Raises EngineUnavailable if the cluster is gone."""
        try:
            done, _ = self._ray.wait(list(self._under_way), timeout=seconds)
        except (self._ray.exceptions.RayError, ConnectionError) as error:
            raise EngineUnavailable(f"The cluster is gone: {first_line(error)}", GOES_ON) from error
        key, result = "", None
        if done:
            key, content = self._under_way.pop(done[0])
            result = self._result(done[0], key, content)
            key = "" if result is None else key
        places, refused = self._places(), next(iter(self._refused.values()), "")
        notes, self._said = self._said, []
        return _Event(key, result, notes, places, refused)

    def _result(self, reference: Any, key: str, content: Any) -> Any:
        try:
            node, refusal, result = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            return error.cause if isinstance(error.cause, TrtBisectError) else RuntimeError(str(error))
        except self._ray.exceptions.RayError as error:
            return EngineUnavailable(f"{TRIES} times the worker or its node was lost: {first_line(error)}")
        if not refusal:
            return result
        if node not in self._refused:
            name = self._nodes[node][0] if node in self._nodes else node
            self._said.append(f"Node {name} is not used, since its figures would differ: {refusal}")
        self._refused[node] = refusal
        self._submit(key, content)
        return None

    def abandon(self) -> None:
        """Ends all tasks under way."""
        for reference in self._under_way:
            self._ray.cancel(reference, force=True)
        self._under_way.clear()

    def close(self) -> None:
        """Leaves the cluster."""
        self._ray.shutdown()


def _make_call() -> Callable[..., Any]:
    # Ray pickles a nested function by value, so that a node without trt-bisect can report that.
    def call(version: str, content: list[Any], plan: str) -> tuple[str, str, Any]:
        import ray

        node = ray.get_runtime_context().get_node_id()
        try:
            import trt_bisect
            from trt_bisect.cluster import ray_cluster
            from trt_bisect.errors import EngineUnavailable
        except ImportError as error:
            return node, f"trt-bisect cannot be imported there: {error}", None
        if trt_bisect.__version__ != version:
            return node, f"trt_bisect {trt_bisect.__version__} instead of {version}", None
        try:
            return node, "", ray_cluster.try_plan(content[0], plan)
        except EngineUnavailable as error:
            return node, error.problem, None

    return call


def try_plan(content: Any, plan: str) -> tuple[str, Attempt, bytes]:
    """Tries a plan by its key, with the ``TrialSpec`` and the timing cache in ``content``, a reference in Ray's store.

    Returns:
        The worker's name, unique in the cluster; the attempt; and the timing cache if it has grown, else no bytes.
    """
    import ray

    key = content.hex()
    if key not in _kept:
        while _kept:
            _kept.popitem()[1].process.stop()
        _kept[key] = _PlanWorker(*pickle.loads(ray.get(content)))
    name = f"{ray.get_runtime_context().get_node_id()}-{os.getpid()}"
    return name, *_kept[key].tried(PrecisionPlan.from_key(plan))


class _PlanWorker:
    def __init__(self, spec: TrialSpec, timings: bytes) -> None:
        self._inputs, self._timed = spec.inputs, spec.timed
        self._scratch = ScratchFolder()
        self._timing_cache, self._timings = self._scratch.path / "timing.cache", timings
        self.process = WorkerProcess()
        options = replace(spec.options, timing_cache=self._timing_cache)
        self._builder = replace(spec, options=options).started(self.process)

    def tried(self, plan: PrecisionPlan) -> tuple[Attempt, bytes]:
        with self._scratch:  # closed between plans: Ray ends its processes without asking them
            self._timing_cache.write_bytes(self._timings)
            result = attempt(plan, self._builder, self._inputs, timed=self._timed)
            before, self._timings = self._timings, self._timing_cache.read_bytes()
        return result, b"" if self._timings == before else self._timings


_kept: dict[str, _PlanWorker] = {}  # by the id of its content in Ray's store; at most one
