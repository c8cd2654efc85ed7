from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from time import perf_counter
from typing import Protocol

from trt_bisect.builder.base import Outputs
from trt_bisect.data.datasets import digest_of_feeds
from trt_bisect.data.feeds import Feeds
from trt_bisect.errors import TrialFailed
from trt_bisect.evaluator.inferences import Inferences, InputLoss, JudgeAt, Measuring, Runner
from trt_bisect.evaluator.trial import MEASURED, Trial, TrialKey, TrialStore
from trt_bisect.precision import PrecisionPlan

INPUTS = "inputs"  # the first word of the keys of trials on single inputs
OF_METRIC = "by "  # precedes the metric's name in such a key


@dataclass(frozen=True)
class GivenInputs:
    """Inputs, with FP32's outputs for each.

    Attributes:
        labels: the inputs' names in messages, such as ``calibration.npz 3`` or ``photos/cat.png``.
        sources: name of each input's data set.
        empty: indices of inputs on which FP32 finds nothing for a task or, without a task, gives no row.
    """

    feeds: Sequence[Feeds]
    references: Sequence[Outputs]
    labels: Sequence[str]
    sources: Sequence[str]
    empty: frozenset[int] = frozenset()

    @cached_property
    def digest(self) -> str:
        """SHA-256 over all inputs, in order."""
        return hashlib.sha256("".join(map(digest_of_feeds, self.feeds)).encode()).hexdigest()

    @property
    def told(self) -> tuple[int, ...]:
        """The indices of the inputs on which FP32 finds something."""
        return tuple(place for place in range(len(self)) if place not in self.empty)

    def __len__(self) -> int:
        return len(self.feeds)


class PoolLoss(Protocol):
    """Turns a count over all inputs, such as of rows that differ from FP32's, into a loss."""

    def __call__(self, name: str, differ: float, of_all: float, *, alone: bool = False) -> float:
        """Returns the loss if ``differ`` of the ``of_all`` elements or rows in the count ``name`` differ from FP32's;
        with ``alone``, as the loss of a single input.
        """


@dataclass(frozen=True)
class Pools:
    """Counts that are summed over all inputs before they are judged, such as of rows that differ from FP32's.

    Attributes:
        of_fp32: for each input, by name of the count, the number of elements or rows in FP32's outputs.
        loss: turns the number of those that differ into a loss.
    """

    of_fp32: Sequence[Mapping[str, float]]
    loss: PoolLoss


NO_POOLS = Pools((), lambda *_, **__: 0.0)


