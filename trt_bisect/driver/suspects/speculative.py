"""Searches run with plans measured ahead: those that the search asks for, and those that it will probably ask for next.

Every decision is the search's own, from measured losses. A forecast that fails costs plans that nobody needed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from trt_bisect.driver.suspects.forecast import Forecast, foreseen
from trt_bisect.driver.suspects.search import Loss, Result, Search, drive
from trt_bisect.precision import PrecisionPlan

MeasureAll = Callable[[Sequence[PrecisionPlan]], Sequence[Loss]]
_AFTER_A_SURPRISE, _FEWEST = 12, 3
"""The number of plans measured in a batch after a forecast failed: the first time, and at least. It halves with each
batch whose forecast failed, and doubles with each one whose forecast held."""


class ConcurrentMeasurer(Protocol):
    """Measures several plans at the same time."""

    @property
    def workers(self) -> int:
        """The number of plans that can be measured at the same time now."""
        ...

    def begin(self, plan: PrecisionPlan) -> None:
        """Begins to measure a plan."""
        ...

    def ended(self) -> tuple[PrecisionPlan, Loss]:
        """Waits for the next plan to be measured, of those begun; returns it and its loss."""
        ...

    def abandon(self) -> None:
        """Gives up the plans that were begun and have not ended."""
        ...


def drive_speculatively(
    start: Callable[[], Search[Result]], measure_all: MeasureAll, forecast: Forecast, limit: int | None = None
) -> Result:
    """Runs a search to its end, and measures plans in batches.

    Args:
        start: begins the search anew; it must ask for the same plans if it is sent the same losses.
        measure_all: returns the losses of a batch.
        forecast: the forecast of losses that are not measured yet.
        limit: the most plans in a batch; None for all that can be foreseen, as long as forecasts hold.
    """
    return drive(start(), _Batches(start, measure_all, forecast, limit).loss)


class _Batches:
    """Measures each plan together with those that the search will probably ask for after it."""

    def __init__(
        self, start: Callable[[], Search[Any]], measure_all: MeasureAll, forecast: Forecast, limit: int | None
    ) -> None:
        self._start = start
        self._measure_all = measure_all
        self._forecast = forecast
        self._grows = limit is None
        self._size = limit
        self._known: dict[PrecisionPlan, Loss] = {}
        self._asked: set[PrecisionPlan] = set()
        self._batch: list[PrecisionPlan] = []

    def loss(self, plan: PrecisionPlan) -> Loss:
        """Returns the loss of the plan that the search asks for."""
        if plan not in self._known:
            self._measure_batch()
        self._asked.add(plan)
        return self._known[plan]

    def _measure_batch(self) -> None:
        if self._grows:
            self._size = self._next_size()
        self._batch = foreseen(self._start, self._known, self._forecast, self._size)
        self._known.update(zip(self._batch, self._measure_all(self._batch), strict=True))
        self._forecast.learn(self._known)

    def _next_size(self) -> int | None:
        """Returns the next batch's size: smaller if a plan of the last batch was not needed, else twice as many."""
        if self._asked.issuperset(self._batch):
            return None if self._size is None else 2 * self._size
        return _AFTER_A_SURPRISE if self._size is None else max(_FEWEST, min(_AFTER_A_SURPRISE, self._size // 2))


def drive_concurrently(
    start: Callable[[], Search[Result]], measurer: ConcurrentMeasurer, forecast: Forecast, reach: int = 1
) -> tuple[Result, int]:
    """Runs a search to its end, with every worker on the plan that it asks for or on one that it may ask for next.

    Args:
        start: begins the search anew; it must ask for the same plans if it is sent the same losses.
        measurer: measures plans, in whatever order.
        forecast: the forecast of losses that are not measured yet.
        reach: the number of plans foreseen at once for each worker. More costs less time here. Where a forecast names
            several losses, only the first plans are worth measuring.

    Returns:
        The search's result, and the number of plans that were measured and not asked for.
    """
    ahead = _Workers(start, measurer, forecast, reach)
    try:
        return drive(start(), ahead.loss), ahead.in_vain
    finally:
        measurer.abandon()


class _Workers:
    """Keeps workers busy with the plans that the search will probably ask for."""

    def __init__(
        self, start: Callable[[], Search[Any]], measurer: ConcurrentMeasurer, forecast: Forecast, reach: int
    ) -> None:
        self._start = start
        self._measurer = measurer
        self._forecast = forecast
        self._reach = reach
        self._known: dict[PrecisionPlan, Loss] = {}
        self._asked: set[PrecisionPlan] = set()
        self._under_way: set[PrecisionPlan] = set()
        self._waiting: deque[PrecisionPlan] = deque()

    @property
    def in_vain(self) -> int:
        """The number of plans that were measured and not asked for."""
        return len(self._known.keys() - self._asked)

    def loss(self, plan: PrecisionPlan) -> Loss:
        """Returns the loss of the plan that the search asks for."""
        self._asked.add(plan)
        while plan not in self._known:
            if not self._waiting or plan not in self._under_way.union(self._waiting):
                self._look_ahead()
            self._begin()
            measured, self._known[measured] = self._measurer.ended()
            self._under_way.discard(measured)
            self._forecast.learn(self._known)
        return self._known[plan]

    def _look_ahead(self) -> None:
        """Has the plans wait that the search will probably ask for now."""
        limit = self._reach * max(1, self._measurer.workers)
        likely = foreseen(self._start, self._known, self._forecast, limit)
        self._waiting = deque(plan for plan in likely if plan not in self._under_way)

    def _begin(self) -> None:
        """Begins waiting plans until every worker has one; at least one plan is under way then."""
        while self._waiting and (len(self._under_way) < self._measurer.workers or not self._under_way):
            self._under_way.add(self._waiting[0])
            self._measurer.begin(self._waiting.popleft())
