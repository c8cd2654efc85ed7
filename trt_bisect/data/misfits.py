"""Remedies for an array that does not fit a network's input: the transpose, the cast, the missing axis."""

from __future__ import annotations

import math
from itertools import permutations
from typing import Any

import numpy as np

from trt_bisect.data.feeds import TensorSpec

_CHANNELS = (1, 3, 4)


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
