"""The evaluator ``switch``: one session that holds both precisions of every layer runs any plan without a build.

Its graph is another than a plan's own: float sums are taken in another order, so that values at the edge between two
INT8 levels fall to the other side. That moves 1 - cosine by some per cent. It serves to choose among plans; the one
that is chosen is measured on a whole engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder, SwitchSession
from trt_bisect.data import Feeds
from trt_bisect.errors import TrialFailed
from trt_bisect.evaluator.rebuild import Compare, RebuildEvaluator, TrialStore
from trt_bisect.evaluator.trial import Cost, Trial
from trt_bisect.precision import PrecisionPlan

_MARK = "switch "
"""Before a plan's key in the store: such a trial never stands for one on a whole engine."""


class SwitchEvaluator:
    """Measures plans on one session; on whole engines where there is no such session."""

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

    def measure(self, plan: PrecisionPlan) -> Trial:
        """The trial of ``plan``; that of a whole engine if the store has it."""
        plan = self._whole.canonical(plan)
        known = self._store.find(plan.key()) or self._store.find(_MARK + plan.key())
        if known is not None:
            return known
        try:
            trial = self._try(plan)
        except TrialFailed:
            return self._whole.measure(plan)
        self._store.keep(trial)
        return trial

    def _try(self, plan: PrecisionPlan) -> Trial:
        began = perf_counter()
        fresh = self._session is None
        session = self._session = self._session or self._builder.switch()
        built = perf_counter()
        outputs = [session.infer(plan, feeds) for feeds in self._inputs]
        cost = Cost(built - began, perf_counter() - built, len(outputs), int(fresh))
        return Trial.judged(_MARK + plan.key(), self._compare(outputs), self._builder.ran(plan), cost)
