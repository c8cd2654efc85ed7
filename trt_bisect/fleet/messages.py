"""What the process that speaks to Ray, and the tasks, answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trt_bisect.errors import TrtBisectError
from trt_bisect.evaluator.attempt import Attempt


@dataclass(frozen=True)
class Node:
    """A node that lives: its name for people, and how many tasks of this fleet it can hold."""

    name: str
    places: int


@dataclass(frozen=True)
class Tried:
    """A plan was tried.

    Attributes:
        timings: the worker's timing cache where it has grown, else empty.
    """

    node: str
    attempt: Attempt
    timings: bytes = b""


@dataclass(frozen=True)
class Refused:
    """A worker that other figures would come from, or none; and why."""

    node: str
    why: str


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


Ended = Tried | Refused | Raised | Lost | Broken


@dataclass(frozen=True)
class Seen:
    """What has happened: tasks that ended, by their ticket, and the nodes that live, by their id."""

    ended: tuple[tuple[int, Ended], ...]
    nodes: Mapping[str, Node]
