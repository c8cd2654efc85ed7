"""Sentences of advice: causes, evidence, remedies, and those that were tried."""

from __future__ import annotations

OTHER_CALIBRATION_DATA = "other calibration data"
WHOLE_NETWORK = "for the whole network"
ALL_COMMANDS = "explanation.json has the commands for every tool"
NO_BIAS_CORRECTION = "bias correction were not tried: "
OF_THE_ACTIVATION = "of the activation"
RANGE_TOO_WIDE = "the range is too wide"
MEASURED_ON_ALL = "Measured on all inputs, for the whole network:"
FAR_FROM_ZERO = "far from zero"
FINAL_OUTPUTS_ONLY = "final outputs only"
NOT_EXPLAINED = "the run could not be explained: "
OF_THE_EMULATION = "the tensors are those of the emulation"
NOT_EQUALISED = "equalisation was not tried: "


def to_blame(part: str) -> str:
    """Returns the clause on the part of a layer that loses more: its weight or its activation."""
    return f"the {part} is to blame"


def made_and_read(maker: str, reader: str) -> str:
    """Returns the clause on the two layers at a rounded tensor."""
    return f"it is made by '{maker}' and read in INT8 by '{reader}'"


def one_input(remedy: str, layer: str) -> str:
    """Returns the remedy as it is listed where it was tried on the tensors that a layer reads."""
    return f"{remedy} for what '{layer}' reads"


def whole_network(remedy: str) -> str:
    """Returns the remedy as it is listed where it was tried on all layers."""
    return f"{remedy} {WHOLE_NETWORK}"
