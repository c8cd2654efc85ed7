"""Raw heads: a map for each scale, whose distances and scores the network leaves to be decoded.

As Ultralytics decodes them: a distance is the mean of its bins under a softmax (distribution focal loss), in strides
from the middle of a cell. Boxes are in eighths of the finest map's cells: they overlap as those in pixels do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from trt_bisect.analyzer.classes import sigmoid, softmax
from trt_bisect.analyzer.tasks.detections import FINEST, Detections, Head
from trt_bisect.analyzer.tasks.layouts import Layout, are_shares
from trt_bisect.builder.base import Outputs

_BINS = 16
"""The bins of a distance in every export whose distances are an output of their own."""
_LEAST_MAPS = 2
_BACKGROUND = 0.3


@dataclass(frozen=True)
class _Scale:
    """The maps of one scale, which may be the same output: first the distances, then the scores."""

    distances: str
    scores: str
    bins: int
    first: int
    """The first channel of the scores."""
    stride: float


def raw_head(reference: Sequence[Outputs], layout: Layout | None = None) -> Head | None:
    """Returns the head for maps of two scales or more, each half as large as the one before; None if they are none.

    Each scale has a map of 64 channels, the distances, and a map of the classes, or one of both, which must be named: a
    number of channels does not tell its bins from its classes. A third map of one channel is not read.

    Args:
        reference: the FP32 outputs for each input.
        layout: ``dfl:16,classes:80``, the channels of maps with both.
    """
    maps = {name: value for name, value in reference[0].items() if value.ndim == 4 and value.dtype.kind == "f"}
    sizes = sorted({value.shape[2:] for value in maps.values()}, reverse=True)
    is_halved = all(b == tuple(-(-side // 2) for side in a) for a, b in pairwise(sizes))
    if len(sizes) < _LEAST_MAPS or not is_halved:
        return None
    scales = []
    for place, size in enumerate(sizes):
        names = [name for name, value in maps.items() if value.shape[2:] == size]
        scale = _scale({name: maps[name].shape[1] for name in names}, layout, FINEST * 2.0**place)
        if scale is None:
            return None
        scales.append(scale)
    classes = {_classes(scale, maps[scale.scores]) for scale in scales}
    if len(classes) != 1 or not _mostly_background(scales, reference):
        return None
    is_logit = any(not are_shares(_scores(scale, outputs)) for scale in scales for outputs in reference)

    def read(outputs: Outputs) -> list[Detections]:
        parts = [_decoded(scale, outputs, is_logit) for scale in scales]
        boxes, scores = (np.concatenate(each, axis=1) for each in zip(*parts, strict=True))
        return [Detections(b, s.max(axis=-1), s.argmax(axis=-1)) for b, s in zip(boxes, scores, strict=True)]

    read_names = tuple(dict.fromkeys(name for scale in scales for name in (scale.distances, scale.scores)))
    shown = ", ".join(f"{height}x{width}" for height, width in sizes)
    note = f"raw maps of {shown} as dfl:{scales[0].bins},classes:{classes.pop()}, decoded outside the network"
    return Head(read_names, note, read, True, finest=scales[0].scores)


def _scale(channels: dict[str, int], layout: Layout | None, stride: float) -> _Scale | None:
    if layout is not None:
        (bins,) = layout.shapes["dfl"]
        both = [name for name, count in channels.items() if count == layout.width]
        return _Scale(both[0], both[0], bins, 4 * bins, stride) if len(both) == 1 else None
    distances = [name for name, count in channels.items() if count == 4 * _BINS]
    others = [name for name, count in channels.items() if count != 4 * _BINS]
    if len(others) == 2:
        others = [name for name in others if channels[name] > 1]
    return _Scale(distances[0], others[0], _BINS, 0, stride) if len(distances) == len(others) == 1 else None


def _classes(scale: _Scale, scores: np.ndarray) -> int:
    return int(scores.shape[1]) - scale.first


def _scores(scale: _Scale, outputs: Outputs) -> np.ndarray:
    return np.asarray(outputs[scale.scores][:, scale.first :], np.float64)


def _mostly_background(scales: Sequence[_Scale], reference: Sequence[Outputs]) -> bool:
    """Returns true if the best class of most cells is no detection, as in every image."""
    best = [_scores(scale, outputs).max(axis=1).ravel() for scale in scales for outputs in reference]
    values = np.concatenate(best)
    return bool(np.median(values if are_shares(values) else sigmoid(values)) < _BACKGROUND)


def _decoded(scale: _Scale, outputs: Outputs, is_logit: bool) -> tuple[np.ndarray, np.ndarray]:
    """Returns the boxes ``[B, H * W, 4]`` and the scores ``[B, H * W, C]`` of a scale."""
    logits = np.asarray(outputs[scale.distances][:, : 4 * scale.bins], np.float64)
    images, _, height, width = logits.shape
    shares = softmax(logits.reshape(images, 4, scale.bins, -1).swapaxes(2, 3))
    left, top, right, bottom = np.moveaxis(shares @ np.arange(scale.bins), 1, 0)
    y, x = (grid.ravel() + 0.5 for grid in np.mgrid[:height, :width])
    boxes = scale.stride * np.stack([x - left, y - top, x + right, y + bottom], axis=-1)
    scores = _scores(scale, outputs).reshape(images, -1, height * width).swapaxes(1, 2)
    return boxes, sigmoid(scores) if is_logit else scores
