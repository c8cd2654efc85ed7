"""One Ray cluster, and one connection to it, for many tests.

Ray starts new workers for each connection, and each of them imports everything anew: seconds a test.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

from tests.support.ray_nodes import Nodes, ray_cluster
from trt_bisect.cluster import ray_workers
from trt_bisect.cluster.connection import Connection
from trt_bisect.cluster.settings import ClusterSettings
from trt_bisect.jobs.remote import dispatch

_LOOK_AGAIN = {"num_cpus": math.inf}
"""Needs that differ from those before, so that the next request asks Ray for the nodes."""
_MISSES_ITS_HEAD = {"RAY_gcs_rpc_server_reconnect_timeout_s": "1"}
"""Ends the process that uses Ray soon after the head has died; Ray waits a minute, in a loop without a pause."""


class Clusters(ExitStack):
    """A cluster that lives on from test to test; another is opened where a test has killed its head."""

    _nodes: Nodes | None = None

    def whole(self) -> Nodes:
        """Returns the cluster, with all its nodes."""
        if self._nodes is None or not self._nodes.alive:
            self.close()
            self._nodes = self.enter_context(ray_cluster())
            self.enter_context(shared_connection(self._nodes.address))
        self._nodes.complete()
        return self._nodes


class _Borrowed(Connection):
    """The shared connection, with settings of its own."""

    def __init__(self, shared: Connection, cluster: ClusterSettings, say: Callable[[str], None]) -> None:
        self.cluster, self.say, self._worker = cluster, say, shared._worker
        self.ask("employ", _LOOK_AGAIN)

    def close(self) -> None:
        if self.alive:
            self.ask("abandon")


@contextmanager
def shared_connection(address: str) -> Iterator[None]:
    """Until the end, all that connect to the cluster at ``address`` in this process use one connection."""
    opened: list[Connection] = []

    def connect(cluster: ClusterSettings, say: Callable[[str], None]) -> Connection:
        if cluster.address != address:
            return Connection(cluster, say)
        if not opened or not opened[-1].alive:
            with mock.patch.dict(os.environ, _MISSES_ITS_HEAD):
                opened.append(Connection(cluster, say))
        return _Borrowed(opened[-1], cluster, say)

    ray_workers.Connection = dispatch.Connection = connect
    try:
        yield
    finally:
        ray_workers.Connection = dispatch.Connection = Connection
        for connection in opened:
            connection.close()
