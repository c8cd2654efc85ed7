"""What the process that speaks to Ray, and the tasks, answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trt_bisect.errors import TrtBisectError
from trt_bisect.evaluator.attempt import Attempt
from trt_bisect.results.run_report import Report


@dataclass(frozen=True)
class Node:
    """A node that lives: its name for people, and how many tasks of this fleet it can hold."""

    name: str
    places: int


@dataclass(frozen=True)
class Tried:
    """A plan was tried.

    Attributes:
        worker: by whom, unlike every other of the cluster; it can stand in a file's name.
        timings: its timing cache where that has grown, else empty.
    """

    worker: str
    attempt: Attempt
    timings: bytes = b""


@dataclass(frozen=True)
class Refused:
    """A worker that other figures would come from, or none; and why."""

    node: str
    why: str


def refusal(node: str, facts: Mapping[str, str], own: Mapping[str, str]) -> Refused | None:
    """The refusal of a node whose own versions and device are not those that ``facts`` name."""
    differing = [f"{name} {own.get(name)} instead of {fact}" for name, fact in facts.items() if own.get(name) != fact]
    return Refused(node, ", ".join(differing)) if differing else None


@dataclass(frozen=True)
class Raised:
    """An error for the user, raised on a worker."""

    error: TrtBisectError


@dataclass(frozen=True)
class Lost:
    """The worker, or its node, was lost; in Ray's words."""

    why: str


@dataclass(frozen=True)
class Broken:
    """An error of trt-bisect itself on a worker, as a traceback."""

    trace: str


@dataclass(frozen=True)
class Ran:
    """A whole run has ended.

    Attributes:
        report: its report, with all that goes with it.
        files: of its folder, by their place in it.
    """

    report: Report
    files: Mapping[str, bytes]


@dataclass(frozen=True)
class Mail:
    """What a whole run has written meanwhile: whole lines of its journal, and its progress as it is now."""

    journal: bytes
    progress: bytes


Ended = Tried | Ran | Refused | Raised | Lost | Broken


@dataclass(frozen=True)
class Seen:
    """What has happened: tasks that ended, and mail, by their ticket, and the nodes that live, by their id."""

    ended: tuple[tuple[int, Ended], ...]
    nodes: Mapping[str, Node]
    mail: tuple[tuple[int, Mail], ...] = ()
