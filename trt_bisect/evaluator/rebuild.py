"""The evaluator ``rebuild``: a whole engine for each plan."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from trt_bisect.builder.base import Builder, Outputs
from trt_bisect.data.feeds import Feeds
from trt_bisect.evaluator.trial import OutputFigures, Trial
from trt_bisect.evaluator.workers import Attempt, FailedAttempt, WorkerPool, attempt
from trt_bisect.model.network import Network
from trt_bisect.precision import Precision, PrecisionPlan

Compare = Callable[[Sequence[Outputs]], Mapping[str, OutputFigures]]
"""Compares the outputs for every input with the reference; returns the figures of each output."""


class TrialStore(Protocol):
    """Keeps trials, by the text of their keys."""

    def find(self, plan: str) -> Trial | None:
        """Returns the trial with this key, or None if the plan was never tried so."""
        ...

    def recall(self, plan: str) -> Trial | None:
        """Returns the trial with this key if it was found or kept since the store was opened, else None.

        A trial that an earlier run has left in the journal, and that this run has not reached yet, does not count: the
        choice between two evaluators must not depend on when a run was stopped.
        """
        ...

    def keep(self, *trials: Trial) -> None:
        """Keeps trials for good, before the next ones begin."""
        ...


class RebuildEvaluator:
    """Builds an engine for each plan and runs the inputs through it; no plan is tried twice."""

    def __init__(
        self,
        network: Network,
        builder: Builder,
        inputs: Sequence[Feeds],
        compare: Compare,
        store: TrialStore,
        high: Precision = Precision.FP32,
        pool: WorkerPool | None = None,
    ) -> None:
        """Prepares the evaluator; nothing is built yet.

        Args:
            inputs: judged together.
            compare: from the outputs for every input to figures.
            high: the precision of layers that a plan raises, and of those that only follow where the network has no
                base.
            pool: tries plans if several are wanted together; without one they are tried here, one by one.
        """
        self._network = network
        self.builder = builder
        self._inputs = inputs
        self._compare = compare
        self._store = store
        self.high = high
        self._pool = pool
        self._canonical: dict[PrecisionPlan, PrecisionPlan] = {}
        """By plan the one with its followers in the base: large networks take a millisecond for it and for its key."""
        self._known: deque[tuple[PrecisionPlan, Trial]] = deque()

    @property
    def has_workers(self) -> bool:
        """True if there is a pool of workers, and plans can be begun."""
        return self._pool is not None

    @property
    def workers(self) -> int:
        """The number of plans that can be tried at the same time now."""
        return 1 if self._pool is None else self._pool.size

    def canonical(self, plan: PrecisionPlan) -> PrecisionPlan:
        """Returns ``plan`` with the layers that only follow in the base: they have no other precision in any engine."""
        if plan not in self._canonical:
            self._canonical[plan] = self._network.in_base(plan, self.high)
        return self._canonical[plan]

    def measure(self, plan: PrecisionPlan) -> Trial:
        """Returns the trial of ``plan``, from the store if it is there. A failure is an outcome, not an error."""
        plan = self.canonical(plan)
        known = self._store.find(plan.key())
        return self._kept(plan, attempt(plan, self.builder, self._inputs)) if known is None else known

    def measure_all(self, plans: Sequence[PrecisionPlan], on_plan: Callable[[PrecisionPlan], None]) -> list[Trial]:
        """Returns the trial of each plan, measured by all workers; ``on_plan`` is called with each new one."""
        unknown = [plan for plan in dict.fromkeys(map(self.canonical, plans)) if self._store.find(plan.key()) is None]
        if self._pool is None:
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
        """Begins to measure a plan with the pool; ``ended`` returns its trial, at once if the store has it."""
        assert self._pool is not None
        plan = self.canonical(plan)
        known = self._store.find(plan.key())
        if known is None:
            self._pool.begin(plan)
        else:
            self._known.append((plan, known))

    def ended(self) -> tuple[PrecisionPlan, Trial]:
        """Waits for the next plan to be measured, of those begun; returns it and its trial, which is kept."""
        assert self._pool is not None
        if self._known:
            return self._known.popleft()
        plan, tried = self._pool.ended()
        return plan, self._kept(plan, tried)

    def abandon(self) -> None:
        """Gives up the plans that were begun and have not ended."""
        self._known.clear()
        if self._pool is not None:
            self._pool.abandon()

    def _kept(self, plan: PrecisionPlan, tried: Attempt) -> Trial:
        if isinstance(tried, FailedAttempt):
            trial = Trial(plan.key(), tried.outcome, message=tried.message, build_seconds=tried.build_seconds)
        else:
            figures = self._compare(tried.outputs)
            trial = Trial.judged(plan.key(), figures, tried.ran, tried.cost, "\n".join(tried.messages))
        self._store.keep(trial)
        return trial
