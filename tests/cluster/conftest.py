from __future__ import annotations

import pytest


@pytest.fixture(scope="package")
def ray_nodes():
    """A Ray cluster of this machine: a head, and two nodes of one processor each. It ends with the last test here."""
    pytest.importorskip("ray")
    from tests.support.ray_connection import shared_connection
    from tests.support.ray_nodes import ray_cluster

    with ray_cluster() as nodes, shared_connection(nodes.address):
        yield nodes
