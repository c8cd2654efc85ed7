"""A Ray cluster of several node processes on this machine."""

import os
import shutil
import socket
import tempfile
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil

from tests.support.waiting import LIMIT
from trt_bisect.cluster import ray_cluster as cluster_module

_STORE = 200 << 20
_PATH = {"PYTHONPATH": str(Path(__file__).parents[2])}
"""The folder in which workers find the fakes."""
_SYSTEM = {
    **{"health_check_period_ms": 300, "health_check_failure_threshold": 3},  # a dead node is missed after seconds
    **{"enable_worker_prestart": False, "prestart_worker_first_driver": False},  # each costs a second of a processor
    "idle_worker_killing_time_threshold_ms": int(LIMIT * 1000),
    "worker_niceness": 0,  # 15 by default: beside two other workers of pytest a task of a second took ten
}

_CLIENT_SERVER = {
    "RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S": str(int(LIMIT)),  # a busy machine may take long to start it
    "GRPC_ENABLE_FORK_SUPPORT": "0",  # with it one start in six hung: ray-project/ray, issue 63202
}


@contextmanager
def ray_cluster(environments=({}, {"OTHER_FIGURES": "2"})):
    """A head without processors, with a client server, and a node for each of ``environments``; all ends with it."""
    folder = Path(tempfile.mkdtemp(prefix="rt", dir="/tmp"))  # Unix sockets: a short path
    set_here = {"RAY_TMPDIR": str(folder), "RAY_USAGE_STATS_ENABLED": "0"}
    before = dict(os.environ)
    os.environ.update({**set_here, **_CLIENT_SERVER})
    joining, cluster_module._JOIN_SECONDS = cluster_module._JOIN_SECONDS, LIMIT
    from ray._private import services
    from ray.cluster_utils import Cluster

    from tests.support.ray_agents import without_agents

    get_node, services.get_node = services.get_node, patient(services.get_node)
    head = {"num_cpus": 0, "object_store_memory": _STORE, "_system_config": _SYSTEM}
    head |= {"ray_client_server_port": free_port(), "include_log_monitor": False, "no_monitor": True}
    with ExitStack() as ending:
        ending.callback(_restore, before)
        ending.callback(setattr, cluster_module, "_JOIN_SECONDS", joining)
        ending.callback(setattr, services, "get_node", get_node)
        ending.callback(shutil.rmtree, folder, ignore_errors=True)
        ending.callback(kill_all_under, str(folder))
        ending.enter_context(without_agents(folder))
        cluster = Cluster(initialize_head=True, head_node_args=head)
        ending.callback(cluster.shutdown)
        yield Nodes(cluster, f"ray://127.0.0.1:{head['ray_client_server_port']}", folder / "scratch", environments)


def _restore(environment):
    """Removes what Ray has set too, PYTHONPATH among it."""
    os.environ.clear()
    os.environ.update(environment)


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

    def __init__(self, cluster, client_address, scratch, environments):
        self.cluster = cluster
        self.scratch = scratch
        scratch.mkdir()
        self.address, self.client_address = cluster.address, client_address
        for environment in environments:
            self._add(environment)

    @property
    def alive(self):
        """True while the head is."""
        return self.cluster.head_node.any_processes_alive()

    def _add(self, environment):
        environment = {**_PATH, "TMPDIR": str(self.scratch), **environment}
        node = self.cluster.add_node(wait=False, num_cpus=1, object_store_memory=_STORE, env_vars=environment)
        self.cluster._wait_for_node(node, timeout=LIMIT)

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
