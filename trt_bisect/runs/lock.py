"""A lock that gives a folder to one process at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trt_bisect.errors import BadInput
from trt_bisect.support.files import unwritable


@contextmanager
def locked(folder: Path, option: str = "--output") -> Iterator[None]:
    """Locks an existing folder. There is no lock file, and the system releases the lock when the process ends.

    Args:
        folder: the folder.
        option: the option that named it, for messages.

    Raises:
        BadInput: another process has locked the folder, or it cannot be opened.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise unwritable(folder, error, option) from error
    try:
        _lock(descriptor, folder, option)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path, option: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise BadInput(
            f"Another run is writing to '{folder}'.", f"Wait for it to end, or give another {option}."
        ) from error
