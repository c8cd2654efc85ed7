"""The class axis of an output, for the metrics ``kl`` and ``top1``, found from the FP32 outputs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from trt_bisect.builder.base import Outputs
from trt_bisect.errors import BadInput
from trt_bisect.support.memory import parts

SHARES, OWN, LOGITS = "shares", "own", "logits"
OF_CLASSES = ("kl", "top1")
LEAST_SCORE = 0.05
"""An output whose scores all stay below this predicts nothing."""
_SURE = 3.0
_SUM_TOLERANCE = 1e-2
_LEAST_PROBABILITY = 1e-12


@dataclass(frozen=True)
class Classes:
    """The classes of an output.

    Attributes:
        axis: the class axis, from 0; None if unknown.
        kind: ``SHARES`` (probabilities that sum to 1 along the axis), ``OWN`` (independent probabilities, as of a
            sigmoid) or ``LOGITS``.
        guessed: true if the axis was chosen among several by the shape alone.
    """

    axis: int | None
    kind: str
    guessed: bool = False

    def serves(self, metric: str) -> bool:
        """Returns true if a metric can be measured: it needs no class axis, or the axis is known."""
        return metric not in OF_CLASSES or self.axis is not None or (metric == "kl" and self.kind == OWN)

    def rows(self, array: np.ndarray) -> np.ndarray:
        """Returns an output as ``[rows, classes]``, with the class axis last."""
        assert self.axis is not None
        moved = np.moveaxis(np.atleast_1d(array), self.axis, -1)
        return moved.reshape(math.prod(moved.shape[:-1]), moved.shape[-1])

    def predicted(self, output: np.ndarray) -> np.ndarray:
        """Returns the class of each row, int64 ``[rows]``: the index of its largest value, NaN ignored. A row of one
        value has class 1 if the value is above ``middle``, else 0.
        """
        rows = self.rows(np.where(np.isnan(output), -np.inf, output))
        return np.asarray(rows.argmax(axis=-1) if rows.shape[-1] > 1 else rows[:, 0] > self.middle, np.int64)

    def sure(self, output: np.ndarray) -> np.ndarray:
        """Returns bool ``[rows]``, true where the class is certain; all false if a value is not finite.

        A certain class is three times as probable as the next and, unless values are logits, at least 0.5 probable.
        """
        rows = self.rows(output)
        if not rows.size or not np.isfinite(rows).all():
            return np.zeros(len(rows), bool)
        if rows.shape[-1] == 1:
            value = rows[:, 0]
            other = 0.0 * value if self.kind == LOGITS else 1.0 - value
            first, second = np.maximum(value, other), np.minimum(value, other)
        else:
            second, first = np.partition(rows, -2, axis=-1)[:, -2:].T
        if self.kind == LOGITS:
            return np.asarray(first - second >= math.log(_SURE))
        return np.asarray((first >= _SURE * second) & (first >= 0.5))

    @property
    def middle(self) -> float:
        """The value above which a row of one value has class 1: 0.5, of logits 0."""
        return 0.0 if self.kind == LOGITS else 0.5


def top1(reference: np.ndarray, output: np.ndarray, classes: Classes) -> float:
    """Returns the share of rows that have the same class in both arrays.

    Classes are those of ``classes.predicted``. Where the reference is not finite, both arrays are ignored; rows without
    a finite reference do not count.
    """
    finite = np.isfinite(reference)
    if finite.all():
        return float(np.mean(classes.predicted(reference) == classes.predicted(output)))
    kept = classes.rows(finite).any(axis=-1)
    predicted = [classes.predicted(np.where(finite, array, -np.inf))[kept] for array in (reference, output)]
    return float(np.mean(predicted[0] == predicted[1]))


class Divergence:
    """KL(reference || output) in nats for one input, the mean over rows.

    Probabilities of sum 1 are divided by their sum; logits go through a softmax; each independent probability p, and
    the sigmoid p of a single logit, is a row (p, 1 - p).

    Args:
        finite: true where the reference is finite; other values, and rows without finite values, do not count.
        keeps: true to keep the reference's probabilities in memory.
    """

    def __init__(self, reference: np.ndarray, finite: np.ndarray, classes: Classes, *, keeps: bool) -> None:
        self._classes = classes
        self._finite = finite
        self._whole = bool(finite.all())
        single = classes.kind == LOGITS and np.atleast_1d(reference).shape[classes.axis or 0] == 1
        self._each = classes.kind == OWN or single
        self._reference = self._laid_out(reference)
        self._kept = list(self._prepared()) if keeps else None

    def of(self, output: np.ndarray) -> float:
        """Returns the KL of an output; exactly 0 for equal values."""
        total = 0.0
        for (p, best), part in zip(self._kept or self._prepared(), self._parts(self._laid_out(output)), strict=True):
            total += best - _likelihood(p, self._made(part))
        return max(0.0, total / len(self._reference))

    def _prepared(self) -> Iterator[tuple[Sequence[np.ndarray], float]]:
        for part in self._parts(self._reference):
            p = self._made(part)
            yield p, _likelihood(p, p)

    def _laid_out(self, values: np.ndarray) -> np.ndarray:
        classes = self._classes
        if self._each:
            return (values if self._whole else values[self._finite]).reshape(-1)
        rows = classes.rows(values if self._whole else np.where(self._finite, values, -np.inf))
        return rows if self._whole else rows[classes.rows(self._finite).any(axis=-1)]

    def _parts(self, laid_out: np.ndarray) -> Iterator[np.ndarray]:
        length = 1 if self._each else max(laid_out.shape[-1], 1)
        for part in parts(laid_out.size, length):
            yield np.asarray(laid_out[part.start // length : part.stop // length], np.float64)

    def _made(self, values: np.ndarray) -> Sequence[np.ndarray]:
        if self._each:
            p = np.clip(values, 0.0, 1.0) if self._classes.kind == OWN else sigmoid(values)
            return p, 1.0 - p
        return (_shares(values) if self._classes.kind == SHARES else softmax(values),)


def _likelihood(reference: Sequence[np.ndarray], output: Sequence[np.ndarray]) -> float:
    both = zip(reference, output, strict=True)
    return sum(float(np.sum(p * np.log(np.maximum(q, _LEAST_PROBABILITY)))) for p, q in both)


def sigmoid(values: np.ndarray) -> np.ndarray:
    """Returns 1 / (1 + exp(-x)) without overflow."""
    return np.asarray(0.5 + 0.5 * np.tanh(0.5 * values))


def find_classes(reference: Sequence[np.ndarray], axis: int | None = None) -> Classes:
    """Finds the classes of an output from ``reference``, its FP32 array for each input. The class axis is the first of
    these that exists, else unknown:

    1. the user's ``axis``, which may be negative;
    2. the only axis along which FP32's values are probabilities that sum to 1 (within 0.01), or their logarithms; if
       there are several such axes, the class axis is unknown;
    3. the only axis longer than 1;
    4. axis 1 of an array with four axes, as of images ``[N, C, H, W]``, unless the sizes look like ``[N, H, W, C]``.

    Axis 0 counts only if it is the only axis.
    """
    arrays = [np.atleast_1d(np.asarray(array)) for array in reference]
    rank = arrays[0].ndim
    if any(array.ndim != rank for array in arrays):
        return Classes(None, _kind(arrays, None))
    longest = np.max([array.shape for array in arrays], axis=0)
    long = [k for k in range(min(1, rank - 1), rank) if longest[k] > 1]
    if axis is not None:
        axis %= rank
        return Classes(axis, _kind(arrays, axis if longest[axis] > 1 else None))
    for sums in (_sums_to_one, _logarithms_sum_to_one):
        fitting = [k for k in long if all(sums(array, k) for array in arrays)]
        if fitting:
            only = fitting[0] if len(fitting) == 1 else None
            return Classes(only, LOGITS if sums is _logarithms_sum_to_one or only is None else SHARES)
    kind = _kind(arrays, None)
    if len(long) < 2:
        return Classes(long[0] if long else rank - 1, kind)
    is_image = rank == 4 and _looks_channels_first(*longest[1:], own=kind == OWN)
    return Classes(1 if is_image else None, kind, guessed=is_image)


def kl_of_any_rows(reference: np.ndarray, output: np.ndarray) -> np.ndarray:
    """Returns KL(reference || output) in nats for each row of float64 ``[rows, values]``, as float64 ``[rows]``.

    Rows that are not probabilities with sum 1 go through a softmax. A row of one value is a probability in 0..1, else a
    logit.
    """
    if reference.shape[-1] == 1:
        is_share = (reference >= 0.0) & (reference <= 1.0)
        ones = (np.where(is_share, np.clip(values, 0.0, 1.0), sigmoid(values)) for values in (reference, output))
        p, q = (np.concatenate([share, 1.0 - share], axis=-1) for share in ones)
    else:
        shares = (reference >= 0.0).all(axis=-1) & (np.abs(reference.sum(axis=-1) - 1.0) <= _SUM_TOLERANCE)
        p, q = (softmax(values) if not shares.all() else _shares(values) for values in (reference, output))
        if shares.any() and not shares.all():
            p[shares], q[shares] = _shares(reference[shares]), _shares(output[shares])
    logarithms = np.log(np.maximum(p, np.finfo(np.float64).tiny)) - np.log(np.maximum(q, _LEAST_PROBABILITY))
    return np.asarray(np.sum(p * logarithms, axis=-1))


def classes_of(
    reference: Sequence[Outputs], judged: Iterable[str], metric: str, axis: int | None = None
) -> tuple[dict[str, Classes], list[str]]:
    """Returns the classes of each numeric output, by name; and notes on judged outputs whose class axis is guessed.

    ``reference`` has FP32's outputs by input, ``judged`` are names of outputs; ``axis`` is the user's class axis, None
    to find one.

    Raises:
        BadInput: a judged output lacks ``axis``, or the metric needs an unknown axis.
    """
    classes: dict[str, Classes] = {}
    notes = []
    counting = set(judged)
    for name, value in reference[0].items():
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiub":
            continue
        rank = max(value.ndim, 1)
        fits = axis is not None and -rank <= axis < rank
        if name in counting and axis is not None and not fits:
            raise BadInput(
                f"Output '{name}' of shape {list(value.shape)} has no axis {axis} for its classes.",
                f"Give --class-axis from {-rank} to {rank - 1}, or --outputs with the outputs that have that axis.",
            )
        classes[name] = find_classes([outputs[name] for outputs in reference], axis if fits else None)
        if name in counting and not classes[name].serves(metric):
            raise BadInput(
                f"The class axis of output '{name}', of shape {list(value.shape)}, is not clear.",
                f"Give --class-axis, which '{metric}' needs, --outputs with outputs of classes, or another --metric.",
            )
        needs_axis = metric == "top1" or (metric == "kl" and classes[name].kind != OWN)
        if name in counting and classes[name].guessed and needs_axis:
            assumed = f"is assumed to be axis {classes[name].axis}; --class-axis sets another"
            notes.append(f"the class axis of output '{name}', of shape {list(value.shape)}, {assumed}")
    return classes, notes


def softmax(rows: np.ndarray) -> np.ndarray:
    """Returns the softmax along the last axis."""
    powers = np.exp(rows - rows.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def _shares(rows: np.ndarray) -> np.ndarray:
    positive = np.maximum(rows, 0.0)
    sums = positive.sum(axis=-1, keepdims=True)
    return np.asarray(positive / np.where(sums > 0.0, sums, 1.0))


def _kind(arrays: Sequence[np.ndarray], axis: int | None) -> str:
    if axis is not None and all(_sums_to_one(array, axis) for array in arrays):
        return SHARES
    finite = [array[np.isfinite(array)] for array in arrays]
    if all(((values >= 0.0) & (values <= 1.0)).all() for values in finite):
        return OWN
    return LOGITS


def _sums_to_one(array: np.ndarray, axis: int) -> bool:
    return bool((array >= 0.0).all()) and np.allclose(
        array.sum(axis=axis, dtype=np.float64), 1.0, rtol=0.0, atol=_SUM_TOLERANCE
    )


def _logarithms_sum_to_one(array: np.ndarray, axis: int) -> bool:
    return bool((array <= _SUM_TOLERANCE).all()) and _sums_to_one(np.exp(array), axis)


def _looks_channels_first(first: int, second: int, third: int, *, own: bool) -> bool:
    if second == third:
        return True
    # A first size of 1 could also be [1, T, C].
    return own if first == 1 else first != second and third >= min(first, second)
