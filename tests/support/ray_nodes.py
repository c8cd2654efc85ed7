"""A Ray cluster of several node processes on this machine."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.support.waiting import LIMIT
from trt_bisect.cluster import connection

_STORE = 200 << 20
_PATH = {"PYTHONPATH": str(Path(__file__).parents[2])}
"""The folder in which workers find the fakes."""
MEETING = "TRT_BISECT_TEST_MEETING"
"""The variable that names a folder which all processes of the cluster see."""
_LOOKS = {"health_check_period_ms": 1000, "health_check_failure_threshold": 5}
"""A dead node is missed after seconds."""


_CLIENT_SERVER = {
    "RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S": str(int(LIMIT)),  # a busy machine may take long to start it
    "GRPC_ENABLE_FORK_SUPPORT": "0",  # with it one start in six hung: ray-project/ray, issue 63202
}


@contextmanager
def ray_cluster(processors=(1, 1)):
    """A head without processors, with a client server, and a node for each of ``processors``; all ends with it."""
    folder = tempfile.mkdtemp(prefix="rt", dir="/tmp")  # Unix sockets: a short path
    set_here = {"RAY_TMPDIR": folder, "RAY_USAGE_STATS_ENABLED": "0", MEETING: f"{folder}/meeting", **_CLIENT_SERVER}
    before = dict(os.environ)
    os.environ.update(set_here)
    joining, connection._JOIN_SECONDS = connection._JOIN_SECONDS, LIMIT
    from ray._private import services
    from ray.cluster_utils import Cluster

    get_node, services.get_node = services.get_node, patient(services.get_node)
    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": _STORE, "_system_config": _LOOKS}
    head["ray_client_server_port"] = free_port()
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        nodes = Nodes(cluster, f"ray://127.0.0.1:{head['ray_client_server_port']}", Path(folder) / "scratch")
        for count in processors:
            nodes.add(count)
        yield nodes
    finally:
        connection._JOIN_SECONDS = joining
        cluster.shutdown()
        kill_all_under(folder)
        shutil.rmtree(folder, ignore_errors=True)
        services.get_node = get_node
        os.environ.clear()  # of what Ray has set too, PYTHONPATH among it
        os.environ.update(before)


def patient(get_node):
    """Ray asks for 30 seconds whether a node has started: too short on a busy machine. This asks up to ``LIMIT``."""

    def ask(*arguments):
        deadline = time.monotonic() + LIMIT
        while True:
            try:
                return get_node(*arguments)
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    return ask


class Nodes:
    """The cluster, with ``address``, ``client_address`` and ``scratch``, its nodes' folder for temporary files."""

    def __init__(self, cluster, client_address, scratch):
        self.cluster = cluster
        self.scratch = scratch
        scratch.mkdir()
        self.address, self.client_address = cluster.address, client_address

    def add(self, processors, **environment):
        """Adds a node."""
        environment = {**_PATH, "TMPDIR": str(self.scratch), **environment}
        given = {"object_store_memory": _STORE, "env_vars": environment}
        node = self.cluster.add_node(wait=False, num_cpus=processors, **given)
        self.cluster._wait_for_node(node, timeout=LIMIT)
        return node

    def kill(self, node):
        """Ends a node at once, as a power failure does: ``kill -9`` of its raylet and all that it started."""
        raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
        family = [raylet, *raylet.children(recursive=True)]
        self.cluster.remove_node(node, allow_graceful=False)
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def kill_that_of(self, pid):
        """Kills the node that a process belongs to."""
        family = {parent.pid for parent in psutil.Process(pid).parents()}
        (node,) = [n for n in self.cluster.worker_nodes if n.all_processes["raylet"][0].process.pid in family]
        self.kill(node)

    def remove(self, node):
        """Removes a node that a test has added, if it still exists, and waits until the cluster knows."""
        if node in self.cluster.worker_nodes:
            self.cluster.remove_node(node)
        self.cluster.wait_for_nodes(LIMIT)


def free_port():
    """A port of this machine that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def kill_all_under(folder):
    """Kills the processes that are left of a cluster; they have its folder in their command lines."""
    for process in psutil.process_iter(["cmdline"]):
        if any(folder in text for text in process.info["cmdline"] or ()):
            with suppress(psutil.NoSuchProcess):
                process.kill()
