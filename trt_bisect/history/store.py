"""The history: an index of the reports of all runs, in one SQLite file beside the run folders.

Each write is one short transaction in SQLite's own journal, which works on network file systems too; others wait for
it. No connection is open while a run measures.
"""

from __future__ import annotations

import gc
import logging
import os
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trt_bisect.errors import BadInput, TrtBisectError, first_line
from trt_bisect.history.queries import EVERYTHING, HistoryEntry, HistoryFilter, entry_of, table_of
from trt_bisect.report.model import REPORT, SO_FAR, LayerRow, Report, read_report
from trt_bisect.runs.journal import JOURNAL, complete_lines, records_of
from trt_bisect.runs.progress_file import FINISHED, INTERRUPTED, RUNNING, runs_in
from trt_bisect.support import codec
from trt_bisect.support.text import listed

if TYPE_CHECKING:
    import pandas as pd

_EPOCH = datetime.fromtimestamp(0, timezone.utc)


def holds_run(folder: Path) -> bool:
    """Returns true if a folder has the file of a report."""
    return any((folder / name).is_file() for name in (SO_FAR, REPORT))


def run_folders(places: Iterable[Path]) -> list[Path]:
    """Returns the run folders among ``places`` and under them, the oldest run first. Links are not followed.

    Raises:
        BadInput: one of the places has no run folder.
    """
    began: dict[Path, datetime] = {}
    for start in places:
        folders = [Path(folder) for folder, _, _ in os.walk(start) if holds_run(Path(folder))]
        entries = [entry for folder in folders for entry in _reports_in(folder)]
        if not entries:
            raise BadInput(
                f"There is no run in '{start}'.", "Give a run folder, or the folder above several run folders."
            )
        for entry in entries:
            began[Path(entry.folder)] = min(began.get(Path(entry.folder), entry.started), entry.started)
    return sorted(began, key=lambda folder: (began[folder], folder))


def entries_in(folder: Path) -> list[HistoryEntry]:
    """Returns the reports in a run folder, finished or not, also of a run under way; raises BadInput without any."""
    entries = list(_reports_in(folder))
    if not entries:
        raise BadInput(f"There is no run in '{folder}'.", "Give the folder that 'run' wrote into.")
    run, made_of = _run_of(folder)
    for k, entry in enumerate(entries):
        report = entry.report
        parts = report.made_of or made_of.get(report.fingerprint) or {"versions": dict(report.versions)}
        entries[k] = replace(entry, run=run, report=replace(report, made_of=parts))
    return entries


def _reports_in(folder: Path) -> Iterator[HistoryEntry]:
    """Yields the report, and that of a later run which is not finished."""
    report, so_far = read_report(folder / REPORT), read_report(folder / SO_FAR)
    if report is not None:
        yield _entry(folder / REPORT, report)
    if so_far is not None and (report is None or so_far.started != report.started):
        yield _entry(folder / SO_FAR, replace(so_far, state=RUNNING if runs_in(folder) else INTERRUPTED))


def _entry(path: Path, report: Report) -> HistoryEntry:
    """Returns the report in a file as an entry without label and run. A report of an old version has no start."""
    started = report.started or path.stat().st_mtime - report.seconds.total
    try:
        when = datetime.fromtimestamp(started, timezone.utc)
    except (OverflowError, ValueError, OSError):
        when = _EPOCH
    return HistoryEntry(0, "", str(path.parent.absolute()), "", when, _EPOCH, report)


def _run_of(folder: Path) -> tuple[str, dict[str, Mapping[str, Any]]]:
    """Returns the id of the folder's journal, and by fingerprint its parts as the journal has them."""
    try:
        lines = complete_lines((folder / JOURNAL).read_bytes()).splitlines()
    except OSError:
        lines = []
    records = records_of(line for line in lines if b'"about"' in line)
    heads = [record for record in records if isinstance(record.get("about"), dict)]
    ids = [head["id"] for head in heads if isinstance(head.get("id"), str)]
    return ids[0] if ids else f"in {folder.absolute()}", {str(head.get("run")): head["about"] for head in heads}


