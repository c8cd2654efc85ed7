"""The base of the concerns that decide how a network is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trt_bisect.jobs.options.declare import Options

if TYPE_CHECKING:
    from trt_bisect.model.low import LowPrecision
    from trt_bisect.model.network import Network
    from trt_bisect.precision import Precision


@dataclass(frozen=True, kw_only=True)
class AdaptingOptions(Options):
    """The base of options that change a network after it is read. A command has several such concerns."""

    @property
    def low_precision(self) -> LowPrecision:
        """The low precision: INT8 where a command has no option for it."""
        from trt_bisect.model.low import INT8

        return INT8

    @property
    def base_precision(self) -> Precision | None:
        """The precision of what is neither low nor kept out of the low one; None for that of each plan."""
        return None

    def adapted(self, network: Network) -> Network:
        """Returns a network with what the options ask of it. An override adapts what ``super().adapted`` returns.

        Raises:
            BadInput: an option does not fit the network.
        """
        return network
