"""Files that others write: a journal that grows, and files that are replaced as a whole."""

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
    """The trials of one fingerprint; a line is parsed once, and one that is not written to its end is left.

    Attributes:
        trials: by plan key.
        changed: how often what was known before was replaced, by another file or by another trial of a plan.
    """

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self.trials: dict[str, Trial] = {}
        self.changed = 0
        self.fingerprint = fingerprint
        self._path = folder / JOURNAL
        self._read = 0
        self._inode = 0

    def read(self) -> bool:
        """Takes the trials that were added; whether there were any."""
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
    """A file that is replaced as a whole, read again when it was."""

    def __init__(self, path: Path, parse: Callable[[Path], Content | None]) -> None:
        self._path = path
        self._parse = parse
        self._content: Content | None = None
        self.stamp: Stamp | None = None

    def content(self) -> Content | None:
        """What ``parse`` makes of the file as it is now, None where there is none that can be read."""
        stamp = stamp_of(self._path)
        if stamp != self.stamp:
            self._content = None if stamp is None else self._parse(self._path)
            self.stamp = stamp
        return self._content


def stamp_of(path: Path) -> Stamp | None:
    """What changes with a file's content: time in nanoseconds, size in bytes, inode; None where there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
