"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from trt_bisect.errors import MAKE_ROOM, BadInput


def make_folder(folder: Path, option: str = "--output") -> Path:
    """The folder that ``option`` names, made if need be.

    Raises:
        BadInput: it cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".write-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise unwritable(folder, error, option) from error
    return folder


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file such that a stop leaves the old one or the new one.

    Raises:
        BadInput: it cannot be written.
    """
    with whole_file(path) as file:
        file.write(content)


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to be written; only when it is whole it takes the place of the old one.

    Raises:
        BadInput: it cannot be written.
    """
    beside = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        with beside.open("wb") as file:
            yield file
        beside.replace(path)
    except OSError as error:
        with suppress(OSError):
            beside.unlink()
        raise BadInput(f"'{path}' cannot be written: {error.strerror or error}.", MAKE_ROOM) from error


def unwritable(folder: Path, error: OSError, option: str = "--output") -> BadInput:
    """The error for a folder that cannot be written, which ``option`` named."""
    return BadInput(
        f"The folder '{folder}' cannot be written: {error.strerror or error}.", f"Choose another with {option}."
    )
