"""The history: the reports of all runs, in one file of JSON lines next to the run folders."""

from __future__ import annotations

import fcntl
import gc
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from io import FileIO
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from trt_bisect.errors import BadInput, TrtBisectError, first_line
from trt_bisect.history.queries import HistoryEntry, table_of
from trt_bisect.report.model import Report, read_report
from trt_bisect.report.parts import REPORT, SCHEMA, SO_FAR
from trt_bisect.runs.journal import JOURNAL, append, complete_lines, records_of
from trt_bisect.runs.progress_file import INTERRUPTED, RUNNING, runs_in
from trt_bisect.support import codec
from trt_bisect.support.files import write_whole
from trt_bisect.support.text import listed

if TYPE_CHECKING:
    import pandas as pd

HISTORY = "trt-bisect-history.jsonl"
BESIDE, NONE = "beside", "none"
LOCK_TIMEOUT = 30.0  # seconds to wait for another process that writes
_LOOK_AGAIN = 0.05
_KIND = "trt-bisect history"
_ADD = "Move it away; 'trt-bisect history --add FOLDER' records the run folders again."
_EPOCH = datetime.fromtimestamp(0, timezone.utc)


class History:
    """The history in a file. If ``path`` is a folder, the history is read from the run folders in it.

    All methods raise BadInput if the file cannot be read or written, is no history, or is damaged.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def record(self, folder: str | Path, label: str = "") -> None:
        """Records the reports in a run folder, finished or not; creates the file if necessary.

        Args:
            label: the network's name; by default the one given before, else the model file's stem.

        Raises:
            BadInput: there is no readable run in the folder.
        """
        now = datetime.now(timezone.utc)
        entries = [replace(entry, label=label, recorded=now) for entry in entries_in(Path(folder))]
        with _writing(self.path) as file:
            lines = [codec.encode(entry) + b"\n" for entry in entries]
            if not file.seek(0, os.SEEK_END):
                lines.insert(0, codec.encode(codec.FileHead(SCHEMA, _KIND)) + b"\n")
            append(file, self.path, b"".join(lines))

    def past(
        self,
        *,
        label: str | None = None,
        model: str | None = None,
        since: datetime | None = None,
        fingerprint: str = "",
    ) -> list[HistoryEntry]:
        """Returns the entries in the order of recording.

        Args:
            label: only the network with this label.
            model: only this model: path, file name or stem.
            since: only runs that began at this time or later; a time without a zone is in UTC.
            fingerprint: only fingerprints that begin with these digits.
        """
        if since is not None and since.tzinfo is None:
            since = since.replace(tzinfo=timezone.utc)
        if self.path.is_dir():
            entries = _folded(entry for folder in run_folders([self.path]) for entry in entries_in(folder))
        else:
            entries = _folded(self._lines())
        return [
            entry
            for entry in entries
            if (label is None or entry.label == label)
            and (model is None or entry.is_of(model))
            and (since is None or entry.started >= since)
            and entry.report.fingerprint.startswith(fingerprint.lower())
        ]

    def reports(self, **selection: Any) -> pd.DataFrame:
        """Returns the entries that ``past(**selection)`` selects as a pandas table."""
        return table_of(self.past(**selection))

    def copy(self, path: str | Path) -> None:
        """Writes everything recorded so far into another file, also while other processes record.

        Raises:
            BadInput: the file cannot be written, or is the history itself.
        """
        target = Path(path)
        if target.exists() and target.samefile(self.path):
            raise BadInput(f"'{target}' is the history itself.", "Choose another file.")
        if target.exists() and not target.is_file():
            raise BadInput(f"The copy '{target}' cannot be written: it exists and is no file.", "Choose another file.")
        try:
            write_whole(target, complete_lines(self.path.read_bytes()))
        except OSError as error:
            raise unreadable(self.path, error) from error
        except BadInput as error:
            raise BadInput(f"The copy '{target}' cannot be written.", "Choose another file.") from error

    def _lines(self) -> list[HistoryEntry]:
        try:
            content = self.path.read_bytes()
        except OSError as error:
            raise unreadable(self.path, error) from error
        _check(self.path, content)
        was_enabled = gc.isenabled()
        gc.disable()  # it takes two thirds of the time where thousands of reports are read
        try:
            return [codec.decode(HistoryEntry, line) for line in complete_lines(content).splitlines()[1:]]
        except (codec.Malformed, RecursionError) as error:
            raise _damaged(self.path, error) from error
        finally:
            if was_enabled:
                gc.enable()


def _check(path: Path, content: bytes) -> None:
    if not content:
        return
    try:
        known = codec.decode(codec.FileHead, content.partition(b"\n")[0])
        if known.kind != _KIND:
            raise codec.Malformed(f"its first line is not of the kind '{_KIND}'")
    except (codec.Malformed, RecursionError) as error:
        raise _damaged(path, error) from error
    if known.schema != SCHEMA:
        raise BadInput(f"The history '{path}' has reports of schema {known.schema}; this version reads {SCHEMA}.", _ADD)


def _damaged(path: Path, error: Exception) -> BadInput:
    return BadInput(f"The history '{path}' is damaged, or not a history: {first_line(error)}.", _ADD)


def unreadable(path: Path, error: OSError) -> BadInput:
    """Returns the BadInput for a history that cannot be read."""
    if isinstance(error, FileNotFoundError):
        remedy = "A run creates it, and so does 'trt-bisect history --add FOLDER'."
        return BadInput(f"There is no history '{path}'.", remedy)
    return BadInput(f"The history '{path}' cannot be read: {error.strerror}.", "Choose another file.")


@contextmanager
def _writing(path: Path) -> Iterator[FileIO]:
    try:
        path.touch()
        file = path.open("r+b", buffering=0)
    except OSError as error:
        raise BadInput(f"The history '{path}' cannot be written: {error.strerror}.", "Choose another file.") from error
    with file:
        until = monotonic() + LOCK_TIMEOUT
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if monotonic() > until:
                    problem = f"The history '{path}' has been locked by another process for {LOCK_TIMEOUT:g} s."
                    raise BadInput(problem, "Wait for it to end, or choose another file.") from error
                sleep(_LOOK_AGAIN)
        content = file.read()
        _check(path, content)
        file.truncate(len(complete_lines(content)))
        yield file


def _folded(lines: Iterable[HistoryEntry]) -> list[HistoryEntry]:
    # A report replaces the report of its run that it continues. Its folder and label, if any, become those of all
    # entries of the run. A report without a fingerprint, in which nothing was measured, is replaced by the next in its
    # folder.
    entries: dict[int, HistoryEntry] = {}
    of_run: dict[str, list[int]] = {}
    blank: dict[str, int] = {}
    for number, entry in enumerate(lines, 1):
        nothing = blank.pop(entry.folder, None)
        if nothing is not None:
            of_run[entries.pop(nothing).run].remove(nothing)
        run = of_run.setdefault(entry.run, [])
        label = entry.label or (entries[run[-1]].label if run else Path(entry.report.model).stem)
        for place in run:
            entries[place] = replace(entries[place], folder=entry.folder, label=label)
        continued = [place for place in run if entry.continues(entries[place])]
        place = max(continued, key=lambda place: (entries[place].started == entry.started, place), default=number)
        before, recorded = entries.get(place), entry.recorded
        if before is None:
            run.append(place)
        elif before.is_finished and not entry.is_finished:
            continue
        elif before.started == entry.started and before.report.state == entry.report.state:
            recorded = before.recorded
        entries[place] = replace(entry, id=place, label=label, recorded=recorded)
        if not entry.report.fingerprint:
            blank[entry.folder] = place
    return [entries[place] for place in sorted(entries)]


def holds_run(folder: Path) -> bool:
    """Returns true if a folder has a report, finished or not."""
    return any((folder / name).is_file() for name in (SO_FAR, REPORT))


def run_folders(places: Iterable[Path]) -> list[Path]:
    """Returns the run folders among ``places`` and under them, the oldest run first. Links are not followed.

    Raises BadInput if one of the places has no run folder, or only reports that cannot be read.
    """
    began: dict[Path, datetime] = {}
    for start in places:
        folders = [Path(folder) for folder, _, _ in os.walk(start) if holds_run(Path(folder))]
        if not folders:
            remedy = "Give a run folder, or the folder above several run folders."
            raise BadInput(f"There is no run in '{start}'.", remedy)
        readable = {folder: entries for folder in folders if (entries := list(_reports_in(folder)))}
        if not readable:
            Report.load(folders[0])
        for folder, entries in readable.items():
            began[folder] = min(entry.started for entry in entries)
    return sorted(began, key=lambda folder: (began[folder], folder))


def entries_in(folder: Path) -> list[HistoryEntry]:
    """Returns the reports in a run folder, without their layers; raises BadInput if none can be read."""
    entries = list(_reports_in(folder))
    if not entries:
        if (folder / REPORT).is_file():
            Report.load(folder)
        raise BadInput(f"There is no run in '{folder}'.", "Give the folder that 'run' wrote into.")
    run, made_of = _run_of(folder)
    for k, entry in enumerate(entries):
        parts = entry.report.made_of or made_of.get(entry.report.fingerprint, {})
        entries[k] = replace(entry, run=run, report=replace(entry.report, made_of=parts, layers=()))
    return entries


def _reports_in(folder: Path) -> Iterator[HistoryEntry]:
    report, so_far = read_report(folder / REPORT), read_report(folder / SO_FAR)
    if report is not None:
        yield _entry(folder, report)
    if so_far is not None and (report is None or so_far.started != report.started):
        yield _entry(folder, replace(so_far, state=RUNNING if runs_in(folder) else INTERRUPTED))


def _entry(folder: Path, report: Report) -> HistoryEntry:
    try:
        when = datetime.fromtimestamp(report.started, timezone.utc)
    except (OverflowError, ValueError, OSError):
        when = _EPOCH
    return HistoryEntry(0, "", str(folder.absolute()), "", when, _EPOCH, report)


def _run_of(folder: Path) -> tuple[str, dict[str, Mapping[str, Any]]]:
    # the id of the folder's journal, and the parts of each fingerprint
    try:
        lines = complete_lines((folder / JOURNAL).read_bytes()).splitlines()
    except OSError:
        lines = []
    records = records_of(line for line in lines if b'"about"' in line)
    heads = [record for record in records if isinstance(record.get("about"), dict)]
    ids = [head["id"] for head in heads if isinstance(head.get("id"), str)]
    return ids[0] if ids else f"in {folder.absolute()}", {str(head.get("run")): head["about"] for head in heads}


def history_of(where: Path, *, recording: bool = False) -> History:
    """Returns the history for a path: a history file, the folder that has one, or a run folder next to one.

    Another folder has the history of a folder directly below, such as a suite's ``nightly``; without that, the history
    is read from the run folders below, or with ``recording`` a new file is begun. Raises BadInput if several folders
    below have a history file.
    """
    if not where.is_dir():
        return History(where)
    folder = where.absolute().parent if holds_run(where) else where
    if (folder / HISTORY).exists():
        return History(folder / HISTORY)
    below = sorted(where.glob(f"*/{HISTORY}"))
    if len(below) > 1:
        folders = listed([str(path.parent) for path in below], most=6)
        raise BadInput(f"There is no history in '{where}', and several are below it.", f"Give one of {folders}.")
    if below:
        return History(below[0])
    return History(folder / HISTORY if recording else folder)


def history_file(history: str | Path, folder: Path) -> Path | None:
    """Returns the history's path: ``beside`` is next to the run folder, ``none`` gives None, another path itself."""
    if str(history) == NONE:
        return None
    return folder.absolute().parent / HISTORY if str(history) == BESIDE else Path(history)


@contextmanager
def recorded(folder: Path | None, history: str | Path, say: Callable[[str], None], label: str = "") -> Iterator[None]:
    """Records the run folder, if any, in the history at the end of the block, also after an error.

    Args:
        history: ``beside`` (next to the run folder), ``none`` or a path.
        say: shows an error in the recording, which is not raised.
        label: the network's name; empty: the one given before, else the model file's stem.
    """
    try:
        yield
    finally:
        file = None if folder is None else history_file(history, folder)
        if folder is not None and file is not None and holds_run(folder):
            try:
                History(file).record(folder, label)
            except TrtBisectError as error:
                say(f"Not recorded in the history: {error.line}")
            except Exception as error:
                logging.getLogger(__name__).debug("not recorded", exc_info=True)
                say(f"Not recorded in the history '{file}': {type(error).__name__}: {first_line(error)}")
