"""The process that ``builder.isolation`` starts: holds builders and their engines, answers one request at a time."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from trt_bisect.builder.base import Builder, Engine, Outputs
from trt_bisect.builder.tensorrt_module import LISTENERS
from trt_bisect.builder.timing import Latency
from trt_bisect.builder.weak_plan import TellsWeakPlan, WeakPlan
from trt_bisect.data.datasets import Feeds
from trt_bisect.errors import OUT_OF_MEMORY, TrialFailed, TrtBisectError, first_line
from trt_bisect.precision import PrecisionPlan

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class About:
    """A builder that was started: the number it is asked by, and the facts of a ``Builder``."""

    number: int
    engine: str
    typing: str
    arithmetic: str
    versions: Mapping[str, str]


@dataclass(frozen=True)
class Made:
    """An engine that was built: the number it is asked by, and the facts of an ``Engine``."""

    number: int
    messages: tuple[str, ...]
    ran: Mapping[int, str]


@dataclass(frozen=True)
class Failure:
    """A ``TrialFailed``."""

    outcome: str
    message: str


@dataclass(frozen=True)
class Broken:
    """An error that is no outcome of a trial: one for the user, or, with ``error`` None, one of trt-bisect itself."""

    error: TrtBisectError | None
    trace: str = ""


def outcome_of(request: tuple[Any, ...]) -> str:
    """The outcome of the trial whose ``request`` fails."""
    return "build failed" if request[0] in ("build", "reference") else "inference failed"


def serve(descriptor: int, parent: int, work: object | None = None) -> None:
    """Answers requests until the parent closes the connection; on the way to an answer, sends what the engine logs.

    Args:
        descriptor: of the connection's socket.
        parent: the parent's process id.
        work: has a method for each request; without it engines are built and run.
    """
    for stop in (signal.SIGINT, signal.SIGTERM):  # a terminal, or a scheduler, sends them to all: the parent decides
        signal.signal(stop, signal.SIG_IGN)
    _end_with(parent)
    connection = Connection(descriptor)
    lock = threading.Lock()

    def tell(answer: object) -> None:
        with lock:
            connection.send(answer)

    LISTENERS.append(tell)
    work = work or _Work()
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        except Exception as error:
            tell(_broken(error))
        else:
            tell(_answer(work, request))


def _end_with(parent: int) -> None:
    """Has Linux end this process when its parent ends, however it does: a build that hangs would never notice."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            sys.exit()


def _answer(work: object, request: tuple[Any, ...]) -> object:
    name, *arguments = request
    try:
        return getattr(work, name)(*arguments)
    except TrialFailed as failure:
        return Failure(failure.outcome, failure.message)
    except MemoryError as error:
        return Failure(OUT_OF_MEMORY, f"Out of memory. {error}".strip())
    except TrtBisectError as error:
        return Broken(error)
    except Exception as error:
        return _broken(error)


def _broken(error: Exception) -> Broken:
    return Broken(None, f"{type(error).__name__}: {first_line(error)}\n{traceback.format_exc()}")


class _Work:
    """One method a request."""

    def __init__(self) -> None:
        self._builders: list[Builder] = []
        self._engines: dict[int, Engine] = {}
        self._made = 0

    def start(self, make: Callable[[], Builder]) -> About:
        builder = make()
        self._builders.append(builder)
        number = len(self._builders) - 1
        return About(number, builder.engine, builder.typing, builder.arithmetic, dict(builder.versions))

    def build(self, number: int, plan: PrecisionPlan) -> Made:
        return self._keep(self._builders[number].build(plan))

    def reference(self, number: int) -> Made:
        return self._keep(self._builders[number].reference())

    def weak_plan(self, number: int, plan: PrecisionPlan) -> WeakPlan:
        builder = self._builders[number]
        assert isinstance(builder, TellsWeakPlan)
        return builder.weak_plan(plan)

    def _keep(self, engine: Engine) -> Made:
        self._made += 1
        self._engines[self._made] = engine.__enter__()
        return Made(self._made, engine.messages, dict(engine.ran))

    def infer(self, number: int, feeds: Feeds) -> tuple[Outputs, dict[int, str]]:
        outputs = self._engines[number].infer(feeds)
        return outputs, dict(self._engines[number].ran)

    def latency(self, number: int, feeds: Feeds) -> Latency | None:
        return self._engines[number].latency(feeds)

    def close(self, number: int) -> None:
        self._engines.pop(number).__exit__(None, None, None)
