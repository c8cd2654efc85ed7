"""Searches run with plans measured ahead: those that the search asks for, and those that it will probably ask for next.

Every decision is the search's own, from measured losses. A failed forecast costs plans that nobody needed.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from trt_bisect.driver.search import Loss, Question, Result, Search, drive
from trt_bisect.precision import PrecisionPlan

Losses = Mapping[PrecisionPlan, Loss]
Measured = TypeVar("Measured", covariant=True)
_BAD = 1e9


class LossForecast(Protocol):
    """Forecasts the losses of plans that are not measured yet."""

    def losses(self, plan: PrecisionPlan, assumed: Losses) -> Sequence[float]:
        """Returns the losses that a plan may have: one if the forecast is nearly sure, else several.

        Args:
            assumed: the losses measured, and those forecast before this one.
        """

    def learn(self, measured: Losses) -> None:
        """Takes note of all losses measured so far."""


class LastRises:
    """Forecasts that a layer adds the loss that it added when it was last measured, or none if it never was."""

    def __init__(self, question: Question) -> None:
        self._rest, self._movable = question.rest, frozenset(question.quantizable)
        self._rises: dict[int, float] = {}

    def losses(self, plan: PrecisionPlan, assumed: Losses) -> Sequence[float]:
        """Returns the loss without the plan's last INT8 layer, plus the rise of that layer.

        The forecast is a bad loss if the plan without that layer is not known.
        """
        last = self._last(plan)
        if last < 0:
            return (0.0,)
        before = assumed.get(plan.keeping({last}, self._rest))
        return (_BAD if before is None else before + self._rises.get(last, 0.0),)

    def learn(self, measured: Losses) -> None:
        """Takes the rise of every layer that was measured on both sides; a later measurement replaces an earlier."""
        for plan, loss in measured.items():
            last = self._last(plan)
            before = measured.get(plan.keeping({last}, self._rest)) if last >= 0 else None
            if loss is not None and before is not None and math.isfinite(before):
                self._rises[last] = loss - before

    def _last(self, plan: PrecisionPlan) -> int:
        return max(plan.int8 & self._movable, default=-1)


class GoodOrBad:
    """Forecasts for every boundary two losses: that of no layer in INT8, and a bad one.

    With a suspect kept high, the plan with all other layers in INT8 is forecast as good alone.
    """

    def __init__(self, question: Question) -> None:
        self._full = question.all_but(())
        self._movable = frozenset(question.quantizable)
        self._last = max(question.quantizable, default=-1)

    def losses(self, plan: PrecisionPlan, assumed: Losses) -> Sequence[float]:  # noqa: ARG002
        """Returns a good and a bad loss; only a good one as the class says, and for a plan without INT8."""
        suspects_kept = self._last in plan.lowered and plan != self._full
        return (0.0,) if suspects_kept or not plan.lowered & self._movable else (0.0, _BAD)

    def learn(self, measured: Losses) -> None:
        """Does nothing: this forecast uses no measurement."""


def foreseen(
    start: Callable[[], Search[Any]], measured: Losses, forecast: LossForecast, limit: int | None
) -> list[PrecisionPlan]:
    """Returns the plans that a search will ask for, the next one first.

    Where a forecast names several losses, the search is followed for each, the nearest plans of all futures first.

    Args:
        start: begins the search anew.
        limit: the most plans returned; None for all.
    """
    plans: dict[PrecisionPlan, None] = {}
    futures: deque[dict[PrecisionPlan, Loss]] = deque([{}])
    most = math.inf if limit is None else limit
    while futures and len(plans) < most:
        search, assumed = start(), futures.popleft()
        losses = {**measured, **assumed}
        with suppress(StopIteration):
            plan = next(search)
            while len(plans) < most:
                if plan not in losses:
                    plans[plan] = None
                    likely = forecast.losses(plan, losses)
                    if len(likely) > 1:
                        futures.extend({**assumed, plan: loss} for loss in likely)
                        break
                    losses[plan] = assumed[plan] = likely[0]
                plan = search.send(losses[plan])
    return list(plans)


class ConcurrentMeasurer(Protocol[Measured]):
    """Measures several plans at the same time."""

    @property
    def workers(self) -> int:
        """The number of plans that can be measured at the same time now."""

    def begin(self, plan: PrecisionPlan) -> None:
        """Begins to measure a plan."""

    def ended(self) -> tuple[PrecisionPlan, Measured]:
        """Waits for the next plan to be measured, of those begun; returns it and what was measured."""

    def abandon(self) -> None:
        """Gives up the plans that were begun and have not ended."""


def drive_concurrently(
    start: Callable[[], Search[Result]],
    measurer: ConcurrentMeasurer[Measured],
    loss_of: Callable[[PrecisionPlan, Measured], Loss],
    forecast: LossForecast,
    reach: int = 1,
) -> tuple[Result, int]:
    """Runs a search to its end, with every worker on a plan that it asks for or may ask for next.

    Args:
        start: begins the search anew; it must ask for the same plans if it is sent the same losses.
        loss_of: called with each measured plan; returns its loss.
        reach: the number of plans foreseen at once for each worker. More takes longer here; where a forecast names
            several losses, only the first plans are worth measuring.

    Returns:
        The search's result, and the number of plans measured and not asked for.
    """
    losses: dict[PrecisionPlan, Loss] = {}
    requests: set[PrecisionPlan] = set()
    under_way: set[PrecisionPlan] = set()
    waiting: deque[PrecisionPlan] = deque()

    def measured(plan: PrecisionPlan) -> Loss:
        requests.add(plan)
        while plan not in losses:
            if not waiting or plan not in under_way.union(waiting):
                likely = foreseen(start, losses, forecast, reach * max(1, measurer.workers))
                waiting.clear()
                waiting.extend(plan for plan in likely if plan not in under_way)
            # Every worker gets a plan; at least one plan is under way then.
            while waiting and (len(under_way) < measurer.workers or not under_way):
                under_way.add(waiting[0])
                measurer.begin(waiting.popleft())
            ended, result = measurer.ended()
            losses[ended] = loss_of(ended, result)
            under_way.discard(ended)
            forecast.learn(losses)
        return losses[plan]

    try:
        return drive(start(), measured), len(losses.keys() - requests)
    finally:
        measurer.abandon()
