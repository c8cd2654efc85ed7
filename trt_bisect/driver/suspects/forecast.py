"""Forecasts of losses, and the plans that a search will ask for next if they hold. They never decide anything."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from trt_bisect.driver.suspects.search import Loss, Question, Search
from trt_bisect.precision import PrecisionPlan

Losses = Mapping[PrecisionPlan, Loss]
_BAD = 1e9


class Forecast(Protocol):
    """Forecasts the losses of plans that are not measured yet."""

    def losses(self, plan: PrecisionPlan, assumed: Losses) -> Sequence[float]:
        """Returns the losses that a plan may have: one if the forecast is as good as sure, else several.

        Args:
            plan: not measured yet.
            assumed: the losses that were measured, and those that were forecast before this one.
        """
        ...

    def learn(self, known: Losses) -> None:
        """Takes note of all losses measured so far."""
        ...


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

    def learn(self, known: Losses) -> None:
        """Takes the rise of every layer that was measured on both sides; a later measurement replaces an earlier."""
        for plan, loss in known.items():
            last = self._last(plan)
            before = known.get(plan.keeping({last}, self._rest)) if last >= 0 else None
            if loss is not None and before is not None and math.isfinite(before):
                self._rises[last] = loss - before

    def _last(self, plan: PrecisionPlan) -> int:
        """Returns the last INT8 layer that the user did not fix; -1 without one."""
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
        """Returns a good and a bad loss; a good one alone as the class says, and for a plan without INT8."""
        suspects_kept = self._last in plan.lowered and plan != self._full
        return (0.0,) if suspects_kept or not plan.lowered & self._movable else (0.0, _BAD)

    def learn(self, known: Losses) -> None:
        """Does nothing: this forecast uses no measurement."""


def foreseen(
    start: Callable[[], Search[Any]], known: Losses, forecast: Forecast, limit: int | None
) -> list[PrecisionPlan]:
    """Returns the plans that a search will ask for, the next one first.

    Where a forecast names several losses, the search is followed for each of them, so that the nearest plans of all
    futures come first.

    Args:
        start: begins the search anew.
        known: the losses measured so far.
        forecast: the forecast of the other losses.
        limit: the most plans returned; None for all.
    """
    wanted: dict[PrecisionPlan, None] = {}
    futures: deque[dict[PrecisionPlan, Loss]] = deque([{}])
    while futures and not _full(wanted, limit):
        futures.extend(_follow(start(), known, futures.popleft(), forecast, wanted, limit))
    return list(wanted)


def _follow(
    search: Search[Any],
    known: Losses,
    future: Mapping[PrecisionPlan, Loss],
    forecast: Forecast,
    wanted: dict[PrecisionPlan, None],
    limit: int | None,
) -> list[dict[PrecisionPlan, Loss]]:
    """Follows a search until it ends, until there are ``limit`` plans, or until several losses are forecast.

    Args:
        search: not begun.
        known: the losses measured so far.
        future: the losses assumed so far.
        forecast: the forecast of the other losses.
        wanted: the plans that the search asks for are added to it.
        limit: the most plans wanted.

    Returns:
        The futures in which the search goes on, one for each loss forecast; none if it was followed to its end.
    """
    losses, assumed = {**known, **future}, dict(future)
    try:
        plan = next(search)
        while not _full(wanted, limit):
            if plan not in losses:
                wanted[plan] = None
                likely = forecast.losses(plan, losses)
                if len(likely) > 1:
                    return [{**assumed, plan: loss} for loss in likely]
                losses[plan] = assumed[plan] = likely[0]
            plan = search.send(losses[plan])
    except StopIteration:
        pass
    return []


def _full(wanted: Mapping[PrecisionPlan, None], limit: int | None) -> bool:
    return limit is not None and len(wanted) >= limit
