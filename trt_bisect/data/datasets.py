"""Data sets: files and generators that become feeds, one for each inference, and held-out samples."""

from __future__ import annotations

import hashlib
import math
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from trt_bisect.data.feeds import DAMAGED, WORST, Feeds, TensorSpec, read_archive, read_array
from trt_bisect.data.named import DATA_KINDS, kind_of, load_function, samples_from, similar_file
from trt_bisect.data.preprocessing import Preprocessing
from trt_bisect.data.samples import (
    SUFFIXES,
    as_array,
    dtype_remedy,
    feeds_of,
    image_files,
    picture_input,
    shape_fits,
    shape_remedy,
    with_batch_axis,
)
from trt_bisect.data.saved import RAW, inferences, raw_files, read_json
from trt_bisect.errors import BadInput, first_line
from trt_bisect.support.text import counted, listed

_KINDS = "Give a .npz, .npy, .json or .bin file, a folder of .npz files or of pictures, or module:function."

# The smallest, the first and the largest: sizes of an input's axes, or values of an input.
Span = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
_MOST_SIZES = 64  # the most values of a shape tensor (TensorRT documentation, "Working with Dynamic Shapes")
FEWEST = 20  # with fewer different samples, none is held out
_FINEST = 1000


@dataclass(frozen=True)
class Profile:
    """The smallest, the first and the largest shapes of some samples, as in an optimization profile.

    Attributes:
        shapes: by input, three shapes; smallest and largest axis by axis.
        sizes: by input that may be a TensorRT shape tensor, its smallest, first and largest values.
    """

    shapes: Mapping[str, Span] = field(default_factory=dict)
    sizes: Mapping[str, Span] = field(default_factory=dict)

    def covering(self, others: Iterable[Profile]) -> Profile:
        """Returns this profile, widened to cover the others too."""
        shapes, sizes = dict(self.shapes), dict(self.sizes)
        for other in others:
            for name, span in other.shapes.items():
                _widen(shapes, name, span)
            for name, span in other.sizes.items():
                _widen(sizes, name, span)
        return Profile(shapes, sizes)


@dataclass(frozen=True)
class Dataset:
    """Samples for a network. Each iteration starts anew, and checks every sample against the network's inputs.

    Attributes:
        source: data set's name in messages.
        specs: the network's inputs.
        samples: returns an iterable of all samples at each call.
        length: number of samples; None if known only after an iteration.
        place: maps a sample's index here to its index in the user's data.
        pictures: the way from pictures to inputs, such as ``224x224, RGB, NCHW, divided by 255``; empty for other data.
        names: the samples' names in the user's data; empty if they have none.
        fed: for a pipeline, turns samples into the feeds of all its networks; else None.
    """

    source: str
    specs: tuple[TensorSpec, ...]
    samples: Callable[[], Iterable[Mapping[str, np.ndarray]]]
    length: int | None = None
    place: Callable[[int], int] = int
    notes: tuple[str, ...] = ()
    pictures: str = ""
    names: tuple[str, ...] = ()
    fed: Callable[[Iterable[Mapping[str, np.ndarray]]], Iterable[Feeds]] | None = None

    def label(self, place: int) -> str:
        """Returns the name of the sample at the index ``place`` in the user's data, such as ``data.npz 3`` or
        ``dir/a.png``.
        """
        return self.names[place] if self.names else f"{self.source} {place}"

    def __iter__(self) -> Iterator[Feeds]:
        empty = True
        for position, sample in enumerate(self.samples()):
            empty, number = False, self.place(position)
            where = f"'{self.names[number]}'" if self.names else f"sample {number} of {self.source}"
            yield check_feeds(sample, self.specs, where)
        if empty:
            raise BadInput(
                f"There are no samples in {self.source}.",
                "Give at least one sample; calibration needs a few hundred, like the data in production.",
            )

    @cached_property
    def inferences(self) -> Dataset:
        """The data set of all feeds: for a pipeline those of its networks, else the samples."""
        fed = self.fed
        if fed is None:
            return self
        return replace(self, samples=lambda: fed(self.samples()), length=None, place=int, names=(), fed=None)

    def first(self, count: int) -> Dataset:
        """Returns a data set of only the first ``count`` samples."""
        length = None if self.length is None else min(self.length, count)
        return replace(self, samples=lambda: islice(self.samples(), count), length=length)

    def digest(self) -> str:
        """Returns the SHA-256 over the samples' ``digests``."""
        return hashlib.sha256("".join(self.digests).encode()).hexdigest()

    @property
    def digests(self) -> tuple[str, ...]:
        """The SHA-256 of each sample, in hexadecimal."""
        return self._read[0]

    @property
    def profile(self) -> Profile:
        """The smallest, first and largest shapes of the samples."""
        return self._read[1]

    @cached_property
    # The data set is read once for both.
    def _read(self) -> tuple[tuple[str, ...], Profile]:
        digests: list[str] = []

        def samples() -> Iterator[Feeds]:
            for feeds in self:
                digests.append(digest_of_feeds(feeds))
                yield feeds

        profile = profile_of(samples())
        return tuple(digests), profile


