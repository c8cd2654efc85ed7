"""Rows lost or won by an output whose length depends on the data, such as NonMaxSuppression's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from trt_bisect.evaluator.trial import OutputFigures
from trt_bisect.support.text import percent

ROWS = "rows"
"""The key of ``OutputFigures.pooled`` for rows, and the figure with the number of all rows."""
LOST = "rows_lost"
"""The figure with the number of rows lost or won."""
FEW_ROWS = 20
"""With fewer rows, half of them lost or won is a miss, and no share is a doubt."""
ROWS_MISSED, _FEW_MISSED, _DOUBT = 0.25, 0.5, 0.1
"""The shares of rows lost or won that are a miss, a miss with few rows, and a doubt."""


def rows_axis(arrays: Sequence[np.ndarray]) -> int | None:
    """Returns the axis on which an output's ``arrays`` differ in length; else the first longer than 1, or 0. None for
    scalars.
    """
    rank = min(array.ndim for array in arrays)
    lengths = [{array.shape[axis] for array in arrays} for axis in range(rank)]
    varying = [axis for axis in range(rank) if len(lengths[axis]) > 1]
    longer = [axis for axis in range(rank) if lengths[axis] != {1}]
    return next(iter((*varying, *longer, *range(rank))), None)


def with_rows(
    figures: OutputFigures, reference: Sequence[np.ndarray], outputs: Sequence[np.ndarray], axis: int | None
) -> OutputFigures:
    """Returns the figures of an output together with the numbers of rows that ``outputs`` lose or win against
    ``reference``, both by input; unchanged if no shape differs.

    Args:
        axis: the axis of the rows, where shapes are equal; None for scalars.
    """
    arrays = [(np.asarray(r), np.asarray(o)) for r, o in zip(reference, outputs, strict=True)]
    differing = [(r, o) for r, o in arrays if r.shape != o.shape]
    if not differing:
        return figures
    pairs = [_rows(r, o, axis) for r, o in arrays]
    lost, rows = float(sum(abs(a - b) for a, b in pairs)), float(sum(max(pair) for pair in pairs))
    before, after = differing[0]
    note = f"shape {list(after.shape)} instead of {list(before.shape)}"
    if len(differing) > 1:
        note += f" and others on {len(differing) - 1} more inputs"
    inputs = {**figures.inputs}
    if len(pairs) > 1:
        inputs[ROWS] = tuple(abs(a - b) / max(a, b, 1) for a, b in pairs)
    return replace(
        figures,
        values={**figures.values, LOST: lost, ROWS: rows},
        note="; ".join(filter(None, (f"{note}, compared where both have values", figures.note))),
        inputs=inputs,
        pooled={**figures.pooled, ROWS: (lost, rows)},
    )


def rows_text(name: str, values: Mapping[str, float | None]) -> str:
    """Returns a clause on the rows that output ``name`` loses or wins, from its figures ``values``; empty if none."""
    lost, rows = values.get(LOST), values.get(ROWS)
    if not lost or not rows:
        return ""
    return f"'{name}' loses or wins {lost:.0f} of {rows:.0f} rows ({percent(lost / rows)})"


def rows_at(reference: np.ndarray, output: np.ndarray, axis: int | None) -> dict[str, tuple[float, float]]:
    """Returns, by the key ``rows``, (rows lost or won, all rows) for one input; empty if ``axis`` is None."""
    a, b = _rows(reference, output, axis)
    return {} if axis is None else {ROWS: (float(abs(a - b)), float(max(a, b)))}


def _rows(reference: np.ndarray, output: np.ndarray, axis: int | None) -> tuple[int, int]:
    if reference.ndim != output.ndim:
        return max(reference.size, 1), 0
    unlike = [k for k in range(reference.ndim) if reference.shape[k] != output.shape[k]]
    if unlike:
        return reference.shape[unlike[0]], output.shape[unlike[0]]
    count = 1 if axis is None or reference.ndim <= axis else reference.shape[axis]
    return count, count


def common_region(reference: np.ndarray, output: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns both arrays cut to the shorter length along each axis; empty arrays if their ranks differ."""
    if reference.ndim != output.ndim:
        return reference.reshape(-1)[:0], output.reshape(-1)[:0]
    region = tuple(slice(0, min(sizes)) for sizes in zip(reference.shape, output.shape, strict=True))
    return reference[region], output[region]


def rows_missed(lost: float, rows: float) -> bool:
    """Returns true if losing or winning ``lost`` of all ``rows`` is a miss: over a quarter, or half of under 20."""
    if rows < FEW_ROWS:
        return lost >= _FEW_MISSED * rows
    return lost > ROWS_MISSED * rows


def rows_doubted(pooled: Mapping[str, tuple[float, float]]) -> bool:
    """Returns true if a pass is doubtful, because over a tenth of 20 or more rows are lost or won, by
    ``OutputFigures.pooled``.
    """
    lost, rows = pooled.get(ROWS, (0.0, 0.0))
    return rows >= FEW_ROWS and lost > _DOUBT * rows
