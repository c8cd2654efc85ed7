"""Evaluators measure plans: on an engine for each plan or, in the emulation, on one session that runs all plans."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

from trt_bisect.builder.base import Builder, Engine, Outputs
from trt_bisect.builder.pipeline import AllPlans, EmulatedBuilder
from trt_bisect.data.feeds import Feeds, Spill
from trt_bisect.errors import TrialFailed
from trt_bisect.evaluator.trial import MEASURED, SWITCH, Attempt, OutputFigures, Trial, TrialKey, TrialStore
from trt_bisect.evaluator.workers import WorkerPool, attempt
from trt_bisect.model.network import Network
from trt_bisect.model.observe import facts_for
from trt_bisect.model.quantizer import Scales
from trt_bisect.precision import Precision, PrecisionPlan
from trt_bisect.support.memory import give_back_memory

HELD_OUT = "held-out inputs"  # marks the keys of trials on held-out inputs
Compare = Callable[[Sequence[Outputs]], Mapping[str, OutputFigures]]
"""Returns the figures of each output, from the outputs for every input."""


class RebuildEvaluator:
    """Builds an engine for each plan and runs the inputs on it; no plan is measured twice.

    Args:
        high: precision of high layers, and of unquantized layers if the network has no base.
        pool: tries several plans at a time; None tries them in this process.
    """

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
        self.network = network
        self.builder = builder
        self.inputs = inputs
        self.compare = compare
        self.store = store
        self.high = high
        self._pool = pool
        # Kept by plan: computing a canonical plan takes a millisecond for large networks.
        self._canonical: dict[PrecisionPlan, PrecisionPlan] = {}
        self._known: deque[tuple[PrecisionPlan, Trial]] = deque()

    @property
    def has_workers(self) -> bool:
        """True if there is a pool of workers."""
        return self._pool is not None

    @property
    def workers(self) -> int:
        """The number of plans that can be tried at a time."""
        return 1 if self._pool is None else self._pool.size

    def canonical(self, plan: PrecisionPlan) -> PrecisionPlan:
        """Returns ``plan`` with unquantized layers in the base precision, as engines run them."""
        if plan not in self._canonical:
            self._canonical[plan] = self.network.in_base(plan, self.high)
        return self._canonical[plan]

    def store_of(self, _plan: PrecisionPlan) -> TrialStore:
        """Returns the store that has a plan's trials."""
        return self.store

    def measure(self, plan: PrecisionPlan) -> Trial:
        """Returns the trial of ``plan``, from the store if it is there; a failure becomes the trial's outcome."""
        plan = self.canonical(plan)
        trial = self.store.find(plan.key())
        return self._kept(attempt(plan, self.builder, self.inputs)) if trial is None else trial

    def measure_all(self, plans: Sequence[PrecisionPlan], on_plan: Callable[[PrecisionPlan], None]) -> list[Trial]:
        """Returns the trials of plans, in their order, measured by all workers; ``on_plan`` is called with each plan
        that is not in the store.
        """
        unknown = [plan for plan in dict.fromkeys(map(self.canonical, plans)) if self.store.find(plan.key()) is None]
        if self._pool is None:
            for plan in unknown:
                on_plan(plan)
                self.measure(plan)
        else:
            try:
                for plan in unknown:
                    self.begin(plan)
                for _ in unknown:
                    on_plan(self.ended()[0])
            finally:
                self.abandon()
        return [self.measure(plan) for plan in plans]

    def begin(self, plan: PrecisionPlan) -> None:
        """Begins to measure a plan with the pool of workers; ``ended`` returns its trial."""
        assert self._pool is not None
        plan = self.canonical(plan)
        trial = self.store.find(plan.key())
        if trial is None:
            self._pool.begin(plan)
        else:
            self._known.append((plan, trial))

    def ended(self) -> tuple[PrecisionPlan, Trial]:
        """Waits until a begun plan is measured, and returns it with its trial."""
        assert self._pool is not None
        if self._known:
            return self._known.popleft()
        attempted = self._pool.ended()
        return attempted.plan, self._kept(attempted)

    def abandon(self) -> None:
        """Gives up the begun plans that are not done."""
        self._known.clear()
        if self._pool is not None:
            self._pool.abandon()

    def _kept(self, attempted: Attempt) -> Trial:
        trial = attempted.trial
        if not trial.failed:
            trial = trial.judged(self.compare(attempted.outputs))
        self.store.keep(trial)
        return trial


