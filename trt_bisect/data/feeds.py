"""Feeds, the arrays of one inference, and arrays in files."""

from __future__ import annotations

import re
import shutil
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Any, BinaryIO

import numpy as np

from trt_bisect.errors import BadInput, first_line
from trt_bisect.support.files import ScratchFolder, make_folder, whole_file

Feeds = dict[str, np.ndarray]  # the arrays of an inference, by input


@dataclass(frozen=True)
class TensorSpec:
    """An input or output of a network; None is a dynamic axis."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]

    def __str__(self) -> str:
        return f"'{self.name}' {self.dtype}[{', '.join('?' if d is None else str(d) for d in self.shape)}]"


def size_remedy(shapes: Iterable[Sequence[int | None]], otherwise: str) -> str:
    """Returns the advice to give pictures one size if an input of ``shapes`` takes pictures of any size, else
    ``otherwise``.
    """
    # Networks that concatenate may take only sizes that their strides divide.
    free = any(len(shape) == 4 and (not any(shape[1:3]) or not any(shape[2:])) for shape in shapes)
    return "The pictures differ in size: give them one size with --resize 320x320 --letterbox." if free else otherwise


_NUMPY_RAISES = (ValueError, OSError, EOFError, KeyError, MemoryError, SyntaxError, TokenError)
# The errors of NumPy and zipfile for files that are cut off, altered, encrypted, or of another kind.
DAMAGED = (*_NUMPY_RAISES, RuntimeError, zipfile.BadZipFile, zlib.error)

# an array above both limits, the second unpacked to packed, is refused: real data packs less
_SUSPICIOUS_BYTES, _SUSPICIOUS_RATIO = 1 << 30, 100
WORST = "worst"  # the name of the samples of the command ``worst``, and of its JSON file


def read_archive(path: Path) -> dict[str, np.ndarray]:
    """Reads the arrays of an ``.npz`` by name; raises an error in ``DAMAGED``, such as ValueError, for a broken file or
    a suspiciously large array.
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
    """Writes arrays as an uncompressed ``.npz``; unlike with ``numpy.savez``, they may have any names."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, values in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, np.asarray(values), allow_pickle=False)


def read_array(path: Path) -> np.ndarray:
    """Reads an ``.npy``; raises an error in ``DAMAGED``, such as ValueError, if it holds no array."""
    array = np.load(path, allow_pickle=False)
    if not isinstance(array, np.ndarray):
        raise ValueError("it is an archive, not one array")
    return array


class Spill(AbstractContextManager["Spill"]):
    """Keeps copies of arrays until it is closed: up to ``memory`` bytes in memory, the rest in files."""

    def __init__(self, memory: int) -> None:
        self._left = memory
        self._scratch = ScratchFolder()
        self._files = 0

    def kept(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns copies of the arrays; those beyond the limit are read from files, and not writable."""
        # Copies are needed because an array of ONNX Runtime keeps its session's memory.
        return {name: self._kept(array) for name, array in arrays.items()}

    def _kept(self, array: np.ndarray) -> np.ndarray:
        if not isinstance(array, np.ndarray) or array.dtype.hasobject:
            return array
        if array.nbytes <= self._left:
            self._left -= array.nbytes
            return np.array(array)
        folder = self._scratch.path if self._files else self._scratch.open()
        path = folder / f"{self._files}.npy"
        self._files += 1
        np.save(path, array)
        read: np.ndarray = np.load(path, mmap_mode="r")
        return read

    def close(self) -> None:
        """Removes the files: the copies must not be used any more."""
        self._scratch.close()
        self._files = 0

    def __exit__(self, *_: object) -> None:
        self.close()


def save_samples(folder: Path, name: str, samples: Sequence[Feeds]) -> Path:
    """Writes samples to ``<name>.npz`` in ``folder``, stacked, or to a folder ``<name>`` if shapes differ; returns the
    path.
    """
    file, subfolder = folder / f"{name}.npz", folder / name
    shutil.rmtree(subfolder, ignore_errors=True)
    plain = []
    for feeds in samples:
        # in this dtype, texts need no pickling
        texts = {key: array.astype(np.str_) for key, array in feeds.items() if array.dtype.hasobject}
        plain.append({**feeds, **texts})
    if len({tuple((key, array.shape) for key, array in sorted(feeds.items())) for feeds in plain}) == 1:
        with whole_file(file) as opened:
            write_archive(opened, {key: np.stack([feeds[key] for feeds in plain]) for key in plain[0]})
        return file
    file.unlink(missing_ok=True)
    make_folder(subfolder)
    for rank, feeds in enumerate(plain):
        with whole_file(subfolder / f"{rank:06d}.npz") as opened:
            write_archive(opened, feeds)
    return subfolder


def load_samples(folder: Path, name: str) -> list[Feeds]:
    """Reads the samples that ``save_samples`` wrote; raises BadInput if it cannot."""
    file, subfolder = folder / f"{name}.npz", folder / name
    if not subfolder.is_dir():
        stacked = _arrays(file)
        count = len(next(iter(stacked.values()), ()))
        return [{key: np.asarray(array[rank]) for key, array in stacked.items()} for rank in range(count)]
    return [_arrays(path) for path in sorted(subfolder.glob("*.npz"))]


def _arrays(path: Path) -> Feeds:
    try:
        return read_archive(path)
    except DAMAGED as error:
        raise BadInput(
            f"The samples in '{path}' cannot be read: {first_line(error)}", "Search for the worst inputs again."
        ) from error


def match_names(reference: Iterable[str], output: Iterable[str]) -> dict[str, str]:
    """Maps names of ``reference`` to the equal name of ``output``, else to the only one that is equal without case,
    punctuation and a final ``:0``; names without either are left out.
    """
    ours, theirs = list(reference), dict.fromkeys(output)
    equal = {name: name for name in ours if name in theirs}
    plain_ours = _by_plain_name(name for name in ours if name not in equal)
    plain_theirs = _by_plain_name(name for name in theirs if name not in equal)
    matched = dict(equal)
    for plain, names in plain_ours.items():
        if len(names) == len(plain_theirs.get(plain, ())) == 1:
            matched[names[0]] = plain_theirs[plain][0]
    return {name: matched[name] for name in ours if name in matched}


def _by_plain_name(names: Iterable[str]) -> dict[str, list[str]]:
    by_plain_name: dict[str, list[str]] = {}
    for name in names:
        plain = re.sub(r"[^a-z0-9]+", "_", re.sub(r":\d+$", "", name).lower()).strip("_")
        by_plain_name.setdefault(plain, []).append(name)
    return by_plain_name
