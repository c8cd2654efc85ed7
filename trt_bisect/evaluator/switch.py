"""The evaluator ``switch``: one session that holds both precisions of every layer runs any plan without a build.

Its graph differs from a plan's own: float sums are added in another order, so that values at the edge between two INT8
levels fall to the other side. That changes 1 - cosine by some per cent. It is used to choose among plans; the chosen
plan is measured on a whole engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder, SwitchSession
from trt_bisect.data.datasets import Feeds
from trt_bisect.errors import TrialFailed
from trt_bisect.evaluator.rebuild import Compare, RebuildEvaluator, TrialStore
from trt_bisect.evaluator.trial import Cost, Trial
from trt_bisect.evaluator.trial_key import SWITCH, TrialKey
from trt_bisect.precision import PrecisionPlan
from trt_bisect.support.machine import cores


class SwitchEvaluator:
    """Measures plans on one session, or on whole engines if there is no such session."""

    def __init__(
        self,
        builder: OnnxRuntimeBuilder,
        inputs: Sequence[Feeds],
        compare: Compare,
        store: TrialStore,
        whole: RebuildEvaluator,
    ) -> None:
        self._builder = builder
        self._inputs = inputs
        self._compare = compare
        self._store = store
        self._whole = whole
        self._session: SwitchSession | None = None
        self._refused = False
        self._building = 0.0

    def measure(self, plan: PrecisionPlan) -> Trial:
        """Returns the trial of ``plan``; that on a whole engine if the store has it."""
        return self.measure_all([plan], lambda _: None)[0]

    def measure_all(self, plans: Sequence[PrecisionPlan], on_plan: Callable[[PrecisionPlan], None]) -> list[Trial]:
        """Returns the trial of each plan, measured several at a time; ``on_plan`` is called with each new one."""
        plans = [self._whole.canonical(plan) for plan in plans]
        unknown = [plan for plan in dict.fromkeys(plans) if self.known(plan) is None]
        if unknown and self._ready():
            served = [plan for plan in unknown if self._builder.switches(plan)]
            with ThreadPoolExecutor(cores()) as pool:
                for plan, trial in zip(served, pool.map(self._try, served), strict=True):
                    if trial is not None:
                        self._store.keep(trial)
                    on_plan(plan)
        return [self.known(plan) or self._whole.measure(plan) for plan in plans]

    def known(self, plan: PrecisionPlan) -> Trial | None:
        """Returns the stored trial of a canonical plan: that on a whole engine, or else that of the session."""
        return self._store.recall(plan.key()) or self._store.find(_key(plan))

    def _ready(self) -> bool:
        """Returns true if there is a session; the first call builds it."""
        if self._session is None and not self._refused:
            began = perf_counter()
            try:
                self._session = self._builder.switch()
            except TrialFailed:
                self._refused = True
            self._building = perf_counter() - began
        return self._session is not None

    def _try(self, plan: PrecisionPlan) -> Trial | None:
        """Returns the trial of a plan; None if the session cannot run it."""
        assert self._session is not None
        began = perf_counter()
        try:
            outputs = [self._session.infer(plan, feeds) for feeds in self._inputs]
        except TrialFailed:
            return None
        built, self._building = self._building, 0.0
        cost = Cost(built, perf_counter() - began, len(outputs), int(built > 0.0))
        return Trial.judged(_key(plan), self._compare(outputs), {}, cost)


def _key(plan: PrecisionPlan) -> str:
    return TrialKey(plan.key(), SWITCH).text
