"""The errors that reach a user, each with the exit code it ends the command with."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

MAKE_ROOM = "Make room or choose another --output; what was measured is kept, and the same command goes on from there."
_LONGEST_LINE, _LONGEST_TEXT = 500, 1000
OUT_OF_MEMORY = "out of memory"
"""The outcome of a trial that had too little memory, of the machine or of the GPU. It says nothing of the plan."""
_FAILURES = ("build failed", "inference failed")
_NO_MEMORY = re.compile(
    r"out[ _]?of[ _]?memory|MemoryError|bad[_ ]alloc(ation)?\b|(cannot|failed to|unable to) allocate|"
    r"memory .{0,40}could not be allocated|smaller than requested bytes",
    re.IGNORECASE,
)
"""The words of Python, C++, CUDA, TensorRT (``Error Code 2: OutOfMemory``) and ONNX Runtime's arena for it."""


class TrtBisectError(Exception):
    """What was wrong and where, and, in ``remedy``, what to do about it: one line each."""

    exit_code = 2

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.problem}\n{self.remedy}" if self.remedy else self.problem


class BadInput(TrtBisectError):
    """A file, a name, a shape or an option that cannot be used."""


class EngineUnavailable(TrtBisectError):
    """An inference engine that was asked for cannot be used here."""


class NothingMeasured(TrtBisectError):
    """Every trial failed: there is no figure to judge."""

    exit_code = 3


class Interrupted(TrtBisectError):
    """The user stopped the run."""

    exit_code = 130


class TrialFailed(Exception):
    """One plan could not be built or run. The outcome of that trial, never of the run.

    Attributes:
        outcome: as given; ``out of memory`` where that is a failure and the message says what it failed for.
    """

    def __init__(self, outcome: str, message: str) -> None:
        super().__init__(message)
        self.outcome = OUT_OF_MEMORY if outcome in _FAILURES and _NO_MEMORY.search(message) else outcome
        self.message = message


def first_line(error: Exception) -> str:
    """What an error says, in one line of at most 500 letters."""
    return (str(error).splitlines() or [type(error).__name__])[0][:_LONGEST_LINE]


def on_screen(error: TrtBisectError) -> str:
    """What is printed of an error: a line of what was wrong, and one of what to do, whatever names are in them."""
    return "\n".join(_printable(text) for text in (error.problem, error.remedy) if text)


def _printable(text: str) -> str:
    line = " ".join(text.splitlines())[:_LONGEST_TEXT]
    return "".join(letter if letter.isprintable() else "?" for letter in line)


def own_fault(error: Exception) -> str:
    """What is said of an error that nobody foresaw: its type, where it was raised, its first line."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"an error of trt-bisect itself, {type(error).__name__} at {Path(where.filename).name}:{where.lineno}: "
        f"{first_line(error)}\nPlease report it."
    )