HISTORY = "trt-bisect-history.sqlite"
BESIDE, NONE = "beside", "none"
LOCK_TIMEOUT = 30.0
"""Seconds to wait for other processes that write."""
_SCHEMA = 4
"""SQLite's ``user_version``."""
_APPLICATION = 0x54524248
"""``application_id`` of a history, "TRBH"."""
_TABLES = (
    """CREATE TABLE entries (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        run TEXT NOT NULL,
        folder TEXT NOT NULL,
        label TEXT NOT NULL,
        started REAL NOT NULL,
        recorded REAL NOT NULL,
        fingerprint TEXT NOT NULL,
        report TEXT NOT NULL,
        layers BLOB NOT NULL
    )""",
    "CREATE INDEX entries_by_run ON entries (run, fingerprint)",
    "CREATE INDEX entries_by_label ON entries (label, started)",
    "CREATE INDEX entries_by_time ON entries (started)",
    "CREATE INDEX entries_by_fingerprint ON entries (fingerprint)",
    "CREATE TABLE IF NOT EXISTS home (inode TEXT NOT NULL)",
)
"""``report`` is JSON without the layers, which are nine tenths of it; ``layers`` is their JSON, compressed by zlib."""
_STATE = """SELECT user_version, application_id, (SELECT count(*) FROM sqlite_master)
    FROM pragma_user_version, pragma_application_id"""
"""One statement, so that all values are of the same time."""
_ENTRIES = "SELECT id, run, folder, label, started, recorded, report FROM entries"
_UNSOUND = (TypeError, ValueError, KeyError, OverflowError, OSError, RecursionError, zlib.error)
_ONE_FILE = "PRAGMA journal_mode=DELETE"
"""Takes a file of an earlier version out of WAL mode, in which the newest records stand in a second file."""
_DIGITS_END = "g"
"""A character that sorts after every digit of a fingerprint."""


class History(AbstractContextManager["History"]):
    """A connection to a history's file, for one thread. The file is created if there is none.

    Args:
        reading: open only an existing file, also if it cannot be written.

    Raises:
        BadInput: the file cannot be opened or written, is not a history, or has another schema. All methods can raise
            it too.
    """

    def __init__(self, path: str | Path, *, reading: bool = False) -> None:
        self.path = Path(path)
        with _sqlite_errors(self.path):
            self._base = _open_file(self.path, reading=reading)

    def record(self, folder: str | Path, label: str = "") -> None:
        """Records the reports in a run folder, finished or not. Earlier records of them are replaced.

        A report that is not finished is replaced by the next one with the same fingerprint and options.

        Args:
            label: the network's name; by default the one given before, else the model file's stem.

        Raises:
            BadInput: there is no readable run in the folder, or the history cannot be written.
        """
        entries = entries_in(Path(folder))
        with _sqlite_errors(self.path), _transaction(self._base):
            for entry in entries:
                self._write(entry, label)

    def past(self, selection: HistoryFilter = EVERYTHING) -> list[HistoryEntry]:
        """Returns the entries in the order of recording, their reports without layers."""
        wheres: list[tuple[str, Any]] = []
        if selection.label is not None:
            wheres.append(("label = ?", _text(selection.label)))
        if selection.since is not None:
            since = selection.since if selection.since.tzinfo else selection.since.replace(tzinfo=timezone.utc)
            wheres.append(("started >= ?", since.timestamp()))
        if selection.fingerprint:
            first = selection.fingerprint.lower()
            wheres += [("fingerprint >= ?", first), ("fingerprint < ?", first + _DIGITS_END)]
        with _sqlite_errors(self.path):
            entries = self._entries(wheres)
        return [entry for entry in entries if selection.model is None or entry.is_of(selection.model)]

    def reports(self, selection: HistoryFilter = EVERYTHING) -> pd.DataFrame:
        """Returns a table of ``past``. Its columns are the fields of ``HistoryEntry`` and of ``Report``."""
        return table_of(self.past(selection))

    def report(self, entry: int) -> Report:
        """Returns the whole report of the entry with this id, with its layers; raises BadInput if there is none."""
        with _sqlite_errors(self.path):
            row = self._base.execute("SELECT report, layers FROM entries WHERE id = ?", [entry]).fetchone()
            if row is None:
                raise BadInput(f"The history '{self.path}' has no entry {entry}.", "Take an id from its reports.")
            with _sound():
                layers = codec.decode(tuple[LayerRow, ...], zlib.decompress(row[1]))
                return replace(codec.decode(Report, row[0]), layers=layers)

    def copy(self, path: str | Path) -> None:
        """Writes everything recorded up to now into one file, also while other processes record.

        An old file is replaced as a whole.

        Raises:
            BadInput: the file cannot be written, or is the history itself.
        """
        target = Path(path)
        if target.exists() and target.samefile(self.path):
            raise BadInput(f"'{target}' is the history itself.", "Give --copy another file.")
        if target.exists() and not target.is_file():
            raise BadInput(f"The copy '{target}' cannot be written: it exists and is no file.", "Choose another file.")
        beside = target.absolute().with_name(f".{target.name}-{os.getpid()}")
        try:
            with _sqlite_errors(target):
                with closing(sqlite3.connect(beside, isolation_level=None)) as copied:
                    self._base.backup(copied)
                    copied.execute(_ONE_FILE)
                beside.replace(target)
        except OSError as error:
            raise BadInput(f"The copy '{path}' cannot be written: {error.strerror}.", "Choose another file.") from error
        finally:
            beside.unlink(missing_ok=True)

    def close(self) -> None:
        """Closes the connection."""
        self._base.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _entries(self, wheres: Sequence[tuple[str, Any]]) -> list[HistoryEntry]:
        where = f"WHERE {' AND '.join(condition for condition, _ in wheres)}" if wheres else ""
        rows = self._base.execute(f"{_ENTRIES} {where} ORDER BY id", [value for _, value in wheres])
        with _sound(), _collector_paused():
            return [entry_of(index, codec.decode(Report, report)) for *index, report in rows]

    def _write(self, entry: HistoryEntry, label: str) -> None:
        """Writes an entry of a run folder in place of the one that it continues, or as a new one."""
        run, folder, fingerprint = map(_text, (entry.run, entry.folder, entry.report.fingerprint))
        last = self._base.execute("SELECT label FROM entries WHERE run = ? ORDER BY id DESC", [run]).fetchone()
        label = label or (last[0] if last else Path(entry.report.model).stem)
        self._base.execute("DELETE FROM entries WHERE folder = ? AND fingerprint = ''", [folder])  # measured nothing
        self._base.execute("UPDATE entries SET folder = ?, label = ? WHERE run = ?", [folder, _text(label), run])
        continued = filter(entry.continues, self._entries([("run = ?", run), ("fingerprint = ?", fingerprint)]))
        before = max(continued, key=lambda old: (old.started == entry.started, old.id), default=None)
        recorded, state = datetime.now(timezone.utc), entry.report.state
        if before is not None:
            if before.report.state == FINISHED != state:
                return
            if before.started == entry.started and before.report.state == state:
                recorded = before.recorded
        _insert(self._base, replace(entry, id=before.id if before else 0, label=label, recorded=recorded))


