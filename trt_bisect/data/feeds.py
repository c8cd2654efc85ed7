"""Feeds, the arrays of one inference; and arrays in files, read safely: NumPy's, samples, saved tensors, a spill."""

from __future__ import annotations

import re
import shutil
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from tokenize import TokenError
from typing import Any, BinaryIO

import numpy as np

from trt_bisect.errors import BadInput, first_line
from trt_bisect.support.codec import read
from trt_bisect.support.files import ScratchFolder, make_folder, whole_file

Feeds = dict[str, np.ndarray]
"""The arrays of one inference, by the name of the network's input."""


@dataclass(frozen=True)
class TensorSpec:
    """An input or output of a network: name, NumPy dtype, shape (``None`` for a dynamic axis)."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]

    def __str__(self) -> str:
        return f"'{self.name}' {self.dtype}[{', '.join('?' if d is None else str(d) for d in self.shape)}]"


def size_remedy(shapes: Iterable[Sequence[int | None]], otherwise: str) -> str:
    """Returns the remedy for a sample that a network refuses: one size, if an input takes pictures of any size.

    Such a network may take many sizes, and not all: where it concatenates, those that its strides divide.

    Args:
        shapes: those of the network's inputs, None or 0 for a dynamic axis.
    """
    free = any(len(shape) == 4 and (not any(shape[1:3]) or not any(shape[2:])) for shape in shapes)
    return "The pictures differ in size: give them one size with --resize 320x320 --letterbox." if free else otherwise


_NUMPY_RAISES = (ValueError, OSError, EOFError, KeyError, MemoryError, SyntaxError, TokenError)
DAMAGED = (*_NUMPY_RAISES, RuntimeError, zipfile.BadZipFile, zlib.error)
"""The errors of NumPy and zipfile for files that are cut off, altered, encrypted, or of another kind."""

_SUSPICIOUS_BYTES, _SUSPICIOUS_RATIO = 1 << 30, 100
"""An array above both limits (bytes unpacked, unpacked to packed) is refused: real data has noise and packs less."""
_TORCH = ("Tensor", "__polygraphy_encoded_Tensor")
"""The type names of PyTorch tensors. Polygraphy reads them with ``torch.load``, which before PyTorch 2.6 unpickles all.

Source: ``polygraphy/json/serde.py`` of 0.49.0.
"""
Tensors = dict[str, np.ndarray]
_SUFFIXES = (".npz", ".json")
WORST = "worst"
"""The name of the samples that the command ``worst`` writes, and of its JSON file beside them."""
_RUN_KINDS = "Give an .npz with the tensors by name, Polygraphy's --save-outputs JSON, or a folder of such files."


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
    """Reads the array of an ``.npy``; raises DAMAGED if the file is no array."""
    array = np.load(path, allow_pickle=False)
    if not isinstance(array, np.ndarray):
        raise ValueError("it is an archive, not one array")
    return array


def load_saved(path: Path) -> Any:
    """Reads a file that holds lists, dictionaries, NumPy arrays and Polygraphy's own types.

    Raises:
        ValueError: the file cannot be read, or holds PyTorch tensors or other types.
    """
    from polygraphy.json import from_json, load_json
    from polygraphy.json.serde import Decoder

    from_json("[]")  # registers the types
    for type_name in _TORCH:
        Decoder.polygraphy_registered.pop(type_name, None)
    try:
        return load_json(str(path))
    except Exception as error:
        raise ValueError(first_line(error)) from error


class Spill:
    """Keeps arrays until it is closed. It keeps copies: an array of ONNX Runtime keeps its session's arena alive.

    Args:
        memory: bytes of arrays that stay in memory. Arrays of objects, such as texts, always do.
    """

    def __init__(self, memory: int) -> None:
        self._left = memory
        self._scratch = ScratchFolder()
        self._files = 0

    def kept(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the same arrays; those beyond the limit are read from files, and are not writable."""
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
        """Removes the files."""
        self._scratch.close()
        self._files = 0

    def __enter__(self) -> Spill:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def save_samples(folder: Path, name: str, samples: Sequence[Feeds]) -> Path:
    """Writes samples to ``<name>.npz``, stacked on a first axis, or to a folder ``<name>`` if their shapes differ.

    Returns:
        The path, which ``open_dataset`` reads.

    Raises:
        BadInput: the file or folder cannot be written.
    """
    file, subfolder = folder / f"{name}.npz", folder / name
    shutil.rmtree(subfolder, ignore_errors=True)
    plain = [{key: without_objects(array) for key, array in feeds.items()} for feeds in samples]
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
    """Reads the samples that ``save_samples`` wrote; raises BadInput if they do not exist or cannot be read."""
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


def without_objects(array: np.ndarray) -> np.ndarray:
    """Returns an array of texts as one that can be saved without pickling, and any other unchanged."""
    return array.astype(np.str_) if array.dtype.hasobject else array


