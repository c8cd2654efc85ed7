"""Sentences on the network: its layers, its types, its operators, and its file as it is measured."""

from __future__ import annotations

IN_FLOAT32 = "the network has it in float32"
ALL_OTHERS_IN_ITS_TYPE = "all that is not in FP8"
EQUAL_ALONE = "each layer alone is equal"
NOTHING_CAN_BE_JUDGED = "nothing can be judged"
GIVES_ANOTHER_OUTPUT = "as prepared for measuring gives another output"
COULD_NOT_BE_EXPLAINED = "could not be explained"
IN_ANOTHER_LAYER = "not the one that was measured"
NONE_IN_INT8 = "none is in INT8"
IN_BOTH = "is in both"
ACTIVATIONS_IN_INT16 = "is for activations in INT16"
ACTIVATION_AND_WEIGHT = "both of activation and weight"
RELU_NOT_PROVED = "does not prove that a Relu was removed"
EXTRA_PAIR = "residual with extra pair"
SCALE_OUT_OF_LINE = "scale out of line"
ON_THE_GPU = "ran on the GPU"


def differing(plan: str, layer: str) -> str:
    """Returns the clause on the first layer that gives other values than the user's file."""
    return f"in {plan}, layer '{layer}' makes"


def not_obeyed_everywhere(layer: str, asked: str, ran: str, trials: int, of: int) -> str:
    """Returns the note on a layer that ran in another precision than requested in some trials."""
    return (
        f"the engine did not obey every precision: '{layer}' was asked for {asked} and ran in {ran} "
        f"({trials} of {of} trials)"
    )
