"""The real command in a process of its own, started by a fork of this one, which has imported everything already.

What runs is ``trt_bisect.cli.main`` with the arguments in ``sys.argv``, as the console script has it. The fork saves
the second and a half that importing takes. No session of ONNX Runtime, and no thread, is made on this side of it.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import onnxruntime

import trt_bisect
from trt_bisect.cli import main

HEAVY = ("jinja2", "onnx_graphsurgeon", "pandas", "polygraphy.json", "polygraphy.comparator", "rich.progress")
LATE = ("cyclopts.exceptions",)
"""Modules of packages that are imported with the first argument, or not at all in other versions."""
_POLL = 0.02


@dataclass(frozen=True)
class Ended:
    """A process that has ended.

    Attributes:
        code: its exit code, or the negative of the signal that ended it.
        seconds: it was there for.
        peak_mib: the most memory it held, resident.
        why: it was ended from outside: ``time``, ``memory``, or empty.
    """

    code: int
    out: str
    err: str
    seconds: float
    peak_mib: int
    why: str = ""


class Process:
    """A forked process that leads a group of its own."""

    def __init__(self, pid: int, folder: Path) -> None:
        self.pid = pid
        self.began = time.monotonic()
        self._folder = folder
        self._why = ""

    def resident_mib(self) -> int:
        """Returns the memory that the process holds now, in MiB."""
        with suppress(OSError, IndexError):
            return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * resource.getpagesize() >> 20
        return 0

    def kill(self, why: str = "") -> None:
        """Ends the process, and all that it has started, at once."""
        self._why = self._why or why
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def poll(self, *, wait: bool = False) -> Ended | None:
        """Returns the result of the process; None if it still runs."""
        pid, status, used = os.wait4(self.pid, 0 if wait else os.WNOHANG)
        if not pid:
            return None
        out, err = ((self._folder / f"{name}.txt").read_text(errors="replace") for name in ("out", "err"))
        seconds = time.monotonic() - self.began
        return Ended(os.waitstatus_to_exitcode(status), out, err, seconds, used.ru_maxrss >> 10, self._why)

    def ended(self) -> Ended:
        """Waits for the end of the process and returns its result."""
        ended = self.poll(wait=True)
        assert ended is not None
        return ended


def import_everything() -> None:
    """Imports all modules that a command may import, so that no fork has to."""
    for name in HEAVY:
        importlib.import_module(name)
    for name in LATE:
        with suppress(ImportError):
            importlib.import_module(name)
    for module in pkgutil.walk_packages(trt_bisect.__path__, "trt_bisect."):
        with suppress(ImportError):
            importlib.import_module(module.name)
    onnxruntime.set_default_logger_severity(3)


def start(arguments: Sequence[str], folder: Path, before: Callable[[], None] | None = None) -> Process:
    """Starts ``trt-bisect`` with these arguments; its output goes into files in ``folder``.

    Args:
        arguments: after the program's name.
        folder: for ``out.txt`` and ``err.txt``.
        before: done in the process first.
    """

    def command() -> None:
        if before is not None:
            before()
        sys.argv = ["trt-bisect", *arguments]
        main()

    return start_function(command, folder)


def start_function(function: Callable[[], None], folder: Path) -> Process:
    """Starts ``function`` in a process of its own, as ``start`` does."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return Process(pid, folder)
    _be_apart(folder)
    code = 70
    try:
        function()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(bool(stop.code))
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
        with suppress(Exception):
            sys.stderr.flush()
        os._exit(code)


def _be_apart(folder: Path) -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for descriptor, name in ((1, "out"), (2, "err")):
        file = os.open(folder / f"{name}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(file, descriptor)
        os.close(file)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", closefd=False)


def run(arguments: Sequence[str], folder: Path, before: Callable[[], None] | None = None) -> Ended:
    """Runs the command and returns its result."""
    return start(arguments, folder, before).ended()


def watch(processes: Sequence[Process], seconds: float, mib: int) -> list[tuple[Process, Ended]]:
    """Waits a moment and returns the ``processes`` that have ended; ends those that are over a limit."""
    time.sleep(_POLL)
    for process in processes:
        if time.monotonic() - process.began > seconds:
            process.kill("time")
        elif process.resident_mib() > mib:
            process.kill("memory")
    return [(process, ended) for process in processes if (ended := process.poll())]