def digest_of_feeds(feeds: Mapping[str, np.ndarray]) -> str:
    """Returns the SHA-256 over the names, shapes, dtypes and bytes of one inference's feeds."""
    sha = hashlib.sha256()
    for name in sorted(feeds):
        array = np.ascontiguousarray(feeds[name])
        sha.update(f"{name} {array.dtype.str} {array.shape};".encode())
        sha.update(repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes())
    return sha.hexdigest()


def profile_of(samples: Iterable[Feeds]) -> Profile:
    """Returns the smallest, first and largest shapes of samples."""
    shapes: dict[str, Span] = {}
    sizes: dict[str, Span] = {}
    for feeds in samples:
        for name, array in feeds.items():
            _widen(shapes, name, (array.shape,) * 3)
            if may_be_sizes(array.dtype, array.shape):
                _widen(sizes, name, (tuple(int(value) for value in array.flat),) * 3)
    return Profile(shapes, sizes)


def _widen(spans: dict[str, Span], name: str, other: Span) -> None:
    least, first, most = spans.get(name, other)
    spans[name] = (tuple(map(min, least, other[0])), first, tuple(map(max, most, other[2])))


def may_be_sizes(dtype: np.dtype[Any], shape: Sequence[int | None]) -> bool:
    """Returns true if an input may be a TensorRT shape tensor: integers, at most one axis and 64 values."""
    fixed = [size for size in shape if size is not None]
    return dtype.kind in "iu" and len(fixed) == len(shape) <= 1 and math.prod(fixed) <= _MOST_SIZES


def open_dataset(
    source: Any, specs: tuple[TensorSpec, ...], *, once: bool = False, pictures: Preprocessing | None = None
) -> Dataset:
    """Opens a data set from a path, a ``module:function`` text, arrays, or an iterable of samples.

    Paths: ``.npz`` with an array for each input, samples stacked on the first axis; ``.npy`` for a single input; a
    folder with an ``.npz`` or ``.npy`` for each sample; the output folder of ``worst``; a picture, or a folder of
    pictures with its subfolders; ``.json`` of Polygraphy's ``--save-inputs``. ``module:function`` or
    ``file.py:function`` returns an iterable of samples; ``file.py`` alone means ``load_data``. ``feeds_of`` says what a
    sample is.

    Args:
        specs: the network's inputs.
        pictures: the user's options for pictures; default: none.
        once: the caller iterates once, so that an iterable's samples are not kept.

    Raises:
        BadInput: the source does not exist, cannot be read, or is of an unknown kind.
    """
    options = pictures or Preprocessing()
    if isinstance(source, Dataset):
        return source
    if isinstance(source, (str, Path)):
        return _open_named(str(source), specs, options)
    if hasattr(source, "__array__") and hasattr(source, "shape"):
        return _stacked({_only_input(specs, "an array").name: as_array(source)}, specs, "the array given")
    if isinstance(source, Mapping):
        return _stacked(source, specs, "the arrays given")
    if isinstance(source, Iterable) or hasattr(source, "__getitem__"):
        return _open_iterable(source, specs, options, once=once)
    if callable(source):
        return _open_function(source, f"function {getattr(source, '__name__', source)}", specs, options)
    raise BadInput(
        f"A data set cannot be made from a {type(source).__name__}.",
        "Give a path, 'module:function', an array, a dictionary of arrays, or an iterable of samples.",
    )


