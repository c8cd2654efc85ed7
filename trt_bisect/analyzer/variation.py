"""Variation: the part of a float output that depends on the input.

An output that is a large constant plus a small varying part has a cosine near 1 even if all that varies is lost. So the
varying parts, each output minus its mean over all inputs, are compared too (``docs/concepts/metrics.md``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from trt_bisect.analyzer.classes import LEAST_SCORE
from trt_bisect.data.feeds import Feeds
from trt_bisect.evaluator.trial import OutputFigures
from trt_bisect.support.memory import parts

VARIATION = "variation"
"""The key of ``OutputFigures.pooled`` for variation: the share that is lost, times the number of inputs; and that
number.
"""
LEFT, INPUTS = "variation_left", "variation_inputs"
"""The names of two figures: the share of FP32's variation that is left, and the number of inputs."""
VARIATION_MISSED = 0.75
"""Losing more than this share of the variation is a miss."""
# Variation is a doubt if a smaller share is left than the first, and noted in the verdict below the second.
_DOUBTED, _NOTED = 0.7**2, 0.9**2
FEWEST_INPUTS = 4
_LEAST_BETWEEN = 0.1  # Inputs are nearly equal if no tensor has this share of its variance between inputs.
_NOISE_POWER = 1e-10  # If a smaller share of an output's power varies, it is float noise.
_SMALL_POWER = 0.02  # If a smaller share of an output's power varies, all variation can be lost at a cosine of 99 %.
_FEW_NUMBERS = 8  # With fewer numbers, the varying part has no direction on a single input.
_LEAST_POWER = 1e-6  # An input whose varying part has less than this share of the median power is not judged alone.
# The longest axis whose columns are judged; the least share of the axis's mean variance, and the fewest numbers over
# all inputs, of a judged column; and the correlation below which a column is lost.
_LONGEST_AXIS, _COLUMN_WEIGHT, _COLUMN_NUMBERS, _LEAST_COLUMN = 1000, 0.1, 64, 0.5
_MOST_COLUMNS = 8
_SHORT_VECTOR = 16  # A vector of fewer numbers may hold quantities of different units, such as an angle and an area.
_HELD = 1 << 21  # The most numbers in memory at a time, of all inputs together.


# Sums of v^2, w^2 and v w by input [3, inputs], and by axis for each index [3, indices]; then the sum of squares, the
# least and the largest of FP32's values.
_Sums = tuple[np.ndarray, Mapping[int, np.ndarray], float, float, float]


def inputs_vary(samples: Iterable[Feeds]) -> bool:
    """Returns true unless the inputs are nearly equal and of one shape."""
    tensors: dict[str, list[np.ndarray]] = {}
    for feeds in samples:
        for name, array in feeds.items():
            tensors.setdefault(name, []).append(array)
    # The tensor with the largest share of its variance between inputs decides.
    return any(_between(arrays) >= _LEAST_BETWEEN for arrays in tensors.values() if len(arrays) > 1)


def _between(arrays: Sequence[np.ndarray]) -> float:
    first = arrays[0]
    if any(array.shape != first.shape for array in arrays):
        return 1.0
    if first.dtype.kind != "f":
        # Of integers: the share of numbers that differ from the first input's.
        if first.size:
            return float(np.mean([np.mean(array != first) for array in arrays]))
        return 0.0
    sums, squares = np.zeros(first.shape), 0.0
    for array in arrays:
        values = np.asarray(array, np.float64)
        sums += values
        squares += float(np.sum(values * values))
    total = squares - float(np.sum(sums)) ** 2 / max(len(arrays) * first.size, 1)
    within = squares - float(np.sum(sums * sums)) / len(arrays)
    return within / total if total > 0.0 else 0.0


def with_variation(
    figures: OutputFigures, reference: Sequence[np.ndarray], outputs: Sequence[np.ndarray], *, unlike: bool
) -> OutputFigures:
    """Returns the figures of an output together with those of its varying part, compared with FP32's ``reference``,
    both by input.

    Outputs of unequal shapes, values not finite, float noise and scores below 0.05 are not judged. With fewer than four
    inputs, or nearly equal ones (``unlike`` false), only an output that is the same on all inputs is judged; others get
    a note that says so, if the metric would not show the loss of variation.
    """
    inputs, first = len(reference), reference[0]
    shapes = {array.shape for array in (*reference, *outputs)}
    if inputs < 2 or len(shapes) > 1 or not first.size or first.dtype.kind != "f":
        return figures
    sums = _sums(reference, outputs)
    if sums is None:
        return figures
    (v, w, product), by_place, power, least, largest = sums
    varies = float(v.sum()) / power if power else 0.0
    if (least >= 0.0 and largest < LEAST_SCORE) or varies < _NOISE_POWER:
        return figures
    reason = ""
    if inputs < FEWEST_INPUTS:
        reason = f"{inputs} inputs are too few to tell if it still depends on the input (give {FEWEST_INPUTS} or more)"
    elif not unlike:
        reason = "the inputs are nearly equal: this cannot tell if it still depends on the input"
    if reason and all(np.array_equal(output, outputs[0]) for output in outputs):
        return replace(figures, values={**figures.values, LEFT: 0.0, INPUTS: float(inputs)})
    if reason:
        notes = [figures.note, reason if varies < _SMALL_POWER else ""]
        return replace(figures, note="; ".join(filter(None, notes)))
    left = max(0.0, float(_correlation(v.sum(), w.sum(), product.sum()))) ** 2
    lost: tuple[float | None, ...] = (1.0 - left,) * inputs
    columns: list[tuple[int, int]] = []
    if first.size >= _FEW_NUMBERS:
        each = np.maximum(_correlation(v, w, product), 0.0)
        telling = v > _LEAST_POWER * np.median(v)
        left = min(left, float(np.median(each[telling])) ** 2)
        lost = tuple(1.0 - float(kept) if tells else None for kept, tells in zip(each**2, telling, strict=True))
        columns = _lost_columns(by_place, inputs * first.size)
    columns += [column for column in _constant_places(reference, outputs) if column not in columns]
    return replace(
        figures,
        values={**figures.values, LEFT: left, INPUTS: float(inputs)},
        inputs={**figures.inputs, VARIATION: lost},
        pooled={**figures.pooled, VARIATION: ((1.0 - left) * inputs, float(inputs))},
        columns=tuple(columns),
    )


