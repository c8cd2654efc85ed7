"""The sentences that tests expect: those of several subjects here, the others in a module for each subject."""

from __future__ import annotations

from tests.support.wording import (
    advice,
    answers,
    checks,
    clusters,
    commands,
    engines,
    history,
    inputs,
    networks,
    presentation,
    regression,
    suites,
    worst,
)

__all__ = [
    "advice",
    "answers",
    "checks",
    "clusters",
    "commands",
    "engines",
    "history",
    "inputs",
    "networks",
    "presentation",
    "regression",
    "suites",
    "worst",
]

OUT_OF_MEMORY = "out of memory"
"""The outcome of a trial in journals and reports, and the words of CUDA's and Python's messages."""
DOES_NOT_FIT = "does not fit"
MISSES_THE_TARGET = "misses the target"
NO_CLUSTER = "There is no cluster"
NO_LAYER_TO_BLAME = "no layer is to blame"
NO_SINGLE_LAYER_TO_BLAME = "no single layer is to blame"
NO_PLAN_MEETS = "no plan that was tried meets it"
NO_FIGURE = "gives no figure"
NOTHING_MEASURED = "Nothing could be measured"
IS_THE_CULPRIT = "is the culprit"
CANNOT_BE_LOADED = "cannot be loaded"
CANNOT_BE_READ = "cannot be read"
CANNOT_BE_USED = "cannot be used"
CANNOT_BE_WRITTEN = "cannot be written"
DOES_NOT_EXIST = "does not exist"


def to_blame(*names: str) -> str:
    """Returns the clause of a headline that names the culprit, or counts the culprits."""
    return f"'{names[0]}' is to blame" if len(names) == 1 else f"{len(names)} layers are to blame"


def the_culprit(name: str) -> str:
    """Returns the sentence of a run's result on its one culprit."""
    return f"'{name}' {IS_THE_CULPRIT}"


def restores(layers: int) -> str:
    """Returns the clause of a headline on a recipe with some layers in FP32."""
    return f"{layers} layer in FP32 restores it" if layers == 1 else f"{layers} layers in FP32 restore it"
