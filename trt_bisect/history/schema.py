"""The tables of the history's file, and the migrations from older versions.

The schema version is SQLite's ``user_version``. ``MIGRATIONS[n - 1]`` changes version n - 1 to version n and is never
changed after its release. All migrations of a file are done in one transaction: a stop leaves the old file, and a
second process finds the migrations done.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trt_bisect.errors import BadInput

APPLICATION = 0x54524248
"""``application_id`` of a history, "TRBH"."""
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
LAYERS_AND_HOME = (
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
    "CREATE TABLE home (inode TEXT NOT NULL)",
)
REPORT_SCHEMA = ("ALTER TABLE reports ADD COLUMN schema INTEGER NOT NULL DEFAULT 1",)
MIGRATIONS = (REPORTS_AND_TRIALS, LAYERS_AND_HOME, REPORT_SCHEMA)
"""The statements from each version to the next, beginning with an empty file."""
_STATE = """SELECT user_version, application_id, (SELECT count(*) FROM sqlite_master)
    FROM pragma_user_version, pragma_application_id"""
"""One statement, so that all values are of the same time."""


@contextmanager
def transaction(base: sqlite3.Connection) -> Iterator[None]:
    """A transaction that commits everything or nothing. It takes the write lock first, so that reads are current."""
    base.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        base.rollback()
        raise
    base.commit()


def version_of(base: sqlite3.Connection, path: Path) -> int:
    """Returns the file's schema version; 0 for a new file.

    Raises:
        BadInput: the file is not a history, or has a newer schema.
    """
    version, application, tables = base.execute(_STATE).fetchone()
    if application != APPLICATION and (version or application or tables):
        raise BadInput(f"'{path}' is the database of another program.", "Choose another file.")
    if version > len(MIGRATIONS):
        raise BadInput(
            f"The history '{path}' has schema {version}; this version of trt-bisect knows {len(MIGRATIONS)}.",
            "Use the newer trt-bisect that wrote it, or another file.",
        )
    return int(version)


def migrate(base: sqlite3.Connection, path: Path) -> None:
    """Brings a file to the newest schema. After an error the file is unchanged.

    Raises:
        BadInput: the file is not a history, or has a newer schema.
    """
    if version_of(base, path) == len(MIGRATIONS):
        return
    with transaction(base):
        for statements in MIGRATIONS[version_of(base, path) :]:
            for statement in statements:
                base.execute(statement)
        base.execute(f"PRAGMA application_id={APPLICATION}")
        base.execute(f"PRAGMA user_version={len(MIGRATIONS)}")
