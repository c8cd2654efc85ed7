"""Sentences on a recipe and the facts that it rests on."""

from __future__ import annotations

ON_THE_WORST_OF_6 = "on the worst of 6 inputs"
FEWER_THAN_20_INPUTS = "fewer than 20 inputs"
NOISE_COULD_REVERSE = "Noise could reverse it"
NO_ENGINE_HAS_CONFIRMED = "No engine has confirmed this"
BY_MORE_THAN_THE_NOISE = "by more than the noise"
LESS_THAN_THE_NOISE = "by less than the noise"
NOISE_NOT_MEASURED = "Noise was not measured"
MISSES_THE_THRESHOLD = "misses the threshold"
MEETS_THE_THRESHOLD = "meets the threshold"
FOLLOWERS_ROUND = "Layers that only follow rounded"
WEAK_TYPING_ROUNDS = "weak typing may also round"
OR_ITS_MARGIN = "or its margin"
JUDGED_AS_TWO = "judged as two"
MORE_THAN_THE_BUDGET = "more than the budget"
NOT_TESTED = "NOT TESTED: "
NOT_IN_PIECES = "cannot be measured in pieces"


def inputs(given: int, unseen: str) -> str:
    """Returns the clause that counts the inputs of the verdict; ``unseen`` is such as ``6 unseen``."""
    return f"{given} inputs given and {unseen}"


def judged(count: int) -> str:
    """Returns the clause that counts the inputs that the search used."""
    return f"on {count} of those given"


def measured_on(engine: str) -> str:
    """Returns the clause on the engine that confirmed the verdict."""
    return f"measured on {engine}"


def within_the_noise(culprit: str) -> str:
    """Returns the clause on a culprit that noise alone could explain."""
    return f"'{culprit}' is a culprit by less than the noise"


def more_of(count: int, total: int) -> str:
    """Returns the sentence that counts the culprits that are not named."""
    return f"So are {count} more of the {total} culprits"


def equal_outputs_give(figure: float) -> str:
    """Returns the clause on the figure of a reference against itself."""
    return f"equal outputs give {figure}"


def margin_on(inputs: int, given: int) -> str:
    """Returns the clause on the inputs on which the recipe keeps the margin."""
    return f"% on {inputs} of {given} input"