def _open_iterable(source: Any, specs: tuple[TensorSpec, ...], options: Preprocessing, *, once: bool) -> Dataset:
    has_places = not isinstance(source, Iterable) and hasattr(source, "__len__")

    def samples() -> Iterable[Any]:
        return feeds_of((source[index] for index in range(len(source))) if has_places else source, specs, options)

    if once:
        return Dataset("the samples given", specs, samples, len(source) if isinstance(source, (list, tuple)) else None)
    kept = list(samples())
    return Dataset("the samples given", specs, lambda: kept, len(kept))


def _open_function(
    function: Callable[..., Any], name: str, specs: tuple[TensorSpec, ...], options: Preprocessing
) -> Dataset:
    return Dataset(name, specs, lambda: feeds_of(samples_from(function, name), specs, options))


def _open_named(text: str, specs: tuple[TensorSpec, ...], options: Preprocessing) -> Dataset:
    path = Path(text)
    if "://" in text:
        raise BadInput(f"'{text}' is a URL, and URLs are not fetched.", "Download the data and give its path.")
    if path.suffix == ".py" and path.is_file():
        text = f"{text}:load_data"
    if raw_files(text) or (path.suffix in RAW and path.is_file()):
        return _stacked(next(inferences(path, 0, specs, "input")), specs, text)
    if not Path(text).exists() and ":" in text:
        return _open_function(load_function(text, "data set"), text, specs, options)
    if not path.exists():
        folder = f"Give the folder: {path.parent}" if "*" in path.name and path.parent.is_dir() else ""
        raise BadInput(f"The data set '{text}' does not exist.", folder or similar_file(path) or _KINDS)
    if path.is_dir() and (path / f"{WORST}.json").is_file():
        saved = path / f"{WORST}.npz"
        if not saved.is_file():
            saved = path / WORST
        return _open_named(str(saved), specs, options)
    if path.is_dir():
        return _open_folder(path, specs, options)
    if path.suffix.lower() in SUFFIXES:
        return _open_pictures(path, [path], specs, options)
    if path.suffix not in (".npz", ".npy", ".json"):
        kind = kind_of(path)
        if not kind or kind in DATA_KINDS:
            raise BadInput(f"The data set '{path}' is of an unknown kind ('{path.suffix}').", _KINDS)
        swapped = " The network comes first, and data after --calibration or --input." if path.suffix == ".onnx" else ""
        raise BadInput(f"The data set '{path}' is {kind}, not data.{swapped}", _KINDS)
    if path.suffix == ".json":
        samples = read_json(path, 0, specs, "input")
        return Dataset(text, specs, lambda: samples, len(samples))
    arrays = _read_arrays(path, specs)
    read = _of_inputs(arrays, specs)
    stacked, unread = _stacked(read, specs, text), [name for name in arrays if name not in read]
    note = f"{text} also holds {listed(unread, 3)}, which the network does not read"
    return replace(stacked, notes=(*stacked.notes, note)) if unread else stacked


