"""Nodes without the processes that Ray starts beside them and no test needs: importing Ray costs each of them a second.

The head's dashboard is left out. The two agents of a node, one for the dashboard and one that prepares runtime
environments, have stand-ins: a node waits for the ports that they tell, and ends with them.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from ray import _raylet
from ray._private import services
from ray._private.node import Node

_STAND_IN = """
import os, sys, time
from pathlib import Path
of_node = dict(text[2:].split("=", 1) for text in sys.argv if text.startswith("--") and "=" in text)
for service in {services!r}:
    port = Path(of_node["session-dir"], f"{{service}}_{{of_node['node-id']}}")
    port.with_suffix(".new").write_text("-1")
    port.with_suffix(".new").rename(port)
parent = os.getppid()
while os.getppid() == parent:
    time.sleep(1)
"""
"""Tells the node, which waits for the files, that the services are not there, and ends with the node."""
_AGENTS = {
    "--dashboard_agent_command=": ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port"),
    "--runtime_env_agent_command=": ("runtime_env_agent_port",),
}


@contextmanager
def without_agents(folder: Path):
    """For the nodes that are started meanwhile. A version of Ray that keeps no ports in files starts its own agents."""
    start, start_dashboard = services.start_ray_process, Node.start_api_server

    def start_with_stand_ins(command, *arguments, **options):
        return start([_replaced(text, folder) for text in command], *arguments, **options)

    Node.start_api_server = lambda *_, **__: None
    if hasattr(_raylet, "persist_port"):
        services.start_ray_process = start_with_stand_ins
    try:
        yield
    finally:
        services.start_ray_process, Node.start_api_server = start, start_dashboard


def _replaced(text: str, folder: Path) -> str:
    agent = next((agent for agent in _AGENTS if text.startswith(agent)), None)
    if agent is None:
        return text
    script = folder / f"{agent.strip('-=')}.py"
    script.write_text(_STAND_IN.format(services=_AGENTS[agent]))
    of_node = [each for each in text.split() if each.startswith(("--node-id=", "--session-dir="))]
    return agent + subprocess.list2cmdline([sys.executable, "-ISu", str(script), *of_node])
