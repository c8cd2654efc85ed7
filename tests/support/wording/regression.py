"""Sentences of comparisons: runs with each other, nightly runs with their baseline."""

from __future__ import annotations

NOT_OBEYED = "no longer runs in the requested precision"
NOTHING_DIFFERS = "What differs from the baseline: nothing: model, ranges, data"
NEW_BASELINE = "this run is the new baseline"
JUDGED_INPUTS = "data (the judged inputs)"
METRIC_FUNCTION = "the metric's function"
IS_WORSE = "is worse"
NO_LONGER_MEETS = "no longer meets the threshold"
STILL_GOING_ON = "still going on"
HIGH_TYPES = "how layers in FP16 and BF16 are written"
NO_BASELINE_YET = "There is no baseline yet"
NO_BASELINE_IN = "no baseline in"
NO_BASELINE = "is no baseline"
NOT_OVERWRITTEN = "is not overwritten"
NOT_A_REPORT = "is not a report"
NO_SUCH_MODEL = "the model of none of the suite's networks"
OWN_FAULT = "an error of trt-bisect itself, "
RESUMING = "Resuming the nightly run in"
NO_PLAN_MEASURED = "No plan could be measured"
NO_LONGER_IN_THE_SUITE = "no longer in the suite: "
NEWEST_GOOD = "the newest that passed or was accepted"
CANNOT_BE_COMPARED = "cannot be compared"


def limit(name: str, value: str) -> str:
    """Returns the clause on the target or the threshold of a network."""
    return f"the {name} is {value}"


def measures(plan: str, figure: str, name: str, value: str) -> str:
    """Returns the sentence on a plan that misses the target or the threshold."""
    return f"{plan} measures {figure}, {limit(name, value)}"


def not_measured(plan: str, name: str, value: str) -> str:
    """Returns the sentence on a plan without a figure, where there is a target or a threshold."""
    return f"{plan} is not measured, {limit(name, value)}"


def moved(what: str, direction: str, now: str, before: str) -> str:
    """Returns the sentence on a figure; ``direction`` is such as ``worse``, ``better``, ``slower``."""
    return f"{what} is {direction}: {now}, was {before}"


def new_culprit(layer: str, now: str, before: str) -> str:
    """Returns the sentence on a layer that is a culprit since tonight, with its drops."""
    return f"new culprit '{layer}', costs {now}, was {before}"


def costs_more(layer: str, now: str, before: str) -> str:
    """Returns the sentence on a layer whose drop grew."""
    return f"'{layer}' costs more: {now}, was {before}"


def other_recipe(now: str, before: str) -> str:
    """Returns the beginning of the sentence on a recipe with other layers; both are texts such as ``'a' and 'b'``."""
    return f"the recipe leaves {now} high, was {before}"


def more_layers(count: int) -> str:
    """Returns the sentence on the layers of a nightly run that have no sentence of their own."""
    return f"{count} more layers changed in the same way (regression.json has all)"


def no_longer_culprit(name: str, now: str, before: str) -> str:
    """Returns the sentence on a layer that is no longer a culprit, with its drops."""
    return f"no longer a culprit: '{name}', costs {now}, was {before}"
