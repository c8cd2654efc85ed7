"""The answers of the process that uses Ray, and of the tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trt_bisect.errors import TrtBisectError
from trt_bisect.evaluator.attempt import Attempt
from trt_bisect.report.model import Report


@dataclass(frozen=True)
class Node:
    """A living node.

    Attributes:
        name: the name for messages.
        capacity: the number of tasks that it can run at the same time.
    """

    name: str
    capacity: int


@dataclass(frozen=True)
class Tried:
    """A plan was tried.

    Attributes:
        worker: its name; no other worker of the cluster has it, and a file name may contain it.
        attempt: the result.
        timings: the bytes of its timing cache if that has grown, else empty.
    """

    worker: str
    attempt: Attempt
    timings: bytes = b""


@dataclass(frozen=True)
class Refused:
    """A worker on a node that is not used, since its figures would differ, or it has none; and the reason."""

    node: str
    why: str


def refusal(node: str, facts: Mapping[str, str], own: Mapping[str, str]) -> Refused | None:
    """Returns a refusal if the versions and the device of a node, ``own``, are not those of ``facts``."""
    differing = [f"{name} {own.get(name)} instead of {fact}" for name, fact in facts.items() if own.get(name) != fact]
    return Refused(node, ", ".join(differing)) if differing else None


@dataclass(frozen=True)
class Raised:
    """An error for the user, raised on a worker."""

    error: TrtBisectError


@dataclass(frozen=True)
class Lost:
    """The worker or its node was lost; ``why`` is Ray's message."""

    why: str


@dataclass(frozen=True)
class InternalError:
    """An error of trt-bisect itself on a worker, as a traceback."""

    trace: str


@dataclass(frozen=True)
class Ran:
    """A whole run has ended.

    Attributes:
        report: its report.
        files: the contents of its folder's files, by relative path.
    """

    report: Report
    files: Mapping[str, bytes]


@dataclass(frozen=True)
class Mail:
    """The output of a whole run since the last mail: new whole lines of its journal, and its progress file."""

    journal: bytes
    progress: bytes


Ended = Tried | Ran | Refused | Raised | Lost | InternalError


@dataclass(frozen=True)
class Events:
    """The tasks that ended and the mail that came, each with its ticket, and the living nodes by their id."""

    ended: tuple[tuple[int, Ended], ...]
    nodes: Mapping[str, Node]
    mail: tuple[tuple[int, Mail], ...] = ()
