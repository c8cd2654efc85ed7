"""Readers of files that other processes write: a growing journal, and files that are replaced as a whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

Content = TypeVar("Content")
Stamp = tuple[int, int, int]


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
