"""The process that uses Ray.

It is a process of its own because Ray ends its process when the cluster's head has been gone for a minute, takes over
the signals, and writes to stderr. It answers the requests of ``connection``, one at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

import numpy as np

from trt_bisect._version import __version__
from trt_bisect.builder import worker
from trt_bisect.cluster.messages import Ended, Events, InternalError, Lost, Mail, Node, Refused
from trt_bisect.cluster.settings import GOES_ON
from trt_bisect.errors import BadInput, EngineUnavailable, first_line

_HEAD = "node:__internal_head__"
"""The resource that Ray gives its head."""
_LOOK_AT_NODES = 1.0
"""Seconds between two requests for the list of nodes."""


def serve(descriptor: int, parent: int) -> None:
    """Answers requests until the parent closes the connection; see ``builder.worker``."""
    worker.serve(descriptor, parent, RayProcess())


def _head_command(address: str) -> str:
    """Returns the command that starts a head. The client server of ``ray://`` may hang (ray-project/ray#63202)."""
    return "GRPC_ENABLE_FORK_SUPPORT=0 ray start --head" if address.startswith("ray://") else "ray start --head"


class RayProcess:
    """Has one method for each request."""

    def __init__(self) -> None:
        self._kept: dict[str, Any] = {}
        self._mailbox: Any = None
        self._under_way: dict[Any, int] = {}
        self._needs: Mapping[str, float] = {}
        self._nodes: Mapping[str, Node] = {}
        self._looked = -_LOOK_AT_NODES

    def connect(self, address: str) -> None:
        """Joins the cluster at an address, as Ray takes it; raises BadInput where there is none of the same kind."""
        import ray

        self._ray = ray
        try:
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
        except (ConnectionError, RuntimeError, TimeoutError, ValueError) as error:
            raise BadInput(
                f"No Ray cluster can be used at '{address}': {first_line(error)}",
                f"Start one with '{_head_command(address)}', with the same versions of Python and Ray as here.",
            ) from error
        self._task = ray.remote(_make_task())

    def employ(self, needs: Mapping[str, float]) -> Mapping[str, Node]:
        """Gives tasks ``num_cpus`` and ``num_gpus`` from now on; returns the nodes that have room for one."""
        if needs != self._needs:
            self._needs, self._looked = needs, -_LOOK_AT_NODES
        return self._look()

    def put(self, key: str, content: bytes) -> None:
        """Puts bytes into the object store, for all tasks."""
        self._kept[key] = self._ray.put(np.frombuffer(content, np.uint8))

    def drop(self, key: str) -> None:
        """Removes bytes from the object store."""
        self._kept.pop(key, None)

    def begin(self, ticket: int, work: str, key: str, arguments: tuple[Any, ...], avoided: tuple[str, ...]) -> None:
        """Begins a task, on none of the nodes ``avoided``.

        Args:
            ticket: identifies it in the answers of ``wait``.
            work: the module whose function ``work`` it calls: ``cluster.plan_worker`` or ``jobs.remote.worker``.
            key: the key of its data in the object store.
            arguments: the arguments of that function, in the types of JSON: a node that lacks trt-bisect must be able
                to say so.
            avoided: nodes, by their id.
        """
        from ray.util.scheduling_strategies import NodeLabelSchedulingStrategy, NotIn

        where = NodeLabelSchedulingStrategy(hard={"ray.io/node-id": NotIn(*avoided)}) if avoided else "SPREAD"
        task = self._task.options(max_retries=0, scheduling_strategy=where, **self._needs)
        handles = [self._kept[key], self._mailbox]
        self._under_way[task.remote(__version__, work, handles, ticket, key, arguments)] = ticket

    def open_mailbox(self) -> None:
        """Makes the actor on the head that whole runs send their journals to: it outlives their nodes."""
        if self._mailbox is not None:
            return
        actor = self._ray.remote(_make_mailbox())
        self._mailbox = actor.options(num_cpus=0, resources={_HEAD: 0.001}).remote()

    def wait(self, seconds: float) -> Events:
        """Returns as soon as a task has ended, or after so many seconds."""
        if not self._under_way:
            return Events((), self._look())
        try:
            self._ray.wait(list(self._under_way), timeout=seconds)
            done, _ = self._ray.wait(list(self._under_way), num_returns=len(self._under_way), timeout=0)
            mail = [] if self._mailbox is None else self._ray.get(self._mailbox.take.remote())
        except (self._ray.exceptions.RayError, ConnectionError) as error:
            raise EngineUnavailable(f"The cluster is gone: {first_line(error)}", GOES_ON) from error
        ended = tuple((self._under_way.pop(task), self._result(task)) for task in done)
        return Events(ended, self._look(), tuple((ticket, Mail(*content)) for ticket, content in mail))

    def _result(self, task: Any) -> Ended:
        from ray.exceptions import RayError, RayTaskError

        try:
            ended: Ended | tuple[str, str] = self._ray.get(task)
        except RayTaskError as error:
            return InternalError(str(error))
        except RayError as error:
            return Lost(first_line(error))
        return Refused(*ended) if isinstance(ended, tuple) else ended

    def _look(self) -> Mapping[str, Node]:
        """Returns the living nodes that have room for a task."""
        if monotonic() - self._looked < _LOOK_AT_NODES:
            return self._nodes
        self._looked = monotonic()
        found = {node["NodeID"]: _node(node, self._needs) for node in self._ray.nodes() if node["Alive"]}
        self._nodes = {name: node for name, node in found.items() if node.capacity}
        return self._nodes

    def abandon(self) -> None:
        """Ends the tasks that have not ended."""
        for task in self._under_way:
            self._ray.cancel(task, force=True)
        self._under_way.clear()

    def close(self) -> None:
        """Leaves the cluster."""
        self._ray.shutdown()


def _node(node: Mapping[str, Any], needs: Mapping[str, float]) -> Node:
    resource, each = ("GPU", needs["num_gpus"]) if needs.get("num_gpus") else ("CPU", needs["num_cpus"])
    name = f"{node['NodeManagerHostname']} ({node['NodeID'][:8]})"
    return Node(name, int(node["Resources"].get(resource, 0.0) // each))


def _make_task() -> Callable[..., Any]:
    """Returns the function of all tasks.

    Ray pickles a function that is defined in a function by value, so that a node without trt-bisect can report that.
    """

    def task(version: str, work: str, handles: list[Any], ticket: int, key: str, arguments: tuple[Any, ...]) -> Any:
        import importlib

        import ray

        node = ray.get_runtime_context().get_node_id()
        try:
            import trt_bisect

            if trt_bisect.__version__ != version:
                return node, f"trt_bisect {trt_bisect.__version__} instead of {version}"
            module = importlib.import_module(f"trt_bisect.{work}")
        except ImportError as error:
            return node, f"trt-bisect cannot be imported there: {error}"
        kept, mailbox = handles

        def send(content: Any) -> None:
            ray.get(mailbox.put.remote((ticket, content)))

        return module.work(node, key, lambda: ray.get(kept), send, *arguments)

    return task


def _make_mailbox() -> type:
    """Returns the class of the mailbox, defined in a function for the same reason."""

    class Mailbox:
        def __init__(self) -> None:
            self._letters: list[Any] = []

        def put(self, letter: Any) -> None:
            self._letters.append(letter)

        def take(self) -> list[Any]:
            taken, self._letters = self._letters, []
            return taken

    return Mailbox
