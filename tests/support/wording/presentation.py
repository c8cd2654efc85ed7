"""Sentences of the page, the list of runs, the screen and the logs for TensorBoard."""

from __future__ import annotations

EMULATED_HISTOGRAMS = "the histograms are of the emulation"
NOTHING_HIGH = "nothing has to be left high"
ONE_OTHER_SCALE = "With 1 other scale and all layers in INT8"
ALL_IN_INT8 = "every layer in INT8"
NO_LAYER_MATCHES = "No layer matches"
CHECKED_FILE = "Quantization of each layer"
OTHER_SETTINGS = "Worst given input, in other settings"
CHOOSE_ANOTHER_FOLDER = "Choose another with --tensorboard"
MEASURING_PLANS = "Measuring plans"


def suspect(name: str) -> str:
    """Returns the line that a run prints as soon as a suspect of an adaptive curve is found."""
    return f"Suspect: {name}"


def with_high(layers: int) -> str:
    """Returns the beginning of the headline of ``recover`` on a recipe."""
    return f"With {layers} layers in FP32 the network"


def meets_the_target(target: str) -> str:
    """Returns the clause of the headline of ``recover`` on a recipe that holds."""
    return f"meets the target of {target}"


def misses_the_target(target: str) -> str:
    """Returns the clause of the headline of ``recover`` on a recipe that does not hold."""
    return f"misses the target of {target}"


def best_recipe(layers: int) -> str:
    """Returns the sentence above the files of the recipe that ``recover`` found."""
    return f"These are the files of the best recipe: {layers} layers left high."


def met_by(limit: str, layers: int, verdict: str = "fails") -> str:
    """Returns the verdict in the list of runs; ``limit`` is ``target`` or ``threshold``."""
    high = "1 layer high meets" if layers == 1 else f"{layers} layers high meet"
    return f"{verdict}; {high} the {limit}"


def fused(layer: str, low: str, recipe: str) -> str:
    """Returns the line on the times of a layer in the engines of full INT8 and of the recipe."""
    return f"'{layer}' and what is fused with it: {low} in INT8, {recipe} in the recipe"


def more_notes(count: int) -> str:
    """Returns the line that counts the notes that the screen leaves out."""
    return f"{count} more notes are in report.json."


def without_layer(layer: str, plan: str, low: int) -> str:
    """Returns the words on a plan of the log: the curve's point without a layer, its name, its layers in INT8."""
    return f"up to '{layer}', but without it; {plan}: {low} layers in INT8"
