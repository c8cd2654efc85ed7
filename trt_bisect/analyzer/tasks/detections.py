"""Detections: boxes with scores and classes, their overlap, and non-maximum suppression by ONNX Runtime."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

MOST = 3000
"""The most candidates of an image, the best by score; so that outputs that are all noise take no hours."""
_OPSET, _IR = 11, 7


@dataclass(frozen=True)
class Detections:
    """The detections in one image.

    Attributes:
        boxes: two opposite corners, x and y each, in any unit; float64 ``[n, 4]``.
        scores: float64 ``[n]``.
        classes: int64 ``[n]``.
    """

    boxes: np.ndarray
    scores: np.ndarray
    classes: np.ndarray

    def __len__(self) -> int:
        return len(self.scores)

    def at(self, places: np.ndarray) -> Detections:
        """Returns some of the detections, by indices or by a mask."""
        return Detections(self.boxes[places], self.scores[places], self.classes[places])

    def above(self, threshold: float) -> Detections:
        """Returns the detections that score at least ``threshold``, at most ``MOST``, the best first."""
        order = np.argsort(-self.scores, kind="stable")
        return self.at(order[self.scores[order] >= threshold][:MOST])


NO_DETECTIONS = Detections(np.zeros((0, 4)), np.zeros(0), np.zeros(0, np.int64))


def corners(centred: np.ndarray) -> np.ndarray:
    """Returns boxes given as centre and size, ``[n, 4]``, as two corners."""
    middle, half = centred[:, :2], centred[:, 2:] / 2.0
    return np.concatenate([middle - half, middle + half], axis=-1)


def suppressed(found: Detections, iou: float) -> Detections:
    """Returns the detections that ONNX Runtime's NonMaxSuppression keeps, each class by itself.

    Args:
        found: candidates with scores above 0.
        iou: a box that overlaps a better one of its class by more than this is removed.
    """
    if not len(found):
        return found
    known, rows = np.unique(found.classes, return_inverse=True)
    scores = np.zeros((1, len(known), len(found)), np.float32)
    scores[0, rows, np.arange(len(found))] = found.scores
    feeds = {
        "boxes": found.boxes[None].astype(np.float32),
        "scores": scores,
        "most": np.array([len(found)], np.int64),
        "iou": np.array([iou], np.float32),
        "least": np.array([0.0], np.float32),
    }
    (chosen,) = _session().run(None, feeds)
    return found.at(np.sort(chosen[:, 2]))


@cache
def _session() -> ort.InferenceSession:
    """Returns a session of the operator NonMaxSuppression alone."""
    types = {"boxes": TensorProto.FLOAT, "scores": TensorProto.FLOAT, "most": TensorProto.INT64}
    types |= {"iou": TensorProto.FLOAT, "least": TensorProto.FLOAT}
    inputs = [helper.make_tensor_value_info(name, kind, None) for name, kind in types.items()]
    chosen = helper.make_tensor_value_info("chosen", TensorProto.INT64, [None, 3])
    graph = helper.make_graph([helper.make_node("NonMaxSuppression", list(types), ["chosen"])], "nms", inputs, [chosen])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR)
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def overlaps(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Returns intersection over union of each box with each other box.

    Args:
        one: two corners, ``[n, 4]``.
        other: likewise, ``[m, 4]``.

    Returns:
        float64 ``[n, m]``; 0 where both boxes have no area.
    """
    low, high = np.maximum(one[:, None, :2], other[:, :2]), np.minimum(one[:, None, 2:], other[:, 2:])
    shared = np.prod(np.maximum(high - low, 0.0), axis=-1)
    areas = [np.prod(np.maximum(boxes[:, 2:] - boxes[:, :2], 0.0), axis=-1) for boxes in (one, other)]
    union = areas[0][:, None] + areas[1] - shared
    return np.asarray(np.divide(shared, union, out=np.zeros_like(shared), where=union > 0.0))


def number_kept(before: Detections, after: Detections, iou: float) -> int:
    """Returns the number of detections of ``before`` that ``after`` has too.

    From the best score on, each takes the free detection of its class that overlaps it most, by ``iou`` at least.
    """
    if not len(before) or not len(after):
        return 0
    same = before.classes[:, None] == after.classes
    shared = np.where(same, overlaps(before.boxes, after.boxes), 0.0)
    kept = 0
    for place in np.argsort(-before.scores, kind="stable"):
        best = int(shared[place].argmax())
        if shared[place, best] >= iou:
            kept += 1
            shared[:, best] = 0.0
    return kept