def _sums(reference: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> _Sums | None:
    shape, size, inputs = reference[0].shape, reference[0].size, len(reference)
    axes = [axis for axis in range(1, len(shape)) if 1 < shape[axis] <= _LONGEST_AXIS]
    strides = {axis: int(np.prod(shape[axis + 1 :])) for axis in axes}
    by_input, by_place = np.zeros((3, inputs)), {axis: np.zeros((3, shape[axis])) for axis in axes}
    power, least, largest = 0.0, np.inf, -np.inf
    for part in parts(size, most=max(_HELD // inputs, 1)):
        r, o = (np.stack([_values(array, part) for array in arrays]) for arrays in (reference, outputs))
        if not (np.isfinite(r).all() and np.isfinite(o).all()):
            return None
        power += float(np.sum(r * r))
        least, largest = min(least, float(r.min())), max(largest, float(r.max()))
        v, w = r - r.mean(axis=0), o - o.mean(axis=0)
        numbers = np.arange(part.start, part.start + r.shape[1])
        for k, product in enumerate((v * v, w * w, v * w)):
            by_input[k] += product.sum(axis=1)
            over_inputs = product.sum(axis=0)
            for axis in axes:
                places = numbers // strides[axis] % shape[axis]
                by_place[axis][k] += np.bincount(places, over_inputs, shape[axis])
    return by_input, by_place, power, least, largest


def _values(array: np.ndarray, part: slice) -> np.ndarray:
    flat = array.reshape(-1) if array.flags.c_contiguous else array.flat
    return np.asarray(flat[part], np.float64)


def _correlation(v: np.ndarray, w: np.ndarray, product: np.ndarray) -> np.ndarray:
    norms = np.sqrt(v) * np.sqrt(w)
    return np.asarray(np.divide(product, norms, out=np.zeros_like(norms), where=norms > 0.0))


def _lost_columns(by_place: Mapping[int, np.ndarray], numbers: int) -> list[tuple[int, int]]:
    lost: list[tuple[int, int]] = []
    for axis, (v, w, product) in by_place.items():
        if numbers // len(v) < _COLUMN_NUMBERS:
            continue
        found = (v >= _COLUMN_WEIGHT * v.mean()) & (_correlation(v, w, product) < _LEAST_COLUMN)
        lost += [(axis, int(place)) for place in np.flatnonzero(found)]
    return lost[:_MOST_COLUMNS]


def _constant_places(reference: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> list[tuple[int, int]]:
    # the places of a short vector that are the same on all inputs, and not in FP32
    long_axes = [axis for axis, size in enumerate(reference[0].shape) if axis and size > 1]
    if len(long_axes) != 1 or reference[0].shape[long_axes[0]] >= _SHORT_VECTOR:
        return []
    axis = long_axes[0]
    varies = []
    for arrays in (reference, outputs):
        rows = np.concatenate([np.moveaxis(array, axis, -1).reshape(-1, array.shape[axis]) for array in arrays])
        rows = rows.astype(np.float64)
        varies.append(np.ptp(rows, axis=0) ** 2 > _NOISE_POWER * np.square(rows).max(axis=0))
    in_fp32, after = varies
    return [(axis, int(place)) for place in np.flatnonzero(in_fp32 & ~after)]


def variation_text(name: str, values: Mapping[str, float | None]) -> str:
    """Returns a clause on the share of FP32's variation over the inputs that is left in output ``name``, whose figures
    are ``values``; empty from 81 % on, or if not measured.
    """
    left, inputs = values.get(LEFT), values.get(INPUTS)
    if left is None or inputs is None or left >= _NOTED:
        return ""
    return f"only {left:.0%} of FP32's variation over {inputs:.0f} inputs is left in '{name}'"


def variation_doubted(name: str, figures: OutputFigures) -> str:
    """Returns a sentence if so little of FP32's variation is left in output ``name`` or its columns that a pass is
    doubtful; else empty.
    """
    left = figures.values.get(LEFT)
    if left is not None and left < _DOUBTED:
        text = variation_text(name, figures.values)
        return f"{text[0].upper()}{text[1:]}."
    if not figures.columns:
        return ""
    by_axis: dict[int, list[int]] = {}
    for axis, place in figures.columns:
        by_axis.setdefault(axis, []).append(place)
    where = " and ".join(f"place {', '.join(map(str, places))} of axis {axis}" for axis, places in by_axis.items())
    few = f"less than a quarter of FP32's variation over {figures.values[INPUTS]:.0f} inputs is left"
    return f"In '{name}', {few} at {where}."
