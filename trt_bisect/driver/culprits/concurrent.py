"""Searches whose plans are measured at several places at once: what a driver asks, and what it is likely to ask next.

Every decision is still the driver's own, from what was measured, in whatever order that ended. A forecast that fails
costs plans that nobody needed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from trt_bisect.driver.culprits.search import Loss, Result, Search
from trt_bisect.driver.culprits.speculative import Forecast, foreseen
from trt_bisect.precision import PrecisionPlan


class Places(Protocol):
    """Where plans are measured at once."""

    @property
    def places(self) -> int:
        """How many there are now."""
        ...

    def begin(self, plan: PrecisionPlan) -> None:
        """Has a plan measured."""
        ...

    def ended(self) -> tuple[PrecisionPlan, Loss]:
        """The next plan that was measured, of those begun, and its loss."""
        ...

    def abandon(self) -> None:
        """Gives up those that have not ended."""
        ...


def drive_concurrently(
    start: Callable[[], Search[Result]], places: Places, forecast: Forecast, reach: int = 1
) -> tuple[Result, int]:
    """Runs a search to its end, with every place at work on the plan it asks or on one that it may ask after it.

    Args:
        start: begins the search anew; it must ask the same plans if it is told the same losses.
        places: measure plans.
        forecast: what is assumed of plans that are not measured yet.
        reach: how many plans for each place are foreseen at once. More is less work here; where a forecast is a guess
            between several, the first of them alone are worth measuring.

    Returns:
        What the search found, and how many plans were measured that it did not ask.
    """
    known: dict[PrecisionPlan, Loss] = {}
    asked: set[PrecisionPlan] = set()
    under_way: set[PrecisionPlan] = set()
    waiting: deque[PrecisionPlan] = deque()
    search = start()
    try:
        plan = next(search)
        while True:
            asked.add(plan)
            while plan not in known:
                if not waiting or plan not in under_way.union(waiting):
                    likely = foreseen(start, known, forecast, reach * max(1, places.places))
                    waiting = deque(each for each in likely if each not in under_way)
                while waiting and (len(under_way) < places.places or not under_way):
                    under_way.add(waiting[0])
                    places.begin(waiting.popleft())
                measured, known[measured] = places.ended()
                under_way.discard(measured)
                forecast.learn(known)
            plan = search.send(known[plan])
    except StopIteration as end:
        result: Result = end.value
        return result, len(known.keys() - asked)
    finally:
        places.abandon()
