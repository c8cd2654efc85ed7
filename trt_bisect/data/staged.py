"""Stand-ins for data and files that a user named on another machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class StagedFile:
    """A copy of data, a calibration cache or a run folder of another machine.

    Attributes:
        name: its name on the other machine, for messages and reports.
        content: the data set, the ranges or the folder that replaces it on this machine.
    """

    name: str
    content: Any


def content_of(given: Any) -> Any:
    """Returns the content of a staged file, and anything else unchanged."""
    return given.content if isinstance(given, StagedFile) else given


def name_of(given: Any) -> str:
    """Returns the name of a staged file, a path as text, or an empty text for anything else."""
    if isinstance(given, StagedFile):
        return given.name
    return str(given) if isinstance(given, (str, Path)) else ""
