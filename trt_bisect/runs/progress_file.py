"""The progress of a run, written into ``progress.json`` in its folder once a second for other processes."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from time import perf_counter, time
from typing import Any

from trt_bisect.errors import BadInput
from trt_bisect.support.codec import encode, read
from trt_bisect.support.files import write_whole
from trt_bisect.support.progress import Counted, Progress

PROGRESS = "progress.json"
FINISHED, RUNNING, INTERRUPTED = "finished", "running", "interrupted"
HEARTBEAT = 1.0  # seconds between two writes
_TIMEOUT = 30.0  # seconds without a write after which a run on another machine counts as dead


class Heartbeat(Counted):
    """A progress display that also writes the progress into a run folder once a second, until ``close``.

    A failed write is ignored.
    """

    def __init__(self, folder: Path, shown: Progress) -> None:
        super().__init__()
        self._path = folder / PROGRESS
        self._shown = shown
        self._began = perf_counter()
        self._run = {"pid": os.getpid(), "born": _born(os.getpid()), "host": socket.gethostname(), "began": time()}
        self._written: dict[str, Any] | None = None
        self._set()
        self._write()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write_often, name="trt-bisect progress", daemon=True)
        self._thread.start()

    def stage(self, title: str, total: int | None) -> None:
        """Begins a stage of about ``total`` steps, None if unknown."""
        self._shown.stage(title, total)
        super().stage(title, total)
        self._set()

    def step(self, what: str, size: int = 1) -> None:
        """Begins the step ``what``, worth ``size`` steps."""
        self._shown.step(what, size)
        super().step(what, size)
        self._set()

    def left(self, seconds: float | None) -> None:
        """Shows and writes the time left of the whole run; None if unknown."""
        self._shown.left(seconds)
        super().left(seconds)
        self._set()

    def say(self, text: str) -> None:
        """Shows a message, which is not written into the file."""
        self._shown.say(text)

    def close(self) -> None:
        """Ends the display and removes ``progress.json``."""
        self._shown.close()
        self._ended.set()
        self._thread.join()
        with suppress(OSError):
            self._path.unlink()

    def _set(self) -> None:
        left = self.seconds_left
        self._stage = {
            "stage": self._title,
            "total": self._total,
            "done": self._done,
            "what": self._what,
            "seconds": round(perf_counter() - self._began, 1),
            "left": None if left is None else round(left, 1),
        }

    def _write_often(self) -> None:
        while not self._ended.wait(HEARTBEAT):
            self._write()

    def _write(self) -> None:
        stage = self._stage
        with suppress(OSError, BadInput):
            if stage is self._written and self._path.exists():
                os.utime(self._path)
            else:
                write_whole(self._path, encode({**self._run, **stage}))
                self._written = stage


def is_running(progress: Mapping[str, Any], silent: float) -> bool:
    """Returns true if the run that wrote ``progress`` still goes on; ``silent`` is the seconds since it was written."""
    if progress.get("host") != socket.gethostname():
        return silent < _TIMEOUT
    pid = progress.get("pid")
    return isinstance(pid, int) and pid > 0 and _is_alive(pid) and _born(pid) == progress.get("born")


def runs_in(folder: Path) -> bool:
    """Returns true if a run is going on in a folder."""
    path = folder / PROGRESS
    try:
        progress, written = read(dict, path), path.stat().st_mtime
    except OSError:
        return False
    return progress is not None and is_running(progress, time() - written)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _born(pid: int) -> int | None:
    # The start in clock ticks since the machine started, field 22 of ``/proc/<pid>/stat`` in proc(5); None if the
    # process ended: field 3 is ``Z`` until it is reaped.
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if state == "Z" else int(fields[18])
