"""One Ray cluster, and one process that uses it, for many tests.

Ray starts new workers for each process that uses it, and each of them imports everything anew: seconds a test.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from tests.support.ray_nodes import Nodes, ray_cluster
from trt_bisect.builder.isolation import Worker
from trt_bisect.cluster import ray_cluster as cluster_module

_MISSES_ITS_HEAD = {"RAY_gcs_rpc_server_reconnect_timeout_s": "1"}
"""Ends the process that uses Ray soon after the head has died; Ray waits a minute, in a loop without a pause."""


class Clusters(ExitStack):
    """A cluster that lives on from test to test, with the nodes that they left; where its head is dead, another."""

    _nodes: Nodes | None = None

    def living(self) -> Nodes:
        """Returns the cluster."""
        if self._nodes is None or not self._nodes.alive:
            self.close()
            self._nodes = self.enter_context(ray_cluster())
            self.enter_context(shared_process(self._nodes.address))
        return self._nodes


@contextmanager
def shared_process(address: str) -> Iterator[None]:
    """Until the end, all that use the cluster at ``address`` from this process share one process."""
    opened: list[Worker] = []

    class Shared:
        """Takes the place of a ``Worker``; the first request tells which cluster it is for."""

        def __init__(self, environment: dict[str, str], module: str) -> None:
            self._made = lambda: Worker({**environment, **_MISSES_ITS_HEAD}, module)
            self._worker: Worker | None = None

        @property
        def alive(self) -> bool:
            return self._worker.alive

        def ask(self, request: tuple[Any, ...], limit: float | None) -> Any:
            if self._worker is None and request[1] == address:
                if not opened or not opened[-1].alive:
                    opened.append(self._made())
                self._worker = opened[-1]
            elif self._worker is None:
                self._worker = self._made()
            ends = request == ("close",) and self._worker in opened
            return self._worker.ask(("abandon",) if ends else request, limit)

        def end(self) -> None:
            if self._worker not in opened:
                self._worker.end()

    with mock.patch.object(cluster_module, "Worker", Shared):
        try:
            yield
        finally:
            for worker in opened:
                worker.end()
