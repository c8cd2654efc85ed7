"""Things that a user has named, on a machine that does not have them: what stands for them, and their name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class StagedFile:
    """Data, a calibration cache or a run folder of another machine.

    Attributes:
        name: what it is called there, for messages and reports.
        content: the data set, the ranges, or the folder that stands for it here.
    """

    name: str
    content: Any


def content_of(given: Any) -> Any:
    """What a user gave, or what stands for it here."""
    return given.content if isinstance(given, StagedFile) else given


def name_of(given: Any) -> str:
    """What a user named; empty for objects, and for nothing."""
    if isinstance(given, StagedFile):
        return given.name
    return str(given) if isinstance(given, (str, Path)) else ""
