"""The options of a cluster."""

from __future__ import annotations

import re
from dataclasses import dataclass

from trt_bisect.errors import BadInput

RETRIES = 2
AUTO = "auto"
GOES_ON = "What was measured is kept, and the same command goes on from there, without --cluster too."
"""The remedy when a cluster is gone."""
_LOCAL = "local:"
_PLACES = re.compile(r"local:[1-9]\d{0,3}")
_RAY = re.compile(r"(?:ray://)?(?:\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):\d{1,5}")


@dataclass(frozen=True)
class ClusterSettings:
    """The options of the cluster that tries plans.

    Attributes:
        address: ``local:N`` for worker processes of this machine, ``auto`` for the Ray cluster that it belongs to,
            ``HOST:PORT`` or ``ray://HOST:PORT`` for another; empty for this process, and every GPU of this machine.
        cpus: the processors of a Ray task that has no GPU, and the threads of its ONNX Runtime.
        retries: the number of times that a plan whose worker was lost is tried again.

    Raises:
        BadInput: one of them is not valid.
    """

    address: str = ""
    cpus: int = 1
    retries: int = RETRIES

    def __post_init__(self) -> None:
        known = self.address in ("", AUTO) or (_PLACES if self.is_local else _RAY).fullmatch(self.address)
        if not known:
            raise BadInput(
                f"There is no cluster '{self.address}'.",
                "Give --cluster auto, HOST:PORT or ray://HOST:PORT for Ray, or local:N for N processes here.",
            )
        if self.cpus < 1:
            raise BadInput(f"A task cannot have {self.cpus} processors.", "Give --cluster-cpus 1 or more.")
        if self.retries < 0:
            raise BadInput(f"A plan cannot be tried again {self.retries} times.", "Give --retries 0 or more.")

    @property
    def is_local(self) -> bool:
        """True if the workers are processes of this machine."""
        return self.address.startswith(_LOCAL)
