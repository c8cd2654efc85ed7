"""The errors that a user sees, each with the exit code of the command."""

from __future__ import annotations

import errno
import re
import shlex
import traceback
from pathlib import Path

MAKE_ROOM = "Make room or choose another --output; what was measured is kept, and the same command goes on from there."
_LONGEST_LINE, _LONGEST_TEXT = 500, 1000
OUT_OF_MEMORY = "out of memory"
"""The outcome of a trial for which machine or GPU lacked memory: no verdict on the plan."""
_FAILURES = ("build failed", "inference failed")
# Messages of Python, C++, CUDA, ONNX Runtime's arena and TensorRT (on a full GPU it does not start: CUDA error 2).
_NO_MEMORY = re.compile(
    r"out[ _]?of[ _]?memory|MemoryError|bad[_ ]alloc(ation)?\b|(cannot|failed to|unable to) allocate|"
    r"memory .{0,40}could not be allocated|smaller than requested bytes|CUDA initialization failure with error: 2\b",
    re.IGNORECASE,
)


class TrtBisectError(Exception):
    """The base of all errors that a user sees.

    Attributes:
        problem: what is wrong, and where, in one line.
        remedy: what to do, in one line; may be empty.
    """

    exit_code = 2

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.problem}\n{self.remedy}" if self.remedy else self.problem

    @property
    def line(self) -> str:
        """Problem and remedy as sentences in one line."""
        problem = self.problem if self.problem.endswith((".", ":", "?")) else f"{self.problem}."
        return f"{problem} {self.remedy}".strip().replace("\n", " ")


class BadInput(TrtBisectError):
    """A file, a name, a shape or an option that cannot be used."""


class NoRoom(BadInput):
    """A file of a run cannot be written, usually because the disk is full. Earlier measurements are kept."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem, MAKE_ROOM)


class EngineUnavailable(TrtBisectError):
    """A requested inference engine cannot be used on this machine."""


class NothingMeasured(TrtBisectError):
    """Every trial failed."""

    exit_code = 3


class Interrupted(TrtBisectError):
    """The user stopped the run."""

    exit_code = 130


class TrialFailed(Exception):
    """One plan could not be built or run. Only this trial fails, not the run.

    Attributes:
        outcome: the kind of failure, such as ``build failed``; ``out of memory`` if the message says so.
    """

    def __init__(self, outcome: str, message: str) -> None:
        super().__init__(outcome, message)
        self.outcome = OUT_OF_MEMORY if outcome in _FAILURES and _NO_MEMORY.search(message) else outcome
        self.message = message

    def __str__(self) -> str:
        return self.message


def lacks_room(error: BaseException) -> bool:
    """Returns true if a file could not be written because the disk or a quota is full."""
    full = (errno.ENOSPC, errno.EDQUOT)
    return isinstance(error, NoRoom) or any(
        isinstance(cause, OSError) and cause.errno in full for cause in (error, error.__cause__)
    )


def first_line(error: Exception) -> str:
    """Returns an error's first line, at most 500 characters; its type without a message."""
    return (str(error).splitlines() or [type(error).__name__])[0][:_LONGEST_LINE]


def on_screen(error: TrtBisectError) -> str:
    """Returns the text to print for an error: problem and remedy, without control characters."""
    lines = [" ".join(text.splitlines())[:_LONGEST_TEXT] for text in (error.problem, error.remedy) if text]
    return "\n".join("".join(letter if letter.isprintable() else "?" for letter in line) for line in lines)


def install(extra: str) -> str:
    """Returns the pip command for an optional group of packages; for a clone of the repository if trt-bisect is not
    installed.
    """
    from importlib.metadata import PackageNotFoundError, requires

    try:
        lines = requires("trt-bisect") or []
    except PackageNotFoundError:
        lines = []
    needed = [line.split(";")[0].strip() for line in lines if re.search(rf"extra == ['\"]{extra}['\"]", line)]
    return f"pip install {shlex.join(needed or [f'.[{extra}]'])}"


def own_fault(error: Exception) -> str:
    """Returns the message for an unexpected error, a fault of trt-bisect."""
    return f"an error of trt-bisect itself, {raised(error)}\nPlease report it."


def raised(error: Exception) -> str:
    """Returns an error's type, line of code and first line of text; of a ``TrtBisectError`` the whole text."""
    if isinstance(error, TrtBisectError):
        return str(error)
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {Path(where.filename).name}:{where.lineno}: {first_line(error)}"
