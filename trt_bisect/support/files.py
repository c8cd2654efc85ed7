"""Files that are written completely or not at all; locked folders, and temporary folders."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from trt_bisect.errors import BadInput, NoRoom

_NEW, _LOCKED = "trt-bisect.new.", "trt-bisect.scratch."  # prefixes of folders before and after they are locked
_MOUNTS = Path("/proc/mounts")
_IN_MEMORY = ("tmpfs", "ramfs")
_ON_DISK = Path("/var/tmp")  # its files outlive a restart, so it is not in memory: hier(7)


def make_folder(folder: Path, option: str = "--output") -> Path:
    """Returns the folder, made if necessary; raises BadInput, which names ``option``, if it cannot be written to."""
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
    """Makes a folder for the block, or nothing for None; after an error, a new folder that is empty is removed.

    Raises BadInput if the folder cannot be written to.
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
    """Writes a file completely: if the process is stopped, either the old or the new file exists.

    A device or a pipe is written to in place. Raises BadInput if the file cannot be written.
    """
    with whole_file(path) as file:
        file.write(content)


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Opens a temporary file, which replaces ``path`` at the end of the block; after an error ``path`` is unchanged.

    A device or a pipe is written to in place. Raises BadInput if the file cannot be written.
    """
    in_place = path.exists() and not path.is_file()
    opened = path if in_place else path.with_name(f".{path.name}-{os.getpid()}")
    try:
        with opened.open("wb") as file:
            yield file
        if not in_place:
            opened.replace(path)
    except OSError as error:
        raise NoRoom(f"'{path}' cannot be written: {error.strerror or error}.") from error
    finally:
        if not in_place:
            with suppress(OSError):
                opened.unlink(missing_ok=True)


def unwritable(folder: Path, error: OSError, option: str = "--output") -> BadInput:
    """Returns the BadInput for a folder that cannot be written to; its remedy names ``option``."""
    return BadInput(
        f"The folder '{folder}' cannot be written: {error.strerror or error}.", f"Choose another with {option}."
    )


@contextmanager
def locked(folder: Path, option: str = "--output") -> Iterator[None]:
    """Locks a folder for the block, or until the process ends.

    Raises BadInput, which names ``option``, if another process has locked the folder, or it cannot be opened.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise unwritable(folder, error, option) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BadInput(
                f"Another run is writing to '{folder}'.", f"Wait for it to end, or give another {option}."
            ) from error
        yield
    finally:
        os.close(descriptor)


class ScratchFolder:
    """A temporary folder in ``parent`` or the system's, removed when it is closed and at the end of the process."""

    def __init__(self, parent: Path | None = None) -> None:
        self._parent = parent or Path(tempfile.gettempdir())
        self.path = self._parent / f"{_LOCKED}{secrets.token_hex(8)}" / "files"
        self._removal: weakref.finalize[[Path, int, int], ScratchFolder] | None = None

    def open(self) -> Path:
        """Makes the folder, empty, and returns its path."""
        _remove_left_behind(self._parent)
        new_folder = Path(tempfile.mkdtemp(prefix=_NEW, dir=self._parent))
        lock = os.open(new_folder, os.O_RDONLY | os.O_DIRECTORY)
        with suppress(OSError):  # a file system without locks: then nobody removes what is left behind
            fcntl.flock(lock, fcntl.LOCK_EX)
        (new_folder / self.path.name).mkdir()
        new_folder.rename(self.path.parent)
        self._removal = weakref.finalize(self, _remove, self.path.parent, lock, os.getpid())
        return self.path

    def close(self) -> None:
        """Removes the folder."""
        if self._removal is not None:
            self._removal()

    def __enter__(self) -> Path:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()


def temporary_on_disk() -> Path | None:
    """Returns the folder for temporary files, or ``/var/tmp`` if that folder is in memory; None if both are."""
    for folder in (Path(tempfile.gettempdir()), _ON_DISK):
        if folder.is_dir() and _file_system(folder.resolve()) not in _IN_MEMORY:
            return folder
    return None


def _file_system(folder: Path) -> str:
    # the second and the third field of ``/proc/mounts``, see fstab(5)
    if not _MOUNTS.is_file():
        return ""
    mounts = [line.split()[1:3] for line in _MOUNTS.read_text().splitlines()]
    types = {where.replace(r"\040", " "): kind for where, kind in mounts}
    return next((types[str(parent)] for parent in (folder, *folder.parents) if str(parent) in types), "")


def _remove(folder: Path, lock: int, maker: int) -> None:
    # a fork of the maker must not remove the folder
    if os.getpid() == maker:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


# A folder that a killed process has left is removed when the user's next scratch folder is made.
def _remove_left_behind(parent: Path) -> None:
    for folder in parent.glob(f"{_LOCKED}*"):
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held, there = os.fstat(lock), folder.stat()
            if held.st_uid == os.getuid() and held.st_ino == there.st_ino:  # else closed and opened again just now
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue
        finally:
            os.close(lock)
