"""The evaluator ``rebuild``: a whole engine for each plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from queue import SimpleQueue
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
        more: Callable[[], Sequence[Builder]] = tuple,
    ) -> None:
        """Gets ready; nothing is built yet.

        Args:
            network: what is measured.
            builder: makes its engines.
            inputs: judged together.
            compare: from the outputs for every input to figures.
            store: where trials are kept.
            high: the precision of layers that only follow.
            more: asked once, when several plans are wanted together: builders of the same engines elsewhere.
        """
        self._followers = [layer.index for layer in network.layers if not layer.quantizable]
        self.builder = builder
        self._inputs = inputs
        self._compare = compare
        self._store = store
        self.high = high
        self._more = more
        self._others: Sequence[Builder] | None = None

    def canonical(self, plan: PrecisionPlan) -> PrecisionPlan:
        """``plan`` with the layers that only follow in the high precision: they do not change its engine."""
        return plan.keeping(set(self._followers) & plan.int8, self.high)

    def measure(self, plan: PrecisionPlan) -> Trial:
        """The trial of ``plan``, from the store if it is there. Failures are outcomes, not errors."""
        plan = self.canonical(plan)
        known = self._store.find(plan.key())
        if known is not None:
            return known
        trial = self._try(plan, self.builder)
        self._store.keep(trial)
        return trial

    def measure_all(self, plans: Sequence[PrecisionPlan], on_plan: Callable[[PrecisionPlan], None]) -> list[Trial]:
        """The trial of each plan, on all builders that there are; ``on_plan`` is told of each that was measured."""
        unknown = [plan for plan in dict.fromkeys(map(self.canonical, plans)) if self._store.find(plan.key()) is None]
        if len(unknown) > 1 and self._others is None:
            self._others = self._more()
        builders = [self.builder, *(self._others or ())]
        if len(builders) == 1:
            for plan in unknown:
                on_plan(plan)
                self.measure(plan)
        else:
            self._measure_on(builders, unknown, on_plan)
        return [self.measure(plan) for plan in plans]

    def _measure_on(
        self, builders: Sequence[Builder], plans: Sequence[PrecisionPlan], on_plan: Callable[[PrecisionPlan], None]
    ) -> None:
        """Each builder takes the next plan as soon as it is done with one; a trial is kept when it ends."""
        idle: SimpleQueue[Builder] = SimpleQueue()
        for builder in builders:
            idle.put(builder)

        def tried(plan: PrecisionPlan) -> tuple[PrecisionPlan, Trial]:
            builder = idle.get()
            try:
                return plan, self._try(plan, builder)
            finally:
                idle.put(builder)

        pool = ThreadPoolExecutor(len(builders))
        try:
            for ended in as_completed([pool.submit(tried, plan) for plan in plans]):
                plan, trial = ended.result()
                self._store.keep(trial)
                on_plan(plan)
        finally:
            pool.shutdown(cancel_futures=True)

    def _try(self, plan: PrecisionPlan, builder: Builder) -> Trial:
        began = perf_counter()
        built = began
        try:
            with builder.build(plan) as engine:
                built = perf_counter()
                outputs = [engine.infer(feeds) for feeds in self._inputs]
                ran, messages = engine.ran, engine.messages
        except TrialFailed as failure:
            built = perf_counter() if built == began else built
            return Trial(plan.key(), failure.outcome, message=failure.message, build_seconds=built - began)
        inferred = perf_counter()
        cost = Cost(built - began, inferred - built, len(outputs))
        return Trial.judged(plan.key(), self._compare(outputs), ran, cost, "\n".join(messages))
