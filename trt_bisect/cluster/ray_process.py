"""The process that uses Ray.

It is a process of its own because Ray ends its process when the cluster's head has been gone for a minute, takes over
the signals, and writes to stderr. It answers the requests of ``ray_cluster.RayCluster``, one at a time.

Ray itself begins a task again whose worker or node was lost. These are tasks and not actors: an actor keeps its place
on a node, and a plan that waits for a lost one would not go to the node that is free.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

import numpy as np

from trt_bisect._version import __version__
from trt_bisect.builder import isolation
from trt_bisect.cluster.address import GOES_ON
from trt_bisect.errors import BadInput, EngineUnavailable, TrtBisectError, first_line
from trt_bisect.support.figures import counted

TRIES = 3
"""The number of times that a task is begun whose worker or node is lost each time."""
_HEAD = "node:__internal_head__"
"""The resource that Ray gives its head."""
_LOOK_AT_NODES = 1.0
"""Seconds between two requests for the list of nodes."""


@dataclass(frozen=True)
class Events:
    """The events since the last request for them.

    Attributes:
        ended: by ticket, the results of the tasks that have ended. A TrtBisectError is the task's own,
            EngineUnavailable means that its worker was lost each time, a RuntimeError is one of trt-bisect itself.
        written: by ticket, new whole lines of a run's journal, and by name the files that show how far it is.
        said: lines for the user.
        places: the number of tasks that can run at the same time.
        refused: the reason why a node is not used; empty if all are.
    """

    ended: Mapping[int, Any]
    written: Mapping[int, tuple[bytes, Mapping[str, bytes]]]
    said: tuple[str, ...]
    places: int
    refused: str


def serve(descriptor: int, parent: int) -> None:
    """Answers requests until the parent closes the connection; see ``builder.isolation``."""
    isolation.serve(descriptor, parent, RayProcess())


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
        self._task = ray.remote(_make_task())
        self._mailbox: Any = None
        self._content: Any = None
        self._under_way: dict[Any, tuple[int, tuple[list[Any], Any], Any]] = {}
        self._resource, self._nodes, self._looked = "", dict[str, tuple[str, int]](), 0.0
        self._refused: dict[str, str] = {}
        self._said: list[str] = []

    def employ(self, gpu: bool) -> None:
        """Gives each task from now on a GPU, or else a processor."""
        if self._resource != ("GPU" if gpu else "CPU"):
            self._resource, self._nodes, self._looked = "GPU" if gpu else "CPU", {}, 0.0
            self.places()
            self._said.append(f"Cluster: {self._capacity()}")

    def places(self) -> int:
        """Returns the number of tasks that the living nodes can run at the same time, without refused nodes."""
        if monotonic() - self._looked > _LOOK_AT_NODES:
            found = {}
            for node in self._ray.nodes():
                room = int(node["Resources"].get(self._resource, 0.0)) if node["Alive"] else 0
                if room:
                    found[node["NodeID"]] = f"{node['NodeManagerHostname']} ({node['NodeID'][:8]})", room
            gone = [name for key, (name, _) in self._nodes.items() if key not in found]
            self._nodes, self._looked = found, monotonic()
            self._said += [f"Node {name} is gone: {self._capacity()} left" for name in gone]
        return sum(room for key, (_, room) in self._nodes.items() if key not in self._refused)

    def _capacity(self) -> str:
        workers = sum(room for _, room in self._nodes.values())
        return f"{counted(workers, 'worker')} on {counted(len(self._nodes), 'node')}"

    def put(self, content: bytes) -> None:
        """Puts what the next tasks work on into Ray's object store; it stays there while a task needs it."""
        self._content = self._ray.put(np.frombuffer(content, np.uint8))

    def begin_plan(self, ticket: int, plan: str) -> None:
        """Begins to try the plan with this key; ``ticket`` identifies the task in the answers of ``wait``."""
        self._submit(ticket, ([], plan), self._content)

    def begin_run(self, ticket: int, files: Mapping[str, bytes]) -> None:
        """Begins a whole run, whose folder holds ``files``: the journal is kept on the head, and outlives its node."""
        if self._mailbox is None:
            actor = self._ray.remote(_make_mailbox())
            self._mailbox = actor.options(num_cpus=0, resources={_HEAD: 0.001}).remote()
        self._ray.get(self._mailbox.open.remote(ticket, files))
        self._submit(ticket, ([self._mailbox], ticket), self._content)

    def _submit(self, ticket: int, arguments: tuple[list[Any], Any], content: Any) -> None:
        """Begins a task.

        Args:
            ticket: identifies it.
            arguments: its mailbox and its subject, see ``ray_worker.done``; a node without trt-bisect can read them.
            content: the reference to what it works on.
        """
        from ray.util.scheduling_strategies import NodeLabelSchedulingStrategy, NotIn

        where: Any = "SPREAD"
        if self._refused:
            where = NodeLabelSchedulingStrategy(hard={"ray.io/node-id": NotIn(*self._refused)})
        needs = {"num_gpus": 1, "num_cpus": 0} if self._resource == "GPU" else {"num_cpus": 1}
        task = self._task.options(max_retries=TRIES - 1, scheduling_strategy=where, **needs)
        # In a list: Ray fetches what an argument refers to before it calls the function.
        self._under_way[task.remote(__version__, [content], *arguments)] = ticket, arguments, content

    def wait(self, seconds: float) -> Events:
        """Returns as soon as a task has ended, or after so many seconds."""
        tasks = list(self._under_way)
        try:
            self._ray.wait(tasks, timeout=seconds)
            done, _ = self._ray.wait(tasks, num_returns=len(tasks), timeout=0)
            written: Any = self._ray.get(self._mailbox.take.remote()) if self._mailbox else {}
        except (self._ray.exceptions.RayError, ConnectionError) as error:
            raise EngineUnavailable(f"The cluster is gone: {first_line(error)}", GOES_ON) from error
        ended = {}
        for task in done:
            ticket, arguments, content = self._under_way.pop(task)
            node, refusal, result = self._result(task)
            if not refusal:
                ended[ticket] = result
                for mailbox in arguments[0]:
                    mailbox.close.remote(ticket)
                continue
            if node not in self._refused:
                name = self._nodes[node][0] if node in self._nodes else node
                self._said.append(f"Node {name} is not used, since its figures would differ: {refusal}")
            self._refused[node] = refusal
            self._submit(ticket, arguments, content)
        places, refused = self.places(), next(iter(self._refused.values()), "")
        said, self._said = tuple(self._said), []
        return Events(ended, written, said, places, refused)

    def _result(self, task: Any) -> tuple[str, str, Any]:
        """Returns the node of a task, the reason why that is not used, and what the task returned or raised."""
        from ray.exceptions import RayError, RayTaskError

        try:
            result: tuple[str, str, Any] = self._ray.get(task)
        except RayTaskError as error:
            return "", "", error.cause if isinstance(error.cause, TrtBisectError) else RuntimeError(str(error))
        except RayError as error:
            why = f"{TRIES} times the worker or its node was lost: {first_line(error)}"
            return "", "", EngineUnavailable(why)
        return result

    def abandon(self) -> None:
        """Ends the tasks that have not ended."""
        for task in self._under_way:
            self._ray.cancel(task, force=True)
        self._under_way.clear()

    def close(self) -> None:
        """Leaves the cluster."""
        self._ray.shutdown()


