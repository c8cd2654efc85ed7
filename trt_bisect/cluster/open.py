"""Opens the cluster that ``--cluster`` names."""

from __future__ import annotations

from collections.abc import Callable

from trt_bisect.cluster.settings import _LOCAL, ClusterSettings
from trt_bisect.evaluator.local_workers import LocalCluster
from trt_bisect.evaluator.workers import Cluster

STAYS_HERE = (
    "The passes of 'branch' stay on this machine: only its plans of whole engines are tried on the cluster, and they "
    "are few. 'exhaustive' and 'bisect' have all their plans tried there."
)


def open_cluster(cluster: ClusterSettings, say: Callable[[str], None]) -> Cluster:
    """Opens a cluster; the caller closes it.

    Args:
        cluster: the options.
        say: is called with a message for each node and worker that is lost.

    Raises:
        BadInput: Ray is not installed, or no cluster answers there.
    """
    if not cluster.address:
        return LocalCluster()
    if cluster.is_local:
        return LocalCluster(int(cluster.address.removeprefix(_LOCAL)))
    from trt_bisect.cluster.ray_workers import RayCluster

    return RayCluster(cluster, say)
