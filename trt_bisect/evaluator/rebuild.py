"""The evaluator ``rebuild``: a whole engine for each plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Protocol

from trt_bisect.builder.base import Builder, Outputs
from trt_bisect.data import Feeds
from trt_bisect.errors import TrialFailed
from trt_bisect.evaluator.trial import Cost, OutputFigures, Trial
from trt_bisect.model.network import Network
from trt_bisect.precision import Precision, PrecisionPlan

Compare = Callable[[Sequence[Outputs]], Mapping[str, OutputFigures]]
"""From the outputs for every input to the figures of each output, against a reference it holds."""


class TrialStore(Protocol):
    """Where trials are kept."""

    def find(self, plan: str) -> Trial | None:
        """The trial of a plan, or None if it was never tried."""
        ...

    def keep(self, *trials: Trial) -> None:
        """Keeps trials for good before the next ones begin."""
        ...


class RebuildEvaluator:
    """Builds an engine for each plan, runs the inputs through it, and never tries a plan twice."""

    def __init__(
        self,
        network: Network,
        builder: Builder,
        inputs: Sequence[Feeds],
        compare: Compare,
        store: TrialStore,
        high: Precision = Precision.FP32,
    ) -> None:
        self._followers = [layer.index for layer in network.layers if not layer.quantizable]
        self.builder = builder
        self._inputs = inputs
        self._compare = compare
        self._store = store
        self.high = high

    def canonical(self, plan: PrecisionPlan) -> PrecisionPlan:
        """``plan`` with the layers that only follow in the high precision: they do not change its engine."""
        return plan.keeping(set(self._followers) & plan.int8, self.high)

    def measure(self, plan: PrecisionPlan) -> Trial:
        """The trial of ``plan``, from the store if it is there. Failures are outcomes, not errors."""
        plan = self.canonical(plan)
        known = self._store.find(plan.key())
        if known is not None:
            return known
        trial = self._try(plan)
        self._store.keep(trial)
        return trial

    def _try(self, plan: PrecisionPlan) -> Trial:
        began = perf_counter()
        built = began
        try:
            with self.builder.build(plan) as engine:
                built = perf_counter()
                outputs = [engine.infer(feeds) for feeds in self._inputs]
                ran, messages = engine.ran, engine.messages
        except TrialFailed as failure:
            built = perf_counter() if built == began else built
            return Trial(plan.key(), failure.outcome, message=failure.message, build_seconds=built - began)
        inferred = perf_counter()
        cost = Cost(built - began, inferred - built, len(outputs))
        return Trial.judged(plan.key(), self._compare(outputs), ran, cost, "\n".join(messages))
