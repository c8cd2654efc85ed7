"""A limit on how often a value is computed again, so that viewers cost little CPU time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, TypeVar

Found = TypeVar("Found")
BETWEEN = 1.0
"""The least time between two computations, in seconds."""
SHARE = 0.01
"""The largest fraction of one core."""


class Throttled(Generic[Found]):
    """A value shared by all callers, computed again after 1 s or 100 times its own CPU time, whichever is longer.

    Args:
        find: computes the value.
        clock: returns the time in seconds.
    """

    def __init__(self, find: Callable[[], Found], clock: Callable[[], float] = time.monotonic) -> None:
        self._find = find
        self._clock = clock
        self._value: Found | None = None
        self._until = float("-inf")

    def __call__(self) -> Found:
        """Returns the value; an error of ``find`` is raised and not kept."""
        if self._value is None or self._clock() >= self._until:
            began = time.process_time()
            self._value = self._find()
            self._until = self._clock() + max(BETWEEN, (time.process_time() - began) / SHARE)
        return self._value
