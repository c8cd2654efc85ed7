"""The journal: every trial is appended and on disk before the next one begins.

Each line of ``journal.jsonl`` is a JSON object with the run's fingerprint, and either a trial, or the parts of the
fingerprint and a unique ``id`` of the journal.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any
from uuid import uuid4

from trt_bisect.errors import BadInput, NoRoom
from trt_bisect.evaluator.trial import PASSING, Trial, TrialStore
from trt_bisect.support.codec import Malformed
from trt_bisect.support.files import unwritable

JOURNAL = "journal.jsonl"


class Journal(TrialStore):
    """The trials of one fingerprint in a run folder, which the caller has locked.

    A trial that timed out, ran out of memory, or was lost with its worker is not read, so it is measured again.

    Args:
        about: parts of the fingerprint, in JSON types.
        file: the journal's open file; None opens it.

    Raises:
        BadInput: the folder cannot be written.
    """

    def __init__(self, folder: Path, fingerprint: str, about: Mapping[str, Any], file: FileIO | None = None) -> None:
        super().__init__()
        self.path = folder / JOURNAL
        self._fingerprint = fingerprint
        self._file = _opened(self.path) if file is None else file
        self._file.seek(0)
        content = self._file.read()
        whole = complete_lines(content)
        if len(whole) < len(content):
            self._file.truncate(len(whole))
        mine = [record for record in records_of(whole.splitlines()) if record.get("run") == fingerprint]
        for record in mine:
            with suppress(KeyError, TypeError, ValueError, AttributeError, Malformed):
                trial = Trial.from_json(record["trial"])
                if trial.outcome not in PASSING:
                    self.trials[trial.plan] = trial
        self.resumed = len(self.trials)
        self._head = [] if mine else [{"run": fingerprint, "about": dict(about), "id": uuid4().hex}]
        if file is None and self._head:
            self.keep()

    def under(self, fingerprint: str, about: Mapping[str, Any]) -> TrialStore:
        """Returns the file's trials under another fingerprint with parts ``about``, while this journal is open."""
        if fingerprint == self._fingerprint:
            return self
        if fingerprint not in self._others:
            self._others[fingerprint] = Journal(self.path.parent, fingerprint, about, self._file)
        return self._others[fingerprint]

    def keep(self, *trials: Trial) -> None:
        """Appends trials and waits until they are on disk."""
        records = [*self._head, *({"run": self._fingerprint, "trial": trial.to_json()} for trial in trials)]
        append(self._file, self.path, b"".join(json.dumps(record).encode() + b"\n" for record in records))
        self._head = []
        super().keep(*trials)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _opened(path: Path) -> FileIO:
    if path.is_symlink():
        problem = f"The journal '{path}' is a symbolic link, which is not followed."
        raise BadInput(problem, "Remove the link, or name the folder that holds the file.")
    try:
        path.touch()
        return path.open("r+b", buffering=0)
    except OSError as error:
        raise unwritable(path.parent, error) from error


def append(file: FileIO, path: Path, lines: bytes) -> None:
    """Writes whole lines to the end of a file and waits until they are on disk.

    Raises NoRoom if the file cannot be written; it is then unchanged.
    """
    end = file.seek(0, os.SEEK_END)
    unwritten = memoryview(lines)
    try:
        while unwritten:
            unwritten = unwritten[file.write(unwritten) :]
        os.fsync(file.fileno())
    except OSError as error:
        with suppress(OSError):
            file.truncate(end)
        raise NoRoom(f"'{path}' cannot be written: {error.strerror}.") from error


def complete_lines(content: bytes) -> bytes:
    """Returns the content of a journal without an incomplete line at the end."""
    return content[: content.rfind(b"\n") + 1]


def records_of(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yields the JSON objects in complete lines of a journal; skips lines that are not one."""
    for line in lines:
        with suppress(ValueError, RecursionError):
            record = json.loads(line)
            if isinstance(record, dict):
                yield record
