"""Verdicts of ``worst``: the data or the network is the problem."""

from __future__ import annotations

NO_INPUT_IS_BAD = "No input is bad"
A_FEW = "A few bad inputs"
A_PART = "A part of the data is bad"
THE_NETWORK = "A bad network, not a bad input"
THE_ONE_INPUT = "The one input misses"
NO_INPUT_STANDS_OUT = "No input stands out"
OF_TWO_KINDS = "of two kinds"


def standing_out(inputs: int, total: int) -> str:
    """Returns the clause that counts the inputs with far more loss than the median."""
    return f"{inputs} of {total} {'stands' if inputs == 1 else 'stand'} out"