class EachInput:
    """Measures plans on one input after another.

    The loss of a plan is the largest loss on an input or by a count over all inputs (``pools``); with ``together`` the
    share of all compared results, such as boxes, that differ.

    Attributes:
        taken: number of inferences so far, those in the journal included.

    Args:
        judge: compares a plan's outputs for one input with FP32's.
        budget: largest loss that meets the threshold.
        ranges: digest of the ranges.
        canonical: returns the plan that stands for a plan and all its equivalents in the store of trials.
        together: by input, the number of FP32's results to compare; None if each input is judged by itself.
        ran: called with the number of inferences for a plan, and their seconds.
    """

    def __init__(
        self,
        given: GivenInputs,
        judge: JudgeAt,
        budget: float,
        runner: Runner,
        store: TrialStore,
        ranges: str,
        metric: str,
        canonical: Callable[[PrecisionPlan], PrecisionPlan],
        *,
        together: Mapping[int, float] | None = None,
        pools: Pools = NO_POOLS,
        ran: Callable[[int, float], None] = lambda *_: None,
    ) -> None:
        self.given = given
        self._ran = ran
        self._budget = budget
        self._runner = runner
        self._store = store
        self._measured_in = f"{INPUTS} {given.digest[:12]} {ranges[:12]} {OF_METRIC}{metric}"
        self._canonical = canonical
        self._missed: Counter[int] = Counter()
        self._losses: dict[PrecisionPlan, dict[int, InputLoss]] = {}
        self._failed: set[PrecisionPlan] = set()
        self._together = together
        self._pools = pools
        self._inferences = Inferences(given.feeds, judge, runner)
        self.taken = 0

    def losses(
        self,
        plans: Sequence[PrecisionPlan],
        among: Sequence[int],
        on_plan: Callable[[PrecisionPlan], None] = lambda _: None,
        *,
        to_the_end: bool = False,
    ) -> list[float | None]:
        """Returns each plan's largest loss on the inputs that were run; None for a plan that cannot run.

        Args:
            among: indices of the inputs; those on which more plans have missed run first, others in the given order.
            on_plan: called with each plan before it is run.
            to_the_end: run all inputs, also after a miss.
        """
        plans = [self._canonical(plan) for plan in plans]
        order = sorted(among, key=lambda index: -self._missed[index])
        unknown = [plan for plan in dict.fromkeys(plans) if self._left(plan, order, to_the_end)]
        self._measure(unknown, order, on_plan, to_the_end=to_the_end)
        for plan in dict.fromkeys(plans):
            self._missed.update(index for index, loss in self._known(plan).items() if loss.share > self._budget)
        return [self._largest(plan, among) for plan in plans]

    def by_place(self, plan: PrecisionPlan) -> dict[int, float]:
        """Returns the loss of a plan on each input on which it was run, by index.

        If a count of ``pools``, summed over these inputs, misses the threshold, each loss is at least that of the
        input's own part of the count.
        """
        losses = self._known(self._canonical(plan))
        by_place = {index: loss.share for index, loss in losses.items()}
        for name, pooled in self._pooled(losses, losses).items():
            for index, loss in losses.items() if pooled > self._budget else ():
                part = self._pools.loss(name, *loss.pooled.get(name, (0.0, 1.0)), alone=True)
                by_place[index] = max(by_place[index], part)
        return by_place

    def meeting(self, among: Collection[int]) -> list[PrecisionPlan]:
        """Returns the plans that were run on all inputs ``among`` and meet the threshold there."""
        return [
            plan
            for plan, losses in self._losses.items()
            if losses.keys() >= set(among)
            and self._loss({index: losses[index] for index in among}, among) <= self._budget
        ]

    def least_loss(self, plan: PrecisionPlan, among: Sequence[int]) -> float | None:
        """Returns a lower bound of a plan's loss on the inputs ``among``; None if it was run on none of them or cannot
        run.
        """
        plan = self._canonical(plan)
        return self._largest(plan, among) if self._known(plan).keys() & set(among) else None

    def loss(self, plan: PrecisionPlan) -> float:
        """Returns the loss of a plan on all inputs on which it was run; infinite without any."""
        losses = self._known(self._canonical(plan))
        return self._loss(losses, losses)

    def pools_differ(self, plan: PrecisionPlan) -> bool:
        """Returns true if a plan differs from FP32 in a count of ``pools``, on any input that it ran on."""
        return any(loss.pooled for loss in self._known(self._canonical(plan)).values())

    def _key(self, plan: PrecisionPlan) -> str:
        return TrialKey(plan.key(), self._measured_in).text

    def _known(self, plan: PrecisionPlan) -> dict[int, InputLoss]:
        return self._losses.get(plan, {})

    def _largest(self, plan: PrecisionPlan, among: Sequence[int]) -> float | None:
        if plan in self._failed:
            return None
        return self._loss({index: loss for index, loss in self._known(plan).items() if index in among}, among)

    def _loss(self, losses: Mapping[int, InputLoss], among: Collection[int]) -> float:
        # Inputs not yet run count as equal to FP32.
        if self._together is None:
            each = [loss.share for loss in losses.values()]
            return max([*each, *self._pooled(losses, among).values()], default=math.inf)
        if any(math.isinf(loss.share) for loss in losses.values()):
            return math.inf
        different = sum(loss.share * loss.items for loss in losses.values())
        items = sum(losses[index].items if index in losses else self._together[index] for index in among)
        return different / items if items else 0.0

    def _pooled(self, losses: Mapping[int, InputLoss], among: Collection[int]) -> dict[str, float]:
        pooled: dict[str, float] = {}
        for name in dict.fromkeys(name for loss in losses.values() for name in loss.pooled):
            counts = [losses[k].pooled.get(name) if k in losses else None for k in among]
            differ = sum(count[0] for count in counts if count is not None)
            # Inputs not yet run count as equal to FP32.
            of_fp32 = [self._pools.of_fp32[k].get(name, 0.0) for k in among]
            of_all = sum(own if count is None else count[1] for count, own in zip(counts, of_fp32, strict=True))
            pooled[name] = self._pools.loss(name, differ, of_all)
        return pooled

    def _left(self, plan: PrecisionPlan, order: Sequence[int], to_the_end: bool) -> list[int]:
        if plan in self._failed:
            return []
        losses = self._known(plan)
        if not to_the_end and self._misses({index: losses[index] for index in order if index in losses}, order):
            return []
        return [index for index in order if index not in losses]

    def _misses(self, losses: Mapping[int, InputLoss], among: Collection[int]) -> bool:
        return bool(losses) and self._loss(losses, among) > self._budget

    def _measure(
        self,
        plans: Sequence[PrecisionPlan],
        order: Sequence[int],
        on_plan: Callable[[PrecisionPlan], None],
        *,
        to_the_end: bool,
    ) -> None:
        def begun() -> Iterator[Measuring]:
            # Plans that differ in late layers only come one after another: they share the tensors before these.
            for plan in sorted(plans, key=lambda plan: plan.precisions):
                on_plan(plan)
                trial = self._store.find(self._key(plan)) or Trial("", MEASURED)
                counted = trial.losses.keys() if self._together is None else trial.items.keys()
                losses = {k: loss for k, loss in trial.losses.items() if k in counted}
                stored = {
                    int(k): InputLoss(loss, trial.items.get(k, 1.0), trial.pooled.get(k, {}))
                    for k, loss in losses.items()
                }
                failure = TrialFailed(trial.outcome, trial.message) if trial.failed else None
                remaining = [] if trial.failed else self._left(plan, order, to_the_end)
                yield Measuring(plan, remaining, dict(self._known(plan)), stored, failure=failure)

        def ends(measuring: Measuring) -> bool:
            return not to_the_end and self._misses(measuring.losses, order)

        since = perf_counter()
        with closing(self._inferences.run(begun(), ends)) as measured:
            for measuring in measured:
                now = perf_counter()
                self._keep(measuring, now - since)
                since = now

    def _keep(self, measuring: Measuring, seconds: float) -> None:
        key, failure = self._key(measuring.plan), measuring.failure
        if failure is not None:
            self._failed.add(measuring.plan)
            if self._store.find(key) is None:
                self._store.keep(Trial(key, failure.outcome, message=failure.message))
            return
        self.taken += len(measuring.losses) - len(self._known(measuring.plan))
        self._losses[measuring.plan] = measuring.losses
        if measuring.inferences:
            self._ran(measuring.inferences, seconds)
            before = self._store.find(key) or Trial(key, MEASURED, builds=0)
            all_losses = {str(index): loss for index, loss in {**measuring.stored, **measuring.losses}.items()}
            items = {} if self._together is None else {index: loss.items for index, loss in all_losses.items()}
            trial = replace(
                before,
                ran=self._runner.ran(measuring.plan) or before.ran,
                infer_seconds=before.infer_seconds + seconds,
                inferences=before.inferences + measuring.inferences,
                losses={index: loss.share for index, loss in all_losses.items()},
                items=items,
                pooled={index: loss.pooled for index, loss in all_losses.items() if loss.pooled},
            )
            self._store.keep(trial.judged(measuring.outputs or before.outputs))
