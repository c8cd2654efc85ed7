"""Builders in a worker process: a build or an inference that crashes, hangs or exhausts memory fails only one trial."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from time import monotonic
from typing import IO, Any

from trt_bisect.builder.base import Builder, Engine, Latency, Outputs
from trt_bisect.builder.tensorrt_build import LISTENERS, Message
from trt_bisect.builder.tensorrt_weak import TellsWeakPlan, WeakPlan
from trt_bisect.data.feeds import Feeds
from trt_bisect.errors import OUT_OF_MEMORY, EngineUnavailable, TrialFailed, TrtBisectError, first_line
from trt_bisect.precision import PrecisionPlan

_PR_SET_PDEATHSIG = 1


# An engine's number in later requests, and its ``messages`` and ``ran``.
BuiltEngine = tuple[int, tuple[str, ...], Mapping[int, str]]


def outcome_of(request: str) -> str:
    """Returns the outcome of a trial whose request failed, such as ``build failed`` for ``build``."""
    return "build failed" if request in ("build", "reference", "call") else "inference failed"


def serve(descriptor: int, parent: int, work: object | None = None) -> None:
    """Runs in the worker: answers each request with its result or error, until the parent closes the connection.

    ``descriptor`` is the connection's file descriptor, ``parent`` the parent's process id, ``work`` the object whose
    methods the requests name; None: one that builds and runs engines.
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
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            sys.exit()


def _answer(work: object, request: tuple[Any, ...]) -> object:
    name, *arguments = request
    try:
        return getattr(work, name)(*arguments)
    except MemoryError as error:
        return TrialFailed(OUT_OF_MEMORY, f"Out of memory. {error}".strip())
    except (TrialFailed, TrtBisectError) as error:
        return error
    except Exception as error:
        return _broken(error)


def _broken(error: Exception) -> RuntimeError:
    return RuntimeError(f"{type(error).__name__}: {first_line(error)}\n{traceback.format_exc()}")


class _Work:
    def __init__(self) -> None:
        self._builders: list[Builder] = []
        self._engines: dict[int, Engine] = {}
        self._made = 0

    def start(self, make: Callable[[], Builder]) -> tuple[int, str, str, str, Mapping[str, str]]:
        builder = make()
        self._builders.append(builder)
        number = len(self._builders) - 1
        return number, builder.engine, builder.typing, builder.arithmetic, dict(builder.versions)

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
        return self._made, engine.messages, dict(engine.ran)

    def infer(self, number: int, feeds: Feeds) -> tuple[Outputs, dict[int, str]]:
        outputs = self._engines[number].infer(feeds)
        return outputs, dict(self._engines[number].ran)

    def latency(self, number: int, feeds: Feeds) -> Latency | None:
        return self._engines[number].latency(feeds)

    def close(self, number: int) -> None:
        self._engines.pop(number).__exit__(None, None, None)


_START_SECONDS = 600.0
_EXIT_SECONDS = 30.0
_LAST_LINES = 20
_WORKER = (
    "import importlib, sys; sys.path[:] = sys.argv[4:]\n"
    "importlib.import_module(sys.argv[1]).serve(int(sys.argv[2]), int(sys.argv[3]))"
)
_WORK = {
    "start": "The start",
    "build": "The build",
    "call": "The build",
    "reference": "The build of the FP32 reference",
    "weak_plan": "The parsing of the recipe's network",
    "infer": "The inference",
    "latency": "The timing",
    "close": "The release of the engine",
}


class WorkerProcess:
    """A worker process that builders may share; if it has ended, the next use starts a new one."""

    def __init__(self, device: str | None = None) -> None:
        """Starts no process yet; ``device`` is the only GPU that it will see, by name or number; None: all."""
        self._worker: Worker | None = None
        self._environment = {} if device is None else {"CUDA_VISIBLE_DEVICES": device}

    def worker(self) -> Worker:
        """Returns the running process; starts a new one if necessary."""
        if self._worker is None or not self._worker.alive:
            self._worker = Worker(self._environment)
        return self._worker

    def stop(self) -> None:
        """Kills the process; a thread that waits for an answer gets TrialFailed."""
        if self._worker is not None:
            self._worker.kill()


class IsolatedBuilder:
    """A ``Builder`` that builds and runs its engines in a worker process."""

    engine: str
    typing: str
    arithmetic: str
    versions: Mapping[str, str]

    def __init__(
        self, make: Callable[[], Builder], timeout: float | None = None, process: WorkerProcess | None = None
    ) -> None:
        """Starts the builder; raises the errors of ``make``, and EngineUnavailable if the process ends.

        Args:
            make: makes the builder, in the worker; must be picklable.
            timeout: seconds for a build or an inference; None: no limit.
            process: the worker process; None starts a new one.
        """
        self._make = make
        self._timeout = timeout
        self.process = process or WorkerProcess()
        self._start()

    def build(self, plan: PrecisionPlan) -> IsolatedEngine:
        """Builds the engine of a plan; raises TrialFailed if the build fails, crashes or takes too long."""
        return IsolatedEngine(partial(self._ask, "build", plan), self._timeout)

    def reference(self) -> IsolatedEngine:
        """Builds the engine with every layer in FP32; raises TrialFailed as ``build`` does."""
        return IsolatedEngine(partial(self._ask, "reference"), self._timeout)

    def weak_plan(self, plan: PrecisionPlan) -> WeakPlan:
        """Returns the constraints with which weakly typed TensorRT runs a plan; raises TrialFailed if this fails."""
        constrained: WeakPlan = self._ask("weak_plan", plan)[1]
        return constrained

    def _ask(self, request: str, *arguments: object) -> tuple[Worker, Any]:
        if not self._worker.alive:
            try:
                self._start()
            except EngineUnavailable as error:
                failure = TrialFailed(outcome_of(request), str(error))
                if failure.outcome != OUT_OF_MEMORY:
                    raise
                raise failure from error
        return self._worker, self._worker.ask((request, self._number, *arguments), self._timeout)

    def _start(self) -> None:
        self._worker = self.process.worker()
        try:
            started = self._worker.ask(("start", self._make), _START_SECONDS)
        except TrialFailed as failure:
            raise EngineUnavailable(f"The engine does not start: {failure.message}") from failure
        self._number, self.engine, self.typing, self.arithmetic, self.versions = started