def _make_task() -> Callable[..., Any]:
    """Returns the function of all tasks.

    Ray pickles a function that is defined in a function by value, so that a node without trt-bisect can report that.
    """

    def task(version: str, content: list[Any], mailbox: list[Any], subject: Any) -> tuple[str, str, Any]:
        import ray

        node = ray.get_runtime_context().get_node_id()
        try:
            import trt_bisect
            from trt_bisect.cluster import ray_worker
        except ImportError as error:
            return node, f"trt-bisect cannot be imported there: {error}", None
        if trt_bisect.__version__ != version:
            return node, f"trt_bisect {trt_bisect.__version__} instead of {version}", None
        return ray_worker.done(node, content[0], mailbox, subject)

    return task


def _make_mailbox() -> type:
    """Returns the class of the actor that keeps the files of runs, defined in a function for the same reason."""

    class Mailbox:
        def __init__(self) -> None:
            self.files: dict[int, dict[str, bytes]] = {}
            self.unread: dict[int, tuple[bytes, dict[str, bytes]]] = {}

        def open(self, ticket: int, files: Mapping[str, bytes]) -> None:
            self.files[ticket] = dict(files)

        def read(self, ticket: int) -> Mapping[str, bytes]:
            return self.files[ticket]

        def write(self, ticket: int, journal: str, lines: bytes, shown: dict[str, bytes]) -> None:
            self.files[ticket][journal] += lines
            lines_before, shown_before = self.unread.get(ticket, (b"", {}))
            self.unread[ticket] = lines_before + lines, {**shown_before, **shown}

        def close(self, ticket: int) -> None:
            del self.files[ticket]

        def take(self) -> Mapping[int, tuple[bytes, dict[str, bytes]]]:
            unread, self.unread = self.unread, {}
            return unread

    return Mailbox
