"""The process that ``builder.isolation`` starts: it holds builders and engines, and answers requests one by one."""

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
from trt_bisect.builder.tensorrt_walk import TellsWeakPlan, WeakPlan
from trt_bisect.builder.timing import Latency
from trt_bisect.data.feeds import Feeds
from trt_bisect.errors import OUT_OF_MEMORY, TrialFailed, TrtBisectError, first_line
from trt_bisect.precision import PrecisionPlan

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class StartedBuilder:
    """A builder that was started: its number in later requests, and the facts of a ``Builder``."""

    number: int
    engine: str
    typing: str
    arithmetic: str
    versions: Mapping[str, str]


@dataclass(frozen=True)
class BuiltEngine:
    """An engine that was built: its number in later requests, and the facts of an ``Engine``."""

    number: int
    messages: tuple[str, ...]
    ran: Mapping[int, str]


@dataclass(frozen=True)
class FailedRequest:
    """The answer to a request that raised ``TrialFailed``; the answer to one that raised another error is the error."""

    outcome: str
    message: str


def outcome_of(request: tuple[Any, ...]) -> str:
    """Returns the outcome of a trial whose ``request`` fails."""
    return "build failed" if request[0] in ("build", "reference", "call") else "inference failed"


def serve(descriptor: int, parent: int, work: object | None = None) -> None:
    """Answers requests until the parent closes the connection; the engine's log messages are sent before an answer.

    Args:
        descriptor: the descriptor of the connection's socket.
        parent: the parent's process id.
        work: an object with one method for each request; None for one that builds and runs engines.
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
    """Makes Linux end this process when its parent ends, in whatever way: a build that hangs would never notice."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            sys.exit()


def _answer(work: object, request: tuple[Any, ...]) -> object:
    name, *arguments = request
    try:
        return getattr(work, name)(*arguments)
    except TrialFailed as failure:
        return FailedRequest(failure.outcome, failure.message)
    except MemoryError as error:
        return FailedRequest(OUT_OF_MEMORY, f"Out of memory. {error}".strip())
    except TrtBisectError as error:
        return error
    except Exception as error:
        return _broken(error)


def _broken(error: Exception) -> RuntimeError:
    """Returns an error of trt-bisect itself with its traceback, which pickling would lose."""
    return RuntimeError(f"{type(error).__name__}: {first_line(error)}\n{traceback.format_exc()}")


class _Work:
    """Builds and runs engines; has one method for each request."""

    def __init__(self) -> None:
        self._builders: list[Builder] = []
        self._engines: dict[int, Engine] = {}
        self._made = 0

    def start(self, make: Callable[[], Builder]) -> StartedBuilder:
        builder = make()
        self._builders.append(builder)
        number = len(self._builders) - 1
        return StartedBuilder(number, builder.engine, builder.typing, builder.arithmetic, dict(builder.versions))

    def call(self, function: Callable[[], object]) -> object:
        return function()

    def build(self, number: int, plan: PrecisionPlan) -> BuiltEngine:
        return self._keep(self._builders[number].build(plan))

    def reference(self, number: int) -> BuiltEngine:
        return self._keep(self._builders[number].reference())

    def weak_plan(self, number: int, plan: PrecisionPlan) -> WeakPlan:
        builder = self._builders[number]
        assert isinstance(builder, TellsWeakPlan)
        return builder.weak_plan(plan)

    def _keep(self, engine: Engine) -> BuiltEngine:
        self._made += 1
        self._engines[self._made] = engine.__enter__()
        return BuiltEngine(self._made, engine.messages, dict(engine.ran))

    def infer(self, number: int, feeds: Feeds) -> tuple[Outputs, dict[int, str]]:
        outputs = self._engines[number].infer(feeds)
        return outputs, dict(self._engines[number].ran)

    def latency(self, number: int, feeds: Feeds) -> Latency | None:
        return self._engines[number].latency(feeds)

    def close(self, number: int) -> None:
        self._engines.pop(number).__exit__(None, None, None)
