"""Searches whose plans are measured many at a time: what a driver will ask next is foreseen, and asked at once.

Every decision is still the driver's own, from what was measured. A forecast that fails costs plans that nobody needed.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from trt_bisect.driver.culprits.search import Loss, Question, Result, Search
from trt_bisect.precision import PrecisionPlan

Known = Mapping[PrecisionPlan, Loss]
MeasureAll = Callable[[Sequence[PrecisionPlan]], Sequence[Loss]]
_BAD = 1e9
_AFTER_A_SURPRISE = 24
"""How many plans are measured ahead after a forecast failed; twice as many each time that one holds."""


class Forecast(Protocol):
    """What plans may turn out to cost."""

    def losses(self, plan: PrecisionPlan, assumed: Known) -> Sequence[float]:
        """The losses that a plan may have, by what was measured or assumed so far; one if it is as good as sure."""
        ...

    def learn(self, known: Known) -> None:
        """Takes note of what was measured."""
        ...


class Rises:
    """A layer adds what it added when it was last measured; nothing, as long as it was not."""

    def __init__(self, question: Question) -> None:
        self._high = question.high
        self._rises: dict[int, float] = {}

    def losses(self, plan: PrecisionPlan, assumed: Known) -> Sequence[float]:
        """The loss without the plan's last INT8 layer, and its rise; bad where not even that was assumed."""
        if not plan.int8:
            return (0.0,)
        last = max(plan.int8)
        before = assumed.get(plan.keeping({last}, self._high))
        return (_BAD if before is None else before + self._rises.get(last, 0.0),)

    def learn(self, known: Known) -> None:
        """The rise of every layer that was measured on both sides, the latest one last."""
        for plan, loss in known.items():
            last = max(plan.int8, default=-1)
            before = known.get(plan.keeping({last}, self._high)) if last >= 0 else None
            if loss is not None and before is not None and math.isfinite(before):
                self._rises[last] = loss - before


class Either:
    """A boundary is as good as with nothing in INT8, or bad; behind a culprit that is ruled out, all is good."""

    def __init__(self, question: Question) -> None:
        self._full = question.all_but(())
        self._last = max(question.quantizable, default=-1)

    def losses(self, plan: PrecisionPlan, assumed: Known) -> Sequence[float]:  # noqa: ARG002
        """Good and bad; good alone for nothing in INT8, and for all layers but those ruled out."""
        ruled_out = self._last in plan.int8 and plan != self._full
        return (0.0,) if ruled_out or not plan.int8 else (0.0, _BAD)

    def learn(self, known: Known) -> None:
        """Nothing."""


def drive_speculatively(
    start: Callable[[], Search[Result]], measure_all: MeasureAll, forecast: Forecast, limit: int | None = None
) -> Result:
    """Runs a search to its end, measuring with each plan it asks for those that it is likely to ask after it.

    Args:
        start: begins the search anew; it must ask the same plans if it is told the same losses.
        forecast: what is assumed of plans that are not measured yet.
        limit: how many plans are measured at once; None for all that can be foreseen, as long as forecasts hold.
    """
    known: dict[PrecisionPlan, Loss] = {}
    wanted: list[PrecisionPlan] = []
    window = limit
    while True:
        search, asked = start(), set[PrecisionPlan]()
        try:
            plan = next(search)
            while plan in known:
                asked.add(plan)
                plan = search.send(known[plan])
        except StopIteration as end:
            result: Result = end.value
            return result
        if limit is None:
            window = _next_window(window, surprised=not asked.issuperset(wanted))
        wanted = foreseen(start, known, forecast, window)
        known.update(zip(wanted, measure_all(wanted), strict=True))
        forecast.learn(known)


def _next_window(window: int | None, *, surprised: bool) -> int | None:
    if surprised:
        return _AFTER_A_SURPRISE
    return None if window is None else 2 * window


def foreseen(
    start: Callable[[], Search[Result]], known: Known, forecast: Forecast, limit: int | None
) -> list[PrecisionPlan]:
    """The next plan that a search asks, and those that follow if a forecast holds, the nearest first."""
    wanted: dict[PrecisionPlan, None] = {}
    futures: deque[dict[PrecisionPlan, Loss]] = deque([{}])
    while futures and (limit is None or len(wanted) < limit):
        assumed = {**known, **futures.popleft()}
        search = start()
        try:
            plan = next(search)
            while limit is None or len(wanted) < limit:
                if plan not in assumed:
                    wanted[plan] = None
                    losses = forecast.losses(plan, assumed)
                    if len(losses) > 1:
                        own = {asked: loss for asked, loss in assumed.items() if asked not in known}
                        futures.extend({**own, plan: loss} for loss in losses)
                        break
                    assumed[plan] = losses[0]
                plan = search.send(assumed[plan])
        except StopIteration:
            continue
    return list(wanted)
