"""NumPy's files read safely: nothing is unpickled, and no small file fills the memory."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from tokenize import TokenError
from typing import BinaryIO

import numpy as np

_NUMPY_RAISES = (ValueError, OSError, EOFError, KeyError, MemoryError, SyntaxError, TokenError)
DAMAGED = (*_NUMPY_RAISES, RuntimeError, zipfile.BadZipFile, zlib.error)
"""The errors of NumPy and zipfile for files that are cut off, altered, encrypted, or of another kind."""

_SUSPICIOUS_BYTES, _SUSPICIOUS_RATIO = 1 << 30, 100
"""An array above both limits (bytes unpacked, unpacked to packed) is refused: real data has noise and packs less."""


def read_archive(path: Path) -> dict[str, np.ndarray]:
    """Reads the arrays of an ``.npz`` by name.

    Raises:
        ``DAMAGED``: the file is no archive, or an array unpacks to suspiciously many bytes.
    """
    archive = np.load(path, allow_pickle=False)
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise ValueError("it is one array, not an archive")
    with archive:
        assert archive.zip is not None
        for entry in archive.zip.infolist():
            if entry.file_size > max(_SUSPICIOUS_BYTES, _SUSPICIOUS_RATIO * entry.compress_size):
                raise ValueError(
                    f"'{entry.filename}' unpacks from {entry.compress_size:,} bytes to {entry.file_size:,}"
                )
        return {name: np.asarray(archive[name]) for name in archive.files}


def write_archive(file: BinaryIO, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays by name as an ``.npz``, not compressed. Any name will do, unlike with ``numpy.savez``."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, values in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, np.asarray(values), allow_pickle=False)


def read_array(path: Path) -> np.ndarray:
    """Reads the array of an ``.npy``.

    Raises:
        ``DAMAGED``: the file is no array.
    """
    array = np.load(path, allow_pickle=False)
    if not isinstance(array, np.ndarray):
        raise ValueError("it is an archive, not one array")
    return array