def open_dumps(
    fp32: str | Path, int8: str | Path
) -> tuple[tuple[str, ...], Iterator[tuple[Tensors, Tensors]], list[str]]:
    """Opens two saved runs of one network.

    An ``.npz`` holds one inference. JSON holds any number, and is read as a whole. A folder holds such files, read in
    the order of their names, one file of each run in memory at a time. The first runner of a file is used; if both
    paths are the same file, its second runner is the INT8 run.

    Returns:
        The names of the tensors that both runs have; for each inference the FP32 and the INT8 tensors, both under the
        FP32 run's names; and a sentence for each run on the tensors that only it has. Names that are not equal are
        matched without case, punctuation and a trailing ``:0``.

    Samples that ``--save-tensors`` named are matched by their names, others by their order.

    Raises:
        BadInput: a file cannot be read, no name is in both runs, or their numbers of inferences differ.
    """
    paths = Path(fp32), Path(int8)
    samples = [_named_samples(path) for path in paths]
    pairs = _pairs(paths, samples)
    first = next(pairs, None)
    if first is None:
        raise BadInput(f"The saved runs '{fp32}' and '{int8}' hold no inference.", "Save at least one.")
    names = match_names(first[0], first[1])
    if not names:
        raise BadInput(
            f"No tensor of '{fp32}' ({_some(first[0])}) is in '{int8}' ({_some(first[1])}).",
            "Save both runs of one network with the same tensors marked as outputs.",
        )
    renamed = (
        (reference, {ours: output[theirs] for ours, theirs in names.items() if theirs in output})
        for reference, output in chain([first], pairs)
    )
    unmatched = {
        "FP32": [name for name in first[0] if name not in names],
        "INT8": [name for name in first[1] if name not in set(names.values())],
    }
    notes = [f"in the {run} run only ({len(only)}): {_some(only)}" for run, only in unmatched.items() if only]
    common, single = samples[0].keys() & samples[1].keys(), len(samples[0].keys() ^ samples[1].keys())
    if common and single:
        notes.append(f"{len(common)} samples are in both runs, {single} in one of them only")
    return tuple(names), renamed, notes


def match_names(reference: Iterable[str], output: Iterable[str]) -> dict[str, str]:
    """Maps names of ``reference`` to equal names of ``output``, else to the only similar one (see ``open_dumps``)."""
    ours, theirs = list(reference), dict.fromkeys(output)
    same = {name: name for name in ours if name in theirs}
    plain_ours = _by_plain_name(name for name in ours if name not in same)
    plain_theirs = _by_plain_name(name for name in theirs if name not in same)
    matched = dict(same)
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


def _some(names: Iterable[str]) -> str:
    shown = [f"'{name}'" for name in names]
    return ", ".join(shown[:4]) + (" and others" if len(shown) > 4 else "")


def _named_samples(path: Path) -> dict[str, Path]:
    """Returns by its name the file of each sample in a folder that ``--save-tensors`` wrote; empty for others."""
    index = read(dict, path.parent / "index.json") or {}
    if path.name not in index.get("plans", ()):
        return {}
    files = {name: path / f"{number:06}.npz" for number, name in enumerate(index.get("samples", ()))}
    return {name: file for name, file in files.items() if file.is_file()}


def _pairs(paths: tuple[Path, Path], samples: Sequence[Mapping[str, Path]]) -> Iterator[tuple[Tensors, Tensors]]:
    if common := [name for name in samples[0] if name in samples[1]]:
        for name in common:
            yield next(inferences(samples[0][name])), next(inferences(samples[1][name]))
        return
    runs = zip_longest(inferences(paths[0], 0), inferences(paths[1], 1 if paths[0] == paths[1] else 0))
    for position, (reference, output) in enumerate(runs):
        if reference is None or output is None:
            longer, shorter = (paths[0], paths[1]) if output is None else (paths[1], paths[0])
            raise BadInput(
                f"'{shorter}' holds {position} inferences, '{longer}' more.", "Save both runs on the same inputs."
            )
        yield reference, output
        del reference, output


def inferences(path: Path, runner: int = 0) -> Iterator[Tensors]:
    """Yields the tensors of each inference of a saved run, see ``open_dumps``.

    Args:
        path: a file, or a folder of files.
        runner: the place of the runner that is read, in a JSON file with several.

    Raises:
        BadInput: a file cannot be read.
    """
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in _SUFFIXES)
    else:
        files = [path] if path.is_file() else []
    if not files:
        missing = "holds no .npz and no .json file" if path.is_dir() else "does not exist"
        raise BadInput(f"The saved run '{path}' {missing}.", _RUN_KINDS)
    for file in files:
        if file.suffix not in _SUFFIXES:
            raise BadInput(f"The saved run '{file}' is of an unknown kind ('{file.suffix}').", _RUN_KINDS)
        if file.suffix == ".json":
            yield from _read_json(file, runner)
            continue
        try:
            yield read_archive(file)
        except DAMAGED as error:
            raise _unreadable(file, error) from error


def _read_json(path: Path, runner: int) -> Iterator[Tensors]:
    from polygraphy.comparator import RunResults

    try:
        results = load_saved(path)
    except ValueError as error:
        raise _unreadable(path, error) from error
    if not isinstance(results, RunResults):
        raise BadInput(
            f"'{path}' is JSON, but not a run that Polygraphy saved.",
            "Save it with 'polygraphy run ... --save-outputs FILE', or use .npz.",
        )
    runs = list(results.items())
    if runner >= len(runs):
        raise BadInput(
            f"'{path}' holds {len(runs)} runners, and was given for both runs.",
            "Give the other run's file, or save both runners into this one.",
        )
    for inference in runs[runner][1]:
        yield {name: np.asarray(values) for name, values in inference.items()}


def _unreadable(path: Path, error: Exception) -> BadInput:
    return BadInput(f"The saved run '{path}' cannot be read: {first_line(error)}", _RUN_KINDS)
