"""The exact binomial bound of Clopper and Pearson (1934) on the share of unseen inputs that miss."""

from __future__ import annotations

import math
from dataclasses import dataclass

CLASS, AGREEMENT = "class", "agreement"
SURE = 0.95
"""The probability that a bound holds, over the choice of the held-out inputs."""
_ROUND = tuple(digit / 10**power for power in (1, 2, 3) for digit in (5, 3, 2, 1))
"""The bounds that more inputs may lead to: 50 % down to 0.1 %."""
_STEPS = 60
"""Halvings of an interval: a double has no more digits."""
_MOST_MORE = 10**6


@dataclass(frozen=True)
class Bound:
    """The bound on the share of inputs like the held-out ones that miss.

    Attributes:
        inputs: the number of held-out inputs.
        missed: the number of these on which the plan misses.
        most: with probability ``sure``, at most this share of such inputs misses.
        sure: that probability.
        next: a lower, round bound that more held-out inputs would lead to, if they miss as rarely; None if there is
            none.
        more: the number of further held-out inputs that it takes; None likewise.
        by: how an input misses: empty for the threshold; where an accuracy decides, ``class`` for another class than in
            FP32, and ``agreement`` for an agreement below that of the task.
    """

    inputs: int
    missed: int
    most: float
    sure: float = SURE
    next: float | None = None
    more: int | None = None
    by: str = ""


def bound_of(inputs: int, missed: int, by: str = "") -> Bound:
    """Returns the bound of held-out inputs, of which some missed."""
    most = upper_bound(inputs, missed)
    rounder = next((share for share in _ROUND if missed / inputs < share < most), None)
    more = None if rounder is None else _further(inputs, missed, rounder)
    return Bound(inputs, missed, most, next=None if more is None else rounder, more=more, by=by)


def upper_bound(inputs: int, missed: int) -> float:
    """Returns the share of misses at which so few of the inputs miss with probability 1 - ``SURE``; 1 if all miss."""
    least, most = missed / inputs, 1.0
    for _ in range(_STEPS):
        middle = (least + most) / 2
        if _at_most(missed, inputs, middle) > 1.0 - SURE:
            least = middle
        else:
            most = middle
    return most


def _further(inputs: int, missed: int, share: float) -> int | None:
    """The number of further inputs, of which the same share misses, that lowers a bound to a share."""

    def is_enough(more: int) -> bool:
        count = inputs + more
        return _at_most(-(-missed * count // inputs), count, share) <= 1.0 - SURE

    enough = 1
    while not is_enough(enough):
        enough *= 2
        if enough > _MOST_MORE:
            return None
    too_few = enough // 2
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if is_enough(middle) else (middle, enough)
    return enough


def _at_most(missed: int, inputs: int, share: float) -> float:
    """The probability that at most ``missed`` of the inputs miss, each with the probability ``share``."""
    if missed >= inputs or share <= 0.0:
        return 1.0
    if share >= 1.0:
        return 0.0
    ways = math.lgamma(inputs + 1)
    logs = (
        ways
        - math.lgamma(k + 1)
        - math.lgamma(inputs - k + 1)
        + k * math.log(share)
        + (inputs - k) * math.log1p(-share)
        for k in range(missed + 1)
    )
    return math.fsum(map(math.exp, logs))
