"""Workers that try plans at the same time: processes of this machine or of others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from trt_bisect.builder.base import Builder, BuildOptions
from trt_bisect.data.feeds import Feeds
from trt_bisect.evaluator.attempt import Attempt
from trt_bisect.precision import PrecisionPlan


@dataclass(frozen=True)
class TrialSpec:
    """All that the plans of one pool have in common; a worker is sent it once.

    Attributes:
        engine: the kind of engines, one of ``builder.engines.ENGINES``.
        facts: versions and device of the builder that made the FP32 reference; a worker with others is not used.
        make: makes a builder with options; it is pickled, with the network and the scales in it.
        options: the options of that builder.
        inputs: judged together.
        timings: the bytes of a TensorRT timing cache to begin with; empty for none.
    """

    engine: str
    facts: Mapping[str, str]
    make: Callable[[BuildOptions], Builder]
    options: BuildOptions
    inputs: Sequence[Feeds]
    timings: bytes = b""


class WorkerPool(Protocol):
    """Tries the plans of one ``TrialSpec``. Only one pool of a cluster works at a time."""

    @property
    def size(self) -> int:
        """The number of plans that can be tried at the same time now."""
        ...

    def begin(self, plan: PrecisionPlan) -> None:
        """Begins to try a plan; it waits until a worker is free."""
        ...

    def ended(self) -> tuple[PrecisionPlan, Attempt]:
        """Waits for the next plan to be tried, of those begun; returns it and its attempt.

        Raises:
            EngineUnavailable: no worker is left.
        """
        ...

    def abandon(self) -> None:
        """Gives up the plans that were begun and have not ended."""
        ...


class Cluster(AbstractContextManager["Cluster"], Protocol):
    """The workers of a cluster, as long as it is open."""

    def pool(self, spec: TrialSpec, builder: Builder) -> WorkerPool | None:
        """Returns the workers that try the plans of ``spec``; None if ``builder`` alone can.

        Args:
            spec: the facts that all plans share.
            builder: the builder of this process, which has measured FP32.
        """
        ...
