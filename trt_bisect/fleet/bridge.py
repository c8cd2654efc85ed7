"""The process that speaks to Ray.

It is a process of its own because Ray ends the one that it runs in when the cluster's head has been gone for a minute,
takes over its signals, and writes to its stderr. It answers what ``ray_crew`` asks, one request at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

import numpy as np

from trt_bisect._version import __version__
from trt_bisect.builder import worker
from trt_bisect.errors import BadInput, first_line
from trt_bisect.fleet.messages import Broken, Ended, Lost, Node, Refused, Seen
from trt_bisect.precision import PrecisionPlan

_LOOK_AT_NODES = 1.0
"""Seconds between two looks."""


def serve(descriptor: int, parent: int) -> None:
    """Answers requests until the parent closes the connection; see ``builder.worker``."""
    worker.serve(descriptor, parent, Bridge())


class Bridge:
    """One method a request."""

    def __init__(self) -> None:
        self._subjects: dict[str, Any] = {}
        self._under_way: dict[Any, int] = {}
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
                "Start one with 'ray start --head', with the same versions of Python and Ray as here.",
            ) from error
        self._task = ray.remote(_make_task())

    def employ(self, needs: Mapping[str, float]) -> Mapping[str, Node]:
        """Takes tasks that are given ``num_cpus`` and ``num_gpus`` from here on; the nodes that have room for one."""
        self._needs = needs
        self._looked = -_LOOK_AT_NODES
        return self._look()

    def put(self, key: str, subject: bytes) -> None:
        """Puts a pickled subject into the object store, for all tasks; it takes the place of the one before."""
        self._subjects = {key: self._ray.put(np.frombuffer(subject, np.uint8))}

    def begin(self, ticket: int, key: str, plan: PrecisionPlan, avoided: tuple[str, ...]) -> None:
        """Has a plan tried, on none of the nodes ``avoided``."""
        from ray.util.scheduling_strategies import NodeLabelSchedulingStrategy, NotIn

        where = NodeLabelSchedulingStrategy(hard={"ray.io/node-id": NotIn(*avoided)}) if avoided else "SPREAD"
        task = self._task.options(max_retries=0, scheduling_strategy=where, **self._needs)
        self._under_way[task.remote(__version__, key, [self._subjects[key]], plan.key())] = ticket

    def wait(self, seconds: float) -> Seen:
        """What has ended, as soon as something has, or when so much time has passed."""
        if not self._under_way:
            return Seen((), self._look())
        self._ray.wait(list(self._under_way), timeout=seconds)
        done, _ = self._ray.wait(list(self._under_way), num_returns=len(self._under_way), timeout=0)
        return Seen(tuple((self._under_way.pop(task), self._result(task)) for task in done), self._look())

    def _result(self, task: Any) -> Ended:
        from ray.exceptions import RayError, RayTaskError

        try:
            ended: Ended | tuple[str, str] = self._ray.get(task)
        except RayTaskError as error:
            return Broken(str(error))
        except RayError as error:
            return Lost(first_line(error))
        return Refused(*ended) if isinstance(ended, tuple) else ended

    def _look(self) -> Mapping[str, Node]:
        """The nodes that live and have room for a task."""
        if monotonic() - self._looked < _LOOK_AT_NODES:
            return self._nodes
        self._looked = monotonic()
        found = {node["NodeID"]: _node(node, self._needs) for node in self._ray.nodes() if node["Alive"]}
        self._nodes = {name: node for name, node in found.items() if node.places}
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


def _make_task() -> Callable[[str, str, list[Any], str], Any]:
    """The task. As a function in a function it travels as it is, so that a node without trt-bisect can say so."""

    def try_plan(version: str, key: str, subject: list[Any], plan: str) -> Any:
        import ray

        node = ray.get_runtime_context().get_node_id()
        try:
            import trt_bisect
            from trt_bisect.fleet import station
        except ImportError as error:
            return node, f"trt-bisect cannot be imported there: {error}"
        if trt_bisect.__version__ != version:
            return node, f"trt_bisect {trt_bisect.__version__} instead of {version}"
        return station.try_plan(node, key, lambda: ray.get(subject[0]), plan)

    return try_plan