def history_of(where: Path, *, reading: bool) -> Path:
    """Returns the history file that a file, the folder with it, or a run folder beside it stands for.

    Args:
        reading: a folder without one stands for that in the folder directly below it, such as a suite's ``nightly``.

    Raises BadInput if there are several of them.
    """
    if not where.is_dir() or (where / HISTORY).exists():
        return where / HISTORY if where.is_dir() else where
    if holds_run(where):
        return where.absolute().parent / HISTORY
    below = sorted(where.glob(f"*/{HISTORY}")) if reading else []
    if len(below) > 1:
        folders = listed([str(path.parent) for path in below], most=6)
        raise BadInput(f"There is no history in '{where}', and several are below it.", f"Give one of {folders}.")
    return below[0] if below else where / HISTORY


def history_file(history: str | Path, folder: Path) -> Path | None:
    """Returns the history's file: ``beside`` the run folder, ``none``, or the path of the file."""
    if str(history) == NONE:
        return None
    return folder.absolute().parent / HISTORY if str(history) == BESIDE else Path(history)


@contextmanager
def recorded(folder: Path | None, history: str | Path, say: Callable[[str], None], label: str = "") -> Iterator[None]:
    """Records the run folder in the history at the end of the block, also after an error or an interrupt.

    An error in the recording is shown and not raised.

    Args:
        folder: None records nothing.
        history: see ``history_file``.
        label: see ``History.record``.
    """
    try:
        yield
    finally:
        file = None if folder is None else history_file(history, folder)
        if folder is not None and file is not None and holds_run(folder):
            try:
                with History(file) as opened:
                    opened.record(folder, label)
            except TrtBisectError as error:
                say(f"Not recorded in the history: {error.problem}")
            except Exception as error:
                logging.getLogger(__name__).debug("not recorded", exc_info=True)
                say(f"Not recorded in the history '{file}': {type(error).__name__}: {first_line(error)}")


