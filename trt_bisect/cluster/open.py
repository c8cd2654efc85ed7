"""What ``--cluster`` asks for, and the fleet that it opens."""

from __future__ import annotations

from collections.abc import Callable

from trt_bisect.cluster.settings import _LOCAL, ClusterOptions
from trt_bisect.evaluator.local_workers import LocalCluster
from trt_bisect.evaluator.workers import Cluster

STAYS_HERE = (
    "The passes of 'branch' stay on this machine: only plans of whole engines are tried on the cluster, which are few. "
    "'exhaustive' and 'bisect' have all of theirs tried there."
)


def open_cluster(cluster: ClusterOptions, say: Callable[[str], None]) -> Cluster:
    """The places that a cluster has; to be closed.

    Args:
        cluster: what is asked for.
        say: is told of nodes and workers that are lost.

    Raises:
        BadInput: Ray is not installed, or no cluster answers there.
    """
    if not cluster.address:
        return LocalCluster()
    if cluster.is_local:
        return LocalCluster(int(cluster.address.removeprefix(_LOCAL)))
    from trt_bisect.cluster.ray_workers import RayCluster

    return RayCluster(cluster, say)