class IsolatedEngine:
    """An engine in a worker process; built again if that process was replaced.

    Attributes:
        ran: the precision that ran, by layer index; before the first inference, only what the graph sets.
    """

    def __init__(self, make: Callable[[], tuple[Worker, BuiltEngine]], timeout: float | None) -> None:
        self._make = make
        self._timeout = timeout
        self._worker, (self._number, self.messages, self.ran) = make()

    def infer(self, feeds: Feeds) -> Outputs:
        """Returns the outputs for a sample by name; raises TrialFailed if the inference fails or takes too long."""
        outputs, self.ran = self._ask("infer", feeds)
        return dict(outputs)

    def latency(self, feeds: Feeds) -> Latency | None:
        """Returns the measured time of an inference, None if emulated; raises TrialFailed if it fails or takes too
        long.
        """
        latency: Latency | None = self._ask("latency", feeds)
        return latency

    def _ask(self, request: str, feeds: Feeds) -> Any:
        if not self._worker.alive:
            self._worker, (self._number, *_) = self._make()
        return self._worker.ask((request, self._number, feeds), self._timeout)

    def __enter__(self) -> IsolatedEngine:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(TrialFailed):
            self._worker.ask(("close", self._number), self._timeout)


# CUDA calls may keep failing after a failure, so the process is replaced.
class Worker:
    """A process that answers requests. It ends after a failure, when this object is deleted, and with its parent.

    Attributes:
        end: a function that ends the process at once.
    """

    def __init__(
        self, environment: Mapping[str, str] | None = None, module: str = "trt_bisect.builder.isolation"
    ) -> None:
        """Starts the process: the function ``serve`` of ``module``, with ``environment``'s variables in addition."""
        self._printed: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._connection, theirs = Pipe()
        with theirs:
            # A fresh interpreter: CUDA does not survive a fork, and multiprocessing would run the user's script again.
            self._process = subprocess.Popen(
                [sys.executable, "-c", _WORKER, module, str(theirs.fileno()), str(os.getpid()), *sys.path],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=self._printed,
                stderr=self._printed,
                env={"CUDA_MODULE_LOADING": "LAZY", **os.environ, **(environment or {})},
            )
        self.end = weakref.finalize(self, _end, self._process, self._connection, self._printed)

    @property
    def alive(self) -> bool:
        """True if the process can answer requests."""
        return self.end.alive and self._process.poll() is None

    def kill(self) -> None:
        """Kills the process; a waiting request raises TrialFailed."""
        self._process.kill()

    def ask(self, request: tuple[Any, ...], limit: float | None) -> Any:
        """Sends a request, a method's name and its arguments, and returns the answer; any failure ends the process.

        Raises TrialFailed if a build or inference failed, the process crashed, or it did not answer in ``limit``
        seconds (None: no limit); other errors of the work are raised unchanged.
        """
        if not self.alive:
            raise TrialFailed(outcome_of(request[0]), "The worker process has ended.")
        messages: list[str] = []
        try:
            answer = self._answer(request, limit, messages)
            if isinstance(answer, TrialFailed):
                untold = (text for text in messages if text not in answer.message)
                raise TrialFailed(answer.outcome, "\n".join([answer.message, *untold]))
            if isinstance(answer, Exception):
                raise answer
        except (EOFError, OSError) as error:
            message = self._crash_message(request, messages)
            outcome = outcome_of(request[0])
            if self._process.returncode == -signal.SIGKILL:
                outcome = OUT_OF_MEMORY
            raise TrialFailed(outcome, message) from error
        except BaseException:
            self.end()
            raise
        return answer

    def _answer(self, request: tuple[Any, ...], limit: float | None, messages: list[str]) -> Any:
        deadline = None if limit is None else monotonic() + limit
        self._connection.send(request)
        while True:
            left = None if deadline is None else max(0.0, deadline - monotonic())
            if not self._connection.poll(left):
                raise TrialFailed(
                    "timed out", "\n".join([f"{_WORK.get(request[0], 'The work')} took over {limit:g} s.", *messages])
                )
            answer = self._connection.recv()
            if not isinstance(answer, Message):
                return answer
            messages.append(answer.text)

    def _crash_message(self, request: tuple[Any, ...], messages: list[str]) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_EXIT_SECONDS)
        self._printed.seek(0)
        printed = self._printed.read().decode(errors="replace").splitlines()[-_LAST_LINES:]
        self.end()
        how = _how_it_ended(self._process.returncode)
        return "\n".join([f"{_WORK.get(request[0], 'The work')} ended the worker process {how}.", *messages, *printed])


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
    if -code == signal.SIGKILL:
        return f"by signal {name}, as Linux does when memory runs out"
    return f"by signal {name}"


def _end(process: subprocess.Popen[bytes], connection: Connection, printed: IO[bytes]) -> None:
    process.kill()
    process.wait()
    connection.close()
    printed.close()