def _text(value: object) -> str:
    """Returns ``value`` as text for SQLite. Bytes of a file name that are not Unicode are escaped."""
    return str(value).encode("utf-8", "backslashreplace").decode()


def _insert(base: sqlite3.Connection, entry: HistoryEntry) -> None:
    """Writes an entry in place of that with its id, or as a new one if that is 0."""
    report = entry.report
    row: list[object] = [entry.id or None, *map(_text, (entry.run, entry.folder, entry.label))]
    row += [entry.started.timestamp(), entry.recorded.timestamp(), _text(report.fingerprint)]
    row += [codec.encode(replace(report, layers=())).decode(), zlib.compress(codec.encode(report.layers))]
    base.execute(f"INSERT OR REPLACE INTO entries VALUES ({', '.join('?' * len(row))})", row)


@contextmanager
def _transaction(base: sqlite3.Connection) -> Iterator[None]:
    """A transaction that commits everything or nothing. It takes the write lock first, so that reads are current."""
    base.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        base.rollback()
        raise
    base.commit()


@contextmanager
def _sqlite_errors(path: Path) -> Iterator[None]:
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


@contextmanager
def _sound() -> Iterator[None]:
    """Raises sqlite3.DatabaseError for a row that this program cannot have written."""
    try:
        yield
    except _UNSOUND as error:
        raise sqlite3.DatabaseError(first_line(error)) from error


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Pauses Python's garbage collector, which takes two thirds of the time where thousands of reports are read."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _open_file(path: Path, *, reading: bool) -> sqlite3.Connection:
    """Opens the file; creates it if there is none, and brings it to the newest schema, unless it can only be read."""
    if reading and not path.is_file():
        raise BadInput(
            f"There is no history '{path}'.", "A run creates it, and so does 'trt-bisect history --add FOLDER'."
        )
    read_only = reading and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK))
    address = f"{path.absolute().as_uri()}?mode=ro" if read_only else path
    base = sqlite3.connect(address, uri=read_only, timeout=LOCK_TIMEOUT, isolation_level=None)
    try:
        _version_of(base, path)
        if not read_only:
            with suppress(sqlite3.OperationalError):  # another process has the file open
                base.execute(_ONE_FILE)
            _migrate(base, path)
        _check_copy(base, path, read_only=read_only)
    except BaseException:
        base.close()
        raise
    return base


def _version_of(base: sqlite3.Connection, path: Path) -> int:
    """Returns the file's schema version, 0 for a new file; raises BadInput for no history, or one of another schema."""
    version, application, tables = base.execute(_STATE).fetchone()
    if application != _APPLICATION and (version or application or tables):
        raise BadInput(f"'{path}' is the database of another program.", "Choose another file.")
    if application == _APPLICATION and version != _SCHEMA:
        problem = f"The history '{path}' has schema {version}; this version of trt-bisect reads {_SCHEMA}."
        raise BadInput(problem, "Move it away; 'trt-bisect history --add FOLDER' records the run folders again.")
    return int(version)


def _migrate(base: sqlite3.Connection, path: Path) -> None:
    """Brings a file to the newest schema in one transaction: after an error or a stop it is unchanged."""
    if _version_of(base, path) == _SCHEMA:
        return
    with _transaction(base):
        version = _version_of(base, path)
        if version == _SCHEMA:
            return
        for statement in _TABLES:
            base.execute(statement)
        base.execute(f"PRAGMA application_id={_APPLICATION}")
        base.execute(f"PRAGMA user_version={_SCHEMA}")


def _check_copy(base: sqlite3.Connection, path: Path, *, read_only: bool) -> None:
    """Raises BadInput if the file has pages of different times, as a file copied during a write can have.

    A file is checked once. A copy is known by its inode, which is not the one in the table ``home``.
    """
    inode = str(path.stat().st_ino)
    if base.execute("SELECT inode FROM home").fetchone() == (inode,):
        return
    if base.execute("PRAGMA integrity_check(1)").fetchone() != ("ok",):
        problem = f"The history '{path}' is a damaged copy: it was copied while it was written."
        raise BadInput(problem, "Copy it again with 'trt-bisect history --copy FILE'.")
    if not read_only:
        with _transaction(base):
            base.execute("DELETE FROM home")
            base.execute("INSERT INTO home VALUES (?)", [inode])
