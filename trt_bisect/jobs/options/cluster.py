"""The options of the workers that try plans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trt_bisect.cluster.settings import RETRIES, ClusterSettings
from trt_bisect.jobs.options.declare import Options, option
from trt_bisect.jobs.options.kinds import WHOLE


@dataclass(frozen=True, kw_only=True)
class ClusterOptions(Options):
    """The workers that try plans."""

    panel: ClassVar[str] = "Cluster"

    cluster: str = option(
        "",
        help="Try whole engines on a Ray cluster (auto, HOST:PORT, ray://HOST:PORT) or in N processes here (local:N).",
        otherwise="in this process",
    )
    cluster_cpus: int = option(
        1,
        kind=WHOLE,
        help="Of a Ray task, where the engine needs no GPU.",
    )
    retries: int = option(
        RETRIES,
        kind=WHOLE,
        help="A plan whose worker was lost is tried again so often; then its trial is 'lost'.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.cluster_settings()

    def cluster_settings(self) -> ClusterSettings:
        """The options as the cluster takes them."""
        return ClusterSettings(self.cluster, self.cluster_cpus, self.retries)
