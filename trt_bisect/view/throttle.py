"""What is found out again only so often that looking on costs next to nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, TypeVar

Found = TypeVar("Found")
BETWEEN = 1.0
"""Seconds, at least."""
SHARE = 0.01
"""Of one core."""


class Throttled(Generic[Found]):
    """One answer for all who ask: as old as a second, or as a hundred times what it took to find out."""

    def __init__(self, find: Callable[[], Found], clock: Callable[[], float] = time.monotonic) -> None:
        self._find = find
        self._clock = clock
        self._known: Found | None = None
        self._until = float("-inf")

    def __call__(self) -> Found:
        """The answer; what ``find`` raises is not kept."""
        if self._known is None or self._clock() >= self._until:
            began = time.process_time()
            self._known = self._find()
            self._until = self._clock() + max(BETWEEN, (time.process_time() - began) / SHARE)
        return self._known
