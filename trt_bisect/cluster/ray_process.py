"""The process that uses Ray.

It is a process of its own because Ray ends its process when the cluster's head has been gone for a minute, takes over
the signals, and writes to stderr. It answers the requests of ``ray_cluster.RayCluster``, one at a time.

A plan is a task, which Ray itself begins again if its worker or node is lost. It is no call of an actor, in a
``ray.util.ActorPool`` for example: an actor keeps its place on a node, and a plan that waits for a lost one would not
go to the node that is free. A whole run has its place until it ends, so it is an actor, which is asked for its journal
meanwhile. Ray would restart it with what it had at first; it is begun again here, with the journal so far.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trt_bisect._version import __version__
from trt_bisect.builder import worker
from trt_bisect.cluster.address import GOES_ON
from trt_bisect.errors import BadInput, EngineUnavailable, TrtBisectError, first_line
from trt_bisect.runs.journal import JOURNAL
from trt_bisect.support.figures import counted

TRIES = 3
"""The number of times that a plan or a run is begun whose worker or node is lost each time."""


@dataclass(frozen=True)
class Event:
    """The next event on the cluster, at most one.

    Attributes:
        name: the plan or run that has ended, or has written something; empty for none.
        result: what it returned. A TrtBisectError is the task's own, EngineUnavailable means that its worker was lost
            each time, a RuntimeError is one of trt-bisect itself; None if it has not ended.
        lines: new whole lines of a run's journal.
        shown: by name, the files that show how far a run is, if they have changed.
        said: lines for the user.
        places: the number of tasks that can run at the same time.
        refused: the reason why a node is not used; empty if all are.
    """

    name: str = ""
    result: Any = None
    lines: bytes = b""
    shown: Mapping[str, bytes] | None = None
    said: tuple[str, ...] = ()
    places: int = 0
    refused: str = ""


@dataclass
class _Task:
    """A plan or a run that is under way.

    Attributes:
        name: the plan's key, or the run's folder.
        content: the reference to what it works on.
        files: by name, what is in the run's folder when it is begun again; None for a plan.
        actor: the run's.
        losses: the number of times that the run's worker was lost.
    """

    name: str
    content: Any
    files: dict[str, bytes] | None
    actor: Any = None
    losses: int = 0


def serve(descriptor: int, parent: int) -> None:
    """Answers requests until the parent closes the connection; see ``builder.worker``."""
    worker.serve(descriptor, parent, RayProcess())


class RayProcess:
    """Has one method for each request."""

    def connect(self, address: str) -> None:
        """Joins the cluster at an address, as Ray takes it; raises BadInput where there is none of the same kind."""
        import ray

        self._ray = ray
        try:
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, ignore_reinit_error=True)
        except (ConnectionError, RuntimeError, TimeoutError, ValueError) as error:
            # The client server of ray:// may hang with gRPC's handling of forks: ray-project/ray#63202.
            head = "GRPC_ENABLE_FORK_SUPPORT=0 ray start --head" if "://" in address else "ray start --head"
            raise BadInput(
                f"No Ray cluster can be used at '{address}': {first_line(error)}",
                f"Start one with '{head}', with the same versions of Python and Ray as here.",
            ) from error
        task, actor = _remote()
        self._task, self._actor = ray.remote(task), ray.remote(actor)
        self._content: Any = None
        self._under_way: dict[Any, _Task] = {}
        """By the references to the results."""
        self._news: dict[Any, _Task] = {}
        """By the references to what runs have written."""
        self._needs: dict[str, int] = {}
        self._nodes = dict[str, tuple[str, int]]()
        self._refused: dict[str, str] = {}
        self._said: list[str] = []

    def employ(self, gpu: bool) -> int:
        """Gives each task from now on a GPU, or else a processor; returns the number of places."""
        needs = {"num_cpus": 0, "num_gpus": 1} if gpu else {"num_cpus": 1, "num_gpus": 0}
        if self._needs != needs:
            self._needs, self._nodes = needs, {}
            self._places()
            self._said.append(f"Cluster: {self._capacity()}")
        return self._places()

    def _places(self) -> int:
        """Returns the number of tasks that the living nodes can run at the same time, without refused nodes."""
        found, resource = {}, "GPU" if self._needs["num_gpus"] else "CPU"
        for node in self._ray.nodes():
            room = int(node["Resources"].get(resource, 0.0)) if node["Alive"] else 0
            if room:
                found[node["NodeID"]] = f"{node['NodeManagerHostname']} ({node['NodeID'][:8]})", room
        gone = [name for key, (name, _) in self._nodes.items() if key not in found]
        self._nodes = found
        self._said += [f"Node {name} is gone: {self._capacity()} left" for name in gone]
        return sum(room for key, (_, room) in self._nodes.items() if key not in self._refused)

    def _capacity(self) -> str:
        workers = sum(room for _, room in self._nodes.values())
        return f"{counted(workers, 'worker')} on {counted(len(self._nodes), 'node')}"

    def begin(self, name: str, content: bytes, files: dict[str, bytes] | None) -> None:
        """Begins a task; see ``RayCluster.begin``. Ray's object store keeps the content while a task needs it."""
        if content:
            self._content = self._ray.put(np.frombuffer(content, np.uint8))
        self._submit(_Task(name, self._content, files))

    def _submit(self, task: _Task) -> None:
        from ray.util.scheduling_strategies import NodeLabelSchedulingStrategy, NotIn

        where: Any = "SPREAD"
        if self._refused:
            where = NodeLabelSchedulingStrategy(hard={"ray.io/node-id": NotIn(*self._refused)})
        # In a list: Ray fetches what an argument refers to before it calls the function.
        content = [task.content]
        if task.files is None:
            remote = self._task.options(max_retries=TRIES - 1, scheduling_strategy=where, **self._needs)
            self._under_way[remote.remote(__version__, "tried", content, task.name)] = task
        else:
            task.actor = self._actor.options(max_concurrency=2, scheduling_strategy=where, **self._needs).remote()
            self._under_way[task.actor.call.remote(__version__, "done", content, task.files)] = task
            self._ask_for_news(task, task.files)

    def _ask_for_news(self, task: _Task, files: Mapping[str, bytes]) -> None:
        self._news[task.actor.call.remote(__version__, "written", [], len(files[JOURNAL]))] = task

    def wait(self, seconds: float) -> Event:
        """Returns the next event, or after so many seconds that there was none."""
        from ray.exceptions import RayError

        try:
            done, _ = self._ray.wait([*self._under_way, *self._news], timeout=seconds)
        except (RayError, ConnectionError) as error:
            raise EngineUnavailable(f"The cluster is gone: {first_line(error)}", GOES_ON) from error
        event = self._event(done[0]) if done else Event()
        places, refused = self._places(), next(iter(self._refused.values()), "")
        said, self._said = tuple(self._said), []
        return replace(event, said=said, places=places, refused=refused)

    def _event(self, reference: Any) -> Event:
        """Returns what has happened when Ray has an answer; a task that was refused or lost is begun again."""
        from ray.exceptions import RayError, RayTaskError

        is_news = reference in self._news
        task = (self._news if is_news else self._under_way).pop(reference)
        try:
            node, refusal, result = self._ray.get(reference)
        except RayTaskError as error:
            node, refusal = "", ""
            result = error.cause if isinstance(error.cause, TrtBisectError) else RuntimeError(str(error))
        except RayError as error:  # that of news has no news: the run's own tells the loss
            return Event() if is_news else self._lost(task, first_line(error))
        if is_news and task.files is not None and not refusal and not isinstance(result, Exception):
            lines, shown = result
            task.files[JOURNAL] += lines
            self._ask_for_news(task, task.files)
            return Event(task.name, None, lines, shown)
        if refusal:
            return Event() if is_news else self._refuse(task, node, refusal)
        self._end(task)
        return Event(task.name, result)

    def _lost(self, task: _Task, why: str) -> Event:
        task.losses += 1
        self._end(task)
        if task.files is None or task.losses == TRIES:
            return Event(task.name, EngineUnavailable(f"{TRIES} times the worker or its node was lost: {why}"))
        self._submit(task)
        return Event()

    def _refuse(self, task: _Task, node: str, why: str) -> Event:
        if node not in self._refused:
            name = self._nodes[node][0] if node in self._nodes else node
            self._said.append(f"Node {name} is not used, since its figures would differ: {why}")
        self._refused[node] = why
        self._end(task)
        self._submit(task)
        return Event()

    def _end(self, task: _Task) -> None:
        """Gives the place of a run's actor back."""
        if task.actor is not None:
            self._ray.kill(task.actor)
            self._news = {reference: other for reference, other in self._news.items() if other is not task}

    def abandon(self) -> None:
        """Ends the tasks that have not ended."""
        for reference, task in self._under_way.items():
            if task.files is None:
                self._ray.cancel(reference, force=True)
            self._end(task)
        self._under_way.clear()

    def close(self) -> None:
        """Leaves the cluster."""
        self._ray.shutdown()


def _remote() -> tuple[Callable[..., Any], type]:
    """Returns the function of a task, and the class of an actor with the same function.

    Ray pickles what is defined in a function by value, so that a node without trt-bisect can report that.
    """

    def call(version: str, function: str, content: list[Any], argument: Any) -> tuple[str, str, Any]:
        import ray

        node = ray.get_runtime_context().get_node_id()
        try:
            import trt_bisect
            from trt_bisect.cluster import ray_worker
        except ImportError as error:
            return node, f"trt-bisect cannot be imported there: {error}", None
        if trt_bisect.__version__ != version:
            return node, f"trt_bisect {trt_bisect.__version__} instead of {version}", None
        return node, *ray_worker.call(function, node, content, argument)

    class Actor:
        def call(self, *arguments: Any) -> tuple[str, str, Any]:
            return call(*arguments)

    return call, Actor
