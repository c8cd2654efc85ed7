"""The fleet of a Ray cluster: each plan is a task, tried again elsewhere where its worker is lost."""

from __future__ import annotations

import importlib.util
import pickle
import socket
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from time import monotonic
from types import TracebackType
from typing import Any

from trt_bisect._version import versions
from trt_bisect.builder.base import Builder
from trt_bisect.builder.engines import ONNXRUNTIME
from trt_bisect.builder.isolation import Worker
from trt_bisect.builder.tensorrt_build import timings_of
from trt_bisect.errors import BadInput, EngineUnavailable, TrialFailed, first_line
from trt_bisect.evaluator.attempt import Attempt, Failure
from trt_bisect.evaluator.crew import Subject
from trt_bisect.evaluator.trial import LOST
from trt_bisect.fleet.cluster import AUTO, Cluster
from trt_bisect.fleet.messages import Broken, Ended, Lost, Node, Raised, Refused, Seen, Tried
from trt_bisect.precision import PrecisionPlan

_SCHEME = "ray://"
_REACH_SECONDS = 5.0
_JOIN_SECONDS = 60.0
_ANSWER_SECONDS = 90.0
"""More than Ray gives a head that does not answer."""
_WAIT_SECONDS = 1.0
_NOBODY_SECONDS = 60.0
"""How long a cluster without a place for a task may take to get one."""

Say = Callable[[str], None]


class RayFleet:
    """A connection to a Ray cluster; see ``bridge``."""

    def __init__(self, cluster: Cluster, say: Say) -> None:
        """Joins the cluster.

        Raises:
            BadInput: Ray is not installed, or there is no cluster that can be joined.
        """
        address = cluster.address
        if importlib.util.find_spec("ray") is None:
            raise BadInput(
                f"The cluster '{address}' needs Ray, which is not installed.", "pip install 'trt-bisect[cluster]'"
            )
        _reach(address)
        self.cluster = cluster
        self.say = say
        self._worker = Worker({"RAY_USAGE_STATS_ENABLED": "0"}, "trt_bisect.fleet.bridge")
        self._made = count()
        self._told = False
        try:
            self._worker.ask(("connect", address), _JOIN_SECONDS)
        except TrialFailed as failure:
            raise BadInput(
                f"What answers at '{address}' cannot be joined as a Ray cluster: {first_line(failure)}",
                "Give the address that 'ray start --head' printed, or ray://HOST:10001 for its client server.",
            ) from failure

    def crew(self, subject: Subject, builder: Builder) -> RayCrew:  # noqa: ARG002
        """Tasks on a subject, with a GPU each where its engine is NVIDIA's."""
        needs: dict[str, float] = {"num_gpus": 1, "num_cpus": 0}
        if subject.engine == ONNXRUNTIME:
            needs = {"num_cpus": self.cluster.cpus}
            subject = replace(subject, options=replace(subject.options, threads=self.cluster.cpus))
        nodes: Mapping[str, Node] = self.ask("employ", needs)
        if not self._told:
            self.say(f"Cluster {self.cluster.address}: {_places(nodes)}")
            self._told = True
        subject = replace(subject, facts={**versions(), **subject.facts})
        return RayCrew(self, f"subject {next(self._made)}", subject, nodes)

    def ask(self, request: str, *arguments: Any) -> Any:
        """What the bridge answers.

        Raises:
            EngineUnavailable: it does not: the cluster is gone.
        """
        try:
            return self._worker.ask((request, *arguments), _ANSWER_SECONDS)
        except TrialFailed as failure:
            raise EngineUnavailable(
                f"The cluster '{self.cluster.address}' does not answer any more: {first_line(failure)}",
                "What was measured is kept, and the same command goes on from there, without --cluster too.",
            ) from failure

    @property
    def alive(self) -> bool:
        """The bridge can be asked."""
        return self._worker.alive

    def __enter__(self) -> RayFleet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.alive:
            with suppress(EngineUnavailable):
                self.ask("close")
        self._worker.end()


@dataclass(frozen=True)
class _Try:
    plan: PrecisionPlan
    number: int


