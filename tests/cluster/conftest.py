from __future__ import annotations

import pytest

import trt_bisect


@pytest.fixture(scope="package")
def ray_clusters():
    pytest.importorskip("ray")
    from tests.support.ray_connection import Clusters

    with Clusters() as clusters:
        yield clusters


@pytest.fixture
def ray_nodes(ray_clusters):
    """A Ray cluster of this machine: a head, and two nodes of one processor each. The tests here share it."""
    return ray_clusters.whole()


@pytest.fixture(scope="package")
def here(lenet):
    """The report of a run here that tries every plan; not to be changed."""
    return trt_bisect.run(
        lenet / "lenet_planted.onnx", lenet / "calibration.npz", strategy="exhaustive", explain="none"
    )
