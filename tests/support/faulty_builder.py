"""A builder that fails on purpose at some plans, for tests and ``tools/gpu_check``.

It lives in the worker process, which has to be able to import it.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from trt_bisect.builder.base import Builder, Engine
from trt_bisect.precision import PrecisionPlan


def crash() -> None:
    """Reads address 0."""
    ctypes.string_at(0)


def hang() -> None:
    """Never returns."""
    time.sleep(3600)


def run_out_of_memory() -> None:
    """Raises the error of an allocation that the machine refuses."""
    raise MemoryError("on purpose")


@dataclass(frozen=True)
class FaultyBuilder:
    """Works as ``builder``; for the plans whose keys are in ``faults``, it calls the fault first."""

    builder: Builder
    faults: Mapping[str, Callable[[], None]]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.builder, name)

    def build(self, plan: PrecisionPlan) -> Engine:
        """Builds the engine of a plan; calls its fault first if it has one."""
        self.faults.get(plan.key(), lambda: None)()
        return self.builder.build(plan)


def make_faulty(make: Callable[[], Builder], faults: Mapping[str, Callable[[], None]]) -> Builder:
    """Makes the faulty builder, in the worker process."""
    return cast("Builder", FaultyBuilder(make(), faults))
