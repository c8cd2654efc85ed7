"""Readers of files that other processes write: a growing journal, and files that are replaced as a whole."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Generic, TypeVar

from trt_bisect.evaluator.trial import Trial
from trt_bisect.runs.journal import JOURNAL, records_of, trial_of

Content = TypeVar("Content")
Stamp = tuple[int, int, int]


class JournalTail:
    """The trials of one fingerprint in a journal; each line is parsed once, when it is complete.

    Attributes:
        trials: the trials by plan key.
        changed: the number of times that known trials were replaced, by a new file or by a new trial of a plan.
    """

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self.trials: dict[str, Trial] = {}
        self.changed = 0
        self.fingerprint = fingerprint
        self._path = folder / JOURNAL
        self._read = 0
        self._inode = 0

    def read(self) -> bool:
        """Reads the trials that were added; returns true if there were any."""
        found = 0
        with suppress(OSError), self._path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_ino != self._inode or status.st_size < self._read:
                self.changed += bool(self.trials)
                self.trials, self._read, self._inode = {}, 0, status.st_ino
            file.seek(self._read)
            for record in records_of(self._whole_lines(file)):
                trial = trial_of(record) if record.get("run") == self.fingerprint else None
                if trial is not None:
                    found += 1
                    self.changed += trial.plan in self.trials
                    self.trials[trial.plan] = trial
        return found > 0

    def _whole_lines(self, file: BinaryIO) -> Iterator[bytes]:
        for line in file:
            if line.endswith(b"\n"):
                self._read += len(line)
                yield line


class Replaced(Generic[Content]):
    """A file that is replaced as a whole, and read again after each replacement."""

    def __init__(self, path: Path, parse: Callable[[Path], Content | None]) -> None:
        self._path = path
        self._parse = parse
        self._content: Content | None = None
        self.stamp: Stamp | None = None

    def content(self) -> Content | None:
        """Returns ``parse`` of the current file, None if it cannot be read."""
        stamp = stamp_of(self._path)
        if stamp != self.stamp:
            self._content = None if stamp is None else self._parse(self._path)
            self.stamp = stamp
        return self._content


def stamp_of(path: Path) -> Stamp | None:
    """Returns a file's time in nanoseconds, size in bytes and inode, which change with it; None without a file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