class RayCrew:
    """Tries plans as tasks of Ray; a plan whose worker or node was lost is tried again, the lost tries counted here."""

    def __init__(self, fleet: RayFleet, key: str, subject: Subject, nodes: Mapping[str, Node]) -> None:
        """Sends nothing yet.

        Args:
            fleet: whose tasks they are.
            key: the subject's, unlike that of any other of the fleet.
            subject: what plans are tried on.
            nodes: that live.
        """
        self._fleet = fleet
        self._key = key
        self._subject: Subject | None = subject
        self._timings = subject.options.timing_cache
        self._tickets = count()
        self._under_way: dict[int, _Try] = {}
        self._ended: deque[tuple[PrecisionPlan, Attempt]] = deque()
        self._refused: dict[str, str] = {}
        self._nodes = nodes
        self._had_places = monotonic()

    @property
    def size(self) -> int:
        """The tasks that the nodes that live can hold, but for those that were refused."""
        return sum(node.places for name, node in self._nodes.items() if name not in self._refused)

    def begin(self, plan: PrecisionPlan) -> None:
        """Has a plan tried; the first one takes the subject along."""
        if self._subject is not None:
            self._fleet.ask("put", self._key, pickle.dumps(self._with_timings(self._subject), protocol=5))
            self._subject = None
        self._submit(_Try(plan, 1))

    def ended(self) -> tuple[PrecisionPlan, Attempt]:
        """The next plan that was tried, or was lost too often.

        Raises:
            EngineUnavailable: no node can be used, or the cluster is gone.
            TrtBisectError: a worker raised it.
        """
        while not self._ended:
            seen: Seen = self._fleet.ask("wait", _WAIT_SECONDS)
            for ticket, ended in seen.ended:
                tried = self._under_way.pop(ticket, None)
                if tried is not None:
                    self._take(tried, ended)
            self._look(seen.nodes)
        return self._ended.popleft()

    def abandon(self) -> None:
        """Cancels the tasks that have not ended."""
        self._ended.clear()
        if self._under_way and self._fleet.alive:
            self._fleet.ask("abandon")
        self._under_way.clear()

    def _submit(self, tried: _Try) -> None:
        ticket = next(self._tickets)
        self._under_way[ticket] = tried
        self._fleet.ask("begin", ticket, self._key, tried.plan, tuple(self._refused))

    def _take(self, tried: _Try, ended: Ended) -> None:
        """What is done with a plan's task that has ended."""
        if isinstance(ended, Raised):
            raise ended.error
        if isinstance(ended, Broken):
            raise RuntimeError(ended.trace)
        if isinstance(ended, Tried):
            self._keep_timings(ended)
            self._ended.append((tried.plan, ended.attempt))
        elif isinstance(ended, Refused):
            self._refuse(ended)
            self._submit(tried)
        else:
            self._lost(tried, ended)

    def _lost(self, tried: _Try, lost: Lost) -> None:
        tries = self._fleet.cluster.retries + 1
        self._fleet.say(f"Try {tried.number} of {tries} of a plan was lost with its worker: {lost.why}")
        if tried.number < tries:
            self._submit(replace(tried, number=tried.number + 1))
        else:
            message = f"The plan was tried {tries} times, and each time the worker or its node was lost: {lost.why}"
            self._ended.append((tried.plan, Failure(LOST, message)))

    def _refuse(self, refused: Refused) -> None:
        if refused.node not in self._refused:
            self._refused[refused.node] = refused.why
            name = self._nodes[refused.node].name if refused.node in self._nodes else refused.node
            self._fleet.say(f"Node {name} is not used, its figures would be others: {refused.why}")
        self._check_places()

    def _look(self, nodes: Mapping[str, Node]) -> None:
        """Takes note of the nodes that live."""
        gone = [node.name for name, node in self._nodes.items() if name not in nodes]
        self._nodes = nodes
        for name in gone:
            self._fleet.say(f"Node {name} is gone: {_places(nodes)} left")
        self._check_places()

    def _check_places(self) -> None:
        """Raises EngineUnavailable where all nodes were refused, or none has had room for long."""
        address = self._fleet.cluster.address
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

    def _with_timings(self, subject: Subject) -> Subject:
        path = self._timings
        return replace(subject, timings=path.read_bytes()) if path is not None and path.is_file() else subject

    def _keep_timings(self, tried: Tried) -> None:
        if tried.timings and self._timings is not None:
            timings_of(self._timings, tried.node).write_bytes(tried.timings)


def _places(nodes: Mapping[str, Node]) -> str:
    places = sum(node.places for node in nodes.values())
    return f"{places} place{'' if places == 1 else 's'} on {len(nodes)} node{'' if len(nodes) == 1 else 's'}"


def _reach(address: str) -> None:
    """Sees whether anything listens there: Ray itself would try for a minute or more, and tell little."""
    if address == AUTO:
        return
    host, _, port = address.removeprefix(_SCHEME).rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _REACH_SECONDS).close()
    except (OSError, OverflowError, UnicodeError) as error:
        raise BadInput(
            f"Nothing answers at '{address}': {first_line(error)}",
            "Give the address that 'ray start --head' printed, or ray://HOST:10001 for its client server.",
        ) from error
