"""A builder in a process of its own: a build or an inference that crashes, hangs or eats all memory costs one trial.

The process is a fresh interpreter: CUDA does not survive a fork, and ``multiprocessing`` would run the user's script a
second time. It stays up from build to build and is replaced after it failed, since an error of CUDA can spoil a process
for all that comes after it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from time import monotonic
from types import TracebackType
from typing import IO, Any

from trt_bisect.builder.base import Builder, Outputs
from trt_bisect.builder.tensorrt_module import Message
from trt_bisect.builder.timing import Latency
from trt_bisect.builder.weak_plan import WeakPlan
from trt_bisect.builder.worker import About, Broken, Failure, Made, outcome_of
from trt_bisect.data.datasets import Feeds
from trt_bisect.errors import OUT_OF_MEMORY, EngineUnavailable, TrialFailed
from trt_bisect.precision import PrecisionPlan

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
    "reference": "The build of the FP32 reference",
    "weak_plan": "The parsing of the recipe's network",
    "infer": "The inference",
    "latency": "The timing",
    "close": "The release of the engine",
}


class WorkerProcess:
    """The worker process of one or several builders; a new one takes over where it has ended."""

    def __init__(self, device: str | None = None) -> None:
        """Starts nothing yet; ``device`` is the only GPU that it is to see, as ``CUDA_VISIBLE_DEVICES`` names it."""
        self._worker: Worker | None = None
        self._environment = {} if device is None else {"CUDA_VISIBLE_DEVICES": device}

    def worker(self) -> Worker:
        """The process that builds now, started if need be."""
        if self._worker is None or not self._worker.alive:
            self._worker = Worker(self._environment)
        return self._worker

    def stop(self) -> None:
        """Kills the process; whoever waits for its answer, in another thread, is told that it has ended."""
        if self._worker is not None:
            self._worker.kill()


class IsolatedBuilder:
    """A ``Builder`` whose engines are built, and run, in a worker process."""

    def __init__(
        self, make: Callable[[], Builder], timeout: float | None = None, workshop: WorkerProcess | None = None
    ) -> None:
        """Starts the builder.

        Args:
            make: makes the builder in the worker; it is pickled, and so are plans, feeds and outputs.
            timeout: seconds that a build, or an inference, may take; None sets no limit.
            workshop: whose process it is; None gives it one of its own.

        Raises:
            BadInput: ``make`` raised it.
            EngineUnavailable: ``make`` raised it, or the process ended.
        """
        self._make = make
        self._timeout = timeout
        self._workshop = workshop or WorkerProcess()
        about = self._start()
        self.engine, self.typing, self.arithmetic = about.engine, about.typing, about.arithmetic
        self.versions: Mapping[str, str] = about.versions

    def build(self, plan: PrecisionPlan) -> IsolatedEngine:
        """The engine of one plan, in the worker; raises TrialFailed where it fails, crashes or takes too long."""
        return IsolatedEngine(partial(self._made, "build", plan), self._timeout)

    def reference(self) -> IsolatedEngine:
        """The engine with every layer in FP32, in the worker; raises TrialFailed likewise."""
        return IsolatedEngine(partial(self._made, "reference"), self._timeout)

    def weak_plan(self, plan: PrecisionPlan) -> WeakPlan:
        """What the builder of weakly typed engines tells TensorRT, asked of the worker.

        Raises:
            TrialFailed: the graph cannot be parsed, or the worker crashes or takes too long.
        """
        if not self._worker.alive:
            self._start()
        told: WeakPlan = self._worker.ask(("weak_plan", self._number, plan), self._timeout)
        return told

    def stop(self) -> None:
        """Kills the worker; what is asked of it then fails, and it is started again when it is needed."""
        self._workshop.stop()

    def _made(self, request: str, *arguments: object) -> tuple[Worker, Made]:
        if not self._worker.alive:
            self._start()
        made: Made = self._worker.ask((request, self._number, *arguments), self._timeout)
        return self._worker, made

    def _start(self) -> About:
        self._worker = self._workshop.worker()
        try:
            about: About = self._worker.ask(("start", self._make), _START_SECONDS)
        except TrialFailed as failure:
            raise EngineUnavailable(f"The engine does not start: {failure.message}") from failure
        self._number = about.number
        return about


class IsolatedEngine:
    """An engine in a worker. Where that ended by another engine's failure, it is built again when it is asked.

    Attributes:
        ran: as the engine tells it; a TensorRT engine only after its first inference.
        messages: what the builder warned of.
    """

    def __init__(self, make: Callable[[], tuple[Worker, Made]], timeout: float | None) -> None:
        self._make = make
        self._timeout = timeout
        self._worker, made = make()
        self._number = made.number
        self.ran = made.ran
        self.messages = made.messages

    def infer(self, feeds: Feeds) -> Outputs:
        """The outputs for one sample; raises TrialFailed where it fails, crashes or takes too long."""
        outputs, self.ran = self._ask("infer", feeds)
        return dict(outputs)

    def latency(self, feeds: Feeds) -> Latency | None:
        """What the engine says of its speed; raises TrialFailed as ``infer`` does."""
        latency: Latency | None = self._ask("latency", feeds)
        return latency

    def _ask(self, request: str, feeds: Feeds) -> Any:
        if not self._worker.alive:
            self._worker, made = self._make()
            self._number = made.number
        return self._worker.ask((request, self._number, feeds), self._timeout)

    def __enter__(self) -> IsolatedEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(TrialFailed):
            self._worker.ask(("close", self._number), self._timeout)


class Worker:
    """The worker process. It ends after a failure, when it is forgotten, and with this process.

    Attributes:
        end: ends it at once; harmless afterwards.
    """

    def __init__(self, environment: Mapping[str, str] | None = None, module: str = "trt_bisect.builder.worker") -> None:
        """Starts it.

        Args:
            environment: what is in its environment as well.
            module: whose ``serve`` it runs.
        """
        self._printed: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._connection, theirs = Pipe()
        with theirs:
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
        """It has not failed and can be asked."""
        return self.end.alive and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def kill(self) -> None:
        """Has it end at once; the next answer tells that it has."""
        self._process.kill()

    def ask(self, request: tuple[Any, ...], limit: float | None) -> Any:
        """The answer to a request; whatever prevents one ends the worker.

        Raises:
            TrialFailed: the work failed, the worker crashed, or it did not answer within ``limit`` seconds.
        """
        if not self.alive:
            raise TrialFailed(outcome_of(request), "The worker process has ended.")
        messages: list[str] = []
        try:
            answer = self._answer(request, limit, messages)
            if isinstance(answer, Failure):
                untold = (text for text in messages if text not in answer.message)
                raise TrialFailed(answer.outcome, "\n".join([answer.message, *untold]))
            if isinstance(answer, Broken):
                raise answer.error or RuntimeError(answer.trace)
        except (EOFError, OSError) as error:
            said = self._last_words(request, messages)
            killed = self._process.returncode == -signal.SIGKILL
            raise TrialFailed(OUT_OF_MEMORY if killed else outcome_of(request), said) from error
        except BaseException:
            self.end()
            raise
        return answer

    def _answer(self, request: tuple[Any, ...], limit: float | None, messages: list[str]) -> Any:
        """The answer; what the engine logs on the way to it is gathered in ``messages``."""
        deadline = None if limit is None else monotonic() + limit
        self._connection.send(request)
        while True:
            if not self._connection.poll(None if deadline is None else max(0.0, deadline - monotonic())):
                raise TrialFailed("timed out", "\n".join([f"{_work(request)} took over {limit:g} s.", *messages]))
            answer = self._connection.recv()
            if not isinstance(answer, Message):
                return answer
            messages.append(answer.text)

    def _last_words(self, request: tuple[Any, ...], messages: list[str]) -> str:
        """What is known of a worker that has just crashed."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_EXIT_SECONDS)
        self._printed.seek(0)
        printed = self._printed.read().decode(errors="replace").splitlines()[-_LAST_LINES:]
        self.end()
        how = _how_it_ended(self._process.returncode)
        return "\n".join([f"{_work(request)} ended the worker process {how}.", *messages, *printed])


def _work(request: tuple[Any, ...]) -> str:
    return _WORK.get(request[0], "The work")


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
    return f"by signal {name}" + (", as Linux does when memory runs out" if -code == signal.SIGKILL else "")


def _end(process: subprocess.Popen[bytes], connection: Connection, printed: IO[bytes]) -> None:
    process.kill()
    process.wait()
    connection.close()
    printed.close()
