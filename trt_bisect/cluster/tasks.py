"""Tasks of a Ray cluster; each is begun again on another worker if its worker is lost."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import count
from time import monotonic
from typing import Any

from trt_bisect.cluster.connection import Connection
from trt_bisect.cluster.messages import Ended, Events, InternalError, Lost, Mail, Node, Raised, Ran, Refused, Tried
from trt_bisect.errors import EngineUnavailable
from trt_bisect.support.figures import counted

_WAIT_SECONDS = 1.0
_FULL_SECONDS = 60.0
"""The time after which a cluster without room for a task is given up."""
_TICKETS = count()
"""No two tasks of this process have one: mail of a task that was abandoned is never that of another."""


@dataclass(frozen=True)
class Task:
    """A task for a worker of the cluster.

    Attributes:
        what: its name in messages.
        of: the caller's own object, returned with the result.
        key: the key of its data in the object store.
        arguments: returns its arguments; called at each try.
        on_mail: is called with each mail that it sends.
        number: the number of the try, from 1.
    """

    what: str
    of: Any
    key: str
    arguments: Callable[[], tuple[Any, ...]]
    on_mail: Callable[[Mail], None] | None = None
    number: int = 1


class Tasks:
    """Tasks of one kind. A task whose worker or node was lost is begun again, up to the number of retries."""

    def __init__(self, connection: Connection, work: str, needs: Mapping[str, float]) -> None:
        """Begins nothing yet.

        Args:
            connection: to the cluster.
            work: the module whose function ``work`` they call.
            needs: the resources of each, ``num_cpus`` and ``num_gpus``.
        """
        self._connection = connection
        self._work = work
        self._needs = needs
        self._under_way: dict[int, Task] = {}
        self._ended: deque[tuple[Task, Tried | Ran | Raised | Lost]] = deque()
        self._refused: dict[str, str] = {}
        # A run that the user interrupted has left the cluster; its interim verdict makes experiments and runs no task.
        self._nodes: Mapping[str, Node] = connection.ask("employ", needs) if connection.alive else {}
        self._had_room = monotonic()

    @property
    def size(self) -> int:
        """The number of tasks that the living nodes can run at the same time, without nodes that were refused."""
        return sum(node.capacity for name, node in self._nodes.items() if name not in self._refused)

    @property
    def capacity(self) -> str:
        """The number of tasks that all living nodes can run at the same time, in words."""
        return _capacity(self._nodes)

    def begin(self, task: Task) -> None:
        """Begins a task; it waits until a worker is free."""
        ticket = next(_TICKETS)
        self._under_way[ticket] = task
        self._connection.ask("employ", self._needs)
        self._connection.ask("begin", ticket, self._work, task.key, task.arguments(), tuple(self._refused))

    def ended(self) -> tuple[Task, Tried | Ran | Raised | Lost]:
        """Waits for the next task that has ended, or was lost too often; returns it and its result.

        Raises:
            EngineUnavailable: no node can be used, or the cluster is gone.
        """
        while not self._ended:
            events: Events = self._connection.ask("wait", _WAIT_SECONDS)
            for ticket, mail in events.mail:
                sender = self._under_way.get(ticket)
                if sender is not None and sender.on_mail is not None:
                    sender.on_mail(mail)
            for ticket, ended in events.ended:
                task = self._under_way.pop(ticket, None)
                if task is not None:
                    self._take(task, ended)
            self._look(events.nodes)
        return self._ended.popleft()

    def abandon(self) -> None:
        """Cancels the tasks that have not ended."""
        self._ended.clear()
        if self._under_way and self._connection.alive:
            self._connection.ask("abandon")
        self._under_way.clear()

    def _take(self, task: Task, ended: Ended) -> None:
        if isinstance(ended, InternalError):
            raise RuntimeError(ended.trace)
        if isinstance(ended, Refused):
            self._refuse(ended)
            self.begin(task)
        elif isinstance(ended, Lost):
            self._lost(task, ended)
        else:
            self._ended.append((task, ended))

    def _lost(self, task: Task, lost: Lost) -> None:
        tries = self._connection.cluster.retries + 1
        self._connection.say(f"Try {task.number} of {tries} of {task.what} was lost with its worker: {lost.why}")
        if task.number < tries:
            self.begin(replace(task, number=task.number + 1))
        else:
            why = f"{task.what} was tried {tries} times, and each time the worker or its node was lost: {lost.why}"
            self._ended.append((task, Lost(why)))

    def _refuse(self, refused: Refused) -> None:
        if refused.node not in self._refused:
            self._refused[refused.node] = refused.why
            name = self._nodes[refused.node].name if refused.node in self._nodes else refused.node
            self._connection.say(f"Node {name} is not used, since its figures would differ: {refused.why}")
        self._check_capacity()

    def _look(self, nodes: Mapping[str, Node]) -> None:
        """Takes note of the living nodes."""
        gone = [node.name for name, node in self._nodes.items() if name not in nodes]
        self._nodes = nodes
        for name in gone:
            self._connection.say(f"Node {name} is gone: {self.capacity} left")
        self._check_capacity()

    def _check_capacity(self) -> None:
        """Raises EngineUnavailable if all nodes were refused, or if none has had room for a long time."""
        address = self._connection.cluster.address
        if self.size:
            self._had_room = monotonic()
        elif self._refused:
            raise EngineUnavailable(
                f"No node of '{address}' can be used: {next(iter(self._refused.values()))}",
                "Install on them the same versions as here, or leave out --cluster.",
            )
        elif monotonic() - self._had_room > _FULL_SECONDS:
            raise EngineUnavailable(
                f"No node of '{address}' has had room for a task for {_FULL_SECONDS:g} s.",
                "A task needs a GPU where the engine is NVIDIA's, else --cluster-cpus processors.",
            )


def _capacity(nodes: Mapping[str, Node]) -> str:
    workers = sum(node.capacity for node in nodes.values())
    return f"{counted(workers, 'worker')} on {counted(len(nodes), 'node')}"