def _open_folder(path: Path, specs: tuple[TensorSpec, ...], options: Preprocessing) -> Dataset:
    files = sorted(p for p in path.iterdir() if p.suffix in (".npz", ".npy"))
    if not files and any(path.glob("*.input.*.raw")):
        return _stacked(next(inferences(path, 0, specs, "input")), specs, str(path))
    pictures = image_files(path)
    if files and pictures:
        raise BadInput(
            f"The folder '{path}' mixes arrays ({len(files)}, such as '{files[0].name}') and pictures "
            f"({len(pictures)}, such as '{pictures[0].name}').",
            "Move one kind to another folder.",
        )
    if pictures:
        return _open_pictures(path, pictures, specs, options)
    if not files:
        raise BadInput(
            f"The folder '{path}' holds no .npz or .npy file and no picture.", "Put one file for each sample into it."
        )

    def samples() -> Iterator[Feeds]:
        for file in files:
            arrays = _of_inputs(_read_arrays(file, specs), specs)
            yield {name: with_batch_axis(array, _spec_of(name, specs, str(file))) for name, array in arrays.items()}

    return Dataset(str(path), specs, samples, len(files), names=tuple(map(str, files)))


def _open_pictures(path: Path, files: list[Path], specs: tuple[TensorSpec, ...], options: Preprocessing) -> Dataset:
    fed = picture_input(path, files, specs, options)
    count, left_out = divmod(len(files), fed.batch)
    notes = [f"the {len(files)} pictures of {path} are fed as {fed}"]
    if fed.batch > 1:
        notes.append(_together(str(path), fed.batch, "pictures"))
    if left_out:
        notes.append(f"the last {left_out} pictures of {path} are left out: they fill no batch")
    samples, names = partial(fed.samples, files), fed.names(files)
    return Dataset(str(path), specs, samples, count, notes=tuple(notes), pictures=str(fed), names=names)


def _read_arrays(path: Path, specs: tuple[TensorSpec, ...]) -> dict[str, np.ndarray]:
    try:
        if path.suffix == ".npz":
            return read_archive(path)
        return {_only_input(specs, f"'{path}'").name: read_array(path)}
    except zipfile.BadZipFile as error:
        problem = f"The data set '{path}' is truncated, or is not a .npz."
        raise BadInput(problem, "Copy or write the file again.") from error
    except DAMAGED as error:
        problem = f"The data set '{path}' cannot be read: {first_line(error)}"
        raise BadInput(problem, "Write it again with numpy.savez (arrays only, no pickled objects).") from error


def _of_inputs(arrays: dict[str, np.ndarray], specs: tuple[TensorSpec, ...]) -> dict[str, np.ndarray]:
    names = {spec.name for spec in specs}
    return {name: arrays[name] for name in arrays if name in names} if names <= arrays.keys() else arrays


def _stacked(arrays: Mapping[str, np.ndarray], specs: tuple[TensorSpec, ...], source: str) -> Dataset:
    plain = {name: as_array(array) for name, array in arrays.items()}
    split = {name: _split(array, _spec_of(name, specs, source), source) for name, array in plain.items()}
    counts = {name: len(samples) for name, samples in split.items()}
    if len(set(counts.values())) > 1:
        listing = ", ".join(f"'{name}' {count}" for name, count in sorted(counts.items()))
        problem = f"{source} holds different numbers of samples: {listing}."
        raise BadInput(problem, "Stack the same number of samples of every input on the first axis.")
    total = next(iter(counts.values()), 0)
    left_out = {name: array.size - sum(sample.size for sample in split[name]) for name, array in plain.items()}
    rows = {name: len(samples[0]) for name, samples in split.items() if samples and len(samples) < len(plain[name])}
    notes = tuple(_together(source, count, f"rows of '{name}'") for name, count in rows.items())
    notes += tuple(
        f"{source}: the last {counted(size * len(plain[name]) // plain[name].size, 'row')} of '{name}' left out: the "
        f"network takes {len(split[name][0])} at a time"
        for name, size in left_out.items()
        if size
    )
    return Dataset(
        source, specs, lambda: ({name: split[name][i] for name in split} for i in range(total)), total, notes=notes
    )


