from __future__ import annotations

import pytest


@pytest.fixture(scope="package")
def ray_nodes():
    """A Ray cluster of this machine: a head, and two nodes of one processor each. It ends with the last test here."""
    pytest.importorskip("ray")
    from tests.support.ray_nodes import SharedConnections, ray_cluster
    from trt_bisect.cluster import connection

    shared = SharedConnections()
    with ray_cluster() as nodes, pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "Worker", shared)
        yield nodes
        shared.end()
