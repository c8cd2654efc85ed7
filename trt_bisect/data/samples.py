"""Samples as people have them: dictionaries, tuples with a label, tensors, pictures, batches of a data loader."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from trt_bisect.data.feeds import TensorSpec
from trt_bisect.data.images import is_image, picture
from trt_bisect.data.preprocessing import Preprocessing


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
    counts = {_batches(sample[spec.name], spec) for spec in specs} if _is_whole(sample, specs) else {1}
    count = counts.pop()
    if counts or count == 1:
        yield sample
        return
    for place in range(count):
        yield {spec.name: _part(sample[spec.name], place, count) for spec in specs}


def _is_whole(sample: Any, specs: tuple[TensorSpec, ...]) -> bool:
    return isinstance(sample, Mapping) and all(isinstance(sample.get(spec.name), np.ndarray) for spec in specs)


def _batches(array: np.ndarray, spec: TensorSpec) -> int:
    """Returns the number of batches of an input in an array; 1 if that is no whole number."""
    fixed = spec.shape[0] if spec.shape else None
    fits = fixed and array.ndim == len(spec.shape) and len(array) and len(array) % fixed == 0
    return len(array) // fixed if fits and fixed else 1


def _part(array: np.ndarray, place: int, count: int) -> np.ndarray:
    rows = len(array) // count
    return array[place * rows : (place + 1) * rows]
