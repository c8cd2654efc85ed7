"""Sentences on the use of commands: options, configuration files, what a stopped command keeps."""

from __future__ import annotations

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
    return f"Going on with {trials} trials"
