"""Places where plans are tried at once, whatever they are: processes of this machine, or of others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from trt_bisect.builder.base import Builder, BuildOptions
from trt_bisect.data.datasets import Feeds
from trt_bisect.evaluator.attempt import Attempt
from trt_bisect.precision import PrecisionPlan


@dataclass(frozen=True)
class TrialSpec:
    """What is the same for all plans of one crew, and travels once.

    Attributes:
        engine: the plans' engines are of this kind.
        facts: of the builder whose FP32 outputs plans are judged by; a place that has others is not used.
        make: makes a builder with options; it is pickled, with the network and the scales in it.
        options: those that are wanted.
        inputs: judged together.
        timings: a timing cache to begin with; empty for none.
    """

    engine: str
    facts: Mapping[str, str]
    make: Callable[[BuildOptions], Builder]
    options: BuildOptions
    inputs: Sequence[Feeds]
    timings: bytes = b""


class WorkerPool(Protocol):
    """Tries plans of one subject. One crew of a fleet is at work at a time."""

    @property
    def size(self) -> int:
        """How many plans are tried at once now."""
        ...

    def begin(self, plan: PrecisionPlan) -> None:
        """Has a plan tried; it may have to wait for a place."""
        ...

    def ended(self) -> tuple[PrecisionPlan, Attempt]:
        """The next plan that was tried, of those begun, in whatever order.

        Raises:
            EngineUnavailable: there is no place left.
        """
        ...

    def abandon(self) -> None:
        """Gives up the plans that were begun and have not ended."""
        ...


class Cluster(AbstractContextManager["Cluster"], Protocol):
    """The places themselves, as long as it is open."""

    def crew(self, subject: TrialSpec, builder: Builder) -> WorkerPool | None:
        """Those that try plans of a subject; None where nothing but ``builder`` can.

        Args:
            subject: what is tried.
            builder: the one here that has tried FP32.
        """
        ...
