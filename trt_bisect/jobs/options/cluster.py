"""The options of the workers that try plans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trt_bisect.cluster.address import check_address
from trt_bisect.jobs.options.declare import Options, option


@dataclass(frozen=True, kw_only=True)
class ClusterOptions(Options):
    """The workers that try plans."""

    panel: ClassVar[str] = "Cluster"

    cluster: str = option(
        "",
        help="Try whole engines on a Ray cluster (auto, HOST:PORT, ray://HOST:PORT) or in N processes here (local:N).",
        otherwise="in this process",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_address(self.cluster)
