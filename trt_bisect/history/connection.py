"""Opening and copying the history's file, also while other processes use it.

The file is in WAL mode: readers and a writer do not block each other. New records are in the ``-wal`` file until the
last connection is closed; then the main file has everything. No connection is open while a run measures.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from trt_bisect.errors import BadInput
from trt_bisect.history.schema import MIGRATIONS, migrate, transaction, version_of

LOCK_TIMEOUT = 30.0
"""Seconds to wait for other processes that write."""
_NETWORKS = "nfs nfs4 cifs smb3 smbfs 9p afs ceph lustre glusterfs beegfs gpfs fuse.sshfs fuse.glusterfs".split()
"""Network file systems. WAL needs shared memory, which they do not have: https://sqlite.org/wal.html."""


def open_to_write(path: Path, say: Callable[[str], None]) -> sqlite3.Connection:
    """Opens the file for writing; creates it if there is none, and brings it to the newest schema.

    Args:
        path: the path of the file.
        say: called with a message if a new file cannot use WAL.

    Raises:
        BadInput: the file cannot be opened or written, is not a history, or has a newer schema.
    """
    with (
        sqlite_errors(path),
        _closed_on_error(sqlite3.connect(path, timeout=LOCK_TIMEOUT, isolation_level=None)) as base,
    ):
        version_of(base, path)
        _choose_journal(base, path, say)
        migrate(base, path)
        if not _is_checked(base, path):
            _check_copy(base, path)
            with transaction(base):
                base.execute("DELETE FROM home")
                base.execute("INSERT INTO home VALUES (?)", [_inode(path)])
    return base


def open_to_read(path: Path) -> sqlite3.Connection:
    """Opens an existing file for reading, also if it cannot be written.

    Raises:
        BadInput: there is no such file, it cannot be read, is not a history, or has a schema that cannot be migrated.
    """
    if not path.is_file():
        raise BadInput(
            f"There is no history '{path}'.", "A run creates it, and so does 'trt-bisect history --add FOLDER'."
        )
    if os.access(path, os.W_OK) and os.access(path.parent, os.W_OK):
        return open_to_write(path, lambda _: None)
    uri = f"{path.absolute().as_uri()}?{_read_only_mode(path)}"
    with sqlite_errors(path), _closed_on_error(sqlite3.connect(uri, uri=True, isolation_level=None)) as base:
        if version_of(base, path) < len(MIGRATIONS):
            raise BadInput(
                f"The history '{path}' has the schema of an older version.", "Copy it to a folder that can be written."
            )
        if not _is_checked(base, path):
            _check_copy(base, path)
    return base


@contextmanager
def _closed_on_error(base: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Closes a connection if the block raises an error."""
    try:
        yield base
    except BaseException:
        base.close()
        raise


def _read_only_mode(path: Path) -> str:
    """Returns SQLite's option for a file that cannot be written. A ``-wal`` beside it means another process writes."""
    return "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "immutable=1"


@contextmanager
def sqlite_errors(path: Path) -> Iterator[None]:
    """Raises SQLite's errors as BadInput."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise BadInput(
            f"The history '{path}' cannot be used: {error}.",
            "Check that it can be written, that the disk is not full, and that no other program has locked it.",
        ) from error
    except sqlite3.Error as error:
        raise BadInput(
            f"The history '{path}' is damaged, or not a history: {error}.",
            "Move it away; 'trt-bisect history --add FOLDER' records the run folders again.",
        ) from error


def save_copy(base: sqlite3.Connection, path: Path) -> None:
    """Writes everything committed up to now into one file, also while others write. Replaces an old file as a whole.

    Raises:
        BadInput: the file cannot be written.
    """
    if path.exists() and not path.is_file():
        raise BadInput(f"The copy '{path}' cannot be written: it exists and is no file.", "Choose another file.")
    beside = path.absolute().with_name(f".{path.name}-{os.getpid()}")
    try:
        with sqlite_errors(path):
            with closing(sqlite3.connect(beside, isolation_level=None)) as copy:
                base.backup(copy)
                copy.execute("PRAGMA journal_mode=DELETE")
            beside.replace(path)
    except OSError as error:
        raise BadInput(f"The copy '{path}' cannot be written: {error.strerror}.", "Choose another file.") from error
    finally:
        beside.unlink(missing_ok=True)


def network_of(folder: Path, mounts: str) -> str:
    """Returns the type of the network file system that a folder is on; empty for a local file system.

    Args:
        folder: an existing folder.
        mounts: the content of ``/proc/self/mountinfo``; see proc(5).
    """
    device = folder.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts.splitlines():
        fields, _, more = line.partition(" - ")
        if fields.split()[2:3] == [wanted]:
            kind = more.split()[0]
            return kind if kind in _NETWORKS else ""
    return ""


def _is_checked(base: sqlite3.Connection, path: Path) -> bool:
    """Returns true if the file was checked before and is not a copy: its inode is the one in the table ``home``."""
    return bool(base.execute("SELECT inode FROM home").fetchone() == (_inode(path),))


def _inode(path: Path) -> str:
    return str(path.stat().st_ino)


def _check_copy(base: sqlite3.Connection, path: Path) -> None:
    """Raises BadInput if the file has pages of different times, as a file copied during a write can have."""
    (found,) = base.execute("PRAGMA integrity_check(1)").fetchone()
    if found == "ok" and base.execute("PRAGMA foreign_key_check").fetchone() is None:
        return
    raise BadInput(
        f"The history '{path}' is a damaged copy: it was copied while it was written.",
        "Copy it again with 'trt-bisect history --copy FILE'.",
    )


def _choose_journal(base: sqlite3.Connection, path: Path, say: Callable[[str], None]) -> None:
    """Sets WAL mode, or SQLite's default on a network file system. Says so when the file is new."""
    mounts = Path("/proc/self/mountinfo")
    network = network_of(path.absolute().parent, mounts.read_text()) if mounts.exists() else ""
    wanted = "delete" if network else "wal"
    (found,) = base.execute("PRAGMA journal_mode").fetchone()
    if found != wanted:
        found = _retried(lambda: base.execute(f"PRAGMA journal_mode={wanted}").fetchone()[0])
    if found != "wal" and version_of(base, path) == 0:
        where = f"on {network}" if network else "there"
        say(f"The history '{path}' does not use SQLite's WAL, which does not work {where}: writers wait for readers.")


def _retried(work: Callable[[], str]) -> str:
    """Repeats ``work`` while another process has locked the file, for operations for which SQLite does not wait."""
    until = time.monotonic() + LOCK_TIMEOUT
    while True:
        try:
            return work()
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > until:
                raise
            time.sleep(0.02)
