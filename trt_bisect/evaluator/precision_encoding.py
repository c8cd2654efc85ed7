"""A short encoding, for journals, of the precision that each layer ran in: most of a trial's bytes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from itertools import groupby
from typing import Any

from trt_bisect.evaluator.trial_key import TrialKey
from trt_bisect.precision import MOST_LAYERS, WORDS, PrecisionPlan

AS_ASKED = "as asked"
"""Encodes the precisions of the plan itself."""


def shortened(ran: Mapping[int, str], plan: str) -> Any:
    """Returns the precisions as JSON: ``AS_ASKED``, or pairs of a precision, None if unknown, and a run length.

    >>> shortened({0: "int8", 1: "int8", 3: "fp32"}, "8*4")
    [['int8', 2], [None, 1], ['fp32', 1]]
    """
    if ran == _asked(plan):
        return AS_ASKED
    runs = groupby(ran.get(index) for index in range(max(ran, default=-1) + 1))
    return [[precision, sum(1 for _ in run)] for precision, run in runs]


def restored(short: Any, plan: str) -> dict[int, str]:
    """Returns by layer index the precisions that ``shortened`` encoded.

    It also reads the earlier form, an object by index.

    Raises:
        AttributeError, TypeError, ValueError: ``short`` is no such encoding.
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
    """Returns by layer index the precisions of a trial's plan; none if its key names no plan."""
    try:
        precisions = PrecisionPlan.from_key(TrialKey.from_text(plan).plan).precisions
    except (KeyError, ValueError):
        return {}
    return dict(enumerate(map(WORDS.__getitem__, precisions)))
