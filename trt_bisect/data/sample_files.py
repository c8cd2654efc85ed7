"""Samples in a file that every command reads as a data set."""

from __future__ import annotations

import io
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from trt_bisect.data.array_files import DAMAGED, read_archive, write_archive
from trt_bisect.data.feeds import Feeds
from trt_bisect.errors import BadInput, first_line
from trt_bisect.support.files import make_folder, write_whole


def save_samples(folder: Path, name: str, samples: Sequence[Feeds]) -> Path:
    """Writes samples to ``<name>.npz``, stacked on a first axis, or to a folder ``<name>`` if their shapes differ.

    Returns:
        The path of the file or folder, which ``open_dataset`` reads.

    Raises:
        BadInput: the file or folder cannot be written.
    """
    file, subfolder = folder / f"{name}.npz", folder / name
    shutil.rmtree(subfolder, ignore_errors=True)
    plain = [{key: _without_objects(array) for key, array in feeds.items()} for feeds in samples]
    if len({tuple((key, array.shape) for key, array in sorted(feeds.items())) for feeds in plain}) == 1:
        write_whole(file, _archive({key: np.stack([feeds[key] for feeds in plain]) for key in plain[0]}))
        return file
    file.unlink(missing_ok=True)
    make_folder(subfolder)
    for rank, feeds in enumerate(plain):
        write_whole(subfolder / f"{rank:06d}.npz", _archive(feeds))
    return subfolder


def load_samples(folder: Path, name: str) -> list[Feeds]:
    """Reads the samples that ``save_samples`` wrote.

    Raises:
        BadInput: they do not exist or cannot be read.
    """
    file, subfolder = folder / f"{name}.npz", folder / name
    if not subfolder.is_dir():
        stacked = _arrays(file)
        count = len(next(iter(stacked.values()), ()))
        return [{key: np.asarray(array[rank]) for key, array in stacked.items()} for rank in range(count)]
    return [_arrays(path) for path in sorted(subfolder.glob("*.npz"))]


def _archive(arrays: Feeds) -> bytes:
    """The bytes of a ``.npz``."""
    memory = io.BytesIO()
    write_archive(memory, arrays)
    return memory.getvalue()


def _arrays(path: Path) -> Feeds:
    try:
        return read_archive(path)
    except DAMAGED as error:
        raise BadInput(
            f"The samples in '{path}' cannot be read: {first_line(error)}", "Search for the worst inputs again."
        ) from error


def _without_objects(array: np.ndarray) -> np.ndarray:
    return array.astype(np.str_) if array.dtype.hasobject else array
