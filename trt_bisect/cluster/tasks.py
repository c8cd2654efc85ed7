"""Tasks of a Ray cluster, each done again elsewhere where its worker is lost."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import count
from time import monotonic
from typing import Any

from trt_bisect.cluster.connection import Connection
from trt_bisect.cluster.messages import Broken, Ended, Lost, Mail, Node, Raised, Ran, Refused, Seen, Tried
from trt_bisect.errors import EngineUnavailable

_WAIT_SECONDS = 1.0
_NOBODY_SECONDS = 60.0
"""How long a cluster without a place for a task may take to get one."""


@dataclass(frozen=True)
class Task:
    """What is done elsewhere.

    Attributes:
        what: it is, for people.
        of: what it belongs to, for the caller.
        key: of what it works on, in the object store.
        arguments: asked for at each try.
        on_mail: is told what it writes meanwhile.
        number: of the try.
    """

    what: str
    of: Any
    key: str
    arguments: Callable[[], tuple[Any, ...]]
    on_mail: Callable[[Mail], None] | None = None
    number: int = 1


class Tasks:
    """Tasks of one kind. Those whose worker or node was lost are begun again, and the lost tries counted, here."""

    def __init__(self, connection: Connection, work: str, needs: Mapping[str, float]) -> None:
        """Begins nothing yet.

        Args:
            connection: to the cluster.
            work: the module whose ``work`` they do.
            needs: what each is given, ``num_cpus`` and ``num_gpus``.
        """
        self._connection = connection
        self._work = work
        self._needs = needs
        self._tickets = count()
        self._under_way: dict[int, Task] = {}
        self._ended: deque[tuple[Task, Tried | Ran | Raised | Lost]] = deque()
        self._refused: dict[str, str] = {}
        self._nodes: Mapping[str, Node] = connection.ask("employ", needs)
        self._had_places = monotonic()

    @property
    def size(self) -> int:
        """The tasks that the nodes that live can hold, but for those that were refused."""
        return sum(node.places for name, node in self._nodes.items() if name not in self._refused)

    @property
    def places(self) -> str:
        """The same in words."""
        return _places(self._nodes)

    def begin(self, task: Task) -> None:
        """Has a task done; it may have to wait for a place."""
        ticket = next(self._tickets)
        self._under_way[ticket] = task
        self._connection.ask("employ", self._needs)
        self._connection.ask("begin", ticket, self._work, task.key, task.arguments(), tuple(self._refused))

    def ended(self) -> tuple[Task, Tried | Ran | Raised | Lost]:
        """The next task that has ended, or was lost too often.

        Raises:
            EngineUnavailable: no node can be used, or the cluster is gone.
        """
        while not self._ended:
            seen: Seen = self._connection.ask("wait", _WAIT_SECONDS)
            for ticket, mail in seen.mail:
                sender = self._under_way.get(ticket)
                if sender is not None and sender.on_mail is not None:
                    sender.on_mail(mail)
            for ticket, ended in seen.ended:
                task = self._under_way.pop(ticket, None)
                if task is not None:
                    self._take(task, ended)
            self._look(seen.nodes)
        return self._ended.popleft()

    def abandon(self) -> None:
        """Cancels the tasks that have not ended."""
        self._ended.clear()
        if self._under_way and self._connection.alive:
            self._connection.ask("abandon")
        self._under_way.clear()

    def _take(self, task: Task, ended: Ended) -> None:
        if isinstance(ended, Broken):
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
            self._connection.say(f"Node {name} is not used, its figures would be others: {refused.why}")
        self._check_places()

    def _look(self, nodes: Mapping[str, Node]) -> None:
        """Takes note of the nodes that live."""
        gone = [node.name for name, node in self._nodes.items() if name not in nodes]
        self._nodes = nodes
        for name in gone:
            self._connection.say(f"Node {name} is gone: {self.places} left")
        self._check_places()

    def _check_places(self) -> None:
        """Raises EngineUnavailable where all nodes were refused, or none has had room for long."""
        address = self._connection.cluster.address
        if self.size:
            self._had_places = monotonic()
        elif self._refused:
            raise EngineUnavailable(
                f"No node of '{address}' can be used: {next(iter(self._refused.values()))}",
                "Give them what is installed here, in the same versions, or leave out --cluster.",
            )
        elif monotonic() - self._had_places > _NOBODY_SECONDS:
            raise EngineUnavailable(
                f"No node of '{address}' has had room for a task for {_NOBODY_SECONDS:g} s.",
                "A task needs a GPU where the engine is NVIDIA's, else --cluster-cpus processors.",
            )


def _places(nodes: Mapping[str, Node]) -> str:
    places = sum(node.places for node in nodes.values())
    return f"{places} place{'' if places == 1 else 's'} on {len(nodes)} node{'' if len(nodes) == 1 else 's'}"
