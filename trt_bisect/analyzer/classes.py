"""The axis of an output that holds its classes, for the metrics ``kl`` and ``top1``, decided from FP32's outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from trt_bisect.builder.base import Outputs
from trt_bisect.errors import BadInput

SHARES, OWN, LOGITS = "shares", "own", "logits"
"""What FP32's values are: probabilities that sum to 1 along the axis; each a probability of its own, as a sigmoid gives
them; anything else, which a softmax makes probabilities."""
OF_CLASSES = ("kl", "top1")
"""The metrics that need classes."""
_SUM_TOLERANCE = 1e-2
_LEAST = 1e-12


@dataclass(frozen=True)
class Classes:
    """How an output holds classes.

    Attributes:
        axis: from 0; None where it cannot be told.
        kind: ``SHARES``, ``OWN`` or ``LOGITS``.
        guessed: the axis was taken from the shape, and others are longer than 1 too.
    """

    axis: int | None
    kind: str
    guessed: bool = False

    def serves(self, metric: str) -> bool:
        """Whether a metric can be measured: one that is not of classes, or that has what it needs."""
        return metric not in OF_CLASSES or self.axis is not None or (metric == "kl" and self.kind == OWN)

    def rows(self, array: np.ndarray) -> np.ndarray:
        """``[rows, classes]`` of an array of any shape that has the axis."""
        assert self.axis is not None
        moved = np.moveaxis(np.atleast_1d(array), self.axis, -1)
        return moved.reshape(-1, moved.shape[-1])

    def predicted(self, output: np.ndarray) -> np.ndarray:
        """The class of each row of an output, int64 ``[rows]``; a value that is NaN is never the largest."""
        rows = self.rows(np.where(np.isnan(output), -np.inf, output))
        return np.asarray(rows.argmax(axis=-1) if rows.shape[-1] > 1 else rows[:, 0] > self.middle, np.int64)

    @property
    def middle(self) -> float:
        """Where a single value stands between two classes."""
        return 0.0 if self.kind == LOGITS else 0.5


def top1(reference: np.ndarray, output: np.ndarray, classes: Classes) -> float:
    """The share of rows with the same class: the place of the largest value; of a single value, its side of the middle.

    Args:
        reference: float64, of the output's shape. Places where it is not finite belong to no class; a row of such is
            left out.
        output: likewise.
        classes: how they hold classes.
    """
    finite = np.isfinite(reference)
    if finite.all():
        return float(np.mean(classes.predicted(reference) == classes.predicted(output)))
    kept = classes.rows(finite).any(axis=-1)
    both = [classes.predicted(np.where(finite, array, -np.inf))[kept] for array in (reference, output)]
    return float(np.mean(both[0] == both[1]))


class Divergence:
    """KL(reference || output) in nats of outputs from FP32's values for one input, the mean over rows.

    Both are made probabilities in the same way: ``SHARES`` are divided by their sum, as ``scipy.stats.entropy`` does;
    ``LOGITS`` go through a softmax. Of ``OWN`` each value p is a row (p, 1 - p) by itself, and so is the sigmoid of
    each of ``LOGITS`` where there is one class. A probability of the output below 1e-12 counts as that.
    """

    def __init__(self, reference: np.ndarray, classes: Classes) -> None:
        """Gets ready.

        Args:
            reference: float64, one or more values. Where it is not finite there is no class; a row of such is left out.
            classes: how it holds classes.
        """
        self._classes = classes
        self._finite = np.isfinite(reference)
        self._whole = bool(self._finite.all())
        single = classes.kind == LOGITS and np.atleast_1d(reference).shape[classes.axis or 0] == 1
        self._each = classes.kind == OWN or single
        self._reference = self._made(reference)
        self._rows = self._reference[0].size if self._each else len(self._reference[0])
        self._best = self._likelihood(self._reference)

    def of(self, output: np.ndarray) -> float:
        """The KL of an output, float64 of the reference's shape; exactly 0 where they are equal."""
        return max(0.0, (self._best - self._likelihood(self._made(output))) / self._rows)

    def _likelihood(self, made: Sequence[np.ndarray]) -> float:
        both = zip(self._reference, made, strict=True)
        return sum(float(np.sum(p * np.log(np.maximum(q, _LEAST)))) for p, q in both)

    def _made(self, values: np.ndarray) -> Sequence[np.ndarray]:
        classes = self._classes
        if self._each:
            values = values if self._whole else values[self._finite]
            p = np.clip(values, 0.0, 1.0) if classes.kind == OWN else _sigmoid(values)
            return p, 1.0 - p
        rows = classes.rows(values if self._whole else np.where(self._finite, values, -np.inf))
        if not self._whole:
            rows = rows[classes.rows(self._finite).any(axis=-1)]
        return (_shares(rows) if classes.kind == SHARES else _softmax(rows),)


def kl(reference: np.ndarray, output: np.ndarray, classes: Classes) -> float:
    """What ``Divergence`` gives."""
    return Divergence(reference, classes).of(output)


