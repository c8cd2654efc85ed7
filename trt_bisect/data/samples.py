"""Samples as people have them, such as dictionaries or tuples with a label, and remedies for those that do not fit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import permutations
from typing import Any

import numpy as np

from trt_bisect.data.feeds import TensorSpec
from trt_bisect.data.images import is_image, picture
from trt_bisect.data.preprocessing import Preprocessing

_CHANNELS = (1, 3, 4)


def feeds_of(samples: Iterable[Any], specs: tuple[TensorSpec, ...], pictures: Preprocessing) -> Iterator[Any]:
    """Makes feeds of samples.

    A sample is a dictionary by input name, of which other keys are left out; or, in the order of the inputs, an array,
    or a tuple or list of arrays, of which what follows the inputs (a label) is left out. Arrays are NumPy's, PyTorch's
    or others that NumPy reads, lists of numbers, or Pillow's images. A missing batch axis is added. Where the network
    has a fixed batch, larger batches are divided.

    Args:
        samples: samples in one of these forms.
        specs: the network's inputs.
        pictures: the way images become inputs.

    Yields:
        Arrays by input name; a sample of another form as it is, for the check to refuse.
    """
    for sample in samples:
        yield from _divided(_named(sample, specs, pictures), specs)


def _named(sample: Any, specs: tuple[TensorSpec, ...], pictures: Preprocessing) -> Any:
    if isinstance(sample, Mapping):
        known = {spec.name: spec for spec in specs}
        complete = set(known) <= set(sample)
        return {
            name: _array(value, known[name], pictures) if name in known else value
            for name, value in sample.items()
            if name in known or not complete
        }
    parts = _parts(sample)
    if parts is None:
        one = len(specs) == 1 and (_is_array(sample) or is_image(sample) or isinstance(sample, list))
        return {specs[0].name: _array(sample, specs[0], pictures)} if one else sample
    first = parts[0]
    if isinstance(first, Mapping) or _parts(first) is not None:
        return _named(first, specs, pictures)
    if len(parts) < len(specs):
        return sample
    return {spec.name: _array(part, spec, pictures) for spec, part in zip(specs, parts, strict=False)}


def _parts(sample: Any) -> Sequence[Any] | None:
    """The parts of a tuple, or of a list as PyTorch's data loader makes of tuples; None for another sample."""
    if isinstance(sample, tuple) and sample:
        return sample
    is_list = isinstance(sample, list) and sample
    if is_list and (_is_array(sample[0]) or is_image(sample[0]) or isinstance(sample[0], Mapping)):
        return sample  # type: ignore[no-any-return]
    return None


def _is_array(value: Any) -> bool:
    return hasattr(value, "__array__") and hasattr(value, "shape")


def _array(value: Any, spec: TensorSpec, pictures: Preprocessing) -> np.ndarray:
    if is_image(value):
        return picture(value, spec, pictures)
    return with_batch_axis(as_array(value), spec)


def as_array(value: Any) -> np.ndarray:
    """Returns an array, a tensor that has a gradient or is on a GPU, or a list, as an array."""
    for step in ("detach", "cpu"):
        value = getattr(value, step)() if hasattr(value, step) else value
    return np.asarray(value)


def with_batch_axis(array: np.ndarray, spec: TensorSpec) -> np.ndarray:
    """Returns ``array`` with a leading axis of size 1 if only that axis is missing."""
    lacks_batch = array.ndim + 1 == len(spec.shape) and spec.shape[0] in (1, None)
    return array[np.newaxis] if lacks_batch else array


def _divided(sample: Any, specs: tuple[TensorSpec, ...]) -> Iterator[Any]:
    """Yields a sample, or the samples of the network's fixed batch that a larger batch holds."""
    is_whole = isinstance(sample, Mapping) and all(isinstance(sample.get(spec.name), np.ndarray) for spec in specs)
    counts = {_batches(sample[spec.name], spec) for spec in specs} if is_whole else {1}
    count = counts.pop()
    if counts or count == 1:
        yield sample
        return
    parts = {spec.name: np.split(sample[spec.name], count) for spec in specs}
    for place in range(count):
        yield {name: rows[place] for name, rows in parts.items()}


def _batches(array: np.ndarray, spec: TensorSpec) -> int:
    """Returns the number of batches of an input in an array; 1 if that is no whole number."""
    fixed = spec.shape[0] if spec.shape else None
    fits = fixed and array.ndim == len(spec.shape) and len(array) and len(array) % fixed == 0
    return len(array) // fixed if fits and fixed else 1


def shape_remedy(shape: tuple[int, ...], spec: TensorSpec) -> str:
    """Returns what an input takes, and how an array of another shape becomes it, if that is clear."""
    takes = f"The network takes {spec}."
    missing = _missing_axis(shape, spec.shape) if len(shape) == len(spec.shape) - 1 else None
    if missing is not None:
        return f"{takes} An axis is missing: numpy.expand_dims(array, {missing})."
    if len(shape) != len(spec.shape):
        row = spec.shape[1:]
        if None in row or math.prod(shape[1:]) != math.prod(size or 0 for size in row):
            return takes
        return f"{takes} Give each sample its axes: array.reshape(-1, {', '.join(map(str, row))})."
    order = _transpose(shape, spec.shape)
    if order is not None:
        names = " from NHWC to NCHW" if order == (0, 3, 1, 2) else " from NCHW to NHWC" if order == (0, 2, 3, 1) else ""
        return f"{takes} Transpose the data{names}: array.transpose({', '.join(map(str, order))})."
    dynamic = [place for place, size in enumerate(spec.shape) if size is None]
    return f"{takes} A '?' may have any size; all others must be equal." if dynamic else takes


def _missing_axis(shape: tuple[int, ...], wanted: tuple[int | None, ...]) -> int | None:
    """The axis of size 1 that a shape lacks, whatever the batch is; None if it is not this."""
    any_batch = (None, *wanted[1:])
    places = (place for place, size in enumerate(wanted) if size in (1, None))
    return next((k for k in places if _fits(shape, any_batch[:k] + any_batch[k + 1 :])), None)


def _transpose(shape: tuple[int, ...], wanted: tuple[int | None, ...]) -> tuple[int, ...] | None:
    """The order of axes that makes a shape fit; None if there is none, or several that are not pictures' own."""
    fitting = [order for order in permutations(range(len(shape))) if _fits([shape[k] for k in order], wanted)]
    for usual in ((0, 3, 1, 2), (0, 2, 3, 1)):
        channel = usual[1] if usual == (0, 3, 1, 2) else 1
        if usual in fitting and shape[channel] in _CHANNELS:
            return usual
    return fitting[0] if len(fitting) == 1 else None


def _fits(shape: Any, wanted: tuple[int | None, ...]) -> bool:
    return len(shape) == len(wanted) and all(want in (None, have) for have, want in zip(shape, wanted, strict=True))


def dtype_remedy(dtype: np.dtype[Any], spec: TensorSpec) -> str:
    """Returns what an input takes, and the cast that makes an array of another dtype fit."""
    takes = f"The network takes {spec}."
    if dtype == np.uint8 and spec.dtype.kind == "f":
        return (
            f"{takes} Cast the pixels as in training: array.astype(np.float32) / 255 for a network that expects "
            "0 to 1, without the division for one that expects 0 to 255."
        )
    if dtype.kind in "iub" and spec.dtype.kind == "f":
        return f"{takes} Cast it: array.astype(np.{spec.dtype})."
    if dtype.kind == "f" and spec.dtype.kind in "iu":
        return f"{takes} Are these token ids or pixels? Cast them: array.astype(np.{spec.dtype})."
    return takes
