"""The evaluator ``rebuild``: a whole engine for each plan."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from trt_bisect.builder.base import Builder, Outputs
from trt_bisect.data.datasets import Feeds
from trt_bisect.evaluator.attempt import Attempt, Failure, attempt
from trt_bisect.evaluator.trial import OutputFigures, Trial
from trt_bisect.evaluator.workers import WorkerPool
from trt_bisect.model.network import Network
from trt_bisect.precision import Precision, PrecisionPlan

Compare = Callable[[Sequence[Outputs]], Mapping[str, OutputFigures]]
"""From the outputs for every input to the figures of each output, against a reference it holds."""


class TrialStore(Protocol):
    """Where trials are kept."""

    def find(self, plan: str) -> Trial | None:
        """The trial of a plan that is wanted now, or None if it was never tried."""
        ...

    def recall(self, plan: str) -> Trial | None:
        """The trial of a plan that was wanted before, or None.

        One that is known only since this run was stopped later than here does not count: a choice between two ways to
        measure must not depend on when a run was stopped.
        """
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
        crew: WorkerPool | None = None,
    ) -> None:
        """Gets ready; nothing is built yet.

        Args:
            network: what is measured.
            builder: makes its engines.
            inputs: judged together.
            compare: from the outputs for every input to figures.
            store: where trials are kept.
            high: the precision of layers that only follow.
            crew: tries plans where several are wanted together; without one they are tried here, one by one.
        """
        self._followers = [layer.index for layer in network.layers if not layer.quantizable]
        self.builder = builder
        self._inputs = inputs
        self._compare = compare
        self._store = store
        self.high = high
        self._crew = crew
        self._known: deque[tuple[PrecisionPlan, Trial]] = deque()

    @property
    def has_workers(self) -> bool:
        """Plans can be begun."""
        return self._crew is not None

    @property
    def places(self) -> int:
        """How many plans are tried at once now."""
        return 1 if self._crew is None else self._crew.size

    def canonical(self, plan: PrecisionPlan) -> PrecisionPlan:
        """``plan`` with the layers that only follow in the high precision: they do not change its engine."""
        return plan.keeping(set(self._followers) & plan.int8, self.high)

    def measure(self, plan: PrecisionPlan) -> Trial:
        """The trial of ``plan``, from the store if it is there. Failures are outcomes, not errors."""
        plan = self.canonical(plan)
        known = self._store.find(plan.key())
        return self._kept(plan, attempt(plan, self.builder, self._inputs)) if known is None else known

    def measure_all(self, plans: Sequence[PrecisionPlan], on_plan: Callable[[PrecisionPlan], None]) -> list[Trial]:
        """The trial of each plan, at all places that there are; ``on_plan`` is told of each that was measured."""
        unknown = [plan for plan in dict.fromkeys(map(self.canonical, plans)) if self._store.find(plan.key()) is None]
        if self._crew is None:
            for plan in unknown:
                on_plan(plan)
                self.measure(plan)
        else:
            self._measure_concurrently(unknown, on_plan)
        return [self.measure(plan) for plan in plans]

    def _measure_concurrently(self, plans: Sequence[PrecisionPlan], on_plan: Callable[[PrecisionPlan], None]) -> None:
        try:
            for plan in plans:
                self.begin(plan)
            for _ in plans:
                on_plan(self.ended()[0])
        finally:
            self.abandon()

    def begin(self, plan: PrecisionPlan) -> None:
        """Has a plan measured by the crew; ``ended`` gives its trial, at once where the store has it."""
        assert self._crew is not None
        plan = self.canonical(plan)
        known = self._store.find(plan.key())
        if known is None:
            self._crew.begin(plan)
        else:
            self._known.append((plan, known))

    def ended(self) -> tuple[PrecisionPlan, Trial]:
        """The next plan that was measured, of those begun, and its trial, which is kept."""
        assert self._crew is not None
        if self._known:
            return self._known.popleft()
        plan, tried = self._crew.ended()
        return plan, self._kept(plan, tried)

    def abandon(self) -> None:
        """Gives up the plans that were begun and have not ended."""
        self._known.clear()
        if self._crew is not None:
            self._crew.abandon()

    def _kept(self, plan: PrecisionPlan, tried: Attempt) -> Trial:
        if isinstance(tried, Failure):
            trial = Trial(plan.key(), tried.outcome, message=tried.message, build_seconds=tried.build_seconds)
        else:
            figures = self._compare(tried.outputs)
            trial = Trial.judged(plan.key(), figures, tried.ran, tried.cost, "\n".join(tried.messages))
        self._store.keep(trial)
        return trial
