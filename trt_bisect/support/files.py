"""Files that are written completely or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from trt_bisect.errors import MAKE_ROOM, BadInput


def make_folder(folder: Path, option: str = "--output") -> Path:
    """Makes a folder if it does not exist, and returns it.

    Args:
        folder: its path.
        option: the option that names it, for the message.

    Raises:
        BadInput: the folder cannot be made, or not be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".write-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise unwritable(folder, error, option) from error
    return folder


@contextmanager
def output_folder(folder: Path | None) -> Iterator[None]:
    """Makes a folder for what the block writes; a new one that is still empty after an error is removed.

    Raises:
        BadInput: the folder cannot be made, or not be written to.
    """
    if folder is None:
        yield
        return
    is_new = not folder.exists()
    make_folder(folder)
    try:
        yield
    except BaseException:
        if is_new:
            with suppress(OSError):
                folder.rmdir()
        raise


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file. After a stop at any moment, either the old or the complete new file exists.

    What exists and is no regular file, such as a device or a pipe, is written to in place.

    Raises:
        BadInput: the file cannot be written.
    """
    with whole_file(path) as file:
        file.write(content)


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Opens a temporary file to write to, and replaces ``path`` by it at the end of the block; see ``write_whole``.

    Raises:
        BadInput: the file cannot be written.
    """
    in_place = path.exists() and not path.is_file()
    opened = path if in_place else path.with_name(f".{path.name}-{os.getpid()}")
    try:
        with opened.open("wb") as file:
            yield file
        if not in_place:
            opened.replace(path)
    except OSError as error:
        raise BadInput(f"'{path}' cannot be written: {error.strerror or error}.", MAKE_ROOM) from error
    finally:
        if not in_place:
            with suppress(OSError):
                opened.unlink(missing_ok=True)


def unwritable(folder: Path, error: OSError, option: str = "--output") -> BadInput:
    """Returns the error for a folder, named by ``option``, that cannot be written to."""
    return BadInput(
        f"The folder '{folder}' cannot be written: {error.strerror or error}.", f"Choose another with {option}."
    )
