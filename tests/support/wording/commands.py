"""Sentences on the use of commands: options, configuration files, what a stopped command keeps."""

from __future__ import annotations

ANOTHER_RUN = "Another run is writing"
SEARCH_WAS_STOPPED = "the search was stopped"
GOING_ON_WITH = "Going on with "
GOES_ON = "goes on from what was measured"
BEGINS_ANEW = "begins anew"
REPEAT_THE_OPTION = "Repeat an option that takes several"
ONE_VALUE = "An option takes one value"
THE_FOLDER_INSTEAD = "Give the folder of the files instead of each: "
ONE_OF_THEM = "one of them"
NO_CALIBRATION_DATA = "no calibration data"
WRITE_A_NUMBER = "Write a number."
WRITE_TOML = "Write TOML: "
RELATIVE_TO_THE_FILE = "Paths are relative to the folder of this file."
LEAVE_ONE_OUT = "Leave one of them out."
NOTHING_TO_MEASURE_WITH = "nothing to measure it with"
LABELS_ALONE = "labels and no data set"
NO_DATA_SET = "no data set"
NO_SUCH_LAYER = "no such layer"
ONLY_CONSTANTS = "only what is constant"
NOWHERE_TO_SAVE = "no folder to save tensors in"
NO_TENSORS_TO_WRITE = "no tensors to write"
NONE_OF_THE_OUTPUTS = "none of the network's outputs"
OTHER_DATA_TOO = "other data is judged too"
TWO_REFERENCES = "cannot both be the reference"
NO_DATA_GIVEN = "no data was given"
HAS_THE_INPUT = "has the input"
NO_OUTPUT_OF = "No output of"
FUNCTION_FAILS = "The accuracy function fails: "
FOR_INT16 = "is for activations in INT16"
NO_RUN_FOLDER = "is no run folder"
EXPLAINED_FIRST = "Remedies are tried for what is explained"
IN_MEBIBYTES = "it is in MiB now: give"
UNEXPECTED_KEYWORD = "got an unexpected keyword argument"
"""Python's own words."""


def cannot_be(option: str, value: str) -> str:
    """Returns the problem of an option's value that is out of its bounds."""
    return f"{option} cannot be {value}"


def saved(inputs: int, of: int) -> str:
    """Returns the clause that counts the inputs whose tensors fit into the given space."""
    return f"tensors of {inputs} of {of} inputs were saved"


def no_row(layer: str) -> str:
    """Returns the clause on a layer that a file of costs lacks."""
    return f"has no row for layer '{layer}'"


def no_key(name: str) -> str:
    """Returns the clause on a key that a file cannot have."""
    return f"no key '{name}'"


def did_you_mean(name: str) -> str:
    """Returns the question after a name that is almost another."""
    return f"Did you mean '{name}'?"


def one_of(*choices: str) -> str:
    """Returns the remedy that lists the choices of an option."""
    return f"Use one of {', '.join(choices)}"


def old_name(old: str, new: str) -> str:
    """Returns the note on an option that has another name now."""
    return f"{old} is an old name: give {new}"


def going_on_with(trials: int) -> str:
    """Returns the clause that counts the trials of an earlier run that are not measured again."""
    return f"{GOING_ON_WITH}{trials} trials"