class EngineEvaluator(RebuildEvaluator):
    """Measures all figures of a plan while its engine is open.

    The engine runs the given and the held-out inputs, and is timed. Its outputs are compared with FP32's, and with the
    emulation's for the same plan (``Trial.apart``).

    Attributes:
        further: called with each plan and its open engine.

    Args:
        unscaled: trials of plans with no layer in low precision, which do not depend on scales.
        memory: the bytes of outputs that may wait in memory to be judged.
    """

    def __init__(
        self,
        network: Network,
        builder: Builder,
        given: Sequence[Feeds],
        held_out: Sequence[Feeds],
        judge: EngineJudge,
        store: TrialStore,
        unscaled: TrialStore,
        high: Precision,
        pool: WorkerPool | None,
        memory: int,
    ) -> None:
        super().__init__(network, builder, [*given, *held_out], judge.given, store, high, pool)
        self.further: Callable[[PrecisionPlan, Engine], None] = lambda _plan, _engine: None
        self._given = len(given)
        self._unscaled = unscaled
        self._judge = judge
        self._memory = memory

    def measure(self, plan: PrecisionPlan) -> Trial:
        """Returns the trial of ``plan``, from the store if it is there; a failure becomes the trial's outcome."""
        return self.measure_as_is(self.canonical(plan))

    def measure_as_is(self, plan: PrecisionPlan) -> Trial:
        """Returns the trial of a plan without moving unquantized layers to the base precision."""
        trial = self.store_of(plan).find(plan.key())
        if trial is not None:
            return trial
        with Spill(self._memory) as spill:
            return self._kept(
                attempt(plan, self.builder, self.inputs, timed=True, keep=spill.kept, further=self.further)
            )

    def store_of(self, plan: PrecisionPlan) -> TrialStore:
        """Returns the store of a plan's trials, which differs for plans with no layer in low precision."""
        return self.store if plan.lowered else self._unscaled

    def held_out(self, plan: PrecisionPlan) -> Trial | None:
        """Returns a plan's trial on the held-out inputs; None without one."""
        return self.store_of(plan).find(self._held_out_key(self.canonical(plan)))

    def _held_out_key(self, plan: PrecisionPlan) -> str:
        return TrialKey(plan.key(), HELD_OUT).text

    def _kept(self, attempted: Attempt) -> Trial:
        plan, trial, store = attempted.plan, attempted.trial, self.store_of(attempted.plan)
        given, held_out = attempted.outputs[: self._given], attempted.outputs[self._given :]
        if held_out:
            of_held_out = Trial(self._held_out_key(plan), MEASURED, ran=trial.ran, builds=0)
            store.keep(of_held_out.judged(self._judge.held_out(held_out)))
        if not trial.failed:
            trial = replace(trial, apart=self._judge.apart(plan, given)).judged(self._judge.given(given))
        store.keep(trial)
        return trial


@dataclass(frozen=True)
class EngineJudge:
    """Judges the outputs of an engine against FP32's.

    Attributes:
        given, held_out: return the figures of the outputs for the given, and for the held-out inputs.
        apart: returns the loss of the outputs against the emulation's for the same plan.
    """

    given: Compare
    held_out: Compare
    apart: Callable[[PrecisionPlan, Sequence[Outputs]], float]


class SwitchEvaluator:
    """Measures plans on one ONNX Runtime session that has the layers of all plans; a plan that the session cannot run
    takes an engine.

    Attributes:
        whole: evaluator that builds an engine for each plan, with the same store.

    Args:
        memory: bytes of tensors of earlier plans that the session may keep.
        given: a session of the same network, used for the plans that it can run; it stays open.
    """

    def __init__(
        self,
        whole: RebuildEvaluator,
        builder: EmulatedBuilder,
        scales: Scales,
        memory: int,
        given: AllPlans | None = None,
    ) -> None:
        self.whole = whole
        self._builder, self._scales, self._memory, self._given = builder, scales, memory, given
        self._own: AllPlans | None = None

    def measure(self, plan: PrecisionPlan) -> Trial:
        """Returns the trial of ``plan``, from the store if it is there; a failure becomes the trial's outcome."""
        plan = self.whole.canonical(plan)
        key = TrialKey(plan.key(), SWITCH).text
        trial = self.whole.store.find(key)
        if trial is not None:
            return trial
        try:
            session = self._opened(plan)
        except TrialFailed:  # ONNX Runtime refuses the graph of all plans
            return self.whole.measure(plan)
        if not session.runs(plan):
            return self.whole.measure(plan)
        began = perf_counter()
        try:
            outputs = [session.infer(plan, feeds, self._scales) for feeds in self.whole.inputs]
        except TrialFailed as failure:
            trial = Trial(key, failure.outcome, message=failure.message, builds=0)
        else:
            ran, seconds = self._builder.ran(plan), perf_counter() - began
            trial = Trial(key, MEASURED, ran=ran, infer_seconds=seconds, inferences=len(outputs), builds=0)
            trial = trial.judged(self.whole.compare(outputs))
        self.whole.store.keep(trial)
        return trial

    def close(self) -> None:
        """Closes the evaluator's own session; the next plan that needs it opens it again."""
        if self._own is not None:
            self._own.close()
            self._own = None
        give_back_memory()

    def _opened(self, plan: PrecisionPlan) -> AllPlans:
        for session in (self._given, self._own):
            if session is not None and session.runs(plan):
                return session
        # The session gets these precisions with the first plan that has them.
        halves = (Precision.INT8_WEIGHT, Precision.INT8_ACTIVATION)
        more = () if set(halves).isdisjoint(plan.precisions) else halves
        if self._own is None or more:
            facts = facts_for(self.whole.network, self.whole.inputs[0])
            self._own = self._builder.switch(None, facts, self._memory, more)
        return self._own


Evaluator = RebuildEvaluator | SwitchEvaluator