def _together(source: str, count: int, what: str) -> str:
    return f"{source}: the network takes {count} {what} at a time, which are one input: its figures are of all of them"


def _split(array: np.ndarray, spec: TensorSpec, source: str) -> list[np.ndarray]:
    if array.ndim == len(spec.shape) + 1:
        return list(array)
    batch = (spec.shape[0] if spec.shape else None) or 1
    if array.ndim != len(spec.shape) or array.ndim == 0:
        problem = f"{source}: '{spec.name}' has shape {list(array.shape)}."
        raise BadInput(problem, f"{shape_remedy(array.shape, spec)} The samples stand on the first axis.")
    if 0 < len(array) < batch:
        problem = f"{source}: '{spec.name}' holds {len(array)} rows, the network takes {batch} at a time."
        raise BadInput(problem, f"Give a multiple of {batch} rows.")
    return [array[i : i + batch] for i in range(0, len(array) - len(array) % batch, batch)]


def _spec_of(name: str, specs: tuple[TensorSpec, ...], source: str) -> TensorSpec:
    for spec in specs:
        if spec.name == name:
            return spec
    savez = ", ".join(f"{spec.name}=..." for spec in specs)
    if not all(spec.name.isidentifier() for spec in specs):
        savez = "**{" + ", ".join(f"'{spec.name}': ..." for spec in specs) + "}"
    problem = f"{source}: the network has no input '{name}'."
    raise BadInput(problem, f"Its inputs are {', '.join(map(str, specs))}. In a file: numpy.savez(FILE, {savez})")


def _only_input(specs: tuple[TensorSpec, ...], source: str) -> TensorSpec:
    if len(specs) == 1:
        return specs[0]
    remedy = f"Use a .npz with the arrays {', '.join(map(str, specs))}."
    raise BadInput(f"{source} names no inputs, and the network has {len(specs)}.", remedy)


def check_feeds(feeds: Mapping[str, np.ndarray], specs: tuple[TensorSpec, ...], where: str) -> Feeds:
    """Returns a sample in its inputs' dtypes; converts only floats to floats and integers to integers. ``where`` names
    the sample in messages.

    Raises:
        BadInput: an input is missing or unknown, a shape or dtype does not fit, or a value is NaN or infinite.
    """
    if not isinstance(feeds, Mapping):
        raise BadInput(f"{where} is a {type(feeds).__name__}.", "A sample is a dictionary: input name to array.")
    missing = [str(spec) for spec in specs if spec.name not in feeds]
    if missing:
        listing = ", ".join(f"'{name}'" for name in feeds) or "nothing"
        raise BadInput(f"{where} lacks {', '.join(missing)}.", f"It holds {listing}.")
    for name in feeds:
        _spec_of(name, specs, where)
    return {spec.name: _check_array(np.asarray(feeds[spec.name]), spec, where) for spec in specs}


def _check_array(array: np.ndarray, spec: TensorSpec, where: str) -> np.ndarray:
    if not shape_fits(array.shape, spec.shape):
        raise BadInput(f"{where}: '{spec.name}' has shape {list(array.shape)}.", shape_remedy(array.shape, spec))
    kinds = (array.dtype.kind, spec.dtype.kind)
    fits_kind = array.dtype == spec.dtype or all(k in "iu" for k in kinds) or kinds in (("f", "f"), ("U", "O"))
    if not fits_kind:
        raise BadInput(f"{where}: '{spec.name}' has dtype {array.dtype}.", dtype_remedy(array.dtype, spec))
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise BadInput(
            f"{where}: '{spec.name}' holds NaN or infinite values.", "Leave that sample out or correct its source."
        )
    if spec.dtype.kind in "iu" and array.size:
        least, largest, limits = array.min(), array.max(), np.iinfo(spec.dtype)
        if least < limits.min or largest > limits.max:
            raise BadInput(
                f"{where}: '{spec.name}' holds values from {least} to {largest}; {spec.dtype} has {limits.min} to "
                f"{limits.max}.",
                "Correct its source, or leave that sample out.",
            )
    with np.errstate(over="ignore"):
        return np.asarray(array, dtype=spec.dtype, order="C")


