"""What each layer ran in, as short as a journal wants it: in a large network it is most of what a trial says."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from itertools import groupby
from typing import Any

from trt_bisect.evaluator.trial_key import TrialKey
from trt_bisect.precision import MOST_LAYERS, PrecisionPlan

AS_ASKED = "as asked"
"""Stands for the precisions of the plan itself."""


def shortened(ran: Mapping[int, str], plan: str) -> Any:
    """The precisions as JSON: ``AS_ASKED``, or pairs of a precision, None where there is none, and a run length.

    >>> shortened({0: "int8", 1: "int8", 3: "fp32"}, "8*4")
    [['int8', 2], [None, 1], ['fp32', 1]]
    """
    if ran == _asked(plan):
        return AS_ASKED
    runs = groupby(ran.get(index) for index in range(max(ran, default=-1) + 1))
    return [[precision, sum(1 for _ in run)] for precision, run in runs]


def restored(short: Any, plan: str) -> dict[int, str]:
    """By layer index the precisions that ``shortened`` was given; also as they stood before it, an object by index.

    Raises:
        AttributeError, TypeError, ValueError: that is not what it gives.
    """
    if short == AS_ASKED:
        return _asked(plan)
    if isinstance(short, Mapping):
        return {int(index): sys.intern(precision) for index, precision in short.items()}
    if sum(count for _, count in short) > MOST_LAYERS:
        raise ValueError(f"precisions of more than {MOST_LAYERS} layers")
    every = [precision for precision, count in short for _ in range(count)]
    return {index: sys.intern(precision) for index, precision in enumerate(every) if precision is not None}


def _asked(plan: str) -> dict[int, str]:
    """By layer index the precisions of a plan, whatever mark stands before its key; none where it is no plan's key."""
    try:
        precisions = PrecisionPlan.from_key(TrialKey.from_text(plan).plan).precisions
    except (KeyError, ValueError):
        return {}
    return {index: str(precision) for index, precision in enumerate(precisions)}
