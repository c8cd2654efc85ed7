"""How the file of the history is opened, by several at once, and how it is copied.

The file is in WAL mode: readers and a writer are not in each other's way, and what is recorded stands in ``-wal`` until
the last connection closes. Then the file alone has everything, and nothing is open as long as a run measures.
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

PATIENCE = 30.0
"""Seconds that one waits for others who write."""
_NETWORKS = "nfs nfs4 cifs smb3 smbfs 9p afs ceph lustre glusterfs beegfs gpfs fuse.sshfs fuse.glusterfs".split()
"""File systems on which several machines cannot share the memory that WAL needs: https://sqlite.org/wal.html."""


def open_to_write(path: Path, say: Callable[[str], None]) -> sqlite3.Connection:
    """The file, made where there is none, in the newest schema.

    Args:
        path: of the file.
        say: told where WAL cannot be had, when that is found out.

    Raises:
        BadInput: it cannot be opened or written, is no history, or a newer one.
    """
    with telling(path):
        base = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)
        try:
            version_of(base, path)
            _choose_journal(base, path, say)
            migrate(base, path)
            if not _is_at_home(base, path):
                _check_copy(base, path)
                with transaction(base):
                    base.execute("DELETE FROM home")
                    base.execute("INSERT INTO home VALUES (?)", [_inode(path)])
        except BaseException:
            base.close()
            raise
    return base


def open_to_read(path: Path) -> sqlite3.Connection:
    """A file that is there, also where nothing can be written.

    Raises:
        BadInput: it is not there, cannot be read, is no history, or of another schema and cannot be brought to this.
    """
    if not path.is_file():
        raise BadInput(f"There is no history '{path}'.", "A run writes it, and 'trt-bisect history --add FOLDER'.")
    if os.access(path, os.W_OK) and os.access(path.parent, os.W_OK):
        return open_to_write(path, lambda _: None)
    with telling(path):
        base = sqlite3.connect(f"{path.absolute().as_uri()}?{_unwritten(path)}", uri=True, isolation_level=None)
        try:
            if version_of(base, path) < len(MIGRATIONS):
                raise BadInput(f"The history '{path}' is of an older version.", "Copy it to where it can be written.")
            if not _is_at_home(base, path):
                _check_copy(base, path)
        except BaseException:
            base.close()
            raise
    return base


def _unwritten(path: Path) -> str:
    """How to open a file in a folder that cannot be written; who might write elsewhere has a ``-wal`` beside it."""
    return "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "immutable=1"


@contextmanager
def telling(path: Path) -> Iterator[None]:
    """SQLite's errors as BadInput."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise BadInput(
            f"The history '{path}' cannot be used: {error}.",
            "See that it can be written, that there is room, and that no other program holds it.",
        ) from error
    except sqlite3.Error as error:
        raise BadInput(
            f"The history '{path}' is damaged, or no history: {error}.",
            "Move it away; 'trt-bisect history --add FOLDER' takes the run folders in again.",
        ) from error


def save_copy(base: sqlite3.Connection, path: Path) -> None:
    """Writes what is committed at this moment into one file, whoever writes meanwhile; an old file is replaced whole.

    Raises:
        BadInput: the file cannot be written.
    """
    beside = path.absolute().with_name(f".{path.name}-{os.getpid()}")
    try:
        with telling(path):
            with closing(sqlite3.connect(beside, isolation_level=None)) as copy:
                base.backup(copy)
                copy.execute("PRAGMA journal_mode=DELETE")
            beside.replace(path)
    except OSError as error:
        raise BadInput(f"The copy '{path}' cannot be written: {error.strerror}.", "Choose another file.") from error
    finally:
        beside.unlink(missing_ok=True)


def network_of(folder: Path, mounts: str) -> str:
    """The network file system that a folder is on, empty where it is on none.

    Args:
        folder: that is there.
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


def _is_at_home(base: sqlite3.Connection, path: Path) -> bool:
    """Whether the file is the one that was checked before, not a copy of it."""
    return bool(base.execute("SELECT inode FROM home").fetchone() == (_inode(path),))


def _inode(path: Path) -> str:
    return str(path.stat().st_ino)


def _check_copy(base: sqlite3.Connection, path: Path) -> None:
    """Raises BadInput where pages of different moments came together, as where a file was copied while it changed."""
    (found,) = base.execute("PRAGMA integrity_check(1)").fetchone()
    if found == "ok" and base.execute("PRAGMA foreign_key_check").fetchone() is None:
        return
    raise BadInput(
        f"The history '{path}' is a damaged copy: its parts are of different moments.",
        "Copy it again with 'trt-bisect history --copy FILE'.",
    )


def _choose_journal(base: sqlite3.Connection, path: Path, say: Callable[[str], None]) -> None:
    """WAL, or on a network file system SQLite's default; that is said when the file is made."""
    mounts = Path("/proc/self/mountinfo")
    network = network_of(path.absolute().parent, mounts.read_text()) if mounts.exists() else ""
    wanted = "delete" if network else "wal"
    (found,) = base.execute("PRAGMA journal_mode").fetchone()
    if found != wanted:
        found = _patiently(lambda: base.execute(f"PRAGMA journal_mode={wanted}").fetchone()[0])
    if found != "wal" and version_of(base, path) == 0:
        where = f"on {network}" if network else "there"
        say(f"The history '{path}' does without WAL, which cannot be had {where}: who writes waits for who reads.")


def _patiently(work: Callable[[], str]) -> str:
    """Does what SQLite refuses at once where another has the file, such as a change of the journal's mode."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return work()
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > until:
                raise
            time.sleep(0.02)
