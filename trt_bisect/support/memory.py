"""Memory: large arrays are in files, so that it holds only what is in use, and freed memory is given back."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from threading import Lock
from weakref import WeakValueDictionary, finalize

import numpy as np

from trt_bisect.support.files import ScratchFolder, temporary_on_disk

_FROM_BYTES = 128 << 20
"""Arrays that take more together are kept in files."""
_LEAST_BYTES = 1 << 20
"""Smaller arrays stay in memory: each file is open as long as its array lives."""
_SHARE_OF_FILES = 2
"""The arrays may have one such part of the files that a process may have open."""
_opening = Lock()
_mapped = WeakValueDictionary[Path, np.memmap]()


def mapped(array: np.ndarray) -> np.ndarray:
    """Returns an array that is read from a file of a temporary folder, and is not writable.

    The file goes with the array.

    Returns:
        The same array where it is small, or no file can be written or opened, or files would be in memory too.
    """
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _SHARE_OF_FILES
    if array.nbytes < max(_LEAST_BYTES, 1) or 0 <= most <= len(_mapped):
        return array
    try:
        with _opening:
            scratch = _scratch()
        if scratch is None:
            return array
        number, name = tempfile.mkstemp(dir=scratch.path)
    except OSError:
        return array
    path = Path(name)
    try:
        with os.fdopen(number, "wb") as file:
            np.ascontiguousarray(array).tofile(file)
        found = np.memmap(path, array.dtype, "r", shape=array.shape)
    except OSError:
        path.unlink(missing_ok=True)
        return array
    finalize(found, _remove, path, os.getpid())
    _mapped[path] = found
    return found


def are_large(arrays: Mapping[str, np.ndarray]) -> bool:
    """Returns true if arrays by name are large together."""
    return sum(array.nbytes for array in arrays.values()) > _FROM_BYTES


def mapped_if_large(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns arrays by name: the same ones, or from files if they are large together."""
    if not are_large(arrays):
        return dict(arrays)
    return {name: array if file_of(array) else mapped(array) for name, array in arrays.items()}


def file_of(array: np.ndarray) -> Path | None:
    """Returns the file that holds the values of a mapped array, and nothing else; None for a part of it or another."""
    if not isinstance(array, np.memmap) or array.filename is None:
        return None
    path = Path(array.filename)
    return path if _mapped.get(path) is array and path.is_file() else None


def give_back_memory() -> None:
    """Returns memory to the system: freed one, with ``malloc_trim(3)`` on glibc, and that in which files were read."""
    for array in list(_mapped.values()):
        pages = array.base
        if isinstance(pages, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            pages.madvise(mmap.MADV_DONTNEED)
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


@cache
def _scratch() -> ScratchFolder | None:
    """The folder of all files of this process; None where it would be in memory."""
    parent = temporary_on_disk()
    if parent is None:
        return None
    scratch = ScratchFolder(parent)
    scratch.open()
    return scratch


def _remove(path: Path, maker: int) -> None:
    """Removes a file; does nothing in a process that was forked from its maker."""
    if os.getpid() == maker:
        path.unlink(missing_ok=True)
