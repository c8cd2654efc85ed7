"""Sentences of comparisons: runs with each other, nightly runs with their baseline."""

from __future__ import annotations

JUDGED_INPUTS = "data (the judged inputs)"
METRIC_FUNCTION = "the metric's function"
CANNOT_BE_COMPARED = "cannot be compared"
