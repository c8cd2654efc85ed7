"""Runs plans: on whole engines, each built for it, or on one session that switches precisions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from typing import Protocol

from trt_bisect.builder.base import Builder, Outputs
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
from trt_bisect.builder.switch import SwitchSession
from trt_bisect.data.feeds import Feeds
from trt_bisect.errors import TrialFailed
from trt_bisect.model.layers import TensorFacts
from trt_bisect.model.quantizer import Scales
from trt_bisect.precision import PrecisionPlan

Infer = Callable[[Feeds], Outputs]


class Runner(Protocol):
    """Runs plans on inputs.

    Attributes:
        at_once: the number of plans that can be open at the same time.
    """

    at_once: int

    def opened(self, plan: PrecisionPlan) -> AbstractContextManager[Infer]:
        """Opens a plan; raises TrialFailed if it cannot be built."""
        ...

    def ran(self, plan: PrecisionPlan, /) -> Mapping[int, str]:
        """Returns the precisions that the engine of a closed plan reported for its layers, see ``Engine.ran``."""
        ...


class WholeRunner:
    """Runs plans on whole engines, each built for it."""

    at_once = 1

    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self._ran: dict[PrecisionPlan, Mapping[int, str]] = {}

    @contextmanager
    def opened(self, plan: PrecisionPlan) -> Iterator[Infer]:
        """Builds the engine of a plan."""
        with self._builder.build(plan) as engine:
            try:
                yield engine.infer
            finally:
                self._ran[plan] = dict(engine.ran)

    def ran(self, plan: PrecisionPlan) -> Mapping[int, str]:
        """Returns the precisions that the engine of a plan reported for its layers; empty if it was not built."""
        return self._ran.get(plan, {})


class SwitchRunner:
    """Runs plans on one session that switches precisions, with some scales of the activations.

    Args:
        session: shared by the runners of all scales.
        scales: the scales of the activations.
        builder: makes the builder with these scales, for plans of precisions that the session does not have.
        at_once: the number of inferences that may run at a time.
    """

    def __init__(self, session: SwitchSession, scales: Scales, builder: Callable[[], Builder], at_once: int) -> None:
        self.at_once = at_once
        self._session = session
        self._scales = scales
        self._make_builder = builder

    @cached_property
    def _builder(self) -> Builder:
        return self._make_builder()

    @contextmanager
    def opened(self, plan: PrecisionPlan) -> Iterator[Infer]:
        """Opens a plan; only one that the session does not run is built."""
        if self._session.runs(plan):
            yield lambda feeds: self._session.infer(plan, feeds, self._scales)
        else:
            with self._builder.build(plan) as engine:
                yield engine.infer

    def ran(self, _plan: PrecisionPlan) -> Mapping[int, str]:
        """Returns nothing: the emulation runs every layer as the plan says."""
        return {}


def switch_session(builder: Builder, facts: TensorFacts, memory: int) -> SwitchSession | None:
    """Returns the session that runs any plan, a thread for each inference; None if the engine has none or refuses.

    Args:
        builder: builds engines.
        facts: the shapes of the tensors.
        memory: the bytes that the session may keep of tensors inside the network.
    """
    if not isinstance(builder, OnnxRuntimeBuilder):
        return None
    try:
        return builder.switch(1, facts, memory)
    except TrialFailed:
        return None
