"""Two editions of tests with many alike cases: few in ``make test``, all in ``make full``."""

from __future__ import annotations

import os
from typing import TypeVar

FULL = os.environ.get("TRT_BISECT_TESTS") == "full"
"""True for the full edition: with ``TRT_BISECT_TESTS=full`` in the environment."""
T = TypeVar("T")


def edition(few: T, full: T) -> T:
    """Returns the cases of a parametrised test, or the number of examples that Hypothesis tries."""
    return full if FULL else few
