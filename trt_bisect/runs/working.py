"""A run works in its folder alone: a lock that ends with its process, however that ends."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from trt_bisect.errors import BadInput
from trt_bisect.progress import Progress, Showing
from trt_bisect.runs.beat import Beat
from trt_bisect.runs.journal import unwritable
from trt_bisect.runs.keeping import NONE, recorded

_UNFINISHED = re.compile(r"\.(.+)-(\d+)")
"""What ``write_whole`` calls a file until it is whole; the number is the process that writes it."""


@contextmanager
def working_in(folder: Path | None, display: Progress, history: str | Path = NONE) -> Iterator[Progress]:
    """Progress, shown and written into ``folder``, which is locked, and rid of what killed runs were writing.

    Args:
        folder: of the run; without one there is nothing to lock, and nothing to record.
        display: where progress is shown.
        history: where the run is recorded when it ends: ``beside``, ``none`` or a file.

    Raises:
        BadInput: another run works in the folder.
    """
    with ExitStack() as open_until_the_end:
        if folder is not None:
            open_until_the_end.enter_context(_locked(folder))
            for place in (folder, folder / "recipe"):
                _clear(place)
        open_until_the_end.enter_context(recorded(folder, history, display.say))
        yield open_until_the_end.enter_context(Showing(display if folder is None else Beat(folder, display)))


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """The folder itself is locked: no lock file is left behind, and the system frees it when the process ends."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise unwritable(folder, error) from error
    try:
        _lock(descriptor, folder)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise BadInput(
            f"Another run is writing to '{folder}'.", "Wait for it to end, or give another --output."
        ) from error


def _clear(folder: Path) -> None:
    with suppress(OSError):
        for path in list(folder.iterdir()):
            if _UNFINISHED.fullmatch(path.name):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