@dataclass(frozen=True)
class Holdout:
    """Calibration data, with its held-out samples.

    Attributes:
        whole: calibration data as the user named them.
        kept: samples that calibration and the search see.
        held_out: samples held out; None without any.
        named: the user named other data as held out, so ``kept`` is ``whole``.
    """

    whole: Dataset
    kept: Dataset
    held_out: Dataset | None
    named: bool = False

    def notes(self) -> list[str]:
        """Returns a sentence on the samples held out of the calibration data; empty if there are none, or the user
        named others.
        """
        if self.held_out is None or self.kept.length is None or self.held_out.length is None or self.named:
            return []
        count = self.kept.length + self.held_out.length
        copies = len(self.whole.digests) - count
        equal = f"{counted(copies, 'sample')} of {self.whole.source} left out, equal to others; " if copies else ""
        return [
            f"{equal}{self.held_out.length} of {count} samples of {self.whole.source} are held out: neither "
            "calibration nor the search sees them (--validation)"
        ]

    def without_held_out(self, data: Dataset) -> Dataset:
        """Returns ``data`` or, if they are the calibration data, the kept samples; raises BadInput for the validation
        data that the user named.
        """
        if self.held_out is None:
            return data
        if self.named and _is_same(data, self.held_out):
            raise BadInput(
                f"The validation data '{self.held_out.source}' is used for calibration or for the search too.",
                "Give --validation other data, or leave it out: then a share of the calibration data is held out.",
            )
        return data if self.named or not _is_same(data, self.whole) else self.kept


def _is_same(first: Dataset, second: Dataset) -> bool:
    may_be_same = None in (first.length, second.length) or first.length == second.length
    return may_be_same and first.digest() == second.digest()


def hold_out(data: Dataset, share: float, validation: Dataset | None) -> Holdout:
    """Returns the calibration ``data`` with held-out samples: a ``share`` of them, or the ``validation`` data if given;
    raises BadInput if both data are the same.
    """
    if validation is None:
        return Holdout(data, *split(data, share))
    held_out = Holdout(data, data, validation, named=True)
    held_out.without_held_out(data)
    return held_out


def split(dataset: Dataset, share: float) -> tuple[Dataset, Dataset | None]:
    """Splits a data set into kept and held-out samples; a ``share`` (0 to 0.9) of 0.2 holds out every fifth.

    Of equal samples only the first counts.

    Returns:
        The kept and the held-out samples; or the whole data set and None, if fewer than 20 samples differ or the share
        is too small.
    """
    fraction = Fraction(share).limit_denominator(_FINEST)
    if not fraction or (dataset.length is not None and dataset.length < FEWEST):
        return dataset, None
    first = {digest: position for position, digest in reversed([*enumerate(dataset.digests)])}
    different = sorted(first.values())
    held = {
        position for number, position in enumerate(different) if int((number + 1) * fraction) > int(number * fraction)
    }
    if len(different) < FEWEST or not held:
        return dataset, None
    kept = [position for position in different if position not in held]
    return _part(dataset, kept), _part(dataset, sorted(held))


def _part(dataset: Dataset, positions: Sequence[int]) -> Dataset:
    chosen = frozenset(positions)

    def samples() -> Iterator[Mapping[str, np.ndarray]]:
        return (sample for position, sample in enumerate(dataset.samples()) if position in chosen)

    return replace(
        dataset, samples=samples, length=len(positions), place=lambda number: dataset.place(positions[number])
    )
