import pytest

import trt_bisect
from trt_bisect.report.model import Report


@pytest.fixture(scope="package")
def ray_clusters():
    pytest.importorskip("ray")
    from tests.support.ray_connection import Clusters

    with Clusters() as clusters:
        yield clusters


@pytest.fixture
def ray_nodes(ray_clusters):
    """A Ray cluster of this machine: a head, and two nodes of one processor each until a test kills one; shared."""
    return ray_clusters.living()


@pytest.fixture(scope="package")
def folder_here(lenet, tmp_path_factory):
    """The folder of a run here that tries every plan; not to be changed."""
    folder = tmp_path_factory.mktemp("here") / "lenet"
    arguments = (lenet / "lenet_planted.onnx", lenet / "calibration.npz")
    trt_bisect.run(*arguments, strategy="exhaustive", explain="none", trt_version="8.6.1", output=folder)
    return folder


@pytest.fixture(scope="package")
def here(folder_here):
    """The report of that run; not to be changed."""
    return Report.load(folder_here)
