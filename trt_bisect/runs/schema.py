"""The file of the history: its tables, how an older file becomes a newer one, how it is opened by several at once.

Schema versions are SQLite's ``user_version``. What makes version n of version n - 1 stands in ``MIGRATIONS`` and is
never changed once it was released. All that a file lacks is done in one transaction, so that a stop leaves the old
file, and who comes second finds it done.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from trt_bisect.errors import BadInput

APPLICATION = 0x54524248
"""``application_id`` of a history, "TRBH"."""
PATIENCE = 30.0
"""Seconds that one waits for others who write."""
_NETWORKS = "nfs nfs4 cifs smb3 smbfs 9p afs ceph lustre glusterfs beegfs gpfs fuse.sshfs fuse.glusterfs".split()
"""File systems on which several machines cannot share the memory that WAL needs: https://sqlite.org/wal.html."""

REPORTS_AND_TRIALS = (
    """CREATE TABLE fingerprints (
        id INTEGER PRIMARY KEY,
        digest TEXT NOT NULL UNIQUE,
        made_of TEXT NOT NULL
    )""",
    """CREATE TABLE runs (
        id INTEGER PRIMARY KEY,
        journal TEXT NOT NULL UNIQUE,
        folder TEXT NOT NULL,
        label TEXT NOT NULL
    )""",
    """CREATE TABLE reports (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        run INTEGER NOT NULL REFERENCES runs,
        fingerprint INTEGER NOT NULL REFERENCES fingerprints,
        label TEXT NOT NULL,
        state TEXT NOT NULL,
        started REAL NOT NULL,
        recorded REAL NOT NULL,
        model TEXT NOT NULL,
        engine TEXT NOT NULL,
        typing TEXT NOT NULL,
        strategy TEXT NOT NULL,
        arithmetic TEXT NOT NULL,
        metric TEXT NOT NULL,
        threshold REAL,
        share REAL,
        precision TEXT NOT NULL,
        int8 REAL,
        recipe REAL,
        meets INTEGER,
        culprits TEXT NOT NULL,
        high TEXT NOT NULL,
        fp32_ms REAL,
        fp16_ms REAL,
        int8_ms REAL,
        recipe_ms REAL,
        plans INTEGER NOT NULL,
        builds INTEGER NOT NULL,
        inferences INTEGER NOT NULL,
        calibrate_seconds REAL,
        build_seconds REAL,
        infer_seconds REAL,
        total_seconds REAL,
        peak_bytes INTEGER NOT NULL,
        exit_code INTEGER,
        command TEXT NOT NULL
    )""",
    "CREATE INDEX reports_by_run ON reports (run, started)",
    "CREATE INDEX reports_by_label ON reports (label, started)",
    "CREATE INDEX reports_by_time ON reports (started)",
    "CREATE INDEX reports_by_fingerprint ON reports (fingerprint)",
    """CREATE TABLE trials (
        run INTEGER NOT NULL REFERENCES runs,
        fingerprint INTEGER NOT NULL REFERENCES fingerprints,
        plan TEXT NOT NULL,
        place INTEGER NOT NULL,
        outcome TEXT NOT NULL,
        metric TEXT,
        figure REAL,
        build_seconds REAL NOT NULL,
        infer_seconds REAL NOT NULL,
        message TEXT NOT NULL,
        PRIMARY KEY (run, fingerprint, plan)
    ) WITHOUT ROWID""",
    "CREATE INDEX trials_by_fingerprint ON trials (fingerprint)",
)
LAYERS = (
    """CREATE TABLE layers (
        report INTEGER NOT NULL REFERENCES reports,
        layer INTEGER NOT NULL,
        name TEXT NOT NULL,
        outcome TEXT NOT NULL,
        similarity REAL,
        "drop" REAL,
        culprit INTEGER NOT NULL,
        ran TEXT NOT NULL,
        PRIMARY KEY (report, layer)
    ) WITHOUT ROWID""",
)
MIGRATIONS = (REPORTS_AND_TRIALS, LAYERS)
"""What is to be executed to come from each version to the next, from an empty file on."""


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
            _check(base, path)
            _choose_journal(base, path, say)
            _migrate(base)
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
            if _check(base, path) < len(MIGRATIONS):
                raise BadInput(f"The history '{path}' is of an older version.", "Copy it to where it can be written.")
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


@contextmanager
def transaction(base: sqlite3.Connection) -> Iterator[None]:
    """Writes all of it or nothing; waits for others first, so that nothing read in it is out of date."""
    base.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        base.rollback()
        raise
    base.commit()


def save_copy(base: sqlite3.Connection, path: Path) -> None:
    """Writes what is committed at this moment into one file, whoever writes meanwhile; an old file is replaced whole.

    Raises:
        BadInput: the file cannot be written.
    """
    beside = path.with_name(f".{path.name}-{os.getpid()}")
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


def _check(base: sqlite3.Connection, path: Path) -> int:
    """The file's schema version, 0 for a new one; raises BadInput where it is no history, or a newer one."""
    (version,) = base.execute("PRAGMA user_version").fetchone()
    (application,) = base.execute("PRAGMA application_id").fetchone()
    (tables,) = base.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application != APPLICATION and (version or application or tables):
        raise BadInput(f"'{path}' is the database of another program.", "Choose another file.")
    if version > len(MIGRATIONS):
        raise BadInput(
            f"The history '{path}' is of schema {version}, this version of trt-bisect knows {len(MIGRATIONS)}.",
            "Use the newer trt-bisect that wrote it, or another file.",
        )
    return int(version)


def _choose_journal(base: sqlite3.Connection, path: Path, say: Callable[[str], None]) -> None:
    """WAL, or on a network file system SQLite's default."""
    (before,) = base.execute("PRAGMA journal_mode").fetchone()
    mounts = Path("/proc/self/mountinfo")
    network = network_of(path.absolute().parent, mounts.read_text()) if mounts.exists() else ""
    wanted = "delete" if network else "wal"
    if before == wanted:
        return
    found = _patiently(lambda: base.execute(f"PRAGMA journal_mode={wanted}").fetchone()[0])
    if found != "wal" and not base.execute("PRAGMA user_version").fetchone()[0]:
        where = f"on {network}" if network else "there"
        say(f"The history '{path}' does without WAL, which cannot be had {where}: writers wait for readers.")


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


def _migrate(base: sqlite3.Connection) -> None:
    if base.execute("PRAGMA user_version").fetchone()[0] == len(MIGRATIONS):
        return
    with transaction(base):
        (version,) = base.execute("PRAGMA user_version").fetchone()
        for statements in MIGRATIONS[version:]:
            for statement in statements:
                base.execute(statement)
        base.execute(f"PRAGMA application_id={APPLICATION}")
        base.execute(f"PRAGMA user_version={len(MIGRATIONS)}")