def _kl_of_rows(reference: np.ndarray, output: np.ndarray, make: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    return np.asarray(np.sum(_relative_entropy(make(reference), make(output)), axis=-1))


def _kl_of_values(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """KL of rows (1 - p, p) and (1 - q, q); what is outside of 0..1 counts as the nearer end."""
    p, q = np.clip(p, 0.0, 1.0), np.clip(q, 0.0, 1.0)
    return np.asarray(_relative_entropy(p, q) + _relative_entropy(1.0 - p, 1.0 - q))


def _sigmoid(values: np.ndarray) -> np.ndarray:
    return np.asarray(0.5 + 0.5 * np.tanh(0.5 * values))


def _relative_entropy(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """p log(p / q) of each value; a q below 1e-12 counts as that."""
    tiny = np.finfo(np.float64).tiny
    return np.asarray(p * (np.log(np.maximum(p, tiny)) - np.log(np.maximum(q, _LEAST))))


def find_classes(reference: Sequence[np.ndarray], axis: int | None = None) -> Classes:
    """How an output holds classes.

    The first that fits: the axis given; the only axis along which FP32's values are probabilities that sum to 1
    (within 0.01), or logarithms of such; the only axis longer than 1; axis 1 of four, as convolutions write images
    ``[N, C, H, W]``, unless the sizes look like ``[N, H, W, C]``. Axis 0 counts only where it is the only one.

    Args:
        reference: FP32's output for each input.
        axis: given by the user, counted from either end; it must exist.
    """
    arrays = [np.atleast_1d(np.asarray(array, np.float64)) for array in reference]
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
    """KL of each row, in nats; whether it goes through a softmax first, in both, its reference decides.

    Args:
        reference: float64 ``[rows, values]``; a row of probabilities that sum to 1 is taken as it is. A single value
            is a probability where it lies in 0..1, else the logit of one.
        output: likewise.
    """
    if reference.shape[-1] == 1:
        own = (reference >= 0.0) & (reference <= 1.0)
        p, q = (np.where(own, values, _sigmoid(values)) for values in (reference, output))
        return _kl_of_values(p, q)[..., 0]
    sums = (reference >= 0.0).all(axis=-1) & (np.abs(reference.sum(axis=-1) - 1.0) <= _SUM_TOLERANCE)
    if sums.all() or not sums.any():
        make = _shares if sums.all() else _softmax
        return _kl_of_rows(reference, output, make)
    found = np.empty(len(reference))
    for make, rows in ((_shares, sums), (_softmax, ~sums)):
        found[rows] = _kl_of_rows(reference[rows], output[rows], make)
    return found


def classes_of(
    reference: Sequence[Outputs], judged: Iterable[str], metric: str, axis: int | None = None
) -> tuple[dict[str, Classes], list[str]]:
    """How each output that holds numbers holds classes, and what is to be said of it.

    Args:
        reference: FP32's outputs for each input.
        judged: the outputs that count; the axis given has to fit each of them.
        metric: the one that decides.
        axis: given by the user.

    Raises:
        BadInput: an output that counts has no such axis, or the metric needs one and none can be told.
    """
    found: dict[str, Classes] = {}
    notes = []
    wanted = set(judged)
    for name, value in reference[0].items():
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiub":
            continue
        rank = max(value.ndim, 1)
        fits = axis is not None and -rank <= axis < rank
        if name in wanted and axis is not None and not fits:
            raise BadInput(
                f"Output '{name}' of shape {list(value.shape)} has no axis {axis} for its classes.",
                f"Give --class-axis from {-rank} to {rank - 1}, or --outputs with the outputs that have that axis.",
            )
        classes = find_classes([each[name] for each in reference], axis if fits else None)
        found[name] = classes
        if name not in wanted:
            continue
        if not classes.serves(metric):
            raise BadInput(
                f"Which axis of output '{name}', of shape {list(value.shape)}, holds its classes cannot be told.",
                f"Give --class-axis, which '{metric}' needs, or another --metric.",
            )
        if classes.guessed and (metric == "top1" or (metric == "kl" and classes.kind != OWN)):
            notes.append(
                f"the classes of output '{name}', of shape {list(value.shape)}, are taken to lie along axis "
                f"{classes.axis}; --class-axis says otherwise"
            )
    return found, notes


def _softmax(rows: np.ndarray) -> np.ndarray:
    powers = np.exp(rows - rows.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def _shares(rows: np.ndarray) -> np.ndarray:
    """Rows divided by their sums; what is below 0 counts as 0, and rows of zeros stay."""
    positive = np.maximum(rows, 0.0)
    sums = positive.sum(axis=-1, keepdims=True)
    return np.asarray(positive / np.where(sums > 0.0, sums, 1.0))


def _kind(arrays: Sequence[np.ndarray], axis: int | None) -> str:
    """What the values are; ``SHARES`` along ``axis`` alone."""
    if axis is not None and all(_sums_to_one(array, axis) for array in arrays):
        return SHARES
    finite = [array[np.isfinite(array)] for array in arrays]
    return OWN if all(((values >= 0.0) & (values <= 1.0)).all() for values in finite) else LOGITS


def _sums_to_one(array: np.ndarray, axis: int) -> bool:
    return bool((array >= 0.0).all()) and np.allclose(array.sum(axis=axis), 1.0, rtol=0.0, atol=_SUM_TOLERANCE)


def _logarithms_sum_to_one(array: np.ndarray, axis: int) -> bool:
    return bool((array <= _SUM_TOLERANCE).all()) and _sums_to_one(np.exp(array), axis)


def _looks_channels_first(one: int, two: int, three: int, *, own: bool) -> bool:
    """Whether sizes behind the batch are those of ``[C, H, W]``: an image is as wide as high, or C is not between.

    A single channel of an image that is not square is known by its probabilities alone: it could be ``[1, T, C]``.
    """
    if two == three:
        return True
    return own if one == 1 else one != two and three >= min(one, two)
