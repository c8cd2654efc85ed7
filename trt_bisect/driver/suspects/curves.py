"""The curves: the boundaries that a search for suspects measures."""

from __future__ import annotations

from trt_bisect.driver.suspects.adaptive import adaptive, one_at_a_time
from trt_bisect.driver.suspects.bisect import bisect
from trt_bisect.driver.suspects.exhaustive import exhaustive
from trt_bisect.driver.suspects.search import Findings, Question, Search, Step

FULL, ADAPTIVE, CULPRITS = "full", "adaptive", "culprits"
MOST_IN_FULL = 400
"""Networks with more quantizable layers have the adaptive curve if the user asks for none."""


def usual_curve(layers: int) -> str:
    """Returns the curve of a network with that many quantizable layers if the user asks for none."""
    return FULL if layers <= MOST_IN_FULL else ADAPTIVE


def search_for(curve: str, question: Question, watched: list[Step] | None = None) -> Search[Findings]:
    """Returns the search of a curve; it asks for one plan after another.

    Args:
        curve: ``full`` measures every boundary, ``adaptive`` those where the loss changes and every stride's ends,
            ``culprits`` those that the verdict needs.
        question: the network and the losses that are tolerated.
        watched: steps are added to it as soon as they are settled.
    """
    if curve == ADAPTIVE:
        return one_at_a_time(adaptive(question, watched))
    return (exhaustive if curve == FULL else bisect)(question, watched)
