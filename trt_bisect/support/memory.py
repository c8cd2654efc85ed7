"""Large arrays: kept in files, worked on in parts; and freed memory given back to the system."""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import resource
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from threading import Lock
from weakref import WeakValueDictionary, finalize

import numpy as np

from trt_bisect.support.files import ScratchFolder, temporary_on_disk

_FROM_BYTES = 16 << 20  # arrays that together take more bytes are kept in files
_LEAST_BYTES = 1 << 20  # smaller arrays stay in memory: each array in a file keeps a file open
_SHARE_OF_FILES = 2  # mapped arrays may take one in this many of the files that a process may open
_opening = Lock()
_mapped = WeakValueDictionary[Path, np.memmap]()


def mapped(array: np.ndarray) -> np.ndarray:
    """Returns the array, read-only, in a temporary file that is removed together with it.

    Returns ``array`` itself if it is small, no more files can be written, or temporary files would be in memory too.
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
        memmap = np.memmap(path, array.dtype, "r", shape=array.shape)
    except OSError:
        path.unlink(missing_ok=True)
        return array
    finalize(memmap, _remove, path, os.getpid())
    _mapped[path] = memmap
    return memmap


def are_large(arrays: Mapping[str, np.ndarray]) -> bool:
    """Returns true if the arrays together take more than 16 MiB."""
    return sum(array.nbytes for array in arrays.values()) > _FROM_BYTES


def mapped_if_large(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the arrays; if they take more than 16 MiB together, large ones read-only in temporary files."""
    if not are_large(arrays):
        return dict(arrays)
    return {name: array if file_of(array) else mapped(array) for name, array in arrays.items()}


def file_of(array: np.ndarray) -> Path | None:
    """Returns the file of a mapped array; None for any other array, also for a part of a mapped one."""
    if not isinstance(array, np.memmap) or array.filename is None:
        return None
    path = Path(array.filename)
    return path if _mapped.get(path) is array and path.is_file() else None


def give_back_memory() -> None:
    """Returns freed memory (``malloc_trim(3)`` on glibc), and the cached pages of mapped files, to the system."""
    for array in list(_mapped.values()):
        pages = array.base
        if isinstance(pages, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            pages.madvise(mmap.MADV_DONTNEED)
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


@cache
def _scratch() -> ScratchFolder | None:
    parent = temporary_on_disk()
    if parent is None:
        return None
    scratch = ScratchFolder(parent)
    scratch.open()
    return scratch


def _remove(path: Path, maker: int) -> None:
    # a fork of the maker must not remove the file
    if os.getpid() == maker:
        path.unlink(missing_ok=True)


_PART = 1 << 17


def parts(size: int, row: int = 1, most: int = _PART) -> Iterator[slice]:
    """Yields slices of a flat tensor of ``size`` values: parts of about ``most`` values, in multiples of ``row``."""
    step = max(most // row, 1) * row
    return (slice(begin, begin + step) for begin in range(0, size, step))


def channel_parts(shape: Sequence[int], axis: int | None) -> Iterator[tuple[slice, ...]]:
    """Yields the parts of a tensor with whole channels, each a slice along every axis; one part if ``axis`` is None."""
    everything = [slice(None)] * len(shape)
    if axis is None:
        yield tuple(everything)
        return
    channel = math.prod(shape) // max(shape[axis], 1)
    for channels in parts(shape[axis], 1, max(_PART // max(channel, 1), 1)):
        everything[axis] = channels
        yield tuple(everything)


def float_parts(*arrays: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
    """Splits arrays of equal size into parts; yields the same part of each as flat float64."""
    flat = [array.reshape(-1) for array in arrays]
    for part in parts(flat[0].size):
        yield tuple(np.asarray(array[part], np.float64) for array in flat)


def largest_magnitude(*arrays: np.ndarray) -> float:
    """Returns the largest magnitude of the finite values of arrays; 0 without any."""
    largest = 0.0
    for array in arrays:
        flat = array.reshape(-1)
        for part in parts(flat.size):
            values = flat[part]
            peak = max(abs(float(values.max())), abs(float(values.min())))
            if not math.isfinite(peak):
                peak = float(np.abs(values[np.isfinite(values)]).max(initial=0.0))
            largest = max(largest, peak)
    return largest
