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
EMULATED_HISTOGRAMS = "the histograms are of the emulation"
NEW_BASELINE = "this run is the new baseline"
NOTHING_DIFFERS = "What differs from the baseline: nothing: model, ranges, data"
NOT_OBEYED = "no longer runs in the requested precision"
WAS_ASKED_FOR = "was asked for"
ANOTHER_RUN = "Another run is writing"
CANNOT_BE_READ = "cannot be read"
CANNOT_BE_USED = "cannot be used"
CANNOT_BE_WRITTEN = "cannot be written"
DID_NOT_OBEY = "did not obey"
DOES_NOT_EXIST = "does not exist"
FEWER_THAN_20_INPUTS = "Fewer than 20 inputs"
GOING_ON_WITH = "Going on with "
NOISE_COULD_REVERSE = "Noise could reverse it"
NO_GPU_ANSWERS = "No NVIDIA GPU answers"
NO_USABLE_RANGE = "no usable range"
ON_THE_WORST_OF_6 = "on the worst of 6 inputs"
SEARCH_WAS_STOPPED = "the search was stopped"
TOO_FEW_SAMPLES = "too few samples"


def to_blame(*names: str) -> str:
    """Returns the clause of a headline that names the culprit, or counts the culprits."""
    return f"'{names[0]}' is to blame" if len(names) == 1 else f"{len(names)} layers are to blame"


def the_culprit(name: str) -> str:
    """Returns the sentence of a run's result on its one culprit."""
    return f"'{name}' {IS_THE_CULPRIT}"


def restores(layers: int) -> str:
    """Returns the clause of a headline on a recipe with some layers in FP32."""
    return f"{layers} layer in FP32 restores it" if layers == 1 else f"{layers} layers in FP32 restore it"


def more_layers(count: int) -> str:
    """Returns the sentence on the layers of a nightly run that have no sentence of their own."""
    return f"{count} more layers changed in the same way (regression.json has all)"


def no_longer_culprit(name: str, now: str, before: str) -> str:
    """Returns the sentence on a layer that is no longer a culprit, with its drops."""
    return f"no longer a culprit: '{name}', costs {now}, was {before}"


def not_obeyed(culprit: str, ran: str) -> str:
    """Returns the note on a culprit whose trial did not run in the requested precisions."""
    return (
        f"the engine did not obey the trial that makes '{culprit}' a culprit: it ran {ran}; "
        "'--force-int8' or strong typing is stricter"
    )
